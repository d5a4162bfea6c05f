// Builds a segment from entries in any order. The segment does not depend on the number of threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "group.h"
#include "capacity.h"
#include "residual.h"
#include "view.h"
#include "workers.h"

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
    void reserve(size_t n) { code.reserve(n), id.reserve(n), region.reserve(n), guest.reserve(n); }
};

// The same, in memory of someone else: in Entries, or in arrays with codes as a caller packs them.
template <class C>
struct Rows {
    size_t n;
    const int64_t* id;
    const uint8_t* region;  // null: all 0
    const uint8_t* guest;   // null: none
    const void* codes;
    int packed_bytes;  // of each code; 0: they are of type C

    explicit Rows(const Entries<C>& in)
        : n(in.size()),
          id(in.id.data()),
          region(in.region.empty() ? nullptr : in.region.data()),
          guest(in.guest.empty() ? nullptr : in.guest.data()),
          codes(in.code.data()),
          packed_bytes(0) {}
    Rows(const int64_t* id, const uint8_t* codes, const uint8_t* region, size_t n, int packed_bytes)
        : n(n), id(id), region(region), guest(nullptr), codes(codes), packed_bytes(packed_bytes) {}

    C code(size_t i) const {
        if (!packed_bytes) return static_cast<const C*>(codes)[i];
        return C::load(static_cast<const uint8_t*>(codes) + i * size_t(packed_bytes), packed_bytes);
    }
    uint8_t region_of(size_t i) const { return region ? region[i] : 0; }
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
    auto append = [&](uint32_t b, const C& code) {
        for (uint32_t e = seg.start(b); e < seg.start(b + 1); ++e) {
            if (!part.live(e)) continue;
            uint32_t slot = uint32_t(seg.image[e]);
            out.code.push_back(code);
            out.id.push_back(seg.id[slot]);
            out.region.push_back(seg.region_of(e));
            out.guest.push_back(!test_bit(host.data(), slot));
        }
    };
    if (seg.wide)
        seg.wide->for_each_code([&](uint32_t b, uint64_t code) { append(b, {{typename C::Word(code)}}); });
    else
        for (uint32_t b = 0; b < seg.n_buckets; ++b) append(b, seg.codes().at(b));
}

// Stable sort of `items` by the lowest `bits` bits of key(item), `digit` bits per pass. A pass in which
// all keys agree is skipped. Uses `other` as memory.
template <class T, class Key>
void radix_sort(std::vector<T>& items, int bits, int digit, Key key, std::vector<T>& other) {
    if (items.size() < 2) return;
    std::vector<uint32_t> at;
    for (int shift = 0; shift < bits; shift += digit) {
        at.assign((size_t(1) << digit) + 1, 0);
        const uint64_t mask = (uint64_t(1) << std::min(digit, bits - shift)) - 1;
        for (const T& x : items) ++at[((uint64_t(key(x)) >> shift) & mask) + 1];
        if (std::any_of(at.begin(), at.end(), [&](uint32_t c) { return c == items.size(); })) continue;
        std::partial_sum(at.begin(), at.end(), at.begin());
        other.resize(items.size());
        for (const T& x : items) other[at[(uint64_t(key(x)) >> shift) & mask]++] = x;
        items.swap(other);
    }
}

template <class T, class Key>
void radix_sort(std::vector<T>& items, int bits, int digit, Key key) {
    std::vector<T> other;
    radix_sort(items, bits, digit, key, other);
}

// The distinct ids in ascending order. slot[i] becomes the position of ids[i] among them.
inline std::vector<int64_t> distinct_ids(std::span<const int64_t> ids, std::vector<uint32_t>& slot) {
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

// Does the work of build_segment step by step. Each step divides its work into shares, which threads take, and
// frees what no later step needs.
template <class C>
class SegmentBuilder {
  public:
    SegmentBuilder(int bits, const LinearHash& hash, const Rows<C>& in)
        : bits_(bits),
          hash_(hash),
          in_(in),
          n_(in.n),
          threads_(n_ < worth_threads ? 1 : std::min(usable_cores(), most_threads)),
          n_blocks_(threads_ == 1 ? 1 : size_t(threads_) * 4),
          hash_bits_(bitmap_bits(n_)) {
        while (part_bits_ < most_part_bits && n_ >> part_bits_ > part_size) ++part_bits_;
    }

    std::shared_ptr<Segment<C>> build() {
        check_entries(n_);
        seg_->bits = bits_;
        number_images();
        partition();
        sort_parts();
        close_gaps();
        group();
        number_buckets();
        place_entries();
        if (seg_->n_groups) group_planes(*seg_);
        return seg_;
    }

  private:
    static constexpr size_t worth_threads = size_t(1) << 16;  // entries; with fewer, waking threads takes longer
    static constexpr int most_threads = 32;                   // each needs counters of its own
    static constexpr size_t part_size = 4096;                 // entries that are sorted in the cache
    static constexpr int most_part_bits = 11;
    static constexpr uint32_t starts = uint32_t(1) << 31;  // marks the first entry of a code

    // Entries whose hashes have the same top bits, sorted by hash. Numbers of its first code and entry.
    struct Part {
        uint32_t code, entry;
    };

    template <class F>
    void share(size_t n, F&& f) const {
        for_each_share(n < 2 ? 1 : threads_, n, f);
    }
    size_t block_begin(size_t block, size_t n) const { return n * block / n_blocks_; }
    uint32_t slot(uint32_t index) const { return slot_.empty() ? index : slot_[index]; }

    // Distinct ascending ids are their own numbers: entry i is of image i.
    void number_images() {
        ids_ = {in_.id, n_};
        const bool distinct = std::adjacent_find(ids_.begin(), ids_.end(), std::greater_equal()) == ids_.end();
        if (!distinct) ids_ = distinct_ = distinct_ids(ids_, slot_);
        seg_->n_images = uint32_t(ids_.size());
    }

    // Scatters codes, entries and hashes to parts by the top bits of hashes. Entries of a part stay in order. Only
    // the bits of a hash that a bitmap for all entries would need are used.
    void partition() {
        const size_t n_parts = size_t(1) << part_bits_;
        const int shift = hash_bits_ - part_bits_;
        label_ = Array<uint32_t>(n_);
        uint32_t* hash = label_.mutable_data();
        std::vector<uint32_t> at(n_blocks_ * n_parts, 0);  // by block and part: where its next entry goes
        share(n_blocks_, [&](size_t b) {
            uint32_t* count = &at[b * n_parts];
            for (size_t i = block_begin(b, n_), end = block_begin(b + 1, n_); i < end; ++i) {
                hash[i] = uint32_t(uint64_t(hash_(in_.code(i))) >> (32 - hash_bits_));
                ++count[hash[i] >> shift];
            }
        });
        part_.resize(n_parts + 1);
        uint32_t sum = 0;
        for (size_t p = 0; p < n_parts; ++p) {
            part_[p] = {sum, sum};
            for (size_t b = 0; b < n_blocks_; ++b) sum += std::exchange(at[b * n_parts + p], sum);
        }
        part_[n_parts] = {sum, sum};
        code_ = Array<C>(n_);
        code_hash_ = Array<uint32_t>(n_);
        entry_ = Array<uint32_t>(n_);
        C* code = code_.mutable_data();
        uint32_t *code_hash = code_hash_.mutable_data(), *entry = entry_.mutable_data();
        share(n_blocks_, [&](size_t b) {
            uint32_t* next = &at[b * n_parts];
            for (size_t i = block_begin(b, n_), end = block_begin(b + 1, n_); i < end; ++i) {
                const uint32_t to = next[hash[i] >> shift]++;
                code[to] = in_.code(i);
                code_hash[to] = hash[i];
                entry[to] = uint32_t(i);
            }
        });
    }

    struct Scratch {
        std::vector<uint64_t> item, other;  // hash, and place in the part
        std::vector<C> code;
        std::vector<uint32_t> hash, entry;
    };

    // Orders the entries of each part by the hash of their code, equal codes together, and drops repeated
    // entries. Then code_ and code_hash_ are by distinct code.
    void sort_parts() {
        const size_t n_parts = part_.size() - 1;
        size_.resize(n_parts);
        std::atomic<size_t> next{0};
        parallel(int(std::min(size_t(threads_), n_parts)), [&] {
            Scratch s;
            for (size_t p; (p = next.fetch_add(1)) < n_parts;) sort_part(p, s);
        });
    }

    void sort_part(size_t p, Scratch& s) {
        const uint32_t begin = part_[p].entry, n = part_[p + 1].entry - begin;
        C* code = code_.mutable_data() + begin;
        uint32_t *code_hash = code_hash_.mutable_data() + begin, *entry = entry_.mutable_data() + begin;
        s.item.resize(n);
        for (uint32_t i = 0; i < n; ++i) s.item[i] = uint64_t(code_hash[i]) << 32 | i;
        const int sort_bits = hash_bits_ - part_bits_;
        radix_sort(s.item, sort_bits, (sort_bits + 1) / 2, [](uint64_t x) { return x >> 32; }, s.other);

        auto less = [&](uint64_t x, uint64_t y) {
            const auto a = uint32_t(x), b = uint32_t(y);
            if (!(code[a] == code[b])) return code[a].before(code[b]);
            if (slot(entry[a]) != slot(entry[b])) return slot(entry[a]) < slot(entry[b]);
            return in_.region_of(entry[a]) < in_.region_of(entry[b]);
        };
        s.code.resize(n), s.hash.resize(n), s.entry.resize(n);
        Part size{0, 0};
        uint32_t last = 0;  // row of the last entry
        for (auto run = s.item.begin(); run != s.item.end();) {
            auto end = run + 1;
            while (end != s.item.end() && *end >> 32 == *run >> 32) ++end;
            if (end - run > 1 && !std::is_sorted(run, end, less)) std::sort(run, end, less);
            for (auto x = run; x != end; ++x) {
                const auto i = uint32_t(*x);
                const bool same = x != run && code[i] == s.code[size.code - 1];
                if (same && slot(last) == slot(entry[i])) continue;
                last = entry[i];
                if (!same) {
                    s.code[size.code] = code[i];
                    s.hash[size.code++] = code_hash[i];
                }
                s.entry[size.entry++] = last | (same ? 0 : starts);
            }
            run = end;
        }
        std::copy_n(s.code.begin(), size.code, code);
        std::copy_n(s.hash.begin(), size.code, code_hash);
        std::copy_n(s.entry.begin(), size.entry, entry);
        size_[p] = size;
    }

    // Moves the parts together where entries were dropped or share a code.
    void close_gaps() {
        Part to{0, 0};
        for (size_t p = 0; p < size_.size(); ++p) {
            const uint32_t from = part_[p].entry;
            if (to.code != from) {
                C* code = code_.mutable_data();
                uint32_t* hash = code_hash_.mutable_data();
                std::copy_n(code + from, size_[p].code, code + to.code);
                std::copy_n(hash + from, size_[p].code, hash + to.code);
            }
            if (to.entry != from) {
                uint32_t* entry = entry_.mutable_data();
                std::copy_n(entry + from, size_[p].entry, entry + to.entry);
            }
            part_[p] = to;
            to.code += size_[p].code, to.entry += size_[p].entry;
        }
        part_.back() = to;
        seg_->n_buckets = to.code;
        seg_->n_entries = to.entry;
    }

    // Groups the codes; meanwhile makes the bitmap and the list of ids.
    void group() {
        Grouping<C> groups(code_.data(), seg_->n_buckets, bits_, label_.mutable_data());
        share(3, [&](size_t step) {
            if (step == 0) groups.draft();
            if (step == 1) make_bitmap();
            if (step == 2) seg_->id = IdList(ids_), ids_ = {}, distinct_ = {};
        });
        code_hash_ = {};
        groups.assign(threads_);
        const auto n_groups = seg_->n_groups = uint32_t(groups.pivot.size());
        seg_->group_shell = Array<uint32_t>(n_groups + 1);
        seg_->group_radius = Array<uint8_t>(n_groups);
        for (uint32_t g = 0; g < n_groups; ++g) {
            seg_->group_radius.mutable_data()[g] = groups.radius[g];
            seg_->group_shell.mutable_data()[g + 1] = seg_->group_shell[g] + groups.radius[g] + 1;
        }
        for (int j = 0; j < C::words; ++j) {
            seg_->pivot[j] = Array<typename C::Word>(n_groups);
            for (uint32_t g = 0; g < n_groups; ++g) seg_->pivot[j].mutable_data()[g] = groups.pivot[g].w[j];
        }
    }

    // The probing bitmap.
    void make_bitmap() {
        const uint32_t n = seg_->n_buckets;
        seg_->hash_bits = uint32_t(bitmap_bits(n));
        const int shift = hash_bits_ - int(seg_->hash_bits);
        const uint32_t* hash = code_hash_.data();
        uint64_t free = 0;
        for (uint32_t i = 0; i < n; ++i) free = std::max(free, uint64_t(hash[i]) >> shift) + 1;
        const size_t n_words = ((std::max(free, uint64_t(1) << seg_->hash_bits) >> 6) + 8) & ~size_t(7);
        seg_->occupied = Array<uint64_t>(n_words);
        uint64_t* occupied = seg_->occupied.mutable_data();
        free = 0;
        for (uint32_t i = 0; i < n; ++i) {
            const uint64_t position = std::max(free, uint64_t(hash[i]) >> shift);
            set_bit(occupied, position);
            free = position + 1;
        }
        seg_->occupied_rank = Array<uint32_t>(n_words / 8);
        uint32_t before = 0;
        for (size_t w = 0; w < n_words; ++w) {
            if (w % 8 == 0) seg_->occupied_rank.mutable_data()[w / 8] = before;
            before += uint32_t(std::popcount(occupied[w]));
        }
    }

    // Numbers the buckets by group and shell, with those of loose codes last, and otherwise in the order of hashes.
    void number_buckets() {
        const uint32_t n = seg_->n_buckets, n_shells = seg_->group_shell[seg_->n_groups];
        uint32_t* bucket = label_.mutable_data();  // by code; at first its group, then its shell
        const uint32_t* group_shell = seg_->group_shell.data();
        const auto pivots = seg_->pivots();
        // By block and shell: the next bucket. Counters must not take more memory than codes.
        const size_t n_blocks = std::clamp<size_t>(n / (n_shells + 1), 1, n_blocks_);
        auto begin = [&](size_t block) { return uint32_t(uint64_t(n) * block / n_blocks); };
        std::vector<uint32_t> next(n_blocks * (n_shells + 1), 0);
        share(n_blocks, [&](size_t b) {
            uint32_t* count = &next[b * (n_shells + 1)];
            for (uint32_t i = begin(b); i < begin(b + 1); ++i) {
                const uint32_t g = bucket[i];
                bucket[i] = n_shells;
                if (g != Grouping<C>::loose)
                    bucket[i] = group_shell[g + 1] - 1 - uint32_t((pivots.at(g) ^ code_[i]).popcount());
                ++count[bucket[i]];
            }
        });
        seg_->shell_start = Array<uint32_t>(n_shells + 1);
        uint32_t sum = 0;
        for (uint32_t s = 0; s <= n_shells; ++s) {
            seg_->shell_start.mutable_data()[s] = sum;
            for (size_t b = 0; b < n_blocks; ++b) sum += std::exchange(next[b * (n_shells + 1) + s], sum);
        }
        typename C::Word* plane[C::words];
        for (int j = 0; j < C::words; ++j) {
            seg_->code[j] = Array<typename C::Word>(n);
            plane[j] = seg_->code[j].mutable_data();
        }
        seg_->order = PackedInts(n, n);
        share(n_blocks, [&](size_t b) {
            uint32_t* at = &next[b * (n_shells + 1)];
            for (uint32_t i = begin(b); i < begin(b + 1); ++i) {
                const uint32_t to = bucket[i] = at[bucket[i]]++;
                for (int j = 0; j < C::words; ++j) plane[j][to] = code_[i].w[j];
                seg_->order.set(i, to);
            }
        });
        code_ = {};
    }

    // Calls f(bucket, begin, end) for each code of a part: its bucket and its entries.
    template <class F>
    void each_code(size_t part, F&& f) const {
        const uint32_t* bucket = label_.data() + part_[part].code;
        for (uint32_t e = part_[part].entry, end = part_[part + 1].entry; e < end;) {
            const uint32_t begin = e++;
            while (e < end && !(entry_[e] & starts)) ++e;
            f(*bucket++, begin, e);
        }
    }

    // Entries in the order of buckets.
    void place_entries() {
        const uint32_t n_buckets = seg_->n_buckets, n_entries = seg_->n_entries, n_images = seg_->n_images;
        const size_t n_parts = size_.size();
        if (n_buckets != n_entries) {
            seg_->bucket_start = Array<uint32_t>(n_buckets + 1);
            uint32_t* start = seg_->bucket_start.mutable_data();
            share(n_parts, [&](size_t p) {
                each_code(p, [&](uint32_t bucket, uint32_t begin, uint32_t end) { start[bucket + 1] = end - begin; });
            });
            std::partial_sum(start, start + n_buckets + 1, start);
        }
        auto any = [&](const uint8_t* marks) {
            return marks && std::any_of(marks, marks + n_, [](auto m) { return m; });
        };
        const bool several = n_entries != n_images, regions = any(in_.region), guests = any(in_.guest);
        seg_->image = PackedInts(n_entries, n_images);
        if (regions) seg_->region = Array<uint8_t>(n_entries);
        uint8_t* region = seg_->region.mutable_data();
        share(n_parts, [&](size_t p) {
            each_code(p, [&](uint32_t bucket, uint32_t begin, uint32_t end) {
                uint32_t at = seg_->start(bucket);
                for (uint32_t e = begin; e < end; ++e, ++at) {
                    const uint32_t index = entry_[e] & ~starts;
                    seg_->image.set(at, slot(index));
                    if (regions) region[at] = in_.region_of(index);
                }
            });
        });
        if (several || guests) mark_primary(guests);
        if (several) count_codes();
        entry_ = label_ = {};
        slot_ = {};
    }

    // The primary entry of an image is the one with the smallest region, of several the first.
    void mark_primary(bool guests) {
        std::vector<uint64_t> first(seg_->n_images, UINT64_MAX);  // by image: region and entry
        share(size_.size(), [&](size_t p) {
            each_code(p, [&](uint32_t bucket, uint32_t begin, uint32_t end) {
                uint32_t at = seg_->start(bucket);
                for (uint32_t e = begin; e < end; ++e, ++at) {
                    const uint32_t index = entry_[e] & ~starts;
                    if (guests && in_.guest[index]) continue;
                    uint64_t* least = &first[slot(index)];
                    const uint64_t key = uint64_t(in_.region_of(index)) << 32 | at;
                    uint64_t before = __atomic_load_n(least, __ATOMIC_RELAXED);  // libc++ has no atomic_ref
                    while (key < before &&
                           !__atomic_compare_exchange_n(least, &before, key, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
                        continue;
                }
            });
        });
        seg_->primary = Array<uint64_t>(bitmap_words(seg_->n_entries));
        for (uint64_t key : first)
            if (key != UINT64_MAX) set_bit(seg_->primary.mutable_data(), uint32_t(key));
    }

    void count_codes() {
        std::vector<uint32_t> count(seg_->n_images, 0);
        for (uint32_t e = 0; e < seg_->n_entries; ++e) ++count[slot(entry_[e] & ~starts)];
        seg_->codes_of_image = PackedInts(seg_->n_images, *std::max_element(count.begin(), count.end()));
        for (uint32_t s = 0; s < seg_->n_images; ++s) seg_->codes_of_image.set(s, count[s]);
    }

    const int bits_;
    const LinearHash& hash_;
    const Rows<C>& in_;
    const size_t n_;
    const int threads_;
    const size_t n_blocks_;  // of rows or codes, for steps in which a thread needs counters
    const int hash_bits_;
    int part_bits_ = 0;
    std::shared_ptr<Segment<C>> seg_ = std::make_shared<Segment<C>>();

    std::span<const int64_t> ids_;  // by image
    std::vector<int64_t> distinct_;
    std::vector<uint32_t> slot_;  // by row: its image; empty: row i is of image i
    std::vector<Part> part_;      // by part, plus the end
    std::vector<Part> size_;      // by part
    Array<C> code_;
    Array<uint32_t> code_hash_;
    Array<uint32_t> entry_;  // row, and the mark
    Array<uint32_t> label_;  // by row its hash; later by code its group, then its bucket
};

template <class C>
std::shared_ptr<Segment<C>> build_segment(int bits, const LinearHash& hash, const Rows<C>& in) {
    return SegmentBuilder<C>(bits, hash, in).build();
}

template <class C>
std::shared_ptr<Segment<C>> build_segment(int bits, const LinearHash& hash, const Entries<C>& in) {
    return build_segment(bits, hash, Rows<C>(in));
}

}  // namespace mch
