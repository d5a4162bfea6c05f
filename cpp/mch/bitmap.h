// A set of image slots, one bit per slot. A bitmap never changes; a changed copy shares all blocks but
// those in which it differs, so removing an image from a large segment copies a few kilobytes.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <memory>
#include <vector>

#include "array.h"

namespace mch {

// The number of bits set from `begin` to `end` (exclusive).
inline uint64_t count_bits(const uint64_t* words, size_t begin, size_t end) {
    uint64_t n = 0;
    for (; begin < end && begin % 64; ++begin) n += test_bit(words, begin);
    for (; begin + 64 <= end; begin += 64) n += uint64_t(std::popcount(words[begin / 64]));
    for (; begin < end; ++begin) n += test_bit(words, begin);
    return n;
}

class Bitmap {
  public:
    static constexpr size_t block_bits = size_t(1) << 16;
    struct Block {
        uint64_t word[block_bits / 64];
    };

    // All bits are `value`, up to the end of the last block.
    explicit Bitmap(size_t n, bool value = false)
        : size_(n), block_((n + block_bits - 1) / block_bits, uniform_block(value)) {}

    // From as many words as words() returns.
    Bitmap(size_t n, const void* words) : Bitmap(n) {
        auto* bytes = static_cast<const uint8_t*>(words);
        size_t left = bitmap_words(n) * 8;
        for (auto& b : block_) {
            auto copy = std::make_shared<Block>();
            const size_t take = std::min(left, sizeof copy->word);
            std::memcpy(copy->word, bytes, take);
            if (std::any_of(copy->word, std::end(copy->word), [](uint64_t w) { return w; })) b = std::move(copy);
            bytes += take, left -= take;
        }
    }

    size_t size() const { return size_; }
    bool test(size_t i) const { return test_bit(block_[i / block_bits]->word, i % block_bits); }

    // A copy in which the bits at `places` are `value`. Ascending places copy each block once.
    Bitmap with(const std::vector<uint32_t>& places, bool value) const {
        Bitmap copy(*this);
        std::shared_ptr<Block> block;
        size_t current = 0;
        for (uint32_t i : places) {
            if (!block || i / block_bits != current) {
                current = i / block_bits;
                block = std::make_shared<Block>(*copy.block_[current]);
                copy.block_[current] = block;
            }
            uint64_t& word = block->word[i % block_bits / 64];
            const uint64_t bit = uint64_t(1) << (i & 63);
            word = value ? word | bit : word & ~bit;
        }
        return copy;
    }

    uint64_t count() const {
        uint64_t n = 0;
        for (auto& b : block_)
            for (uint64_t w : b->word) n += uint64_t(std::popcount(w));
        return n;
    }

    // Calls f(i) for every bit that is set here and not in `before`, a bitmap of the same size.
    template <class F>
    void for_each_new(const Bitmap& before, F&& f) const {
        for (size_t b = 0; b < block_.size(); ++b) {
            if (block_[b] == before.block_[b]) continue;
            for (size_t w = 0; w < block_bits / 64; ++w)
                for (uint64_t bits = block_[b]->word[w] & ~before.block_[b]->word[w]; bits; bits &= bits - 1) {
                    const size_t i = b * block_bits + w * 64 + size_t(std::countr_zero(bits));
                    if (i < size_) f(uint32_t(i));
                }
        }
    }

    std::vector<uint64_t> words() const {
        std::vector<uint64_t> all(bitmap_words(size_));
        for (size_t w = 0; w < all.size(); ++w) all[w] = block_[w * 64 / block_bits]->word[w % (block_bits / 64)];
        return all;
    }

    // Without the blocks that all bitmaps share. Copies count blocks that they share with each other.
    size_t bytes() const {
        size_t n = block_.size() * sizeof block_[0];
        for (auto& b : block_) n += b == uniform_block(false) || b == uniform_block(true) ? 0 : sizeof(Block);
        return n;
    }

  private:
    using BlockPtr = std::shared_ptr<const Block>;

    static const BlockPtr& uniform_block(bool value) { return uniform_[value]; }
    static BlockPtr make_uniform(int byte) {
        auto b = std::make_shared<Block>();
        std::memset(b->word, byte, sizeof b->word);
        return b;
    }
    // Made when the library is loaded: a forked child cannot finish what another thread had begun to make.
    // Never destroyed, because threads may outlive the end of main().
    static inline const BlockPtr* const uniform_ = new BlockPtr[2]{make_uniform(0), make_uniform(0xff)};

    size_t size_;
    std::vector<BlockPtr> block_;
};

}  // namespace mch
