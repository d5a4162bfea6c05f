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

#include "substring.h"
#include "view.h"

namespace mch {

using Bitmap = std::vector<uint64_t>;

inline std::shared_ptr<Bitmap> empty_bitmap(size_t n) { return std::make_shared<Bitmap>(bitmap_words(n)); }

// A segment and the images removed from it.
template <class C>
struct Part {
    std::shared_ptr<const Segment<C>> seg;
    std::shared_ptr<const Bitmap> dead;  // one bit per image; null: none was removed
    uint32_t n_dead = 0;

    View<C> view() const { return {seg.get(), dead ? dead->data() : nullptr}; }
    // The image's slot if the part holds it and it was not removed, else -1.
    int64_t find(int64_t id) const {
        int64_t slot = seg->id.find(id);
        return slot >= 0 && dead && test_bit(dead->data(), size_t(slot)) ? -1 : slot;
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

    // Bytes by kind of array, and their "total".
    std::map<std::string, uint64_t> memory() const {
        std::map<std::string, uint64_t> bytes;
        Segment<C>::for_each_array(Segment<C>(), [&](const char* name, auto&) { bytes[name] = 0; });
        bytes["removed"] = bytes["substring"] = 0;
        for (const Part<C>& p : parts) {
            Segment<C>::for_each_array(*p.seg, [&](const char* name, auto& array) { bytes[name] += array.bytes(); });
            if (p.dead) bytes["removed"] += p.dead->size() * sizeof(uint64_t);
            if (auto index = p.seg->substring->index.load()) bytes["substring"] += index->bytes();
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
                const C code = part.seg->codes().at(b);
                const uint32_t h = hash(code);
                n += part.any_live(b) && std::none_of(parts.begin(), parts.begin() + long(i), [&](auto& p) {
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
