// The table: a list of immutable segments and, for each, the images removed from it. Writers publish
// a new list; a search works on the list it started with. So searches never wait, and each sees
// the table as it was at one moment.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "answer.h"
#include "build.h"
#include "search.h"
#include "workers.h"

namespace mch {

struct SearchOptions {
    uint64_t k = 10;
    int max_radius = kMaxBits;
    std::optional<uint64_t> max_buckets;
    std::optional<std::vector<int64_t>> allowed;
    Strategy strategy = Strategy::automatic;
    int threads = 0;  // 0: all cores
};

// Rows of a search's answer; ids, distances and regions hold k a query.
struct SearchRows {
    int64_t* ids;
    int32_t* distances;
    int16_t* regions;
    int64_t *counts, *buckets, *candidates;
    int32_t* radius;
    bool* exact;
};

struct RangeHit {
    int64_t id;
    int32_t distance;
    int16_t region;
};

// What the bindings see: codes as bytes, whatever their width.
class AnyTable {
  public:
    virtual ~AnyTable() = default;
    virtual int bits() const = 0;
    virtual void add(const int64_t* ids, const uint8_t* codes, const uint8_t* regions, size_t n) = 0;
    virtual uint64_t remove(std::vector<int64_t> ids) = 0;
    virtual bool contains(int64_t id) const = 0;
    virtual void search(const uint8_t* codes, size_t n, const SearchOptions&, const SearchRows&) const = 0;
    virtual std::vector<std::vector<RangeHit>> within(const uint8_t* codes, size_t n, const SearchOptions&) const = 0;
    virtual uint64_t n_images() const = 0;
    virtual uint64_t n_codes() const = 0;
    virtual uint64_t n_buckets() const = 0;
    virtual void optimize(bool substring) = 0;
    virtual std::map<std::string, uint64_t> memory() const = 0;
    virtual void save(const std::string& path) const = 0;
};

std::shared_ptr<AnyTable> make_table(int bits);
std::shared_ptr<AnyTable> load_table(const std::string& path, bool mmap);

using Bitmap = std::vector<uint64_t>;

template <class C>
struct Part {
    std::shared_ptr<const Segment<C>> seg;
    std::shared_ptr<const Bitmap> dead;  // by image; null: none
    uint32_t n_dead = 0;

    View<C> view() const { return {seg.get(), dead ? dead->data() : nullptr}; }
    // The image's slot if it is there and live, else -1.
    int64_t find(int64_t id) const {
        int64_t slot = seg->id.find(id);
        return slot >= 0 && dead && test_bit(dead->data(), size_t(slot)) ? -1 : slot;
    }
};

template <class C>
struct State {
    std::vector<Part<C>> parts;  // largest first
    uint64_t n_images = 0, n_codes = 0;
    mutable std::atomic<int64_t> n_buckets{-1};  // counted when asked for
};

template <class C>
class Table final : public AnyTable, public std::enable_shared_from_this<Table<C>> {
  public:
    using StatePtr = std::shared_ptr<const State<C>>;

    explicit Table(int bits) : bits_(bits), hash_(bits), state_(std::make_shared<State<C>>()) {}
    Table(int bits, std::shared_ptr<State<C>> state) : bits_(bits), hash_(bits), state_(std::move(state)) {}

    int bits() const override { return bits_; }
    uint64_t n_images() const override { return state()->n_images; }
    uint64_t n_codes() const override { return state()->n_codes; }
    uint64_t n_buckets() const override;
    bool contains(int64_t id) const override;
    void add(const int64_t* ids, const uint8_t* codes, const uint8_t* regions, size_t n) override;
    uint64_t remove(std::vector<int64_t> ids) override;
    void search(const uint8_t* codes, size_t n, const SearchOptions&, const SearchRows&) const override;
    std::vector<std::vector<RangeHit>> within(const uint8_t* codes, size_t n, const SearchOptions&) const override;
    void optimize(bool substring) override;
    std::map<std::string, uint64_t> memory() const override;
    void save(const std::string& path) const override;

  private:
    using Parts = std::vector<Part<C>>;
    struct Scope;  // what one search may see

    static constexpr size_t merge_at_once = 16384;  // entries that an add merges itself, in a few milliseconds
    static constexpr size_t most_parts = 32;        // with more, an add merges whatever it takes

    StatePtr state() const {
        std::lock_guard lock(publish_);
        return state_;
    }
    void publish(std::shared_ptr<State<C>> next);
    Scope scope(size_t n_queries, const SearchOptions&) const;
    template <class Finish>
    void run(const uint8_t* codes, size_t n, const Scope&, const SearchOptions&, Finish&& finish) const;

    std::shared_ptr<State<C>> successor() const;
    Entries<C> take_new(const int64_t* ids, const uint8_t* codes, const uint8_t* regions, size_t n, State<C>& next);
    static void append_live(const Part<C>&, Entries<C>&);
    static void insert(Parts&, Part<C>);
    static Parts select(const Parts&, const std::vector<size_t>& picked);
    static void replace(Parts&, const std::vector<size_t>& picked, Part<C> merged);
    Part<C> merge(const Parts&) const;
    std::vector<size_t> pick(const Parts&) const;
    void schedule() const;
    void maintain();
    bool merge_some();
    void take_over(const Parts& before, Part<C> merged);

    const int bits_;
    const LinearHash hash_;
    mutable std::mutex publish_;  // guards state_, for the moment of a copy
    StatePtr state_;
    mutable std::mutex write_;                          // one writer; guards busy_
    std::vector<const Segment<C>*> busy_;               // being merged in the background
    mutable std::atomic<Workers*> scheduled_{nullptr};  // where maintenance waits to run
};

}  // namespace mch
