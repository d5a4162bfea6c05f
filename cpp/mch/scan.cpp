#include "scan.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace mch {
namespace {

// ---------------------------------------------------------------------------------------- portable

template <class C>
size_t scan_portable(const Planes<C>& codes, size_t begin, size_t end, const C& query, const Bound<C>& bound,
                     uint32_t* index, uint16_t* distance) {
    size_t found = 0;
    for (size_t i = begin; i < end; ++i) {
        const C mask = codes.at(i) ^ query;
        const int d = mask.popcount();
        index[found] = uint32_t(i);
        distance[found] = uint16_t(d);
        found += bound.admits(mask.w[0], d);
    }
    return found;
}

template <class C, auto scan>
void scan_lanes_in_turn(const Planes<C>& codes, size_t begin, size_t end, Lane<C>* lanes) {
    for (size_t j = 0; j < kLanes; ++j)
        lanes[j].found = scan(codes, begin, end, lanes[j].query, lanes[j].bound, lanes[j].index, lanes[j].distance);
}

template <class C>
void lower_bounds_portable(const Planes<C>& pivots, const uint8_t* radius, size_t n, const C& query, uint8_t* out) {
    for (size_t i = 0; i < n; ++i) out[i] = uint8_t(std::clamp((pivots.at(i) ^ query).popcount() - radius[i], 0, 255));
}

size_t select_portable(const uint8_t* values, size_t n, int low, int high, uint32_t* out) {
    size_t found = 0;
    for (size_t i = 0; i < n; ++i) {
        out[found] = uint32_t(i);
        found += values[i] >= low && values[i] <= high;
    }
    return found;
}

size_t occupied_portable(const uint64_t* bitmap, uint32_t hash, const uint32_t* flip, size_t n, int shift,
                         uint32_t* out) {
    size_t found = 0;
    for (size_t i = 0; i < n; ++i) {
        const uint64_t at = uint64_t(hash ^ flip[i]) >> shift;
        out[found] = uint32_t(i);
        found += bitmap[at >> 6] >> (at & 63) & 1;
    }
    return found;
}

using Vector = uint64_t __attribute__((vector_size(64)));

// Adds two planes to `sum`, modulo 2, and writes the carry.
inline __attribute__((always_inline)) void add_planes(const Vector& a, const Vector& b, Vector& sum, Vector& carry) {
    const Vector either = sum ^ a;
    carry = (sum & a) | (either & b);
    sum = either ^ b;
}

// With `levels` planes of counters, for up to 2^levels - 1 bits. d(q, x) = |q| + |x| - 2 |q & x| for the
// residuals q and x, and |x| is the number of the shell, so only |q & x| has to be counted.
template <int levels>
inline __attribute__((always_inline)) size_t residuals_of(const ResidualPlanes& group, size_t begin, size_t end,
                                                          const uint8_t* bits, int n_bits, int bound, uint32_t* index,
                                                          uint16_t* distance) {
    constexpr size_t words = ResidualPlanes::words;
    size_t found = 0;
    const uint32_t* shell = group.shells;
    for (; begin < end; begin += ResidualPlanes::block) {
        Vector count[levels] = {};
        const uint64_t* at = group.at(begin);
        for (int i = 0; i < n_bits; i += 4) {  // four planes make one carry into the fours
            Vector plane[4] = {}, low, high, carry;
            for (int k = 0; k < 4 && i + k < n_bits; ++k)
                std::memcpy(&plane[k], at + bits[i + k] * words, sizeof(Vector));
            add_planes(plane[0], plane[1], count[0], low);
            add_planes(plane[2], plane[3], count[0], high);
            add_planes(low, high, count[1], carry);
            for (int l = 2; l < levels; ++l) {
                const Vector next = count[l] & carry;
                count[l] ^= carry;
                carry = next;
            }
        }
        const size_t first = group.shells[0] + begin;
        const size_t last = first + std::min(end - begin, ResidualPlanes::block);
        while (shell[1] <= first && group.radius > shell - group.shells) ++shell;
        for (const uint32_t* s = shell; s - group.shells <= group.radius && s[0] < last; ++s) {
            if (s[0] == s[1]) continue;
            const int weight = group.radius - int(s - group.shells);  // |x|
            const int excess = n_bits + weight - bound;
            const int need = excess > 0 ? (excess + 1) / 2 : 0;  // the least |q & x|
            if (need > std::min(n_bits, weight)) continue;
            Vector above{}, equal = ~Vector{};
            for (int l = levels - 1; l >= 0; --l) {
                if (need >> l & 1)
                    equal &= count[l];
                else
                    above |= equal & count[l], equal &= ~count[l];
            }
            above |= equal;
            uint64_t hit[words];
            std::memcpy(hit, &above, sizeof hit);
            const size_t from = std::max<size_t>(s[0], first) - first, to = std::min<size_t>(s[1], last) - first;
            for (size_t w = from / 64; w * 64 < to; ++w) {
                uint64_t set = hit[w];
                if (w == from / 64) set &= ~uint64_t(0) << (from % 64);
                if (to < w * 64 + 64) set &= (uint64_t(1) << (to % 64)) - 1;
                for (; set; set &= set - 1, ++found) {
                    const int at_bit = std::countr_zero(set);
                    int overlap = 0;
                    for (int l = 0; l < levels; ++l) overlap |= int(count[l][w] >> at_bit & 1) << l;
                    index[found] = uint32_t(first + w * 64 + size_t(at_bit));
                    distance[found] = uint16_t(n_bits + weight - 2 * overlap);
                }
            }
        }
    }
    return found;
}

inline __attribute__((always_inline)) size_t residuals_any(const ResidualPlanes& group, size_t begin, size_t end,
                                                           const uint8_t* bits, int n_bits, int bound, uint32_t* index,
                                                           uint16_t* distance) {
    if (n_bits < 16) return residuals_of<4>(group, begin, end, bits, n_bits, bound, index, distance);
    if (n_bits < 64) return residuals_of<6>(group, begin, end, bits, n_bits, bound, index, distance);
    return residuals_of<9>(group, begin, end, bits, n_bits, bound, index, distance);
}

size_t residuals_portable(const ResidualPlanes& group, size_t begin, size_t end, const uint8_t* bits, int n_bits,
                          int bound, uint32_t* index, uint16_t* distance) {
    return residuals_any(group, begin, end, bits, n_bits, bound, index, distance);
}

template <class C>
constexpr Kernels<C> portable{scan_portable<C>,         scan_lanes_in_turn<C, scan_portable<C>>,
                              lower_bounds_portable<C>, select_portable,
                              occupied_portable,        residuals_portable};

#if defined(__x86_64__)

// ------------------------------------------------------------------------------------------ AVX-512

#define MCH_AVX512 \
    __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vpopcntdq,avx512vbmi2,bmi,bmi2,popcnt")))

template <class C>
constexpr int lanes512 = int(64 / sizeof(typename C::Word));

// Masks have as many bits as there are lanes: GCC 12 miscompiles 8-bit masks that are widened and spilled.
template <class C>
using Mask512 = std::conditional_t<sizeof(typename C::Word) == 4, __mmask16, __mmask8>;

template <class C>
MCH_AVX512 inline __m512i popcount512(__m512i x) {
    return sizeof(typename C::Word) == 4 ? _mm512_popcnt_epi32(x) : _mm512_popcnt_epi64(x);
}

template <class C>
MCH_AVX512 inline __m512i add512(__m512i a, __m512i b) {
    return sizeof(typename C::Word) == 4 ? _mm512_add_epi32(a, b) : _mm512_add_epi64(a, b);
}

// Distances of one vector of codes over planes [from, to).
template <class C>
MCH_AVX512 inline __m512i distance512(const Planes<C>& codes, size_t i, const __m512i* q, int from, int to) {
    __m512i sum = _mm512_setzero_si512();
    for (int j = from; j < to; ++j)
        sum = add512<C>(sum, popcount512<C>(_mm512_xor_si512(_mm512_loadu_si512(codes.p[j] + i), q[j])));
    return sum;
}

// A vector that several instructions use. GCC would make each of them load it again, and loads that cross cache lines
// take longer than all else that a scan does.
MCH_AVX512 inline __m512i load_once512(const void* at) {
    __m512i x = _mm512_loadu_si512(at);
    __asm__("" : "+v"(x));
    return x;
}

template <class C>
MCH_AVX512 inline Mask512<C> at_most512(__m512i d, __m512i bound) {
    if constexpr (sizeof(typename C::Word) == 4) return _mm512_cmple_epu32_mask(d, bound);
    return _mm512_cmple_epu64_mask(d, bound);
}

// Distances fit in 32 bits, so the cheaper 32-bit minimum works for 64-bit lanes too.
template <class C>
MCH_AVX512 inline bool any_at_most512(const __m512i (&d)[4], __m512i bound) {
    return at_most512<C>(_mm512_min_epu32(_mm512_min_epu32(d[0], d[1]), _mm512_min_epu32(d[2], d[3])), bound) != 0;
}

// The codes nearer than `limit`, and those at `limit` whose first word is not visited after `last`.
template <class C>
MCH_AVX512 inline Mask512<C> admitted512(const Planes<C>& codes, size_t i, __m512i d, __m512i q, __m512i limit,
                                         __m512i last) {
    const __m512i x = _mm512_xor_si512(_mm512_loadu_si512(codes.p[0] + i), q);
    if constexpr (sizeof(typename C::Word) == 4)
        return at_most512<C>(d, limit) &
               Mask512<C>(_mm512_cmplt_epu32_mask(d, limit) | _mm512_cmpge_epu32_mask(x, last));
    else
        return at_most512<C>(d, limit) &
               Mask512<C>(_mm512_cmplt_epu64_mask(d, limit) | _mm512_cmpge_epu64_mask(x, last));
}

// The same, where mostly none is.
template <class C>
MCH_AVX512 inline Mask512<C> within512(const Planes<C>& codes, size_t i, __m512i d, __m512i q, __m512i limit,
                                       __m512i last) {
    return at_most512<C>(d, limit) ? admitted512(codes, i, d, q, limit, last) : Mask512<C>(0);
}

template <class C>
MCH_AVX512 inline size_t emit512(Mask512<C> mask, __m512i d, size_t i, uint32_t* index, uint16_t* distance) {
    const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    __m512i at = _mm512_add_epi32(_mm512_set1_epi32(int(i)), lane);
    _mm512_storeu_si512(index, _mm512_maskz_compress_epi32(__mmask16(mask), at));
    __m256i d16;
    if constexpr (sizeof(typename C::Word) == 4)
        d16 = _mm512_cvtepi32_epi16(d);
    else
        d16 = _mm256_castsi128_si256(_mm512_cvtepi64_epi16(d));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(distance), _mm256_maskz_compress_epi16(__mmask16(mask), d16));
    return size_t(std::popcount(mask));
}

template <class C>
MCH_AVX512 void broadcast512(const C& query, __m512i* q) {
    for (int j = 0; j < C::words; ++j) {
        if constexpr (sizeof(typename C::Word) == 4)
            q[j] = _mm512_set1_epi32(int(query.w[j]));
        else
            q[j] = _mm512_set1_epi64(int64_t(query.w[j]));
    }
}

// Of wide codes, two words often rule out a match.
template <class C>
constexpr int head512 = C::words > 2 ? 2 : C::words;

// Whether the first words of unrelated codes are seldom within the bound.
template <class C>
bool head_decides512(int bound) {
    return 3 * bound < head512<C> * C::word_bits;
}

template <class C>
struct Query512 {
    static constexpr bool narrow = sizeof(typename C::Word) == 4;
    __m512i q[C::words], limit, last;

    MCH_AVX512 Query512(const C& query, const Bound<C>& bound)
        : limit(narrow ? _mm512_set1_epi32(bound.distance) : _mm512_set1_epi64(bound.distance)),
          last(narrow ? _mm512_set1_epi32(int(bound.last)) : _mm512_set1_epi64(int64_t(bound.last))) {
        broadcast512(query, q);
    }
};

// Adds 1 to the distance of codes whose first word is visited after `last`. So those at the limit are beyond it.
template <class C>
MCH_AVX512 inline __m512i after_ties512(__m512i d, __m512i first_word, __m512i last) {
    if constexpr (sizeof(typename C::Word) == 4)
        return _mm512_mask_add_epi32(d, _mm512_cmplt_epu32_mask(first_word, last), d, _mm512_set1_epi32(1));
    else
        return _mm512_mask_add_epi64(d, _mm512_cmplt_epu64_mask(first_word, last), d, _mm512_set1_epi64(1));
}

template <class C>
MCH_AVX512 size_t scan_avx512(const Planes<C>& codes, size_t begin, size_t end, const C& query, const Bound<C>& bound,
                              uint32_t* index, uint16_t* distance) {
    constexpr int lanes = lanes512<C>, block = 4 * lanes;
    constexpr int head = head512<C>;
    const Query512<C> q(query, bound);
    const bool decides = head < C::words && head_decides512<C>(bound.distance);
    size_t found = 0, i = begin, in_vain = 0;  // blocks looked at without a hit
    for (; i + block <= end; i += block) {
        __m512i d[4];
        for (int v = 0; v < 4; ++v) d[v] = distance512(codes, i + v * lanes, q.q, 0, head);
        if (decides && !any_at_most512<C>(d, q.limit)) continue;
        if constexpr (head < C::words)
            for (int v = 0; v < 4; ++v)
                d[v] = _mm512_add_epi64(d[v], distance512(codes, i + v * lanes, q.q, head, C::words));
        // Where hits are dense, writing them without a branch is faster than mispredicting it.
        if (found * 32 < i - begin) {
            if (!any_at_most512<C>(d, q.limit)) continue;
            if (in_vain >= 4) {  // many codes are as far away as the bound
                __m512i after[4];
                for (int v = 0; v < 4; ++v) {
                    const __m512i x = _mm512_loadu_si512(codes.p[0] + i + v * lanes);
                    after[v] = after_ties512<C>(d[v], _mm512_xor_si512(x, q.q[0]), q.last);
                }
                if (!any_at_most512<C>(after, q.limit)) continue;
            }
            const size_t before = found;
            for (int v = 0; v < 4; ++v) {
                Mask512<C> mask = within512(codes, i + v * lanes, d[v], q.q[0], q.limit, q.last);
                if (mask) found += emit512<C>(mask, d[v], i + v * lanes, index + found, distance + found);
            }
            in_vain += found == before;
        } else {
            for (int v = 0; v < 4; ++v)
                found += emit512<C>(admitted512(codes, i + v * lanes, d[v], q.q[0], q.limit, q.last), d[v],
                                    i + v * lanes, index + found, distance + found);
        }
    }
    for (; i < end; i += lanes) {  // the padding after every array makes the last load safe
        __m512i d = distance512(codes, i, q.q, 0, C::words);
        Mask512<C> mask = within512(codes, i, d, q.q[0], q.limit, q.last);
        if (end - i < size_t(lanes)) mask &= Mask512<C>((1u << (end - i)) - 1);
        if (mask) found += emit512<C>(mask, d, i, index + found, distance + found);
    }
    return found;
}

constexpr size_t kStep = 64;   // codes per step of a scan
constexpr size_t kNoted = 16;  // steps at a time
template <class C>
constexpr int vectors512 = int(kStep) / lanes512<C>;

// Writes the hits among one step's codes. Not inlined, so that loops over steps have all registers.
template <class C>
[[gnu::noinline]] MCH_AVX512 size_t emit_step512(const Planes<C>& codes, size_t i, const Query512<C>& q, const C& query,
                                                 const Bound<C>& bound, uint32_t* index, uint16_t* distance) {
    constexpr int lanes = lanes512<C>;
    __m512i d[vectors512<C>];
    uint64_t hits = 0;
    for (int v = 0; v < vectors512<C>; ++v) {
        d[v] = distance512(codes, i + v * lanes, q.q, 0, C::words);
        hits |= uint64_t(at_most512<C>(d[v], q.limit)) << (v * lanes);
    }
    size_t found = 0;
    if (std::popcount(hits) <= 4) {  // mostly one: no vector instruction pays
        for (; hits; hits &= hits - 1) {
            const size_t at = i + size_t(std::countr_zero(hits));
            const C mask = codes.at(at) ^ query;
            const int n = mask.popcount();
            index[found] = uint32_t(at);
            distance[found] = uint16_t(n);
            found += bound.admits(mask.w[0], n);
        }
        return found;
    }
    for (int v = 0; v < vectors512<C>; ++v) {
        const Mask512<C> mask = within512(codes, i + v * lanes, d[v], q.q[0], q.limit, q.last);
        if (mask) found += emit512<C>(mask, d[v], i + v * lanes, index + found, distance + found);
    }
    return found;
}

// Compares the first `words` words of every code with those of all queries. Returns where it stopped, less than a step
// before `end` or where hits are dense. Steps that may hold hits are noted first and looked at later: a branch for each
// would often be mispredicted. `ties`: also tells codes of the limit's distance apart.
template <class C, int words, bool ties>
MCH_AVX512 size_t scan_lanes512(const Planes<C>& codes, size_t i, size_t end, Lane<C>* lane) {
    static_assert(kLanes == 4);
    constexpr int lanes = lanes512<C>;
    constexpr size_t step = kStep;
    const Query512<C> q[kLanes] = {
        {lane[0].query, lane[0].bound},
        {lane[1].query, lane[1].bound},
        {lane[2].query, lane[2].bound},
        {lane[3].query, lane[3].bound},
    };
    while (i + step <= end) {
        const size_t first = i, n = std::min(kNoted, (end - i) / step);
        uint64_t noted[kLanes] = {};
        for (size_t s = 0; s < n; ++s, i += step) {
            __m512i least[kLanes];
#pragma GCC unroll 8
            for (int v = 0; v < vectors512<C>; ++v) {
                __m512i x[words];
                for (int w = 0; w < words; ++w) x[w] = load_once512(codes.p[w] + i + v * lanes);
#pragma GCC unroll 4
                for (size_t j = 0; j < kLanes; ++j) {
                    const __m512i first_word = _mm512_xor_si512(x[0], q[j].q[0]);
                    __m512i d = popcount512<C>(first_word);
                    if constexpr (ties) d = after_ties512<C>(d, first_word, q[j].last);
                    for (int w = 1; w < words; ++w) d = add512<C>(d, popcount512<C>(_mm512_xor_si512(x[w], q[j].q[w])));
                    least[j] = v ? _mm512_min_epu32(least[j], d) : d;
                }
            }
            for (size_t j = 0; j < kLanes; ++j) noted[j] |= uint64_t(at_most512<C>(least[j], q[j].limit) != 0) << s;
        }
        int all = 0;
        for (size_t j = 0; j < kLanes; ++j) {
            Lane<C>& l = lane[j];
            all += std::popcount(noted[j]);
            size_t in_vain = 0;
            for (; noted[j]; noted[j] &= noted[j] - 1) {
                const size_t some = emit_step512(codes, first + size_t(std::countr_zero(noted[j])) * step, q[j],
                                                 l.query, l.bound, l.index + l.found, l.distance + l.found);
                l.found += some;
                in_vain += !some;
            }
            if (in_vain > n / 3) l.ties = l.bound.last != 0;
        }
        if (size_t(all) > n * kLanes / 4) break;  // so many that looking at them twice takes longer
    }
    return i;
}

template <class C>
MCH_AVX512 void scan_lanes_avx512(const Planes<C>& codes, size_t begin, size_t end, Lane<C>* lane) {
    int widest = 0;
    for (size_t j = 0; j < kLanes; ++j) {
        lane[j].found = 0;
        widest = std::max(widest, lane[j].bound.distance);
    }
    auto any_ties = [&] { return lane[0].ties || lane[1].ties || lane[2].ties || lane[3].ties; };
    size_t rest = begin;
    if (!any_ties())
        rest = head_decides512<C>(widest) ? scan_lanes512<C, head512<C>, false>(codes, begin, end, lane)
                                          : scan_lanes512<C, C::words, false>(codes, begin, end, lane);
    if (any_ties()) rest = scan_lanes512<C, C::words, true>(codes, rest, end, lane);
    for (size_t j = 0; j < kLanes; ++j)
        lane[j].found += scan_avx512(codes, rest, end, lane[j].query, lane[j].bound, lane[j].index + lane[j].found,
                                     lane[j].distance + lane[j].found);
}

// First the distances, then the radii are taken off 64 at a time: with 8-bit elements that is cheap.
template <class C>
MCH_AVX512 void lower_bounds_avx512(const Planes<C>& pivots, const uint8_t* radius, size_t n, const C& query,
                                    uint8_t* out) {
    constexpr int lanes = lanes512<C>;
    __m512i q[C::words];
    broadcast512(query, q);
    for (size_t i = 0; i < n; i += lanes) {
        const __m512i d = distance512(pivots, i, q, 0, C::words);
        const __m128i low = sizeof(typename C::Word) == 4 ? _mm512_cvtusepi32_epi8(d) : _mm512_cvtusepi64_epi8(d);
        if (n - i < size_t(lanes))
            _mm_mask_storeu_epi8(out + i, __mmask16((1u << (n - i)) - 1), low);
        else if constexpr (lanes == 16)
            _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), low);
        else
            _mm_storel_epi64(reinterpret_cast<__m128i*>(out + i), low);
    }
    for (size_t i = 0; i < n; i += 64) {
        const __mmask64 live = n - i >= 64 ? ~__mmask64(0) : (__mmask64(1) << (n - i)) - 1;
        const __m512i d = _mm512_maskz_loadu_epi8(live, out + i), r = _mm512_maskz_loadu_epi8(live, radius + i);
        _mm512_mask_storeu_epi8(out + i, live, _mm512_subs_epu8(d, r));
    }
}

MCH_AVX512 size_t select_avx512(const uint8_t* values, size_t n, int low, int high, uint32_t* out) {
    const __m512i lo = _mm512_set1_epi8(char(low)), hi = _mm512_set1_epi8(char(high));
    size_t found = 0;
    for (size_t i = 0; i < n; i += 64) {
        __mmask64 live = n - i >= 64 ? ~__mmask64(0) : (__mmask64(1) << (n - i)) - 1;
        __m512i v = _mm512_maskz_loadu_epi8(live, values + i);
        __mmask64 mask = _mm512_mask_cmpge_epu8_mask(_mm512_mask_cmple_epu8_mask(live, v, hi), v, lo);
        for (; mask; mask &= mask - 1) out[found++] = uint32_t(i + size_t(std::countr_zero(uint64_t(mask))));
    }
    return found;
}

MCH_AVX512 size_t occupied_avx512(const uint64_t* bitmap, uint32_t hash, const uint32_t* flip, size_t n, int shift,
                                  uint32_t* out) {
    const __m512i lane = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    const __m512i h = _mm512_set1_epi32(int(hash)), one = _mm512_set1_epi32(1);
    size_t found = 0;
    for (size_t i = 0; i < n; i += 16) {
        __mmask16 live = n - i >= 16 ? __mmask16(~0) : __mmask16((1u << (n - i)) - 1);
        __m512i at =
            _mm512_srlv_epi32(_mm512_xor_si512(h, _mm512_maskz_loadu_epi32(live, flip + i)), _mm512_set1_epi32(shift));
        // The bitmap as 32-bit words, which are in the same order on a little-endian machine.
        __m512i word = _mm512_mask_i32gather_epi32(_mm512_setzero_si512(), live, _mm512_srli_epi32(at, 5), bitmap, 4);
        live = _mm512_mask_test_epi32_mask(live, word, _mm512_rolv_epi32(one, at));
        _mm512_storeu_si512(out + found,
                            _mm512_maskz_compress_epi32(live, _mm512_add_epi32(_mm512_set1_epi32(int(i)), lane)));
        found += size_t(std::popcount(live));
    }
    return found;
}

MCH_AVX512 size_t residuals_avx512(const ResidualPlanes& group, size_t begin, size_t end, const uint8_t* bits,
                                   int n_bits, int bound, uint32_t* index, uint16_t* distance) {
    return residuals_any(group, begin, end, bits, n_bits, bound, index, distance);
}

template <class C>
constexpr Kernels<C> avx512{scan_avx512<C>, scan_lanes_avx512<C>, lower_bounds_avx512<C>,
                            select_avx512,  occupied_avx512,      residuals_avx512};

// --------------------------------------------------------------------------------------------- AVX2

#define MCH_AVX2 __attribute__((target("avx2,popcnt,bmi,bmi2")))

template <class C>
constexpr int lanes256 = int(32 / sizeof(typename C::Word));

template <class C>
MCH_AVX2 inline __m256i distance256(const Planes<C>& codes, size_t i, const __m256i* q) {
    const __m256i nibble = _mm256_set1_epi8(15);
    const __m256i counts = _mm256_setr_epi8(0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4,  //
                                            0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4);
    __m256i bytes = _mm256_setzero_si256();
    for (int j = 0; j < C::words; ++j) {
        __m256i x = _mm256_xor_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes.p[j] + i)), q[j]);
        __m256i low = _mm256_shuffle_epi8(counts, _mm256_and_si256(x, nibble));
        __m256i high = _mm256_shuffle_epi8(counts, _mm256_and_si256(_mm256_srli_epi16(x, 4), nibble));
        bytes = _mm256_add_epi8(bytes, _mm256_add_epi8(low, high));
    }
    if constexpr (sizeof(typename C::Word) == 4)
        return _mm256_madd_epi16(_mm256_maddubs_epi16(bytes, _mm256_set1_epi8(1)), _mm256_set1_epi16(1));
    return _mm256_sad_epu8(bytes, _mm256_setzero_si256());
}

template <class C>
MCH_AVX2 inline unsigned at_most256(__m256i d, __m256i bound) {
    // AVX2 has no unsigned compare; distances are small and non-negative, so the signed one will do.
    if constexpr (sizeof(typename C::Word) == 4)
        return ~unsigned(_mm256_movemask_ps(_mm256_castsi256_ps(_mm256_cmpgt_epi32(d, bound)))) & 0xff;
    return ~unsigned(_mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpgt_epi64(d, bound)))) & 0xf;
}

template <class C>
MCH_AVX2 void broadcast256(const C& query, __m256i* q) {
    for (int j = 0; j < C::words; ++j) {
        if constexpr (sizeof(typename C::Word) == 4)
            q[j] = _mm256_set1_epi32(int(query.w[j]));
        else
            q[j] = _mm256_set1_epi64x(int64_t(query.w[j]));
    }
}

template <class C>
MCH_AVX2 size_t scan_avx2(const Planes<C>& codes, size_t begin, size_t end, const C& query, const Bound<C>& bound,
                          uint32_t* index, uint16_t* distance) {
    using Word = typename C::Word;
    constexpr int lanes = lanes256<C>;
    __m256i q[C::words];
    broadcast256(query, q);
    const __m256i limit = sizeof(Word) == 4 ? _mm256_set1_epi32(bound.distance) : _mm256_set1_epi64x(bound.distance);
    size_t found = 0;
    for (size_t i = begin; i < end; i += lanes) {
        __m256i d = distance256(codes, i, q);
        unsigned mask = at_most256<C>(d, limit);
        if (end - i < size_t(lanes)) mask &= (1u << (end - i)) - 1;
        if (!mask) continue;
        alignas(32) Word value[lanes];
        _mm256_store_si256(reinterpret_cast<__m256i*>(value), d);
        for (; mask; mask &= mask - 1, ++found) {
            int lane = std::countr_zero(mask);
            index[found] = uint32_t(i + size_t(lane));
            distance[found] = uint16_t(value[lane]);
            found -= !bound.admits(codes.p[0][i + size_t(lane)] ^ query.w[0], int(value[lane]));
        }
    }
    return found;
}

template <class C>
MCH_AVX2 void lower_bounds_avx2(const Planes<C>& pivots, const uint8_t* radius, size_t n, const C& query,
                                uint8_t* out) {
    using Word = typename C::Word;
    constexpr int lanes = lanes256<C>;
    __m256i q[C::words];
    broadcast256(query, q);
    for (size_t i = 0; i < n; i += lanes) {
        alignas(32) Word d[lanes];
        _mm256_store_si256(reinterpret_cast<__m256i*>(d), distance256(pivots, i, q));
        for (size_t l = 0; l < std::min<size_t>(lanes, n - i); ++l)
            out[i + l] = uint8_t(std::clamp(int(d[l]) - radius[i + l], 0, 255));
    }
}

MCH_AVX2 size_t select_avx2(const uint8_t* values, size_t n, int low, int high, uint32_t* out) {
    const __m256i lo = _mm256_set1_epi8(char(low)), hi = _mm256_set1_epi8(char(high));
    size_t found = 0, i = 0;
    for (; i + 32 <= n; i += 32) {
        __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(values + i));
        __m256i in = _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_max_epu8(v, lo), v),
                                      _mm256_cmpeq_epi8(_mm256_min_epu8(v, hi), v));
        for (unsigned mask = unsigned(_mm256_movemask_epi8(in)); mask; mask &= mask - 1)
            out[found++] = uint32_t(i + size_t(std::countr_zero(mask)));
    }
    for (; i < n; ++i)
        if (values[i] >= low && values[i] <= high) out[found++] = uint32_t(i);
    return found;
}

MCH_AVX2 size_t residuals_avx2(const ResidualPlanes& group, size_t begin, size_t end, const uint8_t* bits, int n_bits,
                               int bound, uint32_t* index, uint16_t* distance) {
    return residuals_any(group, begin, end, bits, n_bits, bound, index, distance);
}

template <class C>
constexpr Kernels<C> avx2{scan_avx2<C>,         scan_lanes_in_turn<C, scan_avx2<C>>,
                          lower_bounds_avx2<C>, select_avx2,
                          occupied_portable,    residuals_avx2};

#elif defined(__aarch64__)

// --------------------------------------------------------------------------------------------- NEON

template <class C>
constexpr int lanes128 = int(16 / sizeof(typename C::Word));

template <class C>
inline void distance_neon(const Planes<C>& codes, size_t i, const uint8x16_t* q, typename C::Word* out) {
    uint8x16_t bytes = vdupq_n_u8(0);
    for (int j = 0; j < C::words; ++j)
        bytes = vaddq_u8(bytes, vcntq_u8(veorq_u8(vld1q_u8(reinterpret_cast<const uint8_t*>(codes.p[j] + i)), q[j])));
    uint32x4_t sum = vpaddlq_u16(vpaddlq_u8(bytes));
    if constexpr (sizeof(typename C::Word) == 4)
        vst1q_u32(out, sum);
    else
        vst1q_u64(out, vpaddlq_u32(sum));
}

template <class C>
void broadcast_neon(const C& query, uint8x16_t* q) {
    for (int j = 0; j < C::words; ++j) {
        if constexpr (sizeof(typename C::Word) == 4)
            q[j] = vreinterpretq_u8_u32(vdupq_n_u32(query.w[j]));
        else
            q[j] = vreinterpretq_u8_u64(vdupq_n_u64(query.w[j]));
    }
}

template <class C>
size_t scan_neon(const Planes<C>& codes, size_t begin, size_t end, const C& query, const Bound<C>& bound,
                 uint32_t* index, uint16_t* distance) {
    constexpr int lanes = lanes128<C>;
    uint8x16_t q[C::words];
    broadcast_neon(query, q);
    size_t found = 0;
    for (size_t i = begin; i < end; i += lanes) {
        typename C::Word d[lanes];
        distance_neon(codes, i, q, d);
        for (size_t l = 0; l < std::min<size_t>(lanes, end - i); ++l) {
            index[found] = uint32_t(i + l);
            distance[found] = uint16_t(d[l]);
            found += bound.admits(codes.p[0][i + l] ^ query.w[0], int(d[l]));
        }
    }
    return found;
}

template <class C>
void lower_bounds_neon(const Planes<C>& pivots, const uint8_t* radius, size_t n, const C& query, uint8_t* out) {
    constexpr int lanes = lanes128<C>;
    uint8x16_t q[C::words];
    broadcast_neon(query, q);
    for (size_t i = 0; i < n; i += lanes) {
        typename C::Word d[lanes];
        distance_neon(pivots, i, q, d);
        for (size_t l = 0; l < std::min<size_t>(lanes, n - i); ++l)
            out[i + l] = uint8_t(std::clamp(int(d[l]) - radius[i + l], 0, 255));
    }
}

template <class C>
constexpr Kernels<C> neon{scan_neon<C>,         scan_lanes_in_turn<C, scan_neon<C>>,
                          lower_bounds_neon<C>, select_portable,
                          occupied_portable,    residuals_portable};

#endif

// ----------------------------------------------------------------------------------------- dispatch

enum Path { kPortable, kAvx2, kAvx512, kNeon };
constexpr const char* kNames[] = {"portable", "avx2", "avx512", "neon"};

std::vector<Path> available() {
    std::vector<Path> paths;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vpopcntdq") &&
        __builtin_cpu_supports("avx512vbmi2"))
        paths.push_back(kAvx512);
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("popcnt") && __builtin_cpu_supports("bmi2"))
        paths.push_back(kAvx2);
#elif defined(__aarch64__)
    paths.push_back(kNeon);
#endif
    paths.push_back(kPortable);
    return paths;
}

std::atomic<Path>& current() {
    static std::atomic<Path> path{available().front()};
    return path;
}

}  // namespace

template <class C>
const Kernels<C>& kernels() {
    switch (current().load(std::memory_order_relaxed)) {
#if defined(__x86_64__)
        case kAvx512:
            return avx512<C>;
        case kAvx2:
            return avx2<C>;
#elif defined(__aarch64__)
        case kNeon:
            return neon<C>;
#endif
        default:
            return portable<C>;
    }
}

template const Kernels<Code<uint32_t, 1>>& kernels();
template const Kernels<Code<uint64_t, 1>>& kernels();
template const Kernels<Code<uint64_t, 2>>& kernels();
template const Kernels<Code<uint64_t, 3>>& kernels();
template const Kernels<Code<uint64_t, 4>>& kernels();

std::vector<std::string> cpu_paths() {
    std::vector<std::string> names;
    for (Path p : available()) names.emplace_back(kNames[p]);
    return names;
}

std::string cpu_path() { return kNames[current().load()]; }

bool use_cpu_path(const std::string& name) {
    for (Path p : available())
        if (name == kNames[p]) {
            current() = p;
            return true;
        }
    return false;
}

}  // namespace mch
