/* Routed experts of the CUDA backend: against the CPU backend, with each kernel, for any number of pairs. */
#include "products_check.h"

enum { EXPERTS = 6, MOST_CHOSEN = 3 };

struct experts_case {
    struct rows x; /* in host memory */
    struct expert_weights experts[EXPERTS];
    const int32_t *chosen;        /* [tokens, MOST_CHOSEN], ascending; -1: none */
    const float *weight;          /* [tokens, MOST_CHOSEN] */
    int32_t tokens, inner, spare; /* spare: pairs that arrays have room for beyond those there are */
    float limit;
};

/* Pairs of tokens [first, first + count) in the order of experts, and where their outputs go. */
struct pair_list {
    int32_t count, start[EXPERTS + 1];
    int32_t *row, *place;
    float *weight;
};

static struct pair_list list_pairs(const struct experts_case *c, int32_t first, int32_t count) {
    size_t most = (size_t)(count * MOST_CHOSEN);
    struct pair_list list = {
        0, {0}, allocate_or_fail(most * 4), allocate_or_fail(most * 4), allocate_or_fail(most * 4)};
    for (int32_t e = 0; e < EXPERTS; e++) {
        for (int32_t i = 0; i < count * MOST_CHOSEN; i++)
            if (c->chosen[first * MOST_CHOSEN + i] == e) {
                list.row[list.count] = first + i / MOST_CHOSEN; /* rows of other tokens lie around */
                list.weight[list.count] = c->weight[first * MOST_CHOSEN + i];
                list.place[list.count++] = i;
            }
        list.start[e + 1] = list.count;
    }
    return list;
}

static void free_pairs(struct pair_list *list) {
    free(list->row);
    free(list->place);
    free(list->weight);
}

static void run_experts(const struct kernels *kernels, struct stream *stream, const void *context,
    int32_t first, int32_t count, void *out) {
    const struct experts_case *c = context;
    struct device d = open_device(kernels, stream);
    struct pair_list list = list_pairs(c, first, count);
    int32_t columns = c->x.columns, room = list.count + c->spare;
    size_t bytes = (size_t)(list.count * columns) * sizeof(float);
    struct expert_weights experts[EXPERTS];
    void *memory[3 * EXPERTS];
    for (int32_t e = 0; e < 3 * EXPERTS; e++) {
        const struct expert_weights *from = &c->experts[e / 3];
        const struct matrix *host = e % 3 == 0 ? &from->w1 : e % 3 == 1 ? &from->w3 : &from->w2;
        struct matrix *to = e % 3 == 0   ? &experts[e / 3].w1
                            : e % 3 == 1 ? &experts[e / 3].w3
                                         : &experts[e / 3].w2;
        assert_int_equal(
            kernels->allocate(kernels, (size_t)kernels->placed_bytes(kernels, host), &memory[e]), OK);
        assert_int_equal(kernels->place(kernels, host, memory[e], to), OK);
    }
    struct rows x = c->x;
    x.data = to_device(&d, c->x.data, (size_t)(c->tokens * c->x.stride));
    int32_t *row = device_array(&d, (size_t)(room + 1) * 4);
    float *weight = device_array(&d, (size_t)(room + 1) * 4), *result = allocate_or_fail(bytes);
    float *to = device_array(&d, bytes);
    int32_t *rows_and_spare = allocate_or_fail((size_t)(room + 1) * 4);
    memset(rows_and_spare, 0x7f, (size_t)(room + 1) * 4); /* beyond the pairs there are: no rows */
    memcpy(rows_and_spare, list.row, (size_t)list.count * 4);
    kernels->copy_in(stream, row, rows_and_spare, (size_t)(room + 1) * 4);
    free(rows_and_spare);
    kernels->copy_in(stream, weight, list.weight, (size_t)list.count * 4);
    struct expert_pairs pairs = {kernels->shares_host_memory ? list.count : room, EXPERTS,
        to_device(&d, list.start, sizeof list.start), row, weight};
    kernels->experts(stream, &x, &pairs, experts, c->limit, to);
    from_device(&d, result, to, bytes);
    memset(out, 0, (size_t)(count * MOST_CHOSEN * columns) * sizeof(float));
    for (int32_t p = 0; p < list.count; p++)
        memcpy((float *)out + (int64_t)list.place[p] * columns, result + (int64_t)p * columns,
            (size_t)columns * sizeof(float));
    for (int32_t e = 0; e < 3 * EXPERTS; e++)
        kernels->release(kernels, memory[e]);
    free_pairs(&list);
    free(result);
    close_device(&d);
}

/* Expert 3 is chosen by nobody, expert 5 by token 0 alone; all others by about half of the tokens, or
 * (crowded) expert 1 by all. */
static int32_t *choose_some(int32_t tokens, bool is_crowded) {
    int32_t *chosen = allocate_or_fail((size_t)(tokens * MOST_CHOSEN) * 4);
    for (int32_t t = 0; t < tokens; t++) {
        int32_t filled = 0;
        for (int32_t i = 0; i < MOST_CHOSEN; i++)
            chosen[t * MOST_CHOSEN + i] = -1;
        for (int32_t e = 0; e < EXPERTS && filled < MOST_CHOSEN; e++) {
            bool is_chosen = is_crowded ? e == 1 : random_bits() % 2 == 0;
            is_chosen = e == 5 ? t == 0 : is_chosen && e != 3;
            if (is_chosen)
                chosen[t * MOST_CHOSEN + filled++] = e;
        }
    }
    return chosen;
}

struct experts_shape {
    enum row_encoding encoding;
    enum weight_format format;
    int32_t columns, inner, tokens;
    bool is_crowded;
};

static struct experts_case open_case(const struct experts_shape *s) {
    float *x = random_floats((size_t)s->tokens * (size_t)s->columns, 1);
    struct experts_case c = {.x = encoded_rows(s->encoding, x, s->tokens, s->columns),
        .chosen = choose_some(s->tokens, s->is_crowded),
        .weight = random_floats((size_t)(s->tokens * MOST_CHOSEN), 1),
        .tokens = s->tokens,
        .inner = s->inner,
        .spare = 5,
        .limit = 10};
    for (int32_t e = 0; e < EXPERTS; e++)
        c.experts[e] = (struct expert_weights){random_matrix(s->format, s->inner, s->columns),
            random_matrix(s->format, s->inner, s->columns), random_matrix(s->format, s->columns, s->inner)};
    free(x);
    return c;
}

static void close_case(struct experts_case *c) {
    for (int32_t e = 0; e < EXPERTS; e++) {
        free_matrix(&c->experts[e].w1);
        free_matrix(&c->experts[e].w3);
        free_matrix(&c->experts[e].w2);
    }
    free(c->x.data);
    free((void *)c->chosen);
    free((void *)c->weight);
}

static struct trial trial_of(const struct experts_case *c, const struct experts_shape *s, char name[100]) {
    /* a hidden value near a tie of FP8 may round the other way, a sixteenth of it at most */
    double tolerance = s->encoding == ROWS_FP8 ? 2e-2 : 1e-5;
    snprintf(name, 100, "experts of format %d, %d x %d, encoding %d, %d tokens", (int)s->format, s->inner,
        s->columns, (int)s->encoding, s->tokens);
    return (struct trial){
        name, run_experts, c, s->tokens, (size_t)(MOST_CHOSEN * s->columns) * sizeof(float), NULL, tolerance};
}

static const struct experts_shape shapes[] = {
    {ROWS_F32, WEIGHT_FP4_ROW, 128, 64, 11, false},
    {ROWS_FP8, WEIGHT_FP4_ROW, 128, 64, 11, false},
    {ROWS_FP8, WEIGHT_FP4_ROW, 96, 160, 90, false},
    {ROWS_FP8, WEIGHT_FP4_ROW, 1056, 96, 40, true},
    {ROWS_FP8, WEIGHT_FP4_ROW, 544, 544, 1, false},
    {ROWS_FP8, WEIGHT_FP8_ROW, 64, 96, 30, false},
    {ROWS_FP8, WEIGHT_FP8_TILE, 64, 32, 9, false},
    {ROWS_F32, WEIGHT_FP8_TILE, 64, 96, 9, false},
    {ROWS_FP4, WEIGHT_FP4_ROW, 64, 64, 9, false},
    {ROWS_F32, WEIGHT_BF16, 40, 24, 6, false},
    {ROWS_F32, WEIGHT_BF16, 33, 21, 6, false},
    {ROWS_FP8, WEIGHT_BF16, 64, 32, 6, false},
    {ROWS_F32, WEIGHT_F32, 7, 5, 6, false},
    {ROWS_FP8, WEIGHT_F32, 32, 64, 6, false},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static void test_experts(void **state) {
    (void)state;
    for (size_t s = 0; s < SHAPES; s++) {
        char name[100];
        struct experts_case c = open_case(&shapes[s]);
        struct trial trial = trial_of(&c, &shapes[s], name);
        compare_backends(&trial);
        close_case(&c);
    }
}

static void test_kernels(void **state) {
    (void)state;
    for (size_t s = 0; s < SHAPES; s++) {
        char name[100];
        struct experts_case c = open_case(&shapes[s]);
        struct trial trial = trial_of(&c, &shapes[s], name);
        compare_kernels(&trial);
        close_case(&c);
    }
}

/* Room for many pairs, few there: the device chooses the kernel, and gives the bits of a call that knew. */
static void test_room(void **state) {
    (void)state;
    static const int32_t rooms[] = {0, 1, 6 * 24, 700, 3000};
    const struct experts_shape s = {ROWS_FP8, WEIGHT_FP4_ROW, 128, 96, 40, false};
    struct experts_case c = open_case(&s);
    struct backends b = open_backends();
    size_t bytes = (size_t)(s.tokens * MOST_CHOSEN * s.columns) * sizeof(float);
    uint8_t *first = allocate_or_fail(bytes), *result = allocate_or_fail(bytes);
    for (size_t i = 0; i < sizeof rooms / sizeof rooms[0]; i++) {
        c.spare = rooms[i];
        run_experts(b.kernels[1], b.stream[1], &c, 0, s.tokens, i == 0 ? first : result);
        if (i > 0 && memcmp(first, result, bytes) != 0)
            fail_msg("with room for %d more pairs the outputs differ", rooms[i]);
    }
    free(first);
    free(result);
    close_backends(&b);
    close_case(&c);
}

/* More pairs of one expert than a tile of tokens, and more than PRODUCT_FEW takes: the tiles of both
 * kernels. */
static void test_many_pairs(void **state) {
    (void)state;
    static const struct experts_shape many[] = {
        {ROWS_FP8, WEIGHT_FP4_ROW, 128, 96, 150, true},
        {ROWS_FP8, WEIGHT_FP4_ROW, 128, 96, 420, false},
        {ROWS_F32, WEIGHT_FP4_ROW, 64, 64, 140, true},
    };
    for (size_t s = 0; s < sizeof many / sizeof many[0]; s++) {
        char name[100];
        struct experts_case c = open_case(&many[s]);
        struct trial trial = trial_of(&c, &many[s], name);
        compare_kernels(&trial);
        close_case(&c);
    }
}

/* An infinity or a NaN in one row reaches that row's outputs alone. */
static void test_infinities(void **state) {
    (void)state;
    const struct experts_shape s = {ROWS_F32, WEIGHT_FP4_ROW, 64, 64, 8, false};
    struct experts_case c = open_case(&s);
    float *x = c.x.data;
    x[2 * 64 + 3] = INFINITY;
    x[5 * 64 + 40] = NAN;
    x[6 * 64 + 1] = -3e38f;
    char name[100];
    struct trial trial = trial_of(&c, &s, name);
    compare_backends(&trial);
    compare_kernels(&trial);
    close_case(&c);
}

static void test_no_pairs(void **state) {
    (void)state;
    struct backends b = open_backends();
    struct device d = open_device(b.kernels[1], b.stream[1]);
    const struct experts_shape s = {ROWS_FP8, WEIGHT_FP4_ROW, 64, 64, 1, false};
    struct experts_case c = open_case(&s);
    struct rows x = c.x;
    x.data = to_device(&d, c.x.data, (size_t)c.x.stride);
    int32_t start[EXPERTS + 1] = {0};
    float *out = device_array(&d, 4 * 64 * sizeof(float)), found[4 * 64];
    /* room for four pairs, none there: nothing is written */
    struct expert_pairs pairs = {
        4, EXPERTS, to_device(&d, start, sizeof start), device_array(&d, 16), device_array(&d, 16)};
    b.kernels[1]->experts(b.stream[1], &x, &pairs, c.experts, 10, out);
    from_device(&d, found, out, sizeof found);
    for (size_t i = 0; i < sizeof found / sizeof found[0]; i++)
        assert_true(found[i] == 0);
    pairs.count = 0;
    b.kernels[1]->experts(b.stream[1], &x, &pairs, NULL, 10, NULL);
    close_device(&d);
    close_case(&c);
    close_backends(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_experts),
        cmocka_unit_test(test_kernels),
        cmocka_unit_test(test_many_pairs),
        cmocka_unit_test(test_room),
        cmocka_unit_test(test_infinities),
        cmocka_unit_test(test_no_pairs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
