/* Any bytes as a shard: refused with a message, or entries that tile the data.
 *
 * Input: a byte that says how to read on. Even: the rest is the whole file. Odd: two bytes with the size of the data
 * (they are never touched, so they need not exist), then the header's text. */
#include "base/json.h"
#include "model/safetensors.h"

#include <stdlib.h> /* abort, malloc */
#include <string.h> /* memcpy */

static struct json_document *document;

static void check_entries(const struct safetensors_header *header, int64_t file_bytes) {
    int64_t at = header->data_begin;
    for (int64_t i = 0; i < header->count; i++) {
        const struct safetensors_entry *entry = &header->entries[i];
        if (entry->begin != at || entry->end <= at || !entry->name[0])
            abort();
        int64_t bytes = entry->shape[0] * entry->shape[1] * tensor_dtype_bytes(entry->dtype);
        if (bytes != entry->end - entry->begin)
            abort();
        at = entry->end;
    }
    if (at != file_bytes)
        abort();
}

static void parse(const unsigned char *file, int64_t bytes) {
    struct safetensors_header header;
    if (safetensors_parse("shard", file, bytes, document, &header) == OK) {
        check_entries(&header, bytes);
        safetensors_header_free(&header);
    } else if (strncmp(failure_message(), "shard: ", 7) != 0)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!document && json_document_create(&document) != OK)
        abort();
    if (size < 1)
        return 0;
    if (data[0] % 2 == 0 || size < 3) {
        parse(data + 1, (int64_t)size - 1);
        return 0;
    }
    size_t text = size - 3;
    int64_t data_bytes = data[1] | (int64_t)data[2] << 8;
    unsigned char *file = malloc(8 + text); /* exact, so that the sanitizer sees reads past the header */
    if (!file)
        return 0;
    for (int i = 0; i < 8; i++)
        file[i] = (unsigned char)((uint64_t)text >> 8 * i);
    memcpy(file + 8, data + 3, text);
    parse(file, 8 + (int64_t)text + data_bytes);
    free(file);
    return 0;
}
