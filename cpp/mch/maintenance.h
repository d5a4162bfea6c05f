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

// A segment with all live entries of `parts`.
template <class C>
std::shared_ptr<Segment<C>> merge_parts(const Parts<C>& parts, int bits, const LinearHash& hash) {
    Entries<C> all;
    size_t n = 0;
    for (const Part<C>& p : parts) n += p.seg->n_entries;
    all.reserve(n);
    for (const Part<C>& p : parts) append_live(p.view(), all);
    return build_segment(bits, hash, all);
}

// The part that holds the same entries as `seg`, or the end.
template <class C>
auto find_part(const Parts<C>& parts, const Segment<C>& seg) {
    return std::find_if(parts.begin(), parts.end(), [&](const Part<C>& p) { return same_entries(*p.seg, seg); });
}

// The places of the parts that should become one. That is a part of which a quarter was removed, or
// the first part that is less than twice as large as all smaller ones together, and those smaller
// ones: so the number of parts stays logarithmic. Wide parts and those in `busy` are left out, and so are the
// largest if they and the others have more than `most` entries together.
template <class C>
std::vector<size_t> parts_to_merge(const Parts<C>& parts, const Parts<C>& busy, uint64_t most = kMostEntries) {
    std::vector<size_t> idle;
    for (size_t i = 0; i < parts.size(); ++i) {
        if (parts[i].seg->wide || find_part(busy, *parts[i].seg) != busy.end()) continue;
        if (uint64_t(parts[i].n_dead) * 4 > parts[i].seg->n_images) return {i};
        idle.push_back(i);
    }
    uint64_t smaller = 0;
    size_t first = idle.size();
    for (size_t i = idle.size(); i-- > 0;) {
        const uint64_t n = parts[idle[i]].seg->n_entries;
        if (smaller + n > most) break;
        if (smaller * 2 > n) first = i;
        smaller += n;
    }
    return {idle.begin() + long(first), idle.end()};
}

// The places of all parts that are not wide, divided into as few lists as the order allows, each for one segment of at
// most `most` entries. Parts are largest first.
template <class C>
std::vector<std::vector<size_t>> parts_to_merge_all(const Parts<C>& parts, uint64_t most = kMostEntries) {
    std::vector<std::vector<size_t>> lists;
    uint64_t entries = most;
    for (size_t i = 0; i < parts.size(); ++i) {
        if (parts[i].seg->wide) continue;
        const uint64_t n = parts[i].seg->n_entries;
        if (entries + n > most) lists.emplace_back(), entries = 0;
        lists.back().push_back(i);
        entries += n;
    }
    return lists;
}

// Merges each list of parts that has several, or one with removed images. Returns whether there was one.
template <class C>
bool merge_all(State<C>& next, int bits, const LinearHash& hash, uint64_t most = kMostEntries) {
    bool changed = false;
    Parts<C> merged;
    for (const Part<C>& p : next.parts)
        if (p.seg->wide) insert_part(merged, p);
    for (const auto& places : parts_to_merge_all(next.parts, most)) {
        Part<C> part = next.parts[places[0]];
        if (places.size() > 1 || part.dead) {
            part = {merge_parts(parts_at(next.parts, places), bits, hash), nullptr, 0};
            changed = true;
        }
        if (part.seg->n_entries) insert_part(merged, std::move(part));
    }
    next.parts = std::move(merged);
    return changed;
}

// Gives the entries of `merged` the regions that were lowered in a copy `now` of the segment `old`.
template <class C>
void lower_regions(Segment<C>& merged, const Segment<C>& old, const Segment<C>& now, const LinearHash& hash) {
    if (now.region.data() == old.region.data()) return;
    for (uint32_t b = 0; b < now.n_buckets; ++b)
        for (uint32_t e = now.start(b); e < now.start(b + 1); ++e) {
            if (now.region[e] == old.region_of(e)) continue;
            const int64_t slot = merged.id.find(now.id[now.image[e]]);
            if (slot < 0) continue;  // its image was removed before the merge
            const C code = now.code_at(b);
            const uint32_t bucket = merged.find(code, hash(code));
            const uint32_t entry = bucket == merged.none ? bucket : merged.find_entry(bucket, uint32_t(slot));
            if (entry != merged.none) merged.region.mutable_data()[entry] = now.region[e];
        }
}

// Puts `merged`, made of the parts `before`, in their place in `next`, together with what others changed
// meanwhile: regions that are lower now, and images that were removed. A part that is no longer in `next`
// had all its images removed.
template <class C>
void replace_with_merged(State<C>& next, const Parts<C>& before, std::shared_ptr<Segment<C>> merged,
                         const LinearHash& hash) {
    std::vector<uint32_t> dead;  // slots of `merged`
    std::vector<size_t> places;
    for (const Part<C>& old : before) {
        const auto now = find_part(next.parts, *old.seg);
        const bool gone = now == next.parts.end();
        if (!gone) {
            places.push_back(size_t(now - next.parts.begin()));
            lower_regions(*merged, *old.seg, *now->seg, hash);
            if (now->dead == old.dead) continue;
        }
        const Bitmap all(old.seg->n_images, true), none(old.seg->n_images);
        (gone ? all : *now->dead).for_each_new(old.dead ? *old.dead : none, [&](uint32_t slot) {
            const int64_t at = merged->id.find(old.seg->id[slot]);
            if (at >= 0) dead.push_back(uint32_t(at));
        });
    }
    std::sort(dead.begin(), dead.end());
    dead.erase(std::unique(dead.begin(), dead.end()), dead.end());  // an image may be in several parts
    std::sort(places.begin(), places.end());
    Part<C> part{merged, nullptr, uint32_t(dead.size())};
    if (dead.size() == merged->n_images) part.seg = std::make_shared<Segment<C>>();
    if (!dead.empty()) part.dead = std::make_shared<Bitmap>(Bitmap(merged->n_images).with(dead, true));
    replace_parts(next.parts, places, std::move(part));
}

// ----------------------------------------------------------------------------------------- indexes

// Whether the background thread should build the substring index: when searches without it have lost enough
// time. That may be less than the time to build it, since nobody waits for the build.
template <class C>
bool wants_index(const Segment<C>& seg) {
    constexpr size_t most_bytes = 128;   // per code
    constexpr uint32_t smallest = 4096;  // a smaller segment is scanned in no time
    if (seg.n_buckets < smallest || seg.wide || seg.substring->index.load() || seg.substring->failed) return false;
    const double build = kBuildCost * SubstringIndex<C>::window_count(seg.bits, seg.n_buckets) * seg.n_buckets;
    return seg.substring->missed > build / 16 && SubstringIndex<C>::bytes_for(seg) <= most_bytes * seg.n_buckets;
}

// Whether the substring index was hardly ever faster than a scan, so that it only takes memory.
template <class C>
bool loses_index(const Segment<C>& seg) {
    return seg.substring->index.load() && seg.substring->experience.cells_lose();
}

// Whether the planes of large groups are missing, as in a segment that was loaded from a file.
template <class C>
bool wants_planes(const Segment<C>& seg) {
    return seg.n_groups && !seg.planes->get() && !seg.planes->failed;
}

template <class C>
bool wants_work(const Segment<C>& seg) {
    return wants_index(seg) || loses_index(seg) || wants_planes(seg);
}

template <class C>
bool any_wants_work(const Parts<C>& parts) {
    return std::any_of(parts.begin(), parts.end(), [](const Part<C>& p) { return wants_work(*p.seg); });
}

// Builds what is wanted. If memory runs out, searches do without.
template <class C>
void build_wanted(const Parts<C>& parts) {
    for (const Part<C>& p : parts) {
        try {
            if (wants_planes(*p.seg)) group_planes(*p.seg);
        } catch (...) {
            p.seg->planes->failed = true;
        }
        try {
            if (wants_index(*p.seg)) substring_index(*p.seg);
        } catch (...) {
            p.seg->substring->failed = true;
        }
    }
}

// Puts copies without a substring index in place of the segments whose index loses. Returns whether there
// were any. The index is freed when the last search that uses it ends.
template <class C>
bool drop_losing(Parts<C>& parts) {
    bool any = false;
    for (Part<C>& p : parts) {
        if (!loses_index(*p.seg)) continue;
        auto copy = std::make_shared<Segment<C>>(*p.seg);
        copy->substring = std::make_shared<LazySubstring<C>>();
        copy->substring->failed = true;
        p.seg = copy;
        any = true;
    }
    return any;
}

}  // namespace mch
