// The table proper, for one type of code: who may change the state when, and what runs in the background.
// What a search, a change or a merge does with a state is in scope.h and batch.h, changes.h, maintenance.h.
#pragma once

#include <algorithm>
#include <atomic>
#include <mutex>
#include <stdexcept>

#include "batch.h"
#include "changes.h"
#include "forks.h"
#include "maintenance.h"
#include "scope.h"
#include "snapshot.h"
#include "table.h"
#include "workers.h"

namespace mch {

// Counts the threads that are doing something.
class Doing {
  public:
    explicit Doing(std::atomic<int>& what) : what_(what) { ++what_; }
    ~Doing() { --what_; }

  private:
    std::atomic<int>& what_;
};

template <class C>
class Table final : public AnyTable, public std::enable_shared_from_this<Table<C>> {
  public:
    // `seed` is that of the state's segments.
    Table(int bits, uint64_t seed, std::shared_ptr<const State<C>> state)
        : bits_(bits), hash_(bits, seed), state_(std::move(state)) {}

    int bits() const override { return bits_; }
    uint64_t n_images() const override { return state()->n_images; }
    uint64_t n_codes() const override { return state()->n_codes; }
    uint64_t n_buckets() const override { return state()->n_buckets(hash_); }
    bool contains(int64_t id) const override { return state()->contains(id); }
    std::map<std::string, uint64_t> memory() const override;
    TableStats stats() const override;
    void save(const std::string& path) const override { save_snapshot(path, bits_, hash_.seed(), *state()); }

    void search(const uint8_t* codes, size_t n, const SearchOptions&, const SearchRows&) const override;
    std::vector<std::vector<RangeHit>> within(const uint8_t* codes, size_t n, const SearchOptions&) const override;

    void add(const int64_t* ids, const uint8_t* codes, const uint8_t* regions, size_t n) override;
    uint64_t remove(std::vector<int64_t> ids) override;
    void optimize(bool substring) override;

  private:
    using StatePtr = std::shared_ptr<const State<C>>;

    static constexpr size_t merge_at_once = 16384;  // entries that an add merges itself, in a few milliseconds
    static constexpr size_t most_parts = 32;        // with more, an add merges whatever their size

    StatePtr state() const {
        std::lock_guard lock(publish_);
        return state_;
    }
    std::shared_ptr<State<C>> copy_state() const { return std::make_shared<State<C>>(*state()); }
    void publish(std::shared_ptr<State<C>> next);

    template <class Finish>
    void run(const uint8_t* codes, size_t n, const Scope<C>&, const SearchOptions&, Finish&& finish) const;

    void schedule() const;
    void maintain();
    bool merge_some();

    const int bits_;
    const LinearHash hash_;
    mutable std::mutex publish_;  // guards state_; held only while the pointer is copied
    StatePtr state_;
    std::mutex write_;                                  // one writer at a time; guards busy_
    Parts<C> busy_;                                     // being merged in the background
    mutable std::atomic<Workers*> scheduled_{nullptr};  // where maintenance waits to run
    mutable AnswerCounts answered_;
    std::atomic<int> merging_{0}, indexing_{0};  // threads that are at it

    // A forked child has the state that was published last, and none of the threads that were changing it.
    const AtFork at_fork_{[this] { publish_.lock(); }, [this] { publish_.unlock(); },
                          [this] {
                              publish_.unlock();
                              renew(write_);
                              renew(busy_);
                              merging_ = indexing_ = 0;
                          }};
};

template <class C>
void Table<C>::publish(std::shared_ptr<State<C>> next) {
    StatePtr old = std::move(next);
    {
        std::lock_guard lock(publish_);
        state_.swap(old);
    }  // the old state may free much memory: outside the lock
}

// --------------------------------------------------------------------------------------- searching

template <class C>
template <class Finish>
void Table<C>::run(const uint8_t* codes, size_t n, const Scope<C>& scope, const SearchOptions& o,
                   Finish&& finish) const {
    search_batch(codes, n, bits_, hash_, scope, o, answered_, finish);
    // An index that would have paid for itself by now is built for later queries.
    if (n && scope.searches_table() &&
        std::any_of(scope.parts.begin(), scope.parts.end(), [](const View<C>& v) { return wants_work(*v.seg); }))
        schedule();
}

template <class C>
void Table<C>::search(const uint8_t* codes, size_t n, const SearchOptions& o, const SearchRows& out) const {
    const Scope<C> scope(state(), bits_, hash_, n, o);
    run(codes, n, scope, o, [&](size_t q, const Task<C>& t, Answerer<C>& answerer) {
        size_t at = q * o.k;
        const size_t end = at + o.k;
        std::vector<C> masks;
        auto a = answerer.finish(
            t.found, scope.parts, scope.several, scope.limits, bits_,
            [&](int64_t id, int distance, uint8_t region) {
                out.ids[at] = id;
                out.distances[at] = distance;
                out.regions[at++] = region;
            },
            out.masks ? &masks : nullptr);
        if (out.masks) {
            const auto width = size_t(bits_ / 8);
            uint8_t* to = out.masks + q * o.k * width;
            for (size_t i = 0; i < masks.size(); ++i) masks[i].store(to + i * width, int(width));
            std::fill_n(to + masks.size() * width, (o.k - masks.size()) * width, uint8_t(0));
        }
        for (; at < end; ++at) out.ids[at] = out.distances[at] = out.regions[at] = -1;
        if (a.count < o.k) {  // Algorithm 1 goes on to the end of the space and finds nothing more
            a.buckets = scope.limits.buckets;
            a.radius = scope.limits.radius;
            if (scope.k < o.k) a.candidates = scope.n_codes;
        }
        out.counts[q] = int64_t(a.count);
        out.buckets[q] = int64_t(a.buckets);
        out.candidates[q] = int64_t(a.candidates);
        out.radius[q] = a.radius;
        out.exact[q] = a.count == std::min(o.k, scope.n_images);
        return a;
    });
}

template <class C>
std::vector<std::vector<RangeHit>> Table<C>::within(const uint8_t* codes, size_t n, const SearchOptions& o) const {
    const Scope<C> scope(state(), bits_, hash_, n, o);
    std::atomic<uint64_t> total{0};
    auto count = [&](uint64_t more) {
        if (total.fetch_add(more) + more > o.max_hits)
            throw std::length_error("radius = " + std::to_string(scope.limits.radius) + " for " + std::to_string(n) +
                                    " queries makes more than " + std::to_string(o.max_hits) +
                                    " hits; pass fewer queries at a time, a smaller radius or a larger max_hits");
    };
    if (n && scope.limits.radius == bits_ && scope.n_images > o.max_hits / n) count(o.max_hits + 1);  // all are hits
    std::vector<std::vector<RangeHit>> hits(n);
    try {
        run(codes, n, scope, o, [&](size_t q, const Task<C>& t, Answerer<C>& answerer) {
            count(0);  // another thread may have found too many
            const auto a = answerer.finish(t.found, scope.parts, scope.several, scope.limits, bits_,
                                           [&](int64_t id, int distance, uint8_t region) {
                                               if (hits[q].size() == o.max_hits) throw TooManyHits();
                                               hits[q].push_back({id, distance, region});
                                           });
            hits[q].shrink_to_fit();
            count(hits[q].size());
            return a;
        });
    } catch (const TooManyHits&) {  // one query has more
        count(o.max_hits + 1);
    }
    return hits;
}

// ----------------------------------------------------------------------------------------- reporting

template <class C>
std::map<std::string, uint64_t> Table<C>::memory() const {
    auto bytes = state()->memory();
    bytes["scratch"] = scratch_bytes;  // not in the total: all tables of the process share it
    return bytes;
}

template <class C>
TableStats Table<C>::stats() const {
    const auto now = state();
    TableStats s;
    s.images = now->n_images;
    s.codes = now->n_codes;
    for (const Part<C>& p : now->parts) {
        s.parts.push_back({p.seg->n_images, p.seg->n_entries, p.seg->n_buckets, p.seg->n_groups, p.n_dead,
                           p.seg->substring->index.load() != nullptr});
        s.large_buckets_counted += p.counts->counted();
    }
    for (auto [name, strategy] : {std::pair("probe", Strategy::probe), std::pair("substring", Strategy::substring),
                                  std::pair("scan", Strategy::scan)})
        s.answered[name] = answered_.by[size_t(strategy)].load(std::memory_order_relaxed);
    s.buckets_collected = answered_.collected.load(std::memory_order_relaxed);
    s.merging = merging_;
    s.indexing = indexing_;
    return s;
}

// ---------------------------------------------------------------------------------------- changing

template <class C>
void Table<C>::add(const int64_t* ids, const uint8_t* codes, const uint8_t* regions, size_t n) {
    if (!n) return;
    check_entries(n);
    std::lock_guard lock(write_);
    auto next = copy_state();
    std::shared_ptr<Segment<C>> seg;  // null: there is nothing new
    if (may_hold(*next, {ids, n})) {
        auto fresh = load_entries<C>(ids, codes, regions, n, bits_ / 8);
        keep_new(fresh, *next, hash_);
        if (fresh.size()) seg = build_segment(bits_, hash_, fresh);
    } else {
        seg = build_segment(bits_, hash_, Rows<C>(ids, codes, regions, n, bits_ / 8));
        next->n_images += seg->n_images;
    }
    if (seg) {
        next->n_codes += seg->n_entries;
        insert_part(next->parts, {seg, nullptr, 0});
    }
    // Small segments are merged at once, larger ones in the background.
    std::vector<size_t> picked;
    while (!(picked = parts_to_merge(next->parts, busy_)).empty()) {
        size_t entries = 0;
        for (size_t i : picked) entries += next->parts[i].seg->n_entries;
        if (entries > merge_at_once && next->parts.size() < most_parts) break;
        replace_parts(next->parts, picked, {merge_parts(parts_at(next->parts, picked), bits_, hash_), nullptr, 0});
    }
    const bool more = !picked.empty() || any_wants_work(next->parts);
    publish(std::move(next));
    if (more) schedule();
}

template <class C>
uint64_t Table<C>::remove(std::vector<int64_t> ids) {
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    std::lock_guard lock(write_);
    auto next = copy_state();
    const uint64_t n = remove_images(ids, *next);
    if (!n) return 0;
    const bool more = !parts_to_merge(next->parts, busy_).empty();
    publish(std::move(next));
    if (more) schedule();
    return n;
}

template <class C>
void Table<C>::optimize(bool substring) {
    {
        std::lock_guard lock(write_);
        auto next = copy_state();
        Doing merge(merging_);
        if (merge_all(*next, bits_, hash_)) {
            busy_.clear();  // what the background thread is merging now comes too late
            publish(std::move(next));
        }
    }
    const auto now = state();
    if (!substring) return;
    Doing index(indexing_);
    for (const Part<C>& p : now->parts)
        if (!p.seg->wide) substring_index(*p.seg);
}

// ------------------------------------------------------------------------------------ in background

// Never throws: what cannot be scheduled now is scheduled after the next change.
template <class C>
void Table<C>::schedule() const {
    Workers* background = &Workers::background();
    if (scheduled_.exchange(background) == background) return;
    auto self = std::const_pointer_cast<Table>(this->shared_from_this());
    try {
        background->post(
            [weak = std::weak_ptr<Table>(self)] {
                if (auto table = weak.lock()) table->maintain();
            },
            1);
    } catch (...) {
        scheduled_ = nullptr;
    }
}

// Merges as long as there is something to merge, then builds the indexes that searches have missed, and drops
// those that lose. If memory runs out, the table stays as it is.
template <class C>
void Table<C>::maintain() {
    scheduled_ = nullptr;
    try {
        while (merge_some()) continue;
    } catch (...) {
    }
    const auto now = state();
    if (!any_wants_work(now->parts)) return;
    Doing index(indexing_);
    build_wanted(now->parts);
    std::lock_guard lock(write_);
    auto next = copy_state();
    if (drop_losing(next->parts)) publish(std::move(next));
}

// Merges the parts that should be one, while others add and remove. Returns false if there are none.
template <class C>
bool Table<C>::merge_some() {
    Parts<C> before;
    {
        std::lock_guard lock(write_);
        auto now = state();
        before = parts_at(now->parts, parts_to_merge(now->parts, busy_));
        busy_ = before;
    }
    if (before.empty()) return false;
    try {
        Doing merge(merging_);
        auto merged = merge_parts(before, bits_, hash_);
        std::lock_guard lock(write_);
        if (busy_.empty()) return true;
        busy_.clear();
        auto next = copy_state();
        replace_with_merged(*next, before, std::move(merged), hash_);
        publish(std::move(next));
    } catch (...) {
        std::lock_guard lock(write_);
        busy_.clear();
        throw;
    }
    return true;
}

// Compiled once per type of code, each in its own file.
template <class C>
std::shared_ptr<AnyTable> make_typed_table(int bits, uint64_t seed, std::shared_ptr<const State<C>> state) {
    return std::make_shared<Table<C>>(bits, seed, std::move(state));
}

}  // namespace mch
