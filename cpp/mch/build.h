// Builds a segment from entries in any order.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <numeric>
#include <vector>

#include "group.h"
#include "view.h"

namespace mch {

// Entries to build from. `region` may be empty (all 0). `guest` marks entries of images whose primary
// entry is in another segment; it may be empty (none).
template <class C>
struct Entries {
    std::vector<C> code;
    std::vector<int64_t> id;
    std::vector<uint8_t> region, guest;
    size_t size() const { return id.size(); }
    uint8_t region_of(size_t i) const { return region.empty() ? 0 : region[i]; }
};

// Appends the live entries of a segment, in the order of its buckets.
template <class C>
void append_live(const View<C>& part, Entries<C>& out) {
    const Segment<C>& seg = *part.seg;
    std::vector<uint64_t> host(bitmap_words(seg.n_images), seg.primary.empty() ? ~uint64_t(0) : 0);
    if (!seg.primary.empty())
        for (uint32_t e = 0; e < seg.n_entries; ++e)
            if (seg.is_primary(e)) set_bit(host.data(), seg.image[e]);
    out.region.resize(out.size());
    out.guest.resize(out.size());
    for (uint32_t b = 0; b < seg.n_buckets; ++b)
        for (uint32_t e = seg.start(b); e < seg.start(b + 1); ++e) {
            if (!part.live(e)) continue;
            uint32_t slot = uint32_t(seg.image[e]);
            out.code.push_back(seg.codes().at(b));
            out.id.push_back(seg.id[slot]);
            out.region.push_back(seg.region_of(e));
            out.guest.push_back(!test_bit(host.data(), slot));
        }
}

// Stable sort of `items` by the lowest `bits` bits of key(item), `digit` bits per pass. A pass in which
// all keys agree is skipped.
template <class T, class Key>
void radix_sort(std::vector<T>& items, int bits, int digit, Key key) {
    std::vector<T> other(items.size());
    std::vector<uint32_t> at;
    for (int shift = 0; shift < bits; shift += digit) {
        at.assign((size_t(1) << digit) + 1, 0);
        const uint64_t mask = (uint64_t(1) << std::min(digit, bits - shift)) - 1;
        for (const T& x : items) ++at[((uint64_t(key(x)) >> shift) & mask) + 1];
        if (std::any_of(at.begin(), at.end(), [&](uint32_t c) { return c == items.size(); })) continue;
        std::partial_sum(at.begin(), at.end(), at.begin());
        for (const T& x : items) other[at[(uint64_t(key(x)) >> shift) & mask]++] = x;
        items.swap(other);
    }
}

// The distinct ids in ascending order. slot[i] becomes the position of ids[i] among them.
inline std::vector<int64_t> distinct_ids(const std::vector<int64_t>& ids, std::vector<uint32_t>& slot) {
    std::vector<int64_t> distinct;
    slot.resize(ids.size());
    auto append = [&](int64_t id, size_t i) {
        if (distinct.empty() || distinct.back() != id) distinct.push_back(id);
        slot[i] = uint32_t(distinct.size() - 1);
    };
    if (std::is_sorted(ids.begin(), ids.end())) {
        for (size_t i = 0; i < ids.size(); ++i) append(ids[i], i);
    } else {
        struct Item {
            uint64_t key;
            uint32_t index;
        };
        std::vector<Item> items(ids.size());
        for (size_t i = 0; i < ids.size(); ++i) items[i] = {uint64_t(ids[i]) ^ (uint64_t(1) << 63), uint32_t(i)};
        radix_sort(items, 64, 11, [](const Item& x) { return x.key; });
        for (const Item& x : items) append(ids[x.index], x.index);
    }
    return distinct;
}

// The probing bitmap has 2^this bits: 6 to 12 per code, so most probes of empty buckets read one bit.
inline int bitmap_bits(size_t n_codes) {
    int bits = 6;
    while (bits < 32 && (uint64_t(1) << bits) < n_codes * 6) ++bits;
    return bits;
}

template <class C>
std::shared_ptr<Segment<C>> build_segment(int bits, const LinearHash& hash, const Entries<C>& in) {
    const size_t n = in.size();
    auto seg = std::make_shared<Segment<C>>();
    seg->bits = bits;

    std::vector<uint32_t> slot;
    {
        auto ids = distinct_ids(in.id, slot);
        seg->n_images = uint32_t(ids.size());
        seg->id = IdList(ids);
    }

    // Order the entries by the hash of their code, equal codes together, and drop repeated entries.
    // Only the bits of a hash that a bitmap for all entries would need are used.
    const int hash_bits = bitmap_bits(n);
    struct Item {
        uint32_t index, hash;
    };
    std::vector<Item> items(n);
    for (size_t i = 0; i < n; ++i) items[i] = {uint32_t(i), uint32_t(uint64_t(hash(in.code[i])) >> (32 - hash_bits))};
    radix_sort(items, hash_bits, (hash_bits + 1) / 2, [](const Item& x) { return x.hash; });

    std::vector<C> code;                        // distinct, in hash order
    std::vector<uint32_t> code_hash, code_end;  // by distinct code; entries end here
    std::vector<uint32_t> entry;                // input indices in that order
    code.reserve(n), code_hash.reserve(n), code_end.reserve(n), entry.reserve(n);
    auto less = [&](const Item& a, const Item& b) {
        if (!(in.code[a.index] == in.code[b.index])) return in.code[a.index].before(in.code[b.index]);
        if (slot[a.index] != slot[b.index]) return slot[a.index] < slot[b.index];
        return in.region_of(a.index) < in.region_of(b.index);
    };
    for (size_t i = 0; i < n;) {
        if (i + 16 < n) __builtin_prefetch(&in.code[items[i + 16].index]);
        size_t end = i + 1;
        while (end < n && items[end].hash == items[i].hash) ++end;
        if (end - i > 1 && !std::is_sorted(&items[i], &items[end - 1] + 1, less))
            std::sort(&items[i], &items[end - 1] + 1, less);
        for (size_t run = i; i < end; ++i) {
            uint32_t index = items[i].index;
            if (i == run || !(in.code[index] == code.back())) {
                code.push_back(in.code[index]);
                code_hash.push_back(items[i].hash);
                code_end.push_back(0);
            } else if (slot[entry.back()] == slot[index]) {
                continue;
            }
            entry.push_back(index);
            code_end.back() = uint32_t(entry.size());
        }
    }
    items = {};
    const uint32_t n_buckets = seg->n_buckets = uint32_t(code.size());
    const uint32_t n_entries = seg->n_entries = uint32_t(entry.size());

    // Number the buckets by group, with those of loose codes last.
    auto groups = group_codes(code, bits);
    const uint32_t n_groups = seg->n_groups = uint32_t(groups.size.size());
    seg->group_shell = Array<uint32_t>(n_groups + 1);
    seg->group_radius = Array<uint8_t>(n_groups);
    for (uint32_t g = 0; g < n_groups; ++g) {
        seg->group_radius.mutable_data()[g] = groups.radius[g];
        seg->group_shell.mutable_data()[g + 1] = seg->group_shell[g] + groups.radius[g] + 1;
    }
    for (int j = 0; j < C::words; ++j) {
        seg->pivot[j] = Array<typename C::Word>(n_groups);
        for (uint32_t g = 0; g < n_groups; ++g) seg->pivot[j].mutable_data()[g] = groups.pivot[g].w[j];
    }
    const uint32_t n_shells = seg->group_shell[n_groups];
    std::vector<uint32_t> bucket(n_buckets);  // of the i-th code in hash order; at first its shell
    std::vector<uint32_t> next(n_shells + 2, 0);
    for (uint32_t i = 0; i < n_buckets; ++i) {
        uint32_t g = groups.group[i];
        bucket[i] = g == groups.loose
                        ? n_shells
                        : seg->group_shell[g] + groups.radius[g] - uint32_t((groups.pivot[g] ^ code[i]).popcount());
        ++next[bucket[i] + 1];
    }
    groups = {};
    std::partial_sum(next.begin(), next.end(), next.begin());
    seg->shell_start = Array<uint32_t>(n_shells + 1);
    std::copy_n(next.begin(), n_shells + 1, seg->shell_start.mutable_data());
    for (uint32_t& b : bucket) b = next[b]++;

    for (int j = 0; j < C::words; ++j) {
        seg->code[j] = Array<typename C::Word>(n_buckets);
        auto* plane = seg->code[j].mutable_data();
        for (uint32_t i = 0; i < n_buckets; ++i) plane[bucket[i]] = code[i].w[j];
    }

    // The probing bitmap.
    seg->hash_bits = uint32_t(bitmap_bits(n_buckets));
    std::vector<uint64_t> position(n_buckets);
    uint64_t free = 0;
    for (uint32_t i = 0; i < n_buckets; ++i) {
        position[i] = std::max(free, uint64_t(code_hash[i]) >> (uint32_t(hash_bits) - seg->hash_bits));
        free = position[i] + 1;
    }
    size_t n_words = ((std::max(free, uint64_t(1) << seg->hash_bits) >> 6) + 8) & ~size_t(7);
    seg->occupied = Array<uint64_t>(n_words);
    seg->occupied_rank = Array<uint32_t>(n_words / 8);
    seg->order = PackedInts(n_buckets, n_buckets);
    for (uint32_t i = 0; i < n_buckets; ++i) {
        set_bit(seg->occupied.mutable_data(), position[i]);
        seg->order.set(i, bucket[i]);
    }
    uint32_t before = 0;
    for (size_t w = 0; w < n_words; ++w) {
        if (w % 8 == 0) seg->occupied_rank.mutable_data()[w / 8] = before;
        before += uint32_t(std::popcount(seg->occupied[w]));
    }

    // Entries in bucket order.
    if (n_buckets != n_entries) {
        seg->bucket_start = Array<uint32_t>(n_buckets + 1);
        auto* start = seg->bucket_start.mutable_data();
        for (uint32_t i = 0; i < n_buckets; ++i) start[bucket[i] + 1] = code_end[i] - (i ? code_end[i - 1] : 0);
        std::partial_sum(start, start + n_buckets + 1, start);
    }
    const bool several = n_entries != seg->n_images;
    const bool regions = std::any_of(in.region.begin(), in.region.end(), [](uint8_t r) { return r; });
    const bool guests = std::any_of(in.guest.begin(), in.guest.end(), [](uint8_t g) { return g; });
    seg->image = PackedInts(n_entries, seg->n_images);
    if (regions) seg->region = Array<uint8_t>(n_entries);
    std::vector<uint32_t> first;  // by image: its entry with the smallest region, the primary one
    std::vector<uint32_t> count;
    if (several || guests) first.assign(seg->n_images, UINT32_MAX), count.assign(seg->n_images, 0);
    for (uint32_t i = 0, e = 0; i < n_buckets; ++i) {
        for (uint32_t at = seg->start(bucket[i]); e < code_end[i]; ++e, ++at) {
            uint32_t s = slot[entry[e]];
            seg->image.set(at, s);
            if (regions) seg->region.mutable_data()[at] = in.region_of(entry[e]);
            if (first.empty()) continue;
            ++count[s];
            bool guest = guests && in.guest[entry[e]];
            if (!guest && (first[s] == UINT32_MAX || seg->region_of(at) < seg->region_of(first[s]))) first[s] = at;
        }
    }
    if (!first.empty()) {
        seg->primary = Array<uint64_t>(bitmap_words(n_entries));
        for (uint32_t at : first)
            if (at != UINT32_MAX) set_bit(seg->primary.mutable_data(), at);
    }
    if (several) {
        seg->codes_of_image = PackedInts(seg->n_images, *std::max_element(count.begin(), count.end()));
        for (uint32_t s = 0; s < seg->n_images; ++s) seg->codes_of_image.set(s, count[s]);
    }
    return seg;
}

}  // namespace mch
