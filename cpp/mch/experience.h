// What searches of a segment have cost so far. It decides between strategies that give the same answer.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cstdint>

namespace mch {

inline double nanoseconds() {
    using Clock = std::chrono::steady_clock;
    return double(std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count());
}

// Nanoseconds per query by strategy, by K and by the largest radius, measured on this machine with the queries that
// came. Several threads may write at once; a lost update does no harm.
class Experience {
  public:
    enum Way { scan, cells };
    static constexpr int sizes = 8;    // of K: 1 to 3, 4 to 15, 16 to 63, …
    static constexpr int reaches = 4;  // none, below 1/16 of the bits, below 1/8, further
    static constexpr int classes = 2 * reaches * sizes;
    // Single queries are apart from those of a block, which share what a scan reads. Cells are the faster, the
    // smaller the radius is that a search is limited to; a scan is not.
    static int class_of(uint64_t k, bool alone, int radius, int bits) {
        const int reach = radius >= bits ? 0 : 16 * radius < bits ? 1 : 8 * radius < bits ? 2 : 3;
        return std::min(sizes, int(std::bit_width(k) + 1) / 2) - 1 + sizes * (reach + (alone ? reaches : 0));
    }

    // The faster way; now and then the other one, because data and queries change.
    Way choose(int c) {
        Times& t = times_[c];
        const float by_scan = t.ns[scan], by_cells = t.ns[cells];
        if (!by_scan || !by_cells) return by_scan ? cells : scan;
        const Way best = by_cells < by_scan ? cells : scan;
        const bool close = std::max(by_scan, by_cells) < 2 * std::min(by_scan, by_cells);
        const uint32_t turn = ++t.turns;
        // The first measurements are of cold caches, so they are soon repeated.
        const uint32_t interval = !close ? 1024 : turn < 64 ? 8 : 64;
        return turn % interval ? best : Way(1 - best);
    }
    void record(int c, Way way, double ns) {
        std::atomic<float>& mean = times_[c].ns[way];
        const float before = mean;
        // A thread may have been interrupted, so one measurement counts for little.
        mean = before ? before + (std::min(float(ns), 4 * before) - before) / 8 : float(ns);
    }
    double of(int c, Way way) const { return times_[c].ns[way]; }

    // Whether an index of cells has been tried for long enough and is hardly ever faster.
    bool cells_lose() const {
        uint32_t turns = 0;
        for (const Times& t : times_) {
            if (t.ns[cells] && t.ns[cells] < 0.9f * t.ns[scan]) return false;
            turns += t.turns;
        }
        return turns >= 1024;
    }

    // True once in many calls.
    bool sample() { return sampled_++ % interval == interval / 8; }
    static constexpr uint32_t interval = 64;

  private:
    struct Times {
        std::atomic<float> ns[2] = {0, 0};
        std::atomic<uint32_t> turns{0};
    };
    Times times_[classes];
    std::atomic<uint32_t> sampled_{0};
};

}  // namespace mch
