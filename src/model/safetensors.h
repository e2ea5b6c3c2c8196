/* The header of one safetensors shard.
 *
 * FORMAT: 8 bytes little-endian: size n of the header; n bytes of JSON, an object
 *     {"NAME": {"dtype": "BF16", "shape": [rows, columns], "data_offsets": [begin, end]}, ..., "__metadata__": {...}}
 * then the tensors' bytes; offsets count from the end of the header. The tensors tile the rest of the file: no gaps, no
 * overlaps, nothing after the last.
 */
#ifndef NOCTURNE_MODEL_SAFETENSORS_H
#define NOCTURNE_MODEL_SAFETENSORS_H

#include "base/error.h"

#include <stddef.h> /* size_t */
#include <stdint.h> /* int32_t, int64_t */

enum tensor_dtype { TENSOR_F32, TENSOR_BF16, TENSOR_F8_E4M3, TENSOR_F8_E8M0, TENSOR_I8 };

enum {
    SAFETENSORS_HEADER_LIMIT = 32 << 20
}; /* bytes of JSON: twice what a whole large model in one file takes */

struct safetensors_entry {
    const char *name; /* owned by the header */
    enum tensor_dtype dtype;
    int32_t dimensions; /* 1 or 2 */
    int64_t shape[2];   /* each >= 1; shape[1] is 1 when there is one dimension */
    int64_t begin, end; /* bytes from the start of the file */
};

struct safetensors_header {
    struct safetensors_entry *entries; /* [count], in the order of the file's bytes */
    int64_t count;
    int64_t data_begin; /* first byte after the header */
    char *names;        /* all names, NUL-terminated */
};

struct json_document;

/* Reads the header of a whole file in memory (its data are not touched). `path` is for messages; `document` is scratch.
 * ERROR_INPUT: the message names the file and the tensor. Data must be aligned to their elements, as every known
 * writer does. On success the header is freed by safetensors_header_free. */
MUST_CHECK enum result safetensors_parse(const char *path, const void *file, int64_t file_bytes,
    struct json_document *document, struct safetensors_header *header);
void safetensors_header_free(struct safetensors_header *header);

const char *tensor_dtype_name(enum tensor_dtype dtype); /* as in the file: "F8_E4M3" */
int64_t tensor_dtype_bytes(enum tensor_dtype dtype);    /* of one element */

/* "[384, 5120]", for messages. */
enum { SHAPE_TEXT_BYTES = 48 };
const char *shape_text(int32_t dimensions, const int64_t shape[2], char text[SHAPE_TEXT_BYTES]);

#endif
