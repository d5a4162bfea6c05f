// The answer to a query: the images its collector has found, in order, each image once.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <utility>
#include <vector>

#include "collect.h"

namespace mch {

// How far a search may go: buckets up to `radius`, at that radius only up to `last_mask`.
template <class C>
struct Limits {
    int radius;
    bool cut = false;  // whether last_mask applies
    C last_mask{};
    uint64_t buckets;  // how many these limits allow
};

struct Answer {
    uint64_t count = 0, candidates = 0, buckets = 0;
    uint64_t codes = 0;  // that the images were found by, those of images found before included
    int radius = 0;
};

// Makes answers, one after the other; each reuses the memory of the one before.
template <class C>
class Answerer {
  public:
    // Calls emit(id, distance, region) for at most K images, in order. `several`: images may have
    // more than one code. `masks`, if not null, gets the XOR mask of each image's nearest code.
    template <class Emit>
    Answer finish(const Collector<C>& found, const std::vector<View<C>>& parts, bool several, const Limits<C>& limits,
                  int bits, Emit&& emit, std::vector<C>* masks = nullptr) {
        constexpr size_t ahead = 16;  // how many to prefetch; many at once evict one another
        Answer answer;
        k_ = found.k();
        if (several) seen_.clear();
        chosen_.clear();
        sort_by_distance(found, parts);
        for (size_t d = 0, begin = 0; d <= size_t(found.bound().distance) && chosen_.size() < k_; begin = end_[d++]) {
            const size_t end = end_[d];
            // Sort a stretch at a time: often only the first few of the last radius are needed.
            uint64_t stretch = std::max<uint64_t>(k_ - chosen_.size(), 16);
            for (size_t sorted = begin; begin < end && chosen_.size() < k_;) {
                if (begin == sorted) {
                    sorted = sort_stretch(found, begin, begin + std::min<uint64_t>(end - begin, stretch), end, parts);
                    stretch += std::min<uint64_t>(stretch, end);
                }
                if (limits.cut && int(d) == limits.radius && limits.last_mask.before(found.mask_of(hits_[begin])))
                    break;
                if (begin + ahead < sorted) {
                    const Segment<C>& seg = *parts[hits_[begin + ahead].part].seg;
                    seg.image.prefetch(seg.start(hits_[begin + ahead].bucket));
                }
                size_t run = begin + 1;
                if (parts.size() > 1)
                    while (run < sorted && same_code(found, hits_[begin], hits_[run])) ++run;
                choose(begin, run, int(d), parts, several, answer);
                if (masks) masks->resize(chosen_.size(), found.mask_of(hits_[begin]));
                if (chosen_.size() == k_) {
                    answer.buckets = bucket_rank(found.mask_of(hits_[begin]), bits);
                    answer.radius = int(d);
                }
                begin = run;
            }
        }
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

    SeenIds& seen() { return seen_; }  // scratch memory, for collectors too

    size_t bytes() const {
        return (hits_.capacity() + spare_.capacity()) * sizeof(Hit) + chosen_.capacity() * sizeof(Chosen) +
               merged_.capacity() * sizeof(merged_[0]) + seen_.bytes();
    }

    // Frees the memory of an unusually large answer.
    void trim() {
        if (hits_.capacity() + spare_.capacity() + chosen_.capacity() + merged_.capacity() >
            Collector<C>::kept_between_searches)
            *this = Answerer();
    }

  private:
    using Hit = typename Collector<C>::Hit;
    struct Chosen {
        uint32_t image;
        uint16_t part, distance;
        uint8_t region;
    };

    void sort_by_distance(const Collector<C>& found, const std::vector<View<C>>& parts) {
        const auto& hits = found.hits();
        const int bound = found.bound().distance;
        std::fill_n(end_, bound + 2, 0);
        for (const Hit& h : hits)
            if (h.distance <= bound) ++end_[h.distance + 1];
        for (int d = 0; d <= bound; ++d) end_[d + 1] += end_[d];
        hits_.resize(end_[bound + 1]);
        for (const Hit& h : hits) {
            if (h.distance > bound) continue;
            hits_[end_[h.distance]++] = h;
            parts[h.part].seg->prefetch_start(h.bucket);
        }
    }

    static bool same_code(const Collector<C>& found, const Hit& a, const Hit& b) {
        return a.first_word == b.first_word && (C::words == 1 || found.mask_of(a) == found.mask_of(b));
    }

    // Puts the first buckets of [begin, end) into visiting order, at least those before `sorted`.
    // Returns where the sorted ones end.
    size_t sort_stretch(const Collector<C>& found, size_t begin, size_t sorted, size_t end,
                        const std::vector<View<C>>& parts) {
        auto order = [&](const Hit& a, const Hit& b) { return found.before(a, b); };
        auto first = hits_.begin();
        if (sorted < end) std::nth_element(first + long(begin), first + long(sorted), first + long(end), order);
        sort(begin, sorted, order);
        // A code may have a bucket in several parts: keep those of the last code together.
        if (parts.size() > 1)
            for (size_t i = sorted; i < end; ++i)
                if (same_code(found, hits_[i], hits_[sorted - 1])) std::swap(hits_[i], hits_[sorted++]);
        return sorted;
    }

    // Many masks are sorted in one pass by their first bits, and then a few at a time: by the place of the first bit
    // that is set if few are, else by the values of the first ones.
    template <class Order>
    void sort(size_t begin, size_t end, Order&& order) {
        constexpr size_t few = 48;
        auto first = hits_.begin();
        if (end - begin < few) return std::sort(first + long(begin), first + long(end), order);
        constexpr int values = 6;
        const bool sparse = values * int(hits_[begin].distance) < C::words * C::word_bits;
        auto place = [&](const Hit& h) {
            return sparse ? size_t(std::countl_zero(h.first_word))
                          : size_t(typename C::Word(~h.first_word) >> (C::word_bits - values));
        };
        constexpr int places = std::max(C::word_bits + 1, 1 << values);
        uint32_t at[places + 1] = {};
        for (size_t i = begin; i < end; ++i) ++at[place(hits_[i]) + 1];
        for (int i = 0; i < places; ++i) at[i + 1] += at[i];
        spare_.assign(first + long(begin), first + long(end));
        for (const Hit& h : spare_) hits_[begin + at[place(h)]++] = h;
        for (int i = 0; i < places; ++i)  // at[i] is now where place i ends
            std::sort(first + long(begin + (i ? at[i - 1] : 0)), first + long(begin + at[i]), order);
    }

    // Takes the images of one code, by id: hits_[begin, end) are its buckets, one per part.
    void choose(size_t begin, size_t end, int d, const std::vector<View<C>>& parts, bool several, Answer& answer) {
        merged_.clear();
        answer.codes += end - begin;
        for (size_t i = begin; i < end; ++i) {
            const uint32_t p = hits_[i].part, bucket = hits_[i].bucket;
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

    uint64_t k_ = 0;
    size_t end_[kMaxBits + 2];
    std::vector<Hit> hits_, spare_;
    std::vector<Chosen> chosen_;
    std::vector<std::pair<int64_t, Chosen>> merged_;
    SeenIds seen_;
};

}  // namespace mch
