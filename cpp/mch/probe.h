// The order in which Algorithm 1 visits buckets: XOR masks by growing radius, and within a radius in
// lexicographic order of the flipped positions. Enumerates masks, and ranks them without enumerating.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <random>
#include <vector>

#include "code.h"

namespace mch {

constexpr uint64_t kMaxCount = uint64_t(INT64_MAX);  // reported bucket counts saturate here

class Binomials {
  public:
    using Wide = unsigned __int128;

    static const Binomials& get() { return all_; }
    Wide choose(int n, int k) const { return k < 0 || k > n ? 0 : c_[n][k]; }

    // Number of masks with at most `radius` of `bits` bits set; beyond 2^65 only a lower bound of at
    // least 2^65.
    Wide ball(int bits, int radius) const {
        Wide sum = 0;
        for (int r = 0; r <= std::min(radius, bits) && !(sum >> 65); ++r) sum += choose(bits, r);
        return sum;
    }

  private:
    Binomials() {
        constexpr Wide top = Wide(1) << 126;
        for (int n = 0; n <= kMaxBits; ++n)
            for (int k = 0; k <= n; ++k)
                c_[n][k] = k == 0 || k == n ? 1 : std::min(top, c_[n - 1][k - 1] + c_[n - 1][k]);
    }
    std::array<std::array<Wide, kMaxBits + 1>, kMaxBits + 1> c_{};
    static const Binomials all_;
};

// Made when the library is loaded: a forked child cannot finish what another thread had begun to make.
inline const Binomials Binomials::all_;

// The 1-based rank of the bucket at this XOR mask, saturated at kMaxCount.
template <class C>
uint64_t bucket_rank(const C& mask, int bits) {
    const auto& b = Binomials::get();
    int radius = mask.popcount();
    Binomials::Wide rank = radius ? b.ball(bits, radius - 1) : 0;
    // Beyond saturation the terms below could exceed the largest entry of the table. Before it they
    // cannot: C(Q, r) is at most 256 times C(Q, r - 1), which the sum already includes.
    if (rank >= kMaxCount) return kMaxCount;
    int previous = -1, left = radius;
    for (int i = 0; i < C::words; ++i) {
        for (auto w = mask.w[i]; w; --left) {
            int lead = std::countl_zero(w);
            w ^= typename C::Word(1) << (C::word_bits - 1 - lead);
            int p = i * C::word_bits + lead;
            // Masks with the same flips so far, whose next flip is earlier: a hockey-stick sum.
            rank += b.choose(bits - 1 - previous, left) - b.choose(bits - p, left);
            previous = p;
        }
    }
    return uint64_t(std::min<Binomials::Wide>(rank + 1, kMaxCount));
}

// The inverse: the mask of this 1-based rank, which must not exceed 2^bits.
template <class C>
C mask_at_rank(uint64_t rank, int bits) {
    const auto& b = Binomials::get();
    Binomials::Wide index = rank - 1;
    int radius = 0;
    for (; index >= b.choose(bits, radius); ++radius) index -= b.choose(bits, radius);
    C mask{};
    for (int p = 0, left = radius; left; ++p) {
        auto starting_here = b.choose(bits - 1 - p, left - 1);
        if (index >= starting_here) {
            index -= starting_here;
        } else {
            mask.flip(p);
            --left;
        }
    }
    return mask;
}

inline uint64_t random64() {
    std::random_device source;
    return uint64_t(source()) << 32 | source();
}

// A hash that is linear over GF(2): hash(a ^ b) == hash(a) ^ hash(b), so the hash of a code with one
// more bit flipped costs one XOR. Who knows the seed can find codes that all have the same hash, and make
// look-ups as slow as a scan; so every table has a random seed of its own. All its segments use it, and a
// snapshot stores it: how the seed becomes a hash is part of the snapshot format.
class LinearHash {
  public:
    LinearHash(int bits, uint64_t seed) : seed_(seed), bytes_(bits / 8) {
        uint64_t state = seed;  // of splitmix64
        for (int p = 0; p < bits; ++p) {
            uint64_t z = (state += 0x9e3779b97f4a7c15);
            z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
            z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
            flip_[p] = uint32_t((z ^ (z >> 31)) >> 32);
        }
        table_.resize(size_t(bytes_) * 256);
        for (int i = 0; i < bytes_; ++i)
            for (int v = 1; v < 256; ++v) {
                int low = std::countr_zero(unsigned(v));
                table_[i * 256 + v] = table_[i * 256 + (v & (v - 1))] ^ flip_[i * 8 + 7 - low];
            }
    }

    uint64_t seed() const { return seed_; }
    uint32_t flip(int position) const { return flip_[position]; }
    const uint32_t* flips() const { return flip_.data(); }

    template <class C>
    uint32_t operator()(const C& code) const {
        uint32_t h = 0;
        for (int i = 0; i < bytes_; ++i) h ^= table_[i * 256 + code.byte(i)];
        return h;
    }

  private:
    uint64_t seed_;
    int bytes_;
    std::array<uint32_t, kMaxBits> flip_{};
    std::vector<uint32_t> table_;
};

// Calls visit(code ^ mask, hash(code ^ mask)) for every mask of exactly `radius` flips, in visiting
// order, until visit returns false. Returns false if it was stopped.
template <class C, class F>
bool for_each_flip(const C& code, uint32_t hash, const LinearHash& h, int bits, int radius, F&& visit, int from = 0) {
    if (radius == 0) return visit(code, hash);
    for (int p = from; p <= bits - radius; ++p) {
        C flipped = code;
        flipped.flip(p);
        uint32_t fh = hash ^ h.flip(p);
        if (!(radius == 1 ? visit(flipped, fh) : for_each_flip(flipped, fh, h, bits, radius - 1, visit, p + 1)))
            return false;
    }
    return true;
}

}  // namespace mch
