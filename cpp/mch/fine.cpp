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

#include "fine_costs.h"
#include "workers.h"

namespace mch {
namespace {

// Makes room for more elements. Doubling, as vectors do, would leave half of a large table's memory unused.
template <class T>
void make_room(std::vector<T>& values, size_t more) {
    const size_t needed = values.size() + more;
    if (needed > values.capacity()) values.reserve(needed + needed / 8);
}

}  // namespace

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
    choose_costs(words_, 1)(cells_.data(), n_cells_, bits, distances.data());
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

uint64_t FineTable::new_numbering() {
    static std::atomic<uint64_t> last{0};
    return ++last;
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
