/* Any bytes as config.json: refused with a message, or a configuration whose derived sizes are sound. */
#include "model/config.h"
#include "model/checkpoint_layout.h"
#include "model/engram.h"

#include <stdlib.h> /* abort */
#include <string.h> /* strstr */

enum { MOST_VISITS = 100000 };

static enum result check_tensor(void *context, const struct expected_tensor *tensor) {
    int *visits = context;
    int64_t elements;
    if (tensor->shape[0] < 1 || tensor->shape[1] < 1 || strlen(tensor->name) > sizeof tensor->name - 8 ||
        __builtin_mul_overflow(tensor->shape[0], tensor->shape[1], &elements))
        abort();
    return ++*visits < MOST_VISITS ? OK : ERROR_STOPPED; /* the largest models take seconds */
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct model_config config;
    if (model_config_parse("config.json", (const char *)data, size, &config) != OK) {
        if (!strstr(failure_message(), "config.json"))
            abort();
        return 0;
    }
    int visits = 0;
    enum result status = checkpoint_layout_visit(&config, check_tensor, &visits);
    if (status != OK && status != ERROR_STOPPED)
        abort();
    if (config.engram_layers > 0) {
        struct engram_hash hash;
        int64_t rows[MOST_ENGRAM_LAYERS * MOST_ENGRAM_COLUMNS];
        const int32_t last = config.engram_compressed_vocab_size - 1, history[] = {last, -1, 0, last, last};
        engram_hash_prepare(&hash, &config, last);
        for (int64_t at = 0; at < 5; at++) {
            engram_hash_rows(&hash, history, at, rows);
            for (int32_t i = 0; i < hash.layers * hash.columns; i++)
                if (rows[i] < 0 || rows[i] >= config.engram_num_embeddings[i / hash.columns])
                    abort();
        }
    }
    return 0;
}
