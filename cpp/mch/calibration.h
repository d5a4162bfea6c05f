// How fast this machine compares codes.
#pragma once

#include <atomic>
#include <cmath>
#include <cstdint>
#include <vector>

#include "experience.h"
#include "scan.h"

namespace mch {

// Nanoseconds per code of a scan of codes that are in the cache, measured in a few microseconds.
template <class C>
double measure_code_ns() {
    constexpr size_t n = 2048;
    const std::vector<typename C::Word> zeros(n + kScanSlack);
    Planes<C> codes;
    for (auto& plane : codes.p) plane = zeros.data();
    C query{};
    for (auto& word : query.w) word = ~typename C::Word(0);  // further away than the bound
    std::vector<uint32_t> index(n + kScanSlack);
    std::vector<uint16_t> distance(n + kScanSlack);
    double best = INFINITY;
    for (int i = 0; i < 5; ++i) {  // the least: others may use the processor, too
        constexpr int passes = 4;
        const double start = nanoseconds();
        for (int j = 0; j < passes; ++j)
            kernels<C>().scan(codes, 0, n, query, Bound<C>{0}, index.data(), distance.data());
        best = std::min(best, (nanoseconds() - start) / double(passes * n));
    }
    return std::max(best, 1e-3);
}

// The same, measured once. Not a static variable that its first use makes: a process forked at that moment would
// wait for it for ever.
template <class C>
double code_ns() {
    static std::atomic<double> known{0};
    double ns = known.load(std::memory_order_relaxed);
    if (!ns) known = ns = measure_code_ns<C>();
    return ns;
}

}  // namespace mch
