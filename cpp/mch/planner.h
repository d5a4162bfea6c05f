// The cost model: what each strategy is expected to cost on a segment. The constants are nanoseconds,
// measured on a 2.8 GHz core with AVX-512; only their proportions matter.
#pragma once

#include <algorithm>
#include <cmath>

#include "probe.h"
#include "substring.h"

namespace mch {

constexpr double kProbeCost = 6.0;   // per flip: reads a bit that is seldom in the cache
constexpr double kCodeCost = 0.09;   // per word of a code in a scan
constexpr double kReadCost = 0.33;   // to read that word from memory, once for all queries of a block
constexpr double kPivotCost = 0.15;  // per word of a pivot
constexpr double kGroupCost = 40.0;  // per group in reach
constexpr double kCellCost = 35.0;   // per cell of the substring index: reads a few cache lines
constexpr double kBuildCost = 40.0;  // per code and window, to build that index

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

  private:
    int bits_;
    double within_[kMaxBits + 1];
};

// A query finds its K images either near by, in the cluster it belongs to, or far away, among unrelated
// codes. That shows only during the search, so the plan holds the costs of both cases.
template <class C>
struct Plan {
    bool near;         // clusters are large enough to hold K
    int probe_radius;  // probe all flips up to this radius first
    int guess[2];      // distances within which K are expected among loose codes: likely, and safe
    double scan_near, scan_far, substring_near, substring_far;

    // For the K nearest images of each query, with `together` queries per block.
    Plan(const Segment<C>& seg, uint64_t k, size_t together) {
        near = seg.n_groups && double(k) * seg.n_groups <= 4.0 * seg.n_entries;
        const double loose = seg.n_buckets - seg.loose_begin();
        const UniformBall among_loose(seg.bits, loose), among_all(seg.bits, seg.n_entries);
        guess[0] = among_loose.radius_of(1.2 * double(k));
        guess[1] = among_loose.radius_of(16.0 * double(k));

        const int far = among_all.radius_of(double(k));
        const bool cached = loose * sizeof(C) < 1 << 20;
        const double code_cost = kCodeCost + (cached ? 0 : kReadCost / double(together));
        scan_near = (seg.n_groups * kPivotCost + loose * code_cost) * C::words;
        scan_far = scan_near;
        if (seg.n_groups) {
            constexpr uint32_t samples = 64;
            int radius = 0;
            for (uint32_t i = 0; i < samples; ++i) radius += seg.group_radius[uint64_t(seg.n_groups) * i / samples];
            scan_far += UniformBall(seg.bits, seg.n_groups).within(far + radius / int(samples)) * kGroupCost;
        }
        const int m = SubstringIndex<C>::window_count(seg.bits, seg.n_buckets);
        substring_near = substring_far = 0;
        for (int step = 0; step < 2 * m; ++step) substring_near += step_cost(seg, step / m);
        for (int step = 0; step <= far; ++step) substring_far += step_cost(seg, step / m);

        // The query's bucket and single flips cost next to nothing. Probe further only if that is
        // cheap compared to what it may save.
        probe_radius = 0;
        while (probe_radius < 2 && double(Binomials::get().choose(seg.bits, probe_radius + 1)) * kProbeCost <
                                       0.1 * std::min(scan_near, substring_near) + 500)
            ++probe_radius;
    }

    bool substring_pays_near() const { return near && substring_near < 0.6 * scan_near; }
    bool substring_pays_far() const { return substring_far < 0.8 * scan_far; }
    bool substring_pays() const { return substring_pays_near() || substring_pays_far(); }
    double substring_budget() const { return substring_pays_far() ? scan_far : substring_near; }
    double expected_cost() const { return std::min(scan_far, substring_far); }

    // To read all cells of one window at this distance from the query's cell.
    static double step_cost(const Segment<C>& seg, int radius) {
        const int s = SubstringIndex<C>::window_bits(seg.bits, seg.n_buckets);
        return double(Binomials::get().choose(s, radius)) *
               (kCellCost + std::ldexp(double(seg.n_buckets), -s) * kCodeCost * C::words);
    }
};

}  // namespace mch
