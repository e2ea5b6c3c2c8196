/* Layouts of ranks over nodes and supernodes, and the shards they hold. */
#include "cluster/layout.h"
#include "cluster/exchange.h" /* shard_of */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h> /* calloc, free */
#include <string.h> /* strstr */

#include <cmocka.h>

static void one_rank(void **state) {
    (void)state;
    struct layout layout;
    const int32_t nodes[] = {41};
    assert_int_equal(layout_make(nodes, 1, 0, &layout), OK);
    assert_int_equal(layout.count, 1);
    assert_int_equal(layout.nodes, 1);
    assert_int_equal(layout.supernodes, 1);
    assert_int_equal(layout.ranks[0].node_count, 1);
    layout_free(&layout);
    layout_free(&layout); /* twice does no harm */
}

static void whole_nodes_in_order(void **state) {
    (void)state;
    enum { RANKS = 128, PER_NODE = 8, SUPERNODE = 64 };
    int32_t nodes[RANKS];
    struct layout layout;
    layout_fill_nodes(nodes, RANKS, PER_NODE);
    assert_int_equal(layout_make(nodes, RANKS, SUPERNODE, &layout), OK);
    assert_int_equal(layout.nodes, 16);
    assert_int_equal(layout.supernodes, 2);
    assert_int_equal(layout.supernode_size, SUPERNODE);
    for (int32_t r = 0; r < RANKS; r++) {
        assert_int_equal(layout.ranks[r].node, r / PER_NODE);
        assert_int_equal(layout.ranks[r].node_rank, r % PER_NODE);
        assert_int_equal(layout.ranks[r].node_count, PER_NODE);
        assert_int_equal(layout.ranks[r].supernode, r / SUPERNODE);
        assert_int_equal(layout.ranks[r].supernode_rank, r % SUPERNODE);
    }
    layout_free(&layout);
}

/* A launcher that deals ranks out to nodes in turn: supernodes are whole nodes all the same. */
static void nodes_in_turn(void **state) {
    (void)state;
    const int32_t nodes[] = {7, 3, 9, 5, 7, 3, 9, 5};
    const int32_t supernodes[] = {0, 0, 1, 1, 0, 0, 1, 1}, places[] = {0, 2, 0, 2, 1, 3, 1, 3};
    struct layout layout;
    assert_int_equal(layout_make(nodes, 8, 4, &layout), OK);
    assert_int_equal(layout.nodes, 4);
    for (int32_t r = 0; r < 8; r++) {
        assert_int_equal(layout.ranks[r].node, r % 4);
        assert_int_equal(layout.ranks[r].node_rank, r / 4);
        assert_int_equal(layout.ranks[r].supernode, supernodes[r]);
        assert_int_equal(layout.ranks[r].supernode_rank, places[r]);
    }
    layout_free(&layout);
}

static void nodes_of_unequal_size(void **state) {
    (void)state;
    const int32_t nodes[] = {0, 0, 0, 1, 2, 2, 2, 2};
    struct layout layout;
    assert_int_equal(layout_make(nodes, 8, 4, &layout), OK);
    assert_int_equal(layout.ranks[3].supernode, 0);
    assert_int_equal(layout.ranks[3].supernode_rank, 3);
    assert_int_equal(layout.ranks[4].supernode, 1);
    assert_int_equal(layout.ranks[3].node_count, 1);
    layout_free(&layout);
}

/* On one node supernodes may be smaller than the node: so small layouts can be tried out. */
static void parts_of_one_node(void **state) {
    (void)state;
    const int32_t nodes[6] = {0};
    struct layout layout;
    assert_int_equal(layout_make(nodes, 6, 2, &layout), OK);
    assert_int_equal(layout.supernodes, 3);
    assert_int_equal(layout.ranks[5].supernode, 2);
    assert_int_equal(layout.ranks[5].supernode_rank, 1);
    layout_free(&layout);
}

static void refusals(void **state) {
    (void)state;
    int32_t nodes[16];
    struct layout layout;
    layout_fill_nodes(nodes, 16, 8);
    assert_int_equal(layout_make(nodes, 16, 5, &layout), ERROR_USAGE);
    assert_non_null(strstr(failure_message(), "16 ranks, which is no multiple of 5"));
    assert_null(layout.ranks);
    assert_int_equal(layout_make(nodes, 16, 4, &layout), ERROR_USAGE);
    assert_non_null(strstr(failure_message(), "would divide node 0, which has 8 ranks"));
    assert_null(layout.ranks);
    const int32_t uneven[] = {0, 0, 0, 1, 1, 1, 1, 1};
    assert_int_equal(layout_make(uneven, 8, 4, &layout), ERROR_USAGE);
    assert_non_null(strstr(failure_message(), "node 1"));
    assert_int_equal(layout_make(nodes, 16, 32, &layout), ERROR_USAGE);
    assert_int_equal(layout_make(nodes, 16, -1, &layout), ERROR_USAGE);
    assert_int_equal(layout_make(nodes, 0, 0, &layout), ERROR_USAGE);
}

/* Shards cover everything once, in order, longer ones first, and shard_owner is the inverse. */
static void shards(void **state) {
    (void)state;
    for (int32_t size = 1; size <= 40; size++)
        for (int64_t total = 0; total <= 100; total++) {
            int64_t next = 0, before = INT64_MAX;
            for (int32_t r = 0; r < size; r++) {
                struct shard shard = shard_of(total, size, r);
                assert_int_equal(shard.first, next);
                assert_true(shard.count <= before && (r == 0 || before - shard.count <= 1));
                for (int64_t i = shard.first; i < shard.first + shard.count; i++)
                    assert_int_equal(shard_owner(total, size, i), r);
                next += shard.count;
                before = shard.count;
            }
            assert_int_equal(next, total);
            assert_true(total == 0 || shard_of(total, size, 0).count - before <= 1);
        }
    /* Tables of billions of rows */
    struct shard last = shard_of(5000000007, 128, 127);
    assert_int_equal(last.first + last.count, 5000000007);
    assert_int_equal(shard_owner(5000000007, 128, 5000000006), 127);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank),
        cmocka_unit_test(whole_nodes_in_order),
        cmocka_unit_test(nodes_in_turn),
        cmocka_unit_test(nodes_of_unequal_size),
        cmocka_unit_test(parts_of_one_node),
        cmocka_unit_test(refusals),
        cmocka_unit_test(shards),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
