/* Processor quotas, read from imitations of /proc and /sys. */
#include "cluster/quota.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>  /* FILE */
#include <stdlib.h> /* mkdtemp, system */
#include <string.h> /* strrchr */
#include <sys/stat.h>

#include <cmocka.h>

static char root[] = "/tmp/nocturne-quota-XXXXXX";

/* Writes root/path, folders and all. */
static void put(const char *path, const char *text) {
    char full[512];
    snprintf(full, sizeof full, "%s%s", root, path);
    for (char *slash = full + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        mkdir(full, 0700);
        *slash = '/';
    }
    FILE *file = fopen(full, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void clean(void) {
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    assert_int_equal(system(command), 0);
    assert_int_equal(mkdir(root, 0700), 0);
}

static void quotas(void **state) {
    (void)state;
    assert_non_null(mkdtemp(root));
    assert_int_equal(processor_quota(root), 0); /* no such files */
    put("/sys/fs/cgroup/cpu.max", "max 100000\n");
    assert_int_equal(processor_quota(root), 0);
    put("/sys/fs/cgroup/cpu.max", "200000 100000\n"); /* a container: its own group is the root */
    put("/proc/self/cgroup", "0::/\n");
    assert_int_equal(processor_quota(root), 2);
    put("/sys/fs/cgroup/cpu.max", "50000 100000\n");
    assert_int_equal(processor_quota(root), 1);
    put("/sys/fs/cgroup/cpu.max", "250000 100000\n");
    assert_int_equal(processor_quota(root), 3);

    /* A job deep in the tree: the tightest limit counts, wherever it stands. */
    put("/proc/self/cgroup", "3:cpuset:/elsewhere\n0::/system.slice/job_7/step_0\n");
    put("/sys/fs/cgroup/cpu.max", "max 100000\n");
    put("/sys/fs/cgroup/system.slice/job_7/cpu.max", "400000 100000\n");
    put("/sys/fs/cgroup/system.slice/job_7/step_0/cpu.max", "800000 100000\n");
    assert_int_equal(processor_quota(root), 4);
    put("/sys/fs/cgroup/system.slice/job_7/step_0/cpu.max", "max 100000\n");
    assert_int_equal(processor_quota(root), 4);

    clean();
    put("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    assert_int_equal(processor_quota(root), 0);
    put("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "600000\n");
    assert_int_equal(processor_quota(root), 6);

    clean();
    put("/sys/fs/cgroup/cpu.max", "nonsense\n");
    put("/proc/self/cgroup", "0::/a/b\nmore");
    assert_int_equal(processor_quota(root), 0);
    put("/sys/fs/cgroup/cpu.max", "100000 0\n");
    assert_int_equal(processor_quota(root), 0);
    put("/sys/fs/cgroup/cpu.max", "1e300 1e-300\n");
    assert_int_equal(processor_quota(root), 0);
    clean();
    assert_int_equal(remove(root), 0);
}

static void memory(void **state) {
    (void)state;
    clean();
    assert_true(memory_limit(root) == INT64_MAX);
    put("/proc/self/cgroup", "4:memory:/slurm/job_9\n0::/a/b\n");
    put("/sys/fs/cgroup/memory.max", "max\n");
    assert_true(memory_limit(root) == INT64_MAX);
    put("/sys/fs/cgroup/a/memory.max", "5000\n");
    put("/sys/fs/cgroup/a/b/memory.max", "6000\n");
    assert_int_equal(memory_limit(root), 5000);
    put("/sys/fs/cgroup/memory/slurm/job_9/memory.limit_in_bytes", "4000\n");
    assert_int_equal(memory_limit(root), 4000);
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "3000\n");
    assert_int_equal(memory_limit(root), 3000);
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "-5\n");
    assert_int_equal(memory_limit(root), 4000);
    clean();
    assert_int_equal(remove(root), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(quotas), cmocka_unit_test(memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
