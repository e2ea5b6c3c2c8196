#include "grammar/vocabulary.h"

#include <stdlib.h> /* calloc, malloc, free, qsort_r */
#include <string.h> /* memcpy, memcmp, memset */

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

static void set_bit(uint64_t *bits, size_t bit) {
    bits[bit >> 6] |= (uint64_t)1 << (bit & 63);
}

size_t vocabulary_words(const struct grammar_vocabulary *vocabulary) {
    return (vocabulary->count + 63) / 64;
}

static size_t node_words(const struct grammar_vocabulary *vocabulary) {
    return vocabulary->nodes / 64 + 1;
}

static enum result out_of_memory(void) {
    return fail(ERROR_MEMORY, "no memory for the vocabulary of grammars");
}

/* ---- the trie ---- */

static enum result copy_texts(
    struct grammar_vocabulary *vocabulary, const char *const *bytes, const uint32_t *lengths) {
    size_t total = 0;
    for (uint32_t i = 0; i < vocabulary->count; i++) {
        if (lengths[i] > TOKEN_BYTES_LIMIT)
            return fail(ERROR_INPUT, "token %u is longer than %d bytes", i, TOKEN_BYTES_LIMIT);
        total += lengths[i];
    }
    if (total >= 1 << 24)
        return fail(ERROR_INPUT, "the vocabulary's tokens have more than %d bytes", 1 << 24);
    vocabulary->text = malloc(total + 1);
    vocabulary->offsets = malloc((vocabulary->count + 1) * sizeof *vocabulary->offsets);
    vocabulary->trie = malloc((total + 1) * sizeof *vocabulary->trie);
    if (!vocabulary->text || !vocabulary->offsets || !vocabulary->trie)
        return out_of_memory();
    uint32_t at = 0;
    for (uint32_t i = 0; i < vocabulary->count; i++) {
        vocabulary->offsets[i] = at;
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

static enum result build_trie(struct grammar_vocabulary *vocabulary) {
    size_t open[TOKEN_BYTES_LIMIT] = {0};
    uint32_t depth = 0, previous_length = 0;
    const char *previous = "";
    for (uint32_t rank = 0; rank < vocabulary->ranks; rank++) {
        uint32_t length = 0, common = 0;
        const char *text = text_of(vocabulary, vocabulary->order[rank], &length);
        while (common < length && common < previous_length && text[common] == previous[common])
            common++;
        if (common == length && length == previous_length)
            continue; /* the same text ends at the same node */
        close_nodes(vocabulary, open, common, depth);
        for (depth = common; depth < length; depth++) {
            open[depth] = vocabulary->nodes;
            vocabulary->trie[vocabulary->nodes++] =
                (struct trie_node){.byte = (unsigned char)text[depth], .rank = rank};
        }
        previous = text;
        previous_length = length;
    }
    close_nodes(vocabulary, open, 0, depth);
    vocabulary->trie[vocabulary->nodes] = (struct trie_node){.subtree = 1, .rank = vocabulary->ranks};
    struct trie_node *fitted = realloc(vocabulary->trie, (vocabulary->nodes + 1) * sizeof *vocabulary->trie);
    if (!fitted)
        return out_of_memory();
    vocabulary->trie = fitted;
    return OK;
}

/* ---- plain text ---- */

unsigned plain_step(unsigned state, unsigned char byte) {
    bool goes_on = byte >= 0x80 && byte <= 0xBF;
    switch (state) {
    case PLAIN_WHOLE:
        if (byte < 0x80)
            return byte < 0x20 || byte == '"' || byte == '\\' ? PLAIN_NONE : PLAIN_WHOLE;
        if (byte < 0xC2 || byte > 0xF4)
            return PLAIN_NONE;
        if (byte < 0xE0)
            return PLAIN_ONE_MORE;
        if (byte < 0xF0)
            return byte == 0xE0 ? PLAIN_AFTER_E0 : byte == 0xED ? PLAIN_AFTER_ED : PLAIN_TWO_MORE;
        return byte == 0xF0 ? PLAIN_AFTER_F0 : byte == 0xF4 ? PLAIN_AFTER_F4 : PLAIN_THREE_MORE;
    case PLAIN_ONE_MORE:
        return goes_on ? PLAIN_WHOLE : PLAIN_NONE;
    case PLAIN_TWO_MORE:
        return goes_on ? PLAIN_ONE_MORE : PLAIN_NONE;
    case PLAIN_THREE_MORE:
        return goes_on ? PLAIN_TWO_MORE : PLAIN_NONE;
    case PLAIN_AFTER_E0:
        return goes_on && byte >= 0xA0 ? PLAIN_ONE_MORE : PLAIN_NONE;
    case PLAIN_AFTER_ED:
        return goes_on && byte <= 0x9F ? PLAIN_ONE_MORE : PLAIN_NONE;
    case PLAIN_AFTER_F0:
        return goes_on && byte >= 0x90 ? PLAIN_TWO_MORE : PLAIN_NONE;
    case PLAIN_AFTER_F4:
        return goes_on && byte <= 0x8F ? PLAIN_TWO_MORE : PLAIN_NONE;
    default:
        return PLAIN_NONE;
    }
}

const uint64_t *vocabulary_plain_mask(const struct grammar_vocabulary *vocabulary, unsigned characters) {
    return vocabulary->plain_masks + characters * vocabulary_words(vocabulary);
}

/* Puts a token, whose nodes are `path`, where it belongs. `characters`: begun up to each byte; `whole`: up to
 * which bytes the text is made of whole plain characters. */
static void file_token(struct grammar_vocabulary *vocabulary, uint32_t rank, const size_t *path,
    const uint16_t *characters, const bool *whole, uint32_t length) {
    uint32_t count = characters[length - 1];
    size_t words = vocabulary_words(vocabulary);
    uint8_t kind = count == NOT_PLAIN ? NOT_PLAIN : count > PLAIN_CHARACTERS ? LONG_TOKEN : (uint8_t)count;
    vocabulary->characters[rank] = kind;
    if (kind == LONG_TOKEN)
        vocabulary->long_ranks[vocabulary->long_count++] = rank;
    if (kind != NOT_PLAIN)
        set_bit(vocabulary->plain_masks, vocabulary->order[rank]);
    for (unsigned most = kind; most <= PLAIN_CHARACTERS; most++)
        set_bit(vocabulary->plain_masks + most * words, vocabulary->order[rank]);
    for (uint32_t i = 0; i < length; i++) {
        if (kind == NOT_PLAIN)
            set_bit(vocabulary->special, path[i]);
        if (kind > PLAIN_CHARACTERS) {
            set_bit(vocabulary->irregular, path[i]);
            continue;
        }
        uint8_t below = (uint8_t)(count - characters[i]);
        if (whole[i] && vocabulary->heights[path[i]] < below)
            vocabulary->heights[path[i]] = below;
    }
}

static void sort_plain_tokens(struct grammar_vocabulary *vocabulary) {
    size_t path[TOKEN_BYTES_LIMIT + 1] = {0}, ends[TOKEN_BYTES_LIMIT + 1];
    uint16_t characters[TOKEN_BYTES_LIMIT + 1];
    unsigned states[TOKEN_BYTES_LIMIT + 1];
    bool whole[TOKEN_BYTES_LIMIT + 1];
    uint32_t depth = 0;
    for (size_t i = 0; i < vocabulary->nodes; i++) {
        while (depth && ends[depth - 1] <= i)
            depth--;
        unsigned before = depth ? states[depth - 1] : PLAIN_WHOLE;
        uint16_t so_far = depth ? characters[depth - 1] : 0;
        path[depth] = i;
        ends[depth] = i + vocabulary->trie[i].subtree;
        states[depth] = plain_step(before, (unsigned char)vocabulary->trie[i].byte);
        whole[depth] = states[depth] == PLAIN_WHOLE;
        /* Above LONG_TOKEN - 1 the number makes no difference. */
        characters[depth] = states[depth] == PLAIN_NONE                        ? NOT_PLAIN
                            : before == PLAIN_WHOLE && so_far < LONG_TOKEN - 1 ? (uint16_t)(so_far + 1)
                                                                               : so_far;
        depth++;
        for (uint32_t rank = vocabulary->trie[i].rank; rank < vocabulary->trie[i + 1].rank; rank++)
            file_token(vocabulary, rank, path, characters, whole, depth);
    }
}

/* ---- runs ---- */

static bool of_kind(unsigned kind, unsigned char byte) {
    bool digit = byte >= '0' && byte <= '9', lower = byte >= 'a' && byte <= 'z';
    bool upper = byte >= 'A' && byte <= 'Z';
    switch (kind) {
    case 0:
        return digit;
    case 1:
        return byte >= 0x80;
    case 2:
        return lower;
    case 3:
        return digit || (byte >= 'a' && byte <= 'f') || (byte >= 'A' && byte <= 'F');
    case 4:
        return digit || lower || upper || byte == '_' || byte == '-' || byte == '.';
    default:
        return byte > ' ' && byte < 0x7F;
    }
}

/* The longest run of each kind, in bytes; of bytes above ASCII, in characters, counting the parts at the ends. */
static void measure_runs(struct grammar_vocabulary *vocabulary) {
    for (uint32_t token = 0; token < vocabulary->count; token++) {
        uint32_t length = 0, run[RUN_KINDS] = {0};
        const char *text = text_of(vocabulary, token, &length);
        for (uint32_t i = 0; i < length; i++)
            for (unsigned kind = 0; kind < RUN_KINDS; kind++) {
                unsigned char byte = (unsigned char)text[i];
                bool part = kind == 1 && run[kind] && byte < 0xC0;
                run[kind] = of_kind(kind, byte) ? run[kind] + !part : 0;
                if (run[kind] > vocabulary->runs[kind])
                    vocabulary->runs[kind] = run[kind];
            }
    }
}

uint32_t vocabulary_longest_run(const struct grammar_vocabulary *vocabulary, const bool bytes[256]) {
    uint32_t longest = vocabulary->longest;
    for (unsigned kind = 0; kind < RUN_KINDS; kind++) {
        bool within = true;
        for (unsigned byte = 0; within && byte < 256; byte++)
            within = !bytes[byte] || of_kind(kind, (unsigned char)byte);
        if (within && vocabulary->runs[kind] < longest)
            longest = vocabulary->runs[kind];
    }
    return longest;
}

/* ---- life ---- */

static enum result build(struct grammar_vocabulary *vocabulary) {
    qsort_r(vocabulary->order, vocabulary->ranks, sizeof *vocabulary->order, compare_tokens, vocabulary);
    TRY(build_trie(vocabulary));
    vocabulary->characters = malloc(vocabulary->ranks + 1);
    vocabulary->long_ranks = malloc((vocabulary->ranks + 1) * sizeof *vocabulary->long_ranks);
    vocabulary->heights = calloc(vocabulary->nodes + 1, 1);
    vocabulary->special = calloc(node_words(vocabulary), sizeof(uint64_t));
    vocabulary->irregular = calloc(node_words(vocabulary), sizeof(uint64_t));
    vocabulary->plain_masks =
        calloc((PLAIN_CHARACTERS + 1) * vocabulary_words(vocabulary) + 1, sizeof(uint64_t));
    if (!vocabulary->characters || !vocabulary->long_ranks || !vocabulary->heights || !vocabulary->special ||
        !vocabulary->irregular || !vocabulary->plain_masks)
        return out_of_memory();
    sort_plain_tokens(vocabulary);
    uint32_t *fitted =
        realloc(vocabulary->long_ranks, (vocabulary->long_count + 1) * sizeof *vocabulary->long_ranks);
    if (!fitted)
        return out_of_memory();
    vocabulary->long_ranks = fitted;
    measure_runs(vocabulary);
    return OK;
}

enum result grammar_vocabulary_create(const char *const *bytes, const uint32_t *lengths, uint32_t count,
    uint32_t end, struct grammar_vocabulary **result) {
    struct grammar_vocabulary *vocabulary = calloc(1, sizeof *vocabulary);
    enum result status = OK;
    *result = NULL;
    if (!vocabulary)
        return out_of_memory();
    vocabulary->count = count;
    vocabulary->end = end;
    vocabulary->order = malloc(((size_t)count + 1) * sizeof *vocabulary->order);
    status = vocabulary->order ? copy_texts(vocabulary, bytes, lengths) : out_of_memory();
    for (uint32_t i = 0; status == OK && i < count; i++)
        if (lengths[i] && i != end) /* without bytes it is no part of a text */
            vocabulary->order[vocabulary->ranks++] = i;
    if (status == OK)
        status = build(vocabulary);
    if (status == OK)
        *result = vocabulary;
    else
        grammar_vocabulary_free(vocabulary);
    return status;
}

void grammar_vocabulary_free(struct grammar_vocabulary *vocabulary) {
    if (!vocabulary)
        return;
    free(vocabulary->trie);
    free(vocabulary->order);
    free(vocabulary->text);
    free(vocabulary->offsets);
    free(vocabulary->characters);
    free(vocabulary->long_ranks);
    free(vocabulary->heights);
    free(vocabulary->special);
    free(vocabulary->irregular);
    free(vocabulary->plain_masks);
    free(vocabulary);
}

uint32_t grammar_vocabulary_count(const struct grammar_vocabulary *vocabulary) {
    return vocabulary->count;
}

size_t grammar_vocabulary_bytes(const struct grammar_vocabulary *vocabulary) {
    return sizeof *vocabulary + (vocabulary->nodes + 1) * sizeof *vocabulary->trie +
           (2 * (size_t)vocabulary->count + 2) * sizeof(uint32_t) + vocabulary->offsets[vocabulary->count] +
           vocabulary->long_count * sizeof(uint32_t) + vocabulary->ranks + vocabulary->nodes +
           2 * node_words(vocabulary) * sizeof(uint64_t) +
           (PLAIN_CHARACTERS + 1) * vocabulary_words(vocabulary) * sizeof(uint64_t);
}
