// Builds the file of a table whose content need not fit into memory. All intermediate data lie in a
// folder beside the file, `path` + ".building":
//
//   rows      every row goes to one of 256 files by the first byte of its code; images are numbered
//   ids       if the ids did not come in ascending order: sorts them, to number the images by id
//   codes     file by file: sorts the rows by code and drops repeated ones; writes window 0 and the entries
//   halves    sorts the codes by their second half; writes window 1
//   table     puts the arrays into a snapshot, and renames it to `path`
//
// In the plain layout, "parts" takes the place of codes and halves: it builds ordinary segments, each
// of as many images as memory allows. All files only grow. A manifest records, again and again, how
// long each of them is and how far the work is; after a kill, the next build cuts the files to these
// lengths and goes on.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace mch {

// automatic: wide for 64-bit codes if there are at least TableBuilder::many of them
enum class Layout : uint32_t { automatic, wide, plain };

struct BuildOptions {
    std::string path;
    int bits = 64;
    Layout layout = Layout::automatic;
    uint64_t memory = uint64_t(1) << 30;  // bytes for buffers and for sorting
    bool resume = true;                   // false: an unfinished build is thrown away
    // Called with the name of a step, how much of it is done and how much there is to do (0: not known).
    // It may throw to stop the build.
    std::function<void(const char* step, uint64_t done, uint64_t total)> progress;
};

// Throws std::invalid_argument if an unfinished build does not fit to this one, std::length_error if
// there are too many rows, and std::system_error if a file cannot be read or written. The build can be
// resumed after all of them.
class TableBuilder {
  public:
    static constexpr uint64_t many = uint64_t(1) << 24;
    static constexpr uint64_t smallest_memory = uint64_t(1) << 20;

    explicit TableBuilder(BuildOptions options);
    ~TableBuilder();
    // Adds a chunk of rows. `regions` may be null: all 0. An unfinished build expects the same chunks again.
    void add(const int64_t* ids, const uint8_t* codes, const uint8_t* regions, size_t n);
    // Makes the file from all chunks; returns the number of (image, code) pairs in it.
    uint64_t finish();

  private:
    struct Work;
    std::unique_ptr<Work> work_;
};

}  // namespace mch
