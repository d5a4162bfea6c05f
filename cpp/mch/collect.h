// What a search has found so far.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "view.h"

namespace mch {

// The ids seen so far; cleared in constant time.
class SeenIds {
  public:
    void clear() {
        if (++epoch_ == 0) std::fill(cell_.begin(), cell_.end(), Cell{}), epoch_ = 1;
        used_ = 0;
    }
    bool insert(int64_t id) {  // false: already there
        if (cell_.size() < 2 * (used_ + 1)) grow();
        Cell& c = find(id);
        if (c.epoch == epoch_) return false;
        c = {id, epoch_};
        ++used_;
        return true;
    }
    size_t size() const { return used_; }
    size_t bytes() const { return cell_.capacity() * sizeof(Cell); }

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

struct TooManyHits {};

// Collects the buckets within a bound, which shrinks to the K-th image.
//
// Two counts shrink it. Each image has one primary entry, so primary entries never count an image
// twice; that count is kept with every bucket added. It may leave the bound too wide, because an image's
// nearest code need not be its primary one, and because it does not see the order of codes at one
// distance. So whenever enough was added to pay for it, narrow() goes through what was found, image by
// image, and drops all that comes after the K-th.
template <class C>
class Collector {
  public:
    struct Hit {
        typename C::Word first_word;  // of the XOR mask; it mostly decides the order at one distance
        uint32_t bucket;
        uint16_t part, distance;
    };
    static constexpr size_t most_parts = UINT16_MAX;

    // For the first `k` images of `parts` within `limit`; `several`: images may have more than one code.
    // `seen` is scratch memory. add() throws TooManyHits as soon as more than `most` images are within the bound.
    void start(uint64_t k, const Bound<C>& limit, const C& query, const std::vector<View<C>>& parts, bool several,
               SeenIds& seen, uint64_t most) {
        k_ = k;
        most_ = most;
        bound_ = limit;
        query_ = query;
        parts_ = &parts;
        several_ = several;
        seen_ = &seen;
        within_ = entries_ = 0;
        std::fill_n(images_, limit.distance + 1, 0);
        hits_.clear();
        added_ = 0;
        // Going through several codes per image takes longer, and is less likely to help.
        narrow_at_ = narrow_images_at_ = few_ = k < SIZE_MAX / 8 ? size_t((several ? 8 : 4) * k + 128) : SIZE_MAX;
        retry_at_ = k < UINT64_MAX / 32 ? 16 * k + 64 : UINT64_MAX;
    }

    // For the same images as another one, as far as its bound reaches now.
    void start_like(const Collector& other, SeenIds& seen) {
        start(other.k_, other.bound_, other.query_, *other.parts_, other.several_, seen, other.most_);
    }

    const Bound<C>& bound() const { return bound_; }
    uint64_t k() const { return k_; }
    uint64_t added() const { return added_; }    // buckets, dropped ones included
    bool full() const { return within_ >= k_; }  // whether K images were found
    int nearest() const {                        // distance of the nearest image, or more than the bound's
        return int(std::find_if(images_, images_ + bound_.distance + 1, [](uint64_t n) { return n; }) - images_);
    }
    uint64_t images_below(int radius) const {
        uint64_t n = 0;
        for (int d = 0; d < std::min(radius, bound_.distance + 1); ++d) n += images_[d];
        return n;
    }

    // Adds a bucket within the bound, given the first word of its XOR mask. Returns its number of primary
    // entries, at most K.
    uint32_t add(uint32_t part, uint32_t bucket, int distance, typename C::Word first_word) {
        const View<C>& view = (*parts_)[part];
        const uint32_t begin = view.seg->start(bucket), end = view.seg->start(bucket + 1);
        const uint32_t weight = view.weight(bucket, begin, end, k_);
        if (!weight && !view.any_live(bucket)) return 0;
        hits_.push_back({first_word, bucket, uint16_t(part), uint16_t(distance)});
        ++added_;
        images_[distance] += weight;
        within_ += weight;
        if (within_ > most_) throw TooManyHits();
        while (bound_.distance > 0 && within_ - images_[bound_.distance] >= k_) {
            within_ -= images_[bound_.distance];
            bound_ = {bound_.distance - 1};
        }
        if (several_ && distance < bound_.distance) {
            entries_ += end - begin < k_ ? end - begin : retry_at_;  // one bucket may hold all that is needed
        }
        if (hits_.size() >= narrow_at_ || within_ >= narrow_images_at_ || entries_ >= retry_at_) [[unlikely]]
            narrow();
        return weight;
    }

    // Whether the bound is within another one, or can be moved there because that holds K images.
    bool ends_within(const Bound<C>& other) {
        if (other.covers(bound_)) return true;
        if (several_) seen_->clear();
        uint64_t n = 0;
        for (const Hit& h : hits_)
            if (n < k_ && other.admits(h.first_word, h.distance)) n += new_images(h);
        if (n < k_) return false;
        bound_ = other;
        count_again();
        return true;
    }

    // Forgets the buckets for which which(hit) is true, so that they can be found again. The bound stays: K images
    // are known to be within it.
    template <class Which>
    void forget(Which&& which) {
        std::erase_if(hits_, which);
        count_again();
    }

    // The buckets found, including some that are now beyond the bound.
    const std::vector<Hit>& hits() const { return hits_; }
    C mask_of(const Hit& h) const { return (*parts_)[h.part].seg->code_at(h.bucket) ^ query_; }
    // Whether hit `a` is visited before hit `b`, at the same distance.
    bool before(const Hit& a, const Hit& b) const {
        if (a.first_word != b.first_word) return a.first_word > b.first_word;
        return C::words > 1 && mask_of(a).before(mask_of(b));
    }

    size_t bytes() const { return hits_.capacity() * sizeof(Hit); }

    // Frees the memory of an unusually large search.
    void trim() {
        if (hits_.capacity() > kept_between_searches) hits_ = {};
    }
    static constexpr size_t kept_between_searches = size_t(1) << 18;  // elements of scratch memory

  private:
    // Entries of a bucket, removed ones included; at most K.
    uint64_t entries(const Hit& h) const {
        const Segment<C>& seg = *(*parts_)[h.part].seg;
        return std::min<uint64_t>(seg.start(h.bucket + 1) - seg.start(h.bucket), k_);
    }

    // How many images a bucket holds, at most K, that no bucket counted before held.
    uint64_t new_images(const Hit& h) {
        const View<C>& view = (*parts_)[h.part];
        if (!several_) return view.weight(h.bucket, k_);
        const size_t before = seen_->size();
        const uint32_t end = view.seg->start(h.bucket + 1);
        for (uint32_t e = view.seg->start(h.bucket); e < end && seen_->size() < k_; ++e)
            if (view.live(e)) seen_->insert(view.seg->id[view.seg->image[e]]);
        return seen_->size() - before;
    }

    // Moves the bound to the K-th of the images found so far, and drops what comes after it.
    [[gnu::noinline]] void narrow() {
        std::erase_if(hits_, [&](const Hit& h) { return h.distance > bound_.distance; });
        if (several_)
            narrow_by_image();
        else if (uint64_t nearer = within_ - images_[bound_.distance]; within_ >= k_) {
            auto ties =
                std::partition(hits_.begin(), hits_.end(), [&](const Hit& h) { return h.distance < bound_.distance; });
            keep_first(size_t(ties - hits_.begin()), hits_.size(), nearer);
        }
        count_again();
        narrow_at_ = std::max(few_, 2 * hits_.size());
        narrow_images_at_ = std::max<uint64_t>(few_, 2 * within_);
        retry_at_ = std::max(retry_at_, 2 * entries_);
    }

    void narrow_by_image() {
        std::sort(hits_.begin(), hits_.end(), [](const Hit& a, const Hit& b) { return a.distance < b.distance; });
        seen_->clear();
        uint64_t have = 0;
        for (size_t begin = 0, end; begin < hits_.size() && have < k_; begin = end) {
            uint64_t most = 0;
            for (end = begin; end < hits_.size() && hits_[end].distance == hits_[begin].distance; ++end)
                most += entries(hits_[end]);
            if (have + most >= k_)
                end = keep_first(begin, end, have);
            else
                for (size_t i = begin; i < end; ++i) have += new_images(hits_[i]);
        }
    }

    // Counts the images of hits [begin, end), all at one distance, in visiting order. If the K-th is among
    // them, moves the bound there and drops all later hits. Returns where the counted hits end.
    size_t keep_first(size_t begin, size_t end, uint64_t& have) {
        auto sorted = hits_.begin() + long(begin), ties_end = hits_.begin() + long(end);
        auto order = [](const Hit& a, const Hit& b) { return a.first_word > b.first_word; };
        while (sorted != ties_end && have < k_) {
            auto last = sorted + long(std::min<uint64_t>(k_ - have, uint64_t(ties_end - sorted))) - 1;
            std::nth_element(sorted, last, ties_end, order);
            for (; sorted <= last; ++sorted) have += new_images(*sorted);
        }
        if (have < k_) return end;
        bound_ = {hits_[begin].distance, (sorted - 1)->first_word};
        // Those with the same first word may come before the last one, or be its bucket in another part.
        sorted = std::partition(sorted, ties_end, [&](const Hit& h) { return h.first_word == bound_.last; });
        hits_.erase(sorted, hits_.end());
        return hits_.size();
    }

    void count_again() {
        within_ = entries_ = 0;
        std::fill_n(images_, bound_.distance + 1, 0);
        for (const Hit& h : hits_) {
            if (h.distance > bound_.distance) continue;
            const uint64_t weight = (*parts_)[h.part].weight(h.bucket, k_);
            images_[h.distance] += weight;
            within_ += weight;
            if (several_ && h.distance < bound_.distance) entries_ += entries(h);
        }
    }

    uint64_t k_ = 0, most_ = UINT64_MAX, within_ = 0, added_ = 0;
    uint64_t entries_ = 0;  // at distances below the bound's, if images may have several codes
    Bound<C> bound_{};
    C query_{};
    const std::vector<View<C>>* parts_ = nullptr;
    bool several_ = false;
    SeenIds* seen_ = nullptr;
    size_t few_ = 0, narrow_at_ = 0;  // hits at which to narrow the bound
    uint64_t narrow_images_at_ = 0;   // images within it at which to narrow it
    uint64_t retry_at_ = 0;           // entries at which to narrow it
    uint64_t images_[kMaxBits + 1];
    std::vector<Hit> hits_;
};

}  // namespace mch
