/* Times what happens to texts and request bodies on one core: MB of UTF-8 a second.
 *
 *   bench-recipe [--json] TOKENIZER_DIR CASES.jsonl [TEXT_FILE ...]
 *
 * encode, decode: each TEXT_FILE as one text, and the prompts of CASES.jsonl (tests/data/recipe/chat_cases.jsonl).
 * render: the Chat Completions bodies of CASES.jsonl, from JSON text to prompt text (bytes of bodies). request:
 * the same to token ids. Best and median of the rounds, processor time. --json: one JSON line per measurement
 * instead. (Replies: bench-reply.)
 */
#include "recipe/python_json.h"
#include "recipe/toolkit.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROUNDS_MOST = 400 };
static const double SECONDS_A_ROW = 1.5;

struct sample {
    struct buffer text;
    struct token_list ids;
};

struct corpus {
    const char *name;
    struct sample *samples;
    size_t count, bytes;
};

static struct tokenizer *tokenizer;
static struct toolkit *toolkit;
static struct prompt_format *format;
static struct json_document *document; /* of bodies */
static bool as_json;

static void check(enum result status) {
    if (status == OK)
        return;
    fprintf(stderr, "bench-recipe: %s\n", failure_message());
    exit(1);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* ---- what is timed ---- */

static void add_sample(struct corpus *corpus, const char *text, size_t bytes) {
    struct sample *grown = realloc(corpus->samples, (corpus->count + 1) * sizeof *grown);
    if (!grown)
        exit(1);
    corpus->samples = grown;
    struct sample *sample = &grown[corpus->count++];
    *sample = (struct sample){0};
    buffer_append(&sample->text, text, bytes);
    check(tokenizer_encode(tokenizer, text, bytes, &sample->ids));
    corpus->bytes += bytes;
}

static void read_text_file(struct corpus *corpus, const char *path) {
    FILE *file = fopen(path, "r");
    struct buffer text = {0};
    char piece[1 << 16];
    size_t bytes;
    if (!file)
        check(fail_errno(ERROR_INPUT, "%s", path));
    while ((bytes = fread(piece, 1, sizeof piece, file)) > 0)
        buffer_append(&text, piece, bytes);
    fclose(file);
    if (text.bytes)
        add_sample(corpus, text.data, text.bytes);
    buffer_free(&text);
}

static void read_cases(struct corpus *bodies, struct corpus *prompts, const char *path) {
    struct json_document *lines;
    struct buffer body = {0};
    char *line = NULL;
    size_t capacity = 0;
    ssize_t bytes;
    FILE *file = fopen(path, "r");
    if (!file)
        check(fail_errno(ERROR_INPUT, "%s", path));
    check(json_document_create(&lines));
    while ((bytes = getline(&line, &capacity, file)) > 0) {
        const struct json *root = NULL;
        check(json_parse(lines, line, (size_t)bytes, &root));
        const struct json *request = json_member(root, "request"), *prompt = json_member(root, "prompt");
        if (!request || !prompt || json_member(root, "options"))
            continue;
        buffer_clear(&body);
        compact_json_append(&body, request);
        add_sample(bodies, body.data, body.bytes);
        add_sample(prompts, prompt->text, prompt->bytes);
    }
    free(line);
    fclose(file);
    buffer_free(&body);
    json_document_free(lines);
}

static size_t encode(const struct sample *sample) {
    static struct token_list ids;
    ids.count = 0;
    check(tokenizer_encode(tokenizer, sample->text.data, sample->text.bytes, &ids));
    return ids.count;
}

static size_t decode(const struct sample *sample) {
    static struct buffer text;
    buffer_clear(&text);
    tokenizer_decode(tokenizer, sample->ids.ids, sample->ids.count, false, &text);
    return text.bytes;
}

static size_t render(const struct sample *sample) {
    static struct conversation conversation;
    static const char *const names[] = {"DeepSeek-V4.1-Flash", "DeepSeek-V4-Pro", NULL};
    const struct json *body = NULL;
    struct toolkit_sampling sampling;
    struct body_reader reader = {.conversation = &conversation,
        .refusal = &toolkit->refusal,
        .policies = &TOOLKIT_DEFAULTS,
        .model_names = names,
        .toolkit = true};
    conversation_clear(&conversation);
    check(json_parse(document, sample->text.data, sample->text.bytes, &body));
    if (!chat_body_read(&reader, body, &sampling))
        check(fail(ERROR_INPUT, "%s", toolkit->refusal.message));
    check(prompt_render(format, &conversation, &toolkit->prompt));
    return toolkit->prompt.text.bytes;
}

static size_t request(const struct sample *sample) {
    bool accepted = false;
    struct text_piece text = {sample->text.data, sample->text.bytes};
    check(toolkit_render_text(toolkit, KIND_CHAT, text, &TOOLKIT_DEFAULTS, &accepted));
    return toolkit->prompt.ids.count;
}

/* ---- timing ---- */

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void measure(
    const char *what, size_t (*work)(const struct sample *sample), const struct corpus *corpus) {
    double seconds[ROUNDS_MOST];
    int rounds = 0;
    volatile size_t made = 0; /* so that the work is done */
    if (!corpus->count)
        return;
    for (double start = now(); rounds < ROUNDS_MOST && (rounds < 3 || now() - start < SECONDS_A_ROW);
         rounds++) {
        double begun = now();
        for (size_t i = 0; i < corpus->count; i++)
            made = made + work(&corpus->samples[i]);
        seconds[rounds] = now() - begun;
    }
    qsort(seconds, (size_t)rounds, sizeof *seconds, ascending);
    double megabytes = (double)corpus->bytes / 1e6;
    double best = megabytes / seconds[0], median = megabytes / seconds[rounds / 2];
    if (as_json)
        printf("{\"what\":\"%s\",\"corpus\":\"%s\",\"texts\":%zu,\"mb\":%.3f,\"best_mb_s\":%.2f,\"median_mb_"
               "s\":%.2f,"
               "\"rounds\":%d}\n",
            what, corpus->name, corpus->count, megabytes, best, median, rounds);
    else
        printf("%-8s %-12s %6zu texts %8.3f MB  best %8.2f MB/s  median %8.2f MB/s\n", what, corpus->name,
            corpus->count, megabytes, best, median);
    fflush(stdout);
}

static void free_corpus(struct corpus *corpus) {
    for (size_t i = 0; i < corpus->count; i++) {
        buffer_free(&corpus->samples[i].text);
        free(corpus->samples[i].ids.ids);
    }
    free(corpus->samples);
}

int main(int argc, char **argv) {
    struct corpus bodies = {.name = "bodies"}, prompts = {.name = "prompts"}, texts = {.name = "texts"};
    as_json = argc > 1 && !strcmp(argv[1], "--json");
    if (as_json) {
        argc--;
        argv++;
    }
    if (argc < 3) {
        fprintf(stderr, "usage: bench-recipe [--json] TOKENIZER_DIR CASES.jsonl [TEXT_FILE ...]\n");
        return 2;
    }
    check(tokenizer_load(argv[1], &tokenizer));
    check(toolkit_create(tokenizer, &toolkit));
    check(prompt_format_create(tokenizer, &format));
    check(json_document_create(&document));
    read_cases(&bodies, &prompts, argv[2]);
    for (int i = 3; i < argc; i++)
        read_text_file(&texts, argv[i]);
    measure("encode", encode, &texts);
    measure("encode", encode, &prompts);
    measure("decode", decode, &texts);
    measure("decode", decode, &prompts);
    measure("render", render, &bodies);
    measure("request", request, &bodies);
    free_corpus(&bodies);
    free_corpus(&prompts);
    free_corpus(&texts);
    prompt_format_free(format);
    json_document_free(document);
    toolkit_free(toolkit);
    tokenizer_free(tokenizer);
    return 0;
}
