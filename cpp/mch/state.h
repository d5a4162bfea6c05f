// The content of a table at one moment: a list of immutable segments and, for each of them, the
// images that were removed from it. A published state never changes; a writer changes a copy.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "planner.h"
#include "residual.h"
#include "view.h"

namespace mch {

// Whether one is a copy of the other, which may have other regions. An add that lowers regions makes such
// copies; entries have the same numbers in all of them.
template <class C>
bool same_entries(const Segment<C>& a, const Segment<C>& b) {
    return a.planes == b.planes;
}

// A segment and the images removed from it.
template <class C>
struct Part {
    std::shared_ptr<const Segment<C>> seg;
    std::shared_ptr<const Bitmap> dead;  // one bit per image; null: none was removed
    uint32_t n_dead = 0;
    std::shared_ptr<const BucketCounts> counts = std::make_shared<BucketCounts>();  // of what is not removed

    View<C> view() const { return {seg.get(), dead.get(), nullptr, counts.get()}; }
    bool removed(uint32_t slot) const { return dead && dead->test(slot); }
    // The image's slot if the part holds it and it was not removed, else -1.
    int64_t find(int64_t id) const {
        int64_t slot = seg->id.find(id);
        return slot >= 0 && removed(uint32_t(slot)) ? -1 : slot;
    }
};

template <class C>
using Parts = std::vector<Part<C>>;

template <class C>
struct State {
    Parts<C> parts;  // largest first
    uint64_t n_images = 0, n_codes = 0;

    State() = default;
    State(const State& o) : parts(o.parts), n_images(o.n_images), n_codes(o.n_codes) {}  // not n_buckets_

    bool contains(int64_t id) const {
        return std::any_of(parts.begin(), parts.end(), [&](const Part<C>& p) { return p.find(id) >= 0; });
    }

    // Distinct codes of live images. Counted on the first call only.
    uint64_t n_buckets(const LinearHash& hash) const {
        if (n_buckets_ < 0) n_buckets_ = int64_t(count_buckets(hash));
        return uint64_t(n_buckets_);
    }

    // The most positions in a row that a look-up may have to read in one part: the longest run of set bits
    // in the bitmaps of the probe tables. Reads the whole bitmaps.
    uint64_t longest_probe_run() const {
        uint64_t longest = 0;
        for (const Part<C>& p : parts) {
            uint64_t run = 0;  // that ends where the next word starts
            for (size_t w = 0; w < p.seg->occupied.size(); ++w) {
                const uint64_t word = p.seg->occupied[w];
                uint64_t inside = 0;
                for (uint64_t x = word; x; x &= x >> 1) ++inside;
                longest = std::max({longest, inside, run + uint64_t(std::countr_one(word))});
                run = ~word ? uint64_t(std::countl_one(word)) : run + 64;
            }
        }
        return longest;
    }

    // Bytes by kind of array, and their "total".
    std::map<std::string, uint64_t> memory() const {
        std::map<std::string, uint64_t> bytes;
        Segment<C>::for_each_array(Segment<C>(), [&](const char* name, auto&) { bytes[name] = 0; });
        bytes["removed"] = bytes["substring"] = bytes["images"] = bytes["planes"] = 0;
        for (const Part<C>& p : parts) {
            Segment<C>::for_each_array(*p.seg, [&](const char* name, auto& array) { bytes[name] += array.bytes(); });
            if (p.dead) bytes["removed"] += p.dead->bytes();
            bytes["removed"] += p.counts->bytes();
            if (auto index = p.seg->substring->index.load()) bytes["substring"] += index->bytes();
            if (auto planes = p.seg->planes->get()) bytes["planes"] += planes->bytes();
            if (auto index = p.seg->of_images->get()) bytes["images"] += index->bytes();
        }
        uint64_t total = 0;
        for (auto& [name, n] : bytes) total += n;
        bytes["total"] = total;
        return bytes;
    }

  private:
    // A code may have a bucket in several parts; it counts in the first part where it is live.
    uint64_t count_buckets(const LinearHash& hash) const {
        uint64_t n = 0;
        for (size_t i = 0; i < parts.size(); ++i) {
            const View<C> part = parts[i].view();
            if (i == 0 && !part.dead) {
                n += part.seg->n_buckets;
                continue;
            }
            for (uint32_t b = 0; b < part.seg->n_buckets; ++b) {
                if (!part.any_live(b)) continue;
                if (i == 0) {
                    ++n;
                    continue;
                }
                const C code = part.seg->code_at(b);
                const uint32_t h = hash(code);
                n += std::none_of(parts.begin(), parts.begin() + long(i), [&](auto& p) {
                    uint32_t other = p.seg->find(code, h);
                    return other != p.seg->none && p.view().any_live(other);
                });
            }
        }
        return n;
    }

    mutable std::atomic<int64_t> n_buckets_{-1};  // -1: not counted yet
};

}  // namespace mch
