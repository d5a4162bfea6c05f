#include "fine.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <mutex>
#include <numeric>
#include <stdexcept>

#include "filter.h"
#include "scan.h"
#include "workers.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace mch {
namespace {

constexpr int kPlanes = 4;        // bits of a magnitude
constexpr size_t kFastWords = 4;  // words per code that the vector path takes

// A query, bit by bit: the expected bits, and the bits of the magnitudes. The words are repeated, so that
// one vector of eight words compares two codes of four.
struct Bits {
    size_t words;
    std::vector<uint64_t> expected;            // at least 8 words
    std::vector<uint64_t> magnitude[kPlanes];  // the same

    explicit Bits(size_t n) : words(n), expected(std::max<size_t>(8, n), 0) {
        for (auto& m : magnitude) m.assign(expected.size(), 0);
    }
    void repeat() {
        if (words != kFastWords) return;
        std::copy_n(expected.begin(), kFastWords, expected.begin() + kFastWords);
        for (auto& m : magnitude) std::copy_n(m.begin(), kFastWords, m.begin() + kFastWords);
    }
};

// The cost of the wrong bits of `n` codes that follow one another, with the first `Planes` bits of the
// magnitudes.
using Costs = void (*)(const uint64_t* codes, size_t n, const Bits& query, uint32_t* costs);

template <int Planes>
void costs_portable(const uint64_t* codes, size_t n, const Bits& query, uint32_t* costs) {
    for (size_t i = 0; i < n; ++i) {
        uint32_t sum = 0;
        for (size_t j = 0; j < query.words; ++j) {
            const uint64_t wrong = codes[i * query.words + j] ^ query.expected[j];
            for (int p = 0; p < Planes; ++p) sum += uint32_t(std::popcount(wrong & query.magnitude[p][j])) << p;
        }
        costs[i] = sum;
    }
}

#if defined(__x86_64__)

#define MCH_AVX512 __attribute__((target("avx512f,avx512vpopcntdq")))

// The costs of the words of two codes.
template <int Planes>
MCH_AVX512 inline __m512i two_costs(__m512i codes, __m512i expected, const __m512i* magnitude) {
    const __m512i wrong = _mm512_xor_si512(codes, expected);
    __m512i sum = _mm512_popcnt_epi64(_mm512_and_si512(wrong, magnitude[Planes - 1]));
    for (int p = Planes - 2; p >= 0; --p)
        sum = _mm512_add_epi64(_mm512_slli_epi64(sum, 1), _mm512_popcnt_epi64(_mm512_and_si512(wrong, magnitude[p])));
    return sum;
}

// Two codes of four words per vector. The sums of up to four vectors share a register, 16 bits each, so
// that they are added up across lanes once.
template <int Planes>
MCH_AVX512 void costs_avx512(const uint64_t* codes, size_t n, const Bits& query, uint32_t* costs) {
    const __m512i expected = _mm512_loadu_si512(query.expected.data());
    __m512i magnitude[Planes];
    for (int p = 0; p < Planes; ++p) magnitude[p] = _mm512_loadu_si512(query.magnitude[p].data());
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const uint64_t* at = codes + i * kFastWords;
        __m512i packed = two_costs<Planes>(_mm512_loadu_si512(at), expected, magnitude);
        packed = _mm512_or_si512(
            packed, _mm512_slli_epi64(two_costs<Planes>(_mm512_loadu_si512(at + 8), expected, magnitude), 16));
        packed = _mm512_or_si512(
            packed, _mm512_slli_epi64(two_costs<Planes>(_mm512_loadu_si512(at + 16), expected, magnitude), 32));
        packed = _mm512_or_si512(
            packed, _mm512_slli_epi64(two_costs<Planes>(_mm512_loadu_si512(at + 24), expected, magnitude), 48));
        packed = _mm512_add_epi64(packed, _mm512_permutex_epi64(packed, 0x4e));
        packed = _mm512_add_epi64(packed, _mm512_permutex_epi64(packed, 0xb1));
        const __m128i even = _mm512_castsi512_si128(packed), odd = _mm512_extracti32x4_epi32(packed, 2);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(costs + i),
                            _mm256_cvtepu16_epi32(_mm_unpacklo_epi16(even, odd)));
    }
    for (; i < n; i += 8) {  // the last ones
        __m512i packed = _mm512_setzero_si512();
        const size_t pairs = std::min<size_t>(4, (n - i + 1) / 2);
        for (size_t v = 0; v < pairs; ++v) {
            const size_t at = i + 2 * v;
            const __mmask8 mask = at + 1 < n ? 0xff : 0x0f;
            const __m512i sum =
                two_costs<Planes>(_mm512_maskz_loadu_epi64(mask, codes + at * kFastWords), expected, magnitude);
            packed = _mm512_or_si512(packed, _mm512_sll_epi64(sum, _mm_cvtsi32_si128(int(16 * v))));
        }
        packed = _mm512_add_epi64(packed, _mm512_permutex_epi64(packed, 0x4e));
        packed = _mm512_add_epi64(packed, _mm512_permutex_epi64(packed, 0xb1));
        const uint64_t even = uint64_t(_mm_cvtsi128_si64(_mm512_castsi512_si128(packed)));
        const uint64_t odd = uint64_t(_mm_cvtsi128_si64(_mm512_extracti32x4_epi32(packed, 2)));
        for (size_t v = 0; v < pairs; ++v) {
            costs[i + 2 * v] = uint32_t(even >> (16 * v) & 0xffff);
            if (i + 2 * v + 1 < n) costs[i + 2 * v + 1] = uint32_t(odd >> (16 * v) & 0xffff);
        }
    }
}

#endif

template <int Planes>
Costs choose_costs(size_t words) {
#if defined(__x86_64__)
    if (words == kFastWords && cpu_path() == "avx512") return costs_avx512<Planes>;
#endif
    (void)words;
    return costs_portable<Planes>;
}

Costs choose_costs(size_t words, int planes) {
    return planes == 1 ? choose_costs<1>(words) : choose_costs<kPlanes>(words);
}

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
    // Whether nothing with at most this score would be kept.
    bool refuses(float score) const { return heap_.size() == k_ && (!k_ || score < heap_.front().score); }
    const std::vector<Scored>& sorted() {
        std::sort_heap(heap_.begin(), heap_.end(), before);
        return heap_;
    }

  private:
    uint64_t k_ = 0;
    std::vector<Scored> heap_;
};

// Makes room for more elements. Doubling, as vectors do, would leave half of a large table's memory unused.
template <class T>
void make_room(std::vector<T>& values, size_t more) {
    const size_t needed = values.size() + more;
    if (needed > values.capacity()) values.reserve(needed + needed / 8);
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
};

struct FineTable::Query {
    Bits bits;
    int planes;  // bits of the magnitudes that are used
    uint32_t most_cost;
    float per_cost;  // the similarity is 1 - per_cost * cost
    bool has_code;
    std::vector<uint64_t> code;
    const int64_t *begin, *end;  // candidates
    bool all;                    // every image is a candidate
    const Rows* allowed;         // null: all rows

    bool allows(size_t row) const { return !allowed || test_bit(allowed->bitmap.data(), row); }

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
    Best best;
    std::vector<uint64_t> seen;  // one bit per row
    std::vector<uint32_t> rows;  // candidates

    // For those that are near:
    std::vector<uint32_t> cell_costs, order, entries, entry_costs, histogram;
    std::vector<Word> gathered;

    void take(size_t row) {
        if (test_bit(seen.data(), row)) return;
        set_bit(seen.data(), row);
        rows.push_back(uint32_t(row));
    }
};

void FineTable::Posting::push(uint32_t entry) {
    make_room(bytes_, 5);
    uint32_t step = entry - last_;
    last_ = entry;
    for (; step >= 0x80; step >>= 7) bytes_.push_back(uint8_t(step | 0x80));
    bytes_.push_back(uint8_t(step));
}

FineTable::FineTable(int bits, int fine_bits, int regions, const uint8_t* cells, size_t n_cells)
    : bits_(bits),
      fine_bits_(fine_bits),
      regions_(regions),
      words_(size_t(fine_bits + 63) / 64),
      row_words_(words_ * size_t(regions)),
      code_words_(size_t(bits + 63) / 64),
      n_cells_(n_cells),
      cells_(n_cells * words_, 0),
      postings_(n_cells) {
    const size_t width = size_t(fine_bits) / 8;
    for (size_t i = 0; i < n_cells; ++i) std::memcpy(&cells_[i * words_], cells + i * width, width);
}

uint64_t FineTable::size() const {
    std::shared_lock lock(mutex_);
    return n_live_;
}

uint64_t FineTable::bytes() const {
    std::shared_lock lock(mutex_);
    uint64_t sum = blocks_.size() * kBlock * row_words_ * 8 + keys_.capacity() * 8 + live_.capacity() +
                   code_starts_.capacity() * 4 + codes_.capacity() * 8 + cells_.capacity() * 8;
    for (const auto& p : postings_) sum += p.bytes();
    return sum;
}

// `distances` has room for one per cell. Of equally near cells, the first.
uint32_t FineTable::nearest_cell(const Word* code, std::vector<uint32_t>& distances) const {
    Bits bits(words_);
    std::copy_n(code, words_, bits.expected.begin());
    std::fill(bits.magnitude[0].begin(), bits.magnitude[0].end(), ~uint64_t(0));
    bits.repeat();
    choose_costs<1>(words_)(cells_.data(), n_cells_, bits, distances.data());
    return uint32_t(std::min_element(distances.begin(), distances.end()) - distances.begin());
}

// Under the exclusive lock.
void FineTable::append(int64_t key, const Word* fine, const uint64_t* codes, uint32_t n_codes) {
    const size_t row = n_rows();
    if (row / kBlock == blocks_.size()) blocks_.push_back(allocate(kBlock * row_words_ * 8));
    std::memcpy(const_cast<Word*>(fine_of(row)), fine, row_words_ * 8);
    keys_.push_back(key);
    live_.push_back(1);
    codes_.insert(codes_.end(), codes, codes + n_codes * code_words_);
    code_starts_.push_back(code_starts_.back() + n_codes);
    ++n_live_;
}

void FineTable::add(const int64_t* keys, size_t n, const uint8_t* fine, const uint32_t* starts, const uint8_t* codes,
                    const uint16_t* cells) {
    if (!n) return;
    const auto n_regions = size_t(regions_);
    const size_t width = size_t(fine_bits_) / 8, code_width = size_t(bits_) / 8;
    std::vector<Word> rows(row_words_ * n, 0);
    for (size_t i = 0; i < n * n_regions; ++i) std::memcpy(&rows[i * words_], fine + i * width, width);
    std::vector<uint64_t> wide(starts[n] * code_words_, 0);
    for (size_t i = 0; i < starts[n]; ++i) std::memcpy(&wide[i * code_words_], codes + i * code_width, code_width);
    // Finding the cells takes longest, and needs no lock.
    std::vector<uint32_t> cell(n_cells_ ? n * n_regions : 0);
    if (n_cells_ && cells) {
        std::copy_n(cells, cell.size(), cell.begin());
        if (std::any_of(cell.begin(), cell.end(), [&](uint32_t c) { return c >= n_cells_; }))
            throw std::invalid_argument("there is no such cell");
    } else if (n_cells_) {
        std::atomic<size_t> next{0};
        const int threads = int(std::clamp<size_t>(n * n_cells_ / 100'000, 1, size_t(usable_cores())));
        parallel(threads, [&] {
            std::vector<uint32_t> distances(n_cells_);
            for (size_t i; (i = next.fetch_add(1)) < n;)
                for (size_t r = 0; r < n_regions; ++r)
                    cell[i * n_regions + r] = nearest_cell(&rows[i * row_words_ + r * words_], distances);
        });
    }
    std::unique_lock lock(mutex_);
    if (keys[0] < 0 || (n_rows() && keys[0] <= keys_.back()) ||
        std::adjacent_find(keys, keys + n, std::greater_equal<>{}) != keys + n)
        throw std::invalid_argument("keys must be 0 or more, ascend, and be above all keys in the table");
    if (n_rows() + n > UINT32_MAX / n_regions || codes_.size() / code_words_ + starts[n] > UINT32_MAX)
        throw std::invalid_argument("the table is full");
    make_room(keys_, n);
    make_room(live_, n);
    make_room(code_starts_, n);
    make_room(codes_, wide.size());
    numbering_ = new_numbering();
    for (size_t i = 0; i < n; ++i) {
        const size_t at = n_rows();
        append(keys[i], &rows[i * row_words_], wide.data() + starts[i] * code_words_, starts[i + 1] - starts[i]);
        for (size_t r = 0; n_cells_ && r < n_regions; ++r)
            postings_[cell[i * n_regions + r]].push(uint32_t(at * n_regions + r));
    }
}

size_t FineTable::row_of(int64_t key) const {
    if (keys_.empty() || key < keys_.front() || key > keys_.back()) return n_rows();
    // Where it is if no image before it was removed.
    const auto guess = std::min(uint64_t(key - keys_.front()), uint64_t(n_rows() - 1));
    if (keys_[guess] == key) return live_[guess] ? guess : n_rows();
    // Keys are consecutive but for removed images, so their place can be guessed.
    size_t low = 0, high = n_rows() - 1;  // keys_[low] <= key <= keys_[high]
    while (keys_[low] < key) {
        const double share = double(key - keys_[low]) / double(keys_[high] - keys_[low]);
        size_t middle = low + size_t(share * double(high - low));
        middle = std::clamp(middle, low + 1, high);
        if (keys_[middle] <= key) {
            low = middle;
            // One more halving step, so that uneven gaps cost a logarithm at most.
            const size_t half = low + (high - low + 1) / 2;
            if (keys_[half] <= key)
                low = half;
            else if (keys_[high = half - 1] < key)
                return n_rows();
        } else {
            high = middle - 1;
            if (keys_[high] < key) return n_rows();
        }
    }
    return keys_[low] == key && live_[low] ? low : n_rows();
}

uint64_t FineTable::remove(const int64_t* keys, size_t n) {
    std::unique_lock lock(mutex_);
    uint64_t removed = 0;
    for (size_t i = 0; i < n; ++i)
        if (const size_t row = row_of(keys[i]); row < n_rows()) {
            live_[row] = 0;
            ++removed;
        }
    n_live_ -= removed;
    if (n_rows() > 2 * kBlock && n_live_ < n_rows() / 2) compact();
    return removed;
}

// Frees the memory of removed images. Under the exclusive lock.
void FineTable::compact() {
    numbering_ = new_numbering();
    std::vector<uint32_t> moved(n_rows(), UINT32_MAX);
    size_t to = 0;
    std::vector<uint64_t> codes;
    std::vector<uint32_t> starts{0};
    for (size_t row = 0; row < n_rows(); ++row) {
        if (!live_[row]) continue;
        moved[row] = uint32_t(to);
        std::memmove(const_cast<Word*>(fine_of(to)), fine_of(row), row_words_ * 8);
        keys_[to] = keys_[row];
        codes.insert(codes.end(), codes_.begin() + code_starts_[row] * code_words_,
                     codes_.begin() + code_starts_[row + 1] * code_words_);
        starts.push_back(uint32_t(codes.size() / code_words_));
        ++to;
    }
    for (auto& posting : postings_) {
        Posting kept;
        posting.each([&](uint32_t entry) {
            if (const uint32_t row = moved[entry / uint32_t(regions_)]; row != UINT32_MAX)
                kept.push(row * uint32_t(regions_) + entry % uint32_t(regions_));
        });
        posting = std::move(kept);
    }
    keys_.resize(to);
    keys_.shrink_to_fit();
    live_.assign(to, 1);
    live_.shrink_to_fit();
    codes_ = std::move(codes);
    code_starts_ = std::move(starts);
    blocks_.resize((to + kBlock - 1) / kBlock);
}

int FineTable::distance(size_t row, const uint64_t* code) const {
    int least = bits_;
    for (uint32_t c = code_starts_[row]; c < code_starts_[row + 1]; ++c) {
        int d = 0;
        for (size_t j = 0; j < code_words_; ++j) d += std::popcount(codes_[c * code_words_ + j] ^ code[j]);
        least = std::min(least, d);
    }
    return least;
}

// Finds the codes in the cells that cost least, and what they cost.
void FineTable::look_near(const Query& q, Scratch& work, const RankOptions& o) const {
    constexpr size_t batch = 64, ahead = 24;
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
    const bool all = n_live_ == n_rows() && !q.allowed;
    work.entries.clear();
    for (size_t i = 0; i < probes; ++i)
        postings_[work.order[i]].each([&](uint32_t entry) {
            const size_t row = divide(entry).first;
            if (all || (live_[row] && q.allows(row))) work.entries.push_back(entry);
        });
    const size_t n = work.entries.size();
    auto code_of = [&](uint32_t entry) {
        const auto [row, region] = divide(entry);
        return fine_of(row) + region * words_;
    };
    work.entry_costs.resize(n);
    work.gathered.resize(batch * words_);
    for (size_t start = 0; start < n; start += batch) {
        const size_t count = std::min(batch, n - start);
        for (size_t i = 0; i < count; ++i) {
            if (start + i + ahead < n) __builtin_prefetch(code_of(work.entries[start + i + ahead]));
            const Word* code = code_of(work.entries[start + i]);
            if (words_ == kFastWords)
                std::memcpy(&work.gathered[i * kFastWords], code, kFastWords * 8);
            else
                std::memcpy(&work.gathered[i * words_], code, words_ * 8);
        }
        costs(work.gathered.data(), count, q.bits, &work.entry_costs[start]);
    }
}

// Adds the images of the `near` codes that cost least, of those in the cells that cost least.
void FineTable::take_near(const Query& q, Scratch& work, const RankOptions& o, size_t at) const {
    look_near(q, work, o);
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

void FineTable::rank_one(const Query& q, Scratch& work, const RankOptions& o, const RankRows& out, size_t at) const {
    const Costs costs = choose_costs(words_, q.planes);
    const RankWeights& w = o.weights;
    const auto n_regions = size_t(regions_);
    constexpr size_t together = 32;  // rows, of which a block holds a multiple
    static_assert(kBlock % together == 0);
    work.costs.resize(together * n_regions);
    work.best.start(o.k);
    int64_t looked_at = 0;
    auto usable = [&](size_t row) { return live_[row] && q.allows(row); };
    auto similarity = [&](uint32_t cost) { return 1.0f - q.per_cost * float(cost); };
    auto look_at_costs = [&](size_t row, const uint32_t* cost) {
        const float best = similarity(*std::min_element(cost, cost + n_regions));
        float score = w.whole * similarity(cost[0]) + w.region * best;
        if (best > 0) score += w.close * (best * best) * (best * best);
        ++looked_at;
        if (q.has_code) {
            if (work.best.refuses(score + std::abs(w.code))) return;  // whatever its codes are
            score += w.code * (1.0f - 2.0f * float(distance(row, q.code.data())) / float(bits_));
        }
        work.best.add({score, row});
    };
    auto look_at = [&](size_t row) {
        costs(fine_of(row), n_regions, q.bits, work.costs.data());
        look_at_costs(row, work.costs.data());
    };
    if (q.all && q.allowed) {
        for (uint32_t row : q.allowed->rows)
            if (live_[row]) look_at(row);
    } else if (q.all) {
        for (size_t start = 0; start < n_rows(); start += together) {
            const size_t count = std::min(together, n_rows() - start);
            costs(fine_of(start), count * n_regions, q.bits, work.costs.data());
            for (size_t i = 0; i < count; ++i)
                if (live_[start + i]) look_at_costs(start + i, &work.costs[i * n_regions]);
        }
    } else {
        work.seen.assign(bitmap_words(n_rows()), 0);
        work.rows.clear();
        for (const int64_t* key = q.begin; key < q.end; ++key)
            if (const size_t row = row_of(*key); row < n_rows() && usable(row)) work.take(row);
        if ((o.near || o.near_costs) && n_cells_) take_near(q, work, o, at);
        for (size_t i = 0; i < work.rows.size(); ++i) {
            if (i + 4 < work.rows.size())
                for (size_t j = 0; j < row_words_; j += 8) __builtin_prefetch(fine_of(work.rows[i + 4]) + j);
            look_at(work.rows[i]);
        }
    }

    const auto& found = work.best.sorted();
    for (size_t i = 0; i < o.k; ++i) {
        const size_t to = at * o.k + i;
        if (i >= found.size()) {
            out.keys[to] = -1, out.scores[to] = out.similarities[to] = 0;
            out.distances[to] = -1, out.regions[to] = -1;
            continue;
        }
        const size_t row = found[i].row;
        costs(fine_of(row), n_regions, q.bits, work.costs.data());
        const auto least = std::min_element(work.costs.begin(), work.costs.begin() + ptrdiff_t(n_regions));
        out.keys[to] = keys_[row];
        out.scores[to] = found[i].score;
        out.similarities[to] = similarity(*least);
        out.regions[to] = int16_t(least - work.costs.begin());
        out.distances[to] = q.has_code ? distance(row, q.code.data()) : -1;
    }
    out.looked_at[at] = looked_at;
}

uint64_t FineTable::new_numbering() {
    static std::atomic<uint64_t> last{0};
    return ++last;
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
    const int threads = int(std::clamp<size_t>(images / 4096, 1, std::min(most, n)));
    std::atomic<size_t> next{0};
    parallel(threads, [&] {
        Scratch work;
        for (size_t i; (i = next.fetch_add(1)) < n;) {
            Query q(queries + i * size_t(fine_bits_), fine_bits_, words_);
            q.has_code = codes != nullptr;
            if (codes) q.code = as_words(codes + i * size_t(bits_ / 8), size_t(bits_ / 8), code_words_);
            q.all = lims == nullptr;
            q.begin = lims ? candidates + lims[i] : nullptr;
            q.end = lims ? candidates + lims[i + 1] : nullptr;
            q.allowed = rows.get();
            rank_one(q, work, o, out, i);
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
            Query q(queries + i * size_t(fine_bits_), fine_bits_, words_);
            q.allowed = rows.get();
            look_near(q, work, o);
            auto& costs = work.entry_costs;
            const auto first = costs.begin();
            const auto count = std::min<size_t>(o.near, costs.size());
            if (count < costs.size()) std::nth_element(first, first + ptrdiff_t(count), costs.end());
            std::sort(first, first + ptrdiff_t(count));
            std::copy_n(first, count, out + i * o.near);
        }
    });
}

bool FineTable::read(const int64_t* keys, size_t n, uint8_t* fine) const {
    std::shared_lock lock(mutex_);
    const size_t width = size_t(fine_bits_) / 8, per_image = width * size_t(regions_);
    for (size_t i = 0; i < n; ++i) {
        const size_t row = row_of(keys[i]);
        if (row == n_rows()) return false;
        for (size_t r = 0; r < size_t(regions_); ++r)
            std::memcpy(fine + i * per_image + r * width, fine_of(row) + r * words_, width);
    }
    return true;
}

FineTable::Content FineTable::content() const {
    std::shared_lock lock(mutex_);
    const auto n_regions = size_t(regions_);
    const size_t width = size_t(fine_bits_) / 8, code_width = size_t(bits_) / 8;
    std::vector<uint16_t> cell(n_cells_ ? n_rows() * n_regions : 0);
    for (size_t c = 0; c < n_cells_; ++c) postings_[c].each([&](uint32_t entry) { cell[entry] = uint16_t(c); });
    Content out;
    for (size_t row = 0; row < n_rows(); ++row) {
        if (!live_[row]) continue;
        out.keys.push_back(keys_[row]);
        for (size_t r = 0; r < n_regions; ++r) {
            const auto* bytes = reinterpret_cast<const uint8_t*>(fine_of(row) + r * words_);
            out.fine.insert(out.fine.end(), bytes, bytes + width);
        }
        for (uint32_t c = code_starts_[row]; c < code_starts_[row + 1]; ++c) {
            const auto* bytes = reinterpret_cast<const uint8_t*>(&codes_[c * code_words_]);
            out.codes.insert(out.codes.end(), bytes, bytes + code_width);
        }
        out.counts.push_back(code_starts_[row + 1] - code_starts_[row]);
        if (n_cells_) out.cells.insert(out.cells.end(), &cell[row * n_regions], &cell[row * n_regions] + n_regions);
    }
    return out;
}

}  // namespace mch
