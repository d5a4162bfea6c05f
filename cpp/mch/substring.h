// Multi-index hashing. The index has m disjoint windows of s bits. For each window it holds all codes,
// ordered by their value there; the codes with one value are a cell. A code within r of the query is
// within r / m of it in some window, so it is in a cell near the query's cell.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "calibration.h"
#include "probe.h"
#include "segment.h"

namespace mch {

// All values of `bits` bits, ordered by popcount: those of popcount r are [start[r], start[r + 1]).
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
        Array<uint32_t> start;  // by cell, plus the end
        Array<typename C::Word> code[C::words];

        Planes<C> codes() const {
            Planes<C> p;
            for (int j = 0; j < C::words; ++j) p.p[j] = code[j].data();
            return p;
        }
    };

    // Windows have 8 to 16 bits, for about 16 codes per cell. There are at most 4 of them up to 64 bits
    // and 8 beyond, because each holds a copy of the codes.
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

    // About how long it takes to read all cells of one window at this distance from the query's cell, if codes
    // are spread evenly; and to search for everything within `distance` of the query, by a sample of the codes.
    static double step_cost(const Segment<C>& seg, int radius) {
        const int s = window_bits(seg.bits, seg.n_buckets);
        return double(Binomials::get().choose(s, radius)) *
               (cell_ns + std::ldexp(double(seg.n_buckets), -s) * code_ns<C>());
    }
    static double cost(const Segment<C>& seg, const C& query, int distance) {
        const int s = window_bits(seg.bits, seg.n_buckets), m = window_count(seg.bits, seg.n_buckets);
        constexpr size_t most = 1024;
        const size_t n = std::min<size_t>(seg.n_buckets, most);
        double ns = 0;
        for (int step = 0; step <= std::min(distance, m * s); ++step)
            ns += double(Binomials::get().choose(s, step / m)) * cell_ns;
        uint64_t codes = 0;  // of the sample, in the cells read
        for (size_t i = 0; i < n; ++i) {
            const C mask = seg.codes().at(size_t(seg.n_buckets) * i / n) ^ query;
            for (int j = 0; j < m; ++j) codes += std::popcount(mask.window(j * seg.bits / m, s)) * m + j <= distance;
        }
        return ns + double(codes) * double(seg.n_buckets) / double(n) * code_ns<C>();
    }
    static size_t bytes_for(const Segment<C>& seg) {
        return size_t(window_count(seg.bits, seg.n_buckets)) * seg.n_buckets * sizeof(C);
    }

    int m() const { return m_; }
    int s() const { return s_; }
    const Window& window(int j) const { return window_[j]; }
    const MasksByWeight& masks() const { return masks_; }

    // Whether a search first meets a code at this XOR mask in step (radius, j); steps go by radius, then
    // by window. With that, no code is taken twice, and none needs a mark.
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
    static constexpr double cell_ns = 35;  // to find a cell, which is seldom in the cache

    int m_, s_;
    MasksByWeight masks_;
    std::vector<Window> window_;
};

// The segment's index; the calling thread builds it if it is missing. No lock is held during that, so a
// process forked at the same time never blocks. If two threads build it, one result is thrown away.
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
