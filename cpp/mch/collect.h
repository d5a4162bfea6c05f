// What a search has found so far.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "view.h"

namespace mch {

// Collects the buckets within a bound, which shrinks to the distance of the K-th image. The bound
// counts primary entries only, so it is never too small. It may be a little too large, because an
// image's nearest code need not be its primary one.
template <class C>
class Collector {
  public:
    struct Hit {
        uint32_t bucket;
        uint16_t part, distance;
    };
    static constexpr size_t most_parts = UINT16_MAX;

    void start(uint64_t k, int limit) {
        k_ = k;
        bound_ = limit;
        within_ = 0;
        std::fill_n(images_, limit + 1, 0);
        hits_.clear();
    }

    int bound() const { return bound_; }
    uint64_t k() const { return k_; }
    uint64_t images_below(int radius) const {
        uint64_t n = 0;
        for (int d = 0; d < std::min(radius, bound_ + 1); ++d) n += images_[d];
        return n;
    }

    // A bucket at `distance` (at most the bound) that holds `weight` images.
    void add(uint32_t part, uint32_t bucket, int distance, uint32_t weight) {
        hits_.push_back({bucket, uint16_t(part), uint16_t(distance)});
        images_[distance] += weight;
        within_ += weight;
        while (bound_ > 0 && within_ - images_[bound_] >= k_) within_ -= images_[bound_--];
    }

    // Forgets this part's buckets beyond `radius`, so that another strategy can find them again. The
    // bound stays: K images are known to be within it.
    void forget_beyond(int radius, uint32_t part, const View<C>& view) {
        std::erase_if(hits_, [&](const Hit& h) {
            if (h.part != part || h.distance <= radius) return false;
            if (h.distance <= bound_) {
                uint32_t weight = view.weight(h.bucket, k_);
                images_[h.distance] -= weight;
                within_ -= weight;
            }
            return true;
        });
    }

    // The buckets found, including some that are now beyond the bound.
    const std::vector<Hit>& hits() const { return hits_; }

    // Frees the memory of an unusually large search.
    void trim() {
        if (hits_.capacity() > kept_between_searches) hits_ = {};
    }
    static constexpr size_t kept_between_searches = size_t(1) << 18;  // elements of scratch memory

  private:
    uint64_t k_ = 0, within_ = 0;
    int bound_ = 0;
    uint64_t images_[kMaxBits + 1];
    std::vector<Hit> hits_;
};

}  // namespace mch
