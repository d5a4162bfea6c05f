// What operating systems do differently. The rest of the engine uses only C++ and POSIX.
#pragma once

#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>

namespace mch {

// Asks for large pages behind this memory, where there are such.
inline void advise_huge_pages([[maybe_unused]] void* memory, [[maybe_unused]] size_t bytes) {
#ifdef MADV_HUGEPAGE
    ::madvise(memory, bytes, MADV_HUGEPAGE);
#endif
}

// Cores on which the calling thread may run, or 0 if the system does not say.
inline int allowed_cores() {
#ifdef __linux__
    cpu_set_t set;
    if (::sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set);
#endif
    return 0;
}

// Writes a file, or the names in a folder, to the disk. Returns -1 on failure, with the reason in errno.
inline int sync_to_disk(int fd) {
#ifdef F_FULLFSYNC
    if (::fcntl(fd, F_FULLFSYNC) == 0) return 0;  // on macOS, fsync() may stop at the cache of the disk
#endif
    return ::fsync(fd);
}

}  // namespace mch
