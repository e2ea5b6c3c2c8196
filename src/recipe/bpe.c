#include "recipe/bpe.h"

#include <stdlib.h> /* malloc, calloc, free */
#include <string.h> /* memcpy, memcmp, memmove */
#include <xxhash.h> /* XXH3_64bits */

/* Merging begins with bytes, except that an ideograph may begin as a whole where that makes no difference (see
 * find_characters): this saves two thirds of the steps in Chinese. */

/* Two hash tables, open addressing with linear probing, at most half full.
 *
 * pairs: (left id, right id) -> rank, in one word, for these lookups wait for memory.
 *
 * pieces: bytes of a token -> id. Most pieces of real text are one token; for tokens that merging their own
 * bytes does give (`whole`), looking the piece up first is the same as merging it, and faster. */
struct piece_slot {
    uint64_t key; /* up to 8 bytes: the bytes themselves; else their hash */
    int32_t id;   /* -1: empty */
    uint32_t length : 31, whole : 1;
};

struct bpe {
    struct token_texts texts;
    size_t tokens;
    uint64_t *pairs;  /* left << 44 | right << 24 | rank; NO_PAIR: empty */
    uint32_t *merged; /* [merges] by rank: the id */
    struct piece_slot *pieces;
    uint64_t *
        pair_filter; /* a bit for each hash of a pair, FILTER_BITS more than slots: most pairs asked for are none */
    int pair_shift, piece_shift; /* 64 - log2 of the number of slots */
    uint32_t *byte_pairs;        /* [256 * 256] rank of two single bytes, as the first step needs them all */
    int32_t byte_ids[256];
    int32_t *characters; /* [CHARACTERS] of three bytes: the token that merging begins with, or -1 */
};

enum {
    SHORT_PIECE =
        64, /* symbols up to which rescanning for the least rank beats a heap; a bit of a word each */
    CHARACTER_BYTES = 3,
    CHARACTERS = 1 << 16, /* the bits that three bytes of UTF-8 hold */
    PLACE_BITS = 6,
    KEY_STRIDE = 8,
    NO_KEY = INT32_MAX,
    ID_BITS = 20,
    RANK_BITS = 24, /* with PLACE_BITS they fit a key */
    SHORT_KEY = 8,
    BYTE_PAIRS = 256 * 256,
    SLOT_BITS_LEAST = 4,
    FILTER_BITS = 2, /* 6 % of the pairs that are none pass */
};

static const uint32_t NO_MERGE = UINT32_MAX; /* above every rank */
static const uint64_t NO_PAIR = UINT64_MAX;
static const uint64_t MULTIPLIER = 0x9E3779B97F4A7C15u;

/* ---- tables ---- */

static int slot_bits(size_t entries) {
    int bits = SLOT_BITS_LEAST;
    while (((size_t)1 << bits) < 2 * entries)
        bits++;
    return bits;
}

enum result bpe_create(struct token_texts texts, size_t tokens, size_t merges, struct bpe **result) {
    if (tokens > (size_t)1 << ID_BITS || merges >= (size_t)1 << RANK_BITS)
        return fail(ERROR_INPUT, "%zu tokens and %zu merges: at most %d and %d are possible", tokens, merges,
            1 << ID_BITS, (1 << RANK_BITS) - 1);
    int piece_bits = slot_bits(tokens), pair_bits = slot_bits(merges);
    size_t piece_slots = (size_t)1 << piece_bits, pair_slots = (size_t)1 << pair_bits;
    struct bpe *bpe = calloc(1, sizeof *bpe);
    if (bpe) {
        bpe->pairs = malloc(pair_slots * sizeof *bpe->pairs);
        bpe->merged = malloc((merges + 1) * sizeof *bpe->merged);
        bpe->pieces = malloc(piece_slots * sizeof *bpe->pieces);
        bpe->pair_filter = calloc((pair_slots << FILTER_BITS) / 64, sizeof *bpe->pair_filter);
        bpe->byte_pairs = malloc(BYTE_PAIRS * sizeof *bpe->byte_pairs);
        bpe->characters = malloc(CHARACTERS * sizeof *bpe->characters);
    }
    if (!bpe || !bpe->characters || !bpe->pairs || !bpe->merged || !bpe->pieces || !bpe->pair_filter ||
        !bpe->byte_pairs) {
        bpe_free(bpe);
        return fail(ERROR_MEMORY, "no memory for a tokenizer of %zu tokens and %zu merges", tokens, merges);
    }
    bpe->texts = texts;
    bpe->tokens = tokens;
    bpe->pair_shift = 64 - pair_bits;
    bpe->piece_shift = 64 - piece_bits;
    for (size_t i = 0; i < CHARACTERS; i++)
        bpe->characters[i] = -1;
    for (size_t i = 0; i < pair_slots; i++)
        bpe->pairs[i] = NO_PAIR;
    for (size_t i = 0; i < piece_slots; i++)
        bpe->pieces[i].id = -1;
    *result = bpe;
    return OK;
}

void bpe_free(struct bpe *bpe) {
    if (!bpe)
        return;
    free(bpe->pairs);
    free(bpe->merged);
    free(bpe->pieces);
    free(bpe->pair_filter);
    free(bpe->byte_pairs);
    free(bpe->characters);
    free(bpe);
}

static inline uint64_t piece_key(const char *bytes, size_t count) {
    if (count > SHORT_KEY)
        return XXH3_64bits(bytes, count);
    uint64_t key = 0;
    memcpy(&key, bytes, count);
    return key;
}

static inline size_t first_slot(const struct bpe *bpe, uint64_t key, size_t count) {
    return (size_t)(((key ^ count) * MULTIPLIER) >> bpe->piece_shift);
}

/* The slot of these bytes, or the empty one where they belong. */
static inline struct piece_slot *find_slot(
    const struct bpe *bpe, const char *bytes, size_t count, uint64_t key, size_t slot) {
    size_t mask = ((size_t)1 << (64 - bpe->piece_shift)) - 1;
    for (;; slot = (slot + 1) & mask) {
        struct piece_slot *entry = &bpe->pieces[slot];
        if (entry->id < 0)
            return entry;
        if (entry->key == key && entry->length == count &&
            (count <= SHORT_KEY || !memcmp(bpe->texts.blob + bpe->texts.offsets[entry->id], bytes, count)))
            return entry;
    }
}

static inline struct piece_slot *find_piece(const struct bpe *bpe, const char *bytes, size_t count) {
    uint64_t key = piece_key(bytes, count);
    return find_slot(bpe, bytes, count, key, first_slot(bpe, key, count));
}

bool bpe_add_token(struct bpe *bpe, int32_t id) {
    uint32_t start = bpe->texts.offsets[id], count = bpe->texts.offsets[id + 1] - start;
    const char *bytes = bpe->texts.blob + start;
    struct piece_slot *slot = find_piece(bpe, bytes, count);
    if (slot->id >= 0)
        return false;
    *slot = (struct piece_slot){.key = piece_key(bytes, count), .id = id, .length = count & INT32_MAX};
    return true;
}

int32_t bpe_find_token(const struct bpe *bpe, const char *bytes, size_t count) {
    return find_piece(bpe, bytes, count)->id;
}

static inline uint64_t pair_key(int32_t left, int32_t right) {
    return (uint64_t)(uint32_t)left << ID_BITS | (uint32_t)right;
}

static inline uint64_t *find_pair(const struct bpe *bpe, uint64_t key, uint64_t hash) {
    size_t mask = ((size_t)1 << (64 - bpe->pair_shift)) - 1;
    size_t slot = hash >> bpe->pair_shift;
    for (;; slot = (slot + 1) & mask) {
        uint64_t *entry = &bpe->pairs[slot];
        if (*entry == NO_PAIR || *entry >> RANK_BITS == key)
            return entry;
    }
}

bool bpe_add_merge(struct bpe *bpe, int32_t left, int32_t right, int32_t merged, uint32_t rank) {
    uint64_t key = pair_key(left, right), hash = key * MULTIPLIER;
    uint64_t bit = hash >> (bpe->pair_shift - FILTER_BITS), *slot = find_pair(bpe, key, hash);
    if (*slot != NO_PAIR)
        return false;
    bpe->pair_filter[bit / 64] |= (uint64_t)1 << bit % 64;
    bpe->merged[rank] = (uint32_t)merged;
    *slot = key << RANK_BITS | rank;
    return true;
}

/* The rank of a pair, or NO_MERGE. */
static inline uint32_t find_merge(const struct bpe *bpe, int32_t left, int32_t right) {
    uint64_t key = pair_key(left, right), hash = key * MULTIPLIER;
    uint64_t bit = hash >> (bpe->pair_shift - FILTER_BITS);
    if (!(bpe->pair_filter[bit / 64] >> bit % 64 & 1))
        return NO_MERGE;
    uint64_t pair = *find_pair(bpe, key, hash);
    return pair == NO_PAIR ? NO_MERGE : (uint32_t)pair & ((1u << RANK_BITS) - 1);
}

/* ---- merging ---- */

/* Which character of three bytes begins the text, or -1. */
static inline int32_t read_character(const unsigned char *text, size_t bytes) {
    if (text[0] >> 4 != 0xE || bytes < CHARACTER_BYTES || text[1] >> 6 != 2 || text[2] >> 6 != 2)
        return -1;
    return (text[0] & 0xF) << 12 | (text[1] & 0x3F) << 6 | (text[2] & 0x3F);
}

/* The symbol that merging begins with at this place, and its bytes. */
static inline int32_t first_symbol(
    const struct bpe *bpe, const unsigned char *text, size_t bytes, size_t *length) {
    int32_t character = read_character(text, bytes), id = character < 0 ? -1 : bpe->characters[character];
    *length = id < 0 ? 1 : CHARACTER_BYTES;
    return id < 0 ? bpe->byte_ids[text[0]] : id;
}

/* What a short piece is merged in: places are those of its first symbols, a token stands at that of its first one. */
struct short_piece {
    uint64_t starts; /* bit i: a token stands at place i */
    int32_t ids[SHORT_PIECE];
    int32_t keys[SHORT_PIECE]; /* rank of the pair of a place and the next << PLACE_BITS | place; NO_KEY */
};

static inline void set_merge(struct short_piece *piece, unsigned place, uint32_t rank) {
    piece->keys[place] = rank == NO_MERGE ? NO_KEY : (int32_t)(rank << PLACE_BITS | place);
}

/* The least key of the first `count`, a multiple of KEY_STRIDE: a loop that compilers turn into vectors. */
static inline int32_t least_key(const int32_t *keys, size_t count) {
    int32_t least[KEY_STRIDE];
    memcpy(least, keys, sizeof least);
    for (size_t i = KEY_STRIDE; i < count; i += KEY_STRIDE)
        for (size_t k = 0; k < KEY_STRIDE; k++)
            least[k] = keys[i + k] < least[k] ? keys[i + k] : least[k];
    for (size_t k = 1; k < KEY_STRIDE; k++)
        least[0] = least[k] < least[0] ? least[k] : least[0];
    return least[0];
}

static inline void merge_at(const struct bpe *bpe, struct short_piece *piece, uint32_t key) {
    unsigned place = key % SHORT_PIECE;
    uint64_t bit = (uint64_t)1 << place, behind = piece->starts & ~(bit | (bit - 1));
    unsigned gone = (unsigned)__builtin_ctzll(behind);
    behind &= behind - 1;
    piece->starts &= ~((uint64_t)1 << gone);
    piece->keys[gone] = piece->keys[place] = NO_KEY;
    piece->ids[place] = (int32_t)bpe->merged[key >> PLACE_BITS];
    if (behind)
        set_merge(piece, place, find_merge(bpe, piece->ids[place], piece->ids[__builtin_ctzll(behind)]));
    uint64_t before = piece->starts & (bit - 1);
    if (before) {
        unsigned previous = 63 - (unsigned)__builtin_clzll(before);
        set_merge(piece, previous, find_merge(bpe, piece->ids[previous], piece->ids[place]));
    }
}

/* The first symbols with the merges of neighbours. Returns their number; 0: there are too many. */
static size_t begin_short(
    const struct bpe *bpe, const unsigned char *text, size_t bytes, struct short_piece *piece) {
    size_t count = 0, length = 0, before = 0;
    piece->starts = 0;
    for (size_t at = 0; at < bytes; at += length, count++) {
        if (count == SHORT_PIECE)
            return 0;
        int32_t id = piece->ids[count] = first_symbol(bpe, text + at, bytes - at, &length);
        if (count)
            set_merge(piece, (unsigned)count - 1,
                before == 1 && length == 1 ? bpe->byte_pairs[text[at - 1] << 8 | text[at]]
                                           : find_merge(bpe, piece->ids[count - 1], id));
        piece->starts |= (uint64_t)1 << count;
        before = length;
    }
    return count;
}

/* Merges a piece of up to SHORT_PIECE symbols; ids has room for so many. Returns the number of ids; 0: the piece is
 * longer. */
static size_t merge_short(const struct bpe *bpe, const unsigned char *text, size_t bytes, int32_t *ids) {
    struct short_piece piece;
    size_t symbols = begin_short(bpe, text, bytes, &piece), count = 0;
    size_t padded = (symbols + KEY_STRIDE - 1) / KEY_STRIDE * KEY_STRIDE;
    int32_t least;
    if (!symbols)
        return 0;
    for (size_t i = symbols - 1; i < padded; i++)
        piece.keys[i] = NO_KEY;
    while ((least = least_key(piece.keys, padded)) != NO_KEY)
        merge_at(bpe, &piece, (uint32_t)least);
    for (uint64_t starts = piece.starts; starts; starts &= starts - 1)
        ids[count++] = piece.ids[__builtin_ctzll(starts)];
    return count;
}

/* A long piece is a linked list of symbols, and a heap of the pairs to merge, least rank and then least
 * place first. A heap entry is stale, and dropped, when the pair at its place has another rank by now. */
struct symbol {
    int32_t id;
    uint32_t previous, next; /* places; NOWHERE at the ends */
    uint32_t merge;          /* rank with the next; NO_MERGE for the last and for places merged away */
};

struct heap {
    uint64_t *entries; /* rank << 32 | place */
    size_t count;
};

static const uint32_t NOWHERE = UINT32_MAX;

static void sift_down(struct heap *heap, size_t at) {
    uint64_t entry = heap->entries[at];
    for (size_t child; (child = 2 * at + 1) < heap->count; at = child) {
        if (child + 1 < heap->count && heap->entries[child + 1] < heap->entries[child])
            child++;
        if (entry <= heap->entries[child])
            break;
        heap->entries[at] = heap->entries[child];
    }
    heap->entries[at] = entry;
}

static void push(struct heap *heap, uint64_t entry) {
    size_t at = heap->count++;
    for (; at > 0 && entry < heap->entries[(at - 1) / 2]; at = (at - 1) / 2)
        heap->entries[at] = heap->entries[(at - 1) / 2];
    heap->entries[at] = entry;
}

static uint64_t pop(struct heap *heap) {
    uint64_t least = heap->entries[0];
    heap->entries[0] = heap->entries[--heap->count];
    if (heap->count)
        sift_down(heap, 0);
    return least;
}

static inline uint64_t heap_entry(uint32_t rank, uint32_t place) {
    return (uint64_t)rank << 32 | place;
}

static void build_symbols(const struct bpe *bpe, const unsigned char *piece, size_t bytes,
    struct symbol *symbols, struct heap *heap) {
    uint32_t count = 0;
    size_t length;
    for (size_t at = 0; at < bytes; at += length, count++)
        symbols[count] = (struct symbol){.id = first_symbol(bpe, piece + at, bytes - at, &length),
            .previous = count ? count - 1 : NOWHERE,
            .next = count + 1};
    symbols[count - 1].next = NOWHERE;
    symbols[count - 1].merge = NO_MERGE;
    for (uint32_t i = 0; i + 1 < count; i++) {
        symbols[i].merge = find_merge(bpe, symbols[i].id, symbols[i + 1].id);
        if (symbols[i].merge != NO_MERGE)
            heap->entries[heap->count++] = heap_entry(symbols[i].merge, i);
    }
    for (size_t i = heap->count / 2; i-- > 0;)
        sift_down(heap, i);
}

static void renew_merge(const struct bpe *bpe, struct symbol *symbols, uint32_t place, struct heap *heap) {
    struct symbol *symbol = &symbols[place];
    symbol->merge =
        symbol->next == NOWHERE ? NO_MERGE : find_merge(bpe, symbol->id, symbols[symbol->next].id);
    if (symbol->merge != NO_MERGE)
        push(heap, heap_entry(symbol->merge, place));
}

static void merge_symbols(const struct bpe *bpe, struct symbol *symbols, struct heap *heap) {
    while (heap->count) {
        uint64_t entry = pop(heap);
        uint32_t place = (uint32_t)entry;
        struct symbol *symbol = &symbols[place];
        if (symbol->merge == NO_MERGE || heap_entry(symbol->merge, place) != entry)
            continue;
        struct symbol *gone = &symbols[symbol->next];
        symbol->id = (int32_t)bpe->merged[symbol->merge];
        symbol->next = gone->next;
        gone->merge = NO_MERGE;
        if (symbol->next != NOWHERE)
            symbols[symbol->next].previous = place;
        renew_merge(bpe, symbols, place, heap);
        if (symbol->previous != NOWHERE)
            renew_merge(bpe, symbols, symbol->previous, heap);
    }
}

static enum result merge_long(
    const struct bpe *bpe, const unsigned char *piece, size_t bytes, struct token_list *ids) {
    /* Each merge takes one entry and adds two at most, and there are fewer merges than bytes. */
    struct symbol *symbols = malloc(bytes * sizeof *symbols);
    struct heap heap = {.entries = malloc(2 * bytes * sizeof *heap.entries)};
    enum result status = OK;
    if (!symbols || !heap.entries) {
        status = fail(ERROR_MEMORY, "no memory to encode %zu bytes without a break", bytes);
        goto done;
    }
    build_symbols(bpe, piece, bytes, symbols, &heap);
    merge_symbols(bpe, symbols, &heap);
    for (uint32_t place = 0; place != NOWHERE; place = symbols[place].next)
        token_list_append(ids, &symbols[place].id, 1);
done:
    free(symbols);
    free(heap.entries);
    return status;
}

static enum result merge_piece(
    const struct bpe *bpe, const char *piece, size_t bytes, struct token_list *ids) {
    if (!bytes)
        return OK;
    int32_t merged[SHORT_PIECE];
    size_t count = 0;
    if (bytes <= SHORT_PIECE * CHARACTER_BYTES)
        count = merge_short(bpe, (const unsigned char *)piece, bytes, merged);
    if (!count)
        return merge_long(bpe, (const unsigned char *)piece, bytes, ids);
    token_list_append(ids, merged, count);
    return OK;
}

void bpe_look(const struct bpe *bpe, const char *text, size_t bytes, struct bpe_piece *piece) {
    uint64_t key = piece_key(text, bytes);
    *piece = (struct bpe_piece){text, bytes, key, first_slot(bpe, key, bytes)};
    __builtin_prefetch(&bpe->pieces[piece->slot]);
}

enum result bpe_encode(const struct bpe *bpe, const struct bpe_piece *piece, struct token_list *ids) {
    const struct piece_slot *slot = find_slot(bpe, piece->text, piece->bytes, piece->key, piece->slot);
    if (slot->id >= 0 && slot->whole) {
        token_list_append(ids, &slot->id, 1);
        return OK;
    }
    return merge_piece(bpe, piece->text, piece->bytes, ids);
}

/* ---- completion ---- */

/* The least rank of the merges that a token is the left part of, and the right part. */
struct neighbours {
    uint32_t *as_left, *as_right; /* [tokens] */
};

/* Whether nothing beside the symbols from first to last can merge with them at a rank up to `rank`. */
static bool is_apart(const struct neighbours *least, int32_t first, int32_t last, uint32_t rank) {
    return least->as_right[first] > rank && least->as_left[last] > rank;
}

/* Whether a text with this character in it has the same ids when merging begins with `id` in the place of its three
 * bytes. So it is when alone they merge to `id`, and every merge of one of the symbols on the way, or of `id`, with one
 * outside has a higher rank than all merges inside: the inner ones then come first, and of the outer ones none
 * that could have come before is late. */
static bool begins_whole(
    const struct bpe *bpe, const struct neighbours *least, const unsigned char *text, int32_t id) {
    int32_t a = bpe->byte_ids[text[0]], b = bpe->byte_ids[text[1]], c = bpe->byte_ids[text[2]];
    uint32_t left = find_merge(bpe, a, b), right = find_merge(bpe, b, c),
             first = left <= right ? left : right;
    if (first == NO_MERGE)
        return false;
    int32_t pair = (int32_t)bpe->merged[first];
    if (left <= right)
        a = pair;
    else
        c = pair;
    uint32_t second = find_merge(bpe, a, c);
    if (second == NO_MERGE || (int32_t)bpe->merged[second] != id)
        return false;
    uint32_t rank = first > second ? first : second;
    return is_apart(least, bpe->byte_ids[text[0]], bpe->byte_ids[text[2]], rank) &&
           is_apart(least, a, c, rank) && is_apart(least, id, id, rank);
}

static void note_least(const struct bpe *bpe, const struct neighbours *least) {
    size_t slots = (size_t)1 << (64 - bpe->pair_shift);
    for (size_t i = 0; i < slots; i++) {
        uint64_t pair = bpe->pairs[i];
        size_t right = pair >> RANK_BITS & ((1u << ID_BITS) - 1), left = pair >> (RANK_BITS + ID_BITS);
        uint32_t rank = (uint32_t)pair & ((1u << RANK_BITS) - 1);
        if (pair == NO_PAIR)
            continue;
        if (rank < least->as_left[left])
            least->as_left[left] = rank;
        if (rank < least->as_right[right])
            least->as_right[right] = rank;
    }
}

static enum result find_characters(struct bpe *bpe) {
    size_t bytes = bpe->tokens * sizeof(uint32_t), slots = (size_t)1 << (64 - bpe->piece_shift);
    struct neighbours least = {malloc(bytes + 1), malloc(bytes + 1)};
    enum result status = OK;
    if (!least.as_left || !least.as_right) {
        status = fail(ERROR_MEMORY, "no memory for a tokenizer of %zu tokens", bpe->tokens);
        goto done;
    }
    memset(least.as_left, 0xFF, bytes);
    memset(least.as_right, 0xFF, bytes);
    note_least(bpe, &least);
    for (size_t i = 0; i < slots; i++) {
        const struct piece_slot *slot = &bpe->pieces[i];
        if (slot->id < 0 || slot->length != CHARACTER_BYTES)
            continue;
        const unsigned char *text = (const unsigned char *)bpe->texts.blob + bpe->texts.offsets[slot->id];
        int32_t character = read_character(text, CHARACTER_BYTES);
        if (character >= 0 && begins_whole(bpe, &least, text, slot->id))
            bpe->characters[character] = slot->id;
    }
done:
    free(least.as_left);
    free(least.as_right);
    return status;
}

static enum result mark_whole_tokens(struct bpe *bpe) {
    struct token_list ids = {0};
    enum result status = OK;
    size_t slots = (size_t)1 << (64 - bpe->piece_shift);
    for (size_t i = 0; i < slots; i++) {
        struct piece_slot *slot = &bpe->pieces[i];
        if (slot->id < 0)
            continue;
        ids.count = 0;
        TRY_GOTO(status, merge_piece(bpe, bpe->texts.blob + bpe->texts.offsets[slot->id], slot->length, &ids),
            done);
        slot->whole = ids.count == 1 && ids.ids[0] == slot->id;
    }
done:
    free(ids.ids);
    return status;
}

enum result bpe_finish(struct bpe *bpe) {
    for (int byte = 0; byte < 256; byte++) {
        char text = (char)byte;
        bpe->byte_ids[byte] = bpe_find_token(bpe, &text, 1);
        if (bpe->byte_ids[byte] < 0)
            return fail(ERROR_INPUT, "the vocabulary has no token for byte 0x%02X alone", (unsigned)byte);
    }
    for (int i = 0; i < BYTE_PAIRS; i++)
        bpe->byte_pairs[i] = find_merge(bpe, bpe->byte_ids[i >> 8], bpe->byte_ids[i & 255]);
    TRY(find_characters(bpe));
    return mark_whole_tokens(bpe);
}
