// A libFuzzer target: files with any content are refused or used without a crash. It is built so that
// wrong checksums are accepted; the fuzzer could not guess right ones.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <numeric>
#include <string>
#include <vector>

#include "mch/snapshot.h"
#include "mch/table.h"

namespace {

void use(mch::AnyTable& table) {
    constexpr size_t n = 3, k = 5;
    const std::vector<uint8_t> codes(n * size_t(table.bits()) / 8, 0x5a);
    std::vector<int64_t> ids(n * k), counts(n), buckets(n), candidates(n);
    std::vector<int32_t> distances(n * k), radius(n);
    std::vector<int16_t> regions(n * k);
    bool exact[n];
    const mch::SearchRows rows{ids.data(),        distances.data(), regions.data(), counts.data(), buckets.data(),
                               candidates.data(), radius.data(),    exact,          nullptr};
    mch::SearchOptions o;
    o.k = k;
    o.threads = 1;
    for (auto s : {mch::Strategy::automatic, mch::Strategy::probe, mch::Strategy::substring, mch::Strategy::scan}) {
        o.strategy = s;
        table.search(codes.data(), n, o, rows);
    }
    const std::vector<int64_t> some = {ids[0], ids[1], 0, 1, 2};
    table.add(some.data(), codes.data(), nullptr, n);
    table.remove({ids[0], ids[k], 7});
    table.search(codes.data(), n, o, rows);
    table.memory();
    table.n_buckets();
    table.optimize(false);
    table.search(codes.data(), n, o, rows);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const int file = ::memfd_create("table", MFD_CLOEXEC);
    if (file < 0 || ::write(file, data, size) != ssize_t(size)) std::abort();
    const std::string path = "/proc/self/fd/" + std::to_string(file);
    for (bool mmap : {false, true}) try {
            use(*mch::load_table(path, mmap));
        } catch (const mch::SnapshotError&) {
        }
    ::close(file);
    return 0;
}
