/* `nocturne check`: what a campaign needs of its file system, tried out. */
#include "campaign/check.h"

#include "base/buffer.h"
#include "campaign/files.h"
#include "campaign/hdf5_file.h"
#include "campaign/progress.h" /* monotonic_seconds */
#include "cluster/collectives.h"

#include <errno.h>       /* errno */
#include <fcntl.h>       /* open */
#include <stdio.h>       /* snprintf */
#include <stdlib.h>      /* malloc, free */
#include <string.h>      /* memset */
#include <sys/stat.h>    /* stat */
#include <sys/statvfs.h> /* statvfs */
#include <time.h>        /* clock_gettime */
#include <unistd.h>      /* close, unlink */

#define GIB (1024.0 * 1024.0 * 1024.0)

enum { PROBE_BYTES = 1 << 20 };
static const double SLOW_FLUSH = 5;            /* seconds */
static const double LEAST_FREE = 1 * GIB;      /* less is a warning in any case */
static const double MOST_FILE_CLOCK_SKEW = 60; /* seconds */

/* Names of one rank's probe files. All are hidden and end in .tmp, as everything that is passed over by phases. */
struct probe {
    char base[4096];
    const char *folder;
};

static bool probe_name(const struct probe *probe, const char *suffix, char *path, size_t capacity) {
    return snprintf(path, capacity, "%s.%s.tmp", probe->base, suffix) < (int)capacity;
}

static enum result write_probe(const char *path, const void *data, size_t bytes, bool flush) {
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0)
        return fail_output(path, "create");
    enum result status = write_fully(fd, data, bytes, path);
    if (status == OK && flush && fsync(fd))
        status = fail_output(path, "flush to disk");
    if (close(fd) && status == OK)
        status = fail_output(path, "close");
    return status;
}

/* ---- rows ---- */

static void check_space(const struct probe *probe, int64_t wanted, struct check_row *row) {
    struct statvfs found;
    const char *remedy = "free some space, or choose another folder for the campaign";
    if (statvfs(probe->folder, &found)) {
        check_warn(row, remedy, "%s: cannot tell the free space: %s", probe->folder, strerror(errno));
        return;
    }
    double free_bytes = (double)found.f_bavail * (double)found.f_frsize;
    check_pass(row, "%s: %.1f GiB free, the campaign may need %.1f", probe->folder, free_bytes / GIB,
        (double)wanted / GIB);
    if (free_bytes < (double)wanted)
        check_fail(row, ERROR_IO, remedy, "%s: %.2f GiB free, the campaign may need %.2f", probe->folder,
            free_bytes / GIB, (double)wanted / GIB);
    else if (free_bytes < LEAST_FREE)
        check_warn(row, remedy, "%s: only %.2f GiB free", probe->folder, free_bytes / GIB);
    if (found.f_files > 0 && found.f_favail < 1000)
        check_warn(row, remedy, "%s: only %llu more files can be made", probe->folder,
            (unsigned long long)found.f_favail);
}

static enum result try_flush(const struct probe *probe, double *seconds) {
    char path[4200];
    if (!probe_name(probe, "flush", path, sizeof path))
        return fail(ERROR_IO, "%s: the path is too long", probe->folder);
    char *data = malloc(PROBE_BYTES);
    if (!data)
        return fail(ERROR_MEMORY, "out of memory for a file of 1 MiB");
    memset(data, 7, PROBE_BYTES);
    double start = monotonic_seconds();
    enum result status = write_probe(path, data, PROBE_BYTES, true);
    if (status == OK)
        status = folder_flush(probe->folder);
    *seconds = monotonic_seconds() - start;
    unlink(path);
    free(data);
    return status;
}

static void check_flush(const struct probe *probe, struct check_row *row) {
    double seconds = 0;
    enum result status = try_flush(probe, &seconds);
    if (status != OK)
        check_failure(row, status,
            "the campaign's folder must be writable and able to flush files; choose another one");
    else if (seconds > SLOW_FLUSH)
        check_warn(row, "expect phases to be slow at their ends, or choose a quicker file system",
            "writing and flushing 1 MiB took %.1f s", seconds);
    else
        check_pass(row, "1 MiB written and flushed in %.0f ms", 1e3 * seconds);
}

static enum result try_rename(const struct probe *probe) {
    char first[4200], second[4200], final[4200], read_back = 0;
    size_t got;
    if (!probe_name(probe, "first", first, sizeof first) ||
        !probe_name(probe, "second", second, sizeof second) ||
        !probe_name(probe, "final", final, sizeof final))
        return fail(ERROR_IO, "%s: the path is too long", probe->folder);
    enum result status;
    int fd = -1;
    TRY_GOTO(status, write_probe(first, "1", 1, false), done);
    TRY_GOTO(status, write_probe(second, "2", 1, false), done);
    if (rename_without_overwriting(first, final)) {
        status = fail_output(final, "rename a finished file to its name");
        goto done;
    }
    if (!rename_without_overwriting(second, final) || errno != EEXIST) {
        status = fail(ERROR_IO, "%s: renaming to a name that is taken does not fail as it must", final);
        goto done;
    }
    if (rename(second, final)) {
        status = fail_output(final, "replace a file by renaming another one");
        goto done;
    }
    fd = open(final, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        status = fail_errno(ERROR_IO, "%s: cannot open after renaming", final);
        goto done;
    }
    TRY_GOTO(status, read_fully(fd, &read_back, 1, 0, &got, final), done);
    if (got != 1 || read_back != '2')
        status = fail(ERROR_IO, "%s: holds something else after renaming", final);
done:
    if (fd >= 0)
        close(fd);
    unlink(first);
    unlink(second);
    unlink(final);
    return status;
}

static void check_rename(const struct probe *probe, struct check_row *row) {
    enum result status = try_rename(probe);
    if (status != OK)
        check_failure(row, status, "choose a file system that renames files as POSIX says");
    else
        check_pass(row, "finished files take their names at once and overwrite nothing");
}

static int try_lock(int fd) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    return fcntl(fd, F_OFD_SETLK, &lock);
}

static void check_locks(const struct probe *probe, struct check_row *row) {
    char path[4200];
    const char *remedy =
        "works, but see to it yourself that one command at a time uses the campaign (or mount with locks)";
    if (!probe_name(probe, "lock", path, sizeof path))
        return;
    int first = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666), second = open(path, O_RDWR | O_CLOEXEC);
    if (first < 0 || second < 0)
        check_fail(row, ERROR_IO, "the campaign's folder must be writable", "%s: cannot open: %s", path,
            strerror(errno));
    else if (try_lock(first))
        check_warn(row, remedy, "this file system takes no locks (%s): the text in DIR/lock decides",
            strerror(errno));
    else if (!try_lock(second))
        check_warn(row, remedy, "two holders got the same lock: locks do not work here");
    else
        check_pass(row, "a lock keeps others out");
    if (first >= 0)
        close(first);
    if (second >= 0)
        close(second);
    unlink(path);
}

static enum result try_hdf5(const char *path) {
    const struct column column = {"values", COLUMN_I64, NULL, "a trial"};
    const int64_t written[3] = {1, 2, 3};
    struct vector found = {0};
    hid_t file = H5I_INVALID_HID;
    struct file_header header = {.version = FORMAT_VERSION, .format = "nocturne.results"};
    TRY(hdf5_create(path, &file));
    enum result status = hdf5_write_column(file, path, &column, written, 3, 0);
    enum result closed = hdf5_close(&file, path);
    TRY(status);
    TRY(closed);
    TRY(hdf5_seal(path, &header));
    TRY(hdf5_open(path, &file));
    status = hdf5_read_column(file, path, &column, &found);
    if (status == OK && (found.bytes != sizeof written || memcmp(found.data, written, sizeof written) != 0))
        status = fail(ERROR_IO, "%s: what was read is not what was written", path);
    vector_free(&found);
    closed = hdf5_close(&file, path);
    TRY(status);
    return closed;
}

static void check_hdf5(const struct probe *probe, struct check_row *row) {
    char path[4200];
    unsigned major = 0, minor = 0, release = 0;
    H5get_libversion(&major, &minor, &release);
    if (!probe_name(probe, "h5", path, sizeof path))
        return;
    enum result status = try_hdf5(path);
    unlink(path);
    if (status != OK)
        check_failure(row, status,
            "mend what the message names; with HDF5 before 1.10.7 set HDF5_USE_FILE_LOCKING=FALSE");
    else
        check_pass(
            row, "HDF5 %u.%u.%u writes and reads here; its own file locks are off", major, minor, release);
}

/* The file server's clock, as the time of a new file shows it. */
static void check_file_clock(const struct probe *probe, struct check_row *row) {
    char path[4200];
    struct stat found;
    struct timespec now = {0};
    if (!probe_name(probe, "clock", path, sizeof path))
        return;
    if (write_probe(path, "1", 1, true) != OK || stat(path, &found)) {
        check_failure(row, ERROR_IO, "the campaign's folder must be writable");
        unlink(path);
        return;
    }
    clock_gettime(CLOCK_REALTIME, &now);
    unlink(path);
    double behind = (double)now.tv_sec - (double)found.st_mtime;
    if (behind > MOST_FILE_CLOCK_SKEW || behind < -MOST_FILE_CLOCK_SKEW)
        check_warn(row, "set the clocks by NTP; times in reports will be wrong, answers not",
            "the file system's clock differs by %.0f s from this node's", behind);
    else
        check_pass(row, "files are dated as this node's clock is");
}

/* ---- between nodes ---- */

/* Whether a file that one node has just closed can be read on the next one. */
static enum result check_visibility(
    const struct ranks *ranks, struct probe *probe, bool leads, const char *token, struct check_row *row) {
    struct probe other = *probe;
    char path[4200], expected[64], found[64] = "";
    size_t got = 0;
    if (ranks->nodes == 1) {
        check_pass(row, "one node");
        return OK;
    }
    snprintf(expected, sizeof expected, "node %d", ranks->node);
    snprintf(
        probe->base, sizeof probe->base, "%s/.nocturne-check.%s.node-%d", probe->folder, token, ranks->node);
    bool named = probe_name(probe, "seen", path, sizeof path);
    if (leads && (!named || write_probe(path, expected, strlen(expected), false) != OK))
        check_failure(row, ERROR_IO, "the campaign's folder must be writable on all nodes");
    TRY(group_barrier(ranks->world, "check: files of other nodes"));
    int32_t next = (ranks->node + 1) % ranks->nodes;
    snprintf(expected, sizeof expected, "node %d", next);
    snprintf(other.base, sizeof other.base, "%s/.nocturne-check.%s.node-%d", probe->folder, token, next);
    if (leads) {
        char their[4200];
        int fd = probe_name(&other, "seen", their, sizeof their) ? open(their, O_RDONLY | O_CLOEXEC) : -1;
        if (fd < 0 || read_fully(fd, found, sizeof found - 1, 0, &got, their) != OK ||
            strcmp(found, expected) != 0)
            check_fail(row, ERROR_IO, "the campaign must lie on a file system that all nodes share",
                "%s: what node %d wrote there is not seen on node %d", probe->folder, next, ranks->node);
        else
            check_pass(row, "what one node writes, the next one reads at once");
        if (fd >= 0)
            close(fd);
    }
    TRY(group_barrier(ranks->world, "check: files of other nodes were read"));
    if (leads)
        unlink(path);
    return OK;
}

enum result check_campaign_files(
    const struct ranks *ranks, const char *folder, int64_t wanted_bytes, struct check_files *rows) {
    struct probe probe = {.folder = folder};
    char token[32] = "";
    bool leads = ranks->node_rank == 0;
    ignore_size_signal();
    snprintf(token, sizeof token, "%ld", (long)getpid());
    TRY(group_broadcast(ranks->world, "check: name of trial files", 0, token, sizeof token));
    snprintf(probe.base, sizeof probe.base, "%s/.nocturne-check.%s.%d", folder, token, ranks->rank);
    if (leads) {
        check_space(&probe, wanted_bytes, &rows->space);
        check_flush(&probe, &rows->flush);
        check_rename(&probe, &rows->rename);
        check_locks(&probe, &rows->locks);
        check_hdf5(&probe, &rows->hdf5);
        check_file_clock(&probe, &rows->file_clock);
    }
    return check_visibility(ranks, &probe, leads, token, &rows->visibility);
}
