// Answers a batch of queries on several threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "answer.h"
#include "scope.h"
#include "search.h"
#include "workers.h"

namespace mch {

// Bytes of scratch memory that all threads of the process keep between searches.
inline std::atomic<uint64_t> scratch_bytes{0};

// Scratch memory of a thread, kept between searches.
template <class C>
struct Workspace {
    static constexpr size_t most_kept = size_t(1) << 20;  // bytes, beside the object itself

    Searcher<C> searcher;
    Task<C> tasks[Searcher<C>::block];
    Answerer<C> answerer;

    Workspace() { scratch_bytes += reported_; }
    ~Workspace() { scratch_bytes -= reported_; }

    // At the end of a search: frees what a thread should not keep.
    void trim() {
        size_t bytes = used();
        if (bytes > most_kept) {
            for (Task<C>& t : tasks) t.found = {};
            answerer = {};
            if (searcher.bytes() > most_kept) searcher = {};
            bytes = used();
        }
        bytes += sizeof *this;
        if (bytes == reported_) return;
        scratch_bytes += bytes - reported_;
        reported_ = bytes;
    }

  private:
    size_t used() const {
        size_t bytes = searcher.bytes() + answerer.bytes();
        for (const Task<C>& t : tasks) bytes += t.found.bytes();
        return bytes;
    }
    size_t reported_ = sizeof *this;
};

// The workspace of this thread. It is returned by a call, because the compiler would otherwise look up
// the thread's copy at every use.
template <class C>
[[gnu::noinline]] Workspace<C>& workspace() {
    static thread_local Workspace<C> kept;
    return kept;
}

// How many queries each strategy has answered: the last one that a query needed.
struct AnswerCounts {
    std::atomic<uint64_t> by[4] = {};  // by Strategy
    std::atomic<uint64_t> collected{0};
    // Distinct codes of the K nearest images, divided by K: hardly more in any answer yet that took a scan.
    std::atomic<float> reach{0};

    void learn_reach(const Answer& a) {
        const float now = reach.load(std::memory_order_relaxed), seen = float(a.codes) / float(a.count);
        reach.store(seen > now ? seen : now + (seen - now) / 64, std::memory_order_relaxed);
    }
};

// Searches for all `n` queries, in blocks that the threads take in turn, and calls
// finish(query number, task, answerer) on the thread that searched for it; it returns the answer. Throws TooManyHits if
// one query of a range search has more than max_hits.
template <class C, class Finish>
void search_batch(const uint8_t* codes, size_t n, int bits, const LinearHash& hash, const Scope<C>& scope,
                  const SearchOptions& o, AnswerCounts& counts, Finish&& finish) {
    if (!n) return;
    const int n_bytes = bits / 8;
    double cost = 0;  // per query, roughly
    for (const Plan<C>& plan : scope.plans) cost += 500 + plan.expected_cost;
    // Waking a thread takes some ten microseconds; give each enough to do.
    int threads = int(std::clamp(cost * double(n) / 5e4, 1.0, double(std::min<size_t>(Workers::most, n))));
    if (threads > 1) threads = std::min(threads, o.threads ? o.threads : usable_cores());  // asking takes a microsecond
    int for_one = 1;                                                                       // threads for one query
    if (n == 1 && o.threads != 1)
        for (const View<C>& v : scope.parts)
            if (!v.seg->wide && Searcher<C>::shares(v.seg->n_buckets - v.seg->loose_begin()))
                for_one = o.threads ? o.threads : usable_cores();
    // What a block finds should stay in the cache until it is answered.
    const size_t most = std::clamp<uint64_t>(32768 / std::max<uint64_t>(scope.k, 1), 8, Searcher<C>::block);
    const size_t block = std::clamp<size_t>(threads == 1 ? n : n / (4 * size_t(threads)), 1, most);
    const uint64_t most_hits = o.k == UINT64_MAX ? o.max_hits : UINT64_MAX;  // of one query
    float reach = counts.reach.load(std::memory_order_relaxed);
    if (reach == 0) {
        uint64_t n_buckets = 0;
        for (const View<C>& v : scope.parts) n_buckets += v.seg->n_buckets;
        reach = float(n_buckets) / float(std::max<uint64_t>(scope.n_images, 1));
    }
    std::atomic<size_t> next{0};
    auto take_some = [&](Workspace<C>& work) {
        for (size_t begin; (begin = next.fetch_add(block)) < n;) {
            const size_t count = std::min(block, n - begin);
            for (size_t i = 0; i < count; ++i) {
                Task<C>& t = work.tasks[i];
                t.query = C::load(codes + (begin + i) * size_t(n_bytes), n_bytes);
                t.hash = hash(t.query);
                t.found.start(scope.k, {scope.limits.radius, scope.limits.last_mask.w[0]}, t.query, scope.parts,
                              scope.several, work.answerer.seen(), most_hits);
            }
            work.searcher.run(work.tasks, count, scope.parts, scope.plans, hash, o.strategy, for_one, reach);
            Searcher<C>::prefetch_answers(work.tasks, count, scope.parts);
            uint64_t answered[4] = {}, collected = 0;
            for (size_t i = 0; i < count; ++i) {
                collected += work.tasks[i].found.added();
                const Answer a = finish(begin + i, work.tasks[i], work.answerer);
                if (a.count && a.count == scope.k && work.tasks[i].answered_by == Strategy::scan) counts.learn_reach(a);
                work.tasks[i].found.trim();
                work.answerer.trim();
                ++answered[size_t(work.tasks[i].answered_by)];
            }
            counts.collected.fetch_add(collected, std::memory_order_relaxed);
            for (size_t s = 0; s < 4; ++s)
                if (answered[s]) counts.by[s].fetch_add(answered[s], std::memory_order_relaxed);
        }
    };
    auto take_blocks = [&] {
        auto& work = workspace<C>();
        try {
            take_some(work);
        } catch (...) {  // out of memory, or too many hits
            next = n;
            work.trim();
            throw;
        }
        work.trim();
    };
    if (threads == 1)
        take_blocks();
    else
        parallel(threads, take_blocks);
}

}  // namespace mch
