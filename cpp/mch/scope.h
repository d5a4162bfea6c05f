// What one search may find: the state it works on, the images it is allowed to return, and how far
// it may look.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "answer.h"
#include "build.h"
#include "options.h"
#include "search.h"
#include "state.h"

namespace mch {

template <class C>
class Scope {
  public:
    std::vector<View<C>> parts;  // to search
    std::vector<Plan<C>> plans;  // by part
    Limits<C> limits;
    uint64_t k;                  // images to look for
    uint64_t n_images, n_codes;  // that the search may find
    bool several = false;        // images may have more than one code

    Scope(std::shared_ptr<const State<C>> state, int bits, const LinearHash& hash, size_t n_queries,
          const SearchOptions& o)
        : n_images(state->n_images), n_codes(state->n_codes), state_(std::move(state)) {
        if (o.allowed)
            allow_only(*o.allowed, bits, hash);
        else
            for (const Part<C>& p : state_->parts) parts.push_back(p.view());
        set_limits(bits, o);
        if (n_images == 0) parts.clear();
        for (const View<C>& v : parts) {
            plans.emplace_back(*v.seg, std::max<uint64_t>(k, 1), std::clamp<size_t>(n_queries, 1, Searcher<C>::block));
            several |= !v.seg->primary.empty();
        }
    }
    Scope(const Scope&) = delete;  // `parts` points into `excluded_`

    // Whether these are segments of the table, not one made for this search.
    bool searches_table() const { return !extract_; }

  private:
    void allow_only(const std::vector<int64_t>& allowed, int bits, const LinearHash& hash) {
        const Parts<C>& all = state_->parts;
        std::vector<uint32_t> slots;
        n_images = n_codes = 0;
        for (const Part<C>& p : all) excluded_.emplace_back(bitmap_words(p.seg->n_images), ~uint64_t(0));
        for (int64_t id : distinct_ids(allowed, slots)) {
            bool known = false;
            for (size_t i = 0; i < all.size(); ++i) {
                int64_t slot = all[i].find(id);
                if (slot < 0) continue;
                known = true;
                excluded_[i][size_t(slot) >> 6] &= ~(uint64_t(1) << (slot & 63));
                n_codes += all[i].seg->codes_of(uint32_t(slot));
            }
            n_images += known;
        }
        for (size_t i = 0; i < all.size(); ++i) parts.push_back({all[i].seg.get(), excluded_[i].data()});
        if (n_codes * 8 < state_->n_codes) {  // few: searching a segment of their own is faster
            Entries<C> few;
            for (const View<C>& part : parts) append_live(part, few);
            few.guest.clear();  // each image has all its entries here, so one of them is primary
            extract_ = build_segment(bits, hash, few);
            parts = {{extract_.get(), nullptr}};
            excluded_.clear();
        }
    }

    void set_limits(int bits, const SearchOptions& o) {
        limits.radius = std::min(o.max_radius, bits);
        const auto reachable = Binomials::get().ball(bits, limits.radius);
        limits.buckets = uint64_t(std::min<Binomials::Wide>(reachable, kMaxCount));
        bool whole = limits.radius == bits;
        if (o.max_buckets && *o.max_buckets < reachable) {
            whole = false;
            limits.buckets = *o.max_buckets;
            limits.radius = 0;
            if (*o.max_buckets) {
                limits.cut = true;
                limits.last_mask = mask_at_rank<C>(*o.max_buckets, bits);
                limits.radius = limits.last_mask.popcount();
            } else {
                parts.clear();
            }
        }
        // Without limits, a search that asks for more images than there are is over at the last one.
        k = whole ? std::min(o.k, n_images) : o.k;
    }

    std::shared_ptr<const State<C>> state_;      // keeps the segments alive
    std::vector<Bitmap> excluded_;               // by part: all images but the allowed ones
    std::shared_ptr<const Segment<C>> extract_;  // the allowed entries, if they are few
};

}  // namespace mch
