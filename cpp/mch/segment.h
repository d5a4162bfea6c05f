// A segment: an immutable set of (image, code, region) entries, laid out for searching.
//
//   code ──► bucket (one per distinct code) ──► entries ──► image ──► id
//
// Buckets are numbered so that similar codes are neighbours. First come the groups: codes within a
// radius of a pivot, ordered from the outermost to the innermost. Then come the loose codes, which are
// in no group. By the triangle inequality, a scan needs only the outer shells of a group that is far
// away, and often not even those.
//
// A very large segment of 64-bit codes has a WideIndex in place of groups and hash table.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "array.h"
#include "code.h"
#include "experience.h"
#include "probe.h"
#include "scan.h"
#include "wide.h"

namespace mch {

// Ascending distinct ids. Consecutive ones are a run: only the first is stored. Others are stored in blocks of
// 64: the first id of a block in full, the others as differences from it, which take a byte or two each if ids
// are dense.
struct IdList {
    static constexpr size_t block = 64;
    Array<int64_t> first;
    PackedInts offset;
    size_t run = 0;  // not 0: so many consecutive ids from first[0] on

    IdList() = default;
    explicit IdList(std::span<const int64_t> ids) {
        if (ids.empty()) return;
        if (uint64_t(ids.back()) - uint64_t(ids.front()) == ids.size() - 1) {
            run = ids.size();
            first = Array<int64_t>(1);
            *first.mutable_data() = ids.front();
            return;
        }
        first = Array<int64_t>((ids.size() + block - 1) / block);
        uint64_t largest = 0;
        for (size_t i = 0; i < ids.size(); ++i) largest = std::max(largest, delta(ids, i));
        offset = PackedInts(ids.size(), largest);
        for (size_t i = 0; i < ids.size(); ++i) {
            if (i % block == 0) first.mutable_data()[i / block] = ids[i];
            offset.set(i, delta(ids, i));
        }
    }

    size_t size() const { return run ? run : offset.size(); }
    int64_t operator[](size_t i) const {
        if (run) return int64_t(uint64_t(first[0]) + i);
        return int64_t(uint64_t(first[i / block]) + offset[i]);
    }
    void prefetch(size_t i) const {
        if (run) return;
        __builtin_prefetch(&first[i / block]);
        offset.prefetch(i);
    }

    // The position of `id`, or -1.
    int64_t find(int64_t id) const {
        if (run) {
            const uint64_t at = uint64_t(id) - uint64_t(first[0]);
            return at < run ? int64_t(at) : -1;
        }
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
    static uint64_t delta(std::span<const int64_t> ids, size_t i) {
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
    std::atomic<bool> failed{false};  // memory ran out, or it was too slow: nobody tries again
    std::atomic<double> missed{0};    // nanoseconds that the index would have saved so far
    Experience experience;

    void add_missed(double nanoseconds) {  // libc++ has no fetch_add for floating-point numbers
        double before = missed.load(std::memory_order_relaxed);
        while (!missed.compare_exchange_weak(before, before + nanoseconds, std::memory_order_relaxed)) continue;
    }

    LazySubstring() = default;
    ~LazySubstring() { delete index.load(); }
};

// Something that is made from a segment's codes on demand. Copies of a segment share it.
template <class T>
struct Lazy {
    std::atomic<const T*> made{nullptr};
    std::atomic<bool> failed{false};  // memory ran out: nobody tries again

    Lazy() = default;
    ~Lazy() { delete made.load(); }
    const T* get() const { return made.load(std::memory_order_acquire); }
    // No lock is held while it is made. If two threads make it, one result is thrown away.
    template <class Make>
    const T& get(Make&& make) {
        const T* there = get();
        if (there) return *there;
        std::unique_ptr<const T> fresh = make();
        if (made.compare_exchange_strong(there, fresh.get(), std::memory_order_acq_rel)) there = fresh.release();
        return *there;
    }
};

// The buckets that hold an image's codes.
struct BucketsOfImages {
    PackedInts start;   // by image, plus the end; empty: image i has only bucket[i]
    PackedInts bucket;  // ascending for each image

    template <class F>
    void each(uint32_t image, F&& f) const {
        if (!start.size()) return f(uint32_t(bucket[image]));
        for (uint64_t i = start[image]; i < start[image + 1]; ++i) f(uint32_t(bucket[i]));
    }
    size_t bytes() const { return start.bytes() + bucket.bytes(); }
};

template <class C>
struct Plan;

// The plans of the first few kinds of search in a segment. They depend on its codes alone, so copies of
// the segment share them. A plan stays until the segment is gone, so reading needs no lock.
template <class C>
struct LazyPlans {
    std::atomic<const Plan<C>*> plan[8]{};

    LazyPlans() = default;
    ~LazyPlans() {
        for (auto& p : plan) delete p.load();
    }
};

template <class C>
class GroupPlanes;

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
    std::shared_ptr<Lazy<BucketsOfImages>> of_images = std::make_shared<Lazy<BucketsOfImages>>();
    std::shared_ptr<LazyPlans<C>> plans = std::make_shared<LazyPlans<C>>();
    std::shared_ptr<Lazy<GroupPlanes<C>>> planes = std::make_shared<Lazy<GroupPlanes<C>>>();
    std::shared_ptr<WideIndex> wide;  // null: an ordinary segment

    Planes<C> codes() const { return word_planes(code); }
    C code_at(uint32_t bucket) const {
        if (!wide) return codes().at(bucket);
        return {{Word(wide->code_at(bucket))}};
    }
    void prefetch_code(uint32_t bucket) const {
        if (!wide) codes().prefetch(bucket);
    }
    Planes<C> pivots() const { return word_planes(pivot); }
    const uint32_t& group_shell_start(uint32_t g) const { return shell_start[group_shell[g]]; }
    uint32_t group_begin(uint32_t g) const { return group_shell_start(g); }
    uint32_t group_end(uint32_t g) const { return group_shell_start(g + 1); }
    uint32_t loose_begin() const { return shell_start[shell_start.size() - 1]; }
    uint32_t start(uint32_t bucket) const { return bucket_start.empty() ? bucket : bucket_start[bucket]; }
    uint8_t region_of(uint32_t entry) const { return region.empty() ? 0 : region[entry]; }
    bool is_primary(uint32_t entry) const { return primary.empty() || test_bit(primary.data(), entry); }
    uint64_t codes_of(uint32_t slot) const { return codes_of_image.size() ? codes_of_image[slot] : 1; }

    // The bucket of a code, or `none`.
    uint32_t find(const C& c, uint32_t hash) const {
        if (wide) return wide->find(uint64_t(c.w[0]));
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

    // The single flips (of codes with this hash) that may be in a bucket: writes their positions, and returns
    // how many. The others are in none.
    size_t occupied_flips(const LinearHash& h, uint32_t hash, uint32_t* out) const {
        return kernels<C>().occupied(occupied.data(), hash, h.flips(), size_t(bits), int(32 - hash_bits), out);
    }

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
        if (s.wide) WideIndex::for_each_array(*s.wide, f);
    }

  private:
    static Planes<C> word_planes(const Array<Word> (&a)[C::words]) {
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
