/* The tensors a configuration calls for, with the type and shape of each. */
#ifndef NOCTURNE_MODEL_CHECKPOINT_LAYOUT_H
#define NOCTURNE_MODEL_CHECKPOINT_LAYOUT_H

#include "base/error.h"
#include "model/config.h"
#include "model/safetensors.h" /* enum tensor_dtype */

#include <stdbool.h> /* bool */
#include <stdint.h>  /* int32_t, int64_t */

struct expected_tensor {
    char name[128];
    enum tensor_dtype dtype;
    bool or_bf16;       /* BF16 is accepted too */
    int32_t dimensions; /* 1 or 2 */
    int64_t shape[2];   /* shape[1] is 1 when there is one dimension */
};

typedef enum result (*layout_visitor)(void *context, const struct expected_tensor *tensor);

/* Calls `visit` for every tensor, the backbone first, then drafts and vision when the configuration has them; stops at the
 * first failure and returns it. */
MUST_CHECK enum result checkpoint_layout_visit(
    const struct model_config *config, layout_visitor visit, void *context);

#endif
