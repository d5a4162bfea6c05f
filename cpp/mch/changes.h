// Adding to and removing from a state that is not published yet.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "build.h"
#include "state.h"

namespace mch {

// `regions` may be null: all 0.
template <class C>
Entries<C> load_entries(const int64_t* ids, const uint8_t* codes, const uint8_t* regions, size_t n, int n_bytes) {
    Entries<C> in;
    in.id.assign(ids, ids + n);
    in.code.resize(n);
    for (size_t i = 0; i < n; ++i) in.code[i] = C::load(codes + i * size_t(n_bytes), n_bytes);
    if (regions) in.region.assign(regions, regions + n);
    return in;
}

// Whether `state` may hold one of these images: some part has ids in the range of theirs.
template <class C>
bool may_hold(const State<C>& state, std::span<const int64_t> ids) {
    if (state.parts.empty()) return false;
    const auto range = std::minmax_element(ids.begin(), ids.end());
    const int64_t least = *range.first, greatest = *range.second;
    return std::any_of(state.parts.begin(), state.parts.end(), [&](const Part<C>& p) {
        const IdList& have = p.seg->id;
        return least <= have[have.size() - 1] && greatest >= have[0];
    });
}

// Drops the entries of `in` that `next` already holds, and adds the new images to next.n_images. If
// `next` holds an entry with a larger region, that entry gets the smaller region.
template <class C>
void keep_new(Entries<C>& in, State<C>& next, const LinearHash& hash) {
    const size_t n = in.size();
    std::vector<uint32_t> slot;
    const auto distinct = distinct_ids(in.id, slot);
    std::vector<uint8_t> known(distinct.size(), 0);
    for (const Part<C>& p : next.parts) {
        const auto& have = p.seg->id;
        if (distinct.front() > have[have.size() - 1] || distinct.back() < have[0]) continue;
        for (size_t i = 0; i < distinct.size(); ++i)
            if (!known[i]) known[i] = p.find(distinct[i]) >= 0;
    }
    size_t n_known = size_t(std::count(known.begin(), known.end(), 1));
    next.n_images += distinct.size() - n_known;
    if (!n_known) return;

    in.guest.resize(n);
    std::vector<uint8_t> drop(n, 0);
    std::vector<std::shared_ptr<Segment<C>>> changed(next.parts.size());
    for (size_t i = 0; i < n; ++i) {
        if (!(in.guest[i] = known[slot[i]])) continue;
        const uint32_t h = hash(in.code[i]);
        for (size_t j = 0; j < next.parts.size(); ++j) {
            Part<C>& p = next.parts[j];
            int64_t s = p.find(in.id[i]);
            uint32_t bucket = s < 0 ? Segment<C>::none : p.seg->find(in.code[i], h);
            uint32_t entry = bucket == Segment<C>::none ? bucket : p.seg->find_entry(bucket, uint32_t(s));
            if (entry == Segment<C>::none) continue;
            drop[i] = 1;
            uint8_t region = in.region_of(i);
            if (region >= p.seg->region_of(entry)) continue;
            if (!changed[j]) {  // searches may be reading the published one
                changed[j] = std::make_shared<Segment<C>>(*p.seg);
                changed[j]->region = Array<uint8_t>(p.seg->n_entries);
                std::copy_n(p.seg->region.data(), p.seg->n_entries, changed[j]->region.mutable_data());
                p.seg = changed[j];
            }
            changed[j]->region.mutable_data()[entry] = region;
        }
    }
    const bool regions = !in.region.empty();
    size_t kept = 0;
    for (size_t i = 0; i < n; ++i) {
        if (drop[i]) continue;
        in.id[kept] = in.id[i], in.code[kept] = in.code[i], in.guest[kept] = in.guest[i];
        if (regions) in.region[kept] = in.region[i];
        ++kept;
    }
    in.id.resize(kept), in.code.resize(kept), in.guest.resize(kept);
    if (regions) in.region.resize(kept);
}

// How many entries of a bucket belong to these images. None if it is faster to count the bucket again.
template <class C>
std::optional<BucketCounts::Count> entries_of(const Segment<C>& seg, uint32_t bucket,
                                              const std::vector<uint32_t>& slots) {
    if (slots.size() > (seg.start(bucket + 1) - seg.start(bucket)) / 16) return {};
    BucketCounts::Count n{0, 0};
    for (uint32_t slot : slots) {
        const uint32_t e = seg.find_entry(bucket, slot);
        if (e != seg.none) ++n.entries, n.primary += seg.is_primary(e);
    }
    return n;
}

// Removes images with all their codes, and parts that have no image left. `ids` must be distinct and
// ascending. // Returns how many of the images `next` held.
template <class C>
uint64_t remove_images(const std::vector<int64_t>& ids, State<C>& next) {
    std::vector<uint8_t> removed(ids.size(), 0);
    for (Part<C>& p : next.parts) {
        std::vector<uint32_t> slots;
        for (size_t i = 0; i < ids.size(); ++i) {
            int64_t slot = p.find(ids[i]);
            if (slot < 0) continue;
            slots.push_back(uint32_t(slot));
            next.n_codes -= p.seg->codes_of(uint32_t(slot));
            removed[i] = 1;
        }
        if (slots.empty()) continue;
        p.counts = std::make_shared<BucketCounts>(*p.counts,
                                                  [&](uint32_t bucket) { return entries_of(*p.seg, bucket, slots); });
        p.n_dead += uint32_t(slots.size());
        p.dead = std::make_shared<Bitmap>((p.dead ? *p.dead : Bitmap(p.seg->n_images)).with(slots, true));
    }
    const uint64_t n = uint64_t(std::count(removed.begin(), removed.end(), 1));
    next.n_images -= n;
    std::erase_if(next.parts, [](const Part<C>& p) { return p.n_dead == p.seg->n_images; });
    return n;
}

}  // namespace mch
