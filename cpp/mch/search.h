// The strategies. Each finds every bucket within the collector's bound, so their answers are identical;
// they differ in the codes they look at.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "collect.h"
#include "options.h"
#include "planner.h"
#include "residual.h"
#include "substring.h"
#include "workers.h"

namespace mch {

// The search for one query, through all parts of a table.
template <class C>
struct Task {
    C query;
    uint32_t hash;
    Collector<C> found;
    int complete = -1;                       // in the current part, all buckets up to this distance are collected
    Bound<C> guess{0};                       // in a scan of loose codes: how far this pass looks
    Bound<C> passed{-1};                     // and how far an earlier pass has looked
    bool learns = false;                     // whether what this pass finds shows how far to look
    bool ties = false;                       // whether many codes are as far away as the bound
    size_t before = 0;                       // buckets found before it
    Strategy answered_by = Strategy::probe;  // the last strategy that was needed, in any part
};

// The strategies and their scratch memory. Each thread has its own.
template <class C>
class Searcher {
  public:
    static constexpr size_t block = 64;  // queries that share a pass over the codes

    // Fetches what the answers of tasks [0, n) will read first, all together.
    static void prefetch_answers(const Task<C>* tasks, size_t n, const std::vector<View<C>>& parts) {
        constexpr size_t most = 16;  // hits per task
        auto each = [&](auto&& f) {
            for (size_t i = 0; i < n; ++i) {
                const auto& hits = tasks[i].found.hits();
                for (size_t j = 0; j < std::min(most, hits.size()); ++j)
                    if (hits[j].distance <= tasks[i].found.bound().distance)
                        f(*parts[hits[j].part].seg, parts[hits[j].part].seg->start(hits[j].bucket));
            }
        };
        each([](const Segment<C>& seg, uint32_t entry) { seg.image.prefetch(entry); });
        each([](const Segment<C>& seg, uint32_t entry) { seg.id.prefetch(seg.image[entry]); });
    }

    // Searches part after part for tasks [0, n). Strategy::substring builds a missing substring index;
    // Strategy::automatic uses one only if it exists. A large scan for a single task is shared by `threads`.
    // `reach`: codes that the K nearest images take, divided by K; it has been hardly more in earlier searches.
    void run(Task<C>* tasks, size_t n, const std::vector<View<C>>& parts, const std::vector<Plan<C>>& plans,
             const LinearHash& hash, Strategy strategy, int threads, double reach) {
        threads_ = n == 1 ? threads : 1;
        reach_ = reach;
        limit_ = n ? tasks[0].found.bound().distance : 0;
        for (size_t i = 0; i < n; ++i) tasks[i].answered_by = Strategy::probe;
        n_waiting_ = 0;  // an earlier search may have run out of memory
        for (uint32_t p = 0; p < parts.size(); ++p) {
            const View<C>& part = parts[p];
            pending_.clear();
            for (size_t i = 0; i < n; ++i) {
                tasks[i].complete = -1;
                tasks[i].passed = {-1};
                pending_.push_back(&tasks[i]);
            }
            if (part.seg->wide)
                search_wide(part, p, plans[p], strategy);
            else if (strategy == Strategy::automatic)
                search_part(part, p, plans[p], hash);
            else if (strategy == Strategy::substring)
                read_cells(part, p, hash, substring_index(*part.seg), INFINITY);
            else if (strategy == Strategy::probe)
                leave_pending([&](Task<C>& t) {
                    return probe(t, part, p, hash, part.seg->bits, 8.0 * part.seg->n_buckets + 4096);
                });
            scan_pending(part, p, plans[p]);
        }
    }

    // Whether a scan of so many codes takes much longer than waking a thread.
    static bool shares(size_t codes) { return codes * C::words >= size_t(1) << 20; }

    size_t bytes() const {
        return lower_.capacity() * sizeof lower_[0] + near_.capacity() * sizeof near_[0] +
               range_.capacity() * sizeof range_[0] + pending_.capacity() * sizeof pending_[0] +
               near_by_.capacity() * sizeof near_by_[0];
    }

  private:
    static constexpr size_t chunk = 2048;  // codes scanned before the bound is read again
    static constexpr size_t at_once = Segment<C>::most_at_once;
    static constexpr size_t line = 64 / sizeof(typename C::Word);  // words in a cache line

    // Calls search(task) for every pending task; it returns true if the task is done with this part.
    template <class Search>
    void leave_pending(Search&& search) {
        std::erase_if(pending_, [&](Task<C>* t) { return search(*t); });
    }

    // Probes near each query. What that leaves is done by the substring index, if there is one and it has
    // been faster than a scan, or is left to a scan.
    void search_part(const View<C>& part, uint32_t p, const Plan<C>& plan, const LinearHash& hash) {
        const Segment<C>& seg = *part.seg;
        probe_near(part, p, plan.probe_radius, hash);
        leave_pending([&](Task<C>& t) { return probe(t, part, p, hash, plan.probe_radius, INFINITY); });
        if (pending_.empty()) return;
        const size_t n = pending_.size();
        Experience& experience = seg.substring->experience;
        const int c = Experience::class_of(plan.k, plan.together, limit_, seg.bits);
        const auto* index = seg.substring->index.load(std::memory_order_acquire);
        // Ways that cannot pay are not tried.
        const double by_scan = experience.of(c, Experience::scan);
        const int next = plan.probe_radius + 1;
        const double all_flips = double(Binomials::get().choose(seg.bits, next)) * kCachedProbeCost;
        const auto way = experience.choose(
            c, {true, seg.n_groups && plan.all_cost < by_scan, all_flips < by_scan / 4, index != nullptr});
        Task<C>& one = *pending_.front();
        const double start = nanoseconds();
        // A query whose neighbours are far away would read most cells: a scan is faster then.
        if (way == Experience::cells) read_cells(part, p, hash, *index, experience.without_cells(c));
        if (way == Experience::flips)
            leave_pending([&](Task<C>& t) { return probe(t, part, p, hash, next, INFINITY); });
        if (way == Experience::scan_all)
            scan_loose(part, p, plan, 0);
        else
            scan_pending(part, p, plan);
        const double ns = (nanoseconds() - start) / double(n);
        if (threads_ == 1) experience.record(c, way, ns);  // several are no measure for one
        if (!index && !seg.substring->failed && experience.sample()) {
            // The estimate knows the final bound; a search starts with a wider one, and reads more.
            const double cells = 1.5 * SubstringIndex<C>::cost(seg, one.query, one.found.bound().distance);
            const double saved = experience.of(c, way) - cells;
            if (saved > 0) seg.substring->add_missed(saved * double(n * Experience::interval));
        }
    }

    void search_wide(const View<C>& part, uint32_t p, const Plan<C>& plan, Strategy strategy) {
        if constexpr (std::is_same_v<C, WideIndex::Whole>) {
            const double budget = strategy == Strategy::scan        ? 0
                                  : strategy == Strategy::automatic ? plan.wide_budget
                                                                    : INFINITY;
            leave_pending([&](Task<C>& t) {
                t.answered_by = std::max(t.answered_by, Strategy::substring);
                part.seg->wide->search(
                    t.query.w[0], budget, [&] { return t.found.bound().distance; },
                    [&](uint32_t bucket, int distance, uint64_t mask) {
                        if (t.found.bound().admits(mask, distance)) t.found.add(p, bucket, distance, mask);
                    });
                return true;
            });
        }
    }

    void read_cells(const View<C>& part, uint32_t p, const LinearHash& hash, const SubstringIndex<C>& index,
                    double budget) {
        leave_pending([&](Task<C>& t) {
            t.answered_by = std::max(t.answered_by, Strategy::substring);
            return substring(t, part, p, hash, index, budget);
        });
    }

    // Scans the groups in reach and the loose codes.
    void scan_pending(const View<C>& part, uint32_t p, const Plan<C>& plan) {
        leave_pending([&](Task<C>& t) {
            t.answered_by = Strategy::scan;
            scan_groups(t, part, p);
            return part.seg->loose_begin() == part.seg->n_buckets;
        });
        scan_loose(part, p, plan, part.seg->loose_begin());
    }

    // Queues a code whose bucket is not known yet. Returns true when it is time to call look_up(), which
    // looks up all queued codes side by side.
    bool look_up_later(Task<C>& t, const C& code, uint32_t hash, int distance) {
        waiting_[n_waiting_] = code;
        waiting_hash_[n_waiting_] = hash;
        waiting_for_[n_waiting_] = {&t, distance};
        return ++n_waiting_ == at_once;
    }
    uint32_t look_up(const View<C>& part, uint32_t p) {
        uint32_t images = 0;
        part.seg->find_many(waiting_, waiting_hash_, n_waiting_, waiting_bucket_);
        for (size_t i = 0; i < n_waiting_; ++i) {
            if (waiting_bucket_[i] == Segment<C>::none) continue;
            auto& [task, distance] = waiting_for_[i];
            const auto word = waiting_[i].w[0] ^ task->query.w[0];
            if (task->found.bound().admits(word, distance))
                images += task->found.add(p, waiting_bucket_[i], distance, word);
        }
        n_waiting_ = 0;
        return images;
    }

    // Looks up the queries' own buckets and, if `radius` is more than 0, their single flips, for all tasks
    // together: then the reads of one task overlap with those of the others.
    void probe_near(const View<C>& part, uint32_t p, int radius, const LinearHash& hash) {
        auto queue = [&](Task<C>& t, const C& code, uint32_t h, int distance) {
            if (look_up_later(t, code, h, distance)) look_up(part, p);
        };
        for (Task<C>* t : pending_) queue(*t, t->query, t->hash, 0);
        look_up(part, p);
        for (Task<C>* t : pending_) {
            t->complete = 0;
            if (radius == 0 || t->found.bound().distance == 0) continue;
            t->complete = 1;
            const size_t n = part.seg->occupied_flips(hash, t->hash, index_);
            for (size_t i = 0; i < n; ++i) {
                C code = t->query;
                code.flip(int(index_[i]));
                queue(*t, code, t->hash ^ hash.flip(int(index_[i])), 1);
            }
        }
        look_up(part, p);
    }

    // Looks up flipped codes by growing radius, as Algorithm 1 does, up to radius `last` and as long as
    // a radius has at most `most` masks. Returns true if the part is done.
    bool probe(Task<C>& t, const View<C>& part, uint32_t p, const LinearHash& hash, int last, double most) {
        const Segment<C>& seg = *part.seg;
        for (int r = t.complete + 1;; ++r) {
            if (r > t.found.bound().distance) return true;
            if (r > last || double(Binomials::get().choose(seg.bits, r)) > most) return false;
            // The rest of a radius can be skipped once earlier buckets hold K images: nearer ones, and
            // those of this part, which come in visiting order.
            uint64_t images = t.found.images_below(r);
            for_each_flip(t.query, t.hash, hash, seg.bits, r, [&](const C& code, uint32_t h) {
                if (!look_up_later(t, code, h, r)) return true;
                images += look_up(part, p);
                return images < t.found.k();
            });
            look_up(part, p);
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
            const double cost = SubstringIndex<C>::step_cost(*part.seg, r);
            for (int j = 0; j < m; ++j) {
                if (m * r + j - 1 >= t.found.bound().distance) return true;  // all within m * r + j - 1 are found
                if (spent + cost > budget) {
                    t.complete = std::max(probed, m * r + j - 1);
                    t.found.forget([&](const auto& h) { return h.part == p && h.distance > t.complete; });
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
                            if (distance_[h] <= probed) continue;
                            const C code = codes.at(index_[h]), mask = code ^ t.query;
                            if (t.found.bound().admits(mask.w[0], distance_[h]) && index.first_seen(mask, r, j) &&
                                look_up_later(t, code, hash(code), distance_[h]))
                                look_up(part, p);
                        }
                    }
                }
                look_up(part, p);
            }
        }
        return true;  // every cell of every window was visited
    }

    // Scans buckets [begin, end) up to a bound.
    void scan_range(Task<C>& t, const View<C>& part, uint32_t p, size_t begin, size_t end, const Bound<C>& bound) {
        take(t, part, p, kernels<C>().scan(part.seg->codes(), begin, end, t.query, bound, index_, distance_));
    }
    static const Bound<C>& within_guess(const Task<C>& t) {
        return t.found.bound().covers(t.guess) ? t.guess : t.found.bound();
    }

    // Collects the first n of the buckets that a kernel found.
    void take(Task<C>& t, const View<C>& part, uint32_t p, size_t n) { take(t, part, p, n, index_, distance_); }
    static void take(Task<C>& t, const View<C>& part, uint32_t p, size_t n, const uint32_t* index,
                     const uint16_t* distance) {
        const auto* first_word = part.seg->code[0].data();
        for (size_t i = 0; i < n; ++i) {
            part.seg->prefetch_start(index[i]);
            __builtin_prefetch(first_word + index[i]);
        }
        for (size_t i = 0; i < n; ++i) {
            const int d = distance[i];
            const auto word = first_word[index[i]] ^ t.query.w[0];
            if (d > t.complete && !t.passed.admits(word, d) && t.found.bound().admits(word, d))
                t.found.add(p, index[i], d, word);
        }
    }

    // Scans groups in the order of the smallest distance they may contain, while that is within the bound.
    void scan_groups(Task<C>& t, const View<C>& part, uint32_t p) {
        const Segment<C>& seg = *part.seg;
        if (!seg.n_groups) return;
        lower_.resize(seg.n_groups);
        near_.resize(seg.n_groups);
        kernels<C>().lower_bounds(seg.pivots(), seg.group_radius.data(), seg.n_groups, t.query, lower_.data());
        const int step = std::max(1, seg.bits / 32);
        for (int low = 0; low <= std::min(t.found.bound().distance, 255); low += step) {
            size_t n =
                kernels<C>().select(lower_.data(), seg.n_groups, low, std::min(low + step - 1, 255), near_.data());
            const int reach = t.found.bound().distance;
            range_.resize(n);
            for (size_t i = 0; i < n; ++i) {
                range_[i] = in_reach(seg, near_[i], reach);
                if (t.found.full() && prefetch_residuals(t, seg, near_[i])) continue;
                for (size_t at = range_[i].first; at < std::min(range_[i].second, range_[i].first + 4 * line);
                     at += line)
                    seg.codes().prefetch(at);
            }
            for (size_t i = 0; i < n; ++i) {
                const int now = t.found.bound().distance;
                const auto [begin, end] = reach == now ? range_[i] : in_reach(seg, near_[i], now);
                if (begin == end || scan_residuals(t, part, p, near_[i])) continue;
                // From the centre outwards, in growing steps, so that the bound shrinks quickly.
                for (size_t to = end, length = 64; to > begin; length = std::min(2 * length, chunk)) {
                    const size_t from = std::max(begin, to - std::min(to, length));
                    scan_range(t, part, p, from, to, t.found.bound());
                    to = from;
                }
            }
        }
    }

    // Scans a group by the bits in which the query differs from the pivot, if the group has planes and these
    // bits are few enough to make that faster than scan_range(). Returns false if not.
    bool scan_residuals(Task<C>& t, const View<C>& part, uint32_t p, uint32_t g) {
        const Segment<C>& seg = *part.seg;
        const GroupPlanes<C>* all = seg.planes->get();
        if (!all || !all->has(g)) return false;
        uint8_t bits[most_residual_bits];
        const int n = residual_bits(t.query, seg, g, bits);
        if (n > most_residual_bits) return false;
        const ResidualPlanes planes = all->of(seg, g);
        constexpr size_t block = ResidualPlanes::block;
        const size_t base = seg.group_begin(g);
        size_t to = seg.group_end(g) - base, step = 64;
        // Until there are K images, all codes near the centre are hits, and it is faster to scan them.
        for (; to > 0 && !t.found.full(); step = std::min(2 * step, chunk)) {
            const size_t from = to - std::min(to, step);
            scan_range(t, part, p, base + from, base + to, t.found.bound());
            to = from;
        }
        // From the centre outwards, in growing steps, so that the bound shrinks quickly.
        for (size_t blocks = 1; to > 0; blocks = std::min(2 * blocks, chunk / block)) {
            const int bound = t.found.bound().distance;
            // Shells that are further than the bound from the query hold nothing.
            const size_t outermost = size_t(std::max(0, planes.radius - n - bound));
            if (base + to <= planes.shells[outermost]) break;
            const size_t whole = (to + block - 1) / block, from = (whole - std::min(whole, blocks)) * block;
            const size_t next = from - std::min(from, std::min(2 * blocks, chunk / block) * block);
            for (size_t at = next; at < from; at += block) prefetch_planes(planes, at, bits, n);
            take(t, part, p, kernels<C>().residuals(planes, from, to, bits, n, bound, index_, distance_));
            to = from;
        }
        return true;
    }

    // Writes the bits in which a query differs from a group's pivot, if they are at most most_residual_bits, and
    // returns how many they are.
    static int residual_bits(const C& query, const Segment<C>& seg, uint32_t g, uint8_t* bits) {
        const C residual = query ^ seg.pivots().at(g);
        const int n = residual.popcount();
        if (n > most_residual_bits) return n;
        for (int i = 0; i < C::words; ++i)
            for (auto w = residual.w[i]; w; w ^= typename C::Word(1) << (C::word_bits - 1 - std::countl_zero(w)))
                *bits++ = uint8_t(i * C::word_bits + std::countl_zero(w));
        return n;
    }

    static void prefetch_planes(const ResidualPlanes& planes, size_t begin, const uint8_t* bits, int n) {
        for (int i = 0; i < n; ++i) __builtin_prefetch(planes.at(begin) + bits[i] * ResidualPlanes::words);
    }

    // Fetches what scan_residuals() reads first. Returns false if the group will be scanned instead.
    static bool prefetch_residuals(const Task<C>& t, const Segment<C>& seg, uint32_t g) {
        const GroupPlanes<C>* all = seg.planes->get();
        uint8_t bits[most_residual_bits];
        if (!all || !all->has(g)) return false;
        const int n = residual_bits(t.query, seg, g, bits);
        if (n > most_residual_bits) return false;
        const size_t size = seg.group_end(g) - seg.group_begin(g);
        prefetch_planes(all->of(seg, g), (size - 1) / ResidualPlanes::block * ResidualPlanes::block, bits, n);
        return true;
    }

    // The range of a group's buckets that may be within `bound` of the query, by the triangle inequality:
    // the outer shells, or all of them if the query is inside the group.
    std::pair<size_t, size_t> in_reach(const Segment<C>& seg, uint32_t g, int bound) const {
        const uint32_t shell = seg.group_shell[g], last = seg.group_shell[g + 1];
        if (lower_[g] > bound) return {0, 0};
        const uint32_t shells = lower_[g] ? uint32_t(bound - lower_[g]) + 1 : last - shell;
        return {seg.shell_start[shell], seg.shell_start[std::min(shell + shells, last)]};
    }

    // Scans the codes from `begin`, the first loose one or 0, chunk by chunk for all pending tasks, so that a chunk is
    // read from memory once.
    //
    // It is faster to look only as far as K images are expected, and further only if that fails: else many come nearer
    // and nearer while a scan goes on. Loose codes are in no order, so the first ones are a sample. If any come as near
    // as uniform ones would, K images are no further away than among uniform codes, and the plan knows how far that is.
    // What is found on the way shows whether they are nearer, and shows it better and better. Codes of groups are in
    // some order; for queries near which groups are not, it hardly matters.
    void scan_loose(const View<C>& part, uint32_t p, const Plan<C>& plan, size_t begin) {
        if (pending_.empty()) return;
        const Segment<C>& seg = *part.seg;
        const size_t end = seg.n_buckets, n = end - begin;
        for (Task<C>* t : pending_) t->answered_by = Strategy::scan;
        const double live = part.only ? 0 : 1 - double(part.dead ? part.dead->count() : 0) / double(seg.n_images);
        // The codes of the K nearest images, per loose code; 0: unknown.
        const double share = live > 0.8 && n > 8 * chunk ? reach_ * double(plan.k) / (live * double(n)) : 0;
        for (Task<C>* t : pending_) {
            t->guess = {seg.bits};
            t->learns = t->ties = false;
            if (t->found.full()) continue;
            const bool uniform =
                begin == seg.loose_begin() && kernels<C>().scan(seg.codes(), begin, std::min(end, begin + plan.sample),
                                                                t->query, {plan.nearest}, index_, distance_);
            if (uniform) t->guess = plan.guess;
            t->learns = share > 0 && share < 0.1;
            if (t->learns) {
                t->before = t->found.hits().size();
                const size_t hits =
                    kernels<C>().scan(seg.codes(), begin, begin + chunk, t->query, t->guess, index_, distance_);
                near_by_.clear();
                for (size_t i = 0; i < hits; ++i)
                    near_by_.push_back({seg.code[0][index_[i]] ^ t->query.w[0], distance_[i]});
                look_less_far(*t, share * chunk);
            }
        }
        for (int pass = 0; pass < 2 && !pending_.empty(); ++pass) {
            for (Task<C>* t : pending_)  // in growing steps, so that the bound shrinks quickly
                for (size_t at = begin, length = 64; at < std::min(end, begin + chunk); at += length, length *= 2)
                    scan_range(*t, part, p, at, std::min({end, at + length, begin + chunk}), within_guess(*t));
            if (threads_ > 1 && shares(n))
                scan_shared(*pending_.front(), part, p, begin + chunk);
            else
                scan_chunks(part, p, begin + chunk, share);
            leave_pending([&](Task<C>& t) { return t.found.ends_within(t.guess); });
            for (Task<C>* t : pending_) {
                t->passed = t->guess, t->guess = {seg.bits}, t->learns = false;
                // The guess was wider at first: what lies beyond it now will be found again.
                t->found.forget([&](const auto& h) {
                    return h.part == p && h.bucket >= begin && h.distance > t->complete &&
                           !t->passed.admits(h.first_word, h.distance);
                });
            }
        }
    }

    // Moves a guess to where as many codes of near_by_ are within it as were expected, and some more, in case they are
    // too many by chance.
    void look_less_far(Task<C>& t, double expected) {
        const auto enough = size_t(expected + 3 * std::sqrt(expected) + 4) + t.before;
        if (near_by_.size() < enough) return;
        const auto last = near_by_.begin() + long(enough - 1);
        std::nth_element(near_by_.begin(), last, near_by_.end(), [](const NearBy& a, const NearBy& b) {
            return a.distance != b.distance ? a.distance < b.distance : a.first_word > b.first_word;
        });
        const Bound<C> nearer{last->distance, last->first_word};
        if (t.guess.covers(nearer)) t.guess = nearer;
    }

    void scan_chunks(const View<C>& part, uint32_t p, size_t begin, double share) {
        const size_t end = part.seg->n_buckets, n = pending_.size();
        size_t done = chunk;
        for (size_t learn_at = 2 * chunk; begin < end && n; begin += chunk, done += chunk) {
            if (done == learn_at) {
                learn_at *= 2;
                for (Task<C>* t : pending_) {
                    t->ties = false;  // the bound may have moved to where codes are few
                    if (!t->learns) continue;
                    near_by_.clear();
                    for (const auto& h : t->found.hits()) near_by_.push_back({h.first_word, h.distance});
                    look_less_far(*t, share * double(done));
                }
            }
            const size_t to = std::min(end, begin + chunk);
            for (size_t i = 0; i < n; i += kLanes) {
                const size_t some = std::min(kLanes, n - i);
                if (some == kLanes)
                    scan_lanes(part, p, begin, to, &pending_[i]);
                else
                    for (size_t j = i; j < n; ++j)
                        scan_range(*pending_[j], part, p, begin, to, within_guess(*pending_[j]));
            }
        }
    }

    // Scans the loose codes from `begin` for one task, on several threads. Each collects what it finds by itself.
    void scan_shared(Task<C>& t, const View<C>& part, uint32_t p, size_t begin) {
        constexpr size_t piece = 32 * chunk;
        const size_t end = part.seg->n_buckets;
        std::atomic<size_t> next{begin};
        std::mutex merging;
        parallel(threads_, [&] {
            uint32_t index[chunk + kScanSlack];
            uint16_t distance[chunk + kScanSlack];
            SeenIds seen;
            Task<C> own{t.query, t.hash, {}, t.complete, t.guess, t.passed};
            {
                std::lock_guard lock(merging);
                own.found.start_like(t.found, seen);
            }
            for (size_t from; (from = next.fetch_add(piece)) < end;)
                for (size_t at = from; at < std::min(end, from + piece); at += chunk)
                    take(own, part, p,
                         kernels<C>().scan(part.seg->codes(), at, std::min(end, at + chunk), t.query, within_guess(own),
                                           index, distance),
                         index, distance);
            std::lock_guard lock(merging);
            for (const auto& h : own.found.hits())
                if (t.found.bound().admits(h.first_word, h.distance))
                    t.found.add(p, h.bucket, h.distance, h.first_word);
        });
    }

    // Scans buckets [begin, end) for kLanes tasks.
    void scan_lanes(const View<C>& part, uint32_t p, size_t begin, size_t end, Task<C>* const* tasks) {
        constexpr size_t room = chunk + kScanSlack;
        Lane<C> lanes[kLanes];
        for (size_t j = 0; j < kLanes; ++j)
            lanes[j] = {tasks[j]->query,           within_guess(*tasks[j]), lane_index_ + j * room,
                        lane_distance_ + j * room, tasks[j]->ties,          0};
        kernels<C>().scan_lanes(part.seg->codes(), begin, end, lanes);
        for (size_t j = 0; j < kLanes; ++j) {
            tasks[j]->ties = lanes[j].ties;
            take(*tasks[j], part, p, lanes[j].found, lanes[j].index, lanes[j].distance);
        }
    }

    // With more bits, reading their planes takes longer than reading the codes.
    static constexpr int most_residual_bits = C::word_bits == 32 ? 6 : 18 * C::words;

    struct Waiting {
        Task<C>* task;
        int distance;
    };
    C waiting_[at_once];
    uint32_t waiting_hash_[at_once], waiting_bucket_[at_once];
    Waiting waiting_for_[at_once];
    size_t n_waiting_ = 0;
    uint32_t index_[chunk + kScanSlack];
    uint16_t distance_[chunk + kScanSlack];
    uint32_t lane_index_[kLanes * (chunk + kScanSlack)];
    uint16_t lane_distance_[kLanes * (chunk + kScanSlack)];
    struct NearBy {
        typename C::Word first_word;  // of the XOR mask
        int distance;
    };
    std::vector<NearBy> near_by_;  // codes that a scan has found
    std::vector<uint8_t> lower_;
    std::vector<uint32_t> near_;
    std::vector<std::pair<size_t, size_t>> range_;
    std::vector<Task<C>*> pending_;
    int threads_ = 1;
    double reach_ = 1;
    int limit_ = 0;  // the largest radius of the search
};

}  // namespace mch
