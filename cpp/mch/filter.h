// A set of images that searches may return. It remembers where they are in the table it was last used
// with, so the next search need not look for them again.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "build.h"

namespace mch {

// Where the images of a filter are in a table. Never changes once made.
struct Places {
    virtual ~Places() = default;
};

class Filter {
  public:
    // `kept`: the caller keeps the filter for further searches, so work that only they save is worth it.
    Filter(const std::vector<int64_t>& ids, bool kept) : kept(kept), ids_(distinct(ids)) {}

    const bool kept;
    const std::vector<int64_t>& ids() const { return ids_; }  // distinct, in ascending order
    bool contains(int64_t id) const { return std::binary_search(ids_.begin(), ids_.end(), id); }

    // One kind of table remembers one thing. Null: nothing of that kind is known.
    template <class T>
    std::shared_ptr<const T> recall() const {
        return std::dynamic_pointer_cast<const T>(places_[T::kind].get());
    }
    template <class T>
    void remember(std::shared_ptr<const T> places) const {
        if (kept) places_[T::kind].set(std::move(places));
    }

  private:
    static std::vector<int64_t> distinct(const std::vector<int64_t>& ids) {
        std::vector<uint32_t> slots;
        return distinct_ids(ids, slots);
    }

    // A pointer that threads share. Whoever cannot get at it does without: a process that was forked
    // while another thread held it would wait for ever.
    class Slot {
      public:
        std::shared_ptr<const Places> get() const {
            std::shared_ptr<const Places> copy;
            if (lock()) copy = value_, unlock();
            return copy;
        }
        void set(std::shared_ptr<const Places> value) {
            if (lock()) value_.swap(value), unlock();
        }  // the old value is freed after unlocking

      private:
        bool lock() const {
            for (int tries = 0; tries < 1000; ++tries) {
                if (!held_.exchange(true, std::memory_order_acquire)) return true;
                if (tries > 100) std::this_thread::yield();
            }
            return false;
        }
        void unlock() const { held_.store(false, std::memory_order_release); }

        mutable std::atomic<bool> held_{false};
        std::shared_ptr<const Places> value_;
    };

    const std::vector<int64_t> ids_;
    mutable Slot places_[2];
};

// Calls f(position) for each element of `list` that is one of `ids`. Both ascend and have no repeats. The
// time is proportional to the shorter one, times the logarithm of how much longer the other is.
template <class List, class F>
void for_each_common(const std::vector<int64_t>& ids, const List& list, F&& f) {
    // The first position from `at` on where `sorted` has at least `least`.
    auto skip = [](const auto& sorted, size_t at, int64_t least) {
        const size_t n = sorted.size();
        const uint64_t gap = uint64_t(least) - uint64_t(sorted[at]);
        if (gap < n - at && sorted[at + gap] == least) return at + size_t(gap);  // no number is missing
        size_t step = 1;
        while (step < n - at && sorted[at + step] < least) at += step, step *= 2;
        size_t end = at + std::min(step, n - at);  // sorted[at] < least; sorted[end], if any, is not
        while (end - at > 1) {
            const size_t middle = at + (end - at) / 2;
            (sorted[middle] < least ? at : end) = middle;
        }
        return end;
    };
    const size_t n = list.size();
    for (size_t i = 0, at = 0; i < ids.size() && at < n;) {
        const int64_t here = list[at];
        if (here == ids[i])
            f(at++), ++i;
        else if (here < ids[i])
            at = skip(list, at, ids[i]);
        else
            i = skip(ids, i, here);
    }
}

}  // namespace mch
