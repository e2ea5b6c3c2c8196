/* Texts are scored in rounds: each rank takes its next line, all ranks step together until the longest of
 * these texts is through, and rank 0 writes what came out, in the order of the lines. */
#include "campaign/score.h"

#include "base/buffer.h"
#include "base/log.h"
#include "base/signals.h"
#include "campaign/files.h"
#include "campaign/launch.h"
#include "campaign/score_file.h"
#include "campaign/score_input.h"
#include "cluster/collectives.h"
#include "model/sampling.h" /* logits_log_sum */
#include "model/sequence.h"

#include <math.h>   /* NAN */
#include <stdio.h>  /* snprintf */
#include <stdlib.h> /* calloc, strtoll */
#include <string.h> /* memcpy, memset */

static const char *const mode_names[] = {"rounded", "exact", NULL};

struct score_options {
    const char *model, *input, *output, *errors, *tail_text;
    int64_t chunk;
    int32_t tail; /* 0: all */
    int mode;
    bool logits;
    struct launch_options launch;
};

/* What a rank brings to a round. */
struct round_entry {
    int64_t line;                    /* 0: nothing, its lines are at their end */
    int64_t tokens;                  /* of its text */
    int64_t id_bytes, message_bytes; /* message: of a line that cannot be scored */
    int64_t stop;
};

struct score {
    const struct score_options *options;
    struct launch launch;
    struct score_input *input;
    struct score_file *file;   /* rank 0 */
    struct output_file errors; /* rank 0, with --errors */
    int32_t step_tokens, vocab_size;
    struct score_line *line; /* of this round, NULL: none */
    struct sequence *sequence;
    int64_t done;    /* tokens of the text that have run */
    float *logprobs; /* [tokens of the text] */
    size_t logprob_capacity;
    float *logits;                    /* [step_tokens, vocab_size] */
    struct round_entry *entries;      /* [ranks] */
    int64_t *counts, *send, *receive; /* [ranks] */
    void *gathered;
    size_t gathered_bytes;
    int64_t texts, bad_lines, tokens;
};

static enum result agree(struct score *score, enum result own) {
    return ranks_agree(score->launch.ranks.world, own);
}

static bool is_first(const struct score *score) {
    return score->launch.ranks.rank == 0;
}

/* ---- gathering on rank 0 ---- */

/* counts [ranks] rows of every rank to rank 0: *rows is theirs in rank order there, valid until the next
 * call. */
static enum result gather_rows(struct score *score, const char *what, const void *own, const int64_t *counts,
    size_t row_bytes, const void **rows) {
    int32_t ranks = score->launch.ranks.count;
    size_t total = 0;
    for (int32_t i = 0; i < ranks; i++) {
        score->send[i] = i == 0 ? counts[score->launch.ranks.rank] : 0;
        score->receive[i] = is_first(score) ? counts[i] : 0;
        total += (size_t)score->receive[i] * row_bytes;
    }
    enum result status = OK;
    if (total > score->gathered_bytes) {
        void *grown = realloc(score->gathered, total);
        if (grown) {
            score->gathered = grown;
            score->gathered_bytes = total;
        } else {
            status = fail(
                ERROR_MEMORY, "out of memory for %zu bytes of scores from all ranks: lower --chunk", total);
        }
    }
    TRY(agree(score, status));
    *rows = score->gathered;
    return group_exchange_rows(
        score->launch.ranks.world, what, own, score->send, score->gathered, score->receive, row_bytes);
}

/* ---- a round ---- */

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* Refuses a text whose key/value rows cannot fit. */
static void check_memory(struct score *score) {
    struct score_line *line = score->line;
    int64_t needed = sequence_blocks(score->launch.model, (int64_t)line->tokens.count,
        (int32_t)score->options->chunk, score->options->tail);
    if (needed <= model_blocks(score->launch.model))
        return;
    line->bad = true;
    snprintf(line->message, sizeof line->message,
        "the text of %zu tokens needs %lld key/value blocks, there are %d: raise --kv-memory",
        line->tokens.count, (long long)needed, model_blocks(score->launch.model));
}

static enum result prepare_text(struct score *score) {
    size_t tokens = score->line->tokens.count;
    if (tokens > score->logprob_capacity) {
        float *grown = realloc(score->logprobs, tokens * sizeof *grown);
        if (!grown)
            return fail(ERROR_MEMORY, "out of memory for a text of %zu tokens", tokens);
        score->logprobs = grown;
        score->logprob_capacity = tokens;
    }
    for (size_t i = 0; i < tokens; i++)
        score->logprobs[i] = i ? NAN : 0;
    score->done = 0;
    return sequence_create(score->launch.model, &score->sequence);
}

static enum result take_line(struct score *score, struct round_entry *entry) {
    *entry = (struct round_entry){.stop = signals_stop_requested()};
    TRY(score_input_next(score->input, &score->line));
    struct score_line *line = score->line;
    if (!line)
        return OK;
    if (!line->bad)
        check_memory(score);
    entry->line = line->line;
    if (line->bad) {
        entry->message_bytes = (int64_t)strlen(line->message);
        return OK;
    }
    entry->tokens = (int64_t)line->tokens.count;
    entry->id_bytes = (int64_t)line->id.bytes;
    return prepare_text(score);
}

/* Rows of logits a text of `tokens` tokens has in step `step` of its round, and the first one's token. */
static int64_t step_rows(const struct score *score, int64_t tokens, int64_t step, int64_t *first) {
    int64_t chunk = score->options->chunk, begin = step * chunk, end = smaller(tokens, begin + chunk);
    *first = begin;
    if (begin >= tokens)
        return 0;
    if (score->options->tail == 0)
        return end - begin;
    int64_t rows = smaller(tokens, score->options->tail);
    *first = tokens - rows;
    return end == tokens ? rows : 0;
}

static enum result run_step(struct score *score, int64_t rows) {
    struct score_line *line = score->line;
    if (!score->sequence || score->done >= (int64_t)line->tokens.count)
        return model_step(score->launch.model, NULL, 0, NULL);
    int64_t left = (int64_t)line->tokens.count - score->done;
    struct span span = {
        .sequence = score->sequence,
        .ids = line->tokens.ids + score->done,
        .count = (int32_t)smaller(left, score->options->chunk),
        .tail = score->options->tail,
        .logits = (int32_t)rows,
    };
    span.last = span.count == left;
    score->done += span.count;
    return model_step(score->launch.model, &span, 1, score->logits);
}

/* Each row of logits tells the log-probability of the token after its own. */
static void read_logprobs(struct score *score, int64_t first, int64_t rows) {
    if (rows == 0)
        return;
    const struct token_list *tokens = &score->line->tokens;
    int32_t vocab_size = score->vocab_size;
#pragma omp parallel for num_threads(score->launch.ranks.threads)
    for (int64_t i = 0; i < rows; i++) {
        if (first + i + 1 >= (int64_t)tokens->count)
            continue;
        const float *row = score->logits + i * vocab_size;
        double log_sum = logits_log_sum(row, vocab_size);
        score->logprobs[first + i + 1] = (float)((double)row[tokens->ids[first + i + 1]] - log_sum);
    }
}

/* Rank 0 writes the step's logits at the places of their texts. */
static enum result gather_logits(struct score *score, int64_t step) {
    int32_t ranks = score->launch.ranks.count;
    int64_t first;
    for (int32_t i = 0; i < ranks; i++)
        score->counts[i] = step_rows(score, score->entries[i].tokens, step, &first);
    const void *rows;
    size_t row_bytes = (size_t)score->vocab_size * sizeof(float);
    TRY(gather_rows(score, "logits", score->logits, score->counts, row_bytes, &rows));
    enum result status = OK;
    int64_t text_first = is_first(score) ? score_file_tokens(score->file) : 0;
    const float *at = rows;
    for (int32_t i = 0; is_first(score) && status == OK && i < ranks; i++) {
        int64_t count = step_rows(score, score->entries[i].tokens, step, &first);
        if (count > 0)
            status = score_file_put_logits(score->file, text_first + first, count, at);
        at += count * score->vocab_size;
        text_first += score->entries[i].tokens;
    }
    return agree(score, status);
}

static enum result run_texts(struct score *score) {
    int64_t longest = 0;
    for (int32_t i = 0; i < score->launch.ranks.count; i++)
        longest = score->entries[i].tokens > longest ? score->entries[i].tokens : longest;
    int64_t own = score->entries[score->launch.ranks.rank].tokens, chunk = score->options->chunk;
    for (int64_t step = 0; step * chunk < longest; step++) {
        int64_t first, rows = step_rows(score, own, step, &first);
        TRY(agree(score, run_step(score, rows)));
        read_logprobs(score, first, rows);
        if (score->options->logits)
            TRY(gather_logits(score, step));
    }
    sequence_free(score->launch.model, score->sequence);
    score->sequence = NULL;
    return OK;
}

/* A line's token ids, log-probabilities, id and message, end to end. */
static int64_t record_bytes(const struct round_entry *entry) {
    return entry->tokens * (int64_t)(sizeof(int32_t) + sizeof(float)) + entry->id_bytes +
           entry->message_bytes;
}

static void pack_record(const struct score *score, const struct round_entry *entry, struct buffer *record) {
    buffer_clear(record);
    const struct score_line *line = score->line;
    if (entry->tokens > 0) {
        buffer_append(record, line->tokens.ids, (size_t)entry->tokens * sizeof(int32_t));
        buffer_append(record, score->logprobs, (size_t)entry->tokens * sizeof(float));
        buffer_append(record, line->id.data, (size_t)entry->id_bytes);
    } else if (entry->message_bytes > 0) {
        buffer_append(record, line->message, (size_t)entry->message_bytes);
    }
}

static enum result write_error(struct score *score, const struct round_entry *entry, const char *message) {
    score->bad_lines++;
    log_warning("%s: line %lld is not scored: %.*s", score->options->input, (long long)entry->line,
        (int)entry->message_bytes, message);
    if (score->options->errors) {
        struct buffer line = {0};
        buffer_printf(&line, "{\"line\": %lld, \"message\": ", (long long)entry->line);
        buffer_append_json_string(&line, message, (size_t)entry->message_bytes);
        buffer_append_text(&line, "}\n");
        enum result status = output_file_write(&score->errors, line.data, line.bytes);
        buffer_free(&line);
        TRY(status);
    }
    return score_file_add_error(score->file, entry->line, message, entry->message_bytes);
}

static enum result write_record(struct score *score, const struct round_entry *entry, const char *record) {
    if (entry->message_bytes > 0)
        return write_error(score, entry, record);
    if (entry->tokens == 0)
        return OK;
    /* The records stand end to end, so their numbers may be unaligned. */
    size_t tokens = (size_t)entry->tokens;
    int32_t *ids = malloc(tokens * sizeof *ids);
    float *logprobs = malloc(tokens * sizeof *logprobs);
    enum result status = OK;
    if (!ids || !logprobs)
        TRY_GOTO(status, fail(ERROR_MEMORY, "out of memory for a text of %zu tokens", tokens), done);
    memcpy(ids, record, tokens * sizeof *ids);
    memcpy(logprobs, record + tokens * sizeof *ids, tokens * sizeof *logprobs);
    const char *id = record + tokens * (sizeof *ids + sizeof *logprobs);
    status = score_file_add(score->file, id, entry->id_bytes, ids, logprobs, entry->tokens);
    score->texts++;
    score->tokens += entry->tokens;
done:
    free(ids);
    free(logprobs);
    return status;
}

static enum result write_round(struct score *score, struct buffer *record) {
    int32_t ranks = score->launch.ranks.count;
    for (int32_t i = 0; i < ranks; i++)
        score->counts[i] = record_bytes(&score->entries[i]);
    pack_record(score, &score->entries[score->launch.ranks.rank], record);
    const void *records;
    TRY(gather_rows(score, "scores", record->data, score->counts, 1, &records));
    const char *at = records;
    enum result status = OK;
    for (int32_t i = 0; is_first(score) && status == OK && i < ranks; i++) {
        status = write_record(score, &score->entries[i], at);
        at += score->counts[i];
    }
    return agree(score, status);
}

/* Runs rounds until no rank has a line left. */
static enum result run_rounds(struct score *score, struct buffer *record) {
    struct group *world = score->launch.ranks.world;
    for (;;) {
        struct round_entry own;
        TRY(agree(score, take_line(score, &own)));
        TRY(group_all_gather(world, "lines of a round", &own, sizeof own, score->entries));
        bool work = false, stop = false;
        for (int32_t i = 0; i < score->launch.ranks.count; i++) {
            work = work || score->entries[i].line;
            stop = stop || score->entries[i].stop;
        }
        if (!work)
            return OK;
        if (stop)
            return agree(
                score, fail(ERROR_STOPPED, "score: stopped by a signal, nothing was written; run it again"));
        TRY(run_texts(score));
        TRY(write_round(score, record));
    }
}

/* ---- start and end ---- */

static enum result open_input(struct score *score) {
    const struct model_config *config = checkpoint_config(score->launch.checkpoint);
    const struct score_input_options options = {
        .tokenizer = score->launch.tokenizer,
        .vocab_size = config->vocab_size,
        .bos_token_id = config->bos_token_id,
        .context = model_options(score->launch.model)->context,
        .rank = score->launch.ranks.rank,
        .ranks = score->launch.ranks.count,
    };
    size_t ranks = (size_t)score->launch.ranks.count;
    score->vocab_size = config->vocab_size;
    score->entries = calloc(ranks, sizeof *score->entries);
    score->counts = calloc(ranks, sizeof *score->counts);
    score->send = calloc(ranks, sizeof *score->send);
    score->receive = calloc(ranks, sizeof *score->receive);
    score->logits = malloc((size_t)score->step_tokens * (size_t)score->vocab_size * sizeof *score->logits);
    if (!score->entries || !score->counts || !score->send || !score->receive || !score->logits)
        return fail(ERROR_MEMORY, "out of memory for the logits of %d tokens: lower --chunk or --tail",
            score->step_tokens);
    return score_input_open(score->options->input, &options, &score->input);
}

static enum result open_output(struct score *score) {
    const struct score_options *o = score->options;
    char kernels[64];
    snprintf(kernels, sizeof kernels, "%s/%s", score->launch.kernels->name,
        score->launch.kernels->instruction_set);
    const struct score_file_options options = {
        .logits = o->logits,
        .vocab_size = score->vocab_size,
        .fingerprint = checkpoint_fingerprint(score->launch.checkpoint),
        .mode = mode_names[o->mode],
        .kernels = kernels,
        .tail = o->tail_text,
    };
    if (o->errors)
        TRY(output_file_create(o->errors, &score->errors));
    return score_file_create(o->output, &options, &score->file);
}

static enum result finish_output(struct score *score) {
    struct score_file *file = score->file;
    score->file = NULL; /* freed in every case */
    TRY(score_file_finish(file));
    bool taken;
    if (score->options->errors)
        TRY(output_file_commit(&score->errors, true, &taken));
    log_info("score: %lld texts with %lld tokens, %lld bad lines -> %s", (long long)score->texts,
        (long long)score->tokens, (long long)score->bad_lines, score->options->output);
    return OK;
}

static enum result do_score(struct score *score) {
    const struct score_options *o = score->options;
    struct buffer record = {0};
    TRY(launch_begin(&o->launch, &score->launch));
    TRY(launch_open(&score->launch, &o->launch, o->model, NULL));
    score->step_tokens = (int32_t)(o->chunk > o->tail ? o->chunk : o->tail);
    struct model_options model = {
        .mode = o->mode == 0 ? MODE_ROUNDED : MODE_EXACT,
        .step_tokens = score->step_tokens,
        .step_sequences = 1,
    };
    TRY(launch_model(&score->launch, &o->launch, &model));
    TRY(launch_describe(&score->launch));
    TRY(agree(score, open_input(score)));
    TRY(agree(score, is_first(score) ? open_output(score) : OK));
    enum result status = run_rounds(score, &record);
    buffer_free(&record);
    TRY(status);
    return agree(score, is_first(score) ? finish_output(score) : OK);
}

static void free_score(struct score *score) {
    sequence_free(score->launch.model, score->sequence);
    score_input_close(score->input);
    score_file_abandon(score->file);
    output_file_abandon(&score->errors);
    free(score->entries);
    free(score->counts);
    free(score->send);
    free(score->receive);
    free(score->logits);
    free(score->logprobs);
    free(score->gathered);
}

static enum result parse_tail(struct score_options *options) {
    if (!strcmp(options->tail_text, "all"))
        return OK;
    char *end;
    long long tail = strtoll(options->tail_text, &end, 10);
    if (*end || end == options->tail_text || tail < 1 || tail > 1 << 20)
        return fail(ERROR_USAGE, "score: --tail: '%s' is neither 'all' nor a number from 1 to %d",
            options->tail_text, 1 << 20);
    options->tail = (int32_t)tail;
    return OK;
}

enum { SCORE_OPTIONS = 8 };

static void score_option_rows(struct score_options *o, struct option *row) {
    const struct option rows[SCORE_OPTIONS] = {
        {.name = "model",
            .kind = OPTION_TEXT,
            .value = &o->model,
            .placeholder = "DIR",
            .required = true,
            .help = "the checkpoint's folder"},
        {.name = "input",
            .kind = OPTION_TEXT,
            .value = &o->input,
            .placeholder = "FILE",
            .required = true,
            .help = "JSONL lines {\"id\", \"token_ids\"} or {\"id\", \"text\"}"},
        {.name = "output",
            .kind = OPTION_TEXT,
            .value = &o->output,
            .placeholder = "FILE.h5",
            .required = true,
            .help = "the HDF5 file to write"},
        {.name = "errors",
            .kind = OPTION_TEXT,
            .value = &o->errors,
            .placeholder = "FILE",
            .help = "write bad lines to this JSONL file too (they are in the output's group errors)"},
        {.name = "logits", .kind = OPTION_FLAG, .value = &o->logits, .help = "keep the logits too"},
        {.name = "mode",
            .kind = OPTION_CHOICE,
            .value = &o->mode,
            .choices = mode_names,
            .help = "activations rounded as in training (default), or not"},
        {.name = "chunk",
            .kind = OPTION_COUNT,
            .value = &o->chunk,
            .placeholder = "N",
            .least = 1,
            .most = 1 << 20,
            .help = "tokens of a text that run at once (default: 512)"},
        {.name = "tail",
            .kind = OPTION_TEXT,
            .value = &o->tail_text,
            .placeholder = "all|N",
            .help = "run the upper layers on all tokens (default), or on a text's last N"},
    };
    memcpy(row, rows, sizeof rows);
}

enum result command_score(int argc, char **argv) {
    struct score_options options = {.chunk = 512, .tail_text = "all"};
    const struct command_usage usage = {.name = "score",
        .summary = "Writes the log-probability of each token of given texts under the model, for evaluation.",
        .notes = "Token ids are taken as they are; text is encoded plainly after a begin-of-sentence token.\n"
                 "Works alone or on several ranks (mpirun, srun)."};
    struct option table[SCORE_OPTIONS + LAUNCH_OPTIONS + 1];
    score_option_rows(&options, table);
    launch_option_rows(&options.launch, table + SCORE_OPTIONS);
    bool help_shown;
    TRY(options_parse(&usage, table, argc, argv, NULL, &help_shown));
    if (help_shown)
        return OK;
    TRY(parse_tail(&options));
    struct score score;
    memset(&score, 0, sizeof score);
    score.options = &options;
    enum result status = do_score(&score);
    free_score(&score);
    return launch_end(&score.launch, status);
}
