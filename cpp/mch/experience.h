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
    // What to do with a query that the nearest flips have not answered: scan the groups in reach and the loose codes;
    // scan all codes; probe further flips first; read cells of the substring index first.
    enum Way { scan, scan_all, flips, cells };
    static constexpr int ways = 4;
    static constexpr int sizes = 8;    // of K: 1 to 3, 4 to 15, 16 to 63, …
    static constexpr int reaches = 4;  // none, below 1/16 of the bits, below 1/8, further
    static constexpr int blocks = 3;   // of one query, of some, of many
    static constexpr int classes = blocks * reaches * sizes;
    // The more queries a block has, the more of them share what a scan reads. Cells are the faster, the smaller the
    // radius is that a search is limited to; a scan is not.
    static int class_of(uint64_t k, size_t together, int radius, int bits) {
        const int block = together == 1 ? 0 : together < 16 ? 1 : 2;
        const int reach = radius >= bits ? 0 : 16 * radius < bits ? 1 : 8 * radius < bits ? 2 : 3;
        return std::min(sizes, int(std::bit_width(k) + 1) / 2) - 1 + sizes * (reach + reaches * block);
    }

    // The fastest of the ways that are open; now and then another one, because data and queries change. A scan is
    // always open.
    Way choose(int c, const bool (&open)[ways]) {
        Times& t = times_[c];
        Way others[ways];
        uint32_t n = 0;
        const Way best = fastest(t, open);
        for (int w = 0; w < ways; ++w) {
            if (!open[w]) continue;
            if (!t.ns[w]) return Way(w);
            if (w != best) others[n++] = Way(w);
        }
        if (!n) return best;
        const uint32_t turn = ++t.turns;
        const Way other = others[(turn * 2654435761u >> 16) % n];
        // The first measurements are of cold caches, so they are soon repeated.
        const uint32_t interval = turn < 64 ? 8 : t.ns[other] < 2 * t.ns[best] ? 64 : 1024;
        return turn % interval ? best : other;
    }
    void record(int c, Way way, double ns) {
        Times& t = times_[c];
        const float before = t.ns[way], now = float(ns);
        const bool best = std::all_of(t.ns, t.ns + ways, [&](const auto& other) { return !other || before <= other; });
        // What is known of a way that is seldom tried may be old, or of cold caches. Else one measurement counts for
        // little, because a thread may have been interrupted.
        if (!before || (!best && now < before))
            t.ns[way] = now;
        else
            t.ns[way] = before + (std::min(now, 2 * before) - before) / 8;
    }
    double of(int c, Way way) const { return times_[c].ns[way]; }
    // The time of the fastest way that reads no cells.
    double without_cells(int c) const { return times_[c].ns[fastest(times_[c], {true, true, true, false})]; }

    // Whether an index of cells has been tried for long enough and is hardly ever faster.
    bool cells_lose() const {
        uint32_t turns = 0;
        for (const Times& t : times_) {
            if (t.ns[cells] && t.ns[cells] < 0.9f * t.ns[fastest(t, {true, true, true, false})]) return false;
            turns += t.turns;
        }
        return turns >= 1024;
    }

    // True once in many calls.
    bool sample() { return sampled_++ % interval == interval / 8; }
    static constexpr uint32_t interval = 64;

  private:
    struct Times {
        std::atomic<float> ns[ways] = {0, 0, 0, 0};  // 0: not measured yet
        std::atomic<uint32_t> turns{0};
    };
    static Way fastest(const Times& t, const bool (&open)[ways]) {
        Way best = scan;
        for (int w = 0; w < ways; ++w)
            if (open[w] && t.ns[w] && (!t.ns[best] || t.ns[w] < t.ns[best])) best = Way(w);
        return best;
    }
    Times times_[classes];
    std::atomic<uint32_t> sampled_{0};
};

}  // namespace mch
