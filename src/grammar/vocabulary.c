#include "grammar/vocabulary.h"

#include <stdlib.h> /* calloc, malloc, free, qsort_r */
#include <string.h> /* memcpy, memcmp */

static const char *text_of(const struct grammar_vocabulary *vocabulary, uint32_t token, uint32_t *length) {
    *length = vocabulary->offsets[token + 1] - vocabulary->offsets[token];
    return vocabulary->text + vocabulary->offsets[token];
}

static int compare_tokens(const void *a, const void *b, void *context) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b, x_length = 0, y_length = 0;
    const char *x_text = text_of(context, x, &x_length), *y_text = text_of(context, y, &y_length);
    int order = memcmp(x_text, y_text, x_length < y_length ? x_length : y_length);
    if (order)
        return order;
    if (x_length != y_length)
        return x_length < y_length ? -1 : 1;
    return (x > y) - (x < y);
}

static enum result copy_texts(
    struct grammar_vocabulary *vocabulary, const char *const *bytes, const uint32_t *lengths) {
    size_t total = 0;
    for (uint32_t i = 0; i < vocabulary->count; i++) {
        if (lengths[i] > TOKEN_BYTES_LIMIT)
            return fail(ERROR_INPUT, "token %u is longer than %d bytes", i, TOKEN_BYTES_LIMIT);
        total += lengths[i];
    }
    vocabulary->text = malloc(total + 1);
    vocabulary->offsets = malloc((vocabulary->count + 1) * sizeof *vocabulary->offsets);
    vocabulary->same_text = malloc((vocabulary->count + 1) * sizeof *vocabulary->same_text);
    vocabulary->trie = malloc((total + 1) * sizeof *vocabulary->trie);
    if (!vocabulary->text || !vocabulary->offsets || !vocabulary->same_text || !vocabulary->trie)
        return fail(ERROR_MEMORY, "no memory for the vocabulary of grammars");
    uint32_t at = 0;
    for (uint32_t i = 0; i < vocabulary->count; i++) {
        vocabulary->offsets[i] = at;
        vocabulary->same_text[i] = NO_TOKEN_HERE;
        if (lengths[i])
            memcpy(vocabulary->text + at, bytes[i], lengths[i]);
        at += lengths[i];
        vocabulary->longest = lengths[i] > vocabulary->longest ? lengths[i] : vocabulary->longest;
    }
    vocabulary->offsets[vocabulary->count] = at;
    return OK;
}

/* Nodes from `depth` of the open branch on end here. */
static void close_nodes(
    struct grammar_vocabulary *vocabulary, const size_t *open, uint32_t from, uint32_t to) {
    for (uint32_t depth = from; depth < to; depth++)
        vocabulary->trie[open[depth]].subtree = (uint32_t)(vocabulary->nodes - open[depth]) & 0xFFFFFF;
}

static void build_trie(struct grammar_vocabulary *vocabulary, const uint32_t *order, uint32_t tokens) {
    size_t open[TOKEN_BYTES_LIMIT] = {0};
    uint32_t depth = 0, previous_length = 0;
    const char *previous = "";
    for (uint32_t i = 0; i < tokens; i++) {
        uint32_t length = 0, common = 0;
        const char *text = text_of(vocabulary, order[i], &length);
        if (!length)
            continue; /* without bytes it is no part of a text */
        while (common < length && common < previous_length && text[common] == previous[common])
            common++;
        if (common == length && length == previous_length) {
            vocabulary->same_text[order[i]] = vocabulary->trie[open[length - 1]].token;
            vocabulary->trie[open[length - 1]].token = (int32_t)order[i];
            continue;
        }
        close_nodes(vocabulary, open, common, depth);
        for (depth = common; depth < length; depth++) {
            open[depth] = vocabulary->nodes;
            vocabulary->trie[vocabulary->nodes++] =
                (struct trie_node){.byte = (unsigned char)text[depth], .token = NO_TOKEN_HERE};
        }
        vocabulary->trie[open[length - 1]].token = (int32_t)order[i];
        previous = text;
        previous_length = length;
    }
    close_nodes(vocabulary, open, 0, depth);
}

enum result grammar_vocabulary_create(const char *const *bytes, const uint32_t *lengths, uint32_t count,
    uint32_t end, struct grammar_vocabulary **result) {
    struct grammar_vocabulary *vocabulary = calloc(1, sizeof *vocabulary);
    uint32_t *order = malloc(((size_t)count + 1) * sizeof *order), tokens = 0;
    enum result status = OK;
    *result = NULL;
    if (!vocabulary || !order)
        status = fail(ERROR_MEMORY, "no memory for the vocabulary of grammars");
    if (status == OK) {
        vocabulary->count = count;
        vocabulary->end = end;
        status = copy_texts(vocabulary, bytes, lengths);
    }
    for (uint32_t i = 0; status == OK && i < count; i++)
        if (lengths[i] && i != end)
            order[tokens++] = i;
    if (status == OK) {
        qsort_r(order, tokens, sizeof *order, compare_tokens, vocabulary);
        build_trie(vocabulary, order, tokens);
        *result = vocabulary;
    } else
        grammar_vocabulary_free(vocabulary);
    free(order);
    return status;
}

void grammar_vocabulary_free(struct grammar_vocabulary *vocabulary) {
    if (!vocabulary)
        return;
    free(vocabulary->trie);
    free(vocabulary->text);
    free(vocabulary->offsets);
    free(vocabulary->same_text);
    free(vocabulary);
}

uint32_t grammar_vocabulary_count(const struct grammar_vocabulary *vocabulary) {
    return vocabulary->count;
}

size_t grammar_vocabulary_bytes(const struct grammar_vocabulary *vocabulary) {
    size_t text = vocabulary->offsets[vocabulary->count];
    return sizeof *vocabulary + text + 1 + (text + 1) * sizeof *vocabulary->trie +
           2 * (vocabulary->count + 1) * sizeof(uint32_t);
}
