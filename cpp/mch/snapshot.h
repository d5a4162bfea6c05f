// A table in a file. All numbers little-endian:
//
//   header     magic, version, bits, size of the file, counts, checksum of header and directory
//   directory  a record a part, then a record a section: offset, bytes, width, checksum
//   sections   the arrays, in the order of Segment::for_each_array, each followed by padding
//
// A file is written beside its name, synced, and renamed into place. Checksums tell accidents; and
// since they can be forged, every index that a search will follow is checked against its range.
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

template <class C>
void save_snapshot(const std::string& path, int bits, const State<C>& state);

// An open snapshot: header and directory are checked on opening, the content by read().
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
