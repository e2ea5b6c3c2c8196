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

/* ---- kinds of text ---- */

static void set_steps(
    struct text_class *text, unsigned state, unsigned first, unsigned last, unsigned behind) {
    memset(&text->step[state][first], (int)behind, last - first + 1);
}

enum { ONE_MORE = 2, TWO_MORE, WITHIN_A, WITHIN_B, WITHIN_C, WITHIN_D };

static void describe_plain(struct text_class *text) {
    enum { THREE_MORE = TEXT_BEGUN };
    text->goes_on = TEXT_START;
    set_steps(text, TEXT_START, ' ', 0x7F, TEXT_START);
    text->step[TEXT_START]['"'] = text->step[TEXT_START]['\\'] = TEXT_OVER;
    set_steps(text, TEXT_START, 0xC2, 0xDF, ONE_MORE);
    set_steps(text, TEXT_START, 0xE0, 0xEF, TWO_MORE);
    set_steps(text, TEXT_START, 0xF0, 0xF4, THREE_MORE);
    set_steps(text, ONE_MORE, 0x80, 0xBF, TEXT_START);
    set_steps(text, TWO_MORE, 0x80, 0xBF, ONE_MORE);
    set_steps(text, THREE_MORE, 0x80, 0xBF, TWO_MORE);
    /* Behind these, some bytes would make an overlong form, a surrogate or too large a number. */
    text->step[TEXT_START][0xE0] = WITHIN_A;
    set_steps(text, WITHIN_A, 0xA0, 0xBF, ONE_MORE);
    text->step[TEXT_START][0xED] = WITHIN_B;
    set_steps(text, WITHIN_B, 0x80, 0x9F, ONE_MORE);
    text->step[TEXT_START][0xF0] = WITHIN_C;
    set_steps(text, WITHIN_C, 0x90, 0xBF, TWO_MORE);
    text->step[TEXT_START][0xF4] = WITHIN_D;
    set_steps(text, WITHIN_D, 0x80, 0x8F, TWO_MORE);
}

static void describe_words(struct text_class *text, bool lower_case) {
    text->goes_on = TEXT_BEGUN;
    text->step[TEXT_START][' '] = TEXT_BEGUN;
    for (unsigned state = TEXT_START; state <= TEXT_BEGUN; state++) {
        set_steps(text, state, 'a', 'z', TEXT_BEGUN);
        if (lower_case)
            continue;
        set_steps(text, state, 'A', 'Z', TEXT_BEGUN);
        set_steps(text, state, '0', '9', TEXT_BEGUN);
    }
}

static void describe_han(struct text_class *text) {
    text->goes_on = TEXT_START;
    text->step[TEXT_START][0xE4] = WITHIN_A;
    set_steps(text, WITHIN_A, 0xB8, 0xBF, ONE_MORE);
    set_steps(text, TEXT_START, 0xE5, 0xE8, TWO_MORE);
    text->step[TEXT_START][0xE9] = WITHIN_B;
    set_steps(text, WITHIN_B, 0x80, 0xBD, ONE_MORE);
    text->step[WITHIN_B][0xBE] = WITHIN_C;
    set_steps(text, WITHIN_C, 0x80, 0xA5, TEXT_START);
    set_steps(text, ONE_MORE, 0x80, 0xBF, TEXT_START);
    set_steps(text, TWO_MORE, 0x80, 0xBF, ONE_MORE);
}

static void describe(struct text_class *text, enum text_kind kind) {
    memset(text->step, TEXT_OVER, sizeof text->step);
    switch (kind) {
    case TEXT_PLAIN:
        describe_plain(text);
        break;
    case TEXT_ALPHANUMERIC:
    case TEXT_LOWER_CASE:
        describe_words(text, kind == TEXT_LOWER_CASE);
        break;
    case TEXT_HAN:
        describe_han(text);
        break;
    case TEXT_KINDS:
        break;
    }
}

static void find_bounds(struct text_class *text) {
    for (unsigned state = 0; state < TEXT_STATES; state++) {
        text->first[state] = 0xFF;
        for (unsigned byte = 0; byte < 256; byte++)
            if (text->step[state][byte] != TEXT_OVER) {
                text->first[state] = (uint8_t)(text->first[state] < byte ? text->first[state] : byte);
                text->last[state] = (uint8_t)byte;
            }
    }
}

const uint64_t *vocabulary_mask(const struct grammar_vocabulary *vocabulary, uint32_t base) {
    const struct text_class *text = &vocabulary->classes[base / (TEXT_CHARACTERS + 1)];
    return text->masks + base % (TEXT_CHARACTERS + 1) * vocabulary->words;
}

uint32_t vocabulary_base(enum text_kind kind, unsigned characters) {
    return (uint32_t)kind * (TEXT_CHARACTERS + 1) + characters;
}

/* A token, the nodes of its bytes, the characters begun up to each and whether they are whole there. */
struct filed_token {
    uint32_t rank, length;
    size_t path[TOKEN_BYTES_LIMIT], ends[TOKEN_BYTES_LIMIT];
    uint16_t characters[TOKEN_BYTES_LIMIT];
    uint8_t states[TOKEN_BYTES_LIMIT];
    bool whole[TOKEN_BYTES_LIMIT];
};

/* Puts a token where it belongs. */
static void file_token(
    struct grammar_vocabulary *vocabulary, struct text_class *text, const struct filed_token *token) {
    uint32_t count = token->characters[token->length - 1], id = vocabulary->order[token->rank];
    size_t words = vocabulary->words;
    uint8_t kind = count == OF_OTHER_KIND    ? OF_OTHER_KIND
                   : count > TEXT_CHARACTERS ? LONG_TOKEN
                                             : (uint8_t)count;
    text->characters[token->rank] = kind;
    if (kind == LONG_TOKEN)
        text->long_ranks[text->long_count++] = token->rank;
    if (kind != OF_OTHER_KIND)
        set_bit(text->masks, id);
    for (unsigned most = kind; most <= TEXT_CHARACTERS; most++)
        set_bit(text->masks + most * words, id);
    for (uint32_t i = 0; i < token->length; i++) {
        if (kind == OF_OTHER_KIND)
            set_bit(text->special, token->path[i]);
        if (kind > TEXT_CHARACTERS) {
            set_bit(text->irregular, token->path[i]);
            continue;
        }
        uint8_t below = (uint8_t)(count - token->characters[i]);
        if (token->whole[i] && text->heights[token->path[i]] < below)
            text->heights[token->path[i]] = below;
    }
}

static void sort_tokens(
    struct grammar_vocabulary *vocabulary, struct text_class *text, struct filed_token *token) {
    uint32_t depth = 0;
    for (size_t i = 0; i < vocabulary->nodes; i++) {
        while (depth && token->ends[depth - 1] <= i)
            depth--;
        unsigned before = depth ? token->states[depth - 1] : TEXT_START;
        uint16_t so_far = depth ? token->characters[depth - 1] : 0;
        unsigned state = before == TEXT_OVER ? TEXT_OVER : text->step[before][vocabulary->trie[i].byte];
        bool begins = before == TEXT_START || before == text->goes_on;
        token->path[depth] = i;
        token->ends[depth] = i + vocabulary->trie[i].subtree;
        token->states[depth] = (uint8_t)state;
        token->whole[depth] = state == text->goes_on;
        /* From LONG_TOKEN - 1 on the number makes no difference. */
        token->characters[depth] = state == TEXT_OVER                  ? OF_OTHER_KIND
                                   : begins && so_far < LONG_TOKEN - 1 ? (uint16_t)(so_far + 1)
                                                                       : so_far;
        token->length = ++depth;
        for (token->rank = vocabulary->trie[i].rank; token->rank < vocabulary->trie[i + 1].rank;
             token->rank++)
            file_token(vocabulary, text, token);
    }
}

static enum result build_class(
    struct grammar_vocabulary *vocabulary, enum text_kind kind, struct filed_token *token) {
    struct text_class *text = &vocabulary->classes[kind];
    describe(text, kind);
    find_bounds(text);
    text->characters = malloc(vocabulary->ranks + 1);
    text->long_ranks = malloc((vocabulary->ranks + 1) * sizeof *text->long_ranks);
    text->heights = calloc(vocabulary->nodes + 1, 1);
    text->special = calloc(node_words(vocabulary), sizeof(uint64_t));
    text->irregular = calloc(node_words(vocabulary), sizeof(uint64_t));
    text->masks = calloc((TEXT_CHARACTERS + 1) * vocabulary->words + 1, sizeof(uint64_t));
    if (!text->characters || !text->long_ranks || !text->heights || !text->special || !text->irregular ||
        !text->masks)
        return out_of_memory();
    sort_tokens(vocabulary, text, token);
    uint32_t *fitted = realloc(text->long_ranks, (text->long_count + 1) * sizeof *text->long_ranks);
    if (!fitted)
        return out_of_memory();
    text->long_ranks = fitted;
    return OK;
}

static enum result build_classes(struct grammar_vocabulary *vocabulary) {
    struct filed_token *token = malloc(sizeof *token);
    enum result status = token ? OK : out_of_memory();
    for (unsigned kind = 0; status == OK && kind < TEXT_KINDS; kind++)
        status = build_class(vocabulary, (enum text_kind)kind, token);
    free(token);
    return status;
}

/* ---- runs ---- */

static bool of_sort(unsigned sort, unsigned char byte) {
    bool digit = byte >= '0' && byte <= '9', lower = byte >= 'a' && byte <= 'z';
    bool upper = byte >= 'A' && byte <= 'Z';
    switch (sort) {
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

/* The longest run of each sort, in bytes; of bytes above ASCII, in characters, counting the parts at the ends. */
static void measure_runs(struct grammar_vocabulary *vocabulary) {
    for (uint32_t token = 0; token < vocabulary->count; token++) {
        uint32_t length = 0, run[RUN_SORTS] = {0};
        const char *text = text_of(vocabulary, token, &length);
        for (uint32_t i = 0; i < length; i++)
            for (unsigned sort = 0; sort < RUN_SORTS; sort++) {
                unsigned char byte = (unsigned char)text[i];
                bool part = sort == 1 && run[sort] && byte < 0xC0;
                run[sort] = of_sort(sort, byte) ? run[sort] + !part : 0;
                if (run[sort] > vocabulary->runs[sort])
                    vocabulary->runs[sort] = run[sort];
            }
    }
}

uint32_t vocabulary_longest_run(
    const struct grammar_vocabulary *vocabulary, const bool bytes[256], uint32_t shortest) {
    enum { CHARACTER_BYTES = 4 };
    uint32_t longest = vocabulary->longest, run_bytes = longest;
    for (unsigned sort = 0; sort < RUN_SORTS; sort++) {
        bool within = true;
        for (unsigned byte = 0; within && byte < 256; byte++)
            within = !bytes[byte] || of_sort(sort, (unsigned char)byte);
        if (!within)
            continue;
        uint32_t run = vocabulary->runs[sort], most_bytes = run * (sort == 1 ? CHARACTER_BYTES : 1);
        longest = run < longest ? run : longest;
        run_bytes = most_bytes < run_bytes ? most_bytes : run_bytes;
    }
    /* Between whole ones there may be a part of one at either end. */
    uint32_t whole = shortest ? run_bytes / shortest + 2 : longest;
    return whole < longest ? whole : longest;
}

/* ---- life ---- */

static enum result find_spaces(struct grammar_vocabulary *vocabulary) {
    vocabulary->space_mask = calloc(vocabulary->words + 1, sizeof *vocabulary->space_mask);
    if (!vocabulary->space_mask)
        return out_of_memory();
    for (uint32_t rank = 0; rank < vocabulary->ranks; rank++) {
        uint32_t token = vocabulary->order[rank];
        unsigned char first = (unsigned char)vocabulary->text[vocabulary->offsets[token]];
        vocabulary->spaces[0] += first < ' ';
        vocabulary->spaces[1] += first <= ' ';
        if (first == ' ')
            set_bit(vocabulary->space_mask, token);
    }
    return OK;
}

static enum result build(struct grammar_vocabulary *vocabulary) {
    qsort_r(vocabulary->order, vocabulary->ranks, sizeof *vocabulary->order, compare_tokens, vocabulary);
    TRY(build_trie(vocabulary));
    TRY(find_spaces(vocabulary));
    TRY(build_classes(vocabulary));
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
    vocabulary->words = ((size_t)count + 63) / 64;
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
    free(vocabulary->space_mask);
    for (unsigned kind = 0; kind < TEXT_KINDS; kind++) {
        struct text_class *text = &vocabulary->classes[kind];
        free(text->characters);
        free(text->long_ranks);
        free(text->heights);
        free(text->special);
        free(text->irregular);
        free(text->masks);
    }
    free(vocabulary);
}

uint32_t grammar_vocabulary_count(const struct grammar_vocabulary *vocabulary) {
    return vocabulary->count;
}

size_t grammar_vocabulary_bytes(const struct grammar_vocabulary *vocabulary) {
    size_t bytes = sizeof *vocabulary + (vocabulary->nodes + 1) * sizeof *vocabulary->trie +
                   (2 * (size_t)vocabulary->count + 2) * sizeof(uint32_t) +
                   vocabulary->offsets[vocabulary->count] + vocabulary->words * sizeof(uint64_t);
    for (unsigned kind = 0; kind < TEXT_KINDS; kind++)
        bytes += vocabulary->ranks + vocabulary->nodes +
                 vocabulary->classes[kind].long_count * sizeof(uint32_t) +
                 2 * node_words(vocabulary) * sizeof(uint64_t) +
                 (TEXT_CHARACTERS + 1) * vocabulary->words * sizeof(uint64_t);
    return bytes;
}
