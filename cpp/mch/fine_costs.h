// What fine codes cost, computed many at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace mch {

constexpr int kPlanes = 4;        // bits of a magnitude
constexpr size_t kFastWords = 4;  // words per code that the vector path takes

// A query, bit by bit: the expected bits, and the bits of the magnitudes. The words are repeated, so that
// one vector of eight words compares two codes of four.
struct Bits {
    size_t words;
    std::vector<uint64_t> expected;            // at least 8 words
    std::vector<uint64_t> magnitude[kPlanes];  // the same

    explicit Bits(size_t n) : words(n), expected(std::max<size_t>(8, n), 0) {
        for (auto& m : magnitude) m.assign(expected.size(), 0);
    }
    void repeat() {
        if (words != kFastWords) return;
        std::copy_n(expected.begin(), kFastWords, expected.begin() + kFastWords);
        for (auto& m : magnitude) std::copy_n(m.begin(), kFastWords, m.begin() + kFastWords);
    }
};

// The cost of the wrong bits of `n` codes that follow one another, with the first bits of the magnitudes.
using Costs = void (*)(const uint64_t* codes, size_t n, const Bits& query, uint32_t* costs);

// The function for codes of this many words and 1 or kPlanes bits of the magnitudes.
Costs choose_costs(size_t words, int planes);

// Which of up to 64 costs are at most `limit`, one bit each.
using UpTo = uint64_t (*)(const uint32_t* costs, size_t n, uint32_t limit);
UpTo choose_up_to();

}  // namespace mch
