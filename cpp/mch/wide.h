// The layout of a very large segment of 64-bit codes. It has two windows, one per half of a code. The
// value of the first w bits of a half is a cell; a bitmap says which cells hold codes. Cells are
// numbered by their value, so cells that differ in their last bits share a cache line of the bitmap.
//
//   window 0   codes in ascending order: the bucket of a code is its position here
//   window 1   the same codes, ordered by their second half
//
// A window stores what its cells do not say: the other half of each code and, if w < 32, the last 8
// bits of its own half.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "array.h"
#include "probe.h"
#include "scan.h"

namespace mch {

struct WideWindow {
    Array<uint64_t> cells;       // one bit per cell
    Array<uint32_t> start;       // by word of `cells`: the position of its first code; plus the end
    Array<uint64_t> first;       // one bit per code: it is the first one in its cell
    Array<uint32_t> first_rank;  // set bits of `first` before every eighth word
    Array<uint32_t> other;       // by code: its other half
    Array<uint8_t> last;         // by code: the last byte of its own half; empty: w is 32

    // Set bits of `first` before position `at`.
    uint32_t rank(size_t at) const {
        const size_t word = at >> 6;
        uint32_t n = first_rank[word >> 3];
        for (size_t i = word & ~size_t(7); i < word; ++i) n += uint32_t(std::popcount(first[i]));
        return n + uint32_t(std::popcount(first[word] & ((uint64_t(1) << (at & 63)) - 1)));
    }
    // The codes of a word of `cells`. A damaged file, if it was not verified, must not lead out of the arrays.
    std::pair<uint32_t, uint32_t> range(size_t word) const {
        const uint32_t n = uint32_t(other.size());
        return {std::min(start[word], n), std::min(start[word + 1], n)};
    }
};

// The position of the n-th set bit, counted from 0; 63 if there are fewer.
inline int select_bit(uint64_t word, uint32_t n) {
    for (; n && word; --n) word &= word - 1;
    return word ? std::countr_zero(word) : 63;
}

class WideIndex {
  public:
    static constexpr int smallest_window = 24, largest_window = 32;
    static constexpr uint32_t none = UINT32_MAX;
    using Whole = Code<uint64_t, 1>;
    using Half = Code<uint32_t, 1>;

    WideWindow window[2];

    // About four cells per code.
    static int window_bits(uint64_t n_codes) {
        return std::clamp(int(std::bit_width(n_codes)) + 2, smallest_window, largest_window);
    }

    uint32_t size() const { return uint32_t(window[0].other.size()); }
    int bits() const { return std::bit_width(window[0].cells.size()) + 5; }  // of a window

    template <class Self, class F>
    static void for_each_array(Self&& s, F&& f) {
        for (auto& w : s.window) {
            f("probe", w.cells);
            f("probe", w.start);
            f("probe", w.first);
            f("probe", w.first_rank);
            f("codes", w.other);
            f("codes", w.last);
        }
    }

    uint64_t code_at(uint32_t bucket) const {
        const WideWindow& w = window[0];
        const uint32_t* begin = w.start.data();
        const uint32_t* after = std::upper_bound(begin, begin + w.start.size() - 1, bucket);
        return whole(0, size_t(after - begin) - (after > begin), bucket);
    }

    // The bucket of a code, or `none`.
    uint32_t find(uint64_t code) const {
        const WideWindow& w = window[0];
        const uint64_t cell = code >> (64 - bits());
        if (!test_bit(w.cells.data(), cell)) return none;
        auto [low, end] = cell_range(w, cell >> 6, int(cell & 63));
        uint32_t high = end;
        while (low < high) {
            const uint32_t middle = low + (high - low) / 2;
            if (rest(w, middle) < rest_of(code))
                low = middle + 1;
            else
                high = middle;
        }
        return low < end && rest(w, low) == rest_of(code) ? low : none;
    }

    // Calls f(bucket, code) for all codes, in ascending order.
    template <class F>
    void for_each_code(F&& f) const {
        const WideWindow& w = window[0];
        for (size_t word = 0; word < w.cells.size(); ++word) {
            auto [begin, end] = w.range(word);
            uint64_t left = w.cells[word];
            for (uint32_t at = begin; at < end; ++at) {
                if (at > begin && test_bit(w.first.data(), at)) left &= left - 1;
                f(at, join(0, word * 64 + size_t(left ? std::countr_zero(left) : 63), at));
            }
        }
    }

    // Multi-index hashing: calls found(bucket, distance, mask) once for every code within bound(), which may
    // shrink on the way, and for some beyond. Scans all codes when `budget` nanoseconds are spent.
    template <class Bound, class Found>
    void search(uint64_t query, double budget, Bound&& bound, Found&& found) const;

    // What that takes, roughly and in nanoseconds: one step, all steps that find everything within a
    // distance, and a scan. A line of the bitmap counts together with the codes it leads to.
    double step_cost(int radius) const {
        double lines = 0;
        for (int h = std::max(0, radius - 9); h <= radius; ++h) lines += double(Binomials::get().choose(bits() - 9, h));
        return 60 * lines;
    }
    double search_cost(int distance) const {
        double cost = 0;
        for (int step = 0; step <= distance; ++step) cost += step_cost(step / 2);
        return cost;
    }
    double scan_cost() const { return 0.15 * size() + 2.0 * double(window[0].cells.size()); }

    // Whether the arrays fit together, which every search relies on.
    bool sizes_fit(uint32_t n_codes) const {
        const size_t words = window[0].cells.size();
        if (!std::has_single_bit(words) || bits() < smallest_window || bits() > largest_window) return false;
        for (const WideWindow& w : window) {
            if (w.cells.size() != words || w.start.size() != words + 1 || w.other.size() != n_codes) return false;
            if (w.first.size() != bitmap_words(n_codes) || w.first_rank.size() != w.first.size() / 8 + 1) return false;
            if (w.last.size() != (bits() < 32 ? n_codes : 0)) return false;
        }
        return true;
    }
    // Whether the content of a window is that of codes in strictly ascending order.
    bool sound(int j) const;

  private:
    static constexpr size_t line = 8, at_once = 256, chunk = 2048;  // words, lines, codes

    // What a cell of window 0 does not say about a code, as a number.
    uint64_t rest(const WideWindow& w, uint32_t at) const {
        return (w.last.empty() ? 0 : uint64_t(w.last[at]) << 32) | w.other[at];
    }
    uint64_t rest_of(uint64_t code) const { return code & (bits() < 32 ? 0xff'ffffffff : 0xffffffff); }

    // The code at a position of window j that lies in this cell.
    uint64_t join(int j, size_t cell, uint32_t at) const {
        const WideWindow& w = window[j];
        uint64_t half = uint64_t(cell) << (32 - bits());
        if (!w.last.empty()) half |= w.last[at];
        return j == 0 ? half << 32 | w.other[at] : uint64_t(w.other[at]) << 32 | half;
    }
    // The cell of a position in a word.
    size_t cell_of(const WideWindow& w, size_t word, uint32_t at) const {
        return word * 64 + size_t(select_bit(w.cells[word], w.rank(size_t(at) + 1) - w.rank(w.start[word]) - 1));
    }
    uint64_t whole(int j, size_t word, uint32_t at) const { return join(j, cell_of(window[j], word, at), at); }

    // The codes of one cell, which must not be empty.
    std::pair<uint32_t, uint32_t> cell_range(const WideWindow& w, size_t word, int cell) const {
        const uint32_t before = uint32_t(std::popcount(w.cells[word] & ((uint64_t(1) << cell) - 1)));
        const std::pair<uint32_t, uint32_t> range = w.range(word);
        const uint32_t base = w.rank(range.first);
        // The position of the n-th first code of this word.
        auto at = [&](uint32_t n) {
            uint32_t low = range.first, high = range.second;
            while (low < high) {
                const uint32_t middle = low + (high - low) / 2;
                if (w.rank(size_t(middle) + 1) - base <= n)
                    low = middle + 1;
                else
                    high = middle;
            }
            return low;
        };
        const uint32_t from = at(before);
        return {from, at(before + 1)};
    }

    // Calls visit(mask) for all masks of `weight` of `bits` bits, in ascending order: the lowest bits change
    // fastest, so that neighbouring cells come together.
    template <class F>
    static void for_each_mask(int bits, int weight, F&& visit) {
        if (weight > bits) return;
        for (uint64_t v = (uint64_t(1) << weight) - 1; v >> bits == 0;) {
            visit(uint32_t(v));
            if (!v) return;
            const uint64_t low = v & -v, up = v + low;
            v = up | (((v ^ up) >> 2) >> std::countr_zero(low));
        }
    }

    template <class Bound, class Found>
    struct Search;
};

// The steps (radius, j) go by radius, then by window. A step reads the cells of window j at distance
// `radius` from the query's. Before it, everything within 2 * radius + j - 1 has been found.
template <class Bound, class Found>
struct WideIndex::Search {
    const WideIndex& index;
    const uint64_t query;
    const int bits;
    Bound& bound;
    Found& found;
    int radius = 0, j = 0;                   // the step
    uint64_t home = 0;                       // the query's cell in window j
    uint64_t pattern[10][line];              // by distance: the cells of a line that far from `home` within its line
    uint8_t wanted[10][line], n_wanted[10];  // the words of a pattern that are not 0
    uint32_t line_at[at_once];
    uint8_t line_distance[at_once];
    size_t n_lines = 0;
    struct Word {
        uint32_t word;
        uint64_t cells, hits;  // that hold codes; of these, the ones to look at
    };
    Word word[at_once * line];
    uint64_t waiting[at_once];  // codes found in window 1, whose buckets are not known yet
    size_t n_waiting = 0;
    uint32_t at[chunk + kScanSlack];
    uint16_t distance[chunk + kScanSlack];

    Search(const WideIndex& i, uint64_t q, Bound& b, Found& f)
        : index(i), query(q), bits(i.bits()), bound(b), found(f) {}

    void run(double budget) {
        for (radius = 0; radius <= bits; ++radius)
            for (j = 0; j < 2; ++j) {
                if (2 * radius + j - 1 >= bound()) return;
                if ((budget -= index.step_cost(radius)) < 0) return scan_all();
                step();
            }
    }

    void step() {
        const WideWindow& w = index.window[j];
        home = (query >> (32 * (1 - j)) & 0xffffffff) >> (32 - bits);
        for (auto& p : pattern) std::fill_n(p, line, 0);
        for (uint64_t cell = 0; cell < 512; ++cell) set_bit(pattern[std::popcount(cell ^ (home & 511))], cell);
        for (int d = 0; d < 10; ++d) {
            n_wanted[d] = 0;
            for (uint8_t v = 0; v < line; ++v)
                if (pattern[d][v]) wanted[d][n_wanted[d]++] = v;
        }
        for (int h = std::max(0, radius - 9); h <= radius; ++h)
            for_each_mask(bits - 9, h, [&](uint32_t mask) {
                const uint32_t at = uint32_t(home >> 9) ^ mask;
                __builtin_prefetch(&w.cells[at * line]);
                line_at[n_lines] = at;
                line_distance[n_lines] = uint8_t(radius - h);
                if (++n_lines == at_once) read_lines(w);
            });
        read_lines(w);
    }

    // Reads the lines that were collected. Each stage runs for all of them, so that their cache misses overlap.
    void read_lines(const WideWindow& w) {
        size_t n = 0;
        for (size_t i = 0; i < n_lines; ++i) {
            const int d = line_distance[i];
            for (uint32_t k = 0; k < n_wanted[d]; ++k) {
                const uint32_t at = uint32_t(line_at[i] * line) + wanted[d][k];
                word[n] = {at, w.cells[at], w.cells[at] & pattern[d][wanted[d][k]]};
                if (!word[n].hits) continue;
                __builtin_prefetch(&w.start[at]);
                ++n;
            }
        }
        n_lines = 0;
        for (size_t i = 0; i < n; ++i) {
            const auto [begin, end] = w.range(word[i].word);
            __builtin_prefetch(&w.other[begin]);
            __builtin_prefetch(&w.other[end - (end > begin)]);
        }
        for (size_t i = 0; i < n; ++i) {
            const auto [begin, end] = w.range(word[i].word);
            if (end - begin <= 64)
                read_word(w, word[i], begin, end);
            else
                for (uint64_t left = word[i].hits; left; left &= left - 1)
                    read_cell(w, size_t(word[i].word), std::countr_zero(left));
        }
        look_up();
    }

    // Writes the codes in [begin, end) whose other half is near enough to `at`, and returns how many.
    size_t near(const WideWindow& w, size_t begin, size_t end) {
        if (bound() < radius) return 0;
        const Half other{{uint32_t(query >> (32 * j))}};
        return kernels<Half>().scan({{w.other.data()}}, begin, end, other, {bound() - radius}, at, distance);
    }

    // Reads all of the at most 64 codes of a word: they share one or two cache lines.
    void read_word(const WideWindow& w, const Word& word, uint32_t begin, uint32_t end) {
        const size_t n = near(w, begin, end);
        if (!n) return;
        uint64_t first = w.first[begin >> 6] >> (begin & 63);  // bit i: the code at begin + i opens a cell
        if (begin & 63) first |= w.first[(begin >> 6) + 1] << (64 - (begin & 63));
        uint64_t ordinals = 0;  // of the cells to look at, among those that hold codes
        for (uint64_t left = word.hits; left; left &= left - 1)
            ordinals |= uint64_t(1) << std::popcount(word.cells & ((left & -left) - 1));
        for (size_t i = 0; i < n; ++i) {
            const uint32_t ordinal = uint32_t(std::popcount(first & (~uint64_t(0) >> (63 - (at[i] - begin))))) - 1;
            if (ordinals >> (ordinal & 63) & 1)
                take(index.join(j, word.word * size_t(64) + size_t(select_bit(word.cells, ordinal)), at[i]), at[i]);
        }
    }

    // Reads one cell of a word with many codes.
    void read_cell(const WideWindow& w, size_t word, int cell) {
        const auto [begin, end] = index.cell_range(w, word, cell);
        size_t length = 64;  // short at first, because the bound shrinks fastest then
        for (size_t from = begin; from < end; from += length, length = std::min(2 * length, chunk)) {
            const size_t n = near(w, from, std::min<size_t>(end, from + length));
            for (size_t i = 0; i < n; ++i) take(index.join(j, word * 64 + size_t(cell), at[i]), at[i]);
        }
    }

    // A code in a cell of this step: the first step that meets it takes it.
    void take(uint64_t code, uint32_t at) {
        const uint64_t mask = code ^ query;
        const int d = std::popcount(mask);
        if (d > bound()) return;
        if (std::popcount(j == 0 ? second(mask) : first(mask)) < radius + j) return;
        if (j == 0) return found(at, d, mask);
        waiting[n_waiting++] = code;
        __builtin_prefetch(&index.window[0].cells[code >> (64 - bits) >> 6]);
        if (n_waiting == at_once) look_up();
    }

    // Looks up the buckets of the codes that were found in window 1, side by side.
    void look_up() {
        const WideWindow& w = index.window[0];
        for (size_t i = 0; i < n_waiting; ++i) __builtin_prefetch(&w.start[waiting[i] >> (64 - bits) >> 6]);
        for (size_t i = 0; i < n_waiting; ++i) {
            const uint32_t begin = w.range(waiting[i] >> (64 - bits) >> 6).first;
            __builtin_prefetch(&w.other[begin]);
            __builtin_prefetch(&w.first[begin >> 6]);
            __builtin_prefetch(&w.first_rank[begin >> 9]);
        }
        for (size_t i = 0; i < n_waiting; ++i) {
            const uint64_t mask = waiting[i] ^ query;
            const int d = std::popcount(mask);
            const uint32_t bucket = d > bound() ? none : index.find(waiting[i]);
            if (bucket != none) found(bucket, d, mask);
        }
        n_waiting = 0;
    }
    uint64_t first(uint64_t mask) const { return mask >> (64 - bits); }
    uint64_t second(uint64_t mask) const { return (mask & 0xffffffff) >> (32 - bits); }

    // Takes all codes within the bound that no earlier step has taken.
    void scan_all() {
        const int step = 2 * radius + j;
        const WideWindow& w = index.window[0];
        const Half other{{uint32_t(query)}};
        const Planes<Half> halves{{w.other.data()}};
        const uint64_t home = query >> (64 - bits);
        for (size_t word = 0; word < w.cells.size(); word += line) {
            const int lower = std::popcount((word * 64 ^ home) >> 9);
            const uint32_t begin = w.range(word).first, end = w.range(word + line - 1).second;
            for (size_t p = begin; p < end && lower <= bound(); p += chunk) {
                const size_t n = kernels<Half>().scan(halves, p, std::min<size_t>(end, p + chunk), other,
                                                      {bound() - lower}, at, distance);
                for (size_t i = 0; i < n; ++i) {
                    size_t v = word;
                    while (v + 1 < word + line && w.start[v + 1] <= at[i]) ++v;
                    const uint64_t mask = index.whole(0, v, at[i]) ^ query;
                    const int d = std::popcount(mask);
                    if (d > bound()) continue;
                    const int seen = std::min(2 * std::popcount(first(mask)), 2 * std::popcount(second(mask)) + 1);
                    if (seen >= step) found(at[i], d, mask);
                }
            }
        }
    }
};

template <class Bound, class Found>
void WideIndex::search(uint64_t query, double budget, Bound&& bound, Found&& found) const {
    if (!size()) return;
    Search<std::remove_reference_t<Bound>, std::remove_reference_t<Found>>(*this, query, bound, found).run(budget);
}

inline bool WideIndex::sound(int j) const {
    const WideWindow& w = window[j];
    const uint32_t n = uint32_t(w.other.size());
    uint32_t before = 0;
    for (size_t i = 0; i < w.first.size(); ++i) {
        if (i % 8 == 0 && w.first_rank[i / 8] != before) return false;
        before += uint32_t(std::popcount(w.first[i]));
    }
    if (w.first.size() % 8 == 0 && w.first_rank[w.first.size() / 8] != before) return false;
    if (n % 64 && w.first[w.first.size() - 1] >> (n % 64)) return false;
    if (w.start[0] != 0 || w.start[w.start.size() - 1] != n) return false;
    for (size_t word = 0; word < w.cells.size(); ++word) {
        const uint32_t begin = w.start[word], end = w.start[word + 1];
        if (begin > end || end > n) return false;
        if (begin == end ? w.cells[word] != 0 : !test_bit(w.first.data(), begin)) return false;
        uint32_t firsts = 0;
        for (uint32_t at = begin; at < end; ++at) {
            const bool opens = test_bit(w.first.data(), at);
            firsts += opens;
            if (!opens && rest(w, at - 1) >= rest(w, at)) return false;
        }
        if (firsts != uint32_t(std::popcount(w.cells[word]))) return false;
    }
    return true;
}

}  // namespace mch
