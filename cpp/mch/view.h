// A segment as one search sees it: an image whose bit is set in `dead`, or not set in `only`, does not exist.
#pragma once

#include <cstdint>

#include "bitmap.h"
#include "counts.h"
#include "segment.h"

namespace mch {

template <class C>
struct View {
    const Segment<C>* seg;
    const Bitmap* dead;                    // one bit per image; nullptr: no image was removed
    const uint64_t* only = nullptr;        // one bit per image; nullptr: all images are allowed
    const BucketCounts* counts = nullptr;  // of the live entries; nullptr: large buckets are counted every time

    bool all_live() const { return !dead && !only; }
    bool live(uint32_t entry) const {
        if (all_live()) return true;
        const size_t slot = seg->image[entry];
        return (!only || test_bit(only, slot)) && (!dead || !dead->test(slot));
    }

    // Live primary entries in a bucket: distinct images that no other bucket counts again.
    // Counting stops at `enough`.
    uint32_t weight(uint32_t bucket, uint64_t enough) const {
        return weight(bucket, seg->start(bucket), seg->start(bucket + 1), enough);
    }
    // The same for a bucket whose entries are [begin, end).
    uint32_t weight(uint32_t bucket, uint32_t begin, uint32_t end, uint64_t enough) const {
        if (all_live() && seg->primary.empty()) return end - begin;
        if (end - begin == 1) return seg->is_primary(begin) && live(begin);
        if (is_counted(end - begin)) return count(bucket).primary;
        if (all_live()) return uint32_t(count_bits(seg->primary.data(), begin, end));
        uint32_t n = 0;
        for (uint32_t e = begin; e < end && n < enough; ++e) n += seg->is_primary(e) && live(e);
        return n;
    }
    uint32_t live_entries(uint32_t bucket) const {
        const uint32_t begin = seg->start(bucket), end = seg->start(bucket + 1);
        if (all_live()) return end - begin;
        if (is_counted(end - begin)) return count(bucket).entries;
        uint32_t n = 0;
        for (uint32_t e = begin; e < end; ++e) n += live(e);
        return n;
    }
    bool any_live(uint32_t bucket) const {
        if (all_live()) return true;
        const uint32_t begin = seg->start(bucket), end = seg->start(bucket + 1);
        if (is_counted(end - begin)) return count(bucket).entries;
        for (uint32_t e = begin; e < end; ++e)
            if (live(e)) return true;
        return false;
    }

  private:
    bool is_counted(uint32_t size) const { return counts && size >= BucketCounts::smallest(seg->n_entries); }
    BucketCounts::Count count(uint32_t bucket) const {
        return counts->of(bucket, seg->n_entries, [&] {
            const uint32_t begin = seg->start(bucket), end = seg->start(bucket + 1);
            if (!only && (!dead || dead->count() < (end - begin) / 16)) return count_removed(bucket, begin, end);
            BucketCounts::Count n{0, 0};
            for (uint32_t e = begin; e < end; ++e)
                if (live(e)) ++n.entries, n.primary += seg->is_primary(e);
            return n;
        });
    }
    // Few images were removed, so it is faster to look for these.
    BucketCounts::Count count_removed(uint32_t bucket, uint32_t begin, uint32_t end) const {
        BucketCounts::Count n{end - begin, end - begin};
        if (!seg->primary.empty()) n.primary = uint32_t(count_bits(seg->primary.data(), begin, end));
        if (dead)
            dead->for_each_new(Bitmap(dead->size()), [&](uint32_t slot) {
                const uint32_t e = seg->find_entry(bucket, slot);
                if (e != seg->none) --n.entries, n.primary -= seg->is_primary(e);
            });
        return n;
    }
};

}  // namespace mch
