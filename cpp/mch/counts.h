// How many entries of a bucket are live, and how many of those are primary, for buckets with many entries.
// Searches count such a bucket once. Removing images changes the counts that are known.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>

namespace mch {

class BucketCounts {
  public:
    struct Count {
        uint32_t entries, primary;
    };

    // Buckets of this size are counted here; going through a smaller one takes a few microseconds.
    static uint32_t smallest(uint32_t n_entries) { return std::max<uint32_t>(2048, n_entries / 8192); }

    BucketCounts() = default;
    // What becomes of `before` when images are removed: removed(bucket) says how many of its entries are theirs. If
    // that is more than it is worth to find out, it says no number.
    template <class Removed>
    BucketCounts(const BucketCounts& before, Removed&& removed) {
        const Table* from = before.table_.load(std::memory_order_acquire);
        counted_ = before.counted();
        if (!from) return;
        auto copy = std::make_unique<Table>(from->mask + 1);
        for (size_t i = 0; i <= from->mask; ++i) {
            const uint64_t known = from->cell[i].count.load(std::memory_order_relaxed);
            if (known == unknown) continue;
            const uint32_t bucket = from->cell[i].key.load(std::memory_order_relaxed) - 1;
            if (const auto gone = removed(bucket)) {
                const Count c = unpack(known);
                copy->find(bucket)->count = pack({c.entries - gone->entries, c.primary - gone->primary});
            }
        }
        table_ = copy.release();
    }
    BucketCounts(const BucketCounts&) = delete;
    ~BucketCounts() { delete table_.load(); }

    // The count of a bucket in a segment of `n_entries`; walk() counts if it is not known yet.
    template <class Walk>
    Count of(uint32_t bucket, uint32_t n_entries, Walk&& walk) const {
        Cell* cell = table(n_entries).find(bucket);
        const uint64_t known = cell->count.load(std::memory_order_relaxed);
        if (known != unknown) return unpack(known);
        const Count counted = walk();
        counted_.fetch_add(1, std::memory_order_relaxed);
        cell->count.store(pack(counted), std::memory_order_relaxed);
        return counted;
    }

    // How often a bucket was counted, also before images were removed.
    uint64_t counted() const { return counted_.load(std::memory_order_relaxed); }

    size_t bytes() const {
        const Table* t = table_.load(std::memory_order_acquire);
        return t ? (t->mask + 1) * sizeof(Cell) : 0;
    }

  private:
    static constexpr uint64_t unknown = UINT64_MAX;
    static uint64_t pack(Count c) { return uint64_t(c.entries) << 32 | c.primary; }
    static Count unpack(uint64_t v) { return {uint32_t(v >> 32), uint32_t(v)}; }

    struct Cell {
        std::atomic<uint32_t> key{0};  // bucket + 1; 0: free
        std::atomic<uint64_t> count{unknown};
    };
    // Linear probing. At most half of the cells are ever used.
    struct Table {
        size_t mask;
        std::unique_ptr<Cell[]> cell;

        explicit Table(size_t size) : mask(size - 1), cell(new Cell[size]) {}
        Cell* find(uint32_t bucket) const {
            for (size_t at = bucket * size_t(0x9e3779b97f4a7c15) >> 32;; ++at) {
                Cell& c = cell[at & mask];
                uint32_t key = c.key.load(std::memory_order_relaxed);
                if (!key) c.key.compare_exchange_strong(key, bucket + 1, std::memory_order_relaxed);
                if (!key || key == bucket + 1) return &c;
            }
        }
    };

    const Table& table(uint32_t n_entries) const {
        Table* there = table_.load(std::memory_order_acquire);
        if (!there) {
            const uint32_t most = n_entries / smallest(n_entries);  // buckets of that size
            auto made = std::make_unique<Table>(std::bit_ceil(2 * (size_t(most) + 1)));
            if (table_.compare_exchange_strong(there, made.get(), std::memory_order_acq_rel)) there = made.release();
        }
        return *there;
    }

    mutable std::atomic<Table*> table_{nullptr};
    mutable std::atomic<uint64_t> counted_{0};
};

}  // namespace mch
