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

// Scratch memory of this thread, kept between calls. It is returned by a call, because the compiler
// would otherwise look up the thread's copy at every use.
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

// Searches for all `n` queries, in blocks that the threads take in turn, and calls
// finish(query number, task, answerer) on the thread that searched for it.
template <class C, class Finish>
void search_batch(const uint8_t* codes, size_t n, int bits, const LinearHash& hash, const Scope<C>& scope,
                  const SearchOptions& o, Finish&& finish) {
    if (!n) return;
    const int n_bytes = bits / 8;
    double cost = 0;  // per query, roughly
    for (const Plan<C>& plan : scope.plans) cost += 500 + plan.expected_cost();
    // Waking a thread takes some ten microseconds; give each enough to do.
    int threads = o.threads ? o.threads : usable_cores();
    threads = int(std::clamp(cost * double(n) / 5e4, 1.0, double(std::min<size_t>(size_t(threads), n))));
    // What a block finds should stay in the cache until it is answered.
    const size_t most = std::clamp<uint64_t>(16384 / std::max<uint64_t>(scope.k, 1), 8, Searcher<C>::block);
    const size_t block = std::clamp<size_t>(n / (4 * size_t(threads)), 1, most);
    std::atomic<size_t> next{0};
    parallel(threads, [&] {
        auto& work = workspace<C>();
        for (size_t begin; (begin = next.fetch_add(block)) < n;) {
            const size_t count = std::min(block, n - begin);
            for (size_t i = 0; i < count; ++i) {
                Task<C>& t = work.tasks[i];
                t.query = C::load(codes + (begin + i) * size_t(n_bytes), n_bytes);
                t.hash = hash(t.query);
                t.found.start(scope.k, scope.limits.radius);
            }
            try {
                work.searcher.run(work.tasks, count, scope.parts, scope.plans, hash, o.strategy);
                for (size_t i = 0; i < count; ++i) {
                    finish(begin + i, work.tasks[i], work.answerer);
                    work.tasks[i].found.trim();
                    work.answerer.trim();
                }
            } catch (...) {  // out of memory, or too many hits: keep none of the scratch memory
                next = n;
                for (Task<C>& t : work.tasks) t.found.trim();
                work.answerer.trim();
                throw;
            }
        }
    });
}

}  // namespace mch
