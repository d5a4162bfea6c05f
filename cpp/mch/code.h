// A hash code, left-aligned in W words: bit 0 is the most significant bit of word 0. np.packbits
// writes the same order, so comparing words as numbers compares codes as big-endian numbers.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace mch {

constexpr int kMaxBits = 256;

template <class WordT, int W>
struct Code {
    using Word = WordT;
    static constexpr int words = W;
    static constexpr int word_bits = int(sizeof(Word) * 8);

    Word w[W];

    friend bool operator==(const Code&, const Code&) = default;

    friend Code operator^(Code a, const Code& b) {
        for (int i = 0; i < W; ++i) a.w[i] ^= b.w[i];
        return a;
    }

    int popcount() const {
        int n = 0;
        for (int i = 0; i < W; ++i) n += std::popcount(w[i]);
        return n;
    }

    // Whether this XOR mask is visited before another one of the same popcount. The lexicographic order
    // of the flipped positions is the descending order of the masks as numbers.
    bool before(const Code& o) const {
        for (int i = 0; i < W; ++i)
            if (w[i] != o.w[i]) return w[i] > o.w[i];
        return false;
    }

    void flip(int position) { w[position / word_bits] ^= Word(1) << (word_bits - 1 - position % word_bits); }

    int byte(int i) const {
        constexpr int per_word = int(sizeof(Word));
        return int(w[i / per_word] >> (word_bits - 8 - 8 * (i % per_word))) & 0xff;
    }

    // The `length` (at most 32) bits from `start`; the first becomes the most significant.
    uint32_t window(int start, int length) const {
        int at = start / word_bits, shift = start % word_bits;
        Word v = w[at] << shift;
        if (shift && at + 1 < W) v |= w[at + 1] >> (word_bits - shift);
        return uint32_t(v >> (word_bits - length));
    }

    static Code load(const uint8_t* bytes, int n_bytes) {
        constexpr int per_word = int(sizeof(Word));
        Code c{};
        if (n_bytes == int(sizeof(Code))) {
            std::memcpy(c.w, bytes, sizeof(Code));
            for (Word& word : c.w)
                word = per_word == 8 ? Word(__builtin_bswap64(word)) : Word(__builtin_bswap32(uint32_t(word)));
            return c;
        }
        for (int i = 0; i < n_bytes; ++i) c.w[i / per_word] |= Word(bytes[i]) << (word_bits - 8 - 8 * (i % per_word));
        return c;
    }

    void store(uint8_t* bytes, int n_bytes) const {
        for (int i = 0; i < n_bytes; ++i) bytes[i] = uint8_t(byte(i));
    }
};

// Calls f with the type_identity of the narrowest code type that holds `bits` bits.
template <class F>
decltype(auto) with_code_type(int bits, F&& f) {
    if (bits <= 32) return f(std::type_identity<Code<uint32_t, 1>>{});
    if (bits <= 64) return f(std::type_identity<Code<uint64_t, 1>>{});
    if (bits <= 128) return f(std::type_identity<Code<uint64_t, 2>>{});
    if (bits <= 192) return f(std::type_identity<Code<uint64_t, 3>>{});
    return f(std::type_identity<Code<uint64_t, 4>>{});
}

}  // namespace mch
