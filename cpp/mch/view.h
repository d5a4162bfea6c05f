// A segment as one search sees it: an image whose bit is set in `dead` does not exist.
#pragma once

#include <cstdint>

#include "segment.h"

namespace mch {

template <class C>
struct View {
    const Segment<C>* seg;
    const uint64_t* dead;  // one bit per image; nullptr: all images are live

    bool live(uint32_t entry) const { return !dead || !test_bit(dead, seg->image[entry]); }

    // Live primary entries in a bucket: distinct images that no other bucket counts again.
    // Counting stops at `enough`.
    uint32_t weight(uint32_t bucket, uint64_t enough) const {
        uint32_t begin = seg->start(bucket), end = seg->start(bucket + 1);
        if (!dead && seg->primary.empty()) return end - begin;
        uint32_t n = 0;
        for (uint32_t e = begin; e < end && n < enough; ++e) n += seg->is_primary(e) && live(e);
        return n;
    }
    uint32_t live_entries(uint32_t bucket) const {
        uint32_t begin = seg->start(bucket), end = seg->start(bucket + 1);
        if (!dead) return end - begin;
        uint32_t n = 0;
        for (uint32_t e = begin; e < end; ++e) n += live(e);
        return n;
    }
    bool any_live(uint32_t bucket) const {
        if (!dead) return true;
        uint32_t begin = seg->start(bucket), end = seg->start(bucket + 1);
        for (uint32_t e = begin; e < end; ++e)
            if (live(e)) return true;
        return false;
    }
};

}  // namespace mch
