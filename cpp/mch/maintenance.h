// Keeps a table fast: which parts to merge, how, and which substring indexes to build.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "build.h"
#include "search.h"
#include "state.h"

namespace mch {

// ----------------------------------------------------------------------------------------- merging

template <class C>
void insert_part(Parts<C>& parts, Part<C> part) {
    auto at = std::find_if(parts.begin(), parts.end(),
                           [&](const Part<C>& p) { return p.seg->n_entries < part.seg->n_entries; });
    parts.insert(at, std::move(part));
}

template <class C>
Parts<C> parts_at(const Parts<C>& parts, const std::vector<size_t>& places) {
    Parts<C> some;
    for (size_t i : places) some.push_back(parts[i]);
    return some;
}

// Puts `merged` in place of the parts at `places`, which must be in ascending order.
template <class C>
void replace_parts(Parts<C>& parts, const std::vector<size_t>& places, Part<C> merged) {
    for (auto i = places.rbegin(); i != places.rend(); ++i) parts.erase(parts.begin() + long(*i));
    if (merged.seg->n_entries) insert_part(parts, std::move(merged));
}

// The places of the parts that should become one. That is a part of which a quarter was removed, or
// the first part that is less than twice as large as all smaller ones together, and those smaller
// ones: so the number of parts stays logarithmic. Segments in `busy` are left out.
template <class C>
std::vector<size_t> parts_to_merge(const Parts<C>& parts, const std::vector<const Segment<C>*>& busy) {
    std::vector<size_t> idle;
    for (size_t i = 0; i < parts.size(); ++i) {
        if (std::find(busy.begin(), busy.end(), parts[i].seg.get()) != busy.end()) continue;
        if (uint64_t(parts[i].n_dead) * 4 > parts[i].seg->n_images) return {i};
        idle.push_back(i);
    }
    uint64_t smaller = 0;
    size_t first = idle.size();
    for (size_t i = idle.size(); i-- > 0;) {
        if (smaller * 2 > parts[idle[i]].seg->n_entries) first = i;
        smaller += parts[idle[i]].seg->n_entries;
    }
    return {idle.begin() + long(first), idle.end()};
}

// One part with all live entries of `parts`.
template <class C>
Part<C> merge_parts(const Parts<C>& parts, int bits, const LinearHash& hash) {
    Entries<C> all;
    for (const Part<C>& p : parts) append_live(p.view(), all);
    return {build_segment(bits, hash, all), nullptr, 0};
}

// Puts `merged`, made of the parts `before` while others changed the table, in their place in `next`,
// without the images removed in the meantime. Returns false, and changes nothing, if one of them is
// no longer there: all its images were removed, or a changed copy replaced it.
template <class C>
bool replace_with_merged(State<C>& next, const Parts<C>& before, Part<C> merged) {
    auto dead = empty_bitmap(merged.seg->n_images);
    std::vector<size_t> places;
    for (const Part<C>& old : before) {
        auto now =
            std::find_if(next.parts.begin(), next.parts.end(), [&](const Part<C>& p) { return p.seg == old.seg; });
        if (now == next.parts.end()) return false;
        places.push_back(size_t(now - next.parts.begin()));
        if (now->dead == old.dead) continue;
        for (uint32_t slot = 0; slot < old.seg->n_images; ++slot)
            if (test_bit(now->dead->data(), slot) && !(old.dead && test_bit(old.dead->data(), slot))) {
                const int64_t at = merged.seg->id.find(old.seg->id[slot]);
                if (at < 0) continue;
                merged.n_dead += !test_bit(dead->data(), size_t(at));
                set_bit(dead->data(), size_t(at));
            }
    }
    if (merged.n_dead) merged.dead = dead;
    std::sort(places.begin(), places.end());
    if (merged.n_dead == merged.seg->n_images) merged.seg = std::make_shared<Segment<C>>();
    replace_parts(next.parts, places, std::move(merged));
    return true;
}

// ------------------------------------------------------------------------------- substring indexes

// Whether the background thread should build the substring index: in a large table at once, if the
// index pays for a search with few neighbours; elsewhere when searches without it have lost enough
// time. That may be less than the time to build it, since nobody waits for the build.
template <class C>
bool wants_index(const Segment<C>& seg) {
    constexpr uint32_t large = 1 << 20;
    if (seg.substring->index.load() || seg.substring->failed) return false;
    const double build = kBuildCost * SubstringIndex<C>::window_count(seg.bits, seg.n_buckets) * seg.n_buckets;
    return seg.substring->missed > build / 16 ||
           (seg.n_buckets > large && Plan<C>(seg, 10, Searcher<C>::block).substring_pays());
}

template <class C>
bool any_wants_index(const Parts<C>& parts) {
    return std::any_of(parts.begin(), parts.end(), [](const Part<C>& p) { return wants_index(*p.seg); });
}

template <class C>
void build_wanted_indexes(const Parts<C>& parts) {
    for (const Part<C>& p : parts) {
        if (!wants_index(*p.seg)) continue;
        try {
            substring_index(*p.seg);
        } catch (...) {  // no memory: searches do without the index
            p.seg->substring->failed = true;
        }
    }
}

}  // namespace mch
