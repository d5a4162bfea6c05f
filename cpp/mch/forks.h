// What must happen when the process forks. A child has only the thread that forked: a lock that another
// thread held at that moment would stay locked in the child for ever.
#pragma once

#include <functional>
#include <mutex>
#include <new>
#include <set>

#include <pthread.h>

namespace mch {

// Calls functions around each fork, as long as it exists. It should be the last member of the object whose
// locks it handles, so that it is gone before they are.
class AtFork {
  public:
    using Action = std::function<void()>;

    // `before` and `parent` run in the forking process, `child` runs in the new one. Between `before` and
    // the others, other threads go on, and other objects take their locks.
    AtFork(Action before, Action parent, Action child)
        : before_(std::move(before)), parent_(std::move(parent)), child_(std::move(child)) {
        std::lock_guard lock(all_.mutex);
        all_.members.insert(this);
    }
    ~AtFork() {
        std::lock_guard lock(all_.mutex);
        all_.members.erase(this);
    }
    AtFork(const AtFork&) = delete;

  private:
    struct All {
        std::mutex mutex;
        std::set<const AtFork*> members;

        All() {
            pthread_atfork(
                [] {
                    all_.mutex.lock();
                    for (auto* a : all_.members) a->before_();
                },
                [] {
                    for (auto* a : all_.members) a->parent_();
                    all_.mutex.unlock();
                },
                [] {
                    for (auto* a : all_.members) a->child_();
                    all_.mutex.unlock();
                });
        }
    };
    // Made when the library is loaded: a child cannot finish what another thread had begun to make. Never
    // destroyed, because threads may outlive the end of main().
    static inline All& all_ = *new All;

    Action before_, parent_, child_;
};

// For a child: makes a lock, or what it guards, anew, whatever another thread was doing with it.
template <class T>
void renew(T& object) {
    new (&object) T;
}

}  // namespace mch
