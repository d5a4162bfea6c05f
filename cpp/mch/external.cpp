#include "external.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <future>
#include <optional>
#include <stdexcept>
#include <system_error>
#include <unordered_map>
#include <vector>

#include "build.h"
#include "changes.h"
#include "external_files.h"
#include "maintenance.h"
#include "platform.h"
#include "snapshot.h"

namespace mch {
namespace {

using Step = BuildProgress::Step;
constexpr uint32_t kFiles = 256;  // of a step that distributes rows by the first byte of a key

std::string numbered(const char* name, uint32_t i) {
    char text[32];
    std::snprintf(text, sizeof text, "%s.%03u", name, i);
    return text;
}

// ------------------------------------------------------------------------------- rows, file by file

// A row with a key of 64 bits: a code, or an id.
struct Row {
    uint64_t key;
    uint32_t slot;
    uint8_t region;

    static constexpr int depths = 12;  // bytes by which rows can be told apart, except by region
    uint8_t byte(int depth) const {
        return uint8_t(depth < 8 ? key >> (56 - 8 * depth) : slot >> (24 - 8 * (depth - 8)));
    }
    friend bool operator<(const Row& a, const Row& b) {
        if (a.key != b.key) return a.key < b.key;
        if (a.slot != b.slot) return a.slot < b.slot;
        return a.region < b.region;
    }
};

// A key alone.
struct Key {
    uint64_t key;

    static constexpr int depths = 8;
    uint8_t byte(int depth) const { return uint8_t(key >> (56 - 8 * depth)); }
    friend bool operator<(const Key& a, const Key& b) { return a.key < b.key; }
};

// How rows lie in a file in which all keys have the same first byte: the name of the file says it.
template <class T>
constexpr size_t stored_bytes = std::is_same_v<T, Row> ? 12 : 7;

template <class T>
void store(BuildFolder::Out& out, const T& row) {
    uint8_t bytes[16];
    uint64_t rest = row.key << 8;
    if constexpr (std::is_same_v<T, Row>) {
        rest |= row.region;
        std::memcpy(bytes, &rest, 8);
        std::memcpy(bytes + 8, &row.slot, 4);
    } else {
        rest >>= 8;
        std::memcpy(bytes, &rest, 8);
    }
    out.append(bytes, stored_bytes<T>);
}

template <class T>
T restore(const uint8_t* at, uint32_t first_byte) {
    uint64_t rest;
    std::memcpy(&rest, at, 8);
    if constexpr (std::is_same_v<T, Row>) {
        T row{uint64_t(first_byte) << 56 | rest >> 8, 0, uint8_t(rest)};
        std::memcpy(&row.slot, at + 8, 4);
        return row;
    } else {
        return {uint64_t(first_byte) << 56 | (rest & 0xff'ffff'ffffffff)};
    }
}

// Sorts rows whose keys agree in their first `depth` bytes.
template <class T>
void sort_rows(std::vector<T>& rows, int depth) {
    constexpr int digit = 11, bits = 3 * digit;
    if (rows.size() < 4096 || depth >= 4) return std::sort(rows.begin(), rows.end());
    auto high = [&](const T& x) { return (x.key << (8 * depth)) >> (64 - bits); };
    radix_sort(rows, bits, digit, high);
    for (size_t i = 0; i < rows.size();) {
        size_t end = i + 1;
        while (end < rows.size() && high(rows[end]) == high(rows[i])) ++end;
        if (end - i > 1) std::sort(rows.begin() + long(i), rows.begin() + long(end));
        i = end;
    }
}

// Rows distributed over files by the first byte of their key.
template <class T>
class Files {
  public:
    Files(BuildFolder& folder, const char* name, size_t memory) : folder_(&folder), name_(name) {
        buffer_ = std::clamp<size_t>(memory / 8 / kFiles, 4096, size_t(1) << 20);
        outs_.resize(kFiles, nullptr);
    }
    void add(const T& row) {
        const uint32_t i = uint32_t(row.key >> 56);
        if (!outs_[i]) outs_[i] = &folder_->out(numbered(name_, i), buffer_);
        store(*outs_[i], row);
    }
    void close() {
        for (uint32_t i = 0; i < kFiles; ++i) folder_->close(numbered(name_, i));
        std::fill(outs_.begin(), outs_.end(), nullptr);
    }

  private:
    BuildFolder* folder_;
    const char* name_;
    size_t buffer_;
    std::vector<BuildFolder::Out*> outs_;
};

template <class T, class Change>
std::vector<T> read_rows(const std::string& path, size_t n_bytes, uint32_t first_byte, Change&& change) {
    auto bytes = BuildFolder::map(path, n_bytes);
    std::vector<T> rows(n_bytes / stored_bytes<T>);
    for (size_t k = 0; k < rows.size(); ++k) {
        rows[k] = restore<T>(bytes.get() + k * stored_bytes<T>, first_byte);
        change(rows[k]);
    }
    return rows;
}

// Sorts more rows than fit into memory: distributes them by one byte after the other.
template <class T, class Emit>
struct Split {
    BuildFolder& folder;
    size_t most;
    Emit& emit;

    static std::string name_of(int depth, uint32_t i) { return "split" + std::to_string(depth) + numbered("", i); }
    // for_each(f) calls f with each row.
    template <class ForEach>
    void distribute(int depth, ForEach&& for_each) {
        for_each([&, out = std::vector<BuildFolder::Out*>(kFiles)](const T& row) mutable {
            auto& there = out[row.byte(depth)];
            if (!there) there = &folder.out(name_of(depth, row.byte(depth)), 4096);
            there->put(row);
        });
    }
    // Emits the rows that were distributed by the byte at `depth`.
    void collect(int depth) {
        for (uint32_t i = 0; i < kFiles; ++i) {
            const std::string name = name_of(depth, i);
            auto bytes = folder.map(name);
            const size_t n = folder.size(name) / sizeof(T);
            auto* all = reinterpret_cast<const T*>(bytes.get());
            if (n > most && depth + 1 < T::depths) {
                distribute(depth + 1, [&](auto&& put) { std::for_each(all, all + n, put); });
                collect(depth + 1);
            } else if (n > most) {  // they differ in their region only: one row is enough
                std::vector<T> least{*std::min_element(all, all + n)};
                emit(least);
            } else if (n) {
                std::vector<T> rows(all, all + n);
                sort_rows(rows, depth + 1);
                emit(rows);
            }
            bytes.reset();
            folder.remove(name);
        }
    }
};

// Calls emit(rows) with the rows of one file in ascending order, in one or several stretches. `change` is
// applied to each row that is read. Only rows of one stretch may be equal but for their region.
template <class T, class Change, class Emit>
void sorted_rows(BuildFolder& folder, const std::string& name, uint32_t first_byte, size_t memory, Change&& change,
                 Emit&& emit) {
    const size_t most = std::max<size_t>(memory / 4 / sizeof(T), 1024);
    if (folder.size(name) / stored_bytes<T> <= most) {
        auto rows = read_rows<T>(folder.file(name), folder.size(name), first_byte, change);
        sort_rows(rows, 1);
        return emit(rows);
    }
    auto bytes = folder.map(name);
    const size_t n = folder.size(name) / stored_bytes<T>;
    Split<T, Emit> split{folder, most, emit};
    split.distribute(1, [&](auto&& put) {
        for (size_t k = 0; k < n; ++k) {
            T row = restore<T>(bytes.get() + k * stored_bytes<T>, first_byte);
            change(row);
            put(row);
        }
    });
    split.collect(1);
}

// ---------------------------------------------------------------------------------------------- ids

// Ids by slot, in blocks of up to 64: the first id, the width of the others' differences from it, how
// many there are, and the differences.
class IdWriter {
  public:
    explicit IdWriter(BuildFolder::Out& out) : out_(&out) {}
    void put(int64_t id) {
        block_[n_++] = id;
        if (n_ == IdList::block) flush();
    }
    void flush() {
        if (!n_) return;
        uint64_t largest = 0;
        for (size_t i = 0; i < n_; ++i) largest = std::max(largest, uint64_t(block_[i]) - uint64_t(block_[0]));
        const uint8_t width = uint8_t((std::bit_width(largest) + 7) / 8), n = uint8_t(n_);
        out_->put(block_[0]);
        out_->put(width);
        out_->put(n);
        for (size_t i = 0; i < n_; ++i) {
            const uint64_t difference = uint64_t(block_[i]) - uint64_t(block_[0]);
            out_->append(&difference, width);
        }
        n_ = 0;
    }

  private:
    BuildFolder::Out* out_;
    int64_t block_[IdList::block];
    size_t n_ = 0;
};

// Reads what an IdWriter has written.
class IdReader {
  public:
    IdReader(BuildFolder& folder, const std::string& name) : bytes_(folder.map(name)), size_(folder.size(name)) {}
    bool next(int64_t& id) {
        if (left_ == 0) {
            if (at_ >= size_) return false;
            std::memcpy(&first_, bytes_.get() + at_, 8);
            width_ = bytes_.get()[at_ + 8];
            left_ = bytes_.get()[at_ + 9];
            at_ += 10;
        }
        uint64_t difference = 0;
        std::memcpy(&difference, bytes_.get() + at_, width_);
        id = int64_t(uint64_t(first_) + difference);
        at_ += width_;
        --left_;
        return true;
    }

  private:
    std::shared_ptr<uint8_t> bytes_;
    size_t size_, at_ = 0;
    int64_t first_ = 0;
    size_t width_ = 0, left_ = 0;
};

// ------------------------------------------------------------------------------------------ windows

// Writes the arrays of a WideWindow from keys in ascending order: own half, other half.
class WindowWriter {
  public:
    WindowWriter(BuildFolder& folder, int j, uint64_t n_before)
        : folder_(folder), j_(j), bits_(int(folder.progress.window_bits)), n_(n_before) {
        cells_ = &folder.out(name("cells")), start_ = &folder.out(name("start"));
        first_ = &folder.out(name("first")), other_ = &folder.out(name("other"));
        if (bits_ < 32) last_ = &folder.out(name("last"));
    }
    static std::string name(int j, const char* array) { return "window" + std::to_string(j) + "." + array; }

    // Keys with this first byte follow.
    void begin(uint32_t first_byte) {
        const size_t words = size_t(1) << (bits_ - 8 - 6);
        base_ = first_byte * words;
        cell_bits_.assign(words, 0);
        starts_.assign(words, 0);
        next_word_ = 0;
        cell_ = UINT64_MAX;
    }
    void put(uint64_t key) {
        const uint64_t cell = key >> (64 - bits_);
        if (cell != cell_) {
            cell_ = cell;
            const size_t word = (cell >> 6) - base_;
            while (next_word_ <= word) starts_[next_word_++] = uint32_t(n_);
            cell_bits_[word] |= uint64_t(1) << (cell & 63);
            folder_.progress.first_word[j_] |= uint64_t(1) << (n_ & 63);
        }
        other_->put(uint32_t(key));
        if (last_) last_->put(uint8_t(key >> 32));
        if ((++n_ & 63) == 0) write_first();
    }
    void end() {
        while (next_word_ < starts_.size()) starts_[next_word_++] = uint32_t(n_);
        cells_->append(cell_bits_.data(), cell_bits_.size() * 8);
        start_->append(starts_.data(), starts_.size() * 4);
    }
    // After the last key.
    void finish() {
        start_->put(uint32_t(n_));
        if (n_ & 63) write_first();
        for (const char* array : {"cells", "start", "first", "other", "last"}) folder_.close(name(array));
        Array<uint64_t> first;
        folder_.attach(name("first"), 8, first);
        auto& rank = folder_.out(name("rank"));
        uint32_t before = 0;
        for (size_t w = 0; w <= first.size(); ++w) {
            if (w % 8 == 0) rank.put(before);
            if (w < first.size()) before += uint32_t(std::popcount(first[w]));
        }
        folder_.close(name("rank"));
    }

  private:
    std::string name(const char* array) const { return name(j_, array); }
    void write_first() {
        first_->put(folder_.progress.first_word[j_]);
        folder_.progress.first_word[j_] = 0;
    }

    BuildFolder& folder_;
    int j_, bits_;
    uint64_t n_;
    size_t base_ = 0, next_word_ = 0;
    uint64_t cell_ = 0;
    std::vector<uint64_t> cell_bits_;
    std::vector<uint32_t> starts_;
    BuildFolder::Out *cells_, *start_, *first_, *other_, *last_ = nullptr;
};

uint32_t bytes_for(uint64_t largest) { return std::max(1u, uint32_t(std::bit_width(largest) + 7) / 8); }

uint64_t exchange_halves(uint64_t code) { return code << 32 | code >> 32; }

}  // namespace

// ------------------------------------------------------------------------------------------ the work

struct TableBuilder::Work {
    BuildOptions o;
    BuildFolder folder;
    BuildProgress& at = folder.progress;
    size_t next_chunk = 0;
    uint64_t seen = 0;
    std::optional<IdWriter> ids;
    std::vector<BuildFolder::Out*> outs;

    explicit Work(BuildOptions options)
        : o(std::move(options)), folder(checked(o.path) + ".building", !o.resume), outs(kFiles, nullptr) {
        if (folder.chunks.empty()) {
            at.bits = uint32_t(o.bits);
            at.layout = uint32_t(o.layout);
            at.seed = random64();
            folder.checkpoint();
        }
        if (at.bits != uint32_t(o.bits) || at.layout != uint32_t(o.layout))
            refuse("was started with bits=" + std::to_string(at.bits) + " or another layout");
        folder.set_memory(o.memory);
    }

    static const std::string& checked(const std::string& path) {
        struct stat info;
        if (::stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode)) {
            errno = S_ISDIR(info.st_mode) ? EISDIR : EINVAL;
            throw std::system_error(errno, std::generic_category(), path);
        }
        return path;
    }

    [[noreturn]] void refuse(const std::string& why) const {
        throw std::invalid_argument("the unfinished build in " + folder.path() + " " + why +
                                    "; delete the folder or pass resume=False to start again");
    }

    void report(const char* step, uint64_t done, uint64_t total) {
        if (o.progress) o.progress(step, done, total);
    }

    // ------------------------------------------------------------------------------------- rows

    size_t code_bytes() const { return size_t(o.bits / 8); }
    size_t row_bytes() const { return code_bytes() - 1 + 5; }

    void add(const int64_t* id, const uint8_t* codes, const uint8_t* regions, size_t n) {
        if (!n) return;
        uint64_t sum = checksum(reinterpret_cast<const uint8_t*>(id), n * 8);
        sum = checksum(codes, n * code_bytes(), sum);
        if (regions) sum = checksum(regions, n, sum);
        seen += n;
        if (next_chunk < folder.chunks.size()) {
            if (folder.chunks[next_chunk].rows != n || folder.chunks[next_chunk].checksum != sum)
                refuse("has another chunk " + std::to_string(next_chunk) + " than this one");
            ++next_chunk;
            return report("rows", seen, 0);
        }
        if (at.step != Step::rows) refuse("has only " + std::to_string(folder.chunks.size()) + " chunks");
        if (at.n_rows + n > kMostEntries)
            throw std::length_error("a table can hold at most 2147483647 codes; build several tables");
        if (!ids) ids.emplace(folder.out("slots"));
        const size_t buffer = std::clamp<size_t>(o.memory / 8 / kFiles, 4096, size_t(1) << 20), width = code_bytes();
        for (size_t i = 0; i < n; ++i) {
            if (!at.n_slots || id[i] != at.last_id) {
                at.sorted &= !at.n_slots || id[i] > at.last_id;
                ids->put(at.last_id = id[i]);
                ++at.n_slots;
            }
            const uint32_t slot = uint32_t(at.n_slots - 1);
            const uint8_t region = regions ? regions[i] : 0;
            at.regions |= region != 0;
            // Least significant bytes first, as restore() expects a key: region, the code reversed, slot.
            const uint8_t* code = codes + i * width;
            if (!outs[code[0]]) outs[code[0]] = &folder.out(numbered("rows", code[0]), buffer);
            uint8_t row[kMaxBits / 8 + 8];
            row[0] = region;
            if (width == 8) {
                uint64_t v;
                std::memcpy(&v, code, 8);
                v = __builtin_bswap64(v) << 8 | region;
                std::memcpy(row, &v, 8);
            } else {
                for (size_t b = 1; b < width; ++b) row[b] = code[width - b];
            }
            std::memcpy(row + width, &slot, 4);
            outs[code[0]]->append(row, width + 4);
        }
        at.n_rows += n;
        folder.chunks.push_back({n, sum});
        ++next_chunk;
        ids->flush();
        folder.checkpoint_if_due();
        report("rows", seen, 0);
    }

    uint64_t finish() {
        if (next_chunk < folder.chunks.size())
            refuse("has " + std::to_string(folder.chunks.size()) + " chunks, but now there are only " +
                   std::to_string(next_chunk));
        if (!at.n_rows) throw std::invalid_argument("chunks has no rows; a table is built from at least one");
        if (at.step == Step::rows) {
            if (ids) ids->flush();
            close_rows();
            at.n_images = at.n_slots;
            const bool wide =
                o.layout == Layout::wide || (o.layout == Layout::automatic && o.bits == 64 && at.n_rows >= many);
            at.window_bits = wide ? uint32_t(WideIndex::window_bits(at.n_rows)) : 0;
            next_step(at.sorted ? after_ids() : Step::ids);
        }
        if (at.step == Step::ids) number_images();
        if (at.step == Step::codes) sort_codes();
        if (at.step == Step::halves) sort_halves();
        if (at.step == Step::scatter) scatter();
        return with_code_type(o.bits, [&](auto type) {
            using C = typename decltype(type)::type;
            if (at.step == Step::parts) build_parts<C>();
            return write_table<C>();
        });
    }

    void next_step(Step step) {
        at.step = step;
        at.done = 0;
        folder.checkpoint_if_due();
    }
    Step after_ids() const { return at.window_bits ? Step::codes : Step::scatter; }
    void close_rows() {
        for (uint32_t i = 0; i < kFiles; ++i) folder.close(numbered("rows", i));
        folder.close("slots");
        std::fill(outs.begin(), outs.end(), nullptr);
    }

    // -------------------------------------------------------------------------------------- ids

    // Sorts the ids, and maps the slots of the rows to the numbers of the images in the order of ids. A
    // resumed build does this step again from its start.
    void number_images() {
        for (uint32_t i = 0; i < kFiles; ++i) folder.remove(numbered("ids", i));
        for (const char* name : {"ids", "numbers"}) folder.remove(name);
        {
            Files<Row> files(folder, "ids", o.memory);
            IdReader slots(folder, "slots");
            int64_t id;
            for (uint32_t slot = 0; slots.next(id); ++slot) files.add({uint64_t(id) ^ uint64_t(1) << 63, slot, 0});
            files.close();
        }
        // Written in full before it is mapped: on a full disk, writing through the map would crash.
        const size_t bytes = at.n_slots * 4;
        auto& zeros = folder.out("numbers");
        for (uint64_t i = 0; i < at.n_slots; ++i) zeros.put(uint32_t(0));
        folder.close("numbers");
        const std::string path = folder.file("numbers");
        const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
        void* p = fd < 0 ? MAP_FAILED : ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        const int reason = errno;
        if (fd >= 0) ::close(fd);
        if (p == MAP_FAILED) throw std::system_error(reason, std::generic_category(), path);
        std::shared_ptr<uint32_t> number(static_cast<uint32_t*>(p), [bytes](uint32_t* q) { ::munmap(q, bytes); });
        IdWriter sorted(folder.out("ids"));
        uint64_t n = 0, last = 0;
        for (uint32_t i = 0; i < kFiles; ++i) {
            const std::string name = numbered("ids", i);
            sorted_rows<Row>(
                folder, name, i, o.memory, [](Row&) {},
                [&](const std::vector<Row>& rows) {
                    for (const Row& r : rows) {
                        if (!n || r.key != last) {
                            sorted.put(int64_t(r.key ^ uint64_t(1) << 63));
                            last = r.key;
                            ++n;
                        }
                        number.get()[r.slot] = uint32_t(n - 1);
                    }
                });
            folder.remove(name);
            report("ids", i + 1, kFiles);
        }
        sorted.flush();
        folder.close("ids");
        at.n_images = n;
        if (::msync(number.get(), bytes, MS_SYNC) < 0) throw std::system_error(errno, std::generic_category(), path);
        folder.remove_later("slots");
        next_step(after_ids());
    }

    const char* ids_file() const { return at.sorted ? "slots" : "ids"; }

    // The numbers of images by slot; empty: the slots are the numbers.
    Array<uint32_t> numbers() {
        Array<uint32_t> all;
        if (!at.sorted) {
            folder.attach("numbers", 4, all);
            ::madvise(const_cast<uint32_t*>(all.data()), all.bytes(), MADV_RANDOM);
        }
        return all;
    }

    // ------------------------------------------------------------------------------------- wide

    void sort_codes() {
        const Array<uint32_t> number = numbers();
        auto renumber = [&](Row& r) {
            if (!number.empty()) r.slot = number[r.slot];
        };
        WindowWriter window(folder, 0, at.n_buckets);
        Files<Key> halves(folder, "halves", o.memory);
        auto& image = folder.out("image");
        BuildFolder::Out* region = at.regions ? &folder.out("region") : nullptr;
        BuildFolder::Out* start = at.starts ? &folder.out("starts") : nullptr;
        const uint32_t width = bytes_for(at.n_images);
        auto emit = [&](const std::vector<Row>& rows, bool& any, Row& last) {
            for (const Row& r : rows) {
                if (!any || r.key != last.key) {
                    window.put(r.key);
                    halves.add({exchange_halves(r.key)});
                    if (start) start->put(uint32_t(at.n_entries));
                    ++at.n_buckets;
                } else if (r.slot == last.slot) {
                    continue;
                } else if (!start) {  // so far, bucket i was entry i
                    start = &folder.out("starts");
                    for (uint32_t b = 0; b < at.n_buckets; ++b) start->put(b);
                    at.starts = true;
                }
                any = true;
                last = r;
                image.append(&r.slot, width);
                if (region) region->put(r.region);
                ++at.n_entries;
            }
        };
        // One thread reads and sorts a file while the other writes what came of the one before.
        const size_t share = o.memory / 2;
        auto fits = [&](uint32_t i) { return folder.size(numbered("rows", i)) / 12 <= share / 4 / sizeof(Row); };
        auto load = [&](uint32_t i, size_t bytes) {
            auto rows = read_rows<Row>(folder.file(numbered("rows", i)), bytes, i, renumber);
            sort_rows(rows, 1);
            return rows;
        };
        std::future<std::vector<Row>> next;
        for (uint32_t i = at.done; i < kFiles; ++i) {
            window.begin(i);
            bool any = false;
            Row last{};
            const std::string name = numbered("rows", i);
            if (!fits(i)) {
                sorted_rows<Row>(folder, name, i, share, renumber,
                                 [&](const std::vector<Row>& rows) { emit(rows, any, last); });
            } else {
                std::vector<Row> rows = next.valid() ? next.get() : load(i, folder.size(name));
                if (i + 1 < kFiles && fits(i + 1))
                    next = std::async(std::launch::async, load, i + 1, folder.size(numbered("rows", i + 1)));
                emit(rows, any, last);
            }
            window.end();
            folder.remove_later(name);
            at.done = i + 1;
            folder.checkpoint_if_due();
            report("codes", i + 1, kFiles);
        }
        window.finish();
        halves.close();
        for (const char* array : {"image", "region", "starts"}) folder.close(array);
        if (at.starts) {
            folder.out("starts").put(uint32_t(at.n_entries));
            folder.close("starts");
        }
        folder.remove_later("numbers");
        next_step(Step::halves);
    }

    void sort_halves() {
        uint64_t before = folder.size(WindowWriter::name(1, "other")) / 4;
        WindowWriter window(folder, 1, before);
        const size_t share = o.memory / 2;
        auto none = [](Key&) {};
        auto fits = [&](uint32_t i) { return folder.size(numbered("halves", i)) / 7 <= share / 4 / sizeof(Key); };
        auto load = [&](uint32_t i, size_t bytes) {
            auto keys = read_rows<Key>(folder.file(numbered("halves", i)), bytes, i, none);
            sort_rows(keys, 1);
            return keys;
        };
        auto emit = [&](const std::vector<Key>& keys) {
            for (const Key& k : keys) window.put(k.key);
        };
        std::future<std::vector<Key>> next;
        for (uint32_t i = at.done; i < kFiles; ++i) {
            window.begin(i);
            const std::string name = numbered("halves", i);
            if (!fits(i)) {
                sorted_rows<Key>(folder, name, i, share, none, emit);
            } else {
                std::vector<Key> keys = next.valid() ? next.get() : load(i, folder.size(name));
                if (i + 1 < kFiles && fits(i + 1))
                    next = std::async(std::launch::async, load, i + 1, folder.size(numbered("halves", i + 1)));
                emit(keys);
            }
            window.end();
            folder.remove_later(name);
            at.done = i + 1;
            folder.checkpoint_if_due();
            report("halves", i + 1, kFiles);
        }
        window.finish();
        next_step(Step::table);
    }

    // ------------------------------------------------------------------------------------ plain

    // Distributes the rows over the parts by image. A resumed build does this step again from its start.
    void scatter() {
        constexpr uint64_t bytes_per_code = 160;  // that building a segment takes at its peak
        const uint64_t per_part = std::max<uint64_t>(o.memory / (bytes_per_code + uint64_t(o.bits) / 2), 4096);
        at.n_parts = uint32_t(std::clamp<uint64_t>((at.n_rows + per_part - 1) / per_part, 1, 512));
        for (uint32_t i = 0; i < at.n_parts; ++i) folder.remove(numbered("part", i));
        const Array<uint32_t> number = numbers();
        const size_t width = code_bytes();
        std::vector<uint8_t> code(width);
        std::vector<BuildFolder::Out*> part(at.n_parts);
        for (uint32_t i = 0; i < at.n_parts; ++i) part[i] = &folder.out(numbered("part", i), size_t(1) << 16);
        for (uint32_t first = 0; first < kFiles; ++first) {
            const std::string name = numbered("rows", first);
            auto bytes = folder.map(name);
            const uint8_t* end = bytes.get() + folder.size(name);
            for (const uint8_t* row = bytes.get(); row < end; row += row_bytes()) {
                code[0] = uint8_t(first);
                for (size_t b = 1; b < width; ++b) code[b] = row[width - b];
                uint32_t slot;
                std::memcpy(&slot, row + width, 4);
                if (!number.empty()) slot = number[slot];
                auto& out = *part[part_of(slot)];
                out.append(code.data(), width);
                out.put(row[0]);
                out.put(slot);
            }
            folder.remove_later(name);
            report("distribute", first + 1, kFiles);
        }
        for (uint32_t i = 0; i < at.n_parts; ++i) folder.close(numbered("part", i));
        folder.remove_later("numbers");
        next_step(Step::parts);
    }
    uint32_t part_of(uint64_t slot) const { return uint32_t(slot * at.n_parts / at.n_images); }

    template <class C>
    void build_parts() {
        IdReader all(folder, ids_file());
        const LinearHash hash(o.bits, at.seed);
        const size_t width = code_bytes();
        std::vector<int64_t> id;
        uint64_t first_slot = 0, slot = 0;
        for (uint32_t i = 0; i < at.n_parts; ++i) {
            id.clear();
            first_slot = slot;
            for (int64_t x; slot < at.n_images && part_of(slot) == i && all.next(x); ++slot) id.push_back(x);
            if (i < at.done) continue;
            const std::string name = numbered("part", i);
            Entries<C> in;
            {
                auto bytes = folder.map(name);
                const size_t n = folder.size(name) / (width + 5);
                in.code.resize(n), in.id.resize(n);
                if (at.regions) in.region.resize(n);
                for (size_t k = 0; k < n; ++k) {
                    const uint8_t* row = bytes.get() + k * (width + 5);
                    uint32_t s;
                    std::memcpy(&s, row + width + 1, 4);
                    in.code[k] = C::load(row, int(width));
                    in.id[k] = id[s - first_slot];
                    if (at.regions) in.region[k] = row[width];
                }
            }
            if (in.size()) {
                State<C> state;
                auto seg = build_segment(o.bits, hash, in);
                state.n_images = seg->n_images, state.n_codes = seg->n_entries;
                state.parts.push_back({seg, nullptr, 0});
                save_snapshot(folder.file(numbered("segment", i)), o.bits, at.seed, state);
                at.n_entries += seg->n_entries;
                folder.keep(numbered("segment", i));
            }
            folder.remove_later(name);
            at.done = i + 1;
            folder.checkpoint_if_due();
            report("parts", i + 1, at.n_parts);
        }
        next_step(Step::table);
    }

    // ------------------------------------------------------------------------------------ table

    // The ids by image, as a segment stores them.
    IdList id_list() {
        const std::string source = ids_file();
        uint64_t largest = 0, n = 0;
        int64_t id, first = 0, lowest = 0;
        bool consecutive = true;
        {
            auto& out = folder.out("id.first");
            for (IdReader all(folder, source); all.next(id); ++n) {
                if (n == 0) lowest = id;
                consecutive &= uint64_t(id) - uint64_t(lowest) == n;
                if (n % IdList::block == 0) out.put(first = id);
                largest = std::max(largest, uint64_t(id) - uint64_t(first));
            }
            folder.close("id.first");
        }
        IdList list;
        if (consecutive) {
            list.first = Array<int64_t>(1);
            list.first.mutable_data()[0] = lowest;
            list.run = n;
            return list;
        }
        const uint32_t width = bytes_for(largest);
        auto& out = folder.out("id.offset");
        n = 0;
        for (IdReader all(folder, source); all.next(id); ++n) {
            if (n % IdList::block == 0) first = id;
            const uint64_t difference = uint64_t(id) - uint64_t(first);
            out.append(&difference, width);
        }
        folder.attach("id.first", 8, list.first);
        folder.attach("id.offset", width, list.offset);
        return list;
    }

    // How many codes each image has, and one primary entry per image: of those with its smallest region, the first.
    template <class C>
    void choose_primary(Segment<C>& seg) {
        std::vector<uint8_t> count(seg.n_images, 0), least(seg.n_images, 255);
        std::unordered_map<uint32_t, uint32_t> more;  // counts of 255 and above
        uint32_t largest = 0;
        for (uint32_t e = 0; e < seg.n_entries; ++e) {
            const uint32_t slot = uint32_t(seg.image[e]);
            if (count[slot] < 255) ++count[slot];
            uint32_t n = count[slot];
            if (n == 255) n = more.emplace(slot, 254).first->second += 1;
            largest = std::max(largest, n);
            least[slot] = std::min(least[slot], seg.region_of(e));
        }
        seg.codes_of_image = PackedInts(seg.n_images, largest);
        for (uint32_t s = 0; s < seg.n_images; ++s) seg.codes_of_image.set(s, count[s] < 255 ? count[s] : more.at(s));
        seg.primary = Array<uint64_t>(bitmap_words(seg.n_entries));
        std::vector<uint64_t> chosen(bitmap_words(seg.n_images));
        for (uint32_t e = 0; e < seg.n_entries; ++e) {
            const uint32_t slot = uint32_t(seg.image[e]);
            if (test_bit(chosen.data(), slot) || seg.region_of(e) != least[slot]) continue;
            set_bit(chosen.data(), slot);
            set_bit(seg.primary.mutable_data(), e);
        }
    }

    template <class C>
    std::shared_ptr<Segment<C>> wide_segment() {
        auto seg = std::make_shared<Segment<C>>();
        seg->bits = o.bits;
        seg->n_buckets = uint32_t(at.n_buckets);
        seg->n_entries = uint32_t(at.n_entries);
        seg->n_images = uint32_t(at.n_images);
        seg->group_shell = Array<uint32_t>(1);
        seg->shell_start = Array<uint32_t>(1);
        if (at.starts) folder.attach("starts", 4, seg->bucket_start);
        folder.attach("image", bytes_for(at.n_images), seg->image);
        if (at.regions) folder.attach("region", 1, seg->region);
        seg->id = id_list();
        if (seg->n_entries != seg->n_images) choose_primary(*seg);
        seg->wide = std::make_shared<WideIndex>();
        for (int j = 0; j < 2; ++j) {
            WideWindow& w = seg->wide->window[j];
            folder.attach(WindowWriter::name(j, "cells"), 8, w.cells);
            folder.attach(WindowWriter::name(j, "start"), 4, w.start);
            folder.attach(WindowWriter::name(j, "first"), 8, w.first);
            folder.attach(WindowWriter::name(j, "rank"), 4, w.first_rank);
            folder.attach(WindowWriter::name(j, "other"), 4, w.other);
            if (at.window_bits < 32) folder.attach(WindowWriter::name(j, "last"), 1, w.last);
        }
        return seg;
    }

    // A kill leaves the file in the folder, or complete at its place.
    template <class C>
    uint64_t write_table() {
        report("table", 0, 1);
        for (const char* name : {"id.first", "id.offset"}) folder.remove(name);
        State<C> state;
        state.n_images = at.n_images;
        if (at.window_bits) {
            state.parts.push_back({wide_segment<C>(), nullptr, 0});
        } else {
            for (uint32_t i = 0; i < at.n_parts; ++i) {
                if (!folder.size(numbered("segment", i))) continue;
                auto part = SnapshotFile(folder.file(numbered("segment", i)), true).template read<C>(false);
                insert_part(state.parts, part->parts[0]);
            }
        }
        const uint64_t n = state.n_codes = at.n_entries;
        const std::string made = folder.file("table");
        save_snapshot(made, o.bits, at.seed, state);
        if (::rename(made.c_str(), o.path.c_str()) < 0) throw std::system_error(errno, std::generic_category(), o.path);
        const size_t slash = o.path.rfind('/');
        const std::string parent = slash == std::string::npos ? "." : o.path.substr(0, slash + 1);
        const int fd = ::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd >= 0) {
            sync_to_disk(fd);
            ::close(fd);
        }
        state.parts.clear();
        folder.discard();
        report("table", 1, 1);
        return n;
    }
};

TableBuilder::TableBuilder(BuildOptions options) : work_(std::make_unique<Work>(std::move(options))) {}
TableBuilder::~TableBuilder() {
    try {
        if (work_->folder.chunks.empty()) work_->folder.discard();  // nothing to resume
    } catch (...) {
    }
}
void TableBuilder::add(const int64_t* ids, const uint8_t* codes, const uint8_t* regions, size_t n) {
    work_->add(ids, codes, regions, n);
}
uint64_t TableBuilder::finish() { return work_->finish(); }

}  // namespace mch
