/* A checkpoint in the published format: config.json, model.safetensors.index.json and its safetensors shards.
 *
 * Shards are mapped read-only and shared through the page cache; nothing is copied. Opening reads the headers only
 * and checks every tensor the configuration calls for (name, dtype, shape, place inside its file).
 */
#ifndef NOCTURNE_MODEL_CHECKPOINT_H
#define NOCTURNE_MODEL_CHECKPOINT_H

#include "base/error.h"
#include "kernels/kernels.h" /* struct matrix */
#include "model/config.h"
#include "model/safetensors.h" /* enum tensor_dtype */

#include <stdbool.h> /* bool */
#include <stdint.h>  /* int64_t */
#include <stdio.h>   /* FILE */

struct tensor {
    const char *name;
    const void *data; /* inside the mapping, aligned to its elements */
    enum tensor_dtype dtype;
    int32_t dimensions; /* 1 or 2 */
    int64_t shape[2];   /* shape[1] is 1 when there is one dimension */
    int64_t bytes;
    int32_t shard;
};

struct checkpoint;

/* Opens FOLDER. ERROR_INPUT names file, tensor, expected and found for: config faults (config.h), a missing or extra
 * shard, a missing or unknown tensor, a wrong dtype or shape, overlapping or out-of-range offsets, a truncated file,
 * an index that disagrees with the headers. */
MUST_CHECK enum result checkpoint_open(const char *folder, struct checkpoint **checkpoint);
void checkpoint_close(struct checkpoint *checkpoint); /* unmaps: pointers into it end */

const char *checkpoint_folder(const struct checkpoint *checkpoint);
const struct model_config *checkpoint_config(const struct checkpoint *checkpoint);

/* 32 hexadecimal digits that change when the configuration, tokenizer.json, engram_token_map.json, a tensor's name,
 * type, shape or place, or a shard's size changes; and when the first or last 4 KiB of any shard's data do. */
const char *checkpoint_fingerprint(const struct checkpoint *checkpoint);

/* Number of tensors and their total bytes. */
int64_t checkpoint_tensor_count(const struct checkpoint *checkpoint);
int64_t checkpoint_tensor_bytes(const struct checkpoint *checkpoint);

/* Tensor `index` of checkpoint_tensor_count, in the order of shards and of bytes inside them. */
const struct tensor *checkpoint_tensor_at(const struct checkpoint *checkpoint, int64_t index);

int32_t checkpoint_shard_count(const struct checkpoint *checkpoint);
const char *checkpoint_shard_name(
    const struct checkpoint *checkpoint, int32_t shard); /* without the folder */

/* The tensor by its full name, or NULL. O(1). */
const struct tensor *checkpoint_tensor(const struct checkpoint *checkpoint, const char *name);

/* The linear layer `prefix` ("layers.0.attn.wq_a"): its .weight and, for FP8 and FP4, its .scale, as a matrix for
 * kernels; or the tensor named `prefix` itself ("layers.0.hc_attn_fn"). ERROR_INTERNAL when there is no such tensor (opening has checked all that the configuration needs). */
MUST_CHECK enum result checkpoint_matrix(
    const struct checkpoint *checkpoint, const char *prefix, struct matrix *matrix);

/* The process no longer counts the pages of mapped data that it has copied; they stay in the page cache and come back
 * when they are read again. */
void checkpoint_forget_pages(const void *data, int64_t bytes);

/* The compressed Engram id of each token [vocab_size], owned by the checkpoint; NULL when the model has no Engram. Read
 * and range-checked from engram_token_map.json at opening. */
const int32_t *checkpoint_engram_token_map(const struct checkpoint *checkpoint);

/* Writes what `nocturne inspect DIR` shows: sizes, layers, encodings, bytes by kind; with `tensors` every tensor too. */
MUST_CHECK enum result checkpoint_print(const struct checkpoint *checkpoint, FILE *out, bool tensors);

#endif
