#include "table.h"

#include <algorithm>
#include <cmath>

#include "snapshot.h"

namespace mch {

namespace {

// Scratch memory of this thread, kept between calls. Behind a call, because the compiler would
// otherwise look the thread's copy up again at every use.
template <class C>
struct Workspace {
    Searcher<C> searcher;
    Task<C> tasks[Searcher<C>::block];
    Answerer<C> answerer;
};
template <class C>
[[gnu::noinline]] Workspace<C>& workspace() {
    static thread_local Workspace<C> kept;
    return kept;
}

// Should the substring index be built now? In a large table, where it will pay for few neighbours,
// at once; elsewhere when searches have missed it for a while. It is built in the background, so it
// need not have paid in full before.
template <class C>
bool wants_index(const Segment<C>& seg) {
    constexpr uint32_t large = 1 << 20;
    if (seg.substring->index.load() || seg.substring->failed) return false;
    const double build = kBuildCost * SubstringIndex<C>::window_count(seg.bits, seg.n_buckets) * seg.n_buckets;
    return seg.substring->missed > build / 16 ||
           (seg.n_buckets > large && Plan<C>(seg, 10, Searcher<C>::block).substring_pays());
}

}  // namespace

// --------------------------------------------------------------------------------------- searching

template <class C>
struct Table<C>::Scope {
    StatePtr state;  // keeps the segments alive
    std::vector<View<C>> parts;
    std::vector<Bitmap> excluded;         // where `allowed` narrows the parts
    std::shared_ptr<Segment<C>> extract;  // the few allowed entries, where they are few
    std::vector<Plan<C>> plans;
    Limits<C> limits;
    uint64_t k, n_images, n_codes;  // k: to look for; images and codes that the search may find
    bool several = false;           // images may have more than one code
};

template <class C>
typename Table<C>::Scope Table<C>::scope(size_t n, const SearchOptions& o) const {
    Scope s;
    s.state = state();
    s.n_images = s.state->n_images, s.n_codes = s.state->n_codes;
    if (o.allowed) {
        std::vector<uint32_t> slots;
        s.n_images = s.n_codes = 0;
        auto ids = distinct_ids(*o.allowed, slots);
        for (const Part<C>& p : s.state->parts) s.excluded.emplace_back((p.seg->n_images + 63) / 64, ~uint64_t(0));
        for (int64_t id : ids) {
            bool known = false;
            for (size_t i = 0; i < s.state->parts.size(); ++i) {
                int64_t slot = s.state->parts[i].find(id);
                if (slot < 0) continue;
                known = true;
                s.excluded[i][size_t(slot) >> 6] &= ~(uint64_t(1) << (slot & 63));
                s.n_codes += s.state->parts[i].seg->codes_of(uint32_t(slot));
            }
            s.n_images += known;
        }
        if (s.n_codes * 8 < s.state->n_codes) {
            Entries<C> few;
            for (size_t i = 0; i < s.state->parts.size(); ++i) {
                auto excluded = std::make_shared<Bitmap>(std::move(s.excluded[i]));
                append_live({s.state->parts[i].seg, excluded, 0}, few);
            }
            few.guest.clear();  // nothing but this segment is searched
            s.extract = build_segment(bits_, hash_, few);
            s.parts.push_back({s.extract.get(), nullptr});
        } else {
            for (size_t i = 0; i < s.state->parts.size(); ++i)
                s.parts.push_back({s.state->parts[i].seg.get(), s.excluded[i].data()});
        }
    } else {
        for (const Part<C>& p : s.state->parts) s.parts.push_back(p.view());
    }

    s.limits.radius = std::min(o.max_radius, bits_);
    const auto reachable = Binomials::get().ball(bits_, s.limits.radius);
    s.limits.buckets = uint64_t(std::min<Binomials::Wide>(reachable, kMaxCount));
    bool whole = s.limits.radius == bits_;
    if (o.max_buckets && *o.max_buckets < reachable) {
        whole = false;
        s.limits.buckets = *o.max_buckets;
        s.limits.radius = 0;
        if (*o.max_buckets) {
            s.limits.cut = true;
            s.limits.last_mask = mask_at_rank<C>(*o.max_buckets, bits_);
            s.limits.radius = s.limits.last_mask.popcount();
        } else {
            s.parts.clear();
        }
    }
    // With all images to find and nothing to stop at, the search is over when the last is found.
    s.k = whole ? std::min(o.k, s.n_images) : o.k;
    if (s.n_images == 0) s.parts.clear();
    for (const View<C>& v : s.parts) {
        s.plans.emplace_back(*v.seg, std::max<uint64_t>(s.k, 1), std::clamp<size_t>(n, 1, Searcher<C>::block));
        s.several |= !v.seg->primary.empty();
    }
    return s;
}

// Collects the answers to all queries, in blocks that threads take in turn, and calls
// finish(query number, task, answerer) on the thread that has it.
template <class C>
template <class Finish>
void Table<C>::run(const uint8_t* codes, size_t n, const Scope& s, const SearchOptions& o, Finish&& finish) const {
    if (!n) return;
    const int n_bytes = bits_ / 8;
    double cost = 0;  // of a query, roughly
    for (size_t i = 0; i < s.parts.size(); ++i) {
        cost += 500 + s.plans[i].expected_cost();
    }
    // Waking a thread takes some ten microseconds; give each enough to do.
    int threads = o.threads ? o.threads : usable_cores();
    threads = int(std::clamp(cost * double(n) / 5e4, 1.0, double(std::min<size_t>(size_t(threads), n))));
    // What a block finds should stay in the cache until it is answered.
    const size_t most = std::clamp<uint64_t>(16384 / std::max<uint64_t>(s.k, 1), 8, Searcher<C>::block);
    const size_t block = std::clamp<size_t>(n / (4 * size_t(threads)), 1, most);
    std::atomic<size_t> next{0};
    parallel(threads, [&] {
        auto& work = workspace<C>();
        for (size_t begin; (begin = next.fetch_add(block)) < n;) {
            const size_t count = std::min(block, n - begin);
            for (size_t i = 0; i < count; ++i) {
                Task<C>& t = work.tasks[i];
                t.query = C::load(codes + (begin + i) * size_t(n_bytes), n_bytes);
                t.hash = hash_(t.query);
                t.found.start(s.k, s.limits.radius);
            }
            work.searcher.run(work.tasks, count, s.parts, s.plans, hash_, o.strategy);
            for (size_t i = 0; i < count; ++i) {
                finish(begin + i, work.tasks[i], work.answerer);
                work.tasks[i].found.trim();
                work.answerer.trim();
            }
        }
    });
    // An index that would have paid for itself by now is built for the queries to come.
    for (size_t i = 0; i < s.parts.size(); ++i) {
        const Segment<C>& seg = *s.parts[i].seg;
        if (&seg != s.extract.get() && wants_index(seg)) schedule();
    }
}

template <class C>
void Table<C>::search(const uint8_t* codes, size_t n, const SearchOptions& o, const SearchRows& out) const {
    const Scope s = scope(n, o);
    run(codes, n, s, o, [&](size_t q, const Task<C>& t, Answerer<C>& answerer) {
        size_t at = q * o.k;
        const size_t end = at + o.k;
        auto a = answerer.finish(t.found, t.query, s.parts, s.several, s.limits, bits_,
                                 [&](int64_t id, int distance, uint8_t region) {
                                     out.ids[at] = id;
                                     out.distances[at] = distance;
                                     out.regions[at++] = region;
                                 });
        for (; at < end; ++at) out.ids[at] = out.distances[at] = out.regions[at] = -1;
        if (a.count < o.k) {  // the rest of the space was visited in vain
            a.buckets = s.limits.buckets;
            a.radius = s.limits.radius;
            if (s.k < o.k) a.candidates = s.n_codes;
        }
        out.counts[q] = int64_t(a.count);
        out.buckets[q] = int64_t(a.buckets);
        out.candidates[q] = int64_t(a.candidates);
        out.radius[q] = a.radius;
        out.exact[q] = a.count == std::min(o.k, s.n_images);
    });
}

template <class C>
std::vector<std::vector<RangeHit>> Table<C>::within(const uint8_t* codes, size_t n, const SearchOptions& o) const {
    const Scope s = scope(n, o);
    std::vector<std::vector<RangeHit>> hits(n);
    run(codes, n, s, o, [&](size_t q, const Task<C>& t, Answerer<C>& answerer) {
        answerer.finish(t.found, t.query, s.parts, s.several, s.limits, bits_,
                        [&](int64_t id, int distance, uint8_t region) { hits[q].push_back({id, distance, region}); });
    });
    return hits;
}

template <class C>
bool Table<C>::contains(int64_t id) const {
    const auto s = state();
    return std::any_of(s->parts.begin(), s->parts.end(), [&](const Part<C>& p) { return p.find(id) >= 0; });
}

template <class C>
uint64_t Table<C>::n_buckets() const {
    const auto s = state();
    if (s->n_buckets < 0) {
        uint64_t n = 0;
        for (size_t i = 0; i < s->parts.size(); ++i) {
            const View<C> part = s->parts[i].view();
            if (i == 0 && !part.dead) {
                n += part.seg->n_buckets;
                continue;
            }
            for (uint32_t b = 0; b < part.seg->n_buckets; ++b) {
                const C code = part.seg->codes().at(b);
                const uint32_t h = hash_(code);
                n += part.any_live(b) && std::none_of(s->parts.begin(), s->parts.begin() + long(i), [&](auto& p) {
                         uint32_t other = p.seg->find(code, h);
                         return other != p.seg->none && p.view().any_live(other);
                     });
            }
        }
        s->n_buckets = int64_t(n);
    }
    return uint64_t(s->n_buckets);
}

template <class C>
std::map<std::string, uint64_t> Table<C>::memory() const {
    std::map<std::string, uint64_t> bytes;
    Segment<C>::for_each_array(Segment<C>(), [&](const char* name, auto&) { bytes[name] = 0; });
    bytes["removed"] = bytes["substring"] = 0;
    const auto now = state();
    for (const Part<C>& p : now->parts) {
        Segment<C>::for_each_array(*p.seg, [&](const char* name, auto& array) { bytes[name] += array.bytes(); });
        if (p.dead) bytes["removed"] += p.dead->size() * sizeof(uint64_t);
        if (auto index = p.seg->substring->index.load()) bytes["substring"] += index->bytes();
    }
    uint64_t total = 0;
    for (auto& [name, n] : bytes) total += n;
    bytes["total"] = total;
    return bytes;
}

// ---------------------------------------------------------------------------------------- changing

template <class C>
void Table<C>::publish(std::shared_ptr<State<C>> next) {
    StatePtr old = std::move(next);
    {
        std::lock_guard lock(publish_);
        state_.swap(old);
    }  // the old state may free much memory: outside the lock
}

// A copy to change.
template <class C>
std::shared_ptr<State<C>> Table<C>::successor() const {
    auto old = state();
    auto next = std::make_shared<State<C>>();
    next->parts = old->parts;
    next->n_images = old->n_images, next->n_codes = old->n_codes;
    return next;
}

// The entries that the table does not hold yet. Where an entry is there with a larger region, `next`
// gets the smaller one.
template <class C>
Entries<C> Table<C>::take_new(const int64_t* ids, const uint8_t* codes, const uint8_t* regions, size_t n,
                              State<C>& next) {
    const int n_bytes = bits_ / 8;
    Entries<C> in;
    in.id.assign(ids, ids + n);
    in.code.resize(n);
    for (size_t i = 0; i < n; ++i) in.code[i] = C::load(codes + i * size_t(n_bytes), n_bytes);
    if (regions) in.region.assign(regions, regions + n);

    std::vector<uint32_t> slot;
    const auto distinct = distinct_ids(in.id, slot);
    std::vector<uint8_t> known(distinct.size(), 0);
    for (const Part<C>& p : next.parts) {
        const auto& have = p.seg->id;
        if (distinct.front() > have[have.size() - 1] || distinct.back() < have[0]) continue;
        for (size_t i = 0; i < distinct.size(); ++i)
            if (!known[i]) known[i] = p.find(distinct[i]) >= 0;
    }
    size_t n_known = size_t(std::count(known.begin(), known.end(), 1));
    next.n_images += distinct.size() - n_known;
    if (!n_known) return in;

    in.guest.resize(n);
    std::vector<uint8_t> drop(n, 0);
    std::vector<std::shared_ptr<Segment<C>>> changed(next.parts.size());
    for (size_t i = 0; i < n; ++i) {
        if (!(in.guest[i] = known[slot[i]])) continue;
        const uint32_t h = hash_(in.code[i]);
        for (size_t j = 0; j < next.parts.size(); ++j) {
            Part<C>& p = next.parts[j];
            int64_t s = p.find(in.id[i]);
            uint32_t bucket = s < 0 ? Segment<C>::none : p.seg->find(in.code[i], h);
            uint32_t entry = bucket == Segment<C>::none ? bucket : p.seg->find_entry(bucket, uint32_t(s));
            if (entry == Segment<C>::none) continue;
            drop[i] = 1;
            uint8_t region = regions ? regions[i] : 0;
            if (region >= p.seg->region_of(entry)) continue;
            if (!changed[j]) {  // searches may be reading the old one
                changed[j] = std::make_shared<Segment<C>>(*p.seg);
                changed[j]->region = Array<uint8_t>(p.seg->n_entries);
                std::copy_n(p.seg->region.data(), p.seg->n_entries, changed[j]->region.mutable_data());
                p.seg = changed[j];
            }
            changed[j]->region.mutable_data()[entry] = region;
        }
    }
    size_t kept = 0;
    for (size_t i = 0; i < n; ++i) {
        if (drop[i]) continue;
        in.id[kept] = in.id[i], in.code[kept] = in.code[i], in.guest[kept] = in.guest[i];
        if (regions) in.region[kept] = in.region[i];
        ++kept;
    }
    in.id.resize(kept), in.code.resize(kept), in.guest.resize(kept);
    if (regions) in.region.resize(kept);
    return in;
}

template <class C>
void Table<C>::add(const int64_t* ids, const uint8_t* codes, const uint8_t* regions, size_t n) {
    if (!n) return;
    std::lock_guard lock(write_);
    auto next = successor();
    auto fresh = take_new(ids, codes, regions, n, *next);
    if (fresh.size()) {
        auto seg = build_segment(bits_, hash_, fresh);
        next->n_codes += seg->n_entries;
        insert(next->parts, {seg, nullptr, 0});
    }
    // Small segments are merged at once, larger ones in the background.
    std::vector<size_t> picked;
    while (!(picked = pick(next->parts)).empty()) {
        size_t entries = 0;
        for (size_t i : picked) entries += next->parts[i].seg->n_entries;
        if (entries > merge_at_once && next->parts.size() < most_parts) break;
        replace(next->parts, picked, merge(select(next->parts, picked)));
    }
    const bool index = std::any_of(next->parts.begin(), next->parts.end(), [](auto& p) { return wants_index(*p.seg); });
    publish(std::move(next));
    if (index || !picked.empty()) schedule();
}

template <class C>
uint64_t Table<C>::remove(std::vector<int64_t> ids) {
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    std::lock_guard lock(write_);
    auto next = successor();
    std::vector<uint8_t> removed(ids.size(), 0);
    for (Part<C>& p : next->parts) {
        std::shared_ptr<Bitmap> dead;
        for (size_t i = 0; i < ids.size(); ++i) {
            int64_t slot = p.find(ids[i]);
            if (slot < 0) continue;
            if (!dead)
                dead =
                    p.dead ? std::make_shared<Bitmap>(*p.dead) : std::make_shared<Bitmap>((p.seg->n_images + 63) / 64);
            set_bit(dead->data(), size_t(slot));
            ++p.n_dead;
            next->n_codes -= p.seg->codes_of(uint32_t(slot));
            removed[i] = 1;
        }
        if (dead) p.dead = dead;
    }
    const uint64_t n = uint64_t(std::count(removed.begin(), removed.end(), 1));
    if (!n) return 0;
    next->n_images -= n;
    std::erase_if(next->parts, [](const Part<C>& p) { return p.n_dead == p.seg->n_images; });
    const bool more = !pick(next->parts).empty();
    publish(std::move(next));
    if (more) schedule();
    return n;
}

// ----------------------------------------------------------------------------------------- merging

template <class C>
void Table<C>::insert(Parts& parts, Part<C> part) {
    auto at = std::find_if(parts.begin(), parts.end(),
                           [&](const Part<C>& p) { return p.seg->n_entries < part.seg->n_entries; });
    parts.insert(at, std::move(part));
}

template <class C>
typename Table<C>::Parts Table<C>::select(const Parts& parts, const std::vector<size_t>& picked) {
    Parts some;
    for (size_t i : picked) some.push_back(parts[i]);
    return some;
}

template <class C>
void Table<C>::replace(Parts& parts, const std::vector<size_t>& picked, Part<C> merged) {
    for (auto i = picked.rbegin(); i != picked.rend(); ++i) parts.erase(parts.begin() + long(*i));
    if (merged.seg->n_entries) insert(parts, std::move(merged));
}

// The live entries of a part, in the order of its buckets.
template <class C>
void Table<C>::append_live(const Part<C>& part, Entries<C>& out) {
    const Segment<C>& seg = *part.seg;
    const View<C> view = part.view();
    Bitmap host((seg.n_images + 63) / 64, seg.primary.empty() ? ~uint64_t(0) : 0);
    if (!seg.primary.empty())
        for (uint32_t e = 0; e < seg.n_entries; ++e)
            if (seg.is_primary(e)) set_bit(host.data(), seg.image[e]);
    out.region.resize(out.size());
    out.guest.resize(out.size());
    for (uint32_t b = 0; b < seg.n_buckets; ++b)
        for (uint32_t e = seg.start(b); e < seg.start(b + 1); ++e) {
            if (!view.live(e)) continue;
            uint32_t slot = uint32_t(seg.image[e]);
            out.code.push_back(seg.codes().at(b));
            out.id.push_back(seg.id[slot]);
            out.region.push_back(seg.region_of(e));
            out.guest.push_back(!test_bit(host.data(), slot));
        }
}

template <class C>
Part<C> Table<C>::merge(const Parts& parts) const {
    Entries<C> all;
    for (const Part<C>& p : parts) append_live(p, all);
    return {build_segment(bits_, hash_, all), nullptr, 0};
}

// The parts that ought to become one: those from the first that is less than twice as large as all
// behind it together, so that there are never many; or one of which a quarter is dead.
template <class C>
std::vector<size_t> Table<C>::pick(const Parts& parts) const {
    std::vector<size_t> idle;
    for (size_t i = 0; i < parts.size(); ++i) {
        if (std::find(busy_.begin(), busy_.end(), parts[i].seg.get()) != busy_.end()) continue;
        if (uint64_t(parts[i].n_dead) * 4 > parts[i].seg->n_images) return {i};
        idle.push_back(i);
    }
    uint64_t behind = 0;
    size_t first = idle.size();
    for (size_t i = idle.size(); i-- > 0;) {
        if (behind * 2 > parts[idle[i]].seg->n_entries) first = i;
        behind += parts[idle[i]].seg->n_entries;
    }
    return {idle.begin() + long(first), idle.end()};
}

// Never throws: what is not scheduled now is scheduled after the next change.
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

// On the background thread: merges while there is something to merge, then builds the indexes that
// searches have missed. Where memory does not suffice the table stays as it is.
template <class C>
void Table<C>::maintain() {
    scheduled_ = nullptr;
    try {
        while (merge_some()) continue;
    } catch (...) {
    }
    const auto now = state();
    for (const Part<C>& p : now->parts) {
        if (!wants_index(*p.seg)) continue;
        try {
            substring_index(*p.seg);
        } catch (...) {
            p.seg->substring->failed = true;
        }
    }
}

// Merges the parts that ought to be one, while others add and remove. False: there are none.
template <class C>
bool Table<C>::merge_some() {
    Parts before;
    {
        std::lock_guard lock(write_);
        busy_.clear();  // only this thread sets it; a forked process inherits it without the thread
        auto now = state();
        before = select(now->parts, pick(now->parts));
        for (const Part<C>& p : before) busy_.push_back(p.seg.get());
    }
    if (before.empty()) return false;
    try {
        Part<C> merged = merge(before);
        std::lock_guard lock(write_);
        busy_.clear();
        take_over(before, std::move(merged));
    } catch (...) {
        std::lock_guard lock(write_);
        busy_.clear();
        throw;
    }
    return true;
}

// Puts `merged` in the place of the parts it was made of, with what was removed from them since. Where
// one of them is no longer there, nothing happens.
template <class C>
void Table<C>::take_over(const Parts& before, Part<C> merged) {
    auto next = successor();
    auto dead = std::make_shared<Bitmap>((merged.seg->n_images + 63) / 64);
    std::vector<size_t> places;
    for (const Part<C>& old : before) {
        auto now =
            std::find_if(next->parts.begin(), next->parts.end(), [&](const Part<C>& p) { return p.seg == old.seg; });
        if (now == next->parts.end()) {
            // Either all its images were removed, or it was replaced by a changed copy.
            return;
        }
        places.push_back(size_t(now - next->parts.begin()));
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
    replace(next->parts, places, std::move(merged));
    publish(std::move(next));
}

template <class C>
void Table<C>::optimize(bool substring) {
    {
        std::lock_guard lock(write_);
        auto next = successor();
        if (next->parts.size() > 1 || (next->parts.size() == 1 && next->parts[0].dead)) {
            Part<C> merged = merge(next->parts);
            next->parts.clear();
            if (merged.seg->n_entries) next->parts.push_back(std::move(merged));
            publish(std::move(next));
        }
    }
    const auto now = state();
    if (substring)
        for (const Part<C>& p : now->parts) substring_index(*p.seg);
}

// ------------------------------------------------------------------------------------------- files

template <class C>
void Table<C>::save(const std::string& path) const {
    save_snapshot(path, bits_, *state());
}

std::shared_ptr<AnyTable> make_table(int bits) {
    return with_code_type(bits, [&](auto type) -> std::shared_ptr<AnyTable> {
        return std::make_shared<Table<typename decltype(type)::type>>(bits);
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
