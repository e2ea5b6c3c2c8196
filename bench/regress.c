/* Runs kernels and text paths on fixed inputs, once each, for counting their instructions: see regress.py.
 *
 *   bench-regress SET SOURCE_FOLDER [NAME ...]
 *   bench-regress --compiler            what it was compiled by, on which the counts depend
 *
 * SET: an instruction set of the CPU backend, or "text" for what happens to request lines. Each case (or those named) prints its
 * name and runs twice with one thread: to warm up, and inside regress_counted, the function by which callgrind counts
 * and writes one file after the other.
 */
#include "bench/cases/cases.h"
#include "recipe/toolkit.h"

#include <stdio.h>  /* printf, fopen */
#include <stdlib.h> /* exit, realloc */
#include <string.h> /* strcmp */

struct regress {
    struct case_options cases;
    /* text */
    struct tokenizer *tokenizer;
    struct toolkit *toolkit;
    struct json_document *document;
    struct buffer lines;
    struct token_list ids;
    char **wanted;
    int wanted_count;
};

static void check(enum result status) {
    if (status == OK)
        return;
    fprintf(stderr, "bench-regress: %s\n", failure_message());
    exit(1);
}

/* ---- counting ---- */

typedef void work(struct regress *regress, void *data);

void regress_counted(work *run, struct regress *regress, void *data);

/* Callgrind knows it by this name, so it must stay a function of its own: weak keeps compilers from cloning it. */
__attribute__((noinline, weak)) void regress_counted(work *run, struct regress *regress, void *data) {
    run(regress, data);
    __asm__ volatile("" ::: "memory"); /* no tail call: callgrind counts until this function returns */
}

static bool is_wanted(const struct regress *regress, const char *name) {
    for (int i = 0; i < regress->wanted_count; i++)
        if (strcmp(regress->wanted[i], name) == 0)
            return true;
    return regress->wanted_count == 0;
}

static void count(struct regress *regress, const char *name, work *run, void *data) {
    printf("%s\n", name);
    fflush(stdout);
    run(regress, data);
    regress_counted(run, regress, data);
}

/* ---- kernels ---- */

static void run_case(struct regress *regress, void *data) {
    (void)regress;
    case_call(data, 0);
}

typedef struct bench_case *maker(const struct case_options *options);

static struct bench_case *make_fp8(const struct case_options *options) {
    return case_product(options, "", WEIGHT_FP8_TILE, 128, 1024);
}
static struct bench_case *make_fp4(const struct case_options *options) {
    return case_product(options, "", WEIGHT_FP4_ROW, 128, 1024);
}
static struct bench_case *make_bf16(const struct case_options *options) {
    return case_product(options, "", WEIGHT_BF16, 128, 1024);
}
static struct bench_case *make_grouped(const struct case_options *options) {
    return case_grouped_product(options, "", 4, 256, 256);
}
static struct bench_case *make_experts(const struct case_options *options) {
    return case_experts(options, "", 3, 16, 64, 512);
}
static struct bench_case *make_attend(const struct case_options *options) {
    return case_attend(options, "", 8, 256, 256, 1024);
}
static struct bench_case *make_choose(const struct case_options *options) {
    return case_choose(options, "", 16, 256, 1024);
}
static struct bench_case *make_route(const struct case_options *options) {
    return case_route(options, "", 6, 64);
}
static struct bench_case *make_encode(const struct case_options *options) {
    return case_rows(options, "", "encode", 1024);
}
static struct bench_case *make_encode_fine(const struct case_options *options) {
    return case_rows(options, "", "encode_fine", 1024);
}
static struct bench_case *make_mix(const struct case_options *options) {
    return case_rows(options, "", "mix", 1024);
}

static const struct {
    const char *name;
    maker *make;
    int32_t tokens;
} kernel_cases[] = {
    {"product fp8, 1 token", make_fp8, 1},
    {"product fp8, 8 tokens", make_fp8, 8},
    {"product fp8, 64 tokens", make_fp8, 64},
    {"product fp4, 1 token", make_fp4, 1},
    {"product fp4, 8 tokens", make_fp4, 8},
    {"product fp4, 64 tokens", make_fp4, 64},
    {"product bf16, 1 token", make_bf16, 1},
    {"product bf16, 8 tokens", make_bf16, 8},
    {"product bf16, 64 tokens", make_bf16, 64},
    {"grouped_product fp8, 1 token", make_grouped, 1},
    {"grouped_product fp8, 64 tokens", make_grouped, 64},
    {"experts fp4, 1 token", make_experts, 1},
    {"experts fp4, 32 tokens", make_experts, 32},
    {"attend, 1 token", make_attend, 1},
    {"attend, 4 tokens", make_attend, 4},
    {"choose, 1 token", make_choose, 1},
    {"choose, 4 tokens", make_choose, 4},
    {"encode fp8, 64 tokens", make_encode, 64},
    {"encode fine fp4, 64 tokens", make_encode_fine, 64},
    {"mix, 1 token", make_mix, 1},
    {"mix, 16 tokens", make_mix, 16},
    {"route, 64 tokens", make_route, 64},
};

static void count_kernels(struct regress *regress, const char *instruction_set) {
    check(kernels_cpu_create(1, instruction_set, &regress->cases.kernels));
    const struct kernels *kernels = regress->cases.kernels;
    check(kernels->stream_create(kernels, &regress->cases.stream));
    for (size_t i = 0; i < sizeof kernel_cases / sizeof kernel_cases[0]; i++) {
        if (!is_wanted(regress, kernel_cases[i].name))
            continue;
        regress->cases.most_tokens = kernel_cases[i].tokens;
        struct bench_case *one = kernel_cases[i].make(&regress->cases);
        case_set_tokens(one, kernel_cases[i].tokens);
        count(regress, kernel_cases[i].name, run_case, one);
        case_free(one);
    }
    kernels->stream_free(kernels, regress->cases.stream);
    kernels_free(kernels);
}

/* ---- text ---- */

/* Calls `line` with each line of the requests. */
static void for_each_line(
    struct regress *regress, void (*line)(struct regress *regress, const char *text, size_t bytes)) {
    const char *at = regress->lines.data, *end = at + regress->lines.bytes;
    while (at < end) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        stop = stop != NULL ? stop : end;
        line(regress, at, (size_t)(stop - at));
        at = stop + 1;
    }
}

static void read_line(struct regress *regress, const char *text, size_t bytes) {
    const struct json *root = NULL;
    check(json_parse(regress->document, text, bytes, &root));
}

static void render_line(struct regress *regress, const char *text, size_t bytes) {
    const struct json *root = NULL;
    bool accepted = false;
    check(json_parse(regress->document, text, bytes, &root));
    const struct json *body = json_member(root, "body");
    check(toolkit_render(regress->toolkit, KIND_CHAT, body, &TOOLKIT_DEFAULTS, &accepted));
}

static void run_json(struct regress *regress, void *data) {
    (void)data;
    for_each_line(regress, read_line);
}

static void run_render(struct regress *regress, void *data) {
    (void)data;
    for_each_line(regress, render_line);
}

static void run_encode(struct regress *regress, void *data) {
    (void)data;
    regress->ids.count = 0;
    check(tokenizer_encode(regress->tokenizer, regress->lines.data, regress->lines.bytes, &regress->ids));
}

static void run_decode(struct regress *regress, void *data) {
    struct buffer *text = data;
    buffer_clear(text);
    tokenizer_decode(regress->tokenizer, regress->ids.ids, regress->ids.count, false, text);
}

static void read_file(const char *folder, const char *name, struct buffer *content) {
    char path[4096], piece[1 << 12];
    size_t bytes;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        check(fail_errno(ERROR_INPUT, "%s", path));
    while ((bytes = fread(piece, 1, sizeof piece, file)) > 0)
        buffer_append(content, piece, bytes);
    fclose(file);
}

static void count_text(struct regress *regress, const char *source_folder) {
    static const struct {
        const char *name;
        work *run;
    } text_cases[] = {{"json read", run_json}, {"request render", run_render}, {"tokenize", run_encode},
        {"detokenize", run_decode}};
    char model[4096];
    struct buffer text = {0};
    snprintf(model, sizeof model, "%s/inputs/nano", source_folder);
    check(tokenizer_load(model, &regress->tokenizer));
    check(toolkit_create(regress->tokenizer, &regress->toolkit));
    check(json_document_create(&regress->document));
    read_file(source_folder, "inputs/requests.jsonl", &regress->lines);
    run_encode(regress, NULL); /* what detokenize turns back */
    for (size_t i = 0; i < sizeof text_cases / sizeof text_cases[0]; i++)
        if (is_wanted(regress, text_cases[i].name))
            count(regress, text_cases[i].name, text_cases[i].run, &text);
    buffer_free(&text);
    buffer_free(&regress->lines);
    free(regress->ids.ids);
    json_document_free(regress->document);
    toolkit_free(regress->toolkit);
    tokenizer_free(regress->tokenizer);
}

static void print_compiler(void) {
#ifdef __clang__
    const char *name = "clang";
#else
    const char *name = "gcc";
#endif
#ifdef NDEBUG
    const char *build = "release";
#else
    const char *build = "debug";
#endif
    printf("%s %s, %s\n", name, __VERSION__, build);
}

int main(int argc, char **argv) {
    struct regress regress = {.wanted = argv + 3, .wanted_count = argc - 3};
    if (argc == 2 && strcmp(argv[1], "--compiler") == 0) {
        print_compiler();
        return 0;
    }
    if (argc < 3) {
        fprintf(stderr, "usage: bench-regress SET SOURCE_FOLDER [NAME ...]\n");
        return 2;
    }
    if (strcmp(argv[1], "text") == 0)
        count_text(&regress, argv[2]);
    else
        count_kernels(&regress, argv[1]);
    return 0;
}
