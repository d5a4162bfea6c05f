// The strategies. Each finds every bucket within the collector's bound, so their answers are identical;
// they differ in the codes they look at.
#pragma once

#include <cstdint>
#include <vector>

#include "collect.h"
#include "options.h"
#include "planner.h"
#include "substring.h"

namespace mch {

// The search for one query, through all parts of a table.
template <class C>
struct Task {
    C query;
    uint32_t hash;
    Collector<C> found;
    int complete = -1;  // in the current part, all buckets up to this distance are collected
    int guess = 0;      // in a scan of loose codes: how far this pass looks
};

// The strategies and their scratch memory. Each thread has its own.
template <class C>
class Searcher {
  public:
    static constexpr size_t block = 32;  // queries that share a pass over the codes

    // Searches part after part for tasks [0, n). Strategy::substring builds a missing substring index;
    // Strategy::automatic uses one only if it exists.
    void run(Task<C>* tasks, size_t n, const std::vector<View<C>>& parts, const std::vector<Plan<C>>& plans,
             const LinearHash& hash, Strategy strategy) {
        n_waiting_ = 0;  // an earlier search may have run out of memory
        for (uint32_t p = 0; p < parts.size(); ++p) {
            const View<C>& part = parts[p];
            pending_.clear();
            for (size_t i = 0; i < n; ++i) {
                tasks[i].complete = -1;
                if (!search_part(tasks[i], part, p, plans[p], hash, strategy)) pending_.push_back(&tasks[i]);
            }
            scan_loose(part, p, plans[p]);
        }
    }

  private:
    static constexpr size_t chunk = 2048;  // codes scanned before the bound is read again
    static constexpr size_t at_once = Segment<C>::most_at_once;
    static constexpr size_t line = 64 / sizeof(typename C::Word);  // words in a cache line

    // Returns true if the part is done, false if its loose codes are still to be scanned.
    bool search_part(Task<C>& t, const View<C>& part, uint32_t p, const Plan<C>& plan, const LinearHash& hash,
                     Strategy strategy) {
        const Segment<C>& seg = *part.seg;
        switch (strategy) {
            case Strategy::probe:
                if (probe(t, part, p, hash, seg.bits, 8.0 * seg.n_buckets + 4096)) return true;
                break;
            case Strategy::substring:
                return substring(t, part, p, hash, substring_index(seg), INFINITY);
            case Strategy::automatic: {
                if (probe(t, part, p, hash, plan.probe_radius, INFINITY)) return true;
                if (!plan.substring_pays()) break;
                if (auto* index = seg.substring->index.load(std::memory_order_acquire)) {
                    if (substring(t, part, p, hash, *index, plan.substring_budget())) return true;
                } else {
                    const double missed = plan.substring_pays_near() ? plan.scan_near - plan.substring_near
                                                                     : plan.scan_far - plan.substring_far;
                    seg.substring->missed.fetch_add(missed, std::memory_order_relaxed);
                }
                break;
            }
            case Strategy::scan:
                break;
        }
        scan_groups(t, part, p);
        return seg.loose_begin() == seg.n_buckets;
    }

    // Returns the bucket's weight.
    uint32_t add(Task<C>& t, const View<C>& part, uint32_t p, uint32_t bucket, int distance) {
        uint32_t weight = part.weight(bucket, t.found.k());
        if (weight || part.any_live(bucket)) t.found.add(p, bucket, distance, weight);
        return weight;
    }

    // Queues a code whose bucket is not known yet. Returns true when it is time to call look_up(), which
    // looks up all queued codes side by side.
    bool look_up_later(const C& code, uint32_t hash, int distance) {
        waiting_[n_waiting_] = code;
        waiting_hash_[n_waiting_] = hash;
        waiting_distance_[n_waiting_] = uint16_t(distance);
        return ++n_waiting_ == at_once;
    }
    uint32_t look_up(Task<C>& t, const View<C>& part, uint32_t p) {
        uint32_t images = 0;
        part.seg->find_many(waiting_, waiting_hash_, n_waiting_, waiting_bucket_);
        for (size_t i = 0; i < n_waiting_; ++i)
            if (waiting_bucket_[i] != Segment<C>::none && waiting_distance_[i] <= t.found.bound())
                images += add(t, part, p, waiting_bucket_[i], waiting_distance_[i]);
        n_waiting_ = 0;
        return images;
    }

    // Looks up flipped codes by growing radius, as Algorithm 1 does, up to radius `last` and as long as
    // a radius has at most `most` masks. Returns true if the part is done.
    bool probe(Task<C>& t, const View<C>& part, uint32_t p, const LinearHash& hash, int last, double most) {
        const Segment<C>& seg = *part.seg;
        for (int r = 0;; ++r) {
            if (r > t.found.bound()) return true;
            if (r > last || double(Binomials::get().choose(seg.bits, r)) > most) return false;
            // The rest of a radius can be skipped once earlier buckets hold K images: nearer ones, and
            // those of this part, which come in visiting order.
            uint64_t images = t.found.images_below(r);
            for_each_flip(t.query, t.hash, hash, seg.bits, r, [&](const C& code, uint32_t h) {
                if (!look_up_later(code, h, r)) return true;
                images += look_up(t, part, p);
                return images < t.found.k();
            });
            look_up(t, part, p);
            t.complete = r;
        }
    }

    // Reads cells by growing distance from the query's cell, window by window, as long as the expected
    // cost stays within `budget` nanoseconds. Returns true if the part is done.
    bool substring(Task<C>& t, const View<C>& part, uint32_t p, const LinearHash& hash, const SubstringIndex<C>& index,
                   double budget) {
        const auto& scan = kernels<C>().scan;
        const int m = index.m(), probed = t.complete;
        double spent = 0;
        for (int r = 0; r <= index.s(); ++r) {
            const uint32_t* mask = index.masks().mask.data() + index.masks().start[r];
            const uint32_t n = index.masks().start[r + 1] - index.masks().start[r];
            const double cost = Plan<C>::step_cost(*part.seg, r);
            for (int j = 0; j < m; ++j) {
                if (m * r + j - 1 >= t.found.bound()) return true;  // all within m * r + j - 1 are found
                if (spent + cost > budget) {
                    t.complete = std::max(probed, m * r + j - 1);
                    t.found.forget_beyond(t.complete, p, part);
                    return false;
                }
                spent += cost;
                const auto& w = index.window(j);
                const Planes<C> codes = w.codes();
                const uint32_t home = t.query.window(w.begin, index.s());
                constexpr uint32_t far = 24, near = 12;  // how many cells ahead to prefetch
                for (uint32_t i = 0; i < n; ++i) {
                    if (i + far < n) __builtin_prefetch(&w.start[home ^ mask[i + far]]);
                    if (i + near < n) {
                        const uint32_t* cell = &w.start[home ^ mask[i + near]];
                        for (uint32_t at = cell[0]; at < std::min(cell[1], cell[0] + 64); at += 8) codes.prefetch(at);
                    }
                    const uint32_t begin = w.start[home ^ mask[i]], end = w.start[(home ^ mask[i]) + 1];
                    size_t length = 64;  // short at first, because the bound shrinks fastest then
                    for (size_t at = begin; at < end; at += length, length = std::min(2 * length, chunk)) {
                        size_t hits = scan(codes, at, std::min<size_t>(end, at + length), t.query, t.found.bound(),
                                           index_, distance_);
                        for (size_t h = 0; h < hits; ++h) {
                            if (distance_[h] <= probed || distance_[h] > t.found.bound()) continue;
                            const C code = codes.at(index_[h]);
                            if (index.first_seen(code ^ t.query, r, j) && look_up_later(code, hash(code), distance_[h]))
                                look_up(t, part, p);
                        }
                    }
                }
                look_up(t, part, p);
            }
        }
        return true;  // every cell of every window was visited
    }

    void scan_range(Task<C>& t, const View<C>& part, uint32_t p, size_t begin, size_t end, int cap) {
        size_t n = kernels<C>().scan(part.seg->codes(), begin, end, t.query, std::min(cap, t.found.bound()), index_,
                                     distance_);
        for (size_t i = 0; i < n; ++i) part.seg->prefetch_start(index_[i]);
        for (size_t i = 0; i < n; ++i)
            if (distance_[i] > t.complete && distance_[i] <= t.found.bound()) add(t, part, p, index_[i], distance_[i]);
    }

    // Scans groups in the order of the smallest distance they may contain, while that is within the bound.
    void scan_groups(Task<C>& t, const View<C>& part, uint32_t p) {
        const Segment<C>& seg = *part.seg;
        if (!seg.n_groups) return;
        lower_.resize(seg.n_groups);
        near_.resize(seg.n_groups);
        kernels<C>().lower_bounds(seg.pivots(), seg.group_radius.data(), seg.n_groups, t.query, lower_.data());
        const int step = std::max(1, seg.bits / 32);
        for (int low = 0; low <= std::min(t.found.bound(), 255); low += step) {
            size_t n =
                kernels<C>().select(lower_.data(), seg.n_groups, low, std::min(low + step - 1, 255), near_.data());
            const int reach = t.found.bound();
            range_.resize(n);
            for (size_t i = 0; i < n; ++i) {
                range_[i] = in_reach(seg, near_[i], reach);
                for (size_t at = range_[i].first; at < std::min(range_[i].second, range_[i].first + 4 * line);
                     at += line)
                    seg.codes().prefetch(at);
            }
            for (size_t i = 0; i < n; ++i) {
                const auto [begin, end] =
                    reach == t.found.bound() ? range_[i] : in_reach(seg, near_[i], t.found.bound());
                // From the centre outwards, in growing steps, so that the bound shrinks quickly.
                for (size_t to = end, length = 64; to > begin; length = std::min(2 * length, chunk)) {
                    const size_t from = std::max(begin, to - std::min(to, length));
                    scan_range(t, part, p, from, to, seg.bits);
                    to = from;
                }
            }
        }
    }

    // The range of a group's buckets that may be within `bound` of the query, by the triangle inequality:
    // the outer shells, or all of them if the query is inside the group.
    std::pair<size_t, size_t> in_reach(const Segment<C>& seg, uint32_t g, int bound) const {
        const uint32_t shell = seg.group_shell[g], last = seg.group_shell[g + 1];
        if (lower_[g] > bound) return {0, 0};
        const uint32_t shells = lower_[g] ? uint32_t(bound - lower_[g]) + 1 : last - shell;
        return {seg.shell_start[shell], seg.shell_start[std::min(shell + shells, last)]};
    }

    // Scans the loose codes, chunk by chunk for all pending tasks, so that a chunk is read from memory
    // once. The first pass looks only as far as K images are expected; later passes look further.
    void scan_loose(const View<C>& part, uint32_t p, const Plan<C>& plan) {
        const Segment<C>& seg = *part.seg;
        for (int pass = 0; pass < 3 && !pending_.empty(); ++pass) {
            for (Task<C>* t : pending_) t->guess = pass < 2 ? plan.guess[pass] : seg.bits;
            for (size_t at = seg.loose_begin(); at < seg.n_buckets; at += chunk)
                for (Task<C>* t : pending_)
                    if (t->guess > t->complete)
                        scan_range(*t, part, p, at, std::min<size_t>(seg.n_buckets, at + chunk), t->guess);
            std::erase_if(pending_, [&](Task<C>* t) { return t->found.bound() <= t->guess; });
            for (Task<C>* t : pending_) t->complete = std::max(t->complete, t->guess);
        }
    }

    C waiting_[at_once];
    uint32_t waiting_hash_[at_once], waiting_bucket_[at_once];
    uint16_t waiting_distance_[at_once];
    size_t n_waiting_ = 0;
    uint32_t index_[chunk + kScanSlack];
    uint16_t distance_[chunk + kScanSlack];
    std::vector<uint8_t> lower_;
    std::vector<uint32_t> near_;
    std::vector<std::pair<size_t, size_t>> range_;
    std::vector<Task<C>*> pending_;
};

}  // namespace mch
