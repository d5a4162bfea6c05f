// A segment: an immutable set of (image, code, region) entries, laid out for searching.
//
//   code ──► bucket (one per distinct code) ──► entries ──► image ──► id
//
// Buckets are numbered so that similar codes are neighbours. First come the groups: codes within a
// radius of a pivot, ordered from the outermost to the innermost. Then come the loose codes, which are
// in no group. By the triangle inequality, a scan needs only the outer shells of a group that is far
// away, and often not even those.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "array.h"
#include "code.h"
#include "probe.h"
#include "scan.h"

namespace mch {

// Ascending distinct ids in blocks of 64: the first id of a block in full, the others as differences
// from it. Dense ids take a byte or two each.
struct IdList {
    static constexpr size_t block = 64;
    Array<int64_t> first;
    PackedInts offset;

    IdList() = default;
    explicit IdList(const std::vector<int64_t>& ids) : first((ids.size() + block - 1) / block) {
        uint64_t largest = 0;
        for (size_t i = 0; i < ids.size(); ++i) largest = std::max(largest, delta(ids, i));
        offset = PackedInts(ids.size(), largest);
        for (size_t i = 0; i < ids.size(); ++i) {
            if (i % block == 0) first.mutable_data()[i / block] = ids[i];
            offset.set(i, delta(ids, i));
        }
    }

    size_t size() const { return offset.size(); }
    int64_t operator[](size_t i) const { return int64_t(uint64_t(first[i / block]) + offset[i]); }
    void prefetch(size_t i) const {
        __builtin_prefetch(&first[i / block]);
        offset.prefetch(i);
    }

    // The position of `id`, or -1.
    int64_t find(int64_t id) const {
        auto* end = first.data() + first.size();
        auto* it = std::upper_bound(first.data(), end, id);
        if (it == first.data()) return -1;
        size_t low = size_t(it - first.data() - 1) * block, high = std::min(low + block, size());
        while (high - low > 1) {
            size_t middle = (low + high) / 2;
            ((*this)[middle] <= id ? low : high) = middle;
        }
        return (*this)[low] == id ? int64_t(low) : -1;
    }

  private:
    static uint64_t delta(const std::vector<int64_t>& ids, size_t i) {
        return uint64_t(ids[i]) - uint64_t(ids[i - i % block]);
    }
};

template <class C>
class SubstringIndex;

// A substring index that is built on demand. Copies of a segment share it, since it depends on the
// codes alone.
template <class C>
struct LazySubstring {
    std::atomic<const SubstringIndex<C>*> index{nullptr};
    std::atomic<bool> failed{false};  // memory ran out: the background thread does not try again
    std::atomic<double> missed{0};    // nanoseconds that the index would have saved so far

    LazySubstring() = default;
    ~LazySubstring() { delete index.load(); }
};

template <class C>
struct Segment {
    using Word = typename C::Word;
    static constexpr uint32_t none = UINT32_MAX;

    int bits = 0;
    uint32_t n_buckets = 0, n_entries = 0, n_images = 0, n_groups = 0;

    Array<Word> code[C::words];  // by bucket

    // Group g has shells [group_shell[g], group_shell[g + 1]): its codes at distance group_radius[g]
    // from the pivot, then those at one less, and so on down to 0. Shell s holds buckets
    // [shell_start[s], shell_start[s + 1]). Buckets after the last shell are loose.
    Array<uint32_t> group_shell, shell_start;
    Array<Word> pivot[C::words];
    Array<uint8_t> group_radius;

    // Linear probing in a bitmap: a code's position is given by the top bits of its hash, or is the next
    // free one after that. order[number of set bits before the position] is its bucket.
    uint32_t hash_bits = 0;
    Array<uint64_t> occupied;
    Array<uint32_t> occupied_rank;  // set bits before every eighth word
    PackedInts order;

    Array<uint32_t> bucket_start;  // by bucket, plus the end; empty: bucket i is entry i
    PackedInts image;              // by entry: the image's slot; within a bucket ascending, by slot and so by id
    Array<uint8_t> region;         // by entry; empty: all 0
    // Exactly one entry per image in a table is primary, so counting primary entries never counts an
    // image twice. By entry; empty: all are primary.
    Array<uint64_t> primary;
    PackedInts codes_of_image;  // by image; empty: one each
    IdList id;                  // by image

    std::shared_ptr<LazySubstring<C>> substring = std::make_shared<LazySubstring<C>>();

    Planes<C> codes() const { return planes(code); }
    Planes<C> pivots() const { return planes(pivot); }
    uint32_t loose_begin() const { return shell_start[shell_start.size() - 1]; }
    uint32_t start(uint32_t bucket) const { return bucket_start.empty() ? bucket : bucket_start[bucket]; }
    uint8_t region_of(uint32_t entry) const { return region.empty() ? 0 : region[entry]; }
    bool is_primary(uint32_t entry) const { return primary.empty() || test_bit(primary.data(), entry); }
    uint64_t codes_of(uint32_t slot) const { return codes_of_image.size() ? codes_of_image[slot] : 1; }

    // The bucket of a code, or `none`.
    uint32_t find(const C& c, uint32_t hash) const {
        for (size_t at = position(hash); test_bit(occupied.data(), at); ++at) {
            uint32_t bucket = uint32_t(order[rank(at)]);
            if (codes().at(bucket) == c) return bucket;
        }
        return none;
    }

    // find() for several codes: bucket[i] becomes the bucket of c[i], or `none`. A look-up is a chain of
    // random reads; doing many side by side lets the reads overlap. At most `most_at_once` codes.
    void find_many(const C* c, const uint32_t* hash, size_t n, uint32_t* bucket) const {
        const Planes<C> all = codes();
        for (size_t i = 0; i < n; ++i) __builtin_prefetch(&occupied[position(hash[i]) >> 6]);
        uint32_t there[most_at_once];
        size_t m = 0;
        for (size_t i = 0; i < n; ++i) {
            bucket[i] = none;
            there[m] = uint32_t(i);
            m += test_bit(occupied.data(), position(hash[i]));
        }
        for (size_t j = 0; j < m; ++j) {
            uint32_t& b = bucket[there[j]];
            b = rank(position(hash[there[j]]));
            order.prefetch(b);
        }
        for (size_t j = 0; j < m; ++j) {
            uint32_t& b = bucket[there[j]];
            b = uint32_t(order[b]);
            all.prefetch(b);
            prefetch_start(b);
        }
        for (size_t j = 0; j < m; ++j) {
            const size_t i = there[j];
            if (all.at(bucket[i]) == c[i]) continue;
            bucket[i] = test_bit(occupied.data(), position(hash[i]) + 1) ? find(c[i], hash[i]) : none;
        }
    }
    static constexpr size_t most_at_once = 64;

    void prefetch_start(uint32_t bucket) const {
        if (!bucket_start.empty()) __builtin_prefetch(&bucket_start[bucket]);
    }

    // The entry of an image in a bucket, or `none` if the image does not have that code.
    uint32_t find_entry(uint32_t bucket, uint32_t slot) const {
        uint32_t low = start(bucket), high = start(bucket + 1);
        while (low < high) {
            uint32_t middle = low + (high - low) / 2;
            if (image[middle] < slot)
                low = middle + 1;
            else
                high = middle;
        }
        return low < start(bucket + 1) && image[low] == slot ? low : none;
    }

    // Calls f(kind, array) for every array. Saving, loading and counting bytes all use this list.
    template <class Self, class F>
    static void for_each_array(Self&& s, F&& f) {
        for (auto& plane : s.code) f("codes", plane);
        f("groups", s.group_shell);
        f("groups", s.shell_start);
        for (auto& plane : s.pivot) f("groups", plane);
        f("groups", s.group_radius);
        f("probe", s.occupied);
        f("probe", s.occupied_rank);
        f("probe", s.order);
        f("buckets", s.bucket_start);
        f("entries", s.image);
        f("entries", s.region);
        f("entries", s.primary);
        f("ids", s.codes_of_image);
        f("ids", s.id.first);
        f("ids", s.id.offset);
    }

  private:
    static Planes<C> planes(const Array<Word> (&a)[C::words]) {
        Planes<C> p;
        for (int j = 0; j < C::words; ++j) p.p[j] = a[j].data();
        return p;
    }
    size_t position(uint32_t hash) const { return size_t(uint64_t(hash) >> (32 - hash_bits)); }
    uint32_t rank(size_t at) const {
        size_t word = at >> 6;
        uint32_t n = occupied_rank[word >> 3];
        for (size_t w = word & ~size_t(7); w < word; ++w) n += uint32_t(std::popcount(occupied[w]));
        return n + uint32_t(std::popcount(occupied[word] & ((uint64_t(1) << (at & 63)) - 1)));
    }
};

}  // namespace mch
