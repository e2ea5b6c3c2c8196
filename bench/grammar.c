/* Times grammars on one core: compiling, and the mask before each token of texts that fit.
 *
 *   grammar_sets.py > SETS.jsonl
 *   bench-grammar [--each] TOKENIZER_DIR SETS.jsonl
 *
 * Each text is followed twice on one compiled grammar: "cold" for the first time, "warm" for the second. A grammar's
 * texts share its tables, as answers of one campaign do. Output: one JSON line for the vocabulary and one per set (with
 * --each: per grammar); processor time of the thread. Ends with an error when a text does not fit its grammar or a mask
 * lacks the text's next token. */
#include "grammar/grammar.h"
#include "base/json.h"
#include "recipe/request_grammar.h"
#include "recipe/tokenizer.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { END_OF_SENTENCE = 1, COMPILATIONS = 5 };

struct samples {
    double *values; /* microseconds, or bytes */
    size_t count, capacity;
};

struct figures {
    char name[64];
    struct samples compile, create, mask[2], accept[2], bytes; /* mask, accept: cold, warm */
};

static struct tokenizer *tokenizer;
static struct grammar_vocabulary *vocabulary;
static uint64_t *mask;

static void check(enum result status, const char *name) {
    if (status == OK)
        return;
    fprintf(stderr, "bench-grammar: %s: %s\n", name, failure_message());
    exit(1);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return 1e6 * (double)time.tv_sec + 1e-3 * (double)time.tv_nsec;
}

static void add_sample(struct samples *samples, double value) {
    if (samples->count == samples->capacity) {
        samples->capacity = samples->capacity ? 2 * samples->capacity : 256;
        samples->values = realloc(samples->values, samples->capacity * sizeof *samples->values);
        if (!samples->values)
            exit(1);
    }
    samples->values[samples->count++] = value;
}

static int compare_values(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Prints "name":[median, 99 of 100, most]. */
static void print_samples(const char *name, struct samples *samples) {
    if (!samples->count)
        return;
    qsort(samples->values, samples->count, sizeof *samples->values, compare_values);
    printf(",\"%s\":[%.1f,%.1f,%.1f]", name, samples->values[samples->count / 2],
        samples->values[samples->count * 99 / 100], samples->values[samples->count - 1]);
}

static void print_figures(struct figures *figures) {
    printf("{\"set\":\"%s\",\"steps\":%zu", figures->name, figures->mask[0].count);
    print_samples("compile_us", &figures->compile);
    print_samples("create_us", &figures->create);
    print_samples("mask_cold_us", &figures->mask[0]);
    print_samples("mask_warm_us", &figures->mask[1]);
    print_samples("accept_cold_us", &figures->accept[0]);
    print_samples("accept_warm_us", &figures->accept[1]);
    print_samples("grammar_bytes", &figures->bytes);
    puts("}");
    struct samples *all[] = {&figures->compile, &figures->create, &figures->mask[0], &figures->mask[1],
        &figures->accept[0], &figures->accept[1], &figures->bytes};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]->values);
    *figures = (struct figures){0};
}

/* ---- what is timed ---- */

static void make_vocabulary(const char *folder) {
    check(tokenizer_load(folder, &tokenizer), folder);
    int32_t count = tokenizer_size(tokenizer);
    mask = calloc((size_t)count / 64 + 1, sizeof *mask);
    if (!mask)
        exit(1);
    double start = now();
    check(tokenizer_grammar_vocabulary(tokenizer, count, END_OF_SENTENCE, &vocabulary), folder);
    printf("{\"vocabulary\":%d,\"create_us\":%.0f,\"bytes\":%zu}\n", count, now() - start,
        grammar_vocabulary_bytes(vocabulary));
}

static struct grammar *compile(
    const struct json *line, const char *name, struct samples *compile_times, struct samples *create_times) {
    const struct json *kind = json_member(line, "kind"), *spec = json_member(line, "spec");
    struct grammar_specification specification = {.kind = json_is_text(kind, "regex") ? GRAMMAR_REGEX
                                                          : json_is_text(kind, "json_object")
                                                              ? GRAMMAR_JSON_OBJECT
                                                              : GRAMMAR_SCHEMA,
        .marker_token = GRAMMAR_NO_TOKEN};
    if (spec && spec->kind == JSON_STRING) {
        specification.text = spec->text;
        specification.bytes = spec->bytes;
    }
    struct grammar *grammar = NULL;
    double best = 0;
    for (int i = 0; i < COMPILATIONS; i++) {
        grammar_free(grammar);
        double start = now();
        check(grammar_compile(&specification, &grammar), name);
        double took = now() - start;
        best = i == 0 || took < best ? took : best;
    }
    add_sample(compile_times, best);
    double start = now();
    struct grammar_matcher *matcher = NULL;
    check(grammar_matcher_create(grammar, vocabulary, &matcher), name);
    add_sample(create_times, now() - start);
    grammar_matcher_free(matcher);
    return grammar;
}

static void follow(struct grammar *grammar, const struct token_list *ids, const char *name,
    struct samples *masks, struct samples *accepts) {
    struct grammar_matcher *matcher = NULL;
    check(grammar_matcher_create(grammar, vocabulary, &matcher), name);
    for (size_t i = 0; i <= ids->count; i++) {
        uint32_t id = i < ids->count ? (uint32_t)ids->ids[i] : END_OF_SENTENCE;
        bool accepted = false;
        double start = now();
        check(grammar_matcher_mask(matcher, mask), name);
        double middle = now();
        check(grammar_matcher_accept(matcher, id, &accepted), name);
        add_sample(accepts, now() - middle);
        add_sample(masks, middle - start);
        if (!accepted || !(mask[id >> 6] >> (id & 63) & 1)) {
            fprintf(stderr, "bench-grammar: %s: token %zu of a text is not allowed\n", name, i);
            exit(1);
        }
    }
    grammar_matcher_free(matcher);
}

static void time_line(const struct json *line, const char *name, struct figures *figures) {
    struct grammar *grammar = compile(line, name, &figures->compile, &figures->create);
    const struct json *texts = json_member(line, "texts");
    for (int pass = 0; pass < 2; pass++)
        for (const struct json *text = texts ? texts->first : NULL; text; text = text->next) {
            struct token_list ids = {0};
            check(tokenizer_encode_plain(tokenizer, text->text, text->bytes, &ids), name);
            follow(grammar, &ids, name, &figures->mask[pass], &figures->accept[pass]);
            free(ids.ids);
        }
    add_sample(&figures->bytes, (double)grammar_bytes(grammar));
    grammar_free(grammar);
}

static void time_file(const char *path, bool each) {
    struct json_document *document = NULL;
    struct figures figures = {0};
    char *line = NULL;
    size_t room = 0;
    ssize_t length;
    FILE *file = fopen(path, "r");
    if (!file)
        check(fail_errno(ERROR_IO, "%s", path), "sets");
    check(json_document_create(&document), path);
    while ((length = getline(&line, &room, file)) >= 0) {
        const struct json *root = NULL;
        check(json_parse(document, line, (size_t)length, &root), path);
        const struct json *name = json_member(root, "name"), *set = json_member(root, "set");
        if (!name || !set || name->kind != JSON_STRING || set->kind != JSON_STRING)
            check(fail(ERROR_INPUT, "a line lacks 'set' or 'name'"), path);
        const char *group = each ? name->text : set->text;
        if (figures.name[0] && strcmp(figures.name, group))
            print_figures(&figures);
        snprintf(figures.name, sizeof figures.name, "%s", group);
        time_line(root, name->text, &figures);
    }
    if (figures.name[0])
        print_figures(&figures);
    free(line);
    fclose(file);
    json_document_free(document);
}

int main(int argc, char **argv) {
    bool each = argc > 1 && !strcmp(argv[1], "--each");
    if (argc != 3 + each) {
        fprintf(stderr, "usage: bench-grammar [--each] TOKENIZER_DIR SETS.jsonl\n");
        return 2;
    }
    make_vocabulary(argv[1 + each]);
    time_file(argv[2 + each], each);
    grammar_vocabulary_free(vocabulary);
    tokenizer_free(tokenizer);
    free(mask);
    return 0;
}
