// What a search has found so far, and the answer made of it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "segment.h"

namespace mch {

// A segment as one search sees it: images whose bit is set in `dead` do not exist for it.
template <class C>
struct View {
    const Segment<C>* seg;
    const uint64_t* dead;  // by image; nullptr: all live

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

// How far a search may go: buckets up to `radius`, at that radius only up to `last_mask`.
template <class C>
struct Limits {
    int radius;
    bool cut = false;  // last_mask counts
    C last_mask{};
    uint64_t buckets;  // that these limits allow
};

struct Answer {
    uint64_t count = 0, candidates = 0, buckets = 0;
    int radius = 0;
};

// Ids met so far; emptied in constant time.
class SeenIds {
  public:
    void clear() {
        if (++epoch_ == 0) std::fill(cell_.begin(), cell_.end(), Cell{}), epoch_ = 1;
        used_ = 0;
    }
    bool insert(int64_t id) {  // false: was there
        if (cell_.size() < 2 * (used_ + 1)) grow();
        Cell& c = find(id);
        if (c.epoch == epoch_) return false;
        c = {id, epoch_};
        ++used_;
        return true;
    }

  private:
    struct Cell {
        int64_t id = 0;
        uint32_t epoch = 0;
    };
    Cell& find(int64_t id) {
        size_t mask = cell_.size() - 1, at = size_t(uint64_t(id) * 0x9e3779b97f4a7c15 >> 20) & mask;
        while (cell_[at].epoch == epoch_ && cell_[at].id != id) at = (at + 1) & mask;
        return cell_[at];
    }
    void grow() {
        std::vector<Cell> old(std::max<size_t>(64, cell_.size() * 2));
        old.swap(cell_);
        for (const Cell& c : old)
            if (c.epoch == epoch_) find(c.id) = c;
    }
    std::vector<Cell> cell_;
    size_t used_ = 0;
    uint32_t epoch_ = 1;
};

// Collects the buckets within a bound that shrinks to the K-th image's distance. The bound counts
// primary entries, so it is never too small; it may be a little too large while an image's nearest
// code is not its primary one.
template <class C>
class Collector {
  public:
    void start(uint64_t k, int limit) {
        k_ = k;
        bound_ = limit;
        within_ = 0;
        std::fill_n(images_, limit + 1, 0);
        hits_.clear();
    }

    int bound() const { return bound_; }
    uint64_t k() const { return k_; }
    bool full() const { return within_ >= k_; }  // K images are within the bound
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

    // Forgets this part's buckets further than `radius`, to find them again in another way. The
    // bound stays: that many images are known to be within it.
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

    // The answer: emit(id, distance, region) for each of at most K images in order. `several`:
    // images may have more than one code.
    template <class Emit>
    Answer finish(const C& query, const std::vector<View<C>>& parts, bool several, const Limits<C>& limits, int bits,
                  Emit&& emit) {
        Answer answer;
        if (several) seen_.clear();
        chosen_.clear();
        sort_by_distance(query, parts);
        for (size_t d = 0, begin = 0; d <= size_t(bound_) && chosen_.size() < k_; begin = end_[d++]) {
            // Sorted a stretch at a time: of the last radius often only the first few are needed.
            const size_t end = end_[d];
            for (size_t sorted = begin; begin < end && chosen_.size() < k_;) {
                if (begin == sorted) sorted = sort_stretch(begin, end, parts);
                const C mask = keyed_[begin].mask;
                if (limits.cut && int(d) == limits.radius && limits.last_mask.before(mask)) break;
                size_t run = begin + 1;
                while (run < sorted && keyed_[run].mask == mask) ++run;
                choose(begin, run, int(d), parts, several, answer);
                if (chosen_.size() == k_) {
                    answer.buckets = bucket_rank(mask, bits);
                    answer.radius = int(d);
                }
                begin = run;
            }
        }
        constexpr size_t ahead = 16;
        for (size_t i = 0; i < chosen_.size(); ++i) {
            if (i + ahead < chosen_.size()) parts[chosen_[i + ahead].part].seg->id.prefetch(chosen_[i + ahead].image);
            const Chosen& c = chosen_[i];
            emit(parts[c.part].seg->id[c.image], int(c.distance), c.region);
        }
        answer.count = chosen_.size();
        if (answer.count < k_) {
            answer.buckets = limits.buckets;
            answer.radius = limits.radius;
        }
        return answer;
    }

  private:
    struct Hit {
        uint32_t bucket;
        uint16_t part, distance;
    };
    struct Keyed {
        C mask;
        uint32_t bucket, part;
    };
    struct Chosen {
        uint32_t image;
        uint16_t part, distance;
        uint8_t region;
    };

    void sort_by_distance(const C& query, const std::vector<View<C>>& parts) {
        std::fill_n(end_, bound_ + 2, 0);
        std::erase_if(hits_, [&](const Hit& h) { return h.distance > bound_; });
        for (const Hit& h : hits_) ++end_[h.distance + 1];
        for (int d = 0; d <= bound_; ++d) end_[d + 1] += end_[d];
        keyed_.resize(hits_.size());
        constexpr size_t ahead = 16;
        for (size_t i = 0; i < hits_.size(); ++i) {
            if (i + ahead < hits_.size()) {
                const Hit& later = hits_[i + ahead];
                parts[later.part].seg->codes().prefetch(later.bucket);
                parts[later.part].seg->prefetch_start(later.bucket);
            }
            const Hit& h = hits_[i];
            keyed_[end_[h.distance]++] = {parts[h.part].seg->codes().at(h.bucket) ^ query, h.bucket, h.part};
        }
    }

    // Brings the next buckets of [begin, end) into visiting order, as many as may be needed; returns
    // where they end.
    size_t sort_stretch(size_t begin, size_t end, const std::vector<View<C>>& parts) {
        auto order = [](const Keyed& a, const Keyed& b) { return a.mask.before(b.mask); };
        auto first = keyed_.begin();
        size_t sorted = begin + std::min<uint64_t>(end - begin, std::max<uint64_t>(k_ - chosen_.size(), 16));
        if (sorted < end) std::nth_element(first + long(begin), first + long(sorted), first + long(end), order);
        std::sort(first + long(begin), first + long(sorted), order);
        // Buckets of one code in several parts belong together: take in the stragglers.
        if (parts.size() > 1)
            for (size_t i = sorted; i < end; ++i)
                if (keyed_[i].mask == keyed_[sorted - 1].mask) std::swap(keyed_[i], keyed_[sorted++]);
        for (size_t i = begin; i < sorted; ++i) {
            const Segment<C>& seg = *parts[keyed_[i].part].seg;
            seg.image.prefetch(seg.start(keyed_[i].bucket));
        }
        return sorted;
    }

    // The images of one code, by id: keyed_[begin, end) are its buckets, one a part.
    void choose(size_t begin, size_t end, int d, const std::vector<View<C>>& parts, bool several, Answer& answer) {
        merged_.clear();
        for (size_t i = begin; i < end; ++i) {
            const uint32_t p = keyed_[i].part, bucket = keyed_[i].bucket;
            const View<C>& part = parts[p];
            answer.candidates += part.live_entries(bucket);
            const uint32_t last = part.seg->start(bucket + 1);
            for (uint32_t e = part.seg->start(bucket); e < last && chosen_.size() < k_; ++e) {
                if (!part.live(e)) continue;
                const uint32_t image = uint32_t(part.seg->image[e]);
                const Chosen c{image, uint16_t(p), uint16_t(d), part.seg->region_of(e)};
                if (end - begin > 1)
                    merged_.emplace_back(part.seg->id[image], c);
                else if (!several || seen_.insert(parts.size() > 1 ? part.seg->id[image] : image))
                    chosen_.push_back(c);
            }
        }
        std::sort(merged_.begin(), merged_.end(), [](auto& a, auto& b) { return a.first < b.first; });
        for (auto& [id, c] : merged_)
            if (chosen_.size() < k_ && (!several || seen_.insert(id))) chosen_.push_back(c);
    }

    uint64_t k_ = 0, within_ = 0;
    int bound_ = 0;
    uint64_t images_[kMaxBits + 1];
    size_t end_[kMaxBits + 2];
    std::vector<Hit> hits_;
    std::vector<Keyed> keyed_;
    std::vector<Chosen> chosen_;
    std::vector<std::pair<int64_t, Chosen>> merged_;
    SeenIds seen_;
};

}  // namespace mch
