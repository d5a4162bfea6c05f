// The table proper: who may change the state when, and what runs in the background. What a search,
// a change or a merge does with a state is in scope.h and batch.h, changes.h, maintenance.h.
#include "table.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <stdexcept>

#include "batch.h"
#include "changes.h"
#include "maintenance.h"
#include "scope.h"
#include "snapshot.h"
#include "workers.h"

namespace mch {
namespace {

template <class C>
class Table final : public AnyTable, public std::enable_shared_from_this<Table<C>> {
  public:
    Table(int bits, std::shared_ptr<const State<C>> state) : bits_(bits), hash_(bits), state_(std::move(state)) {}

    int bits() const override { return bits_; }
    uint64_t n_images() const override { return state()->n_images; }
    uint64_t n_codes() const override { return state()->n_codes; }
    uint64_t n_buckets() const override { return state()->n_buckets(hash_); }
    bool contains(int64_t id) const override { return state()->contains(id); }
    std::map<std::string, uint64_t> memory() const override { return state()->memory(); }
    void save(const std::string& path) const override { save_snapshot(path, bits_, *state()); }

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
    std::vector<const Segment<C>*> busy_;               // being merged in the background
    mutable std::atomic<Workers*> scheduled_{nullptr};  // where maintenance waits to run
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
    search_batch(codes, n, bits_, hash_, scope, o, finish);
    // An index that would have paid for itself by now is built for later queries.
    if (n && scope.searches_table() &&
        std::any_of(scope.parts.begin(), scope.parts.end(), [](const View<C>& v) { return wants_index(*v.seg); }))
        schedule();
}

template <class C>
void Table<C>::search(const uint8_t* codes, size_t n, const SearchOptions& o, const SearchRows& out) const {
    const Scope<C> scope(state(), bits_, hash_, n, o);
    run(codes, n, scope, o, [&](size_t q, const Task<C>& t, Answerer<C>& answerer) {
        size_t at = q * o.k;
        const size_t end = at + o.k;
        auto a = answerer.finish(t.found, t.query, scope.parts, scope.several, scope.limits, bits_,
                                 [&](int64_t id, int distance, uint8_t region) {
                                     out.ids[at] = id;
                                     out.distances[at] = distance;
                                     out.regions[at++] = region;
                                 });
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
    run(codes, n, scope, o, [&](size_t q, const Task<C>& t, Answerer<C>& answerer) {
        count(0);  // another thread may have found too many
        answerer.finish(t.found, t.query, scope.parts, scope.several, scope.limits, bits_,
                        [&](int64_t id, int distance, uint8_t region) { hits[q].push_back({id, distance, region}); });
        hits[q].shrink_to_fit();
        count(hits[q].size());
    });
    return hits;
}

// ---------------------------------------------------------------------------------------- changing

template <class C>
void Table<C>::add(const int64_t* ids, const uint8_t* codes, const uint8_t* regions, size_t n) {
    if (!n) return;
    std::lock_guard lock(write_);
    auto next = copy_state();
    auto fresh = load_entries<C>(ids, codes, regions, n, bits_ / 8);
    keep_new(fresh, *next, hash_);
    if (fresh.size()) {
        auto seg = build_segment(bits_, hash_, fresh);
        next->n_codes += seg->n_entries;
        insert_part(next->parts, {seg, nullptr, 0});
    }
    // Small segments are merged at once, larger ones in the background.
    std::vector<size_t> picked;
    while (!(picked = parts_to_merge(next->parts, busy_)).empty()) {
        size_t entries = 0;
        for (size_t i : picked) entries += next->parts[i].seg->n_entries;
        if (entries > merge_at_once && next->parts.size() < most_parts) break;
        replace_parts(next->parts, picked, merge_parts(parts_at(next->parts, picked), bits_, hash_));
    }
    const bool more = !picked.empty() || any_wants_index(next->parts);
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
        if (next->parts.size() > 1 || (next->parts.size() == 1 && next->parts[0].dead)) {
            Part<C> merged = merge_parts(next->parts, bits_, hash_);
            next->parts.clear();
            if (merged.seg->n_entries) next->parts.push_back(std::move(merged));
            publish(std::move(next));
        }
    }
    const auto now = state();
    if (substring)
        for (const Part<C>& p : now->parts) substring_index(*p.seg);
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

// Merges as long as there is something to merge, then builds the indexes that searches have missed.
// If memory runs out, the table stays as it is.
template <class C>
void Table<C>::maintain() {
    scheduled_ = nullptr;
    try {
        while (merge_some()) continue;
    } catch (...) {
    }
    build_wanted_indexes(state()->parts);
}

// Merges the parts that should be one, while others add and remove. Returns false if there are none.
template <class C>
bool Table<C>::merge_some() {
    Parts<C> before;
    {
        std::lock_guard lock(write_);
        busy_.clear();  // only this thread sets it; a forked process inherits it without the thread
        auto now = state();
        before = parts_at(now->parts, parts_to_merge(now->parts, busy_));
        for (const Part<C>& p : before) busy_.push_back(p.seg.get());
    }
    if (before.empty()) return false;
    try {
        Part<C> merged = merge_parts(before, bits_, hash_);
        std::lock_guard lock(write_);
        busy_.clear();
        auto next = copy_state();
        if (replace_with_merged(*next, before, std::move(merged))) publish(std::move(next));
    } catch (...) {
        std::lock_guard lock(write_);
        busy_.clear();
        throw;
    }
    return true;
}

}  // namespace

std::shared_ptr<AnyTable> make_table(int bits) {
    return with_code_type(bits, [&](auto type) -> std::shared_ptr<AnyTable> {
        using C = typename decltype(type)::type;
        return std::make_shared<Table<C>>(bits, std::make_shared<State<C>>());
    });
}

std::shared_ptr<AnyTable> load_table(const std::string& path, bool mmap) {
    SnapshotFile file(path, mmap);
    return with_code_type(file.bits(), [&](auto type) -> std::shared_ptr<AnyTable> {
        using C = typename decltype(type)::type;
        return std::make_shared<Table<C>>(file.bits(), file.template read<C>());
    });
}

}  // namespace mch
