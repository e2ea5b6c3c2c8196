/* A library for LD_PRELOAD that makes system calls on files below one folder fail, as a full disk, a read-only file system or
 * missing rights do. Tests run as root too, whom file modes do not stop.
 *
 *     NOCTURNE_FAULT_PATH   absolute path of a folder or file; only what lies there is affected
 *     NOCTURNE_FAULT        full:N       writes of this process fail with ENOSPC once N bytes are written there
 *                           read-only    opening for writing, making folders, renaming and removing fail with EROFS
 *                           unreadable   opening fails with EACCES
 *                           unsynced     fsync fails with EIO
 *                           unread       reading (pread) fails with EIO
 *                           ages         files there have the time of the year 2000
 *                           clock:S      the clock of the day is S seconds ahead (no path needed)
 *                           write:N      the N-th write of this process there, and all later ones, fail with EIO
 *                           stuck:N      the N-th write of this process there never returns
 *                           unrenamed    renaming fails with EIO
 *                           locks:NAME   locking fails with ENOLCK, ENOSYS, EAGAIN or EWOULDBLOCK
 *                           exit:N       SIGUSR2 makes the process leave with exit code N (no path needed)
 *                           late:MS,N    every N-th (10) message of this process to another rank is sent that late (no path needed)
 *     NOCTURNE_FAULT_RANK   only this rank of a launch is affected (default: all)
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static atomic_llong written, write_calls, messages;

static bool is_other_rank(void) {
    const char *wanted = getenv("NOCTURNE_FAULT_RANK"), *own = getenv("OMPI_COMM_WORLD_RANK");
    if (own == NULL)
        own = getenv("PMIX_RANK");
    return wanted != NULL && own != NULL && strcmp(wanted, own) != 0;
}

static bool fault_is(const char *name) {
    const char *fault = getenv("NOCTURNE_FAULT");
    return fault != NULL && strncmp(fault, name, strlen(name)) == 0 && !is_other_rank();
}

static void leave(int signal_number) {
    (void)signal_number;
    _exit(atoi(getenv("NOCTURNE_FAULT") + strlen("exit:")));
}

__attribute__((constructor)) static void begin(void) {
    if (fault_is("exit:"))
        signal(SIGUSR2, leave);
}

static bool below_fault_path(const char *path) {
    const char *folder = getenv("NOCTURNE_FAULT_PATH");
    if (folder == NULL || path == NULL)
        return false;
    char absolute[PATH_MAX * 2];
    if (path[0] != '/') {
        char current[PATH_MAX];
        if (getcwd(current, sizeof current) == NULL)
            return false;
        snprintf(absolute, sizeof absolute, "%s/%s", current, path);
        path = absolute;
    }
    size_t length = strlen(folder);
    return strncmp(path, folder, length) == 0 && (path[length] == '\0' || path[length] == '/');
}

static bool descriptor_below_fault_path(int fd) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0)
        return false;
    path[length] = '\0';
    return below_fault_path(path);
}

/* The path that (folder, path) of an ...at call names. */
static bool at_below_fault_path(int folder, const char *path) {
    if (path[0] == '/' || folder == AT_FDCWD)
        return below_fault_path(path);
    return descriptor_below_fault_path(folder);
}

static void *next(const char *name) {
    void *function = dlsym(RTLD_NEXT, name);
    if (function == NULL)
        abort();
    return function;
}

static bool refuse_open(int folder, const char *path, int flags) {
    bool writes = (flags & O_ACCMODE) != O_RDONLY || (flags & (O_CREAT | O_TRUNC)) != 0;
    if (writes && fault_is("read-only") && at_below_fault_path(folder, path)) {
        errno = EROFS;
        return true;
    }
    if (fault_is("unreadable") && at_below_fault_path(folder, path)) {
        errno = EACCES;
        return true;
    }
    return false;
}

static bool refuse_change(const char *path) {
    if (!fault_is("read-only") || !below_fault_path(path))
        return false;
    errno = EROFS;
    return true;
}

/* Whether this write fails; or it never comes back. */
static bool refuse_write(int fd) {
    bool fails = fault_is("write:"), sticks = fault_is("stuck:");
    if ((!fails && !sticks) || !descriptor_below_fault_path(fd))
        return false;
    long long number = atomic_fetch_add(&write_calls, 1) + 1,
              wanted = atoll(strchr(getenv("NOCTURNE_FAULT"), ':') + 1);
    while (sticks && number == wanted)
        pause();
    errno = EIO;
    return fails && number >= wanted;
}

/* How many of `bytes` may be written; 0 with errno set when the disk is full. */
static size_t room(int fd, size_t bytes) {
    if (refuse_write(fd))
        return 0;
    if (bytes == 0 || !fault_is("full:") || !descriptor_below_fault_path(fd))
        return bytes;
    long long limit = atoll(getenv("NOCTURNE_FAULT") + strlen("full:"));
    long long before = atomic_fetch_add(&written, (long long)bytes);
    if (before + (long long)bytes <= limit)
        return bytes;
    if (before < limit)
        return (size_t)(limit - before);
    errno = ENOSPC;
    return 0;
}

#define OPEN(name)                                                                                           \
    int name(const char *path, int flags, ...) {                                                             \
        va_list arguments;                                                                                   \
        va_start(arguments, flags);                                                                          \
        mode_t mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(arguments, mode_t) : 0;                       \
        va_end(arguments);                                                                                   \
        if (refuse_open(AT_FDCWD, path, flags))                                                              \
            return -1;                                                                                       \
        return ((int (*)(const char *, int, ...))next(#name))(path, flags, mode);                            \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                                                         \
    int name(int folder, const char *path, int flags, ...) {                                                 \
        va_list arguments;                                                                                   \
        va_start(arguments, flags);                                                                          \
        mode_t mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(arguments, mode_t) : 0;                       \
        va_end(arguments);                                                                                   \
        if (refuse_open(folder, path, flags))                                                                \
            return -1;                                                                                       \
        return ((int (*)(int, const char *, int, ...))next(#name))(folder, path, flags, mode);               \
    }
OPENAT(openat)
OPENAT(openat64)

#define FOPEN(name)                                                                                          \
    FILE *name(const char *path, const char *mode) {                                                         \
        if (refuse_open(AT_FDCWD, path, strpbrk(mode, "wa+") != NULL ? O_WRONLY | O_CREAT : O_RDONLY))       \
            return NULL;                                                                                     \
        return ((FILE * (*)(const char *, const char *)) next(#name))(path, mode);                           \
    }
FOPEN(fopen)
FOPEN(fopen64)

ssize_t write(int fd, const void *data, size_t bytes) {
    size_t allowed = room(fd, bytes);
    if (allowed == 0 && bytes > 0)
        return -1;
    return ((ssize_t(*)(int, const void *, size_t))next("write"))(fd, data, allowed);
}

#define PWRITE(name, offset_type)                                                                            \
    ssize_t name(int fd, const void *data, size_t bytes, offset_type offset) {                               \
        size_t allowed = room(fd, bytes);                                                                    \
        if (allowed == 0 && bytes > 0)                                                                       \
            return -1;                                                                                       \
        return ((ssize_t(*)(int, const void *, size_t, offset_type))next(#name))(fd, data, allowed, offset); \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

#define PREAD(name, offset_type)                                                                             \
    ssize_t name(int fd, void *data, size_t bytes, offset_type offset) {                                     \
        if (fault_is("unread") && descriptor_below_fault_path(fd)) {                                         \
            errno = EIO;                                                                                     \
            return -1;                                                                                       \
        }                                                                                                    \
        return ((ssize_t(*)(int, void *, size_t, offset_type))next(#name))(fd, data, bytes, offset);         \
    }
PREAD(pread, off_t)
PREAD(pread64, off64_t)

int clock_gettime(clockid_t clock, struct timespec *now) {
    int code = ((int (*)(clockid_t, struct timespec *))next("clock_gettime"))(clock, now);
    if (code == 0 && clock == CLOCK_REALTIME && fault_is("clock:"))
        now->tv_sec += atoll(getenv("NOCTURNE_FAULT") + strlen("clock:"));
    return code;
}

int stat(const char *path, struct stat *found) {
    int code = ((int (*)(const char *, struct stat *))next("stat"))(path, found);
    if (code == 0 && fault_is("ages") && below_fault_path(path))
        found->st_mtime = 946684800;
    return code;
}

ssize_t writev(int fd, const struct iovec *pieces, int count) {
    for (int i = 0; i < count; i++)
        if (pieces[i].iov_len > 0)
            return write(fd, pieces[i].iov_base, pieces[i].iov_len);
    return 0;
}

int mkdir(const char *path, mode_t mode) {
    return refuse_change(path) ? -1 : ((int (*)(const char *, mode_t))next("mkdir"))(path, mode);
}

int unlink(const char *path) {
    return refuse_change(path) ? -1 : ((int (*)(const char *))next("unlink"))(path);
}

static bool refuse_rename(const char *path) {
    if (!fault_is("unrenamed") || !below_fault_path(path))
        return refuse_change(path);
    errno = EIO;
    return true;
}

int rename(const char *from, const char *to) {
    return refuse_rename(to) ? -1 : ((int (*)(const char *, const char *))next("rename"))(from, to);
}

int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags) {
    if (refuse_rename(to))
        return -1;
    return ((int (*)(int, const char *, int, const char *, unsigned))next("renameat2"))(
        from_folder, from, to_folder, to, flags);
}

static bool refuse_sync(int fd) {
    if (!fault_is("unsynced") || !descriptor_below_fault_path(fd))
        return false;
    errno = EIO;
    return true;
}

int fsync(int fd) {
    return refuse_sync(fd) ? -1 : ((int (*)(int))next("fsync"))(fd);
}

int fdatasync(int fd) {
    return refuse_sync(fd) ? -1 : ((int (*)(int))next("fdatasync"))(fd);
}

static bool refuse_lock(int fd) {
    static const struct {
        const char *name;
        int error;
    } kinds[] = {{"locks:ENOLCK", ENOLCK}, {"locks:ENOSYS", ENOSYS}, {"locks:EAGAIN", EAGAIN}};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (fault_is(kinds[i].name) && descriptor_below_fault_path(fd)) {
            errno = kinds[i].error;
            return true;
        }
    return false;
}

int flock(int fd, int operation) {
    return refuse_lock(fd) ? -1 : ((int (*)(int, int))next("flock"))(fd, operation);
}

#define FCNTL(name)                                                                                          \
    int name(int fd, int command, ...) {                                                                     \
        va_list arguments;                                                                                   \
        va_start(arguments, command);                                                                        \
        void *argument = va_arg(arguments, void *);                                                          \
        va_end(arguments);                                                                                   \
        bool locks = command == F_SETLK || command == F_SETLKW || command == F_OFD_SETLK ||                  \
                     command == F_OFD_SETLKW || command == F_OFD_GETLK || command == F_GETLK;                \
        if (locks && refuse_lock(fd))                                                                        \
            return -1;                                                                                       \
        return ((int (*)(int, int, ...))next(#name))(fd, command, argument);                                 \
    }
FCNTL(fcntl)
FCNTL(fcntl64)

/* MPI is called by its binary interface, without its header: this library is loaded into programs that know nothing of it, too. */
int MPI_Isend(const void *data, int count, void *type, int to, int tag, void *communicator, void **request);
int MPI_Isend(const void *data, int count, void *type, int to, int tag, void *communicator, void **request) {
    if (fault_is("late:")) {
        char *rest;
        long long milliseconds = strtoll(getenv("NOCTURNE_FAULT") + strlen("late:"), &rest, 10);
        long long every = *rest == ',' ? atoll(rest + 1) : 10;
        const struct timespec time = {
            .tv_sec = milliseconds / 1000, .tv_nsec = milliseconds % 1000 * 1000000};
        if (atomic_fetch_add(&messages, 1) % every == every - 1)
            nanosleep(&time, NULL);
    }
    return ((int (*)(const void *, int, void *, int, int, void *, void **))next("MPI_Isend"))(
        data, count, type, to, tag, communicator, request);
}
