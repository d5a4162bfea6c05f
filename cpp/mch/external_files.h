// The files of an unfinished build: all of them only grow, and a manifest says how long they are.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "array.h"

namespace mch {

// How far a build is. Written to the manifest as it is.
struct BuildProgress {
    enum Step : uint32_t { rows, ids, codes, halves, scatter, parts, table };

    uint32_t bits = 0, layout = 0;  // what the caller asked for
    Step step = rows;
    uint32_t done = 0;  // files or parts of this step
    uint64_t seed = 0;
    uint64_t n_rows = 0;
    uint64_t n_slots = 0;  // images, as they are numbered in the order of their rows
    int64_t last_id = 0;
    uint64_t n_images = 0;  // distinct ids
    uint64_t n_buckets = 0, n_entries = 0;
    uint64_t first_word[2] = {0, 0};  // by window: the last, incomplete word of its bitmap of first codes
    uint32_t window_bits = 0, n_parts = 0;
    bool sorted = true;    // the ids came in ascending order
    bool regions = false;  // one of them is not 0
    bool starts = false;   // a bucket has more than one entry
    bool spare[5] = {};
};

struct BuildChunk {
    uint64_t rows, checksum;
};

class BuildFolder {
  public:
    // Opens or creates the folder and locks it. `fresh`: removes what an unfinished build left.
    BuildFolder(std::string path, bool fresh);
    ~BuildFolder();
    BuildFolder(const BuildFolder&) = delete;

    BuildProgress progress;
    std::vector<BuildChunk> chunks;  // that are in the files
    bool resumed = false;

    const std::string& path() const { return path_; }
    std::string file(const std::string& name) const { return path_ + "/" + name; }
    uint64_t size(const std::string& name) const;  // of what was written so far; 0: there is no such file
    void set_memory(size_t bytes) {
        buffer_ = std::clamp<size_t>(bytes / 64, 4096, size_t(4) << 20);
        due_ = bytes / 2;
    }

    // Appends to a file, through a buffer.
    class Out {
      public:
        void append(const void* data, size_t n) {
            folder_.written_ += n;
            if (used_ + n > limit_) flush();
            if (n > limit_) return write(data, n);
            std::memcpy(buffer_.get() + used_, data, n);
            used_ += n;
        }
        template <class T>
        void put(const T& value) {
            append(&value, sizeof value);
        }
        void flush();

      private:
        friend class BuildFolder;
        Out(BuildFolder& folder, std::string name, size_t limit)
            : folder_(folder), name_(std::move(name)), buffer_(new uint8_t[limit]), limit_(limit) {}
        void write(const void* data, size_t n);

        BuildFolder& folder_;
        std::string name_;
        std::unique_ptr<uint8_t[]> buffer_;
        size_t limit_, used_ = 0;
    };
    // Stays valid until close(). `buffer`: bytes to collect before a write; 0: the usual number.
    Out& out(const std::string& name, size_t buffer = 0);
    void close(const std::string& name);  // writes what is in the buffer
    void keep(const std::string& name);   // a file that something else has written and synced

    // The content of a file as written so far, mapped; readable a little past its end.
    std::shared_ptr<uint8_t> map(const std::string& name);
    static std::shared_ptr<uint8_t> map(const std::string& path, size_t bytes);
    template <class A>
    void attach(const std::string& name, uint32_t width, A& array) {
        auto bytes = map(name);  // before size(): it writes what is in the buffer
        array.attach(std::move(bytes), size(name), width);
    }

    void remove_later(const std::string& name);  // at the next checkpoint: until then, a resumed build needs it
    void remove(const std::string& name);
    // From here, a resumed build goes on.
    void checkpoint();
    // A checkpoint if much was written since the last one: syncing many small files takes longer than
    // writing them again.
    void checkpoint_if_due() {
        if (written_ >= due_) checkpoint();
    }
    // Removes the folder.
    void discard();

  private:
    void read_manifest();
    void clean();

    std::string path_;
    int lock_ = -1;
    bool discarded_ = false;
    size_t buffer_ = size_t(1) << 20, due_ = 0, written_ = 0;  // bytes; since the last checkpoint
    std::map<std::string, uint64_t> sizes_;
    std::set<std::string> unsynced_;
    std::map<std::string, std::unique_ptr<Out>> outs_;
    std::vector<std::string> condemned_;
};

}  // namespace mch
