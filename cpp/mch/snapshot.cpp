#include "snapshot.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <functional>
#include <system_error>
#include <vector>

#include "workers.h"

namespace mch {
namespace {

constexpr char kMagic[8] = {'M', 'C', 'H', 'T', 'A', 'B', 'L', 'E'};
constexpr uint32_t kVersion = 1;
constexpr size_t kAlign = 64;
constexpr uint32_t kMostParts = 1024;  // a table merges long before it has that many

struct Header {
    char magic[8];
    uint32_t version, bits;
    uint64_t file_size, n_images, n_codes;
    uint32_t n_parts, n_sections;
    uint64_t checksum;  // of the header with 0 here, and the directory
};
struct PartRecord {
    uint32_t n_buckets, n_entries, n_images, n_groups, hash_bits, n_dead;
};
struct SectionRecord {
    uint64_t offset, bytes, checksum;  // the checksum covers the padding
    uint32_t width, unused;            // width: bytes per element
};
static_assert(sizeof(Header) == 56 && sizeof(PartRecord) == 24 && sizeof(SectionRecord) == 32);

uint64_t checksum(const uint8_t* p, size_t n, uint64_t seed = 0) {
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

}  // namespace

// ------------------------------------------------------------------------------------------ writing

template <class C>
void save_snapshot(const std::string& path, int bits, const State<C>& state) {
    struct Section {
        const uint8_t* data;
        SectionRecord record;
    };
    std::vector<PartRecord> parts;
    std::vector<Section> sections;
    for (const Part<C>& p : state.parts) {
        const Segment<C>& s = *p.seg;
        parts.push_back({s.n_buckets, s.n_entries, s.n_images, s.n_groups, s.hash_bits, p.n_dead});
        Segment<C>::for_each_array(s, [&](const char*, auto& array) {
            sections.push_back({array.raw(), {0, array.bytes(), 0, array.width(), 0}});
        });
        const uint8_t* dead = p.dead ? reinterpret_cast<const uint8_t*>(p.dead->data()) : nullptr;
        sections.push_back({dead, {0, p.dead ? p.dead->size() * 8 : 0, 0, 8, 0}});
    }

    const size_t directory = parts.size() * sizeof(PartRecord) + sections.size() * sizeof(SectionRecord);
    size_t offset = (sizeof(Header) + directory + kAlign - 1) / kAlign * kAlign;
    std::vector<uint8_t> head(offset, 0), zeros(2 * kAlign, 0);
    for (Section& s : sections) {
        s.record.offset = offset;
        offset += padded(s.record.bytes);
        // The padding is all zeros: its checksum continues from the content's.
        s.record.checksum =
            checksum(zeros.data(), padded(s.record.bytes) - s.record.bytes, checksum(s.data, s.record.bytes));
    }
    Header header{};
    std::memcpy(header.magic, kMagic, 8);
    header.version = kVersion, header.bits = uint32_t(bits);
    header.file_size = offset, header.n_images = state.n_images, header.n_codes = state.n_codes;
    header.n_parts = uint32_t(parts.size()), header.n_sections = uint32_t(sections.size());
    uint8_t* at = head.data() + sizeof(Header);
    for (const PartRecord& p : parts) std::memcpy(at, &p, sizeof p), at += sizeof p;
    for (const Section& s : sections) std::memcpy(at, &s.record, sizeof s.record), at += sizeof s.record;
    std::memcpy(head.data(), &header, sizeof header);
    header.checksum = checksum(head.data(), head.size());
    std::memcpy(head.data(), &header, sizeof header);

    static std::atomic<uint64_t> serial{0};
    const std::string temporary = path + ".tmp." + std::to_string(::getpid()) + "." + std::to_string(serial++);
    Descriptor file{::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)};
    if (file.fd < 0) fail(path);
    try {
        write_all(file.fd, head.data(), head.size(), path);
        for (const Section& s : sections) {
            write_all(file.fd, s.data, s.record.bytes, path);
            write_all(file.fd, zeros.data(), padded(s.record.bytes) - s.record.bytes, path);
        }
        if (::fsync(file.fd) < 0) fail(path);
        if (::rename(temporary.c_str(), path.c_str()) < 0) fail(path);
    } catch (...) {
        ::unlink(temporary.c_str());
        throw;
    }
    // The rename is durable only when the folder is synced.
    const size_t slash = path.rfind('/');
    const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
    Descriptor dir{::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
    if (dir.fd < 0 || (::fsync(dir.fd) < 0 && errno != EINVAL)) fail(folder);
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
    Header h{};
    const ssize_t got = ::pread(file.fd, &h, sizeof h, 0);
    if (got < 0) fail(path);
    if (got < 8 || std::memcmp(h.magic, kMagic, 8) != 0) throw NotASnapshot(path + " is not an mchindex table");
    if (size_t(got) < sizeof h) throw SnapshotDamaged(path + " is truncated: the header is incomplete");
    if (h.version > kVersion)
        throw SnapshotVersion(path + " has format version " + std::to_string(h.version) +
                              ", but this version of mchindex reads only versions up to " + std::to_string(kVersion) +
                              "; upgrade mchindex");
    if (h.file_size != size_)
        throw SnapshotDamaged(path + " is damaged: it has " + std::to_string(size_) + " bytes, but was saved with " +
                              std::to_string(h.file_size));
    const uint64_t directory =
        h.n_parts * uint64_t(sizeof(PartRecord)) + h.n_sections * uint64_t(sizeof(SectionRecord));
    const uint64_t head = (sizeof(Header) + directory + kAlign - 1) / kAlign * kAlign;
    if (head > size_ || h.n_parts > kMostParts)
        throw SnapshotDamaged(path + " is damaged: its directory does not fit into the file");

    if (mmap) {
        void* p = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.fd, 0);
        if (p == MAP_FAILED) fail(path);
        ::madvise(p, size_, MADV_WILLNEED);
        data_ = {static_cast<uint8_t*>(p), [n = size_](uint8_t* q) { ::munmap(q, n); }};
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
    Header blank;
    std::memcpy(&blank, bytes.data(), sizeof blank);
    if (std::memcmp(&blank, &h, sizeof h) != 0) throw SnapshotDamaged(path + " changed while it was being read");
    blank.checksum = 0;
    std::memcpy(bytes.data(), &blank, sizeof blank);
    if (checksum(bytes.data(), bytes.size()) != h.checksum)
        throw SnapshotDamaged(path + " is damaged: the header does not match its checksum");
    if (h.bits < 8 || h.bits > kMaxBits || h.bits % 8 || h.version == 0)
        throw SnapshotDamaged(path + " is damaged: the header has impossible values");
}

int SnapshotFile::bits() const {
    Header h;
    std::memcpy(&h, data_.get(), sizeof h);
    return int(h.bits);
}

namespace {

// Appends checks that every index a search follows is in its range. The checks are independent, so
// several threads can run them; each returns false if the segment is damaged.
template <class C>
void list_checks(const Segment<C>& s, uint32_t n_dead, const Bitmap* dead, std::vector<std::function<bool()>>& checks) {
    const uint32_t u = s.n_buckets, n = s.n_entries, m = s.n_images, g = s.n_groups;
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
    checks.push_back([=, &s] {
        bool ok = u > 0 && u <= n && n <= UINT32_MAX / 2 && m > 0 && m <= n && g <= u;
        if (!ok || s.hash_bits < 6 || s.hash_bits > 32) return false;
        const size_t bitmap = ((size_t(1) << s.hash_bits) + 63) / 64;
        for (auto& plane : s.code) ok &= plane.size() == u;
        for (auto& plane : s.pivot) ok &= plane.size() == g;
        ok &= s.group_shell.size() == size_t(g) + 1 && s.group_radius.size() == g;
        ok = ok && s.shell_start.size() == size_t(s.group_shell[g]) + 1;
        ok &= s.occupied.size() > bitmap && s.occupied.size() % 8 == 0;
        ok &= s.occupied_rank.size() == s.occupied.size() / 8 && s.order.size() == u;
        ok &= s.bucket_start.empty() ? u == n : s.bucket_start.size() == size_t(u) + 1;
        ok &= s.image.size() == n && (s.region.empty() || s.region.size() == n);
        ok &= s.primary.empty() || s.primary.size() == bitmap_words(n);
        ok &= s.codes_of_image.size() == 0 || s.codes_of_image.size() == m;
        ok &= s.id.first.size() == (size_t(m) + IdList::block - 1) / IdList::block && s.id.offset.size() == m;
        ok &= n_dead <= m && (n_dead == 0 || dead);
        ok &= !dead || dead->size() == bitmap_words(m);
        return ok;
    });
    checks.push_back([=] {
        uint64_t set = 0;
        if (dead)
            for (uint64_t word : *dead) set += uint64_t(std::popcount(word));
        return set == n_dead;
    });
    checks.push_back([=, &s] {
        bool ok = s.id.first.size() == (s.id.size() + IdList::block - 1) / IdList::block;
        for (size_t i = 1; ok && i < s.id.size(); ++i) ok = s.id[i - 1] < s.id[i];
        return ok;
    });
    // Another thread may be checking the sizes, so the checks below do not rely on them.
    checks.push_back([=, &s] { return !s.shell_start.empty() && rising(s.shell_start, u); });
    checks.push_back([=, &s] { return !s.group_shell.empty() && rising(s.group_shell, UINT32_MAX); });
    checks.push_back([=, &s] {
        uint32_t before = 0;
        bool ok = true;
        for (size_t w = 0; w < s.occupied.size(); ++w) {
            if (w % 8 == 0 && w / 8 < s.occupied_rank.size()) ok &= s.occupied_rank[w / 8] == before;
            before += uint32_t(std::popcount(s.occupied[w]));
        }
        // A probe stops at a free position, so the last one must be free.
        return ok && before == u && !s.occupied.empty() && !(s.occupied[s.occupied.size() - 1] >> 63);
    });
    checks.push_back([=, &s] { return below(s.order, u); });
    checks.push_back([=, &s] { return below(s.image, m); });
    checks.push_back([=, &s] {
        return s.bucket_start.empty() || (rising(s.bucket_start, n) && s.bucket_start[s.bucket_start.size() - 1] == n);
    });
}

}  // namespace

template <class C>
std::shared_ptr<State<C>> SnapshotFile::read() const {
    auto refuse = [&](const char* why) -> void { throw SnapshotDamaged(path_ + " is damaged: " + why); };
    Header h;
    std::memcpy(&h, data_.get(), sizeof h);
    std::vector<PartRecord> parts(h.n_parts);
    std::vector<SectionRecord> sections(h.n_sections);
    const uint8_t* directory = data_.get() + sizeof h;
    if (h.n_parts) std::memcpy(parts.data(), directory, parts.size() * sizeof(PartRecord));
    if (h.n_sections)
        std::memcpy(sections.data(), directory + parts.size() * sizeof(PartRecord),
                    sections.size() * sizeof(SectionRecord));

    // The sections must fill the file without gaps or overlaps.
    std::vector<std::function<bool()>> checks;
    uint64_t end =
        (sizeof h + parts.size() * sizeof(PartRecord) + sections.size() * sizeof(SectionRecord) + kAlign - 1) / kAlign *
        kAlign;
    for (const SectionRecord& s : sections) {
        if (s.offset != end || s.bytes > size_ || padded(s.bytes) > size_ - s.offset)
            refuse("a section has an impossible position");
        end += padded(s.bytes);
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
        Segment<C>::for_each_array(*seg, [&](const char*, auto& array) {
            const SectionRecord& s = take();
            std::shared_ptr<uint8_t> bytes(data_, data_.get() + s.offset);
            if (!array.attach(std::move(bytes), s.bytes, s.width)) refuse("a section has elements of the wrong size");
        });
        const SectionRecord& d = take();
        std::shared_ptr<Bitmap> dead;
        if (d.bytes) {
            if (d.bytes % 8) refuse("a section has elements of the wrong size");
            dead = std::make_shared<Bitmap>(d.bytes / 8);
            std::memcpy(dead->data(), data_.get() + d.offset, d.bytes);
        }
        list_checks(*seg, p.n_dead, dead.get(), checks);
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

#define MCH_INSTANTIATE(C)                                                 \
    template void save_snapshot(const std::string&, int, const State<C>&); \
    template std::shared_ptr<State<C>> SnapshotFile::read<C>() const;
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
