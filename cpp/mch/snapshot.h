// A table in a file. All numbers are little-endian:
//
//   header     magic, version, bits, size of the file, counts, checksum of header and directory
//   directory  one record per part, then one per section: offset, bytes, width, checksum
//   sections   for each part, the arrays in the order of Segment::for_each_array and then the
//              bitmap of removed images, each followed by padding
//
// A file is written under a temporary name, synced, and renamed. Checksums detect accidental damage.
// Since they can be forged, reading also checks the range of every index that a search follows.
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

// Throws std::system_error if the file cannot be written; an existing file is then left as it was.
template <class C>
void save_snapshot(const std::string& path, int bits, const State<C>& state);

// An open snapshot. The constructor checks header and directory, read() checks the rest. Both throw a
// SnapshotError for a file they refuse, and std::system_error if the file cannot be read.
class SnapshotFile {
  public:
    SnapshotFile(const std::string& path, bool mmap);
    int bits() const;
    template <class C>
    std::shared_ptr<State<C>> read() const;

  private:
    std::string path_;
    std::shared_ptr<uint8_t> data_;
    size_t size_ = 0;
};

}  // namespace mch
