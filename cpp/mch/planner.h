// What a search of a segment starts with, before it has any experience (see experience.h). How long it takes to
// compare codes is measured on this machine. The constants are nanoseconds for what mostly waits for memory.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>

#include "calibration.h"
#include "probe.h"
#include "substring.h"

namespace mch {

constexpr double kProbeCost = 20.0;       // per flip: reads a bit that is seldom in the cache
constexpr double kCachedProbeCost = 2.0;  // the same if it is
constexpr double kReadCost = 0.33;        // per word of a code that a scan reads from memory, once for all of a block
constexpr double kCacheCost = 0.03;       // the same from the cache that the cores share
constexpr double kGroupCost = 40.0;       // per group in reach
constexpr double kBuildCost = 40.0;       // per code and window, to build the substring index

// How many of n uniform codes are expected within each radius.
class UniformBall {
  public:
    UniformBall(int bits, double n) : bits_(bits) {
        double term = n * std::exp2(-bits), sum = 0;
        for (int r = 0; r <= bits; ++r) {
            within_[r] = sum += term;
            term *= double(bits - r) / (r + 1);
        }
    }
    double within(int radius) const { return within_[std::min(radius, bits_)]; }
    // The smallest radius within which k are expected; `bits` if there is none.
    int radius_of(double k) const { return int(std::lower_bound(within_, within_ + bits_, k) - within_); }
    // The same with a part of the last radius: the first masks in visiting order, as far as their first word tells.
    template <class C>
    Bound<C> bound_of(double k) const {
        const int radius = radius_of(k);
        const double nearer = radius ? within_[radius - 1] : 0;
        double share = std::min(1.0, (k - nearer) / (within_[radius] - nearer));
        typename C::Word last = 0;
        for (int p = 0, left = radius; left && p < std::min(bits_, C::word_bits); ++p) {
            const double set =
                double(left) / (bits_ - p);  // the share of the masks left that flip bit p; they come first
            if (share < set) {
                last |= typename C::Word(1) << (C::word_bits - 1 - p);
                share /= set;
                --left;
            } else {
                share = set < 1 ? (share - set) / (1 - set) : 1;
            }
        }
        return {radius, last};
    }

  private:
    int bits_;
    double within_[kMaxBits + 1];
};

template <class C>
struct Plan {
    static constexpr size_t sample = 256;  // codes that show whether the loose ones are uniform
    static constexpr double pivot = 1.7;   // a pivot takes this many times as long as a code

    uint64_t k;       // images to look for
    size_t together;  // queries per block

    int probe_radius = 0;      // probe all flips up to this radius first
    Bound<C> guess{0};         // K are expected within it among loose codes, if they are uniform
    int nearest = 0;           // the nearest of `sample` of them is hardly further away than this
    double all_cost = 0;       // nanoseconds to compare a query with all codes, groups or not
    double wide_budget = 0;    // nanoseconds for the cells of a wide segment, before all its codes are scanned
    double expected_cost = 0;  // per query

    // For the K nearest images of each query, with `together` queries per block.
    Plan(const Segment<C>& seg, uint64_t k, size_t together) : k(k), together(together) {
        if (seg.wide) {
            // If the K nearest of uniform codes are expected too far away, a search looks only for a cluster.
            const double scan = seg.wide->scan_cost();
            const double cells = seg.wide->search_cost(UniformBall(seg.bits, seg.n_entries).radius_of(double(k)));
            wide_budget = cells < scan ? 2 * scan : 0.1 * scan;
            expected_cost = std::min(cells, scan);
            return;
        }
        const double loose = seg.n_buckets - seg.loose_begin();
        const UniformBall among_loose(seg.bits, loose), among_all(seg.bits, seg.n_entries);
        guess = among_loose.template bound_of<C>(double(k) + 3 * std::sqrt(double(k)) + 3);
        nearest = among_loose.radius_of(8 * loose / sample);

        const double bytes = loose * sizeof(C);
        const double read = bytes < 1 << 20 ? 0 : bytes < 16 << 20 ? kCacheCost : kReadCost;
        const double code_cost = code_ns<C>() + read * C::words / double(together);
        const double scan = seg.n_groups * pivot * code_ns<C>() + loose * code_cost;
        expected_cost = scan;
        all_cost = double(seg.n_buckets) * code_cost;
        if (seg.n_groups) {
            constexpr uint32_t samples = 64;
            int radius = 0;
            for (uint32_t i = 0; i < samples; ++i) radius += seg.group_radius[uint64_t(seg.n_groups) * i / samples];
            const int far = among_all.radius_of(double(k)) + radius / int(samples);
            expected_cost += UniformBall(seg.bits, seg.n_groups).within(far) * kGroupCost;
        }
        // The query's bucket and single flips cost next to nothing. Probe further only if that is cheap
        // compared to what it may save.
        while (probe_radius < 2 &&
               double(Binomials::get().choose(seg.bits, probe_radius + 1)) * kProbeCost < 0.1 * scan + 500)
            ++probe_radius;
    }
};

// The plan for such a search, made once per segment for each of the first few kinds.
template <class C>
Plan<C> plan_for(const Segment<C>& seg, uint64_t k, size_t together) {
    for (auto& slot : seg.plans->plan) {
        const Plan<C>* kept = slot.load(std::memory_order_acquire);
        if (!kept) {
            auto made = std::make_unique<const Plan<C>>(seg, k, together);
            if (slot.compare_exchange_strong(kept, made.get(), std::memory_order_acq_rel)) return *made.release();
        }
        if (kept->k == k && kept->together == together) return *kept;
    }
    return Plan<C>(seg, k, together);
}

}  // namespace mch
