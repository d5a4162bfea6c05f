// Multi-index hashing: m disjoint windows of s bits, and for each the codes ordered by their value
// there. A code within r of the query is within r / m of it in some window, so looking into the
// cells near the query's own, window by window, finds every such code.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "segment.h"

namespace mch {

// All values of `bits` bits by popcount; those of popcount r are [start[r], start[r + 1]).
struct MasksByWeight {
    std::vector<uint32_t> mask;
    std::vector<uint32_t> start;

    explicit MasksByWeight(int bits) : mask(size_t(1) << bits), start(size_t(bits) + 2, 0) {
        for (uint32_t v = 0; v < mask.size(); ++v) ++start[size_t(std::popcount(v)) + 1];
        for (int r = 0; r <= bits; ++r) start[r + 1] += start[r];
        auto next = start;
        for (uint32_t v = 0; v < mask.size(); ++v) mask[next[std::popcount(v)]++] = v;
    }
};

template <class C>
class SubstringIndex {
  public:
    struct Window {
        int begin;
        Array<uint32_t> start;  // by cell, one more at the end
        Array<typename C::Word> code[C::words];

        Planes<C> codes() const {
            Planes<C> p;
            for (int j = 0; j < C::words; ++j) p.p[j] = code[j].data();
            return p;
        }
    };

    // Windows of 8 to 16 bits, as many as make about 16 codes a cell. At most 4 up to 64 bits, 8
    // beyond: each holds a copy of the codes.
    static int window_bits(int bits, uint32_t n_buckets) {
        return std::min(bits, std::clamp(int(std::lround(std::log2(double(n_buckets) + 1))) - 4, 8, 16));
    }
    static int window_count(int bits, uint32_t n_buckets) {
        return std::clamp(bits / window_bits(bits, n_buckets), 1, bits <= 64 ? 4 : 8);
    }

    explicit SubstringIndex(const Segment<C>& seg)
        : m_(window_count(seg.bits, seg.n_buckets)),
          s_(window_bits(seg.bits, seg.n_buckets)),
          masks_(s_),
          window_(size_t(m_)) {
        const uint32_t n = seg.n_buckets;
        const Planes<C> codes = seg.codes();
        std::vector<uint32_t> next;
        for (int j = 0; j < m_; ++j) {
            Window& w = window_[j];
            w.begin = j * seg.bits / m_;
            w.start = Array<uint32_t>((size_t(1) << s_) + 1);
            uint32_t* start = w.start.mutable_data();
            for (uint32_t b = 0; b < n; ++b) ++start[codes.at(b).window(w.begin, s_) + 1];
            for (size_t c = 0; c < size_t(1) << s_; ++c) start[c + 1] += start[c];
            next.assign(start, start + (size_t(1) << s_));
            for (auto& plane : w.code) plane = Array<typename C::Word>(n);
            for (uint32_t b = 0; b < n; ++b) {
                C c = codes.at(b);
                uint32_t at = next[c.window(w.begin, s_)]++;
                for (int i = 0; i < C::words; ++i) w.code[i].mutable_data()[at] = c.w[i];
            }
        }
    }

    int m() const { return m_; }
    int s() const { return s_; }
    const Window& window(int j) const { return window_[j]; }
    const MasksByWeight& masks() const { return masks_; }

    // Is (radius, j) the first step at which a code at this XOR mask comes up? Steps go by radius,
    // then by window. So no code is taken twice, without a mark on it.
    bool first_seen(const C& mask, int radius, int j) const {
        for (int i = 0; i < m_; ++i)
            if (i != j && std::popcount(mask.window(window_[i].begin, s_)) < radius + (i < j)) return false;
        return true;
    }

    size_t bytes() const {
        size_t n = (masks_.mask.size() + masks_.start.size()) * sizeof(uint32_t);
        for (const Window& w : window_) {
            n += w.start.bytes();
            for (auto& plane : w.code) n += plane.bytes();
        }
        return n;
    }

  private:
    int m_, s_;
    MasksByWeight masks_;
    std::vector<Window> window_;
};

// The segment's index, built by the caller if need be. No lock is held meanwhile: of two that build,
// one builds in vain, and a process forked meanwhile waits for nobody.
template <class C>
const SubstringIndex<C>& substring_index(const Segment<C>& seg) {
    auto& there = seg.substring->index;
    const SubstringIndex<C>* index = there.load(std::memory_order_acquire);
    if (!index) {
        auto built = std::make_unique<const SubstringIndex<C>>(seg);
        if (there.compare_exchange_strong(index, built.get(), std::memory_order_acq_rel)) index = built.release();
    }
    return *index;
}

}  // namespace mch
