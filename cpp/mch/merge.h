// The answers of several tables as one. Each table holds a part of the images, such as a shard of a cluster, and sends
// its answers as bytes, in the machine's order:
//
//   header  PackedHeader
//   rows    one PackedRow per query
//   hits    the ids of all hits, query after query, then their XOR masks, then their regions
//
// A hit's distance is the number of ones in its mask.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <vector>

#include "code.h"
#include "probe.h"
#include "table.h"

namespace mch {

struct PackedHeader {
    uint64_t queries, hits, width;  // width: bytes per mask
};

struct PackedRow {
    int64_t buckets, candidates;
    int32_t radius;
    uint32_t hits;
    uint64_t exact;  // 0 or 1
};

// The answers to `n` queries, of which each has up to `k` hits, with their masks.
inline PackedHeader packed_header(const SearchRows& rows, size_t n, size_t width) {
    PackedHeader header{n, 0, width};
    for (size_t q = 0; q < n; ++q) header.hits += uint64_t(rows.counts[q]);
    return header;
}
inline size_t packed_size(const PackedHeader& header) {
    return sizeof header + header.queries * sizeof(PackedRow) +
           header.hits * (sizeof(int64_t) + header.width + sizeof(int16_t));
}
inline void pack(const SearchRows& rows, size_t k, const PackedHeader& header, uint8_t* to) {
    auto put = [&](const void* from, size_t bytes) {
        std::memcpy(to, from, bytes);
        to += bytes;
    };
    put(&header, sizeof header);
    for (size_t q = 0; q < header.queries; ++q) {
        const PackedRow row{rows.buckets[q], rows.candidates[q], rows.radius[q], uint32_t(rows.counts[q]),
                            rows.exact[q]};
        put(&row, sizeof row);
    }
    auto put_hits = [&](const auto* column, size_t elements) {  // per hit
        for (size_t q = 0; q < header.queries; ++q)
            put(column + q * k * elements, size_t(rows.counts[q]) * elements * sizeof *column);
    };
    put_hits(rows.ids, 1);
    put_hits(rows.masks, header.width);
    put_hits(rows.regions, 1);
}

// Packed answers, which may come from anywhere: the constructor throws std::invalid_argument for what pack() cannot
// have made. They must outlive it.
class PackedAnswers {
  public:
    PackedAnswers(const uint8_t* data, size_t size) {
        const auto refuse = [](bool wrong) {
            if (wrong) throw std::invalid_argument("these are no packed answers");
        };
        refuse(size < sizeof header_);
        std::memcpy(&header_, data, sizeof header_);
        // Neither product overflows: a row takes more than a byte, and so does a hit.
        refuse(header_.queries > size || header_.hits > size || !header_.width || header_.width > kMaxBits / 8 ||
               packed_size(header_) != size);
        rows_ = data + sizeof header_;
        ids_ = rows_ + header_.queries * sizeof(PackedRow);
        masks_ = ids_ + header_.hits * sizeof(int64_t);
        regions_ = masks_ + header_.hits * header_.width;
        start_.reserve(header_.queries + 1);
        start_.push_back(0);
        for (size_t q = 0; q < header_.queries; ++q) start_.push_back(start_.back() + row(q).hits);
        refuse(start_.back() != header_.hits);
    }

    size_t queries() const { return header_.queries; }
    size_t width() const { return header_.width; }
    PackedRow row(size_t q) const { return read<PackedRow>(rows_, q); }
    uint64_t start(size_t q) const { return start_[q]; }  // of the hits of a query
    int64_t id(uint64_t hit) const { return read<int64_t>(ids_, hit); }
    int16_t region(uint64_t hit) const { return read<int16_t>(regions_, hit); }
    const uint8_t* mask(uint64_t hit) const { return masks_ + hit * header_.width; }

  private:
    template <class T>
    static T read(const uint8_t* from, uint64_t i) {
        T value;
        std::memcpy(&value, from + i * sizeof(T), sizeof(T));
        return value;
    }
    PackedHeader header_;
    const uint8_t *rows_, *ids_, *masks_, *regions_;
    std::vector<uint64_t> start_;
};

// The next hit of one part.
struct NextHit {
    const PackedAnswers* part;
    uint64_t at, end;
    int distance = 0;

    bool look() {  // false: there is none
        if (at == end) return false;
        const uint8_t* mask = part->mask(at);
        distance = 0;
        for (size_t i = 0; i < part->width(); ++i) distance += std::popcount(mask[i]);
        return true;
    }
    // Whether this hit comes after another one. At one distance, Algorithm 1 visits the largest mask first.
    bool operator<(const NextHit& o) const {
        if (distance != o.distance) return distance > o.distance;
        const int order = std::memcmp(part->mask(at), o.part->mask(o.at), part->width());
        return order ? order < 0 : part->id(at) > o.part->id(o.at);
    }
};

// Writes the first `k` hits of each query, in the order of one table with the images of all parts. The parts are not
// empty, and have the same queries; each has its first `k` hits, or all within the limits.
inline void merge(const std::vector<PackedAnswers>& parts, uint64_t k, const SearchRows& out) {
    const auto width = int(parts[0].width());
    std::vector<NextHit> heap;
    for (size_t q = 0; q < parts[0].queries(); ++q) {
        // A query with fewer hits went on to the limits, which are the same in all parts.
        PackedRow row = parts[0].row(q);
        heap.clear();
        for (const PackedAnswers& part : parts) {
            NextHit next{&part, part.start(q), part.start(q + 1)};
            if (next.look()) heap.push_back(next);
            if (&part == &parts[0]) continue;
            row.candidates += part.row(q).candidates;
            row.exact &= part.row(q).exact;
        }
        std::make_heap(heap.begin(), heap.end());
        size_t at = q * k;
        const size_t end = at + k;
        for (; at < end && !heap.empty(); ++at) {
            std::pop_heap(heap.begin(), heap.end());
            NextHit& first = heap.back();
            out.ids[at] = first.part->id(first.at);
            out.distances[at] = first.distance;
            out.regions[at] = first.part->region(first.at);
            if (at + 1 == end) {  // the search stopped here
                row.buckets = with_code_type(8 * width, [&](auto type) {
                    using C = typename decltype(type)::type;
                    return int64_t(bucket_rank(C::load(first.part->mask(first.at), width), 8 * width));
                });
                row.radius = first.distance;
                row.exact = 1;
            }
            ++first.at;
            if (first.look())
                std::push_heap(heap.begin(), heap.end());
            else
                heap.pop_back();
        }
        out.counts[q] = int64_t(at - q * k);
        for (; at < end; ++at) out.ids[at] = out.distances[at] = out.regions[at] = -1;
        out.buckets[q] = row.buckets;
        out.candidates[q] = row.candidates;
        out.radius[q] = row.radius;
        out.exact[q] = row.exact != 0;
    }
}

}  // namespace mch
