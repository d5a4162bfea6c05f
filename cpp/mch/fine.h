// The fine codes: one per region of every image, to rank what the bucket table finds, and to find
// copies and parts of pictures by themselves.
//
// A query has a real number per bit. Its sign says which bit is expected, and its magnitude, rounded to
// 0…15, what a wrong bit costs. The similarity of a stored code is 1 - 2 * (cost of its wrong bits) / (cost
// of all bits), from -1 to 1; a code with all the expected bits has 1, whatever the query.
//
// Any number of threads may use a table at the same time.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <shared_mutex>
#include <span>
#include <vector>

#include "array.h"
#include "forks.h"

namespace mch {

// The score of an image is a weighted sum of four numbers from -1 to 1.
struct RankWeights {
    float code;    // similarity of its nearest code in the bucket table: 1 - 2 * distance / bits
    float whole;   // similarity of the fine code of its first region, the whole image
    float region;  // similarity of its most similar fine code
    float close;   // the fourth power of that similarity, if it is positive
};

struct RankOptions {
    uint64_t k = 10;
    RankWeights weights{0, 0, 1, 0};
    uint64_t near = 0;    // codes whose images are added to the candidates; those as near as the last one, too
    uint32_t probes = 0;  // cells to look for them in
    // Or, for each query, the largest cost of these codes: then `near` is ignored.
    const uint32_t* near_costs = nullptr;
    int threads = 0;
};

// Where a ranking writes its answer: k of each per query. Missing hits have the key -1.
struct RankRows {
    int64_t* keys;
    float *scores, *similarities;
    int32_t* distances;
    int16_t* regions;
    int64_t* looked_at;  // one per query: how many images were scored
};

class Filter;

class FineTable {
  public:
    static constexpr int kMostRegions = 256, kMostBits = 1024, kMostCells = 1 << 16;

    // `cells`: the centres of the cells by which fine codes are found, `n_cells` codes of `fine_bits`.
    FineTable(int bits, int fine_bits, int regions, const uint8_t* cells, size_t n_cells);

    int bits() const { return bits_; }
    int fine_bits() const { return fine_bits_; }
    int regions() const { return regions_; }
    size_t n_cells() const { return n_cells_; }
    uint64_t size() const;
    uint64_t bytes() const;

    // Adds images. The keys are 0 or more, ascend, and are above all earlier ones. `fine` has `regions` codes per
    // image. codes[starts[i]] … codes[starts[i + 1] - 1] are the codes of image i in the bucket table. `cells`, if not
    // null, has the cell of each fine code, which need not be found again then. Throws std::invalid_argument and
    // changes nothing if the keys do not ascend or there is no such cell.
    void add(const int64_t* keys, size_t n, const uint8_t* fine, const uint32_t* starts, const uint8_t* codes,
             const uint16_t* cells);
    // Unknown keys are ignored; returns how many images were removed.
    uint64_t remove(const int64_t* keys, size_t n);

    // The k images with the largest scores, for each of n queries; of equal scores, the smallest key first.
    // `codes` may be null: the weight of the code is then ignored, and distances are -1. The images of
    // query i that are looked at are candidates[lims[i]] … candidates[lims[i + 1] - 1], and those that
    // `near` adds; without `lims`, all images. `allowed` restricts both; null allows all.
    void rank(const uint8_t* codes, const float* queries, size_t n, const int64_t* lims, const int64_t* candidates,
              const Filter* allowed, const RankOptions&, const RankRows&) const;

    // The costs of the `o.near` codes that `rank` would take for each query, ascending; UINT32_MAX where there are
    // fewer. From those of several tables follows what one table with all their images would take.
    void near_costs(const float* queries, size_t n, const Filter* allowed, const RankOptions& o, uint32_t* out) const;

    // The fine codes of images, `regions` per key; returns false if a key is not in the table.
    bool read(const int64_t* keys, size_t n, uint8_t* fine) const;

    // Everything in the table, as `add` takes it.
    struct Content {
        std::vector<int64_t> keys;
        std::vector<uint8_t> fine, codes;
        std::vector<uint32_t> counts;
        std::vector<uint16_t> cells;
    };
    Content content() const;

  private:
    using Word = uint64_t;
    static constexpr size_t kBlock = 1 << 14;  // images per block of memory
    struct Rows;
    struct Query;
    struct Scratch;
    class Ranking;

    // The fine codes in a cell, as row * regions + region, ascending. Each is stored as its difference from
    // the one before, seven bits per byte, lowest first: two bytes, mostly, if there are thousands of cells.
    class Posting {
      public:
        void push(uint32_t entry);
        template <class F>
        void each(F&& take) const {
            uint32_t entry = 0;
            for (auto at = bytes_.begin(); at != bytes_.end();) {
                uint32_t step = 0;
                for (int shift = 0;; shift += 7) {
                    step |= uint32_t(*at & 0x7f) << shift;
                    if (!(*at++ & 0x80)) break;
                }
                take(entry += step);
            }
        }
        size_t bytes() const { return bytes_.capacity() + sizeof *this; }

      private:
        std::vector<uint8_t> bytes_;
        uint32_t last_ = 0;
    };

    const Word* fine_of(size_t row) const {
        return reinterpret_cast<const Word*>(blocks_[row / kBlock].get()) + row % kBlock * row_words_;
    }
    static uint64_t new_numbering();
    size_t row_of(int64_t key) const;  // n_rows() if there is none
    size_t n_rows() const { return keys_.size(); }
    void append(int64_t key, const Word* fine, const uint64_t* codes, uint32_t n_codes);
    void compact();
    uint32_t nearest_cell(const Word* code, std::vector<uint32_t>& distances) const;
    int distance(size_t row, const uint64_t* code) const;
    std::shared_ptr<const Rows> rows_of(const Filter&) const;
    void look_near(const Query&, const Rows* allowed, Scratch&, const RankOptions&) const;
    void take_near(const Query&, const Rows* allowed, Scratch&, const RankOptions&, size_t at) const;
    void rank_all(std::vector<Ranking>&, Scratch&, const RankRows&, size_t at) const;
    void rank_rows(Ranking&, const Rows&, Scratch&, const RankRows&, size_t at) const;
    void rank_candidates(Ranking&, std::span<const int64_t> keys, const Rows* allowed, Scratch&, const RankOptions&,
                         const RankRows&, size_t at) const;

    const int bits_, fine_bits_, regions_;
    const size_t words_, row_words_, code_words_, n_cells_;
    std::vector<Word> cells_;

    mutable std::shared_mutex mutex_;
    std::vector<std::shared_ptr<uint8_t>> blocks_;
    std::vector<int64_t> keys_;
    std::vector<uint8_t> live_;
    std::vector<uint32_t> code_starts_{0};
    std::vector<uint64_t> codes_;
    std::vector<Posting> postings_;  // one per cell
    uint64_t n_live_ = 0;
    uint64_t numbering_ = new_numbering();  // of the rows: no other one in this process has this number

    // A fork waits until nobody changes the table. It does not wait for those that only read; the child has
    // none of them.
    const AtFork at_fork_{[this] { mutex_.lock_shared(); }, [this] { mutex_.unlock_shared(); },
                          [this] { renew(mutex_); }};
};

}  // namespace mch
