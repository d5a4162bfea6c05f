#include "fine_costs.h"

#include <bit>

#include "scan.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace mch {
namespace {

template <int Planes>
void costs_portable(const uint64_t* codes, size_t n, const Bits& query, uint32_t* costs) {
    for (size_t i = 0; i < n; ++i) {
        uint32_t sum = 0;
        for (size_t j = 0; j < query.words; ++j) {
            const uint64_t wrong = codes[i * query.words + j] ^ query.expected[j];
            for (int p = 0; p < Planes; ++p) sum += uint32_t(std::popcount(wrong & query.magnitude[p][j])) << p;
        }
        costs[i] = sum;
    }
}

#if defined(__x86_64__)

#define MCH_AVX512 __attribute__((target("avx512f,avx512vpopcntdq")))

// The costs of the words of two codes.
template <int Planes>
MCH_AVX512 inline __m512i two_costs(__m512i codes, __m512i expected, const __m512i* magnitude) {
    const __m512i wrong = _mm512_xor_si512(codes, expected);
    __m512i sum = _mm512_popcnt_epi64(_mm512_and_si512(wrong, magnitude[Planes - 1]));
    for (int p = Planes - 2; p >= 0; --p)
        sum = _mm512_add_epi64(_mm512_slli_epi64(sum, 1), _mm512_popcnt_epi64(_mm512_and_si512(wrong, magnitude[p])));
    return sum;
}

// Two codes of four words per vector. The sums of up to four vectors share a register, 16 bits each, so
// that they are added up across lanes once.
template <int Planes>
MCH_AVX512 void costs_avx512(const uint64_t* codes, size_t n, const Bits& query, uint32_t* costs) {
    const __m512i expected = _mm512_loadu_si512(query.expected.data());
    __m512i magnitude[Planes];
    for (int p = 0; p < Planes; ++p) magnitude[p] = _mm512_loadu_si512(query.magnitude[p].data());
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const uint64_t* at = codes + i * kFastWords;
        __m512i packed = two_costs<Planes>(_mm512_loadu_si512(at), expected, magnitude);
        packed = _mm512_or_si512(
            packed, _mm512_slli_epi64(two_costs<Planes>(_mm512_loadu_si512(at + 8), expected, magnitude), 16));
        packed = _mm512_or_si512(
            packed, _mm512_slli_epi64(two_costs<Planes>(_mm512_loadu_si512(at + 16), expected, magnitude), 32));
        packed = _mm512_or_si512(
            packed, _mm512_slli_epi64(two_costs<Planes>(_mm512_loadu_si512(at + 24), expected, magnitude), 48));
        packed = _mm512_add_epi64(packed, _mm512_permutex_epi64(packed, 0x4e));
        packed = _mm512_add_epi64(packed, _mm512_permutex_epi64(packed, 0xb1));
        const __m128i even = _mm512_castsi512_si128(packed), odd = _mm512_extracti32x4_epi32(packed, 2);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(costs + i),
                            _mm256_cvtepu16_epi32(_mm_unpacklo_epi16(even, odd)));
    }
    for (; i < n; i += 8) {  // the last ones
        __m512i packed = _mm512_setzero_si512();
        const size_t pairs = std::min<size_t>(4, (n - i + 1) / 2);
        for (size_t v = 0; v < pairs; ++v) {
            const size_t at = i + 2 * v;
            const __mmask8 mask = at + 1 < n ? 0xff : 0x0f;
            const __m512i sum =
                two_costs<Planes>(_mm512_maskz_loadu_epi64(mask, codes + at * kFastWords), expected, magnitude);
            packed = _mm512_or_si512(packed, _mm512_sll_epi64(sum, _mm_cvtsi32_si128(int(16 * v))));
        }
        packed = _mm512_add_epi64(packed, _mm512_permutex_epi64(packed, 0x4e));
        packed = _mm512_add_epi64(packed, _mm512_permutex_epi64(packed, 0xb1));
        const uint64_t even = uint64_t(_mm_cvtsi128_si64(_mm512_castsi512_si128(packed)));
        const uint64_t odd = uint64_t(_mm_cvtsi128_si64(_mm512_extracti32x4_epi32(packed, 2)));
        for (size_t v = 0; v < pairs; ++v) {
            costs[i + 2 * v] = uint32_t(even >> (16 * v) & 0xffff);
            if (i + 2 * v + 1 < n) costs[i + 2 * v + 1] = uint32_t(odd >> (16 * v) & 0xffff);
        }
    }
}

#endif

template <int Planes>
Costs choose_costs(size_t words) {
#if defined(__x86_64__)
    if (words == kFastWords && cpu_path() == "avx512") return costs_avx512<Planes>;
#endif
    (void)words;
    return costs_portable<Planes>;
}

uint64_t up_to_portable(const uint32_t* costs, size_t n, uint32_t limit) {
    uint64_t bits = 0;
    for (size_t i = 0; i < n; ++i) bits |= uint64_t(costs[i] <= limit) << i;
    return bits;
}

#if defined(__x86_64__)

MCH_AVX512 uint64_t up_to_avx512(const uint32_t* costs, size_t n, uint32_t limit) {
    const __m512i most = _mm512_set1_epi32(int(limit));
    uint64_t bits = 0;
    for (size_t i = 0; i < n; i += 16) {
        const auto there = __mmask16(n - i >= 16 ? 0xffff : (1 << (n - i)) - 1);
        const __m512i some = _mm512_maskz_loadu_epi32(there, costs + i);
        bits |= uint64_t(_mm512_mask_cmple_epu32_mask(there, some, most)) << i;
    }
    return bits;
}

#endif

}  // namespace

Costs choose_costs(size_t words, int planes) {
    return planes == 1 ? choose_costs<1>(words) : choose_costs<kPlanes>(words);
}

UpTo choose_up_to() {
#if defined(__x86_64__)
    if (cpu_path() == "avx512") return up_to_avx512;
#endif
    return up_to_portable;
}

}  // namespace mch
