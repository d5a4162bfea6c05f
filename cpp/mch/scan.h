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

// How far a search looks: at codes nearer than `distance`, and at those of that distance whose XOR mask
// has a first word of at least `last`. Masks are visited in descending order, so those come first.
template <class C>
struct Bound {
    int distance;
    typename C::Word last = 0;

    bool admits(typename C::Word first_word, int d) const {
        return d < distance || (d == distance && first_word >= last);
    }
    bool covers(const Bound& o) const { return o.distance < distance || (o.distance == distance && o.last >= last); }
};

constexpr size_t kScanSlack = 32;  // elements that a kernel may write beyond its last result

// A group of codes by residuals, which are their XOR masks from the group's pivot: plane i holds bit i of
// every residual. A query whose own residual has few bits needs only the planes of those bits. Codes come in
// blocks, of which each plane is a cache line. The planes of a block are together.
struct ResidualPlanes {
    static constexpr size_t block = 512;         // codes per step of a kernel
    static constexpr size_t words = block / 64;  // of a plane

    const uint64_t* bits;
    size_t planes;           // of each block
    const uint32_t* shells;  // where each shell starts, from the outermost to the innermost, and the end
    int radius;              // distance of the outermost shell from the pivot

    // The first plane of the block that begins with this code; plane i is i * words further.
    const uint64_t* at(size_t begin) const { return bits + begin / block * planes * words; }
};

// A query of a scan for several, and what it found. As few lanes as fill the registers.
constexpr size_t kLanes = 4;
template <class C>
struct Lane {
    C query;
    Bound<C> bound;
    uint32_t* index;
    uint16_t* distance;
    bool ties;  // whether many codes are as far away as the bound; a scan that meets them sets it for the next ones
    size_t found;
};

template <class C>
struct Kernels {
    // Finds every code in [begin, end) within `bound` of `query`: writes index and distance, in index
    // order, and returns how many. The outputs need room for end - begin + kScanSlack elements.
    size_t (*scan)(const Planes<C>& codes, size_t begin, size_t end, const C& query, const Bound<C>& bound,
                   uint32_t* index, uint16_t* distance);
    // The same for kLanes queries, which share each load of the codes.
    void (*scan_lanes)(const Planes<C>& codes, size_t begin, size_t end, Lane<C>* lanes);
    // out[i] = distance(query, pivots[i]) - radius[i], clamped to 0…255, for i < n.
    void (*lower_bounds)(const Planes<C>& pivots, const uint8_t* radius, size_t n, const C& query, uint8_t* out);
    // Writes the positions i < n with low <= values[i] <= high, in order, and returns how many.
    size_t (*select)(const uint8_t* values, size_t n, int low, int high, uint32_t* out);
    // Writes the numbers i < n for which the bit of `bitmap` at position (hash ^ flip[i]) >> shift is set, in
    // order, and returns how many. `out` needs room for n + kScanSlack elements.
    size_t (*occupied)(const uint64_t* bitmap, uint32_t hash, const uint32_t* flip, size_t n, int shift, uint32_t* out);
    // Finds every code of a group within `bound` of a query whose residual has exactly the given bits, from
    // the group's code number `begin`, the first of a block, up to number `end`.
    size_t (*residuals)(const ResidualPlanes& group, size_t begin, size_t end, const uint8_t* bits, int n_bits,
                        int bound, uint32_t* index, uint16_t* distance);
};

template <class C>
const Kernels<C>& kernels();

std::vector<std::string> cpu_paths();        // those this machine can run, fastest first
std::string cpu_path();                      // the one in use
bool use_cpu_path(const std::string& name);  // false: this machine has no such path

}  // namespace mch
