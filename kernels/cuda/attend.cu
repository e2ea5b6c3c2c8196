/* Sparse attention: the choice of a kernel, by encodings and shapes alone. */
#include "kernels/cuda/attend.h"
#include "kernels/cuda/operations.h"

/* Asynchronous copies move 16 bytes. */
enum { COPIED = 16 };

static bool is_tiled(const struct attend_call *call, bool has_latents) {
    if (has_latents && call->latents.rows.encoding == ROWS_F32)
        return false;
    return call->window.rows.encoding != ROWS_F32 && call->columns <= TILED_COLUMNS;
}

void cuda_attend(struct stream *stream, const float *q, int32_t tokens, int32_t heads,
    const int32_t *sequence, const int32_t *position, const int32_t *visible_from,
    const struct block_rows *window, const struct block_tables *window_tables,
    const struct block_rows *latents, const struct block_tables *latent_tables, const int32_t *chosen,
    int32_t top_k, const float *sink, float *out) {
    if (tokens <= 0)
        return;
    struct attend_call call = {};
    call.q = q;
    call.tokens = tokens;
    call.heads = heads;
    call.columns = window->columns;
    call.sequence = sequence;
    call.position = position;
    call.visible_from = visible_from;
    call.chosen = chosen;
    call.top_k = latents != NULL ? top_k : 0;
    call.window = stored_rows(window, window_tables);
    call.latents = stored_rows(latents, latent_tables);
    call.is_window_aligned = are_aligned(&call.window, COPIED);
    call.are_latents_aligned = are_aligned(&call.latents, COPIED);
    call.sink = sink;
    call.scale = 1.0f / sqrtf((float)call.columns);
    call.out = out;
    if (is_tiled(&call, latents != NULL))
        attend_tiled(stream, &call);
    else
        attend_plain(stream, &call);
}
