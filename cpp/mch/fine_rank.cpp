// Ranks images by their fine codes.
#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>
#include <span>

#include "filter.h"
#include "fine.h"
#include "fine_costs.h"
#include "scan.h"
#include "workers.h"

namespace mch {
namespace {

constexpr size_t kTogether = 32;  // rows that are looked at together, of which a block holds a multiple

// Divides by a number that is known only at run time, without a division.
class Divider {
  public:
    explicit Divider(uint32_t by) : by_(by), inverse_(~uint64_t(0) / by + 1) {}
    std::pair<uint32_t, uint32_t> operator()(uint32_t value) const {
        if (by_ == 1) return {value, 0};
        const auto quotient = uint32_t(static_cast<unsigned __int128>(inverse_) * value >> 64);
        return {quotient, value - quotient * by_};
    }

  private:
    uint32_t by_;
    uint64_t inverse_;
};

struct Scored {
    float score;
    size_t row;
};
// Whether a ranks before b. Rows are in the order of their keys.
bool before(const Scored& a, const Scored& b) { return a.score > b.score || (a.score == b.score && a.row < b.row); }

// Keeps the best k of what it is given.
class Best {
  public:
    void start(uint64_t k) {
        k_ = k;
        heap_.clear();
    }
    void add(Scored s) {
        if (heap_.size() == k_) {
            if (!k_ || !before(s, heap_.front())) return;
            std::pop_heap(heap_.begin(), heap_.end(), before);
            heap_.back() = s;
        } else {
            heap_.push_back(s);
        }
        std::push_heap(heap_.begin(), heap_.end(), before);
    }
    bool full() const { return heap_.size() == k_; }
    // The least score that is kept. Only if it is full.
    float least() const { return k_ ? heap_.front().score : INFINITY; }
    // Whether nothing with at most this score would be kept.
    bool refuses(float score) const { return full() && score < least(); }
    const std::vector<Scored>& sorted() {
        std::sort_heap(heap_.begin(), heap_.end(), before);
        return heap_;
    }

  private:
    uint64_t k_ = 0;
    std::vector<Scored> heap_;
};

// The largest number up to `most` for which `holds`, which does not hold again once it does not; 0 if there is none.
template <class F>
uint32_t last_true(uint32_t most, F&& holds) {
    uint32_t low = 0, high = most;
    while (low < high) {
        const uint32_t middle = low + (high - low + 1) / 2;
        if (holds(middle))
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

std::vector<uint64_t> as_words(const uint8_t* bytes, size_t n_bytes, size_t words) {
    std::vector<uint64_t> out(words, 0);
    std::memcpy(out.data(), bytes, n_bytes);
    return out;
}

}  // namespace

// The rows of the images of a filter, whether removed or not.
struct FineTable::Rows final : Places {
    static constexpr int kind = 1;
    uint64_t numbering;
    std::vector<uint32_t> rows;    // ascending
    std::vector<uint64_t> bitmap;  // the same, one bit per row

    bool has(size_t row) const { return test_bit(bitmap.data(), row); }
};

struct FineTable::Query {
    Bits bits;
    int planes;  // bits of the magnitudes that are used
    uint32_t most_cost;
    float per_cost;  // the similarity is 1 - per_cost * cost

    Query(const float* values, int fine_bits, size_t words) : bits(words) {
        float largest = 0, smallest = INFINITY;
        for (int i = 0; i < fine_bits; ++i) {
            largest = std::max(largest, std::abs(values[i]));
            smallest = std::min(smallest, std::abs(values[i]));
        }
        // Where all bits count the same, as in the code of a stored image, one bit of magnitude is enough.
        planes = largest == smallest ? 1 : kPlanes;
        const auto most = float((1 << planes) - 1);
        auto bytes = [](std::vector<uint64_t>& w) { return reinterpret_cast<uint8_t*>(w.data()); };
        uint32_t total = 0;
        for (int i = 0; i < fine_bits; ++i) {
            const auto size = largest > 0 ? uint32_t(std::lround(std::abs(values[i]) / largest * most)) : 1;
            total += size;
            const auto bit = uint8_t(0x80 >> (i % 8));
            if (values[i] > 0) bytes(bits.expected)[i / 8] |= bit;
            for (int p = 0; p < kPlanes; ++p)
                if (size >> p & 1) bytes(bits.magnitude[p])[i / 8] |= bit;
        }
        most_cost = total;
        per_cost = 2.0f / float(total);
        bits.repeat();
    }
};

struct FineTable::Scratch {
    std::vector<uint32_t> costs;
    std::vector<uint64_t> seen;  // one bit per row
    std::vector<uint32_t> rows;  // candidates

    // For those that are near:
    std::vector<uint32_t> cell_costs, order, entries, entry_costs, histogram;
    std::vector<Word> gathered;
    std::vector<const Word*> places;

    void take(size_t row) {
        if (test_bit(seen.data(), row)) return;
        set_bit(seen.data(), row);
        rows.push_back(uint32_t(row));
    }
};

// Finds the codes in the cells that cost least, and what they cost.
void FineTable::look_near(const Query& q, const Rows* allowed, Scratch& work, const RankOptions& o) const {
    constexpr size_t batch = 64;
    const Costs costs = choose_costs(words_, q.planes);
    const Divider divide{uint32_t(regions_)};
    work.cell_costs.resize(n_cells_);
    costs(cells_.data(), n_cells_, q.bits, work.cell_costs.data());
    const size_t probes = std::min<size_t>(o.probes, n_cells_);
    work.order.resize(n_cells_);
    std::iota(work.order.begin(), work.order.end(), 0);
    std::nth_element(
        work.order.begin(), work.order.begin() + ptrdiff_t(probes), work.order.end(),
        [&](uint32_t a, uint32_t b) { return std::pair(work.cell_costs[a], a) < std::pair(work.cell_costs[b], b); });
    const bool all = n_live_ == n_rows() && !allowed;
    work.entries.clear();
    for (size_t i = 0; i < probes; ++i)
        postings_[work.order[i]].each([&](uint32_t entry) {
            if (!all) {
                const size_t row = divide(entry).first;
                if (!live_[row] || (allowed && !allowed->has(row))) return;
            }
            work.entries.push_back(entry);
        });
    const size_t n = work.entries.size();
    // The codes of a block follow one another, so that an entry is the place of its code; most entries of a cell are
    // in the block of the one before.
    const auto per_block = uint32_t(kBlock * size_t(regions_));
    uint32_t first = 0, last = 0;  // entries of the block
    const Word* block = nullptr;
    auto code_of = [&](uint32_t entry) {
        if (entry - first >= last - first) {
            first = entry / per_block * per_block, last = first + per_block;
            block = reinterpret_cast<const Word*>(blocks_[entry / per_block].get());
        }
        return block + size_t(entry - first) * words_;
    };
    work.entry_costs.resize(n);
    work.gathered.resize(batch * words_);
    work.places.resize(n + batch);  // to fetch any address ahead of time does no harm
    for (size_t i = 0; i < n; ++i) work.places[i] = code_of(work.entries[i]);
    for (size_t start = 0; start < n; start += batch) {
        const size_t count = std::min(batch, n - start);
        const Word* const* at = work.places.data() + start;
        for (size_t i = 0; i < count; ++i) {
            __builtin_prefetch(at[i + batch]);
            if (words_ == kFastWords)
                std::memcpy(&work.gathered[i * kFastWords], at[i], kFastWords * 8);
            else
                std::memcpy(&work.gathered[i * words_], at[i], words_ * 8);
        }
        costs(work.gathered.data(), count, q.bits, &work.entry_costs[start]);
    }
}

// Adds the images of the `near` codes that cost least, of those in the cells that cost least.
void FineTable::take_near(const Query& q, const Rows* allowed, Scratch& work, const RankOptions& o, size_t at) const {
    look_near(q, allowed, work, o);
    const Divider divide{uint32_t(regions_)};
    // The cost of the last one to take; which of those with this cost are taken would be arbitrary.
    uint32_t limit = o.near_costs ? o.near_costs[at] : 0;
    if (!o.near_costs) {
        work.histogram.assign(q.most_cost + 1, 0);
        for (const uint32_t cost : work.entry_costs) ++work.histogram[cost];
        uint64_t taken = 0;
        while (limit < q.most_cost && (taken += work.histogram[limit]) < o.near) ++limit;
    }
    for (size_t i = 0; i < work.entries.size(); ++i)
        if (work.entry_costs[i] <= limit) work.take(divide(work.entries[i]).first);
}

// Finds the images with the largest scores for one query.
class FineTable::Ranking {
  public:
    Ranking(const FineTable& table, const float* values, const uint8_t* code, const RankOptions& o)
        : query(values, table.fine_bits_, table.words_),
          t_(table),
          w_(o.weights),
          k_(o.k),
          costs_(choose_costs(table.words_, query.planes)),
          n_regions_(size_t(table.regions_)),
          falls_(w_.whole >= 0 && w_.region >= 0 && w_.close >= 0),
          limit_(query.most_cost) {
        if (code) code_ = as_words(code, size_t(t_.bits_ / 8), t_.code_words_);
        code_adds_ = code ? std::abs(w_.code) : 0;
        best_.start(o.k);
    }

    // Looks at some rows that follow one another, at most `kTogether`. Most images are too far to be kept, which the
    // least of their costs tells: only the others are scored.
    void look_at(size_t start, size_t count, uint32_t* costs) {
        const size_t n = count * n_regions_;
        costs_(t_.fine_of(start), n, query.bits, costs);
        if (falls_ && best_.full() && best_.least() > limit_for_) {
            limit_for_ = best_.least();
            limit_ = last_true(limit_, [&](uint32_t c) { return !best_.refuses(score(c, c) + code_adds_); });
        }
        size_t next = 0;  // row of these that has not been looked at
        for (size_t at = 0; at < n; at += 64)
            for (uint64_t few = up_to_(costs + at, std::min<size_t>(64, n - at), limit_); few; few &= few - 1) {
                const size_t i = divide_(uint32_t(at) + uint32_t(std::countr_zero(few))).first;
                if (i >= next && t_.live_[start + i]) score_row(start + i, costs + i * n_regions_);
                next = i + 1;
            }
    }
    void look_at(size_t row, uint32_t* costs) {
        costs_(t_.fine_of(row), n_regions_, query.bits, costs);
        score_row(row, costs);
    }

    // Writes the answer to the query at this place.
    void write(const RankRows& out, size_t at, int64_t looked_at, uint32_t* costs) {
        const auto& found = best_.sorted();
        for (size_t i = 0; i < k_; ++i) {
            const size_t to = at * k_ + i;
            if (i >= found.size()) {
                out.keys[to] = -1, out.scores[to] = out.similarities[to] = 0;
                out.distances[to] = -1, out.regions[to] = -1;
                continue;
            }
            const size_t row = found[i].row;
            costs_(t_.fine_of(row), n_regions_, query.bits, costs);
            const auto* least = std::min_element(costs, costs + n_regions_);
            out.keys[to] = t_.keys_[row];
            out.scores[to] = found[i].score;
            out.similarities[to] = similarity(*least);
            out.regions[to] = int16_t(least - costs);
            out.distances[to] = code_.empty() ? -1 : t_.distance(row, code_.data());
        }
        out.looked_at[at] = looked_at;
    }

    const Query query;

  private:
    float similarity(uint32_t cost) const { return 1.0f - query.per_cost * float(cost); }
    // What an image with these costs of its first and its nearest region scores, without its codes in the bucket table.
    float score(uint32_t whole, uint32_t least) const {
        const float best = similarity(least);
        float sum = w_.whole * similarity(whole) + w_.region * best;
        if (best > 0) sum += w_.close * (best * best) * (best * best);
        return sum;
    }
    void score_row(size_t row, const uint32_t* costs) {
        float sum = score(costs[0], *std::min_element(costs, costs + n_regions_));
        if (!code_.empty()) {
            if (best_.refuses(sum + code_adds_)) return;  // whatever its codes are
            sum += w_.code * (1.0f - 2.0f * float(t_.distance(row, code_.data())) / float(t_.bits_));
        }
        best_.add({sum, row});
    }

    const FineTable& t_;
    const RankWeights w_;
    const uint64_t k_;
    const Costs costs_;
    const size_t n_regions_;
    const UpTo up_to_ = choose_up_to();
    const Divider divide_{uint32_t(n_regions_)};
    std::vector<uint64_t> code_;  // empty: the query has none
    float code_adds_;             // at most
    const bool falls_;            // the score, as costs grow
    uint32_t limit_;              // the largest cost that may be kept if all those kept score more than this:
    float limit_for_ = -INFINITY;
    Best best_;
};

void FineTable::rank_all(std::vector<Ranking>& rankings, Scratch& work, const RankRows& out, size_t at) const {
    static_assert(kBlock % kTogether == 0, "rows that are looked at together are in one block");
    // The queries share what is read: it does not fit the caches near the core.
    for (size_t start = 0; start < n_rows(); start += kTogether)
        for (auto& ranking : rankings) ranking.look_at(start, std::min(kTogether, n_rows() - start), work.costs.data());
    for (auto& ranking : rankings) ranking.write(out, at++, int64_t(n_live_), work.costs.data());
}

void FineTable::rank_rows(Ranking& ranking, const Rows& rows, Scratch& work, const RankRows& out, size_t at) const {
    int64_t looked_at = 0;
    for (const uint32_t row : rows.rows)
        if (live_[row]) ranking.look_at(row, work.costs.data()), ++looked_at;
    ranking.write(out, at, looked_at, work.costs.data());
}

void FineTable::rank_candidates(Ranking& ranking, std::span<const int64_t> keys, const Rows* allowed, Scratch& work,
                                const RankOptions& o, const RankRows& out, size_t at) const {
    work.seen.assign(bitmap_words(n_rows()), 0);
    work.rows.clear();
    for (const int64_t key : keys)
        if (const size_t row = row_of(key); row < n_rows() && live_[row] && (!allowed || allowed->has(row)))
            work.take(row);
    if ((o.near || o.near_costs) && n_cells_) take_near(ranking.query, allowed, work, o, at);
    for (size_t i = 0; i < work.rows.size(); ++i) {
        if (i + 4 < work.rows.size())
            for (size_t j = 0; j < row_words_; j += 8) __builtin_prefetch(fine_of(work.rows[i + 4]) + j);
        ranking.look_at(work.rows[i], work.costs.data());
    }
    ranking.write(out, at, int64_t(work.rows.size()), work.costs.data());
}

// The caller holds the lock.
std::shared_ptr<const FineTable::Rows> FineTable::rows_of(const Filter& filter) const {
    auto last = filter.recall<Rows>();
    if (last && last->numbering == numbering_) return last;
    auto made = std::make_shared<Rows>();
    made->numbering = numbering_;
    made->bitmap.resize(bitmap_words(n_rows()));
    for_each_common(filter.ids(), keys_, [&](size_t row) {
        made->rows.push_back(uint32_t(row));
        set_bit(made->bitmap.data(), row);
    });
    filter.remember(std::shared_ptr<const Rows>(made));
    return made;
}

void FineTable::rank(const uint8_t* codes, const float* queries, size_t n, const int64_t* lims,
                     const int64_t* candidates, const Filter* allowed, const RankOptions& o,
                     const RankRows& out) const {
    if (!n) return;
    std::shared_lock lock(mutex_);
    const auto rows = allowed ? rows_of(*allowed) : nullptr;
    // Waking a thread takes some ten microseconds; give each enough to do.
    const size_t images =
        lims ? size_t(lims[n] - lims[0]) + n * (o.near * 8) : n * (rows ? rows->rows.size() : n_rows());
    const auto most = size_t(o.threads ? o.threads : usable_cores());
    const size_t threads = std::clamp<size_t>(images / 4096, 1, std::min(most, n));
    const size_t together = lims || rows ? 1 : std::clamp<size_t>(n / threads, 1, 8);  // queries
    std::atomic<size_t> next{0};
    parallel(int(threads), [&] {
        Scratch work;
        work.costs.resize(kTogether * size_t(regions_));
        std::vector<Ranking> rankings;
        for (size_t at; (at = next.fetch_add(together)) < n;) {
            rankings.clear();
            for (size_t i = at; i < std::min(n, at + together); ++i)
                rankings.emplace_back(*this, queries + i * size_t(fine_bits_),
                                      codes ? codes + i * size_t(bits_ / 8) : nullptr, o);
            if (lims)
                rank_candidates(rankings[0], {candidates + lims[at], candidates + lims[at + 1]}, rows.get(), work, o,
                                out, at);
            else if (rows)
                rank_rows(rankings[0], *rows, work, out, at);
            else
                rank_all(rankings, work, out, at);
        }
    });
}

void FineTable::near_costs(const float* queries, size_t n, const Filter* allowed, const RankOptions& o,
                           uint32_t* out) const {
    std::fill_n(out, n * o.near, UINT32_MAX);
    std::shared_lock lock(mutex_);
    if (!n || !n_cells_) return;
    const auto rows = allowed ? rows_of(*allowed) : nullptr;
    const auto most = size_t(o.threads ? o.threads : usable_cores());
    const int threads = int(std::clamp<size_t>(n * o.near / 512, 1, std::min(most, n)));
    std::atomic<size_t> next{0};
    parallel(threads, [&] {
        Scratch work;
        for (size_t i; (i = next.fetch_add(1)) < n;) {
            const Query q(queries + i * size_t(fine_bits_), fine_bits_, words_);
            look_near(q, rows.get(), work, o);
            auto& costs = work.entry_costs;
            const auto first = costs.begin();
            const auto count = std::min<size_t>(o.near, costs.size());
            if (count < costs.size()) std::nth_element(first, first + ptrdiff_t(count), costs.end());
            std::sort(first, first + ptrdiff_t(count));
            std::copy_n(first, count, out + i * o.near);
        }
    });
}

}  // namespace mch
