// The inner loops over contiguous codes, one set of them a kind of CPU, chosen at run time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "code.h"

namespace mch {

// Codes lie word by word: plane i holds word i of every code, so that vectors need no shuffles and
// a range may start anywhere.
template <class C>
struct Planes {
    const typename C::Word* p[C::words];

    C at(size_t i) const {
        C c;
        for (int j = 0; j < C::words; ++j) c.w[j] = p[j][i];
        return c;
    }
    void prefetch(size_t i) const {
        for (int j = 0; j < C::words; ++j) __builtin_prefetch(p[j] + i);
    }
};

constexpr size_t kScanSlack = 32;  // elements that kernels may write past their last result

template <class C>
struct Kernels {
    // Every code in [begin, end) within `bound` of `query`: writes index and distance, in index
    // order, and returns their number. Outputs need room for end - begin + kScanSlack.
    size_t (*scan)(const Planes<C>& codes, size_t begin, size_t end, const C& query, int bound, uint32_t* index,
                   uint16_t* distance);
    // out[i] = max(0, distance(query, pivots[i]) - radius[i]), at most 255, for i < n.
    void (*lower_bounds)(const Planes<C>& pivots, const uint8_t* radius, size_t n, const C& query, uint8_t* out);
    // Positions i < n with low <= values[i] <= high, in order; returns their number.
    size_t (*select)(const uint8_t* values, size_t n, int low, int high, uint32_t* out);
};

template <class C>
const Kernels<C>& kernels();

std::vector<std::string> cpu_paths();        // what this machine can run, best first
std::string cpu_path();                      // the one in use
bool use_cpu_path(const std::string& name);  // false: not a path of this machine

}  // namespace mch
