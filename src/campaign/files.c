#include "campaign/files.h"

#include "base/beacon.h"

#include <errno.h>  /* errno */
#include <fcntl.h>  /* open, renameat2 */
#include <limits.h> /* HOST_NAME_MAX */
#include <signal.h> /* signal */
#include <stdio.h>  /* asprintf, renameat2 */
#include <stdlib.h> /* malloc, realloc, free */
#include <string.h> /* memcpy, strrchr */
#include <sys/stat.h>
#include <unistd.h> /* write, fsync, close */

enum { HELD_BYTES = 1 << 20 };

void ignore_size_signal(void) {
    signal(SIGXFSZ, SIG_IGN);
}

char *path_join(const char *folder, const char *name) {
    char *path;
    size_t length = strlen(folder);
    const char *slash = length && folder[length - 1] == '/' ? "" : "/";
    return asprintf(&path, "%s%s%s", folder, slash, name) < 0 ? NULL : path;
}

char *path_folder(const char *path) {
    const char *slash = strrchr(path, '/');
    if (!slash)
        return strdup(".");
    return slash == path ? strdup("/") : strndup(path, (size_t)(slash - path));
}

char *temporary_name(const char *path) {
    char host[HOST_NAME_MAX + 1] = "";
    if (gethostname(host, sizeof host - 1))
        host[0] = '\0';
    const char *slash = strrchr(path, '/');
    int folder_bytes = slash ? (int)(slash - path + 1) : 0;
    char *name;
    int made =
        asprintf(&name, "%.*s.%s.%s.%ld.tmp", folder_bytes, path, path + folder_bytes, host, (long)getpid());
    return made < 0 ? NULL : name;
}

bool is_temporary_name(const char *name) {
    size_t length = strlen(name);
    return length > 5 && name[0] == '.' && !strcmp(name + length - 4, ".tmp");
}

enum result fail_output(const char *path, const char *action) {
    int error = errno;
    const char *advice = "";
    if (error == ENOSPC)
        advice = " (the disk is full: free some space and run the same command again)";
    else if (error == EDQUOT)
        advice = " (the disk quota is used up: free some space and run the same command again)";
    else if (error == EFBIG)
        advice = " (a file size limit: see 'ulimit -f')";
    else if (error == EROFS || error == EACCES || error == EPERM)
        advice = " (the folder must be writable)";
    return fail(ERROR_IO, "%s: cannot %s: %s%s", path, action, strerror(error), advice);
}

enum result write_fully(int fd, const void *data, size_t bytes, const char *path) {
    for (size_t done = 0; done < bytes;) {
        size_t now = bytes - done < (size_t)1 << 26 ? bytes - done : (size_t)1 << 26;
        beacon_file(path);
        ssize_t written = write(fd, (const char *)data + done, now);
        beacon_file(NULL);
        if (written < 0 && errno == EINTR)
            continue;
        if (written <= 0) {
            if (written == 0)
                errno = ENOSPC;
            return fail_output(path, "write");
        }
        done += (size_t)written;
    }
    return OK;
}

enum result read_fully(int fd, void *data, size_t bytes, int64_t offset, size_t *got, const char *path) {
    *got = 0;
    while (*got < bytes) {
        size_t now = bytes - *got < (size_t)1 << 26 ? bytes - *got : (size_t)1 << 26;
        beacon_file(path);
        ssize_t count = pread(fd, (char *)data + *got, now, offset + (int64_t)*got);
        beacon_file(NULL);
        if (count < 0 && errno == EINTR)
            continue;
        if (count < 0)
            return fail_errno(
                ERROR_IO, "%s: cannot read at byte %lld", path, (long long)offset + (long long)*got);
        if (count == 0)
            break;
        *got += (size_t)count;
    }
    return OK;
}

static enum result make_one_folder(const char *path) {
    if (!mkdir(path, 0777))
        return OK;
    int error = errno;
    struct stat status;
    if (!stat(path, &status)) {
        if (S_ISDIR(status.st_mode))
            return OK;
        return fail(ERROR_IO, "%s: is not a folder", path);
    }
    errno = error;
    return fail_output(path, "make the folder");
}

enum result folder_make(const char *path) {
    char *copy = strdup(path);
    if (!copy)
        return fail(ERROR_MEMORY, "out of memory for a path");
    enum result status = OK;
    for (char *slash = strchr(copy + 1, '/'); slash && status == OK; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        struct stat found;
        if (stat(copy, &found))
            status = make_one_folder(copy);
        *slash = '/';
    }
    if (status == OK)
        status = make_one_folder(copy);
    free(copy);
    return status;
}

enum result folder_flush(const char *path) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return fail_errno(ERROR_IO, "%s: cannot open the folder", path);
    beacon_file(path);
    /* Some file systems have no fsync of folders (EINVAL) and need none. */
    int failed = fsync(fd) && errno != EINVAL && errno != EROFS && errno != ENOTSUP;
    int error = errno;
    close(fd);
    beacon_file(NULL);
    errno = error;
    return failed ? fail_output(path, "flush the folder") : OK;
}

int rename_without_overwriting(const char *from, const char *to) {
    if (!renameat2(AT_FDCWD, from, AT_FDCWD, to, RENAME_NOREPLACE))
        return 0;
    if (errno != EINVAL && errno != ENOSYS && errno != ENOTSUP)
        return -1;
    if (!link(from, to))
        return unlink(from);
    if (errno != EPERM && errno != ENOSYS && errno != ENOTSUP && errno != EMLINK)
        return -1;
    /* A file system with neither: one writer a folder (the lock, and a folder a rank) makes a look enough. */
    struct stat status;
    if (!lstat(to, &status)) {
        errno = EEXIST;
        return -1;
    }
    return rename(from, to);
}

enum result output_check(const char *path) {
    struct stat found;
    if (stat(path, &found) || S_ISREG(found.st_mode))
        return OK;
    return fail(ERROR_IO, "%s: is no regular file, so it isn't replaced by one: give another name", path);
}

enum result output_file_create(const char *path, struct output_file *file) {
    TRY(output_check(path));
    ignore_size_signal();
    *file = (struct output_file){.fd = -1, .path = strdup(path)};
    file->temporary = temporary_name(path);
    file->held = malloc(HELD_BYTES);
    if (!file->path || !file->temporary || !file->held) {
        output_file_abandon(file);
        return fail(ERROR_MEMORY, "%s: out of memory for writing it", path);
    }
    beacon_file(file->temporary);
    file->fd = open(file->temporary, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    beacon_file(NULL);
    if (file->fd < 0) {
        enum result status = fail_output(file->temporary, "create");
        output_file_abandon(file);
        return status;
    }
    return OK;
}

enum result output_file_write_out(struct output_file *file) {
    size_t bytes = file->held_bytes;
    file->held_bytes = 0;
    return write_fully(file->fd, file->held, bytes, file->temporary);
}

enum result output_file_write(struct output_file *file, const void *data, size_t bytes) {
    file->bytes += (int64_t)bytes;
    if (file->held_bytes + bytes > HELD_BYTES)
        TRY(output_file_write_out(file));
    if (bytes >= HELD_BYTES)
        return write_fully(file->fd, data, bytes, file->temporary);
    if (bytes)
        memcpy(file->held + file->held_bytes, data, bytes);
    file->held_bytes += bytes;
    return OK;
}

/* Bytes to disk and the file closed: close can be the first to report a full disk on network file systems. */
static enum result flush_and_close(struct output_file *file) {
    if (file->fd < 0)
        return OK;
    TRY(output_file_write_out(file));
    beacon_file(file->temporary);
    int failed = fsync(file->fd);
    beacon_file(NULL);
    if (failed)
        return fail_output(file->temporary, "flush to disk");
    int fd = file->fd;
    file->fd = -1;
    return close(fd) ? fail_output(file->temporary, "close") : OK;
}

static void free_names(struct output_file *file) {
    free(file->path);
    free(file->temporary);
    free(file->held);
    *file = (struct output_file){.fd = -1};
}

enum result output_file_commit(struct output_file *file, bool replace, bool *taken) {
    char *folder = NULL;
    *taken = false;
    enum result status = flush_and_close(file);
    if (status != OK)
        goto done;
    beacon_file(file->path);
    int failed = replace ? rename(file->temporary, file->path)
                         : rename_without_overwriting(file->temporary, file->path);
    beacon_file(NULL);
    if (failed && errno == EEXIST && !replace) {
        *taken = true;
        return OK;
    }
    if (failed) {
        status = fail_output(file->path, "rename the finished file to its name");
        goto done;
    }
    folder = path_folder(file->path);
    status = folder ? folder_flush(folder) : fail(ERROR_MEMORY, "out of memory for a path");
    free(folder);
    free_names(file);
    return status;
done:
    output_file_abandon(file);
    return status;
}

void output_file_abandon(struct output_file *file) {
    if (!file->path)
        return;
    if (file->fd >= 0)
        close(file->fd);
    if (file->temporary)
        unlink(file->temporary);
    free_names(file);
}

enum result vector_reserve(struct vector *vector, size_t bytes) {
    if (bytes <= vector->capacity)
        return OK;
    size_t capacity = vector->capacity + vector->capacity / 2;
    if (capacity < bytes)
        capacity = bytes;
    if (capacity < 64)
        capacity = 64;
    void *grown = realloc(vector->data, capacity);
    if (!grown)
        return fail(ERROR_MEMORY, "out of memory: %zu bytes for records that wait to be written", capacity);
    vector->data = grown;
    vector->capacity = capacity;
    return OK;
}

enum result vector_append(struct vector *vector, const void *data, size_t bytes) {
    if (!bytes)
        return OK;
    TRY(vector_reserve(vector, vector->bytes + bytes));
    memcpy((char *)vector->data + vector->bytes, data, bytes);
    vector->bytes += bytes;
    return OK;
}

void vector_free(struct vector *vector) {
    free(vector->data);
    *vector = (struct vector){0};
}
