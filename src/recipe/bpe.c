#include "recipe/bpe.h"

#include <stdlib.h> /* malloc, calloc, free */
#include <string.h> /* memcpy, memcmp, memmove */
#include <xxhash.h> /* XXH3_64bits */

/* Two hash tables, open addressing with linear probing, at most half full.
 *
 * pairs: (left id, right id) -> rank and merged id.
 *
 * pieces: bytes of a token -> id. Most pieces of real text are one token; for tokens that merging their own
 * bytes does give (`whole`), looking the piece up first is the same as merging it, and faster. */
struct pair_slot {
    int32_t left, right; /* left -1: empty */
    uint64_t merge;      /* rank << 32 | merged id */
};

struct piece_slot {
    uint64_t key; /* up to 8 bytes: the bytes themselves; else their hash */
    int32_t id;   /* -1: empty */
    uint32_t length : 31, whole : 1;
};

struct bpe {
    struct token_texts texts;
    struct pair_slot *pairs;
    struct piece_slot *pieces;
    int pair_shift, piece_shift; /* 64 - log2 of the number of slots */
    uint64_t *byte_pairs;        /* [256 * 256] merge of two single bytes, as the first step needs them all */
    int32_t byte_ids[256];
};

enum {
    SHORT_PIECE = 64, /* bytes up to which rescanning for the least rank beats a heap */
    SHORT_KEY = 8,
    BYTE_PAIRS = 256 * 256,
    SLOT_BITS_LEAST = 4,
};

static const uint64_t NO_MERGE = UINT64_MAX; /* above every rank */
static const uint64_t MULTIPLIER = 0x9E3779B97F4A7C15u;

/* ---- tables ---- */

static int slot_bits(size_t entries) {
    int bits = SLOT_BITS_LEAST;
    while (((size_t)1 << bits) < 2 * entries)
        bits++;
    return bits;
}

enum result bpe_create(struct token_texts texts, size_t tokens, size_t merges, struct bpe **result) {
    int piece_bits = slot_bits(tokens), pair_bits = slot_bits(merges);
    size_t piece_slots = (size_t)1 << piece_bits, pair_slots = (size_t)1 << pair_bits;
    struct bpe *bpe = calloc(1, sizeof *bpe);
    if (bpe) {
        bpe->pairs = malloc(pair_slots * sizeof *bpe->pairs);
        bpe->pieces = malloc(piece_slots * sizeof *bpe->pieces);
        bpe->byte_pairs = malloc(BYTE_PAIRS * sizeof *bpe->byte_pairs);
    }
    if (!bpe || !bpe->pairs || !bpe->pieces || !bpe->byte_pairs) {
        bpe_free(bpe);
        return fail(ERROR_MEMORY, "no memory for a tokenizer of %zu tokens and %zu merges", tokens, merges);
    }
    bpe->texts = texts;
    bpe->pair_shift = 64 - pair_bits;
    bpe->piece_shift = 64 - piece_bits;
    for (size_t i = 0; i < pair_slots; i++)
        bpe->pairs[i].left = -1;
    for (size_t i = 0; i < piece_slots; i++)
        bpe->pieces[i].id = -1;
    *result = bpe;
    return OK;
}

void bpe_free(struct bpe *bpe) {
    if (!bpe)
        return;
    free(bpe->pairs);
    free(bpe->pieces);
    free(bpe->byte_pairs);
    free(bpe);
}

static inline uint64_t piece_key(const char *bytes, size_t count) {
    if (count > SHORT_KEY)
        return XXH3_64bits(bytes, count);
    uint64_t key = 0;
    memcpy(&key, bytes, count);
    return key;
}

/* The slot of these bytes, or the empty one where they belong. */
static inline struct piece_slot *find_piece(const struct bpe *bpe, const char *bytes, size_t count) {
    uint64_t key = piece_key(bytes, count);
    size_t mask = ((size_t)1 << (64 - bpe->piece_shift)) - 1;
    size_t slot = ((key ^ count) * MULTIPLIER) >> bpe->piece_shift;
    for (;; slot = (slot + 1) & mask) {
        struct piece_slot *entry = &bpe->pieces[slot];
        if (entry->id < 0)
            return entry;
        if (entry->key == key && entry->length == count &&
            (count <= SHORT_KEY || !memcmp(bpe->texts.blob + bpe->texts.offsets[entry->id], bytes, count)))
            return entry;
    }
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

static inline struct pair_slot *find_pair(const struct bpe *bpe, int32_t left, int32_t right) {
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    size_t mask = ((size_t)1 << (64 - bpe->pair_shift)) - 1;
    size_t slot = (key * MULTIPLIER) >> bpe->pair_shift;
    for (;; slot = (slot + 1) & mask) {
        struct pair_slot *entry = &bpe->pairs[slot];
        if (entry->left < 0 || (entry->left == left && entry->right == right))
            return entry;
    }
}

bool bpe_add_merge(struct bpe *bpe, int32_t left, int32_t right, int32_t merged, uint32_t rank) {
    struct pair_slot *slot = find_pair(bpe, left, right);
    if (slot->left >= 0)
        return false;
    *slot =
        (struct pair_slot){.left = left, .right = right, .merge = (uint64_t)rank << 32 | (uint32_t)merged};
    return true;
}

static inline uint64_t find_merge(const struct bpe *bpe, int32_t left, int32_t right) {
    const struct pair_slot *slot = find_pair(bpe, left, right);
    return slot->left < 0 ? NO_MERGE : slot->merge;
}

/* ---- merging ---- */

/* Merges a short piece in arrays that shrink; ids has room for `bytes`. Returns the number of ids. */
static size_t merge_short(const struct bpe *bpe, const unsigned char *piece, size_t bytes, int32_t *ids) {
    uint64_t merges[SHORT_PIECE]; /* of ids[i] and ids[i + 1] */
    size_t count = bytes;
    for (size_t i = 0; i < bytes; i++)
        ids[i] = bpe->byte_ids[piece[i]];
    for (size_t i = 0; i + 1 < bytes; i++)
        merges[i] = bpe->byte_pairs[piece[i] << 8 | piece[i + 1]];
    while (count > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < count; i++) {
            if (merges[i] < merges[best])
                best = i;
        }
        if (merges[best] == NO_MERGE)
            break;
        ids[best] = (int32_t)(uint32_t)merges[best];
        count--;
        memmove(ids + best + 1, ids + best + 2, (count - best - 1) * sizeof *ids);
        if (best + 1 < count) {
            memmove(merges + best + 1, merges + best + 2, (count - best - 2) * sizeof *merges);
            merges[best] = find_merge(bpe, ids[best], ids[best + 1]);
        }
        if (best > 0)
            merges[best - 1] = find_merge(bpe, ids[best - 1], ids[best]);
    }
    return count;
}

/* A long piece is a linked list of symbols, and a heap of the pairs to merge, least rank and then least
 * place first. A heap entry is stale, and dropped, when the pair at its place has another rank by now. */
struct symbol {
    int32_t id;
    uint32_t previous, next; /* places; NOWHERE at the ends */
    uint64_t merge;          /* with the next; NO_MERGE for the last and for places merged away */
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

static inline uint64_t heap_entry(uint64_t merge, uint32_t place) {
    return (merge & ~(uint64_t)UINT32_MAX) | place;
}

static void build_symbols(const struct bpe *bpe, const unsigned char *piece, uint32_t bytes,
    struct symbol *symbols, struct heap *heap) {
    for (uint32_t i = 0; i < bytes; i++) {
        bool last = i + 1 == bytes;
        symbols[i] = (struct symbol){
            .id = bpe->byte_ids[piece[i]],
            .previous = i ? i - 1 : NOWHERE,
            .next = last ? NOWHERE : i + 1,
            .merge = last ? NO_MERGE : bpe->byte_pairs[piece[i] << 8 | piece[i + 1]],
        };
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
        symbol->id = (int32_t)(uint32_t)symbol->merge;
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
    build_symbols(bpe, piece, (uint32_t)bytes, symbols, &heap);
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
    if (bytes > SHORT_PIECE)
        return merge_long(bpe, (const unsigned char *)piece, bytes, ids);
    int32_t merged[SHORT_PIECE];
    size_t count = merge_short(bpe, (const unsigned char *)piece, bytes, merged);
    token_list_append(ids, merged, count);
    return OK;
}

enum result bpe_encode_piece(const struct bpe *bpe, const char *piece, size_t bytes, struct token_list *ids) {
    const struct piece_slot *slot = find_piece(bpe, piece, bytes);
    if (slot->id >= 0 && slot->whole) {
        token_list_append(ids, &slot->id, 1);
        return OK;
    }
    return merge_piece(bpe, piece, bytes, ids);
}

/* ---- completion ---- */

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
    return mark_whole_tokens(bpe);
}
