#include "model/safetensors.h"

#include "base/json.h"

#include <stdbool.h> /* bool */
#include <stdio.h>   /* snprintf */
#include <stdlib.h>  /* malloc, free, qsort */
#include <string.h>  /* memcpy, strcmp */

enum { LENGTH_BYTES = 8 };

static const struct {
    const char *name;
    int64_t bytes;
} dtypes[] = {
    [TENSOR_F32] = {"F32", 4},
    [TENSOR_BF16] = {"BF16", 2},
    [TENSOR_F8_E4M3] = {"F8_E4M3", 1},
    [TENSOR_F8_E8M0] = {"F8_E8M0", 1},
    [TENSOR_I8] = {"I8", 1},
};
enum { DTYPES = sizeof dtypes / sizeof dtypes[0] };

const char *tensor_dtype_name(enum tensor_dtype dtype) {
    return dtypes[dtype].name;
}

int64_t tensor_dtype_bytes(enum tensor_dtype dtype) {
    return dtypes[dtype].bytes;
}

const char *shape_text(int32_t dimensions, const int64_t shape[2], char text[SHAPE_TEXT_BYTES]) {
    if (dimensions == 1)
        snprintf(text, SHAPE_TEXT_BYTES, "[%lld]", (long long)shape[0]);
    else
        snprintf(text, SHAPE_TEXT_BYTES, "[%lld, %lld]", (long long)shape[0], (long long)shape[1]);
    return text;
}

/* ---- one entry ---- */

static enum result read_dtype(const char *path, const struct json *member, enum tensor_dtype *dtype) {
    const struct json *value = json_member(member, "dtype");
    for (int i = 0; i < DTYPES; i++) {
        if (json_is_text(value, dtypes[i].name)) {
            *dtype = (enum tensor_dtype)i;
            return OK;
        }
    }
    bool is_text = value && value->kind == JSON_STRING;
    return fail(ERROR_INPUT,
        "%s: tensor %.200s: dtype: expected F32, BF16, F8_E4M3, F8_E8M0 or I8, found %.40s", path,
        member->key, is_text ? value->text : json_kind_name(value));
}

static enum result read_shape(const char *path, const struct json *member, struct safetensors_entry *entry) {
    const struct json *list = json_member(member, "shape");
    if (!list || list->kind != JSON_ARRAY || list->count < 1 || list->count > 2)
        return fail(ERROR_INPUT, "%s: tensor %.200s: shape: expected a list of 1 or 2 sizes, found %s of %zu",
            path, member->key, json_kind_name(list), list ? list->count : 0);
    entry->dimensions = (int32_t)list->count;
    entry->shape[1] = 1;
    int64_t *size = entry->shape;
    for (const struct json *value = list->first; value; value = value->next, size++) {
        if (!json_int64(value, size) || *size < 1)
            return fail(ERROR_INPUT, "%s: tensor %.200s: shape: expected sizes from 1 up, found %.40s", path,
                member->key, value->kind == JSON_NUMBER ? value->text : json_kind_name(value));
    }
    return OK;
}

/* Offsets count from the end of the header; the entry gets them from the start of the file. */
static enum result read_offsets(const char *path, const struct json *member, int64_t data_begin,
    int64_t file_bytes, struct safetensors_entry *entry) {
    const struct json *list = json_member(member, "data_offsets");
    int64_t begin, end, elements, bytes;
    if (!list || list->kind != JSON_ARRAY || list->count != 2 || !json_int64(list->first, &begin) ||
        !json_int64(list->first->next, &end) || begin < 0 || end < begin || end > INT64_MAX - data_begin)
        return fail(ERROR_INPUT, "%s: tensor %.200s: data_offsets: expected [begin, end], 0 <= begin <= end",
            path, member->key);
    entry->begin = data_begin + begin;
    entry->end = data_begin + end;
    char text[SHAPE_TEXT_BYTES];
    shape_text(entry->dimensions, entry->shape, text);
    if (__builtin_mul_overflow(entry->shape[0], entry->shape[1], &elements) ||
        __builtin_mul_overflow(elements, tensor_dtype_bytes(entry->dtype), &bytes))
        return fail(
            ERROR_INPUT, "%s: tensor %.200s: shape: %s is more than a file holds", path, member->key, text);
    if (bytes != end - begin)
        return fail(ERROR_INPUT,
            "%s: tensor %.200s: data_offsets: expected %lld bytes for %s of shape %s, found %lld", path,
            member->key, (long long)bytes, tensor_dtype_name(entry->dtype), text, (long long)(end - begin));
    if (entry->end > file_bytes)
        return fail(ERROR_INPUT,
            "%s: tensor %.200s ends at byte %lld, but the file has %lld: it is truncated, copy it again",
            path, member->key, (long long)entry->end, (long long)file_bytes);
    if (entry->begin % tensor_dtype_bytes(entry->dtype))
        return fail(ERROR_INPUT,
            "%s: tensor %.200s begins at byte %lld, which is no multiple of the %lld bytes of %s: write the "
            "shard "
            "again with aligned tensors",
            path, member->key, (long long)entry->begin, (long long)tensor_dtype_bytes(entry->dtype),
            tensor_dtype_name(entry->dtype));
    return OK;
}

static enum result read_entry(const char *path, const struct json *member, int64_t data_begin,
    int64_t file_bytes, struct safetensors_entry *entry) {
    if (member->kind != JSON_OBJECT)
        return fail(ERROR_INPUT, "%s: tensor %.200s: expected an object, found %s", path, member->key,
            json_kind_name(member));
    if (member->key_bytes == 0 || strlen(member->key) != member->key_bytes)
        return fail(ERROR_INPUT, "%s: tensor %.200s: expected a name without NUL", path, member->key);
    for (const struct json *field = member->first; field; field = field->next) {
        if (strcmp(field->key, "dtype") && strcmp(field->key, "shape") && strcmp(field->key, "data_offsets"))
            return fail(ERROR_INPUT,
                "%s: tensor %.200s: %.60s: unknown field, expected dtype, shape and data_offsets", path,
                member->key, field->key);
    }
    TRY(read_dtype(path, member, &entry->dtype));
    TRY(read_shape(path, member, entry));
    return read_offsets(path, member, data_begin, file_bytes, entry);
}

/* ---- the whole header ---- */

/* Members of all objects inside; the JSON reader bounds the depth. */
static size_t count_members(const struct json *value) {
    size_t members = value->kind == JSON_OBJECT ? value->count : 0;
    for (const struct json *child = value->first; child; child = child->next)
        members += count_members(child);
    return members;
}

/* The JSON reader keeps the last of two members with one name. Colons outside strings are as many as the members that
 * were written: more than the members kept tells that one was dropped. */
static enum result check_duplicates(
    const char *path, const char *text, size_t bytes, const struct json *root) {
    size_t written = 0, kept = count_members(root);
    bool quoted = false;
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] == '"')
            quoted = !quoted;
        else if (quoted && text[i] == '\\')
            i++;
        else if (!quoted && text[i] == ':')
            written++;
    }
    if (written != kept)
        return fail(ERROR_INPUT,
            "%s: the header names %zu tensors and fields, %zu of them different: a name is there twice", path,
            written, kept);
    return OK;
}

static int compare_begin(const void *a, const void *b) {
    const struct safetensors_entry *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

/* Entries are sorted and none is empty. */
static enum result check_tiling(
    const char *path, const struct safetensors_header *header, int64_t file_bytes) {
    int64_t at = header->data_begin;
    const char *previous = "the header";
    for (int64_t i = 0; i < header->count; i++) {
        const struct safetensors_entry *entry = &header->entries[i];
        if (entry->begin != at)
            return fail(ERROR_INPUT,
                "%s: tensor %.200s: expected at byte %lld, the end of %.200s, found at %lld: %s", path,
                entry->name, (long long)at, previous, (long long)entry->begin,
                entry->begin < at ? "they overlap" : "there is a gap");
        at = entry->end;
        previous = entry->name;
    }
    if (at != file_bytes)
        return fail(ERROR_INPUT, "%s: expected %lld bytes, the end of the last tensor, found %lld", path,
            (long long)at, (long long)file_bytes);
    return OK;
}

/* The names follow each other in one allocation. */
static enum result allocate_entries(
    const char *path, const struct json *root, struct safetensors_header *header) {
    size_t bytes = 1;
    for (const struct json *member = root->first; member; member = member->next)
        bytes += member->key_bytes + 1;
    header->names = malloc(bytes);
    header->entries = calloc(root->count + 1, sizeof header->entries[0]);
    if (!header->names || !header->entries)
        return fail(ERROR_MEMORY, "%s: no memory for %zu tensor names", path, root->count);
    return OK;
}

static enum result read_entries(
    const char *path, const struct json *root, int64_t file_bytes, struct safetensors_header *header) {
    TRY(allocate_entries(path, root, header));
    char *name = header->names;
    for (const struct json *member = root->first; member; member = member->next) {
        if (!strcmp(member->key, "__metadata__")) {
            if (member->kind != JSON_OBJECT)
                return fail(ERROR_INPUT, "%s: __metadata__: expected an object, found %s", path,
                    json_kind_name(member));
            continue;
        }
        struct safetensors_entry *entry = &header->entries[header->count++];
        TRY(read_entry(path, member, header->data_begin, file_bytes, entry));
        memcpy(name, member->key, member->key_bytes + 1);
        entry->name = name;
        name += member->key_bytes + 1;
    }
    qsort(header->entries, (size_t)header->count, sizeof header->entries[0], compare_begin);
    return check_tiling(path, header, file_bytes);
}

static enum result header_bytes(const char *path, const void *file, int64_t file_bytes, int64_t *bytes) {
    if (file_bytes < LENGTH_BYTES)
        return fail(ERROR_INPUT, "%s: expected at least %d bytes, found %lld: the file is truncated", path,
            LENGTH_BYTES, (long long)file_bytes);
    const unsigned char *byte = file;
    uint64_t length = 0;
    for (int i = 0; i < LENGTH_BYTES; i++)
        length |= (uint64_t)byte[i] << 8 * i;
    if (length > SAFETENSORS_HEADER_LIMIT)
        return fail(ERROR_INPUT,
            "%s: expected a header of at most %d bytes, found %llu: this is no safetensors file", path,
            SAFETENSORS_HEADER_LIMIT, (unsigned long long)length);
    if ((int64_t)length > file_bytes - LENGTH_BYTES)
        return fail(ERROR_INPUT,
            "%s: expected %llu bytes of header and data, found a file of %lld bytes: it is truncated, copy "
            "it again",
            path, (unsigned long long)length + LENGTH_BYTES, (long long)file_bytes);
    *bytes = (int64_t)length;
    return OK;
}

enum result safetensors_parse(const char *path, const void *file, int64_t file_bytes,
    struct json_document *document, struct safetensors_header *header) {
    int64_t bytes = 0;
    const struct json *root;
    *header = (struct safetensors_header){0};
    TRY(header_bytes(path, file, file_bytes, &bytes));
    const char *text = (const char *)file + LENGTH_BYTES;
    header->data_begin = LENGTH_BYTES + bytes;
    if (json_parse(document, text, (size_t)bytes, &root) != OK)
        return fail_context(ERROR_INPUT, "%s: the header is not the JSON of a safetensors file", path);
    if (root->kind != JSON_OBJECT)
        return fail(ERROR_INPUT, "%s: the header: expected an object, found %s", path, json_kind_name(root));
    enum result status = check_duplicates(path, text, (size_t)bytes, root);
    if (status == OK)
        status = read_entries(path, root, file_bytes, header);
    if (status != OK)
        safetensors_header_free(header);
    return status;
}

void safetensors_header_free(struct safetensors_header *header) {
    free(header->entries);
    free(header->names);
    *header = (struct safetensors_header){0};
}
