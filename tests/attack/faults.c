/* A library to preload: it makes system calls on files in one folder fail, or sends a signal.
 *
 * $FAULTS_FOLDER is the folder. $FAULTS_CONTROL is a file that holds `struct control`, which
 * faults.py writes while the process runs. Calls of the chosen kinds are counted; those from number
 * `after` on, `times` of them, fail with `error` or, if `signal` is set, send the process a signal.
 * A write that fails has written half of its bytes, as on a disk that fills up.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { READ = 1, WRITE = 2, SYNC = 4, RESIZE = 8, OPEN = 16, NAME = 32 };

struct control {
    int32_t calls, error, signal, after, times, seen, struck;
};

static volatile struct control* control;
static char folder[PATH_MAX];

__attribute__((constructor)) static void start(void) {
    const char *path = getenv("FAULTS_CONTROL"), *where = getenv("FAULTS_FOLDER");
    int fd = path && where ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) return;
    snprintf(folder, sizeof folder, "%s", where);
    void* map = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (map != MAP_FAILED) control = map;
}

static int wanted(int kind) { return control && (control->calls & kind); }

/* Counts a call on a path; returns whether it is to fail. */
static int struck(const char* path) {
    size_t n = strlen(folder);
    if (strncmp(path, folder, n) != 0 || (path[n] != '/' && path[n] != 0)) return 0;
    int number = __sync_fetch_and_add(&control->seen, 1), end = control->after + control->times;
    if (number < control->after || (control->times >= 0 && number >= end)) return 0;
    __sync_fetch_and_add(&control->struck, 1);
    if (control->signal && control->signal != SIGKILL) {
        kill(getpid(), control->signal);
        return 0; /* the call itself succeeds */
    }
    return 1;
}

static int failure(void) {
    if (control->signal) kill(getpid(), control->signal);
    errno = control->error;
    return -1;
}

static int file_struck(int kind, int fd) {
    if (!wanted(kind)) return 0;
    int before = errno;
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    errno = before;
    if (n < 0) return 0;
    path[n] = 0;
    return struck(path);
}

static int path_struck(int kind, int at, const char* path) {
    if (!wanted(kind) || !path) return 0;
    int before = errno;
    char given[2 * PATH_MAX], real[PATH_MAX];
    if (path[0] == '/' || at == AT_FDCWD)
        snprintf(given, sizeof given, "%s", path);
    else
        snprintf(given, sizeof given, "/proc/self/fd/%d/%s", at, path);
    char* slash = strrchr(given, '/'); /* the file itself need not exist */
    if (slash && slash != given) *slash = 0;
    int known = realpath(slash ? given : ".", real) != NULL;
    errno = before;
    return known && struck(real);
}

#define REAL(name)                 \
    static __typeof__(&name) real; \
    if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name)

/* A call on an open file. */
#define ON_FILE(kind, type, name, parameters, arguments) \
    type name parameters {                               \
        REAL(name);                                      \
        return file_struck(kind, fd) ? failure() : real arguments; \
    }
ON_FILE(READ, ssize_t, read, (int fd, void* p, size_t n), (fd, p, n))
ON_FILE(READ, ssize_t, pread, (int fd, void* p, size_t n, off_t at), (fd, p, n, at))
ON_FILE(READ, ssize_t, pread64, (int fd, void* p, size_t n, off64_t at), (fd, p, n, at))
ON_FILE(SYNC, int, fsync, (int fd), (fd))
ON_FILE(SYNC, int, fdatasync, (int fd), (fd))
ON_FILE(RESIZE, int, ftruncate, (int fd, off_t n), (fd, n))
ON_FILE(RESIZE, int, ftruncate64, (int fd, off64_t n), (fd, n))
ON_FILE(RESIZE, int, fallocate, (int fd, int mode, off_t at, off_t n), (fd, mode, at, n))
ON_FILE(RESIZE, int, fallocate64, (int fd, int mode, off64_t at, off64_t n), (fd, mode, at, n))

#define WRITES(name, parameters, half, arguments) \
    ssize_t name parameters {                     \
        REAL(name);                               \
        if (!file_struck(WRITE, fd)) return real arguments; \
        (void)!real half;                         \
        return failure();                         \
    }
WRITES(write, (int fd, const void* p, size_t n), (fd, p, n / 2), (fd, p, n))
WRITES(pwrite, (int fd, const void* p, size_t n, off_t at), (fd, p, n / 2, at), (fd, p, n, at))
WRITES(pwrite64, (int fd, const void* p, size_t n, off64_t at), (fd, p, n / 2, at), (fd, p, n, at))

/* A call on a name. */
#define ON_NAME(name, parameters, at, path, arguments) \
    int name parameters {                              \
        REAL(name);                                    \
        return path_struck(NAME, at, path) ? failure() : real arguments; \
    }
ON_NAME(unlink, (const char* path), AT_FDCWD, path, (path))
ON_NAME(unlinkat, (int at, const char* path, int flags), at, path, (at, path, flags))
ON_NAME(rmdir, (const char* path), AT_FDCWD, path, (path))
ON_NAME(mkdir, (const char* path, mode_t mode), AT_FDCWD, path, (path, mode))
ON_NAME(mkdirat, (int at, const char* path, mode_t mode), at, path, (at, path, mode))
ON_NAME(rename, (const char* old, const char* path), AT_FDCWD, path, (old, path))
ON_NAME(link, (const char* old, const char* path), AT_FDCWD, path, (old, path))
ON_NAME(renameat, (int from, const char* old, int at, const char* path), at, path,
        (from, old, at, path))
ON_NAME(linkat, (int from, const char* old, int at, const char* path, int flags), at, path,
        (from, old, at, path, flags))

/* Opening a file to write it. */
static int opening(int at, const char* path, int flags) {
    return (flags & (O_WRONLY | O_RDWR | O_CREAT)) && path_struck(OPEN, at, path);
}
#define OPENS(name, parameters, at, arguments)          \
    int name parameters {                               \
        REAL(name);                                     \
        va_list rest;                                   \
        va_start(rest, flags);                          \
        mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0; \
        va_end(rest);                                   \
        return opening(at, path, flags) ? failure() : real arguments; \
    }
OPENS(open, (const char* path, int flags, ...), AT_FDCWD, (path, flags, mode))
OPENS(open64, (const char* path, int flags, ...), AT_FDCWD, (path, flags, mode))
OPENS(openat, (int at, const char* path, int flags, ...), at, (at, path, flags, mode))
OPENS(openat64, (int at, const char* path, int flags, ...), at, (at, path, flags, mode))

int access(const char* path, int mode) {
    REAL(access);
    return (mode & W_OK) && path_struck(OPEN, AT_FDCWD, path) ? failure() : real(path, mode);
}
int faccessat(int at, const char* path, int mode, int flags) {
    REAL(faccessat);
    return (mode & W_OK) && path_struck(OPEN, at, path) ? failure() : real(at, path, mode, flags);
}
