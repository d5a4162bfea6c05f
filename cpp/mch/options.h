// What the caller may ask of a search.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "code.h"

namespace mch {

class Filter;

enum class Strategy { automatic, probe, substring, scan };

struct SearchOptions {
    uint64_t k = 10;
    int max_radius = kMaxBits;              // inclusive
    std::optional<uint64_t> max_buckets;    // counts empty buckets too
    std::shared_ptr<const Filter> allowed;  // null: all images
    Strategy strategy = Strategy::automatic;
    int threads = 0;                        // 0: all cores
    uint64_t max_hits = uint64_t(1) << 26;  // of a range search, for all queries together: about 2 GB
};

}  // namespace mch
