/* Places on recorded and described machines, and what `nocturne topo` prints of them, compared with tests/machines/NAME.expected.
 * With NOCTURNE_WRITE_EXPECTED=1 those files are written anew: look at the difference before you keep it. */
#include "cluster/topology.h"
#include "cluster/devices.h"
#include "cluster/topo.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>  /* FILE */
#include <stdlib.h> /* getenv, mkstemp */
#include <string.h> /* strcmp */
#include <unistd.h> /* unlink, write */

#include <cmocka.h>

#define MACHINES SOURCE_DIR "/tests/machines/"

/* ---- the printed layouts ---- */

static const struct printed {
    const char *expected; /* NAME.expected */
    struct topo_options options;
} printed[] = {
    {"8-accelerators", {.topology = MACHINES "two-sockets-8-cuda.xml", .experts = 384}},
    {"64-accelerators", {.topology = MACHINES "eight-numa-8-opencl.xml",
                            .ranks = 64,
                            .experts = 384,
                            .engram_rows = 1000003}},
    {"128-accelerators-in-two-supernodes",
        {.topology = MACHINES "two-sockets-8-cuda.xml", .ranks = 128, .supernode = 64, .experts = 384}},
    {"fewer-ranks-than-accelerators",
        {.topology = MACHINES "two-sockets-8-cuda.xml", .ranks = 6, .ranks_per_node = 3, .experts = 8}},
    {"accelerators-near-adapters", {.topology = MACHINES "two-sockets-4-cuda-2-adapters.xml",
                                       .ranks = 4,
                                       .ranks_per_node = 2,
                                       .experts = 8}},
    {"cores-of-eight-numa-nodes", {.topology = MACHINES "two-sockets-8-numa.txt",
                                      .ranks = 12,
                                      .ranks_per_node = 6,
                                      .experts = 5,
                                      .engram_rows = 7}},
    {"more-ranks-than-cores",
        {.topology = MACHINES "one-socket-6-cores.txt", .ranks = 8, .supernode = 4, .experts = 16}},
    /* Recorded by lstopo; the others are described or generated. */
    {"recorded-virtual-machine",
        {.topology = MACHINES "virtual-machine-2-cores.xml", .ranks = 4, .experts = 32}},
    {"no-cores", {.topology = MACHINES "no-cores.txt", .ranks = 3, .experts = 2}},
};

static void write_file(const char *path, const struct buffer *text) {
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(text->data, 1, text->bytes, file), text->bytes);
    assert_int_equal(fclose(file), 0);
}

static void compare_file(const char *path, const struct buffer *text) {
    enum { MOST = 1 << 16 };
    static char expected[MOST];
    FILE *file = fopen(path, "rb");
    if (!file)
        fail_msg("%s is missing", path);
    size_t bytes = fread(expected, 1, MOST - 1, file);
    fclose(file);
    expected[bytes] = '\0';
    assert_string_equal(text->data, expected);
}

static void layouts_as_printed(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof printed / sizeof *printed; i++) {
        struct buffer text = {0};
        char path[4096];
        if (topo_print(&printed[i].options, &text) != OK)
            fail_msg("%s: %s", printed[i].expected, failure_message());
        snprintf(path, sizeof path, MACHINES "%s.expected", printed[i].expected);
        if (getenv("NOCTURNE_WRITE_EXPECTED"))
            write_file(path, &text);
        compare_file(path, &text);
        buffer_free(&text);
    }
}

/* ---- places ---- */

static struct topology *load(const char *source) {
    struct topology *topology;
    if (topology_load(source, &topology) != OK)
        fail_msg("%s", failure_message());
    return topology;
}

/* Every core is somebody's, and nobody's twice, as long as there are cores enough; else every rank has one. */
static void shares_cover_the_cores(void **state) {
    (void)state;
    struct topology *topology = load("package:2 numa:2 core:5 pu:2");
    int32_t cores = topology_cores(topology);
    assert_int_equal(cores, 20);
    for (int32_t ranks = 1; ranks <= 50; ranks++) {
        int32_t next = 0;
        for (int32_t r = 0; r < ranks; r++) {
            struct rank_place place;
            assert_int_equal(topology_place(topology, r, ranks, &place), OK);
            assert_true(place.cores >= 1 && place.first_core + place.cores <= cores);
            assert_true(place.numa_node == place.first_core / 5 || place.numa_node == -1);
            assert_int_equal(place.accelerator, -1);
            if (ranks > cores) {
                assert_true(place.first_core == next || place.first_core == next - 1);
                assert_int_equal(place.cores, 1);
                next = place.first_core + 1;
                continue;
            }
            assert_false(place.shared);
            assert_int_equal(place.first_core, next);
            next += place.cores;
        }
        assert_int_equal(next, cores);
    }
    topology_free(topology);
}

static void accelerators_share_their_locality(void **state) {
    (void)state;
    struct topology *topology = load(MACHINES "two-sockets-8-cuda.xml");
    assert_int_equal(topology_accelerators(topology), 8); /* each has two names, CUDA's and NVML's */
    for (int32_t r = 0; r < 8; r++) {
        struct rank_place place;
        char name[16];
        snprintf(name, sizeof name, "cuda%d", r);
        assert_int_equal(topology_place(topology, r, 8, &place), OK);
        assert_int_equal(place.accelerator, r);
        assert_string_equal(place.accelerator_name, name);
        assert_int_equal(place.first_core, r * 12);
        assert_int_equal(place.cores, 12);
        assert_int_equal(place.numa_node, r / 4);
    }
    struct rank_place place;
    assert_int_equal(topology_place(topology, 8, 8, &place), ERROR_INTERNAL);
    topology_free(topology);
}

/* ---- devices ---- */

/* Views of `count` ranks that all see the four devices of a machine, in CUDA's order. */
static void see_all(struct device_view *views, int32_t count, struct topology *topology) {
    for (int32_t r = 0; r < count; r++) {
        views[r] = (struct device_view){.rank = 10 + r, .count = 4};
        for (int32_t i = 0; i < 4; i++) {
            struct topology_device device;
            topology_device(topology, i, &device);
            memcpy(views[r].addresses[i], device.address, sizeof device.address);
        }
    }
}

/* Cores 0 to 7 are the first socket's, 8 to 15 the second's. */
static void sit_on(struct device_view *view, int32_t first, int32_t count) {
    view->processors = (struct processor_set){{(((uint64_t)1 << count) - 1) << first}};
}

static void where_accelerators_are(void **state) {
    (void)state;
    static const struct topology_device expected[] = {{"cuda0", "0000:11:00.0", 0, "mlx5_0", 1},
        {"cuda1", "0000:12:00.0", 0, "mlx5_0", 0}, {"cuda2", "0000:51:00.0", 1, "mlx5_1", 1},
        {"cuda3", "0000:52:00.0", 1, "mlx5_1", 0}};
    struct topology *topology = load(MACHINES "two-sockets-4-cuda-2-adapters.xml");
    assert_int_equal(topology_accelerators(topology), 4);
    for (int32_t i = 0; i < 4; i++) {
        struct topology_device device;
        topology_device(topology, i, &device);
        assert_string_equal(device.name, expected[i].name);
        assert_string_equal(device.address, expected[i].address);
        assert_string_equal(device.network, expected[i].network);
        assert_int_equal(device.numa_node, expected[i].numa_node);
        assert_int_equal(device.network_steps, expected[i].network_steps);
        assert_int_equal(topology_device_at(topology, device.address), i);
        struct device_view view;
        sit_on(&view, 3, 2);
        assert_int_equal(topology_steps(topology, &view.processors, i), i < 2 ? 0 : 3);
        sit_on(&view, 7, 2);
        assert_int_equal(topology_steps(topology, &view.processors, i), 0);
    }
    assert_int_equal(topology_device_at(topology, "0000:13:00.0"), -1); /* an adapter */
    topology_free(topology);
    topology = load("package:2 numa:2 core:2 pu:1");
    assert_int_equal(topology_accelerators(topology), 0);
    topology_free(topology);
}

static void chooses(
    struct topology *topology, const struct device_view *views, int32_t count, const int32_t *expected) {
    int32_t chosen[8];
    if (devices_assign(topology, "host", views, count, chosen) != OK)
        fail_msg("%s", failure_message());
    for (int32_t r = 0; r < count; r++)
        assert_int_equal(chosen[r], expected[r]);
}

static void nearest_devices(void **state) {
    (void)state;
    struct topology *topology = load(MACHINES "two-sockets-4-cuda-2-adapters.xml");
    struct device_view views[4];
    see_all(views, 4, topology);
    chooses(topology, views, 4, (int32_t[]){0, 1, 2, 3}); /* bound to nothing */
    /* The launcher has dealt ranks out to sockets in turn. */
    for (int32_t r = 0; r < 4; r++)
        sit_on(&views[r], r % 2 * 8, 4);
    chooses(topology, views, 4, (int32_t[]){0, 2, 1, 3});
    /* Three on one socket: one has to cross. */
    for (int32_t r = 0; r < 3; r++)
        sit_on(&views[r], 8 + 2 * r, 2);
    sit_on(&views[3], 14, 2);
    chooses(topology, views, 4, (int32_t[]){0, 1, 2, 3});
    /* Fewer ranks than devices: those with a network beside them. */
    sit_on(&views[0], 8, 4);
    sit_on(&views[1], 0, 4);
    chooses(topology, views, 2, (int32_t[]){3, 1});
    /* One rank sees one device only, and not the nearest. */
    views[0].count = 1;
    memcpy(views[0].addresses[0], "0000:12:00.0", 13);
    chooses(topology, views, 2, (int32_t[]){0, 0});
    /* Devices the topology does not know go by order. */
    for (int32_t r = 0; r < 2; r++) {
        views[r].count = 2;
        memcpy(views[r].addresses[0], "0001:00:00.0", 13);
        memcpy(views[r].addresses[1], "0002:00:00.0", 13);
    }
    chooses(topology, views, 2, (int32_t[]){0, 1});
    topology_free(topology);
}

/* The least sum, against all assignments. */
static void least_sum(void **state) {
    (void)state;
    struct topology *topology = load(MACHINES "two-sockets-4-cuda-2-adapters.xml");
    static const int32_t orders[24][4] = {{0, 1, 2, 3}, {0, 1, 3, 2}, {0, 2, 1, 3}, {0, 2, 3, 1},
        {0, 3, 1, 2}, {0, 3, 2, 1}, {1, 0, 2, 3}, {1, 0, 3, 2}, {1, 2, 0, 3}, {1, 2, 3, 0}, {1, 3, 0, 2},
        {1, 3, 2, 0}, {2, 0, 1, 3}, {2, 0, 3, 1}, {2, 1, 0, 3}, {2, 1, 3, 0}, {2, 3, 0, 1}, {2, 3, 1, 0},
        {3, 0, 1, 2}, {3, 0, 2, 1}, {3, 1, 0, 2}, {3, 1, 2, 0}, {3, 2, 0, 1}, {3, 2, 1, 0}};
    for (uint32_t trial = 0; trial < 256; trial++) {
        struct device_view views[4];
        int32_t chosen[4], steps = 0, least = INT32_MAX;
        see_all(views, 4, topology);
        for (int32_t r = 0; r < 4; r++)
            sit_on(&views[r], 4 * (int32_t)(trial >> 2 * r & 3), 4);
        assert_int_equal(devices_assign(topology, "host", views, 4, chosen), OK);
        for (int32_t r = 0; r < 4; r++)
            steps += topology_steps(topology, &views[r].processors, chosen[r]);
        for (int32_t o = 0; o < 24; o++) {
            int32_t sum = 0;
            for (int32_t r = 0; r < 4; r++)
                sum += topology_steps(topology, &views[r].processors, orders[o][r]);
            least = sum < least ? sum : least;
        }
        assert_int_equal(steps, least);
    }
    topology_free(topology);
}

static void refuses_devices(
    struct topology *topology, const struct device_view *views, int32_t count, const char *text) {
    int32_t chosen[8];
    assert_int_equal(devices_assign(topology, "host", views, count, chosen), ERROR_USAGE);
    if (!strstr(failure_message(), text) || !strstr(failure_message(), "--gpus-per-task"))
        fail_msg("'%s' lacks '%s' or the fix", failure_message(), text);
}

static void no_device_for_each(void **state) {
    (void)state;
    struct topology *topology = load(MACHINES "two-sockets-4-cuda-2-adapters.xml");
    struct device_view views[5];
    see_all(views, 5, topology);
    refuses_devices(topology, views, 5, "5 ranks on host, from rank 10 to rank 14, have 4 devices");
    views[1].count = views[3].count = 1; /* both the first */
    refuses_devices(
        topology, views, 4, "rank 11 and rank 13 on host have one device, 0000:11:00.0, for both");
    views[2].count = 0;
    refuses_devices(topology, views, 3, "rank 12 on host sees no device");
    for (int32_t r = 0; r < 3; r++)
        views[r].count = 2; /* the first two, for three ranks */
    views[3].count = 4;
    refuses_devices(topology, views, 4, "4 ranks on host");
    topology_free(topology);
}

/* This machine: whatever it is, one rank has all the cores, and a process can be bound to them. */
static void this_machine(void **state) {
    (void)state;
    struct topology *topology = load(NULL);
    struct rank_place place;
    assert_int_equal(topology_place(topology, 0, 1, &place), OK);
    assert_true(place.cores >= 1);
    assert_int_equal(topology_bind(topology, &place), OK);
    topology_free(topology);
    topology_free(NULL);
    assert_int_equal(topology_load_whole(&topology), OK);
    assert_true(topology_cores(topology) >= place.cores);
    assert_int_equal(topology_bind(topology, &place), ERROR_INTERNAL);
    topology_free(topology);
    topology = load("core:2 pu:1");
    assert_int_equal(topology_place(topology, 0, 1, &place), OK);
    assert_int_equal(topology_bind(topology, &place), ERROR_INTERNAL);
    topology_free(topology);
}

/* ---- refusals ---- */

static void refuses(const char *source, enum result code, const char *text) {
    struct topology *topology;
    assert_int_equal(topology_load(source, &topology), code);
    assert_null(topology);
    if (!strstr(failure_message(), text))
        fail_msg("'%s' lacks '%s'", failure_message(), text);
}

static void wrong_sources(void **state) {
    (void)state;
    refuses("", ERROR_USAGE, "neither a file nor a description");
    refuses("pakage:2 core:4", ERROR_USAGE, "pakage");
    refuses("core:-3", ERROR_USAGE, "core:-3");
    refuses("core:70000 pu:1", ERROR_USAGE, "65536");
    refuses("package:99999 numa:99999 core:99999 pu:99999", ERROR_USAGE, "65536");
    refuses("core:99999999999999999999999999 pu:1", ERROR_USAGE, "65536");
    refuses("/nowhere/machine.xml", ERROR_IO, "No such file");
    refuses("machine.xml", ERROR_IO, "No such file");
    refuses(MACHINES, ERROR_USAGE, "not a file");
    refuses(SOURCE_DIR "/CMakeLists.txt", ERROR_INPUT, "CMakeLists.txt");
}

/* A recorded machine cut off anywhere is refused (hwloc itself crashes on some of these); with bytes changed it may
 * still be a machine, but must not end the program. */
static void damaged_recordings(void **state) {
    (void)state;
    enum { MOST = 1 << 17 };
    static char text[MOST];
    FILE *file = fopen(MACHINES "eight-numa-8-opencl.xml", "rb");
    assert_non_null(file);
    size_t bytes = fread(text, 1, MOST, file);
    fclose(file);
    char path[] = "/tmp/nocturne-topology-XXXXXX";
    int descriptor = mkstemp(path);
    assert_true(descriptor >= 0);
    uint64_t random = 12345;
    for (int32_t trial = 0; trial < 60; trial++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        size_t at = (size_t)(random >> 33) % (bytes - 20);
        bool cut = trial % 2 == 0;
        char before = text[at];
        text[at] = cut ? before : (char)("0123456789<>\"=/ x,f-"[(random >> 20) % 20]);
        assert_int_equal(ftruncate(descriptor, 0), 0);
        size_t length = cut ? at : bytes;
        assert_int_equal(pwrite(descriptor, text, length, 0), (ssize_t)length);
        struct topology *topology;
        enum result status = topology_load(path, &topology);
        if (status != ERROR_INPUT && (cut || status != OK))
            fail_msg("damage at byte %zu, trial %d: result %d, %s", at, trial, status, failure_message());
        topology_free(topology);
        text[at] = before;
    }
    close(descriptor);
    unlink(path);
}

static void impossible_runs(void **state) {
    (void)state;
    struct buffer text = {0};
    struct topo_options options = {
        .topology = "core:4 pu:1", .ranks = 8, .ranks_per_node = 4, .supernode = 2, .experts = 1};
    assert_int_equal(topo_print(&options, &text), ERROR_USAGE);
    options.supernode = 3;
    assert_int_equal(topo_print(&options, &text), ERROR_USAGE);
    options.ranks = -1;
    assert_int_equal(topo_print(&options, &text), ERROR_USAGE);
    buffer_free(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layouts_as_printed),
        cmocka_unit_test(shares_cover_the_cores),
        cmocka_unit_test(accelerators_share_their_locality),
        cmocka_unit_test(where_accelerators_are),
        cmocka_unit_test(nearest_devices),
        cmocka_unit_test(least_sum),
        cmocka_unit_test(no_device_for_each),
        cmocka_unit_test(this_machine),
        cmocka_unit_test(wrong_sources),
        cmocka_unit_test(damaged_recordings),
        cmocka_unit_test(impossible_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
