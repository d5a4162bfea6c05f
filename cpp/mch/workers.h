// A small thread pool. OpenMP is not used: two OpenMP runtimes in one process, such as those that torch
// and FAISS bring, crash or crawl.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include "forks.h"
#include "platform.h"

namespace mch {

class Workers {
  public:
    static constexpr int most = 256;

    // The threads of parallel(), and one thread for work that nobody waits for.
    static Workers& parallel_pool();
    static Workers& background();

    // Runs `work`, which must not throw, on one of at most `threads` threads. Throws if no thread can be
    // started.
    void post(std::function<void()> work, int threads) {
        std::lock_guard lock(mutex_);
        queue_.push_back(std::move(work));
        try {
            for (; count_ < threads && count_ < most; ++count_) std::thread([this] { run(); }).detach();
        } catch (...) {  // the system has no more threads; the existing ones do the work
            if (!count_) {
                queue_.pop_back();
                throw;
            }
        }
        wake_.notify_one();
    }

  private:
    struct Pools;
    static Pools& pools_;

    void run() {
        std::unique_lock lock(mutex_);
        for (;;) {
            wake_.wait(lock, [&] { return !queue_.empty(); });
            auto work = std::move(queue_.front());
            queue_.pop_front();
            lock.unlock();
            work();
            work = nullptr;
            lock.lock();
        }
    }

    std::mutex mutex_;
    std::condition_variable wake_;
    std::deque<std::function<void()>> queue_;
    int count_ = 0;
};

// Pools are never destroyed: their threads may still be waiting when the process ends. A forked child has
// none of its parent's threads, so it gets new pools.
struct Workers::Pools {
    Workers* pool[2] = {new Workers, new Workers};
    AtFork at_fork{[] {}, [] {},
                   [this] {
                       for (Workers*& p : pool) p = new Workers;
                   }};
};

// Made when the library is loaded: a child cannot finish what another thread had begun to make.
inline Workers::Pools& Workers::pools_ = *new Workers::Pools;

inline Workers& Workers::parallel_pool() { return *pools_.pool[0]; }
inline Workers& Workers::background() { return *pools_.pool[1]; }

// A search asks for it: hardware_concurrency() alone would read a file each time.
inline int usable_cores() {
    const int cores = allowed_cores();
    return cores ? cores : std::max(1, int(std::thread::hardware_concurrency()));
}

// parallel() on more than one thread.
inline void run_on_several(int threads, const std::function<void()>& body) {
    struct Job {
        std::mutex mutex;
        std::condition_variable done;
        int running = 0;
        bool closed = false;
        std::exception_ptr error;
    };
    auto job = std::make_shared<Job>();
    auto help = [job, &body] {
        {
            std::lock_guard lock(job->mutex);
            if (job->closed) return;  // too late: `body` may no longer exist
            ++job->running;
        }
        std::exception_ptr error;
        try {
            body();
        } catch (...) {
            error = std::current_exception();
        }
        std::lock_guard lock(job->mutex);
        if (error) job->error = error;
        if (--job->running == 0) job->done.notify_all();
    };
    try {
        for (int i = 1; i < std::min(threads, Workers::most); ++i) Workers::parallel_pool().post(help, threads - 1);
    } catch (...) {  // no threads: this one does all the work
    }
    std::exception_ptr error;
    try {
        body();
    } catch (...) {
        error = std::current_exception();
    }
    std::unique_lock lock(job->mutex);
    job->closed = true;
    job->done.wait(lock, [&] { return job->running == 0; });
    if (!error) error = job->error;
    if (error) std::rethrow_exception(error);
}

// Runs `body` on the calling thread and on up to threads - 1 others at the same time; `body` takes shares
// of the work until none is left. Returns when all are done; rethrows what one of them threw.
template <class F>
void parallel(int threads, F&& body) {
    if (threads <= 1)
        body();
    else
        run_on_several(threads, std::ref(body));
}

// Calls f(i) for every i < n, on up to `threads` threads.
template <class F>
void for_each_share(int threads, size_t n, F&& f) {
    std::atomic<size_t> next{0};
    parallel(threads, [&] {
        for (size_t i; (i = next.fetch_add(1)) < n;) f(i);
    });
}

}  // namespace mch
