// The inner loops over contiguous codes ("kernels"): one set per instruction set, chosen at run time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "code.h"

namespace mch {

// Codes stored word by word: plane i holds word i of every code. Vector loads need no shuffles, and a
// range may start anywhere.
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

constexpr size_t kScanSlack = 32;  // elements that a kernel may write beyond its last result

template <class C>
struct Kernels {
    // Finds every code in [begin, end) within `bound` of `query`: writes index and distance, in index
    // order, and returns how many. The outputs need room for end - begin + kScanSlack elements.
    size_t (*scan)(const Planes<C>& codes, size_t begin, size_t end, const C& query, int bound, uint32_t* index,
                   uint16_t* distance);
    // out[i] = distance(query, pivots[i]) - radius[i], clamped to 0…255, for i < n.
    void (*lower_bounds)(const Planes<C>& pivots, const uint8_t* radius, size_t n, const C& query, uint8_t* out);
    // Writes the positions i < n with low <= values[i] <= high, in order, and returns how many.
    size_t (*select)(const uint8_t* values, size_t n, int low, int high, uint32_t* out);
};

template <class C>
const Kernels<C>& kernels();

std::vector<std::string> cpu_paths();        // those this machine can run, fastest first
std::string cpu_path();                      // the one in use
bool use_cpu_path(const std::string& name);  // false: this machine has no such path

}  // namespace mch
