// Groups codes around pivots without knowing how many groups there are. Groups only make scans
// faster; any grouping is correct.
//
// A code joins the nearest pivot that has the same bits as the code in some window, if that pivot is
// near enough. Pivots come from a sample: a code without a pivot becomes one; then each pivot moves to
// the bitwise majority of its codes. That makes groups tight, and pivots of one cluster equal.
#pragma once

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "array.h"
#include "code.h"
#include "scan.h"
#include "workers.h"

namespace mch {

// Pivots, looked up by windows of their bits.
template <class C>
class PivotTable {
  public:
    static constexpr uint32_t none = UINT32_MAX;
    std::vector<C> pivot;

    PivotTable(int bits, size_t n_codes)
        : bits_(bits),
          very_near_(bits / 32),
          width_(std::clamp(int(std::log2(double(n_codes))) - 4, 12, 20)),
          latest_(size_t(windows) << width_) {}

    // The nearest of the pivots that the code's windows lead to, or the first that is very near, or `none` if none
    // is within `near`.
    uint32_t find(const C& code, int near, int& distance) const {
        uint32_t best = none;
        distance = near + 1;
        for (int w = 0; w < windows; ++w) {
            const uint32_t p = latest_[cell(code, w)] - 1;  // wraps to `none`
            if (p == best || p == none) continue;
            int d = (pivot[p] ^ code).popcount();
            if (d < distance) best = p, distance = d;
            if (d <= very_near_) break;
        }
        return best;
    }

    void prefetch(const C& code) const {
        for (int w = 0; w < windows; ++w) __builtin_prefetch(&latest_[cell(code, w)]);
    }

    uint32_t add(const C& code) {
        pivot.push_back(code);
        for (int w = 0; w < windows; ++w) latest_.mutable_data()[cell(code, w)] = uint32_t(pivot.size());
        return uint32_t(pivot.size() - 1);
    }

  private:
    static constexpr int windows = 8;
    size_t cell(const C& code, int w) const {
        int at = std::min(w * bits_ / windows, bits_ - width_);
        return (size_t(w) << width_) | code.window(at, width_);
    }
    int bits_, very_near_, width_;
    Array<uint32_t> latest_;  // by window and its value: one more than the last pivot added there, or 0
};

// For each bit position, counts how many of up to 15 codes have the bit set. All counters advance at
// once: plane i holds bit i of each of them.
template <class C>
struct Votes {
    static constexpr int planes = 4, most = (1 << planes) - 1;
    C plane[planes]{};
    int n = 0;

    void add(const C& code) {
        if (n == most) return;
        ++n;
        for (int j = 0; j < C::words; ++j) {
            auto carry = code.w[j];
            for (C& p : plane) {
                auto next = typename C::Word(p.w[j] & carry);
                p.w[j] ^= carry;
                carry = next;
            }
        }
    }
    C majority() const {  // the bits set in more than half of the codes
        C above{};
        for (int j = 0; j < C::words; ++j) {
            auto equal = ~typename C::Word(0);
            for (int i = planes - 1; i >= 0; --i) {
                if (!((n / 2) >> i & 1)) above.w[j] |= equal & plane[i].w[j];
                equal &= (n / 2) >> i & 1 ? plane[i].w[j] : ~plane[i].w[j];
            }
        }
        return above;
    }
};

// The order of the codes must have nothing to do with their values, because a prefix serves as a sample.
template <class C>
class Grouping {
  public:
    static constexpr uint32_t loose = UINT32_MAX;
    std::vector<C> pivot;         // by group
    std::vector<uint8_t> radius;  // by group

    // group[i] becomes the group of codes[i], or `loose` if it is in none.
    Grouping(const C* codes, size_t n, int bits, uint32_t* group)
        : codes_(codes), n_(n), bits_(bits), near_(bits / 8), group_(group) {}

    // Finds pivots in a sample.
    void draft() {
        if (bits_ < 24 || n_ < smallest_table) return;
        std::vector<Votes<C>> votes;
        {
            PivotTable<C> draft(bits_, n_);
            const size_t sample = std::max(n_ / 4, std::min(n_, 2 * trial));
            int distance;
            for (size_t i = 0; i < sample; ++i) {
                draft.prefetch(codes_[std::min(i + ahead, n_ - 1)]);
                uint32_t p = draft.find(codes_[i], near_, distance);
                if (p == draft.none) {
                    p = draft.add(codes_[i]);
                    votes.emplace_back();
                }
                votes[p].add(codes_[i]);
                if (i == trial && draft.pivot.size() > trial - trial / 8) return;  // the codes have no clusters
            }
        }
        std::erase_if(votes, [](const Votes<C>& v) { return v.n < 3; });
        std::stable_sort(votes.begin(), votes.end(), [](auto& a, auto& b) { return a.n > b.n; });
        table_ = std::make_unique<PivotTable<C>>(bits_, n_);
        int distance;
        for (const Votes<C>& v : votes) {
            const C centre = v.majority();
            if (table_->find(centre, near_ / 4, distance) == table_->none) table_->add(centre);
        }
    }

    // Puts the codes into groups.
    void assign(int threads) {
        if (!table_) {
            std::fill_n(group_, n_, loose);
            return;
        }
        Tally found(table_->pivot.size());
        share(threads, found, [&](size_t begin, size_t end, Tally& tally) { join_pivots(begin, end, tally); });
        add_pivots(found);
        const auto renamed = drop_small(found);
        table_.reset();

        // The windows of a pivot table miss some pivots. Every scan reads the codes that stay loose, so these are
        // compared with all pivots, unless that would take long.
        Tally adopted(pivot.size());
        const bool adopt = !pivot.empty() && n_loose_ * pivot.size() <= uint64_t(n_) * 256;
        std::vector<typename C::Word> words[C::words];
        Planes<C> pivots{};
        for (int j = 0; adopt && j < C::words; ++j) {
            words[j].resize(pivot.size() + kPadding);
            for (size_t p = 0; p < pivot.size(); ++p) words[j][p] = pivot[p].w[j];
            pivots.p[j] = words[j].data();
        }
        share(threads, adopted, [&](size_t begin, size_t end, Tally& tally) {
            for (size_t i = begin; i < end; ++i) group_[i] = renamed[group_[i]];
            if (adopt) adopt_loose(begin, end, pivots, tally);
        });
        for (size_t g = 0; g < pivot.size(); ++g) radius[g] = std::max(radius[g], adopted.radius[g]);
    }

  private:
    static constexpr size_t smallest_table = 4096;  // in a smaller one a plain scan is fast
    static constexpr size_t trial = 16384;          // codes after which grouping must show success
    static constexpr uint32_t smallest_group = 16;  // a smaller one costs more than it saves
    static constexpr size_t ahead = 8;

    // The codes of each group that a thread has found.
    struct Tally {
        std::vector<uint32_t> size;
        std::vector<uint8_t> radius;
        // Memory for adopt_loose.
        std::vector<uint8_t> distance;
        std::vector<uint32_t> found;

        explicit Tally(size_t n) : size(n, 0), radius(n, 0) {}
        void add(uint32_t g, int distance) {
            ++size[g];
            radius[g] = std::max(radius[g], uint8_t(distance));
        }
        void add(const Tally& o) {
            for (size_t g = 0; g < o.size.size(); ++g) {
                size[g] += o.size[g];
                radius[g] = std::max(radius[g], o.radius[g]);
            }
        }
    };

    // Calls f(begin, end, tally) for pieces of the codes, and adds all tallies to `sum`.
    template <class F>
    void share(int threads, Tally& sum, F&& f) const {
        constexpr size_t piece = 8192;
        std::atomic<size_t> next{0};
        std::mutex mutex;
        parallel(threads, [&] {
            Tally tally(sum.size.size());
            for (size_t begin; (begin = next.fetch_add(piece)) < n_;) f(begin, std::min(begin + piece, n_), tally);
            std::lock_guard lock(mutex);
            sum.add(tally);
        });
    }

    void join_pivots(size_t begin, size_t end, Tally& tally) const {
        int distance;
        for (size_t i = begin; i < end; ++i) {
            table_->prefetch(codes_[std::min(i + ahead, n_ - 1)]);
            group_[i] = table_->find(codes_[i], near_, distance);
            if (group_[i] != loose) tally.add(group_[i], distance);
        }
    }

    // A code that found no pivot may belong to a cluster that the sample missed.
    void add_pivots(Tally& found) {
        int distance;
        for (size_t i = 0; i < n_; ++i) {
            if (i + ahead < n_ && group_[i + ahead] == loose) table_->prefetch(codes_[i + ahead]);
            if (group_[i] != loose) continue;
            group_[i] = table_->find(codes_[i], near_, distance);
            if (group_[i] == loose) {
                group_[i] = table_->add(codes_[i]);
                found.size.push_back(0), found.radius.push_back(0);
                distance = 0;
            }
            found.add(group_[i], distance);
        }
    }

    // Dissolves groups too small to be worth a pivot. Returns the new numbers of the others.
    std::vector<uint32_t> drop_small(const Tally& found) {
        std::vector<uint32_t> renamed(found.size.size(), loose);
        for (size_t p = 0; p < renamed.size(); ++p) {
            if (found.size[p] < smallest_group) {
                n_loose_ += found.size[p];
                continue;
            }
            renamed[p] = uint32_t(pivot.size());
            pivot.push_back(table_->pivot[p]);
            radius.push_back(found.radius[p]);
        }
        return renamed;
    }

    // Puts loose codes into the group of the nearest of all pivots, if that is near enough.
    void adopt_loose(size_t begin, size_t end, const Planes<C>& pivots, Tally& tally) const {
        const size_t n = pivot.size();
        auto& distance = tally.distance;
        auto& found = tally.found;
        distance.resize(2 * n);  // the second half stays 0
        found.resize(n + kScanSlack);
        for (size_t i = begin; i < end; ++i) {
            if (group_[i] != loose) continue;
            kernels<C>().lower_bounds(pivots, distance.data() + n, n, codes_[i], distance.data());
            const size_t n_found = kernels<C>().select(distance.data(), n, 0, near_, found.data());
            if (!n_found) continue;
            group_[i] = *std::min_element(found.data(), found.data() + n_found,
                                          [&](uint32_t a, uint32_t b) { return distance[a] < distance[b]; });
            tally.add(group_[i], distance[group_[i]]);
        }
    }

    const C* codes_;
    const size_t n_;
    const int bits_, near_;
    uint32_t* group_;
    std::unique_ptr<PivotTable<C>> table_;  // null: the codes have no clusters
    uint64_t n_loose_ = 0;
};

}  // namespace mch
