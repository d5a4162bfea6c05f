// What one search may find: the state it works on, the images it is allowed to return, and how far
// it may look.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "answer.h"
#include "options.h"
#include "search.h"
#include "selection.h"
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
            take_allowed(*o.allowed, bits, hash, double(n_queries) * double(o.k));
        else
            take_all();
        set_limits(bits, o);
        if (n_images == 0) parts.clear();
        const size_t together = std::clamp<size_t>(n_queries, 1, Searcher<C>::block);
        plans.reserve(parts.size());
        for (const View<C>& v : parts) {
            plans.push_back(plan_for(*v.seg, std::max<uint64_t>(k, 1), together));
            several |= !v.seg->primary.empty();
        }
    }

    // Whether these are segments of the table, not one made for a filter.
    bool searches_table() const { return !selection_ || !selection_->extract; }

  private:
    void take_all() {
        parts.reserve(state_->parts.size());
        for (const Part<C>& p : state_->parts) parts.push_back(p.view());
    }

    void take_allowed(const Filter& filter, int bits, const LinearHash& hash, double wanted) {
        selection_ = select(state_, filter, bits, hash, wanted);
        parts = selection_->parts;
        n_images = selection_->n_images;
        n_codes = selection_->n_codes;
    }

    void set_limits(int bits, const SearchOptions& o) {
        limits.radius = std::min(o.max_radius, bits);
        using Wide = Binomials::Wide;
        const auto reachable =
            limits.radius == bits ? Wide(1) << std::min(bits, 65) : Binomials::get().ball(bits, limits.radius);
        limits.buckets = uint64_t(std::min<Wide>(reachable, kMaxCount));
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

    std::shared_ptr<const State<C>> state_;          // keeps the segments alive
    std::shared_ptr<const Selection<C>> selection_;  // null: all images
};

}  // namespace mch
