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

/* The path of this process's group below /sys/fs/cgroup: the line "0::/path" of /proc/self/cgroup. */
static void own_group(const char *root, char *group, int bytes) {
    char path[PATH_BYTES];
    group[0] = '\0';
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *file = fopen(path, "r");
    if (!file)
        return;
    while (fgets(group, bytes, file))
        if (strncmp(group, "0::/", 4) == 0) {
            memmove(group, group + 3, strlen(group + 3) + 1);
            group[strcspn(group, "\n")] = '\0';
            fclose(file);
            return;
        }
    fclose(file);
    group[0] = '\0';
}

int32_t processor_quota(const char *root) {
    char group[PATH_BYTES / 2], folder[PATH_BYTES];
    int32_t limit = limit_version_1(root);
    own_group(root, group, sizeof group);
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
