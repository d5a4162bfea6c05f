// A small thread pool. OpenMP is not used: two OpenMP runtimes in one process, such as those that torch
// and FAISS bring, crash or crawl.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

#include <pthread.h>

namespace mch {

class Workers {
  public:
    static constexpr int most = 256;

    // The threads of parallel(), and one thread for work that nobody waits for.
    static Workers& parallel_pool() { return *slot(0); }
    static Workers& background() { return *slot(1); }

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
    // Pools are never destroyed: their threads may still be waiting when the process ends. A forked child
    // has none of its parent's threads, so it gets new pools.
    static Workers*& slot(int i) {
        static Workers* pool[2] = {new Workers, new Workers};
        static const int once = pthread_atfork(nullptr, nullptr, [] {
            for (Workers*& p : pool) p = new Workers;
        });
        (void)once;
        return pool[i];
    }

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

inline int usable_cores() { return std::max(1, int(std::thread::hardware_concurrency())); }

// Runs `body` on the calling thread and on up to threads - 1 others at the same time; `body` takes shares
// of the work until none is left. Returns when all are done; rethrows what one of them threw.
inline void parallel(int threads, const std::function<void()>& body) {
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

}  // namespace mch
