// Groups codes around pivots without knowing how many groups there are. Groups only make scans
// faster; any grouping is correct.
//
// A code joins the nearest pivot that has the same bits as the code in some window, if that pivot is
// near enough. Pivots come from a sample: a code without a pivot becomes one; then each pivot moves to
// the bitwise majority of its codes. That makes groups tight, and pivots of one cluster equal.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "code.h"

namespace mch {

template <class C>
struct Grouping {
    static constexpr uint32_t loose = UINT32_MAX;
    std::vector<uint32_t> group;  // by code; `loose` if it is in no group
    std::vector<uint32_t> size;   // by group
    std::vector<C> pivot;         // by group
    std::vector<uint8_t> radius;  // by group
};

// Pivots, looked up by windows of their bits.
template <class C>
class PivotTable {
  public:
    static constexpr uint32_t none = UINT32_MAX;
    std::vector<C> pivot;

    PivotTable(int bits, size_t n_codes)
        : bits_(bits),
          width_(std::clamp(int(std::log2(double(n_codes))) - 4, 12, 20)),
          latest_(size_t(windows) << width_, none) {}

    // The nearest of the pivots that the code's windows lead to, or `none` if none is within `near`.
    uint32_t find(const C& code, int near, int& distance) const {
        uint32_t best = none;
        distance = near + 1;
        for (int w = 0; w < windows; ++w) {
            uint32_t p = latest_[cell(code, w)];
            if (p == none) continue;
            int d = (pivot[p] ^ code).popcount();
            if (d < distance) best = p, distance = d;
        }
        return best;
    }

    void prefetch(const C& code) const {
        for (int w = 0; w < windows; ++w) __builtin_prefetch(&latest_[cell(code, w)]);
    }

    uint32_t add(const C& code) {
        for (int w = 0; w < windows; ++w) latest_[cell(code, w)] = uint32_t(pivot.size());
        pivot.push_back(code);
        return uint32_t(pivot.size() - 1);
    }

  private:
    static constexpr int windows = 8;
    size_t cell(const C& code, int w) const {
        int at = std::min(w * bits_ / windows, bits_ - width_);
        return (size_t(w) << width_) | code.window(at, width_);
    }
    int bits_, width_;
    std::vector<uint32_t> latest_;  // by window and its value: the last pivot added there
};

// For each bit position, counts how many of up to 15 codes have the bit set. All counters advance at
// once: plane i holds bit i of each of them.
template <class C>
struct Votes {
    static constexpr int planes = 4, most = (1 << planes) - 1;
    C plane[planes]{};
    int n = 0;

    void add(const C& code) {
        if (n == most) return;
        ++n;
        for (int j = 0; j < C::words; ++j) {
            auto carry = code.w[j];
            for (C& p : plane) {
                auto next = typename C::Word(p.w[j] & carry);
                p.w[j] ^= carry;
                carry = next;
            }
        }
    }
    C majority() const {  // the bits set in more than half of the codes
        C above{};
        for (int j = 0; j < C::words; ++j) {
            auto equal = ~typename C::Word(0);
            for (int i = planes - 1; i >= 0; --i) {
                if (!((n / 2) >> i & 1)) above.w[j] |= equal & plane[i].w[j];
                equal &= (n / 2) >> i & 1 ? plane[i].w[j] : ~plane[i].w[j];
            }
        }
        return above;
    }
};

// The order of `codes` must have nothing to do with their values, because a prefix serves as a sample.
template <class C>
Grouping<C> group_codes(const std::vector<C>& codes, int bits) {
    constexpr size_t smallest_table = 4096;  // in a smaller one a plain scan is fast
    constexpr size_t trial = 16384;          // codes after which grouping must show success
    constexpr uint32_t smallest_group = 16;  // a smaller one costs more than it saves
    constexpr size_t ahead = 8;

    Grouping<C> g;
    g.group.assign(codes.size(), g.loose);
    if (bits < 24 || codes.size() < smallest_table) return g;
    const int near = bits / 8;
    int distance;

    PivotTable<C> table(bits, codes.size());
    {
        PivotTable<C> draft(bits, codes.size());
        std::vector<Votes<C>> votes;
        const size_t sample = std::max(codes.size() / 4, std::min(codes.size(), 2 * trial));
        for (size_t i = 0; i < sample; ++i) {
            draft.prefetch(codes[std::min(i + ahead, codes.size() - 1)]);
            uint32_t p = draft.find(codes[i], near, distance);
            if (p == draft.none) {
                p = draft.add(codes[i]);
                votes.emplace_back();
            }
            votes[p].add(codes[i]);
            if (i == trial && draft.pivot.size() > trial - trial / 8) return g;  // the codes have no clusters
        }
        std::erase_if(votes, [](const Votes<C>& v) { return v.n < 3; });
        std::stable_sort(votes.begin(), votes.end(), [](auto& a, auto& b) { return a.n > b.n; });
        for (const Votes<C>& v : votes) {
            C centre = v.majority();
            if (table.find(centre, near / 4, distance) == table.none) table.add(centre);
        }
    }

    g.size.assign(table.pivot.size(), 0);
    g.radius.assign(table.pivot.size(), 0);
    for (size_t i = 0; i < codes.size(); ++i) {
        table.prefetch(codes[std::min(i + ahead, codes.size() - 1)]);
        uint32_t p = table.find(codes[i], near, distance);
        if (p == table.none) {  // it may belong to a cluster that the sample missed
            p = table.add(codes[i]);
            g.size.push_back(0);
            g.radius.push_back(0);
            distance = 0;
        }
        g.group[i] = p;
        ++g.size[p];
        g.radius[p] = std::max(g.radius[p], uint8_t(distance));
    }

    // Groups too small to be worth a pivot are dissolved, the others renumbered.
    std::vector<uint32_t> renamed(g.size.size(), g.loose);
    for (size_t p = 0; p < renamed.size(); ++p) {
        if (g.size[p] < smallest_group) continue;
        uint32_t kept = renamed[p] = uint32_t(g.pivot.size());
        g.pivot.push_back(table.pivot[p]);
        g.size[kept] = g.size[p], g.radius[kept] = g.radius[p];
    }
    g.size.resize(g.pivot.size()), g.radius.resize(g.pivot.size());
    for (auto& label : g.group) label = renamed[label];
    return g;
}

}  // namespace mch
