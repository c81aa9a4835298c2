/* Makes one call that changes a disk fail, for paths that contain "checkpoints": set fail_at to k for the k-th from now. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

int fail_at = 0, calls = 0;

static int fails(const char *path) {
    if (!strstr(path, "checkpoints")) return 0;
    if (__sync_add_and_fetch(&calls, 1) != fail_at) return 0;
    errno = ENOSPC;
    return 1;
}

static int fd_fails(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return fails(path);
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int fd, const void *data, size_t size) { return fd_fails(fd) ? -1 : NEXT(write)(fd, data, size); }
ssize_t writev(int fd, const struct iovec *data, int count) { return fd_fails(fd) ? -1 : NEXT(writev)(fd, data, count); }
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    return fd_fails(fd) ? -1 : NEXT(pwrite64)(fd, data, size, at);
}
int fsync(int fd) { return fd_fails(fd) ? -1 : NEXT(fsync)(fd); }
int rename(const char *from, const char *to) { return fails(from) ? -1 : NEXT(rename)(from, to); }
int mkdir(const char *path, mode_t mode) { return fails(path) ? -1 : NEXT(mkdir)(path, mode); }

#define OPEN(name)                                              \
    int name(const char *path, int flags, ...) {                \
        va_list more;                                           \
        va_start(more, flags);                                  \
        mode_t mode = flags & O_CREAT ? va_arg(more, mode_t) : 0; \
        va_end(more);                                           \
        if (flags & O_CREAT && fails(path)) return -1;          \
        return NEXT(name)(path, flags, mode);                   \
    }
OPEN(open)
OPEN(open64)
