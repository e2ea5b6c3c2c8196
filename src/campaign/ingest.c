#include "base/buffer.h"
#include "base/log.h"
#include "base/options.h"
#include "base/signals.h"
#include "campaign/campaign.h"
#include "campaign/files.h"
#include "campaign/image_store.h"
#include "campaign/lines.h"
#include "campaign/parts.h"
#include "campaign/requests.h"
#include "cluster/watch.h"
#include "model/checkpoint.h"
#include "recipe/refusal.h" /* copy_text */
#include "recipe/request.h"

#include <dirent.h> /* opendir, readdir */
#include <errno.h>  /* errno */
#include <limits.h> /* PATH_MAX */
#include <stdio.h>  /* printf, snprintf */
#include <stdlib.h> /* realpath, free */
#include <string.h> /* strrchr, strcmp */
#include <time.h>   /* clock_gettime */
#include <unistd.h> /* isatty, unlink */

enum {
    MOST_LISTED = 20, /* bad lines that --strict lists */
    MOST_CODES = 64,  /* different codes in the summary */
    OPENAI_REQUESTS = 50000,
    OPENAI_BYTES = 200000000,
};

enum on_duplicate { DUPLICATE_ERROR, DUPLICATE_ERROR_LINE };

struct ingest_options {
    struct option_list input, model_names;
    const char *model, *campaign, *image_root;
    bool strict, restart, toolkit;
    int on_duplicate;
    int64_t seed, default_max_tokens, deadline;
};

struct code_count {
    char code[64];
    int64_t count;
};

struct ingest {
    const struct ingest_options *options;
    char model_folder[PATH_MAX];
    const char *names[130];
    struct checkpoint *checkpoint;
    struct tokenizer *tokenizer;
    struct request_parser *parser;
    struct image_store *images; /* NULL: the model takes none */
    struct vector image_places; /* of a request: indices, then tokens */
    struct refusal refusal;
    struct campaign *campaign;
    bool was_campaign; /* the folder had requests before */
    struct line_reader *reader;
    struct requests_writer *writer;
    struct seen_set seen;
    struct buffer content_options; /* what requests.h5 keeps of the options */
    struct buffer listed;          /* bad lines for --strict */
    struct code_count codes[MOST_CODES];
    int code_count;
    int64_t lines, blank, requests, refused, tokens, shown_images;
    double begun, shown;
};

static double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static const char *file_name(const struct ingest *ingest, int32_t file) {
    return ingest->options->input.items[file];
}

/* The accepted spellings of the model's name, and the line of options that the content depends on. */
static enum result set_names(struct ingest *ingest) {
    const struct ingest_options *options = ingest->options;
    if (!realpath(options->model, ingest->model_folder))
        return fail_errno(ERROR_IO, "--model %s: cannot find the folder", options->model);
    int most = (int)(sizeof ingest->names / sizeof *ingest->names) - 3;
    if (options->model_names.count > most)
        return fail(ERROR_USAGE, "ingest: --model-name: at most %d names", most);
    const char *slash = strrchr(ingest->model_folder, '/');
    int count = 0;
    ingest->names[count++] = "deepseek-v4.1-flash";
    ingest->names[count++] = slash ? slash + 1 : ingest->model_folder;
    for (int i = 0; i < options->model_names.count; i++)
        ingest->names[count++] = options->model_names.items[i];
    struct buffer *text = &ingest->content_options;
    buffer_printf(text,
        "{\"seed\": %lld, \"default_max_tokens\": %lld, \"strict\": %s, \"toolkit_options\": %s, "
        "\"on_duplicate\": \"%s\", \"names\": [",
        (long long)options->seed, (long long)options->default_max_tokens, options->strict ? "true" : "false",
        options->toolkit ? "true" : "false",
        options->on_duplicate == DUPLICATE_ERROR ? "error" : "error-line");
    for (int i = 1; i < count; i++) {
        buffer_append_text(text, i > 1 ? ", " : "");
        buffer_append_json_string(text, ingest->names[i], strlen(ingest->names[i]));
    }
    buffer_append_text(text, "]");
    if (options->image_root) {
        buffer_append_text(text, ", \"image_root\": ");
        buffer_append_json_string(text, options->image_root, strlen(options->image_root));
    }
    buffer_append_text(text, "}");
    return OK;
}

static enum result check_inputs(const struct ingest_options *options) {
    for (int i = 0; i < options->input.count; i++)
        if (strcmp(options->input.items[i], "-") && access(options->input.items[i], R_OK))
            return fail_errno(ERROR_IO, "%s: cannot open the input file", options->input.items[i]);
    return OK;
}

static enum result open_model(struct ingest *ingest) {
    TRY(checkpoint_open(ingest->model_folder, &ingest->checkpoint));
    TRY(tokenizer_load(ingest->model_folder, &ingest->tokenizer));
    const struct model_config *config = checkpoint_config(ingest->checkpoint);
    if (config->vision.present)
        TRY(image_store_create(ingest->options->image_root, &config->vision, &ingest->images));
    else if (ingest->options->image_root)
        return fail(ERROR_USAGE, "ingest: --image-root: the model %s takes no images (no vision_config)",
            ingest->model_folder);
    struct request_options options = {.model_names = ingest->names,
        .images = config->vision.present,
        .context = config->max_position_embeddings,
        .strict = ingest->options->strict,
        .toolkit = ingest->options->toolkit,
        .default_max_tokens = (int32_t)ingest->options->default_max_tokens};
    return request_parser_create(ingest->tokenizer, &options, &ingest->parser);
}

/* Removes what was made of earlier requests: parts and what is set aside, and what export and status made. */
static enum result remove_phase(const char *folder, const char *phase) {
    char *path = path_join(folder, phase);
    DIR *listing = path ? opendir(path) : NULL;
    enum result status = OK;
    int32_t rank;
    for (struct dirent *entry; listing && status == OK && (entry = readdir(listing));) {
        if (!part_rank(entry->d_name, &rank))
            continue;
        char *rank_path = path_join(path, entry->d_name);
        DIR *files = rank_path ? opendir(rank_path) : NULL;
        for (struct dirent *file; files && (file = readdir(files));)
            if (!strncmp(file->d_name, "part-", 5) || is_temporary_name(file->d_name))
                if (unlinkat(dirfd(files), file->d_name, 0) && errno != ENOENT)
                    status = fail_errno(ERROR_IO, "%s/%s: cannot remove", rank_path, file->d_name);
        if (files)
            closedir(files);
        if (rank_path)
            rmdir(rank_path);
        free(rank_path);
    }
    if (listing)
        closedir(listing);
    if (path)
        rmdir(path);
    free(path);
    return status;
}

/* In a folder that was no campaign, what bears the names of exports is someone else's. */
static enum result remove_old(const char *folder, bool was_campaign) {
    TRY(remove_phase(folder, "vision"));
    TRY(remove_phase(folder, "prefill"));
    TRY(remove_phase(folder, "results"));
    const char *const files[] = {"results.h5", "progress.json", "results.jsonl", "errors.jsonl"};
    for (size_t i = 0; was_campaign && i < sizeof files / sizeof *files; i++) {
        char *path = path_join(folder, files[i]);
        if (path && unlink(path) && errno != ENOENT) {
            enum result status = fail_errno(ERROR_IO, "%s: cannot remove", path);
            free(path);
            return status;
        }
        free(path);
    }
    return OK;
}

/* Temporary files of an ingest that was killed. */
static void remove_unfinished(const char *folder) {
    DIR *listing = opendir(folder);
    for (struct dirent *entry; listing && (entry = readdir(listing));)
        if (is_temporary_name(entry->d_name) && !strncmp(entry->d_name, ".requests.h5.", 13))
            unlinkat(dirfd(listing), entry->d_name, 0);
    if (listing)
        closedir(listing);
}

/* What differs between this command and the campaign's requests.h5; "" when nothing does. */
static enum result compare(struct ingest *ingest, const struct requests *old, struct buffer *difference) {
    if (strcmp(requests_fingerprint(old), checkpoint_fingerprint(ingest->checkpoint)))
        buffer_printf(difference, "the model (it was %s with fingerprint %s, now it is %s with %s)",
            requests_model_folder(old), requests_fingerprint(old), ingest->model_folder,
            checkpoint_fingerprint(ingest->checkpoint));
    else if (strcmp(requests_options(old), ingest->content_options.data))
        buffer_printf(difference, "the options (they were %s, now they are %s)", requests_options(old),
            ingest->content_options.data);
    if (difference->bytes)
        return OK;
    char digits[HASH_DIGITS + 1];
    struct line_reader *reader;
    TRY(line_reader_create(ingest->options->input.items, ingest->options->input.count, &reader));
    enum result status = line_reader_drain(reader);
    if (status == OK) {
        line_reader_hash(reader, digits);
        if (strcmp(digits, requests_input_hash(old)))
            buffer_append_text(difference, "the content of the input files");
    }
    line_reader_free(reader);
    return status;
}

/* Whether the campaign has these requests already; another content is a conflict. */
static enum result check_existing(struct ingest *ingest, bool *same) {
    const char *folder = ingest->options->campaign;
    char *path = path_join(folder, "requests.h5");
    ingest->was_campaign = path && !access(path, F_OK);
    free(path);
    *same = false;
    if (!ingest->was_campaign || ingest->options->restart)
        return OK;
    struct requests *old;
    struct buffer difference = {0};
    enum result status = requests_open(folder, &old);
    if (status != OK)
        return fail_context(
            status, "the campaign has a requests.h5 that can't be used (--restart makes a new one)");
    status = compare(ingest, old, &difference);
    if (status == OK && difference.bytes)
        status = fail(ERROR_CONFLICT,
            "the campaign %s holds other requests: %s differ. Use another folder, or --restart, which "
            "removes all "
            "that was made of the old ones",
            folder, difference.data);
    if (status == OK) {
        *same = true;
        printf("%s: already ingested: %lld requests, %lld refused lines; nothing to do\n", folder,
            (long long)requests_count(old), (long long)requests_error_count(old));
    }
    buffer_free(&difference);
    requests_close(old);
    return status;
}

static enum result create_writer(struct ingest *ingest) {
    const struct ingest_options *options = ingest->options;
    struct provenance provenance = {.command = "ingest",
        .model_folder = ingest->model_folder,
        .fingerprint = checkpoint_fingerprint(ingest->checkpoint),
        .settings = ingest->content_options.data,
        .ranks = 1,
        .supernode = 1};
    struct requests_source source = {.files = options->input.items,
        .file_count = options->input.count,
        .seed = options->seed,
        .options = ingest->content_options.data};
    return requests_writer_create(options->campaign, &provenance, &source, &ingest->writer);
}

static void count_code(struct ingest *ingest, const char *code) {
    for (int i = 0; i < ingest->code_count; i++)
        if (!strcmp(ingest->codes[i].code, code)) {
            ingest->codes[i].count++;
            return;
        }
    if (ingest->code_count == MOST_CODES)
        return;
    struct code_count *added = &ingest->codes[ingest->code_count++];
    snprintf(added->code, sizeof added->code, "%s", code);
    added->count = 1;
}

static enum result record_refusal(struct ingest *ingest, const struct request_error *error) {
    ingest->refused++;
    count_code(ingest, error->code);
    if (!ingest->options->strict)
        return requests_writer_add_error(ingest->writer, error);
    if (ingest->refused <= MOST_LISTED) {
        char message[150];
        copy_text(message, sizeof message, error->message, strlen(error->message));
        buffer_printf(&ingest->listed, "\n  %s:%lld: %s: %s", file_name(ingest, error->file),
            (long long)error->line, error->code, message);
    }
    return OK;
}

static enum result refuse_line(struct ingest *ingest, const struct input_line *line, const char *code,
    const struct text_piece *custom_id, const char *message) {
    struct request_error error = {.file = line->file, .line = line->number, .code = code};
    if (custom_id) {
        error.has_custom_id = true;
        error.custom_id = *custom_id;
    }
    snprintf(error.message, sizeof error.message, "%s", message);
    return record_refusal(ingest, &error);
}

/* Notes the id; *again tells that the line is one too many and has been dealt with. */
static enum result check_duplicate(
    struct ingest *ingest, const struct input_line *line, struct text_piece id, bool *again) {
    uint64_t earlier;
    TRY(seen_add(&ingest->seen, id.data, id.bytes, line->file, line->number, &earlier));
    *again = earlier != 0;
    if (!earlier)
        return OK;
    char message[900], shown[200];
    copy_text(shown, sizeof shown, id.data, id.bytes);
    const char *first_file = file_name(ingest, (int32_t)(earlier >> 40));
    long long first_line = (long long)(earlier & (((uint64_t)1 << 40) - 1));
    snprintf(message, sizeof message, "custom_id '%s' is already that of %s line %lld", shown, first_file,
        first_line);
    if (ingest->options->on_duplicate == DUPLICATE_ERROR && !ingest->options->strict)
        return fail(ERROR_INPUT,
            "%s line %lld: duplicate_custom_id: %s. Each must be unique, for it is what answers are matched "
            "by; "
            "--on-duplicate=error-line keeps the first one and refuses the others",
            file_name(ingest, line->file), (long long)line->number, message);
    return refuse_line(ingest, line, "duplicate_custom_id", &id, message);
}

/* What is wrong with an image refuses its request. */
static void fill_refusal(struct ingest *ingest, const struct request *request, struct request_error *error) {
    *error = (struct request_error){.file = request->file,
        .line = request->line,
        .has_custom_id = true,
        .custom_id = request->custom_id,
        .status = 400,
        .type = "invalid_request_error",
        .code = ingest->refusal.code,
        .param = ingest->refusal.param};
    memcpy(error->message, ingest->refusal.message, sizeof error->message);
}

/* The engine knows positions of images by the id of config.json. */
static enum result check_image_ids(const struct ingest *ingest, const struct request *request) {
    int32_t expected = checkpoint_config(ingest->checkpoint)->image_token_id;
    for (int32_t i = 0; i < request->image_count; i++) {
        int32_t found = request->token_ids[request->images[i].position];
        if (found != expected)
            return fail(ERROR_INPUT,
                "%s: the tokenizer's image marker is %d, config.json's image_token_id %d",
                ingest->model_folder, found, expected);
    }
    return OK;
}

/* Finds the images that the request shows and gives each its span in the prompt. */
static enum result place_images(
    struct ingest *ingest, struct request *request, struct request_error *error, bool *accepted) {
    size_t count = 0;
    const struct image_reference *references = ingest->images ? request_images(ingest->parser, &count) : NULL;
    if (!count)
        return OK;
    TRY(vector_reserve(&ingest->image_places, count * (sizeof(int64_t) + sizeof(int32_t))));
    int64_t *images = ingest->image_places.data;
    int32_t *tokens = (int32_t *)(images + count);
    TRY(image_store_load(ingest->images, references, count, images, tokens, &ingest->refusal, accepted));
    if (!*accepted) {
        fill_refusal(ingest, request, error);
        return OK;
    }
    int32_t file = request->file;
    int64_t line = request->line;
    TRY(request_place_images(ingest->parser, images, tokens, request, error, accepted));
    error->file = file;
    error->line = line;
    return *accepted ? check_image_ids(ingest, request) : OK;
}

static enum result add_request(struct ingest *ingest, struct request *request, struct request_error *error) {
    bool accepted = true;
    TRY(place_images(ingest, request, error, &accepted));
    if (!accepted)
        return record_refusal(ingest, error);
    if (request->image_count)
        TRY(image_store_commit(ingest->images, ingest->writer));
    ingest->requests++;
    ingest->tokens += request->token_count;
    ingest->shown_images += request->image_count;
    return requests_writer_add(ingest->writer, request);
}

static enum result ingest_line(struct ingest *ingest, const struct input_line *line) {
    struct request request = {0};
    struct request_error error;
    bool accepted, again = false;
    if (line->too_long) {
        char message[128];
        snprintf(message, sizeof message, "the line has more than %d bytes", MOST_LINE_BYTES);
        return refuse_line(ingest, line, "invalid_json_line", NULL, message);
    }
    memset(&error, 0, sizeof error);
    TRY(request_parse(ingest->parser, line->text, line->bytes, &request, &error, &accepted));
    request.file = error.file = line->file;
    request.line = error.line = line->number;
    if (accepted)
        TRY(check_duplicate(ingest, line, request.custom_id, &again));
    else if (error.has_custom_id)
        TRY(check_duplicate(ingest, line, error.custom_id, &again));
    if (again)
        return OK;
    return accepted ? add_request(ingest, &request, &error) : record_refusal(ingest, &error);
}

static void show_progress(struct ingest *ingest, bool last) {
    double now = seconds_now();
    if ((!last && now - ingest->shown < 1) || !isatty(STDERR_FILENO))
        return;
    if (last) {
        if (ingest->shown > ingest->begun)
            fprintf(stderr, "\r\033[K");
        return;
    }
    ingest->shown = now;
    double megabytes = (double)line_reader_bytes(ingest->reader) * 1e-6;
    fprintf(stderr, "\r\033[Kingest: %.1f MB, %lld requests, %lld refused, %.1f MB/s", megabytes,
        (long long)ingest->requests, (long long)ingest->refused, megabytes / (now - ingest->begun));
}

static enum result ingest_lines(struct ingest *ingest) {
    struct input_line line;
    for (bool more = true;;) {
        TRY(line_reader_next(ingest->reader, &line, &more));
        if (!more)
            break;
        if (signals_stop_requested())
            return fail(ERROR_STOPPED,
                "stopped by %s before the end of the input; nothing was kept, run the same command again",
                signals_name());
        ingest->lines++;
        if (line.blank)
            ingest->blank++;
        else
            TRY(ingest_line(ingest, &line));
        show_progress(ingest, false);
    }
    show_progress(ingest, true);
    if (ingest->lines == ingest->blank)
        return fail(ERROR_INPUT, "%s: empty_file: there is no request in the input", file_name(ingest, 0));
    if (ingest->options->strict && ingest->refused)
        return fail(ERROR_INPUT, "%lld bad lines, and --strict was given; nothing was written%s%s",
            (long long)ingest->refused, ingest->listed.data, ingest->refused > MOST_LISTED ? "\n  ..." : "");
    return OK;
}

static void print_summary(const struct ingest *ingest) {
    double seconds = seconds_now() - ingest->begun,
           megabytes = (double)line_reader_bytes(ingest->reader) * 1e-6;
    printf("%lld lines (%lld blank): %lld requests, %lld refused", (long long)ingest->lines,
        (long long)ingest->blank, (long long)ingest->requests, (long long)ingest->refused);
    for (int i = 0; i < ingest->code_count; i++)
        printf("%s%s %lld", i ? ", " : " (", ingest->codes[i].code, (long long)ingest->codes[i].count);
    printf("%s\n%lld prompt tokens; %.1f MB in %.1f s (%.1f MB/s)\n", ingest->code_count ? ")" : "",
        (long long)ingest->tokens, megabytes, seconds, megabytes / (seconds > 1e-9 ? seconds : 1e-9));
    if (ingest->shown_images)
        printf(
            "%lld images shown, %lld different ones stored (%.1f MB): run 'nocturne vision' before prefill\n",
            (long long)ingest->shown_images, (long long)image_store_count(ingest->images),
            (double)image_store_bytes(ingest->images) * 1e-6);
    const char *ignored = request_parser_ignored_fields(ingest->parser);
    if (*ignored)
        printf("fields that were ignored: %s\n", ignored);
    if (ingest->requests > OPENAI_REQUESTS || line_reader_bytes(ingest->reader) > OPENAI_BYTES)
        printf("note: more than the %d requests or %d MB that OpenAI takes in one batch; that's fine here\n",
            OPENAI_REQUESTS, OPENAI_BYTES / 1000000);
    printf("%s/requests.h5 is ready\n", ingest->options->campaign);
}

static enum result ingest_run(struct ingest *ingest) {
    const struct ingest_options *options = ingest->options;
    bool same;
    TRY(check_inputs(options));
    TRY(set_names(ingest));
    TRY(open_model(ingest));
    TRY(campaign_open(options->campaign, CAMPAIGN_WORK, true, &ingest->campaign));
    remove_unfinished(options->campaign);
    TRY(check_existing(ingest, &same));
    if (same)
        return OK;
    TRY(create_writer(ingest));
    TRY(line_reader_create(options->input.items, options->input.count, &ingest->reader));
    ingest->begun = ingest->shown = seconds_now();
    TRY(ingest_lines(ingest));
    char digits[HASH_DIGITS + 1];
    line_reader_hash(ingest->reader, digits);
    if (options->restart)
        TRY(remove_old(options->campaign, ingest->was_campaign));
    struct requests_input input = {.hash = digits, .lines = ingest->lines, .blank_lines = ingest->blank};
    struct requests_writer *writer = ingest->writer;
    ingest->writer = NULL;
    TRY(requests_writer_finish(writer, &input));
    print_summary(ingest);
    return OK;
}

static void ingest_free(struct ingest *ingest) {
    requests_writer_abandon(ingest->writer);
    line_reader_free(ingest->reader);
    seen_free(&ingest->seen);
    buffer_free(&ingest->content_options);
    buffer_free(&ingest->listed);
    image_store_free(ingest->images);
    vector_free(&ingest->image_places);
    if (ingest->parser)
        request_parser_free(ingest->parser);
    if (ingest->tokenizer)
        tokenizer_free(ingest->tokenizer);
    if (ingest->checkpoint)
        checkpoint_close(ingest->checkpoint);
    campaign_close(ingest->campaign);
}

enum result command_ingest(int argc, char **argv) {
    static const char *const duplicate_words[] = {"error", "error-line", NULL};
    struct ingest_options values = {.on_duplicate = DUPLICATE_ERROR, .deadline = WATCH_DEFAULT_DEADLINE};
    const struct option options[] = {
        {.name = "input",
            .kind = OPTION_LIST,
            .value = &values.input,
            .placeholder = "FILE",
            .required = true,
            .help = "JSONL files of OpenAI batch lines; - is standard input"},
        {.name = "model",
            .kind = OPTION_TEXT,
            .value = &values.model,
            .placeholder = "DIR",
            .required = true,
            .help = "folder of the checkpoint"},
        {.name = "campaign",
            .kind = OPTION_TEXT,
            .value = &values.campaign,
            .placeholder = "DIR",
            .required = true,
            .help = "folder of the campaign; made when it isn't there"},
        {.name = "image-root",
            .kind = OPTION_TEXT,
            .value = &values.image_root,
            .placeholder = "DIR",
            .help = "images may be files below this folder (default: data URLs only)"},
        {.name = "strict",
            .kind = OPTION_FLAG,
            .value = &values.strict,
            .help = "any bad line or unknown field makes the whole ingest fail"},
        {.name = "toolkit-options",
            .kind = OPTION_FLAG,
            .value = &values.toolkit,
            .help = "force and refuse sampling options as the published toolkit does"},
        {.name = "on-duplicate",
            .kind = OPTION_CHOICE,
            .value = &values.on_duplicate,
            .choices = duplicate_words,
            .help = "a custom_id that comes again: fail (default), or refuse that line"},
        {.name = "model-name",
            .kind = OPTION_LIST,
            .value = &values.model_names,
            .placeholder = "NAME",
            .help = "further names that lines may call the model by"},
        {.name = "seed",
            .kind = OPTION_COUNT,
            .value = &values.seed,
            .placeholder = "N",
            .least = INT64_MIN,
            .most = INT64_MAX,
            .help = "sampling seed of requests without their own (default 0)"},
        {.name = "default-max-tokens",
            .kind = OPTION_COUNT,
            .value = &values.default_max_tokens,
            .placeholder = "N",
            .least = 0,
            .most = INT32_MAX,
            .help = "for requests that don't say (default 0: the published toolkit's)"},
        {.name = "restart",
            .kind = OPTION_FLAG,
            .value = &values.restart,
            .help = "replace the campaign's requests and remove all that was made of them"},
        {.name = "deadline",
            .kind = OPTION_COUNT,
            .value = &values.deadline,
            .placeholder = "SECONDS",
            .least = 1,
            .most = 1 << 30,
            .help = "longest wait on the campaign's file system before ingest is given up (default: 600)"},
        {0},
    };
    static const struct command_usage usage = {.name = "ingest",
        .summary =
            "Reads batch request files into a campaign: checks each line, builds its prompt and encodes it.\n"
            "A bad line becomes an error record; it doesn't stop the others.",
        .notes = "Fields and formats: docs/user-guide.md, docs/formats.md."};
    bool help_shown;
    static struct ingest ingest;
    enum result status = options_parse(&usage, options, argc, argv, NULL, &help_shown);
    if (status == OK && !help_shown) {
        signals_install();
        watch_start((double)values.deadline, NULL, true);
        ingest = (struct ingest){.options = &values};
        status = ingest_run(&ingest);
        if (status != OK)
            show_progress(&ingest, true);
        ingest_free(&ingest);
        watch_stop();
    }
    free(values.input.items);
    free(values.model_names.items);
    return status;
}
