// The codes of a segment's large groups a second time, by bits of their residuals (see ResidualPlanes). They are
// made from the codes whenever a segment is built or loaded, and not saved.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "segment.h"
#include "workers.h"

namespace mch {

// Transposes a matrix of 64 x 64 bits, whose columns count from the most significant bit.
inline void transpose64(uint64_t* row) {
    uint64_t mask = 0x00000000ffffffff;
    for (int step = 32; step; step >>= 1, mask ^= mask << step)
        for (int i = 0; i < 64; i = ((i | step) + 1) & ~step) {
            const uint64_t t = (row[i] ^ (row[i | step] >> step)) & mask;
            row[i] ^= t;
            row[i | step] ^= t << step;
        }
}

template <class C>
class GroupPlanes {
  public:
    static constexpr uint32_t smallest = 1024;  // codes in a group that gets planes; a smaller one is scanned faster

    explicit GroupPlanes(const Segment<C>& seg) : offset_(seg.n_groups, none) {
        size_t words = 0;
        for (uint32_t g = 0; g < seg.n_groups; ++g) {
            if (size(seg, g) < smallest) continue;
            offset_[g] = words;
            words += blocks(seg, g) * size_t(seg.bits) * ResidualPlanes::words;
        }
        bits_ = Array<uint64_t>(words);
        struct Piece {
            uint32_t group, begin;
        };
        std::vector<Piece> pieces;
        for (uint32_t g = 0; g < seg.n_groups; ++g)
            for (uint32_t at = 0; has(g) && at < size(seg, g); at += piece) pieces.push_back({g, at});
        for_each_share(pieces.size() < 16 ? 1 : usable_cores(), pieces.size(),
                       [&](size_t i) { fill(seg, pieces[i].group, pieces[i].begin); });
    }

    // Whether the group has planes.
    bool has(uint32_t g) const { return offset_[g] != none; }
    ResidualPlanes of(const Segment<C>& seg, uint32_t g) const {
        return {bits_.data() + offset_[g], size_t(seg.bits), &seg.group_shell_start(g), seg.group_radius[g]};
    }
    size_t bytes() const { return bits_.bytes() + offset_.size() * sizeof(uint64_t); }

  private:
    static constexpr uint64_t none = UINT64_MAX;
    static constexpr uint32_t piece = 8 * ResidualPlanes::block;  // codes that a thread transposes at once

    static uint32_t size(const Segment<C>& seg, uint32_t g) { return seg.group_end(g) - seg.group_begin(g); }
    static size_t blocks(const Segment<C>& seg, uint32_t g) {
        return (size(seg, g) + ResidualPlanes::block - 1) / ResidualPlanes::block;
    }

    // Writes the bits of the codes of group g from number `first`, up to a piece.
    void fill(const Segment<C>& seg, uint32_t g, uint32_t first) {
        const uint32_t begin = seg.group_begin(g), n = std::min(size(seg, g), first + piece);
        const C pivot = seg.pivots().at(g);
        constexpr size_t words = ResidualPlanes::words;
        for (uint32_t at = first; at < n; at += 64) {
            const size_t block = at / ResidualPlanes::block;
            uint64_t* out = bits_.mutable_data() + offset_[g] + block * size_t(seg.bits) * words + at / 64 % words;
            for (int j = 0; j < C::words; ++j) {
                uint64_t row[64] = {};
                // Row 63 - i, so that code i becomes bit i, counted from the least significant one.
                for (uint32_t i = 0; i < std::min<uint32_t>(64, n - at); ++i)
                    row[63 - i] = uint64_t(seg.code[j][begin + at + i] ^ pivot.w[j]) << (64 - C::word_bits);
                transpose64(row);
                const int low = j * C::word_bits, high = std::min(low + C::word_bits, seg.bits);
                for (int b = low; b < high; ++b) out[size_t(b) * words] = row[b - low];
            }
        }
    }

    std::vector<uint64_t> offset_;  // by group; `none` if it has no planes
    Array<uint64_t> bits_;
};

// The planes of the segment's large groups; the calling thread makes them if they are missing.
template <class C>
const GroupPlanes<C>& group_planes(const Segment<C>& seg) {
    return seg.planes->get([&] { return std::make_unique<const GroupPlanes<C>>(seg); });
}

}  // namespace mch
