#include "model/checkpoint.h"

#include "base/json.h"
#include "model/checkpoint_layout.h"

#include <dirent.h>   /* opendir, readdir */
#include <errno.h>    /* errno, ENOENT */
#include <fcntl.h>    /* open */
#include <limits.h>   /* PATH_MAX */
#include <stdlib.h>   /* calloc, free, qsort */
#include <string.h>   /* strcmp, strlen */
#include <sys/mman.h> /* mmap */
#include <sys/stat.h> /* fstat */
#include <unistd.h>   /* close, access */
#include <xxhash.h>   /* XXH3 */

static const char index_name[] = "model.safetensors.index.json";
static const char token_map_name[] = "engram_token_map.json";
static const char suffix[] = ".safetensors";

enum {
    INDEX_BYTES = 64 << 20,      /* six times the index of a model of 96,000 tensors */
    TOKEN_MAP_BYTES = 256 << 20, /* a number of eight digits for each id of the largest vocabulary */
    EDGE_BYTES = 4096,           /* of a shard's first and last data that enter the fingerprint */
    FINGERPRINT_DIGITS = 32,
};

struct shard {
    char *name;
    void *map; /* the whole file, or NULL */
    int64_t bytes;
    struct safetensors_header header;
};

struct checkpoint {
    char *folder;
    struct model_config config;
    struct shard *shards; /* in the order of their names */
    int32_t shard_count, shard_capacity;
    struct tensor *tensors; /* in the order of shards, then of bytes */
    int64_t tensor_count, tensor_bytes;
    int32_t *slots; /* hash table by name: index + 1 of a tensor, 0: free */
    uint64_t slot_mask;
    int32_t *token_map; /* [vocab_size], or NULL */
    char fingerprint[FINGERPRINT_DIGITS + 1];
};

static enum result join_path(const struct checkpoint *checkpoint, const char *name, char path[PATH_MAX]) {
    if (snprintf(path, PATH_MAX, "%s/%s", checkpoint->folder, name) >= PATH_MAX)
        return fail(ERROR_INPUT, "%s: the path is too long", checkpoint->folder);
    return OK;
}

/* ---- shards ---- */

static enum result add_shard(struct checkpoint *checkpoint, const char *name) {
    if (checkpoint->shard_count == checkpoint->shard_capacity) {
        int32_t capacity = checkpoint->shard_capacity ? 2 * checkpoint->shard_capacity : 64;
        struct shard *shards = realloc(checkpoint->shards, (size_t)capacity * sizeof shards[0]);
        if (!shards)
            return fail(ERROR_MEMORY, "%s: no memory for %d shards", checkpoint->folder, capacity);
        checkpoint->shards = shards;
        checkpoint->shard_capacity = capacity;
    }
    char *copy = strdup(name);
    if (!copy)
        return fail(ERROR_MEMORY, "%s: no memory for a shard's name", checkpoint->folder);
    checkpoint->shards[checkpoint->shard_count++] = (struct shard){.name = copy};
    return OK;
}

static int compare_names(const void *a, const void *b) {
    const struct shard *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static bool is_shard_name(const char *name) {
    size_t length = strlen(name);
    return name[0] != '.' && length >= sizeof suffix && !strcmp(name + length - (sizeof suffix - 1), suffix);
}

static enum result list_shards(struct checkpoint *checkpoint) {
    enum result status = OK;
    DIR *folder = opendir(checkpoint->folder);
    if (!folder)
        return fail_errno(ERROR_IO, "%s: cannot open the checkpoint's folder", checkpoint->folder);
    errno = 0;
    for (struct dirent *entry; status == OK && (entry = readdir(folder)); errno = 0)
        if (is_shard_name(entry->d_name))
            status = add_shard(checkpoint, entry->d_name);
    if (status == OK && errno)
        status = fail_errno(ERROR_IO, "%s: cannot list the checkpoint's folder", checkpoint->folder);
    closedir(folder);
    if (status == OK && checkpoint->shard_count == 0)
        status = fail(
            ERROR_INPUT, "%s: expected a checkpoint's shards (*%s), found none", checkpoint->folder, suffix);
    if (status == OK)
        qsort(
            checkpoint->shards, (size_t)checkpoint->shard_count, sizeof checkpoint->shards[0], compare_names);
    return status;
}

static enum result map_file(const char *path, void **map, int64_t *bytes) {
    enum result status = OK;
    struct stat file_status;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return fail_errno(ERROR_IO, "%s: cannot open the shard", path);
    if (fstat(file, &file_status) < 0) {
        status = fail_errno(ERROR_IO, "%s: cannot read the file's size", path);
        goto done;
    }
    if (!S_ISREG(file_status.st_mode)) {
        status = fail(ERROR_INPUT, "%s: expected a regular file", path);
        goto done;
    }
    *bytes = file_status.st_size;
    if (*bytes == 0)
        goto done; /* the header's check tells */
    void *start = mmap(NULL, (size_t)*bytes, PROT_READ, MAP_SHARED, file, 0);
    if (start == MAP_FAILED)
        status = fail_errno(ERROR_IO, "%s: cannot map the shard's %lld bytes", path, (long long)*bytes);
    else
        *map = start;
done:
    close(file);
    return status;
}

static enum result open_shard(
    struct checkpoint *checkpoint, struct shard *shard, struct json_document *document) {
    char path[PATH_MAX];
    TRY(join_path(checkpoint, shard->name, path));
    TRY(map_file(path, &shard->map, &shard->bytes));
    TRY(safetensors_parse(path, shard->map, shard->bytes, document, &shard->header));
    checkpoint->tensor_count += shard->header.count;
    checkpoint->tensor_bytes += shard->bytes - shard->header.data_begin;
    if (checkpoint->tensor_count > INT32_MAX / 2)
        return fail(ERROR_INPUT, "%s: the shards hold more than %d tensors", path, INT32_MAX / 2);
    return OK;
}

/* ---- tensors by name ---- */

/* The slot that holds `name`, or the free one where it would go. */
static int32_t *find_slot(const struct checkpoint *checkpoint, const char *name) {
    uint64_t at = XXH3_64bits(name, strlen(name));
    for (;; at++) {
        int32_t *slot = &checkpoint->slots[at & checkpoint->slot_mask];
        if (!*slot || !strcmp(checkpoint->tensors[*slot - 1].name, name))
            return slot;
    }
}

static enum result insert_tensor(struct checkpoint *checkpoint, int32_t index) {
    const struct tensor *tensor = &checkpoint->tensors[index];
    int32_t *slot = find_slot(checkpoint, tensor->name);
    if (*slot)
        return fail(ERROR_INPUT, "%s: tensor %.200s is in two shards, %s and %s", checkpoint->folder,
            tensor->name, checkpoint->shards[checkpoint->tensors[*slot - 1].shard].name,
            checkpoint->shards[tensor->shard].name);
    *slot = index + 1;
    return OK;
}

static enum result collect_tensors(struct checkpoint *checkpoint) {
    uint64_t slots = 64;
    while (slots < 2 * (uint64_t)checkpoint->tensor_count)
        slots *= 2;
    checkpoint->slot_mask = slots - 1;
    checkpoint->slots = calloc(slots, sizeof checkpoint->slots[0]);
    checkpoint->tensors = calloc((size_t)checkpoint->tensor_count + 1, sizeof checkpoint->tensors[0]);
    if (!checkpoint->slots || !checkpoint->tensors)
        return fail(ERROR_MEMORY, "%s: no memory for %lld tensors' places", checkpoint->folder,
            (long long)checkpoint->tensor_count);
    int32_t index = 0;
    for (int32_t s = 0; s < checkpoint->shard_count; s++) {
        const struct shard *shard = &checkpoint->shards[s];
        for (int64_t i = 0; i < shard->header.count; i++, index++) {
            const struct safetensors_entry *entry = &shard->header.entries[i];
            checkpoint->tensors[index] = (struct tensor){
                .name = entry->name,
                .data = (const char *)shard->map + entry->begin,
                .dtype = entry->dtype,
                .dimensions = entry->dimensions,
                .shape = {entry->shape[0], entry->shape[1]},
                .bytes = entry->end - entry->begin,
                .shard = s,
            };
            TRY(insert_tensor(checkpoint, index));
        }
    }
    if (index != checkpoint->tensor_count)
        return fail(ERROR_INTERNAL, "%s: %lld tensors counted, %d found", checkpoint->folder,
            (long long)checkpoint->tensor_count, index);
    return OK;
}

/* ---- the index ---- */

static int32_t find_shard(const struct checkpoint *checkpoint, const char *name) {
    const struct shard key = {.name = (char *)name};
    const struct shard *shard = bsearch(&key, checkpoint->shards, (size_t)checkpoint->shard_count,
        sizeof checkpoint->shards[0], compare_names);
    return shard ? (int32_t)(shard - checkpoint->shards) : -1;
}

/* Every shard the index names is there. Comes before the shards are opened, so that a half-copied folder gives this
 * message. */
static enum result check_index_shards(
    const struct checkpoint *checkpoint, const char *path, const struct json *weight_map) {
    if (!weight_map || weight_map->kind != JSON_OBJECT)
        return fail(
            ERROR_INPUT, "%s: weight_map: expected an object, found %s", path, json_kind_name(weight_map));
    for (const struct json *entry = weight_map->first; entry; entry = entry->next) {
        if (entry->kind != JSON_STRING)
            return fail(ERROR_INPUT, "%s: weight_map: %.200s: expected a shard's name, found %s", path,
                entry->key, json_kind_name(entry));
        if (find_shard(checkpoint, entry->text) < 0)
            return fail(ERROR_INPUT,
                "%s: tensor %.200s should be in shard %.200s, which is missing from the folder: copy it "
                "again",
                path, entry->key, entry->text);
    }
    return OK;
}

/* The index and the shards' headers name the same tensors in the same places. `is_named` [tensor_count] is zeroed. */
static enum result compare_index(
    const struct checkpoint *checkpoint, const char *path, const struct json *weight_map, bool *is_named) {
    for (const struct json *entry = weight_map->first; entry; entry = entry->next) {
        const struct tensor *tensor = checkpoint_tensor(checkpoint, entry->key);
        if (!tensor)
            return fail(ERROR_INPUT,
                "%s: tensor %.200s: expected in shard %.200s, but that file's header does not name it", path,
                entry->key, entry->text);
        const char *shard = checkpoint->shards[tensor->shard].name;
        if (strcmp(shard, entry->text) != 0)
            return fail(ERROR_INPUT, "%s: tensor %.200s: expected in shard %.200s, found in %s", path,
                entry->key, entry->text, shard);
        is_named[tensor - checkpoint->tensors] = true;
    }
    for (int64_t i = 0; i < checkpoint->tensor_count; i++) {
        const struct tensor *tensor = &checkpoint->tensors[i];
        if (!is_named[i])
            return fail(ERROR_INPUT, "%s: shard %s holds tensor %.200s, which the index does not name", path,
                checkpoint->shards[tensor->shard].name, tensor->name);
    }
    for (int32_t i = 0; i < checkpoint->shard_count; i++)
        if (checkpoint->shards[i].header.count == 0)
            return fail(
                ERROR_INPUT, "%s: shard %s holds no tensor: remove it", path, checkpoint->shards[i].name);
    return OK;
}

static enum result check_index_tensors(
    const struct checkpoint *checkpoint, const char *path, const struct json *weight_map) {
    bool *is_named = calloc((size_t)checkpoint->tensor_count + 1, sizeof is_named[0]);
    if (!is_named)
        return fail(ERROR_MEMORY, "%s: no memory to compare the index", path);
    enum result status = compare_index(checkpoint, path, weight_map, is_named);
    free(is_named);
    return status;
}

static enum result open_shards(struct checkpoint *checkpoint) {
    enum result status;
    struct json_document *index = NULL, *header = NULL;
    const struct json *root, *weight_map = NULL;
    char path[PATH_MAX];
    TRY_GOTO(status, list_shards(checkpoint), done);
    TRY_GOTO(status, join_path(checkpoint, index_name, path), done);
    TRY_GOTO(status, json_document_create(&index), done);
    TRY_GOTO(status, json_document_create(&header), done);
    if (access(path, F_OK) == 0) {
        TRY_GOTO(status, model_file_check_size(path, INDEX_BYTES), done);
        TRY_GOTO(status, json_parse_file(index, path, &root), done);
        weight_map = json_member(root, "weight_map");
        TRY_GOTO(status, check_index_shards(checkpoint, path, weight_map), done);
    } else if (checkpoint->shard_count > 1) {
        status = fail(ERROR_INPUT, "%s: the file is missing: expected it beside %d shards (%s, ...)", path,
            checkpoint->shard_count, checkpoint->shards[0].name);
        goto done;
    }
    for (int32_t i = 0; i < checkpoint->shard_count; i++)
        TRY_GOTO(status, open_shard(checkpoint, &checkpoint->shards[i], header), done);
    TRY_GOTO(status, collect_tensors(checkpoint), done);
    if (weight_map)
        status = check_index_tensors(checkpoint, path, weight_map);
done:
    json_document_free(index);
    json_document_free(header);
    return status;
}

/* ---- the tensors against the configuration ---- */

#define KNOWN_LAYOUT                                                                                         \
    "Known: a .weight of F8_E4M3 with a .scale of F8_E8M0 per 32 x 32 tile (routed experts: I8 with FP4 "    \
    "codes, one "                                                                                            \
    "scale per row and 32 columns). Convert the checkpoint"

static bool ends_with(const char *text, const char *end) {
    size_t length = strlen(text), end_length = strlen(end);
    return length >= end_length && !strcmp(text + length - end_length, end);
}

/* Derivatives of published checkpoints store scales under other names; said first, for it explains what is missing. */
static enum result check_scale_names(const struct checkpoint *checkpoint) {
    for (int64_t i = 0; i < checkpoint->tensor_count; i++) {
        const struct tensor *tensor = &checkpoint->tensors[i];
        if (ends_with(tensor->name, "scale_inv") || ends_with(tensor->name, "weight_scale"))
            return fail(ERROR_INPUT, "%s/%s: tensor %.200s: unknown layout of scales. " KNOWN_LAYOUT,
                checkpoint->folder, checkpoint->shards[tensor->shard].name, tensor->name);
    }
    return OK;
}

struct layout_check {
    const struct checkpoint *checkpoint;
    bool *is_expected; /* [tensor_count] */
};

static enum result check_tensor(void *context, const struct expected_tensor *expected) {
    struct layout_check *check = context;
    const struct checkpoint *checkpoint = check->checkpoint;
    const struct tensor *tensor = checkpoint_tensor(checkpoint, expected->name);
    char wanted[SHAPE_TEXT_BYTES], got[SHAPE_TEXT_BYTES];
    shape_text(expected->dimensions, expected->shape, wanted);
    if (!tensor)
        return fail(ERROR_INPUT, "%s: tensor %s is missing: config.json calls for one of %s, shape %s",
            checkpoint->folder, expected->name, tensor_dtype_name(expected->dtype), wanted);
    const char *shard = checkpoint->shards[tensor->shard].name;
    if (tensor->dtype != expected->dtype && !(expected->or_bf16 && tensor->dtype == TENSOR_BF16))
        return fail(ERROR_INPUT, "%s/%s: tensor %s: expected dtype %s, found %s%s", checkpoint->folder, shard,
            tensor->name, tensor_dtype_name(expected->dtype), tensor_dtype_name(tensor->dtype),
            expected->dtype == TENSOR_F8_E8M0 ? ": unknown layout of scales. " KNOWN_LAYOUT : "");
    shape_text(tensor->dimensions, tensor->shape, got);
    if (tensor->dimensions != expected->dimensions || tensor->shape[0] != expected->shape[0] ||
        tensor->shape[1] != expected->shape[1])
        return fail(ERROR_INPUT, "%s/%s: tensor %s: expected shape %s by config.json, found %s",
            checkpoint->folder, shard, tensor->name, wanted, got);
    check->is_expected[tensor - checkpoint->tensors] = true;
    return OK;
}

static const char *unknown_hint(const struct checkpoint *checkpoint, const char *name) {
    const struct model_config *config = &checkpoint->config;
    if (!config->vision.present &&
        (!strncmp(name, "vision.", 7) || !strncmp(name, "aligner.", 8) || !strncmp(name, "image_", 6)))
        return " (it has no vision_config)";
    if (config->n_mtp_layers == 0 && !strncmp(name, "mtp.", 4))
        return " (its n_mtp_layers is 0)";
    if (config->engram_layers == 0 && strstr(name, ".engram."))
        return " (its engram_layer_ids is empty)";
    return "";
}

static enum result check_layout(const struct checkpoint *checkpoint) {
    enum result status;
    struct layout_check check = {.checkpoint = checkpoint};
    TRY(check_scale_names(checkpoint));
    check.is_expected = calloc((size_t)checkpoint->tensor_count + 1, sizeof check.is_expected[0]);
    if (!check.is_expected)
        return fail(ERROR_MEMORY, "%s: no memory to check %lld tensors", checkpoint->folder,
            (long long)checkpoint->tensor_count);
    TRY_GOTO(status, checkpoint_layout_visit(&checkpoint->config, check_tensor, &check), done);
    for (int64_t i = 0; i < checkpoint->tensor_count; i++) {
        const struct tensor *tensor = &checkpoint->tensors[i];
        if (check.is_expected[i])
            continue;
        status =
            fail(ERROR_INPUT, "%s/%s: tensor %.200s is none that config.json calls for%s", checkpoint->folder,
                checkpoint->shards[tensor->shard].name, tensor->name, unknown_hint(checkpoint, tensor->name));
        break;
    }
done:
    free(check.is_expected);
    return status;
}

/* ---- Engram's token map ---- */

static enum result read_token_map(struct checkpoint *checkpoint, const char *path, const struct json *root) {
    int32_t vocabulary = checkpoint->config.vocab_size;
    int32_t limit = checkpoint->config.engram_compressed_vocab_size;
    if (root->kind != JSON_ARRAY || root->count != (size_t)vocabulary)
        return fail(ERROR_INPUT, "%s: expected a list of %d compressed ids (vocab_size), found %s of %zu",
            path, vocabulary, json_kind_name(root), root->count);
    checkpoint->token_map = malloc((size_t)vocabulary * sizeof checkpoint->token_map[0]);
    if (!checkpoint->token_map)
        return fail(ERROR_MEMORY, "%s: no memory for %d ids", path, vocabulary);
    int32_t *id = checkpoint->token_map;
    for (const struct json *value = root->first; value; value = value->next, id++) {
        int64_t number;
        if (!json_int64(value, &number) || number < 0 || number >= limit)
            return fail(ERROR_INPUT,
                "%s: entry %lld: expected an integer from 0 to %d (engram_compressed_vocab_size - 1), found "
                "%.40s",
                path, (long long)(id - checkpoint->token_map), limit - 1,
                value->kind == JSON_NUMBER ? value->text : json_kind_name(value));
        *id = (int32_t)number;
    }
    return OK;
}

static enum result load_token_map(struct checkpoint *checkpoint) {
    enum result status;
    struct json_document *document;
    const struct json *root;
    char path[PATH_MAX];
    if (checkpoint->config.engram_layers == 0)
        return OK;
    TRY(join_path(checkpoint, token_map_name, path));
    if (access(path, F_OK) < 0 && errno == ENOENT)
        return fail(ERROR_INPUT,
            "%s: the file is missing: a model with Engram layers needs it, a list with the compressed id of "
            "each "
            "of the %d tokens",
            path, checkpoint->config.vocab_size);
    TRY(model_file_check_size(path, TOKEN_MAP_BYTES));
    TRY(json_document_create(&document));
    TRY_GOTO(status, json_parse_file(document, path, &root), done);
    status = read_token_map(checkpoint, path, root);
done:
    json_document_free(document);
    return status;
}

/* ---- fingerprint ---- */

static enum result hash_file(const struct checkpoint *checkpoint, const char *name, XXH3_state_t *state) {
    char path[PATH_MAX], block[65536];
    int64_t total = -1;
    TRY(join_path(checkpoint, name, path));
    FILE *file = fopen(path, "rbe");
    if (!file && errno != ENOENT)
        return fail_errno(ERROR_IO, "%s: cannot open the file", path);
    if (file) {
        total = 0;
        for (size_t got; (got = fread(block, 1, sizeof block, file)) > 0; total += (int64_t)got)
            XXH3_128bits_update(state, block, got);
        bool failed = ferror(file);
        fclose(file);
        if (failed)
            return fail(ERROR_IO, "%s: cannot read the file", path);
    }
    XXH3_128bits_update(state, &total, sizeof total);
    return OK;
}

static void hash_shard_edges(const struct shard *shard, XXH3_state_t *state) {
    int64_t data = shard->bytes - shard->header.data_begin;
    size_t edge = (size_t)(data < EDGE_BYTES ? data : EDGE_BYTES);
    XXH3_128bits_update(state, &shard->bytes, sizeof shard->bytes);
    if (!edge)
        return; /* a shard without tensors */
    XXH3_128bits_update(state, (const char *)shard->map + shard->header.data_begin, edge);
    XXH3_128bits_update(state, (const char *)shard->map + shard->bytes - edge, edge);
}

static enum result make_fingerprint(struct checkpoint *checkpoint) {
    enum result status;
    XXH3_state_t *state = XXH3_createState();
    if (!state)
        return fail(ERROR_MEMORY, "%s: no memory for the fingerprint", checkpoint->folder);
    XXH3_128bits_reset(state);
    TRY_GOTO(status, hash_file(checkpoint, "config.json", state), done);
    TRY_GOTO(status, hash_file(checkpoint, "tokenizer.json", state), done);
    TRY_GOTO(status, hash_file(checkpoint, token_map_name, state), done);
    for (int64_t i = 0; i < checkpoint->tensor_count; i++) {
        const struct tensor *tensor = &checkpoint->tensors[i];
        const char *start = checkpoint->shards[tensor->shard].map;
        const int64_t facts[] = {tensor->dtype, tensor->dimensions, tensor->shape[0], tensor->shape[1],
            tensor->shard, (const char *)tensor->data - start};
        XXH3_128bits_update(state, tensor->name, strlen(tensor->name) + 1);
        XXH3_128bits_update(state, facts, sizeof facts);
    }
    for (int32_t i = 0; i < checkpoint->shard_count; i++)
        hash_shard_edges(&checkpoint->shards[i], state);
    XXH128_hash_t hash = XXH3_128bits_digest(state);
    snprintf(checkpoint->fingerprint, sizeof checkpoint->fingerprint, "%016llx%016llx",
        (unsigned long long)hash.high64, (unsigned long long)hash.low64);
done:
    XXH3_freeState(state);
    return status;
}

/* ---- the interface ---- */

enum result checkpoint_open(const char *folder, struct checkpoint **result) {
    enum result status;
    struct checkpoint *checkpoint = calloc(1, sizeof *checkpoint);
    if (checkpoint)
        checkpoint->folder = strdup(folder);
    if (!checkpoint || !checkpoint->folder) {
        free(checkpoint);
        return fail(ERROR_MEMORY, "%s: no memory to open the checkpoint", folder);
    }
    TRY_GOTO(status, model_config_load(folder, &checkpoint->config), done);
    TRY_GOTO(status, open_shards(checkpoint), done);
    TRY_GOTO(status, check_layout(checkpoint), done);
    TRY_GOTO(status, load_token_map(checkpoint), done);
    TRY_GOTO(status, make_fingerprint(checkpoint), done);
    *result = checkpoint;
    checkpoint = NULL;
done:
    checkpoint_close(checkpoint);
    return status;
}

void checkpoint_forget_pages(const void *data, int64_t bytes) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), begin = (uintptr_t)data,
              end = begin + (uintptr_t)bytes;
    begin = (begin + page - 1) / page * page; /* whole pages only: the rest may be a neighbour's */
    end = end / page * page;
    if (begin < end)
        (void)madvise((void *)begin, end - begin, MADV_DONTNEED); /* a hint */
}

void checkpoint_close(struct checkpoint *checkpoint) {
    if (!checkpoint)
        return;
    for (int32_t i = 0; i < checkpoint->shard_count; i++) {
        struct shard *shard = &checkpoint->shards[i];
        if (shard->map)
            munmap(shard->map, (size_t)shard->bytes);
        safetensors_header_free(&shard->header);
        free(shard->name);
    }
    free(checkpoint->shards);
    free(checkpoint->tensors);
    free(checkpoint->slots);
    free(checkpoint->token_map);
    free(checkpoint->folder);
    free(checkpoint);
}

const char *checkpoint_folder(const struct checkpoint *checkpoint) {
    return checkpoint->folder;
}

const struct model_config *checkpoint_config(const struct checkpoint *checkpoint) {
    return &checkpoint->config;
}

const char *checkpoint_fingerprint(const struct checkpoint *checkpoint) {
    return checkpoint->fingerprint;
}

int64_t checkpoint_tensor_count(const struct checkpoint *checkpoint) {
    return checkpoint->tensor_count;
}

int64_t checkpoint_tensor_bytes(const struct checkpoint *checkpoint) {
    return checkpoint->tensor_bytes;
}

const struct tensor *checkpoint_tensor_at(const struct checkpoint *checkpoint, int64_t index) {
    return &checkpoint->tensors[index];
}

int32_t checkpoint_shard_count(const struct checkpoint *checkpoint) {
    return checkpoint->shard_count;
}

const char *checkpoint_shard_name(const struct checkpoint *checkpoint, int32_t shard) {
    return checkpoint->shards[shard].name;
}

const struct tensor *checkpoint_tensor(const struct checkpoint *checkpoint, const char *name) {
    int32_t slot = *find_slot(checkpoint, name);
    return slot ? &checkpoint->tensors[slot - 1] : NULL;
}

const int32_t *checkpoint_engram_token_map(const struct checkpoint *checkpoint) {
    return checkpoint->token_map;
}

static enum result weight_format(
    const struct tensor *weight, const struct tensor *scale, enum weight_format *format) {
    switch (weight->dtype) {
    case TENSOR_F32:
        *format = WEIGHT_F32;
        return OK;
    case TENSOR_BF16:
        *format = WEIGHT_BF16;
        return OK;
    case TENSOR_F8_E4M3:
        if (!scale)
            break;
        *format = scale->shape[0] == (weight->shape[0] + 31) / 32 ? WEIGHT_FP8_TILE : WEIGHT_FP8_ROW;
        return OK;
    case TENSOR_I8:
        if (!scale)
            break;
        *format = WEIGHT_FP4_ROW;
        return OK;
    case TENSOR_F8_E8M0:
        break;
    }
    return fail(ERROR_INTERNAL, "tensor %s (%s) is no weight with a known scale", weight->name,
        tensor_dtype_name(weight->dtype));
}

enum result checkpoint_matrix(
    const struct checkpoint *checkpoint, const char *prefix, struct matrix *matrix) {
    char name[256];
    snprintf(name, sizeof name, "%s.weight", prefix);
    const struct tensor *weight = checkpoint_tensor(checkpoint, name), *scale = NULL;
    if (weight) {
        snprintf(name, sizeof name, "%s.scale", prefix);
        scale = checkpoint_tensor(checkpoint, name);
    } else
        weight = checkpoint_tensor(checkpoint, prefix);
    if (!weight || weight->dimensions != 2)
        return fail(ERROR_INTERNAL, "%s: the checkpoint has no matrix of this name", prefix);
    int64_t columns = weight->dtype == TENSOR_I8 ? 2 * weight->shape[1] : weight->shape[1];
    if (weight->shape[0] > INT32_MAX || columns > INT32_MAX)
        return fail(ERROR_INTERNAL, "%s: a matrix of more than %d rows or columns", prefix, INT32_MAX);
    *matrix = (struct matrix){
        .values = weight->data,
        .scales = scale ? scale->data : NULL,
        .rows = (int32_t)weight->shape[0],
        .columns = (int32_t)columns,
    };
    return weight_format(weight, scale, &matrix->format);
}
