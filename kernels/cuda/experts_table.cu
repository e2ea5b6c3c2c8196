#include "kernels/cuda/experts_table.h"
#include "kernels/cuda/memory.h"

#include <stdlib.h> /* calloc, free */

/* A list: a model has one array a layer. */
struct expert_tables {
    const struct expert_weights *experts; /* the array, which is the key */
    int32_t count;
    struct expert_places *host, *device;
    struct expert_tables *next;
};

static struct expert_places places_of(const struct expert_weights *expert) {
    const struct matrix *matrices[EXPERT_MATRICES] = {&expert->w1, &expert->w3, &expert->w2};
    struct expert_places places;
    for (int m = 0; m < EXPERT_MATRICES; m++) {
        places.codes[m] = (const uint8_t *)matrices[m]->values;
        places.scales[m] = matrices[m]->scales;
    }
    return places;
}

static struct expert_tables *find_table(
    struct stream *stream, const struct expert_weights *experts, int32_t count) {
    struct expert_tables *table = stream->expert_tables;
    while (table != NULL && (table->experts != experts || table->count != count))
        table = table->next;
    return table;
}

static struct expert_tables *add_table(
    struct stream *stream, const struct expert_weights *experts, int32_t count) {
    struct expert_tables *table = (struct expert_tables *)calloc(1, sizeof *table);
    struct expert_places *host = (struct expert_places *)calloc((size_t)count, sizeof *host);
    void *device = NULL;
    cudaError_t code = cudaErrorMemoryAllocation;
    if (table != NULL && host != NULL)
        code = cudaMallocAsync(&device, (size_t)count * sizeof *host, stream->handle);
    if (!stream_check(stream, code, "table of experts")) {
        free(table);
        free(host);
        return NULL;
    }
    *table =
        (struct expert_tables){experts, count, host, (struct expert_places *)device, stream->expert_tables};
    stream->expert_tables = table;
    return table;
}

const struct expert_places *expert_places_on_device(
    struct stream *stream, const struct expert_weights *experts, int32_t count) {
    struct expert_tables *table = find_table(stream, experts, count);
    bool is_known = table != NULL;
    if (!is_known)
        table = add_table(stream, experts, count);
    if (table == NULL)
        return NULL;
    for (int32_t e = 0; e < count; e++) {
        struct expert_places now = places_of(&experts[e]);
        is_known = is_known && memcmp(&now, &table->host[e], sizeof now) == 0;
        table->host[e] = now;
    }
    if (!is_known)
        cuda_copy_in(stream, table->device, table->host, (size_t)count * sizeof *table->host);
    return table->device;
}

void expert_tables_free(struct stream *stream) {
    while (stream->expert_tables != NULL) {
        struct expert_tables *table = stream->expert_tables;
        stream->expert_tables = table->next;
        (void)cudaFreeAsync(table->device, stream->handle);
        free(table->host);
        free(table);
    }
}
