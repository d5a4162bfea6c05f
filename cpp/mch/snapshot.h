// A table in a file. All numbers are little-endian:
//
//   header     magic, version, bits, size of the file, counts, checksum of header and directory, seed of the hash
//   directory  one record per part, then one per section: offset, bytes, width, checksum
//   sections   for each part, the arrays in the order of Segment::for_each_array and then the
//              bitmap of removed images, each followed by padding
//
// A file is written under a temporary name, synced, and renamed. Checksums detect accidental damage.
// Since they can be forged, reading also checks the range of every index that a search follows.
//
// Files of version 1 have shorter records, without seed and kind, and one seed for all; saving always
// writes version 2.
#pragma once

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

#include "state.h"

namespace mch {

struct SnapshotError : std::runtime_error {
    using runtime_error::runtime_error;
};
struct NotASnapshot : SnapshotError {
    using SnapshotError::SnapshotError;
};
struct SnapshotVersion : SnapshotError {
    using SnapshotError::SnapshotError;
};
struct SnapshotDamaged : SnapshotError {
    using SnapshotError::SnapshotError;
};

// Detects accidental changes of n bytes.
uint64_t checksum(const uint8_t* p, size_t n, uint64_t seed = 0);

// Throws std::system_error if the file cannot be written; an existing file is then left as it was.
template <class C>
void save_snapshot(const std::string& path, int bits, uint64_t seed, const State<C>& state);

// An open snapshot. The constructor checks header and directory, read() checks the rest; without `verify` only
// the sizes of arrays, so that it reads hardly anything. Both throw a SnapshotError for a file they refuse, and
// std::system_error if the file cannot be read.
class SnapshotFile {
  public:
    SnapshotFile(const std::string& path, bool mmap);
    int bits() const;
    uint64_t seed() const;  // of the hash by which its segments were built
    template <class C>
    std::shared_ptr<State<C>> read(bool verify = true) const;

  private:
    std::string path_;
    std::shared_ptr<uint8_t> data_;
    size_t size_ = 0;
    bool mapped_ = false;
};

}  // namespace mch
