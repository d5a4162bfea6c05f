#include "external_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <system_error>

#include "platform.h"
#include "snapshot.h"

namespace mch {
namespace {

constexpr char kMagic[16] = "mchindex build\n";
constexpr const char* kManifest = "manifest";
constexpr const char* kLock = "lock";

[[noreturn]] void fail(const std::string& path) { throw std::system_error(errno, std::generic_category(), path); }

struct Opened {
    int fd;
    Opened(const std::string& path, int flags) : fd(::open(path.c_str(), flags | O_CLOEXEC, 0666)) {
        if (fd < 0) fail(path);
    }
    ~Opened() { ::close(fd); }
};

void write_all(int fd, const void* data, size_t n, const std::string& path) {
    auto* p = static_cast<const uint8_t*>(data);
    while (n) {
        const ssize_t w = ::write(fd, p, std::min<size_t>(n, size_t(1) << 30));
        if (w < 0 && errno == EINTR) continue;
        if (w < 0) fail(path);
        p += w, n -= size_t(w);
    }
}

void sync_folder(const std::string& path) {
    Opened folder(path, O_RDONLY | O_DIRECTORY);
    if (sync_to_disk(folder.fd) < 0 && errno != EINVAL) fail(path);
}

std::vector<std::string> names_in(const std::string& path) {
    std::vector<std::string> names;
    DIR* folder = ::opendir(path.c_str());
    if (!folder) fail(path);
    while (const dirent* entry = ::readdir(folder)) {
        const std::string name = entry->d_name;
        if (name != "." && name != "..") names.push_back(name);
    }
    ::closedir(folder);
    return names;
}

bool exists(const std::string& path) {
    struct stat info;
    return ::lstat(path.c_str(), &info) == 0;
}

}  // namespace

BuildFolder::BuildFolder(std::string path, bool fresh) : path_(std::move(path)) {
    if (::mkdir(path_.c_str(), 0777) < 0 && errno != EEXIST) fail(path_);
    if (!exists(file(kManifest)))
        for (const std::string& name : names_in(path_))
            if (name != kLock && name != std::string(kManifest) + ".new")
                throw std::invalid_argument(path_ + " is in the way: it is not the folder of an unfinished build; " +
                                            "rename or delete it");
    lock_ = ::open(file(kLock).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (lock_ < 0) fail(path_);
    try {
        if (::flock(lock_, LOCK_EX | LOCK_NB) < 0) {
            if (errno != EWOULDBLOCK) fail(path_);
            throw std::invalid_argument("another process is building in " + path_ + "; wait until it has finished");
        }
        if (!fresh && exists(file(kManifest))) read_manifest();
        clean();
    } catch (...) {
        ::close(lock_);
        throw;
    }
}

BuildFolder::~BuildFolder() { ::close(lock_); }

void BuildFolder::read_manifest() {
    const auto damaged = std::invalid_argument("the unfinished build in " + path_ +
                                               " is damaged; delete the folder or pass resume=False to start again");
    const std::string path = file(kManifest);
    std::vector<uint8_t> bytes;
    {
        Opened in(path, O_RDONLY);
        struct stat info;
        if (::fstat(in.fd, &info) < 0) fail(path);
        bytes.resize(size_t(info.st_size));
        for (size_t at = 0; at < bytes.size();) {
            const ssize_t r = ::read(in.fd, bytes.data() + at, bytes.size() - at);
            if (r < 0 && errno != EINTR) fail(path);
            if (r == 0) throw damaged;
            at += size_t(std::max<ssize_t>(r, 0));
        }
    }
    size_t at = 0;
    auto take = [&](void* to, size_t n) {
        if (n > bytes.size() - at) throw damaged;
        std::memcpy(to, bytes.data() + at, n);
        at += n;
    };
    char magic[16];
    uint64_t sum, n_chunks, n_files;
    take(magic, sizeof magic), take(&sum, sizeof sum);
    if (std::memcmp(magic, kMagic, sizeof magic) != 0 || checksum(bytes.data() + at, bytes.size() - at) != sum)
        throw damaged;
    take(&progress, sizeof progress), take(&n_chunks, sizeof n_chunks);
    if (n_chunks > bytes.size() / sizeof(BuildChunk)) throw damaged;
    chunks.resize(n_chunks);
    for (BuildChunk& c : chunks) take(&c, sizeof c);
    take(&n_files, sizeof n_files);
    for (uint64_t i = 0; i < n_files; ++i) {
        uint64_t length, size;
        take(&length, sizeof length);
        if (length > 64) throw damaged;
        std::string name(length, ' ');
        take(name.data(), length), take(&size, sizeof size);
        struct stat info;
        if (::stat(file(name).c_str(), &info) < 0 || uint64_t(info.st_size) < size) throw damaged;
        if (::truncate(file(name).c_str(), off_t(size)) < 0) fail(file(name));
        sizes_[name] = size;
    }
    resumed = progress.bits != 0;
}

// Removes the files that the manifest does not list.
void BuildFolder::clean() {
    if (!resumed) ::unlink(file(kManifest).c_str());
    for (const std::string& name : names_in(path_))
        if (name != kLock && (name != kManifest || !resumed) && !sizes_.count(name))
            if (::unlink(file(name).c_str()) < 0 && errno != ENOENT) fail(file(name));
}

uint64_t BuildFolder::size(const std::string& name) const {
    auto at = sizes_.find(name);
    return at == sizes_.end() ? 0 : at->second;
}

BuildFolder::Out& BuildFolder::out(const std::string& name, size_t buffer) {
    auto& there = outs_[name];
    if (!there) {
        Opened made(file(name), O_WRONLY | O_CREAT | O_APPEND);
        there.reset(new Out(*this, name, buffer ? buffer : buffer_));
        sizes_.emplace(name, 0);
    }
    return *there;
}

void BuildFolder::Out::flush() {
    if (used_) write(buffer_.get(), used_);
    used_ = 0;
}

// Opens the file for each write: with a file per first byte, there may be more files than a process may open.
void BuildFolder::Out::write(const void* data, size_t n) {
    Opened file(folder_.file(name_), O_WRONLY | O_APPEND);
    write_all(file.fd, data, n, folder_.file(name_));
    folder_.sizes_[name_] += n;
    folder_.unsynced_.insert(name_);
}

void BuildFolder::close(const std::string& name) {
    auto at = outs_.find(name);
    if (at == outs_.end()) return;
    at->second->flush();
    outs_.erase(at);
}

void BuildFolder::keep(const std::string& name) {
    struct stat info;
    if (::stat(file(name).c_str(), &info) < 0) fail(file(name));
    sizes_[name] = uint64_t(info.st_size);
    written_ += size_t(info.st_size);
}

std::shared_ptr<uint8_t> BuildFolder::map(const std::string& name) {
    close(name);
    return map(file(name), size(name));
}

std::shared_ptr<uint8_t> BuildFolder::map(const std::string& path, size_t bytes) {
    const size_t page = size_t(::sysconf(_SC_PAGESIZE));
    const size_t length = (bytes + kPadding + page - 1) / page * page;
    // Anonymous pages first: they remain behind the end of the file.
    void* p = ::mmap(nullptr, length, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    std::shared_ptr<uint8_t> mapped(static_cast<uint8_t*>(p), [length](uint8_t* q) { ::munmap(q, length); });
    if (bytes) {
        Opened in(path, O_RDONLY);
        if (::mmap(p, bytes, PROT_READ, MAP_PRIVATE | MAP_FIXED, in.fd, 0) == MAP_FAILED) fail(path);
        ::madvise(p, bytes, MADV_SEQUENTIAL);
    }
    return mapped;
}

void BuildFolder::remove(const std::string& name) {
    outs_.erase(name);
    unsynced_.erase(name);
    if (sizes_.erase(name)) ::unlink(file(name).c_str());
}

void BuildFolder::remove_later(const std::string& name) {
    outs_.erase(name);
    unsynced_.erase(name);
    if (sizes_.erase(name)) condemned_.push_back(name);
}

void BuildFolder::checkpoint() {
    for (auto& [name, out] : outs_) out->flush();
#ifdef SYNC_FILE_RANGE_WRITE
    // Starts writing all files before it waits for one: the file system can then commit them together.
    for (const std::string& name : unsynced_) {
        Opened f(file(name), O_WRONLY);
        ::sync_file_range(f.fd, 0, 0, SYNC_FILE_RANGE_WRITE);
    }
#endif
    for (const std::string& name : unsynced_) {
        Opened f(file(name), O_WRONLY);
        if (sync_to_disk(f.fd) < 0) fail(file(name));
    }
    unsynced_.clear();
    written_ = 0;

    std::vector<uint8_t> body;
    auto add = [&](const void* data, size_t n) {
        auto* p = static_cast<const uint8_t*>(data);
        body.insert(body.end(), p, p + n);
    };
    const uint64_t n_chunks = chunks.size(), n_files = sizes_.size();
    add(&progress, sizeof progress), add(&n_chunks, sizeof n_chunks);
    add(chunks.data(), chunks.size() * sizeof(BuildChunk)), add(&n_files, sizeof n_files);
    for (auto& [name, size] : sizes_) {
        const uint64_t length = name.size();
        add(&length, sizeof length), add(name.data(), length), add(&size, sizeof size);
    }
    const uint64_t sum = checksum(body.data(), body.size());
    const std::string path = file(kManifest), fresh = path + ".new";
    {
        Opened f(fresh, O_WRONLY | O_CREAT | O_TRUNC);
        write_all(f.fd, kMagic, sizeof kMagic, fresh);
        write_all(f.fd, &sum, sizeof sum, fresh);
        write_all(f.fd, body.data(), body.size(), fresh);
        if (sync_to_disk(f.fd) < 0) fail(fresh);
    }
    if (::rename(fresh.c_str(), path.c_str()) < 0) fail(path);
    sync_folder(path_);
    for (const std::string& name : condemned_) ::unlink(file(name).c_str());
    condemned_.clear();
}

void BuildFolder::discard() {
    if (discarded_) return;
    discarded_ = true;
    // First a manifest of nothing: a kill from here on leaves a folder in which the next build starts afresh.
    outs_.clear(), unsynced_.clear(), sizes_.clear(), chunks.clear();
    progress = {};
    try {
        checkpoint();
    } catch (const std::system_error&) {  // the disk is full: deleting makes room
    }
    for (const std::string& name : names_in(path_))
        if (name != kManifest && name != kLock) ::unlink(file(name).c_str());
    ::unlink(file(kManifest).c_str());
    ::unlink(file(kLock).c_str());
    ::rmdir(path_.c_str());
}

}  // namespace mch
