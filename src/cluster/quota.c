#include "cluster/quota.h"

#include <stdbool.h> /* bool */
#include <stdio.h>   /* fopen, fscanf */
#include <string.h>  /* strncmp, strrchr */

enum { PATH_BYTES = 4096 };

static bool read_line(const char *path, char *line, int bytes) {
    FILE *file = fopen(path, "r");
    if (!file)
        return false;
    bool read = fgets(line, bytes, file) != NULL;
    fclose(file);
    return read;
}

/* Rounds up: half a core is one. */
static int32_t cores_of(double quota, double period) {
    double cores = quota > 0 && period > 0 ? quota / period : 0;
    if (cores <= 0 || cores > 1 << 20)
        return 0;
    int32_t whole = (int32_t)cores;
    return whole < cores ? whole + 1 : whole;
}

static int32_t smaller_limit(int32_t a, int32_t b) {
    return a == 0 || (b != 0 && b < a) ? b : a;
}

/* Version 2: "max 100000" or "QUOTA PERIOD" in microseconds. */
static int32_t limit_in(const char *folder) {
    char path[PATH_BYTES + 32], line[128];
    double quota, period;
    snprintf(path, sizeof path, "%s/cpu.max", folder);
    if (read_line(path, line, sizeof line) && sscanf(line, "%lf %lf", &quota, &period) == 2)
        return cores_of(quota, period);
    return 0;
}

/* Version 1, as containers see it. */
static int32_t limit_version_1(const char *root) {
    char path[PATH_BYTES], line[128];
    double quota, period;
    snprintf(path, sizeof path, "%s/sys/fs/cgroup/cpu/cpu.cfs_quota_us", root);
    if (!read_line(path, line, sizeof line) || sscanf(line, "%lf", &quota) != 1)
        return 0;
    snprintf(path, sizeof path, "%s/sys/fs/cgroup/cpu/cpu.cfs_period_us", root);
    if (!read_line(path, line, sizeof line) || sscanf(line, "%lf", &period) != 1)
        return 0;
    return cores_of(quota, period);
}

/* The path of this process's group: what follows `begin` ("0::/", or ":memory:/" in version 1) in its line of /proc/self/cgroup, with the
 * slash. */
static void own_group(const char *root, const char *begin, char *group, int bytes) {
    char path[PATH_BYTES];
    group[0] = '\0';
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *file = fopen(path, "r");
    if (!file)
        return;
    while (fgets(group, bytes, file)) {
        const char *at = strstr(group, begin);
        if (at && (at == group || begin[0] == ':')) {
            at += strlen(begin) - 1;
            memmove(group, at, strlen(at) + 1);
            group[strcspn(group, "\n")] = '\0';
            fclose(file);
            return;
        }
    }
    fclose(file);
    group[0] = '\0';
}

int32_t processor_quota(const char *root) {
    char group[PATH_BYTES / 2], folder[PATH_BYTES];
    int32_t limit = limit_version_1(root);
    own_group(root, "0::/", group, sizeof group);
    /* Every group above this one limits it as well. */
    for (;;) {
        snprintf(folder, sizeof folder, "%.1500s/sys/fs/cgroup%s", root, group);
        limit = smaller_limit(limit, limit_in(folder));
        char *slash = strrchr(group, '/');
        if (!slash)
            return limit;
        *slash = '\0';
    }
}

static int64_t read_bytes(const char *path) {
    char line[128];
    long long bytes = 0;
    if (!read_line(path, line, sizeof line) || sscanf(line, "%lld", &bytes) != 1 || bytes <= 0)
        return INT64_MAX;
    return bytes;
}

/* The least limit in a group and all above it. */
static int64_t least_limit(const char *root, const char *folder, const char *begin, const char *name) {
    char group[PATH_BYTES / 2], path[PATH_BYTES];
    int64_t least = INT64_MAX;
    own_group(root, begin, group, sizeof group);
    for (;;) {
        snprintf(path, sizeof path, "%.500s%s%.1500s/%s", root, folder, group, name);
        int64_t limit = read_bytes(path);
        least = limit < least ? limit : least;
        char *slash = strrchr(group, '/');
        if (!slash)
            return least;
        *slash = '\0';
    }
}

int64_t memory_limit(const char *root) {
    int64_t now = least_limit(root, "/sys/fs/cgroup", "0::/", "memory.max");
    int64_t old = least_limit(root, "/sys/fs/cgroup/memory", ":memory:/", "memory.limit_in_bytes");
    return now < old ? now : old;
}
