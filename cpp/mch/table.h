// The engine's interface: a table of hash buckets in which an image may have several codes. Codes go
// in and out as bytes, whatever their width.
//
// Any number of threads may use a table at the same time. A search never waits for a writer; it sees
// the table as it was at one moment.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "options.h"

namespace mch {

// Where a search writes its answer: k ids, distances and regions per query, one of each of the rest.
struct SearchRows {
    int64_t* ids;
    int32_t* distances;
    int16_t* regions;
    int64_t *counts, *buckets, *candidates;
    int32_t* radius;
    bool* exact;
    uint8_t* masks;  // of k codes per query, or null: they are not wanted
};

struct RangeHit {
    int64_t id;
    int32_t distance;
    int16_t region;
};

// What a table consists of, and what it has done.
struct TableStats {
    struct Part {
        uint64_t images, codes, buckets, groups, removed;
        bool substring;  // has a substring index
    };
    uint64_t images = 0, codes = 0;
    std::vector<Part> parts;
    std::map<std::string, uint64_t> answered;  // queries since the table was made, by strategy
    bool merging = false, indexing = false;
    uint64_t large_buckets_counted = 0, buckets_collected = 0;
};

class AnyTable {
  public:
    virtual ~AnyTable() = default;
    virtual int bits() const = 0;
    virtual void add(const int64_t* ids, const uint8_t* codes, const uint8_t* regions, size_t n) = 0;
    virtual uint64_t remove(std::vector<int64_t> ids) = 0;
    virtual bool contains(int64_t id) const = 0;
    virtual void search(const uint8_t* codes, size_t n, const SearchOptions&, const SearchRows&) const = 0;
    // Throws std::length_error as soon as the queries have more than max_hits hits.
    virtual std::vector<std::vector<RangeHit>> within(const uint8_t* codes, size_t n, const SearchOptions&) const = 0;
    virtual uint64_t n_images() const = 0;
    virtual uint64_t n_codes() const = 0;
    virtual uint64_t n_buckets() const = 0;
    virtual void optimize(bool substring) = 0;
    virtual std::map<std::string, uint64_t> memory() const = 0;
    virtual TableStats stats() const = 0;
    virtual void save(const std::string& path) const = 0;
};

std::shared_ptr<AnyTable> make_table(int bits);
std::shared_ptr<AnyTable> load_table(const std::string& path, bool mmap, bool verify = true);

}  // namespace mch
