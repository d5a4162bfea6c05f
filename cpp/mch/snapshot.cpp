#include "snapshot.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <functional>
#include <list>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "capacity.h"
#include "platform.h"
#include "workers.h"

namespace mch {
namespace {

constexpr char kMagic[8] = {'M', 'C', 'H', 'T', 'A', 'B', 'L', 'E'};
constexpr uint32_t kVersion = 2;
constexpr uint64_t kSeedOfVersion1 = 0x6d6368696e646578;
constexpr size_t kAlign = 64;
constexpr uint32_t kMostParts = 1024;  // a table merges long before it has that many

// Spare bytes are 0: a later version may give them a meaning that this one must not ignore.
struct Header {
    char magic[8];
    uint32_t version, bits;
    uint64_t file_size, n_images, n_codes;
    uint32_t n_parts, n_sections;
    uint64_t checksum;  // of the header with 0 here, and the directory
    // Version 1 ends here.
    uint64_t seed;
    uint64_t spare[8];
};
struct PartRecord {
    uint32_t n_buckets, n_entries, n_images, n_groups, hash_bits, n_dead;
    // Version 1 ends here.
    uint32_t kind;  // of layout: 0, the arrays of a Segment; 1, these and the arrays of a WideIndex
    uint32_t spare[9];
};
struct SectionRecord {
    uint64_t offset, bytes, checksum;  // the checksum covers the padding
    uint32_t width, spare;             // width: bytes per element
};
static_assert(sizeof(Header) == 128 && sizeof(PartRecord) == 64 && sizeof(SectionRecord) == 32);

size_t header_size(uint32_t version) { return version < 2 ? offsetof(Header, seed) : sizeof(Header); }
size_t part_size(uint32_t version) { return version < 2 ? offsetof(PartRecord, kind) : sizeof(PartRecord); }

// Where the directory of this header ends and the sections begin.
uint64_t head_size(const Header& h) {
    const uint64_t size = header_size(h.version) + h.n_parts * uint64_t(part_size(h.version)) +
                          h.n_sections * uint64_t(sizeof(SectionRecord));
    return (size + kAlign - 1) / kAlign * kAlign;
}

// The header at the start of a file. What its version does not have is 0.
Header read_header(const uint8_t* file) {
    Header h{};
    std::memcpy(&h, file, header_size(1));
    std::memcpy(&h, file, header_size(h.version));
    return h;
}

template <class T, size_t n>
bool all_zero(const T (&values)[n]) {
    return std::all_of(values, values + n, [](T v) { return v == 0; });
}

#ifdef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION
constexpr bool kVerifyChecksums = false;  // tests/cpp/load_fuzzer.cpp forges files
#else
constexpr bool kVerifyChecksums = true;
#endif

}  // namespace

uint64_t checksum(const uint8_t* p, size_t n, uint64_t seed) {
    constexpr uint64_t prime = 0x9e3779b97f4a7c15;
    uint64_t lane[4] = {seed ^ 1, seed ^ 2, seed ^ 3, seed ^ n};
    size_t i = 0;
    for (; i + 32 <= n; i += 32)
        for (int j = 0; j < 4; ++j) {
            uint64_t v;
            std::memcpy(&v, p + i + 8 * j, 8);
            lane[j] = (lane[j] ^ v) * prime;
            lane[j] ^= lane[j] >> 32;
        }
    for (; i < n; ++i) lane[i & 3] = (lane[i & 3] ^ p[i]) * prime;
    uint64_t h = seed;
    for (uint64_t l : lane) {
        h = (h ^ l) * prime;
        h ^= h >> 29;
    }
    return h;
}

namespace {

size_t padded(size_t bytes) { return (bytes + kPadding + kAlign - 1) / kAlign * kAlign; }

[[noreturn]] void fail(const std::string& path) { throw std::system_error(errno, std::generic_category(), path); }

struct Descriptor {
    int fd;
    ~Descriptor() {
        if (fd >= 0) ::close(fd);
    }
};

void write_all(int fd, const void* data, size_t n, const std::string& path) {
    auto* p = static_cast<const uint8_t*>(data);
    while (n) {
        ssize_t w = ::write(fd, p, std::min<size_t>(n, size_t(1) << 30));
        if (w < 0 && errno == EINTR) continue;
        if (w < 0) fail(path);
        p += w, n -= size_t(w);
    }
}

// The folder of a path, and the name in it.
std::pair<std::string, std::string> split(const std::string& path) {
    const size_t slash = path.rfind('/');
    if (slash == std::string::npos) return {".", path};
    return {path.substr(0, slash + 1), path.substr(slash + 1)};
}

// ----------------------------------------------------------------------------------- temporary files

// A new file next to `path`, which becomes it by rename(). Whoever writes such a file holds a lock on it
// (flock), so one that nobody has locked was left behind by a process that ended.
class Temporary {
  public:
    explicit Temporary(const std::string& path) : path_(path) {
        for (int tries = 0; tries < 100; ++tries) {
            name_ = path + ".tmp." + suffix();
            file_.fd = ::open(name_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
            if (file_.fd < 0 && errno == EEXIST) continue;
            if (file_.fd < 0) fail(path);
            while (::flock(file_.fd, LOCK_EX) < 0 && errno == EINTR) continue;  // not every file system has locks
            struct stat info;
            if (::fstat(file_.fd, &info) < 0 || info.st_nlink) return;
            ::close(file_.fd);  // remove_stale() of another process was faster than our lock
            file_.fd = -1;
        }
        errno = EEXIST;
        fail(path);
    }
    ~Temporary() {
        if (!name_.empty()) ::unlink(name_.c_str());
    }
    Temporary(const Temporary&) = delete;

    int fd() const { return file_.fd; }
    void rename() {
        if (::rename(name_.c_str(), path_.c_str()) < 0) fail(path_);
        name_.clear();
    }

    // Whether this is what suffix() returns: letters and digits in turn, unlike a word or a date. Earlier
    // versions wrote the process id and a number, and no lock; such a file can only be ours if it has our
    // id, and then an earlier process left it.
    static bool is_suffix(const std::string& s) {
        const std::string own = std::to_string(::getpid()) + ".";
        auto digit = [](char c) { return c >= '0' && c <= '9'; };
        if (s.size() > own.size() && s.compare(0, own.size(), own) == 0)
            return std::all_of(s.begin() + long(own.size()), s.end(), digit);
        bool ok = s.size() == 8;
        for (size_t i = 0; ok && i < 8; ++i) ok = i % 2 ? digit(s[i]) : s[i] >= 'a' && s[i] <= 'z';
        return ok;
    }

  private:
    static std::string suffix() {
        std::string s;
        uint64_t random = random64();
        for (int i = 0; i < 4; ++i, random /= 260) {
            s += char('a' + random % 26);
            s += char('0' + random / 26 % 10);
        }
        return s;
    }

    const std::string path_;
    std::string name_;
    Descriptor file_{-1};
};

// Removes the temporary files next to `path` that nobody is writing any more.
void remove_stale(const std::string& path) {
    const auto [folder, name] = split(path);
    const std::string start = name + ".tmp.";
    std::unique_ptr<DIR, int (*)(DIR*)> dir(::opendir(folder.c_str()), ::closedir);
    if (!dir) return;
    while (const dirent* entry = ::readdir(dir.get())) {
        const std::string other = entry->d_name;
        if (other.compare(0, start.size(), start) != 0 || !Temporary::is_suffix(other.substr(start.size()))) continue;
        Descriptor file{::openat(::dirfd(dir.get()), entry->d_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)};
        struct stat info;
        if (file.fd < 0 || ::fstat(file.fd, &info) < 0 || !S_ISREG(info.st_mode)) continue;
        if (::flock(file.fd, LOCK_EX | LOCK_NB) == 0) ::unlinkat(::dirfd(dir.get()), entry->d_name, 0);
    }
}

}  // namespace

// ------------------------------------------------------------------------------------------ writing

template <class C>
void save_snapshot(const std::string& path, int bits, uint64_t seed, const State<C>& state) {
    struct Section {
        const uint8_t* data;
        SectionRecord record;
    };
    if (state.parts.size() > kMostParts)
        throw std::length_error("the table has " + std::to_string(state.parts.size()) +
                                " segments, and a file holds at most " + std::to_string(kMostParts) +
                                "; call optimize() first");
    std::vector<PartRecord> parts;
    std::vector<Section> sections;
    std::list<std::vector<uint64_t>> removed;
    for (const Part<C>& p : state.parts) {
        const Segment<C>& s = *p.seg;
        check_entries(s.n_entries);
        parts.push_back(
            {s.n_buckets, s.n_entries, s.n_images, s.n_groups, s.hash_bits, p.n_dead, s.wide ? 1u : 0u, {}});
        Segment<C>::for_each_array(s, [&](const char*, auto& array) {
            sections.push_back({array.raw(), {0, array.bytes(), 0, array.width(), 0}});
        });
        removed.push_back(p.dead ? p.dead->words() : std::vector<uint64_t>());
        auto* dead = reinterpret_cast<const uint8_t*>(removed.back().data());
        sections.push_back({dead, {0, removed.back().size() * 8, 0, 8, 0}});
    }

    Header header{};
    std::memcpy(header.magic, kMagic, 8);
    header.version = kVersion, header.bits = uint32_t(bits), header.seed = seed;
    header.n_images = state.n_images, header.n_codes = state.n_codes;
    header.n_parts = uint32_t(parts.size()), header.n_sections = uint32_t(sections.size());

    size_t offset = head_size(header);
    std::vector<uint8_t> head(offset, 0), zeros(2 * kAlign, 0);
    for (Section& s : sections) {
        s.record.offset = offset;
        offset += padded(s.record.bytes);
        // The padding is all zeros: its checksum continues from the content's.
        s.record.checksum =
            checksum(zeros.data(), padded(s.record.bytes) - s.record.bytes, checksum(s.data, s.record.bytes));
    }
    header.file_size = offset;
    uint8_t* at = head.data() + sizeof(Header);
    for (const PartRecord& p : parts) std::memcpy(at, &p, sizeof p), at += sizeof p;
    for (const Section& s : sections) std::memcpy(at, &s.record, sizeof s.record), at += sizeof s.record;
    std::memcpy(head.data(), &header, sizeof header);
    header.checksum = checksum(head.data(), head.size());
    std::memcpy(head.data(), &header, sizeof header);

    remove_stale(path);
    Temporary file(path);
    write_all(file.fd(), head.data(), head.size(), path);
    for (const Section& s : sections) {
        write_all(file.fd(), s.data, s.record.bytes, path);
        write_all(file.fd(), zeros.data(), padded(s.record.bytes) - s.record.bytes, path);
    }
    if (sync_to_disk(file.fd()) < 0) fail(path);
    file.rename();
    // The rename is durable only when the folder is synced.
    const std::string folder = split(path).first;
    Descriptor dir{::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
    if (dir.fd < 0 || (sync_to_disk(dir.fd) < 0 && errno != EINVAL)) fail(folder);
}

// ------------------------------------------------------------------------------------------ reading

SnapshotFile::SnapshotFile(const std::string& path, bool mmap) : path_(path) {
    Descriptor file{::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)};  // a pipe must not block
    if (file.fd < 0) fail(path);
    struct stat info;
    if (::fstat(file.fd, &info) < 0) fail(path);
    if (!S_ISREG(info.st_mode)) {
        errno = S_ISDIR(info.st_mode) ? EISDIR : EINVAL;
        fail(path);
    }
    size_ = size_t(info.st_size);
    uint8_t first[sizeof(Header)] = {};
    const ssize_t got = ::pread(file.fd, first, sizeof first, 0);
    if (got < 0) fail(path);
    if (got < 8 || std::memcmp(first, kMagic, 8) != 0) throw NotASnapshot(path + " is not an mchindex table");
    const Header h = read_header(first);
    if (h.version > kVersion)
        throw SnapshotVersion(path + " has format version " + std::to_string(h.version) +
                              ", but this version of mchindex reads only versions up to " + std::to_string(kVersion) +
                              "; upgrade mchindex");
    if (size_t(got) < header_size(h.version)) throw SnapshotDamaged(path + " is truncated: the header is incomplete");
    if (h.file_size != size_)
        throw SnapshotDamaged(path + " is damaged: it has " + std::to_string(size_) + " bytes, but was saved with " +
                              std::to_string(h.file_size));
    const uint64_t head = head_size(h);
    if (head > size_ || h.n_parts > kMostParts)
        throw SnapshotDamaged(path + " is damaged: its directory does not fit into the file");

    if (mmap) {
        void* p = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.fd, 0);
        if (p == MAP_FAILED) fail(path);
        data_ = {static_cast<uint8_t*>(p), [n = size_](uint8_t* q) { ::munmap(q, n); }};
        mapped_ = true;
    } else {
        data_ = allocate(size_);
        for (size_t got = 0; got < size_;) {
            ssize_t r = ::pread(file.fd, data_.get() + got, std::min<size_t>(size_ - got, size_t(1) << 30), off_t(got));
            if (r < 0 && errno == EINTR) continue;
            if (r < 0) fail(path);
            if (r == 0) throw SnapshotDamaged(path + " became shorter while it was being read");
            got += size_t(r);
        }
    }

    std::vector<uint8_t> bytes(data_.get(), data_.get() + head);
    if (std::memcmp(bytes.data(), first, header_size(h.version)) != 0)
        throw SnapshotDamaged(path + " changed while it was being read");
    std::memset(bytes.data() + offsetof(Header, checksum), 0, sizeof h.checksum);
    if (kVerifyChecksums && checksum(bytes.data(), bytes.size()) != h.checksum)
        throw SnapshotDamaged(path + " is damaged: the header does not match its checksum");
    if (h.bits < 8 || h.bits > kMaxBits || h.bits % 8 || h.version == 0 || !all_zero(h.spare))
        throw SnapshotDamaged(path + " is damaged: the header has impossible values");
}

int SnapshotFile::bits() const { return int(read_header(data_.get()).bits); }

uint64_t SnapshotFile::seed() const {
    const Header h = read_header(data_.get());
    return h.version < 2 ? kSeedOfVersion1 : h.seed;
}

namespace {

// Whether the arrays of a segment have the sizes that belong together.
template <class C>
bool sizes_fit(const Segment<C>& s, uint32_t n_dead, const Bitmap* dead) {
    const uint32_t u = s.n_buckets, n = s.n_entries, m = s.n_images, g = s.n_groups;
    bool ok = u > 0 && u <= n && n <= kMostEntries && m > 0 && m <= n && g <= u;
    if (s.wide) {
        ok = ok && g == 0 && s.hash_bits == 0 && s.occupied.empty() && s.wide->sizes_fit(u);
    } else {
        if (!ok || s.hash_bits < 6 || s.hash_bits > 32) return false;
        ok &= s.occupied.size() > ((size_t(1) << s.hash_bits) + 63) / 64 && s.occupied.size() % 8 == 0;
    }
    for (auto& plane : s.code) ok &= plane.size() == (s.wide ? 0 : u);
    for (auto& plane : s.pivot) ok &= plane.size() == g;
    ok &= s.group_shell.size() == size_t(g) + 1 && s.group_radius.size() == g;
    ok = ok && s.shell_start.size() == size_t(s.group_shell[g]) + 1;
    ok &= s.occupied_rank.size() == s.occupied.size() / 8 && s.order.size() == (s.wide ? 0 : u);
    ok &= s.bucket_start.empty() ? u == n : s.bucket_start.size() == size_t(u) + 1;
    ok &= s.image.size() == n && (s.region.empty() || s.region.size() == n);
    ok &= s.primary.empty() || s.primary.size() == bitmap_words(n);
    ok &= s.codes_of_image.size() == 0 || s.codes_of_image.size() == m;
    if (s.id.run)
        ok &= s.id.first.size() == 1;
    else
        ok &= s.id.first.size() == (size_t(m) + IdList::block - 1) / IdList::block && s.id.offset.size() == m;
    return ok && n_dead <= m && (n_dead == 0 || dead);
}

// Appends checks that every index a search follows is in its range. The sizes of the arrays must fit. The
// checks are independent, so several threads can run them; each returns false if the segment is damaged. Without
// `content`, only the removed images are checked.
template <class C>
void list_checks(const Segment<C>& s, uint32_t n_dead, const Bitmap* dead, bool content,
                 std::vector<std::function<bool()>>& checks) {
    const uint32_t u = s.n_buckets, n = s.n_entries, m = s.n_images;
    auto rising = [](const Array<uint32_t>& a, uint32_t last) {
        bool ok = a[0] == 0 && a[a.size() - 1] <= last;
        for (size_t i = 1; i < a.size(); ++i) ok &= a[i - 1] <= a[i];
        return ok;
    };
    auto below = [](const PackedInts& a, uint32_t limit) {
        bool ok = true;
        for (size_t i = 0; i < a.size(); ++i) ok &= a[i] < limit;
        return ok;
    };
    checks.push_back([=] {
        bool ok = (dead ? dead->count() : 0) == n_dead;
        for (size_t i = m; dead && i % 64; ++i) ok &= !dead->test(i);  // a bit without an image
        return ok;
    });
    if (!content) return;
    checks.push_back([=, &s] {
        bool ok = true;
        for (size_t i = 1; ok && i < s.id.size(); ++i) ok = s.id[i - 1] < s.id[i];
        return ok;
    });
    checks.push_back([=, &s] { return rising(s.shell_start, u) && rising(s.group_shell, UINT32_MAX); });
    if (s.wide)
        for (int j = 0; j < 2; ++j) checks.push_back([=, &s] { return s.wide->sound(j); });
    checks.push_back([=, &s] {
        if (s.wide) return true;
        uint32_t before = 0;
        bool ok = true;
        for (size_t w = 0; w < s.occupied.size(); ++w) {
            if (w % 8 == 0) ok &= s.occupied_rank[w / 8] == before;
            before += uint32_t(std::popcount(s.occupied[w]));
        }
        // A probe stops at a free position, so the last one must be free.
        return ok && before == u && !(s.occupied[s.occupied.size() - 1] >> 63);
    });
    checks.push_back([=, &s] { return below(s.order, u); });
    checks.push_back([=, &s] { return below(s.image, m); });
    checks.push_back([=, &s] {
        return s.bucket_start.empty() || (rising(s.bucket_start, n) && s.bucket_start[s.bucket_start.size() - 1] == n);
    });
}

}  // namespace

template <class C>
std::shared_ptr<State<C>> SnapshotFile::read(bool verify) const {
    auto refuse = [&](const char* why) -> void { throw SnapshotDamaged(path_ + " is damaged: " + why); };
    const Header h = read_header(data_.get());
    std::vector<PartRecord> parts(h.n_parts);
    std::vector<SectionRecord> sections(h.n_sections);
    const uint8_t* directory = data_.get() + header_size(h.version);
    for (PartRecord& p : parts) {
        std::memcpy(&p, directory, part_size(h.version));
        directory += part_size(h.version);
        if (p.kind > (h.bits == 64 ? 1 : 0) || !all_zero(p.spare))
            refuse("a part has a layout that this version of mchindex does not know");
    }
    if (h.n_sections) std::memcpy(sections.data(), directory, sections.size() * sizeof(SectionRecord));

    if (mapped_ && verify) ::madvise(data_.get(), size_, MADV_WILLNEED);

    // The sections must fill the file without gaps or overlaps.
    std::vector<std::function<bool()>> checks;
    uint64_t end = head_size(h);
    for (const SectionRecord& s : sections) {
        if (h.version >= 2 && s.spare) refuse("a section has an unknown property");
        if (s.offset != end || s.bytes > size_ || padded(s.bytes) > size_ - s.offset)
            refuse("a section has an impossible position");
        end += padded(s.bytes);
        if (kVerifyChecksums && verify)
            checks.push_back([this, &s] {
                const uint8_t* p = data_.get() + s.offset;
                return checksum(p + s.bytes, padded(s.bytes) - s.bytes, checksum(p, s.bytes)) == s.checksum;
            });
    }

    if (end != size_) refuse("it has bytes that belong to no section");

    size_t next = 0;
    auto take = [&]() -> const SectionRecord& {
        if (next == sections.size()) refuse("sections are missing");
        return sections[next++];
    };
    auto state = std::make_shared<State<C>>();
    state->n_images = h.n_images, state->n_codes = h.n_codes;
    for (const PartRecord& p : parts) {
        auto seg = std::make_shared<Segment<C>>();
        seg->bits = int(h.bits);
        seg->n_buckets = p.n_buckets, seg->n_entries = p.n_entries, seg->n_images = p.n_images;
        seg->n_groups = p.n_groups, seg->hash_bits = p.hash_bits;
        if (p.kind) seg->wide = std::make_shared<WideIndex>();
        Segment<C>::for_each_array(*seg, [&](const char*, auto& array) {
            const SectionRecord& s = take();
            std::shared_ptr<uint8_t> bytes(data_, data_.get() + s.offset);
            if (!array.attach(std::move(bytes), s.bytes, s.width)) refuse("a section has elements of the wrong size");
        });
        if (!seg->id.offset.size()) seg->id.run = p.n_images;
        const SectionRecord& d = take();
        std::shared_ptr<Bitmap> dead;
        if (d.bytes) {
            if (d.bytes != bitmap_words(p.n_images) * 8) refuse("a section has elements of the wrong size");
            dead = std::make_shared<Bitmap>(p.n_images, data_.get() + d.offset);
        }
        if (!sizes_fit(*seg, p.n_dead, dead.get())) refuse("a part has arrays of impossible sizes");
        list_checks(*seg, p.n_dead, dead.get(), verify, checks);
        state->parts.push_back({seg, dead, p.n_dead});
    }
    if (next != sections.size()) refuse("it has sections that belong to no part");

    std::atomic<size_t> at{0};
    std::atomic<bool> sound{true};
    const bool large = size_ > size_t(1) << 20;
    parallel(large ? usable_cores() : 1, [&] {
        for (size_t i; (i = at++) < checks.size();)
            if (!checks[i]()) sound = false;
    });
    if (!sound) refuse("its content does not match its checksums, or has impossible values");
    return state;
}

#define MCH_INSTANTIATE(C)                                                           \
    template void save_snapshot(const std::string&, int, uint64_t, const State<C>&); \
    template std::shared_ptr<State<C>> SnapshotFile::read<C>(bool) const;
using C32 = Code<uint32_t, 1>;
using C64 = Code<uint64_t, 1>;
using C128 = Code<uint64_t, 2>;
using C192 = Code<uint64_t, 3>;
using C256 = Code<uint64_t, 4>;
MCH_INSTANTIATE(C32)
MCH_INSTANTIATE(C64)
MCH_INSTANTIATE(C128)
MCH_INSTANTIATE(C192)
MCH_INSTANTIATE(C256)

}  // namespace mch
