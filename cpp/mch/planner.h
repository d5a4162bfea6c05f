// What the ways of searching a segment are expected to cost. The constants are nanoseconds,
// measured on a 2.8 GHz core with AVX-512; only their proportions matter.
#pragma once

#include <cmath>

#include "probe.h"
#include "substring.h"

namespace mch {

constexpr double kProbeCost = 1.6;   // a flip: a hash, a bit
constexpr double kCodeCost = 0.09;   // a word of a code in a scan
constexpr double kPivotCost = 0.15;  // a word of a pivot
constexpr double kCellCost = 9.0;    // a cell of the substring index
constexpr double kBuildCost = 40.0;  // a code in one window while building that index

// The least radius within which k of n uniform codes are expected; `bits` if there is none.
inline int uniform_radius(int bits, double n, double k) {
    double term = std::exp2(-bits), sum = 0;
    for (int r = 0; r <= bits; ++r) {
        sum += term;
        if (n * sum >= k) return r;
        term *= double(bits - r) / (r + 1);
    }
    return bits;
}

template <class C>
struct Plan {
    int probe_radius;        // flips up to here before anything else
    int guess[2];            // distances within which K are expected among loose codes, likely and safe
    double scan_cost;        // of what groups do not hold
    double substring_cost;   // infinite where it cannot win

    Plan(const Segment<C>& seg, uint64_t k) {
        const double loose = seg.n_buckets - seg.loose_begin();
        const double pivots = seg.n_groups * kPivotCost * C::words;
        scan_cost = loose * kCodeCost * C::words;
        guess[0] = uniform_radius(seg.bits, loose, 1.2 * double(k));
        guess[1] = uniform_radius(seg.bits, loose, 16.0 * double(k));

        const int m = SubstringIndex<C>::window_count(seg.bits, seg.n_buckets);
        const int s = SubstringIndex<C>::window_bits(seg.bits, seg.n_buckets);
        const int radius = uniform_radius(seg.bits, seg.n_buckets, double(k));
        const double in_cell = std::ldexp(double(seg.n_buckets), -s);
        substring_cost = 0;
        for (int step = 0; step <= radius && step / m <= s; ++step)
            substring_cost += double(Binomials::get().choose(s, step / m)) *
                              (kCellCost + in_cell * kCodeCost * C::words);

        // Own bucket and single flips cost next to nothing; further flips only where they are
        // cheap beside what they may spare.
        const double rest = pivots + std::min(scan_cost, substring_cost);
        probe_radius = 0;
        while (probe_radius < 2 &&
               double(Binomials::get().choose(seg.bits, probe_radius + 1)) * kProbeCost < 0.2 * rest)
            ++probe_radius;
    }
};

}  // namespace mch
