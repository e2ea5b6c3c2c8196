#include "campaign/lock.h"

#include "base/beacon.h"
#include "base/log.h"
#include "campaign/files.h"

#include <errno.h>  /* errno */
#include <fcntl.h>  /* open, fcntl */
#include <limits.h> /* HOST_NAME_MAX */
#include <signal.h> /* kill */
#include <stdio.h>  /* snprintf, sscanf */
#include <stdlib.h> /* getenv, free */
#include <string.h> /* strcmp */
#include <time.h>   /* gmtime_r */
#include <unistd.h> /* ftruncate, getpid */

enum { LOCK_TEXT = 1024 };

struct holder {
    char host[256], job[128], started[64];
    long pid; /* 0: the text is empty or not ours */
};

static void own_host(char host[HOST_NAME_MAX + 1]) {
    if (gethostname(host, HOST_NAME_MAX))
        host[0] = '\0';
    host[HOST_NAME_MAX] = '\0';
}

static void read_holder(int fd, struct holder *holder) {
    char text[LOCK_TEXT + 1] = "";
    *holder = (struct holder){0};
    ssize_t bytes = pread(fd, text, LOCK_TEXT, 0);
    if (bytes <= 0)
        return;
    int fields = sscanf(text, "host %255s pid %ld job %127s started %63s", holder->host, &holder->pid,
        holder->job, holder->started);
    if (fields < 2 || holder->pid <= 0)
        *holder = (struct holder){0};
}

static void describe(const struct holder *holder, char *text, size_t capacity) {
    text[0] = '\0';
    if (!holder->pid)
        return;
    bool job = holder->job[0] && strcmp(holder->job, "-");
    snprintf(text, capacity, "process %ld on host %s%s%s, since %s", holder->pid, holder->host,
        job ? ", job " : "", job ? holder->job : "", holder->started);
}

/* 1: locked, 0: someone else holds it, -1: the file system has no such locks. */
static int try_lock(int fd) {
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    if (!fcntl(fd, F_OFD_SETLK, &lock))
        return 1;
    return errno == EAGAIN || errno == EACCES ? 0 : -1;
}

/* For file systems without locks: whether the process that the text names may still live. */
static bool may_live(const struct holder *holder) {
    char host[HOST_NAME_MAX + 1];
    if (!holder->pid)
        return false;
    own_host(host);
    if (strcmp(host, holder->host))
        return true;
    return holder->pid != (long)getpid() && (!kill((pid_t)holder->pid, 0) || errno == EPERM);
}

static enum result write_holder(int fd, const char *path) {
    char host[HOST_NAME_MAX + 1], started[32], text[LOCK_TEXT];
    const char *const variables[] = {"SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID"};
    const char *job = "-";
    for (size_t i = sizeof variables / sizeof *variables; i-- > 0;) {
        const char *value = getenv(variables[i]);
        if (value && *value)
            job = value;
    }
    own_host(host);
    time_t now = time(NULL);
    struct tm utc;
    strftime(started, sizeof started, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    int bytes = snprintf(
        text, sizeof text, "host %s\npid %ld\njob %.127s\nstarted %s\n", host, (long)getpid(), job, started);
    if (ftruncate(fd, 0))
        return fail_output(path, "write");
    return write_fully(fd, text, (size_t)bytes, path);
}

enum result lock_take(const char *campaign_folder, int *fd) {
    *fd = -1;
    char text[LOCK_TEXT];
    char *path = path_join(campaign_folder, "lock");
    if (!path)
        return fail(ERROR_MEMORY, "out of memory for a path");
    enum result status = OK;
    beacon_file(path); /* lock servers may not answer */
    int opened = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (opened < 0) {
        status = fail_output(path, "open the campaign's lock");
        goto done;
    }
    struct holder holder;
    int locked = try_lock(opened);
    read_holder(opened, &holder);
    describe(&holder, text, sizeof text);
    if (locked == 0 || (locked < 0 && may_live(&holder))) {
        status = fail(ERROR_CONFLICT, "the campaign %s is in use by %s: wait until it ends%s",
            campaign_folder, *text ? text : "another process",
            locked ? ", or remove its file 'lock' when that process is gone for certain" : "");
        goto done;
    }
    if (holder.pid)
        log_warning(
            "the campaign %s was left locked by %s, which is gone: taking over", campaign_folder, text);
    status = write_holder(opened, path);
done:
    beacon_file(NULL);
    free(path);
    if (status != OK) {
        if (opened >= 0)
            close(opened);
        return status;
    }
    *fd = opened;
    return OK;
}

void lock_release(int fd) {
    if (fd < 0)
        return;
    /* An empty file tells that the end was clean; the lock itself goes with the descriptor. */
    if (ftruncate(fd, 0))
        log_warning("cannot empty the campaign's lock: %s", strerror(errno));
    close(fd);
}

bool lock_is_held(const char *campaign_folder, char *text, size_t capacity) {
    struct holder holder;
    bool held = false;
    text[0] = '\0';
    char *path = path_join(campaign_folder, "lock");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    free(path);
    if (fd < 0)
        return false;
    struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    read_holder(fd, &holder);
    if (!fcntl(fd, F_OFD_GETLK, &lock))
        held = lock.l_type != F_UNLCK;
    else
        held = may_live(&holder);
    close(fd);
    if (held)
        describe(&holder, text, capacity);
    return held;
}
