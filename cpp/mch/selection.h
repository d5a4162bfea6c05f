// The images of a filter, as one state of a table holds them. If they are few, a segment is made of their
// entries alone; if they are many, searches pass over the others.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "build.h"
#include "filter.h"
#include "state.h"

namespace mch {

// The segment's map from images to buckets; the calling thread builds it if it is missing.
template <class C>
const BucketsOfImages& buckets_of_images(const Segment<C>& seg) {
    return seg.of_images->get([&] {
        auto built = std::make_unique<BucketsOfImages>();
        std::vector<uint32_t> next(seg.n_images, 0);
        if (seg.codes_of_image.size()) {
            built->start = PackedInts(seg.n_images + size_t(1), seg.n_entries);
            uint32_t sum = 0;
            for (uint32_t s = 0; s < seg.n_images; ++s) {
                built->start.set(s, next[s] = sum);
                sum += uint32_t(seg.codes_of(s));
            }
            built->start.set(seg.n_images, sum);
        } else {
            for (uint32_t s = 0; s < seg.n_images; ++s) next[s] = s;
        }
        built->bucket = PackedInts(seg.n_entries, seg.n_buckets);
        for (uint32_t b = 0; b < seg.n_buckets; ++b)
            for (uint32_t e = seg.start(b); e < seg.start(b + 1); ++e) built->bucket.set(next[seg.image[e]]++, b);
        return built;
    });
}

// The images of a filter in one segment, whether removed or not.
template <class C>
struct Allowed {
    std::weak_ptr<const Segment<C>> seg;
    std::vector<uint32_t> slots;   // ascending; or, if they are many,
    std::vector<uint64_t> bitmap;  // one bit per image of the segment
    uint64_t n_images = 0, n_codes = 0;

    Allowed(const std::shared_ptr<const Segment<C>>& in, const std::vector<int64_t>& ids) : seg(in) {
        for_each_common(ids, in->id, [&](size_t slot) {
            slots.push_back(uint32_t(slot));
            n_codes += in->codes_of(uint32_t(slot));
        });
        n_images = slots.size();
        if (n_images > in->n_images / 32) {
            bitmap = make_bitmap(*in);
            slots = {};
        }
    }

    std::vector<uint64_t> make_bitmap(const Segment<C>& in) const {
        if (!bitmap.empty()) return bitmap;
        std::vector<uint64_t> made(bitmap_words(in.n_images), 0);
        for (uint32_t slot : slots) set_bit(made.data(), slot);
        return made;
    }

    template <class F>
    void each(F&& f) const {
        for (uint32_t slot : slots) f(slot);
        for (size_t w = 0; w < bitmap.size(); ++w)
            for (uint64_t bits = bitmap[w]; bits; bits &= bits - 1)
                f(uint32_t(w * 64) + uint32_t(std::countr_zero(bits)));
    }
};

template <class C>
class Selection final : public Places {
  public:
    static constexpr int kind = 0;

    std::vector<View<C>> parts;                 // to search
    uint64_t n_images = 0, n_codes = 0;         // that the search may find
    std::shared_ptr<const Segment<C>> extract;  // a segment of these images alone; null: `parts` are the table's

    // `wanted`: about how many images all searches together will look for.
    Selection(const std::shared_ptr<const State<C>>& state, const Filter& filter, const Selection* earlier, int bits,
              const LinearHash& hash, double wanted)
        : state_(state) {
        uint64_t n_all = 0;
        for (const Part<C>& p : state->parts) {
            allowed_.push_back(allowed_in(p.seg, filter, earlier));
            n_all += allowed_.back()->n_codes;
        }
        // A search of the whole table passes over so many codes for each that it takes.
        const double others = double(state->n_codes) / double(std::max<uint64_t>(n_all, 1));
        constexpr double build_one = 20;  // times as long as to pass over one
        if (n_all * 8 < state->n_codes && (n_all < 4096 || wanted * others > build_one * double(n_all)))
            make_extract(*state, bits, hash);
        else
            view(*state);
    }

    bool is_of(const std::shared_ptr<const State<C>>& state) const { return state_.lock() == state; }

  private:
    static std::shared_ptr<const Allowed<C>> allowed_in(const std::shared_ptr<const Segment<C>>& seg,
                                                        const Filter& filter, const Selection* earlier) {
        if (earlier)
            for (auto& a : earlier->allowed_)
                if (a->seg.lock() == seg) return a;
        return std::make_shared<const Allowed<C>>(seg, filter.ids());
    }

    // Whether the primary entries of some of the segment's images are in other segments.
    static bool has_guests(const Segment<C>& seg) {
        return !seg.primary.empty() && count_bits(seg.primary.data(), 0, seg.n_entries) < seg.n_images;
    }

    // Each image is counted in the part that holds its primary entry.
    static bool is_hosted(const Segment<C>& seg, uint32_t slot) {
        bool hosted = false;
        buckets_of_images(seg).each(slot, [&](uint32_t b) { hosted |= seg.is_primary(seg.find_entry(b, slot)); });
        return hosted;
    }

    void view(const State<C>& state) {
        for (size_t i = 0; i < state.parts.size(); ++i) {
            const Part<C>& p = state.parts[i];
            const Allowed<C>& a = *allowed_[i];
            const bool guests = has_guests(*p.seg);
            if (p.n_dead || guests) {
                a.each([&](uint32_t slot) {
                    if (p.removed(slot)) return;
                    n_codes += p.seg->codes_of(slot);
                    n_images += !guests || is_hosted(*p.seg, slot);
                });
            } else {
                n_codes += a.n_codes;
                n_images += a.n_images;
            }
            if (!a.n_images) continue;
            parts.push_back(p.view());
            counts_.push_back(std::make_unique<BucketCounts>());
            parts.back().counts = counts_.back().get();
            if (a.bitmap.empty()) {
                bitmaps_.push_back(a.make_bitmap(*p.seg));
                parts.back().only = bitmaps_.back().data();
            } else {
                parts.back().only = a.bitmap.data();
            }
        }
    }

    void make_extract(const State<C>& state, int bits, const LinearHash& hash) {
        Entries<C> few;
        for (size_t i = 0; i < state.parts.size(); ++i) {
            const Part<C>& p = state.parts[i];
            const Segment<C>& seg = *p.seg;
            allowed_[i]->each([&](uint32_t slot) {
                if (p.removed(slot)) return;
                buckets_of_images(seg).each(slot, [&](uint32_t b) {
                    few.code.push_back(seg.code_at(b));
                    few.id.push_back(seg.id[slot]);
                    few.region.push_back(seg.region.empty() ? 0 : seg.region_of(seg.find_entry(b, slot)));
                });
            });
        }
        if (!few.size()) return;
        auto made = build_segment(bits, hash, few);
        n_images = made->n_images;
        n_codes = made->n_entries;
        parts = {{made.get(), nullptr}};
        extract = std::move(made);
    }

    std::weak_ptr<const State<C>> state_;                     // weak: a filter keeps no old state alive
    std::vector<std::shared_ptr<const Allowed<C>>> allowed_;  // by part of the state
    std::vector<std::unique_ptr<BucketCounts>> counts_;
    std::vector<std::vector<uint64_t>> bitmaps_;  // of parts in which they are few
};

// The filter's images in this state, from memory if the state is the one of the last search.
template <class C>
std::shared_ptr<const Selection<C>> select(const std::shared_ptr<const State<C>>& state, const Filter& filter, int bits,
                                           const LinearHash& hash, double wanted) {
    auto last = filter.recall<Selection<C>>();
    if (last && last->is_of(state)) return last;
    auto made =
        std::make_shared<const Selection<C>>(state, filter, last.get(), bits, hash, filter.kept ? INFINITY : wanted);
    filter.remember(made);
    return made;
}

}  // namespace mch
