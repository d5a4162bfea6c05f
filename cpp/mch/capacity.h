// How large a segment may be. Entries, buckets and images are counted in 32 bits.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

namespace mch {

constexpr uint64_t kMostEntries = INT32_MAX;

// Tests use a smaller limit.
inline void check_entries(uint64_t n, uint64_t most = kMostEntries) {
    if (n > most)
        throw std::length_error(std::to_string(n) + " codes are too many for one segment, which holds at most " +
                                std::to_string(most) + "; add them in several calls");
}

}  // namespace mch
