/* Times the parsing of replies on one core: MB of UTF-8 text a second.
 *
 *   bench-reply [--json] TOKENIZER_DIR [CASES.jsonl]
 *
 * Replies: made-up ones with reasoning, an answer and two tool calls (a short and a long one), and the texts
 * of CASES.jsonl (tests/data/recipe/parse_cases.jsonl), each with its own begin and end. Feeding: whole, four
 * characters a piece, one token a piece. Rules: the published and the repaired ones. Best and median of the
 * rounds, processor time. --json: one JSON line per measurement instead.
 */
#include "recipe/reply.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROUNDS_MOST = 200 };
static const double SECONDS_A_ROW = 1.0;

enum feeding { WHOLE, CHARACTERS, TOKENS, FEEDINGS };

struct sample {
    struct buffer text;
    struct token_list ids;
};

struct corpus {
    const char *name;
    struct sample *samples;
    size_t count, bytes;
};

static struct reply_parser *parser;
static struct tokenizer *tokenizer;
static bool as_json;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void check(enum result status) {
    if (status == OK)
        return;
    fprintf(stderr, "bench-reply: %s\n", failure_message());
    exit(1);
}

/* ---- replies ---- */

static void add_sample(struct corpus *corpus, const char *text, size_t bytes) {
    struct sample *grown = realloc(corpus->samples, (corpus->count + 1) * sizeof *grown);
    if (!grown)
        check(fail(ERROR_MEMORY, "no memory"));
    corpus->samples = grown;
    struct sample *sample = &grown[corpus->count++];
    *sample = (struct sample){0};
    buffer_append(&sample->text, text, bytes);
    check(tokenizer_encode(tokenizer, text, bytes, &sample->ids));
    corpus->bytes += bytes;
}

static void append_prose(struct buffer *text, size_t bytes) {
    static const char *const sentences[] = {"The user asks how long the bridge is, so look it up first. ",
        "Let me check: 1,280 m < 2 km, hence the answer holds.\n", "先分析题目，再回答。",
        "if (a < b && b > 0) {\n    return a;\n}\n\n", "Überraschend ist das nicht. "};
    for (size_t begin = text->bytes, i = 0; text->bytes - begin < bytes; i = (i + 3) % 5)
        buffer_append_text(text, sentences[i]);
}

static void make_reply(struct corpus *corpus, size_t bytes) {
    struct buffer text = {0};
    append_prose(&text, bytes / 2);
    buffer_append_text(&text, "\n</think>\n\n");
    append_prose(&text, bytes / 4);
    buffer_append_text(&text,
        "\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"write_file\">\n"
        "<｜DSML｜ parameter name=\"path\" string=\"true\">notes.txt</｜DSML｜ parameter>\n"
        "<｜DSML｜ parameter name=\"text\" string=\"true\">");
    append_prose(&text, bytes / 4);
    buffer_append_text(&text,
        "</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n<｜DSML｜ invoke name=\"run\">\n"
        "<｜DSML｜ parameter name=\"options\" string=\"false\">{\"verbose\": true, \"n\": "
        "[1, 2, 3]}</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>");
    add_sample(corpus, text.data, text.bytes);
    buffer_free(&text);
}

static void read_cases(struct corpus *corpus, const char *path) {
    struct json_document *document;
    char *line = NULL;
    size_t capacity = 0;
    ssize_t bytes;
    FILE *file = fopen(path, "r");
    if (!file)
        check(fail_errno(ERROR_INPUT, "%s", path));
    check(json_document_create(&document));
    while ((bytes = getline(&line, &capacity, file)) > 0) {
        const struct json *root = NULL;
        check(json_parse(document, line, (size_t)bytes, &root));
        const struct json *text = json_member(root, "text");
        if (text && text->kind == JSON_STRING && text->bytes)
            add_sample(corpus, text->text, text->bytes);
    }
    free(line);
    fclose(file);
    json_document_free(document);
}

/* ---- timing ---- */

static size_t four_characters(const char *text, size_t bytes) {
    size_t at = 0;
    for (int i = 0; i < 4 && at < bytes; i++)
        for (at++; at < bytes && ((unsigned char)text[at] & 0xC0) == 0x80;)
            at++;
    return at;
}

static size_t parse(const struct sample *sample, enum feeding feeding, enum reply_rules rules) {
    struct reply_options options = {.rules = rules,
        .stage = START_REASONING,
        .thinking = true,
        .tools = true,
        .as_ids = feeding == TOKENS};
    reply_begin(parser, &options);
    if (feeding == WHOLE)
        reply_feed_text(parser, sample->text.data, sample->text.bytes);
    for (size_t at = 0, piece; feeding == CHARACTERS && at < sample->text.bytes; at += piece) {
        piece = four_characters(sample->text.data + at, sample->text.bytes - at);
        reply_feed_text(parser, sample->text.data + at, piece);
    }
    for (size_t i = 0; feeding == TOKENS && i < sample->ids.count; i++)
        reply_feed_ids(parser, &sample->ids.ids[i], 1);
    const struct reply *reply = reply_finish(parser, REPLY_STOP);
    return reply->reasoning.bytes + reply->content.bytes + reply->call_count;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static void measure(const struct corpus *corpus, enum feeding feeding, enum reply_rules rules) {
    static const char *const feedings[] = {"whole", "4 characters", "1 token"};
    static const char *const rule_names[] = {"published", "repaired"};
    double seconds[ROUNDS_MOST];
    int rounds = 0;
    size_t parsed = 0, repeats = 1 + (1 << 20) / corpus->bytes;
    for (double end = now() + SECONDS_A_ROW; rounds < ROUNDS_MOST && (rounds < 3 || now() < end); rounds++) {
        double begin = now();
        for (size_t r = 0; r < repeats; r++)
            for (size_t i = 0; i < corpus->count; i++)
                parsed += parse(&corpus->samples[i], feeding, rules);
        seconds[rounds] = now() - begin;
    }
    if (!parsed)
        check(fail(ERROR_INTERNAL, "nothing was parsed"));
    qsort(seconds, (size_t)rounds, sizeof *seconds, ascending);
    double megabytes = (double)(corpus->bytes * repeats) / 1e6;
    double best = megabytes / seconds[0], median = megabytes / seconds[rounds / 2];
    double replies = (double)(corpus->count * repeats) / seconds[rounds / 2];
    if (as_json)
        printf("{\"replies\":\"%s\",\"feeding\":\"%s\",\"rules\":\"%s\",\"bytes\":%zu,\"best_mb_s\":%.1f,"
               "\"median_mb_s\":%.1f,\"replies_s\":%.0f}\n",
            corpus->name, feedings[feeding], rule_names[rules], corpus->bytes, best, median, replies);
    else
        printf("%-6s %-13s %-10s %9zu %9.1f %9.1f %10.0f\n", corpus->name, feedings[feeding],
            rule_names[rules], corpus->bytes, best, median, replies);
}

static void free_corpus(struct corpus *corpus) {
    for (size_t i = 0; i < corpus->count; i++) {
        buffer_free(&corpus->samples[i].text);
        free(corpus->samples[i].ids.ids);
    }
    free(corpus->samples);
}

int main(int argc, char **argv) {
    struct corpus corpora[] = {{.name = "short"}, {.name = "long"}, {.name = "cases"}};
    as_json = argc > 1 && !strcmp(argv[1], "--json");
    argv += as_json;
    argc -= as_json;
    if (argc < 2) {
        fprintf(stderr, "usage: bench-reply [--json] TOKENIZER_DIR [CASES.jsonl]\n");
        return 2;
    }
    check(tokenizer_load(argv[1], &tokenizer));
    check(reply_parser_create(tokenizer, &parser));
    make_reply(&corpora[0], 1 << 10);
    make_reply(&corpora[1], 1 << 20);
    if (argc > 2)
        read_cases(&corpora[2], argv[2]);
    if (!as_json)
        printf("%-6s %-13s %-10s %9s %9s %9s %10s\n", "reply", "a piece", "rules", "bytes", "best MB/s",
            "median", "replies/s");
    for (size_t c = 0; c < 3; c++)
        for (int feeding = 0; corpora[c].count && feeding < FEEDINGS; feeding++)
            for (int rules = 0; rules < 2; rules++)
                measure(&corpora[c], (enum feeding)feeding, (enum reply_rules)rules);
    for (size_t c = 0; c < 3; c++)
        free_corpus(&corpora[c]);
    reply_parser_free(parser);
    tokenizer_free(tokenizer);
    return 0;
}
