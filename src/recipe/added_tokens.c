#include "recipe/added_tokens.h"

#include <stdlib.h> /* realloc, free */

void added_tokens_free(struct added_tokens *tokens) {
    free(tokens->nodes);
    *tokens = (struct added_tokens){0};
}

static enum result new_node(struct added_tokens *tokens, unsigned char byte, int32_t *index) {
    if (tokens->count == tokens->capacity) {
        if (tokens->capacity > INT32_MAX / 2)
            return fail(ERROR_INPUT, "added tokens are too long altogether");
        int32_t capacity = tokens->capacity ? 2 * tokens->capacity : 1024;
        struct added_node *nodes = realloc(tokens->nodes, (size_t)capacity * sizeof *nodes);
        if (!nodes)
            return fail(ERROR_MEMORY, "no memory for the added tokens");
        tokens->nodes = nodes;
        tokens->capacity = capacity;
    }
    *index = tokens->count++;
    tokens->nodes[*index] = (struct added_node){.byte = byte, .id = -1, .child = -1, .sibling = -1};
    return OK;
}

static int32_t find_child(const struct added_tokens *tokens, int32_t node, unsigned char byte) {
    int32_t child = tokens->nodes[node].child;
    while (child >= 0 && tokens->nodes[child].byte != byte)
        child = tokens->nodes[child].sibling;
    return child;
}

enum result added_tokens_insert(struct added_tokens *tokens, const char *spelling, size_t bytes, int32_t id) {
    unsigned char first = (unsigned char)spelling[0];
    int32_t node = tokens->roots[first] - 1;
    if (node < 0) {
        TRY(new_node(tokens, first, &node));
        tokens->roots[first] = node + 1;
    }
    for (size_t i = 1; i < bytes; i++) {
        unsigned char byte = (unsigned char)spelling[i];
        int32_t child = find_child(tokens, node, byte);
        if (child < 0) {
            TRY(new_node(tokens, byte, &child));
            tokens->nodes[child].sibling = tokens->nodes[node].child;
            tokens->nodes[node].child = child;
        }
        node = child;
    }
    tokens->nodes[node].id = id;
    return OK;
}

/* The length of the longest spelling that begins at `at`, or 0. */
static size_t longest_at(const struct added_tokens *tokens, const char *at, const char *end, int32_t *id) {
    size_t longest = 0, length = 1;
    int32_t node = tokens->roots[(unsigned char)*at] - 1;
    while (node >= 0) {
        if (tokens->nodes[node].id >= 0) {
            *id = tokens->nodes[node].id;
            longest = length;
        }
        if (at + length == end)
            break;
        node = find_child(tokens, node, (unsigned char)at[length++]);
    }
    return longest;
}

bool added_tokens_find(const struct added_tokens *tokens, const char *text, const char *end,
    const char **start, size_t *bytes, int32_t *id) {
    for (const char *at = text; at < end; at++) {
        if (!tokens->roots[(unsigned char)*at])
            continue;
        size_t length = longest_at(tokens, at, end, id);
        if (length) {
            *start = at;
            *bytes = length;
            return true;
        }
    }
    return false;
}
