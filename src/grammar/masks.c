/* The tokens that may follow a set: one walk over the tokens' trie, without the parts of it that are known to be
 * allowed. Where every plain text (vocabulary.h) may follow, a node's plain tokens are taken from what the
 * vocabulary has ready, and only the others below it are walked. */
#include "grammar/automaton.h"

#include <stdlib.h> /* calloc, malloc, free */
#include <string.h> /* memcpy, memset */

enum { RANGES = 256, GAP_GOES_ON = 0xFFFF, FILTER_FROM = 48, PLAIN_STATES_LIMIT = 1024 };
static const uint32_t WRITTEN_OUT = UINT32_MAX; /* a kept mask without a base */
/* Of kept masks of one grammar; the least recently used goes first. */
static const size_t MASKS_BYTES_LIMIT = (size_t)256 << 10;

static enum result out_of_memory(void) {
    return fail(ERROR_MEMORY, "no memory for the masks of a grammar");
}

static void set_bit(uint64_t *bits, uint32_t bit) {
    bits[bit >> 6] |= (uint64_t)1 << (bit & 63);
}

/* ---- how much plain text can follow ---- */

/* A set within plain text, and where in a character; `level`: whole characters before it. */
struct plain_place {
    uint32_t set;
    uint8_t state, level;
};

/* A search in breadth over plain text. */
struct plain_search {
    struct plain_place places[PLAIN_STATES_LIMIT];
    uint16_t table[2 * PLAIN_STATES_LIMIT]; /* hash table of places, + 1 */
    uint32_t count;
    bool met_again; /* a place was reached by texts of different lengths */
    bool full, lives, dies;
};

static void add_place(struct plain_search *search, uint32_t set, unsigned state, unsigned level) {
    uint32_t key = (set * PLAIN_STATES + state) * 0x9E3779B9u >> 16;
    uint32_t slot = key % (2 * PLAIN_STATES_LIMIT);
    for (; search->table[slot]; slot = (slot + 1) % (2 * PLAIN_STATES_LIMIT)) {
        const struct plain_place *place = &search->places[search->table[slot] - 1];
        if (place->set == set && place->state == state) {
            search->met_again = search->met_again || place->level != level;
            return;
        }
    }
    if (search->count == PLAIN_STATES_LIMIT) {
        search->full = true;
        return;
    }
    search->places[search->count] =
        (struct plain_place){.set = set, .state = (uint8_t)state, .level = (uint8_t)level};
    search->table[slot] = (uint16_t)++search->count;
}

/* Follows all plain bytes from a place. */
static enum result leave_place(struct grammar *grammar, struct plain_search *search, uint32_t number) {
    struct plain_place place = search->places[number];
    uint32_t row = 0, next = DEAD_SET;
    uint8_t told[256]; /* of each class of bytes: the state behind its last one */
    TRY(automaton_row(grammar, place.set, &row));
    uint32_t partition = set_at(grammar->automaton, place.set)->partition, classes = 0;
    const uint8_t *class_of = expression_classes(grammar->expressions, partition, &classes);
    memset(told, PLAIN_NONE, classes);
    unsigned first = place.state == PLAIN_WHOLE ? ' ' : 0x80, last = place.state == PLAIN_WHOLE ? 0xF4 : 0xBF;
    for (unsigned byte = first; byte <= last && !search->full; byte++) {
        unsigned state = plain_step(place.state, (unsigned char)byte);
        if (state == PLAIN_NONE || told[class_of[byte]] == state)
            continue;
        told[class_of[byte]] = (uint8_t)state;
        TRY(automaton_step(grammar, place.set, (unsigned char)byte, &next));
        search->lives = search->lives || next != DEAD_SET;
        search->dies = search->dies || next == DEAD_SET;
        if (next != DEAD_SET)
            add_place(search, next, state, place.level + (state == PLAIN_WHOLE));
        else if (place.level == 0)
            return OK; /* not one character is free */
    }
    return OK;
}

/* Sets the set's `plain` and `plain_to_the_end`. */
static enum result search_plain(struct grammar *grammar, uint32_t number) {
    struct plain_search search;
    search.count = 0;
    search.met_again = search.full = search.dies = false;
    memset(search.table, 0, sizeof search.table);
    add_place(&search, number, PLAIN_WHOLE, 0);
    unsigned level = 0;
    uint32_t done = 0;
    while (done < search.count && !search.dies && !search.full) {
        level = search.places[done].level;
        search.lives = false;
        if (level == PLAIN_CHARACTERS)
            break;
        for (; done < search.count && search.places[done].level == level && !search.full; done++) {
            TRY(leave_place(grammar, &search, done));
            if (search.dies && (search.lives || level == 0))
                break;
        }
    }
    struct set *set = set_at(grammar->automaton, number);
    set->plain_to_the_end = search.dies && !search.lives && !search.met_again && level > 0;
    if (search.full)
        set->plain = 1;
    else if (search.dies || level == PLAIN_CHARACTERS)
        set->plain = (uint8_t)(level + 1);
    else
        set->plain = PLAIN_ENDLESS;
    return OK;
}

/* ---- the walk ---- */

struct range {
    uint32_t from, to; /* ranks */
    bool endless;      /* long tokens, too */
};

struct walk {
    struct grammar *grammar;
    const struct grammar_vocabulary *vocabulary;
    uint64_t *bits;
    struct range ranges[RANGES]; /* whose plain tokens are all allowed */
    uint32_t range_count;
    uint32_t base; /* of the mask, as in kept masks */
};

struct level {
    size_t end;             /* of the subtree */
    const uint64_t *filter; /* nodes to be walked, or NULL: all */
    const uint8_t *class_of;
    uint32_t row, set;
};

/* The nodes that are left to be walked below a node where the walk has reached `set`; NULL: all. */
static enum result filter_below(
    struct walk *walk, uint32_t number, size_t from, size_t to, unsigned height, const uint64_t **filter) {
    const struct set *set = set_at(walk->grammar->automaton, number);
    *filter = NULL;
    if (set->plain == PLAIN_UNKNOWN)
        TRY(search_plain(walk->grammar, number));
    set = set_at(walk->grammar->automaton, number);
    bool endless = set->plain == PLAIN_ENDLESS, is_root = to - from == walk->vocabulary->nodes;
    if (!endless && (set->plain - 1u < height || walk->range_count == RANGES) &&
        !(is_root && set->plain_to_the_end))
        return OK;
    if (walk->range_count == RANGES)
        return OK;
    *filter = endless ? walk->vocabulary->special : walk->vocabulary->irregular;
    if (is_root) {
        walk->base = endless ? 1 : (uint32_t)set->plain;
        memcpy(walk->bits, vocabulary_plain_mask(walk->vocabulary, walk->base - 1),
            vocabulary_words(walk->vocabulary) * sizeof *walk->bits);
    } else {
        walk->ranges[walk->range_count++] =
            (struct range){walk->vocabulary->trie[from].rank, walk->vocabulary->trie[to].rank, endless};
    }
    return OK;
}

static enum result enter_level(struct walk *walk, struct level *level, uint32_t set, size_t end) {
    struct grammar *grammar = walk->grammar;
    TRY(automaton_row(grammar, set, &level->row));
    level->class_of =
        expression_classes(grammar->expressions, set_at(grammar->automaton, set)->partition, NULL);
    level->set = set;
    level->end = end;
    return OK;
}

static size_t next_node(const uint64_t *filter, size_t node, size_t end) {
    size_t word = node >> 6;
    uint64_t left = filter[word] >> (node & 63) << (node & 63);
    while (!left && (word + 1) << 6 < end)
        left = filter[++word];
    return left ? (word << 6) + (size_t)__builtin_ctzll(left) : end;
}

static enum result walk_trie(struct walk *walk, uint32_t number) {
    const struct grammar_vocabulary *vocabulary = walk->vocabulary;
    struct array *rows = &walk->grammar->automaton->rows;
    struct level levels[TOKEN_BYTES_LIMIT + 1], *level = levels;
    TRY(enter_level(walk, level, number, vocabulary->nodes));
    TRY(filter_below(walk, number, 0, vocabulary->nodes, PLAIN_CHARACTERS, &level->filter));
    for (size_t i = 0;;) {
        if (level->filter)
            i = next_node(level->filter, i, level->end);
        if (i >= level->end) {
            if (level == levels)
                return OK;
            i = level->end;
            level--;
            continue;
        }
        struct trie_node node = vocabulary->trie[i];
        uint32_t next = ((const uint32_t *)rows->data)[level->row + level->class_of[node.byte]];
        if (next == UNKNOWN_SET)
            TRY(automaton_step(walk->grammar, level->set, (unsigned char)node.byte, &next));
        if (next == DEAD_SET) {
            i += node.subtree;
            continue;
        }
        for (uint32_t rank = node.rank; rank < vocabulary->trie[i + 1].rank; rank++)
            set_bit(walk->bits, vocabulary->order[rank]);
        i++;
        if (node.subtree == 1)
            continue;
        const uint64_t *filter = level->filter;
        if (!filter && node.subtree >= FILTER_FROM && vocabulary->heights[i - 1])
            TRY(filter_below(walk, next, i, i - 1 + node.subtree, vocabulary->heights[i - 1], &filter));
        level++;
        level->filter = filter;
        TRY(enter_level(walk, level, next, i - 1 + node.subtree));
    }
}

/* Sets or clears the bits of the plain tokens with ranks from..to, long ones only when `endless`. */
static void mark_plain(
    const struct grammar_vocabulary *vocabulary, struct range range, uint64_t *bits, bool set) {
    unsigned most = range.endless ? LONG_TOKEN : PLAIN_CHARACTERS;
    for (uint32_t rank = range.from; rank < range.to; rank++) {
        uint32_t token = vocabulary->order[rank];
        uint64_t bit = (uint64_t)(vocabulary->characters[rank] <= most) << (token & 63);
        bits[token >> 6] = set ? bits[token >> 6] | bit : bits[token >> 6] & ~bit;
    }
}

/* The long tokens within the ranges in which they are allowed. */
static void mark_long(const struct walk *walk, uint64_t *bits) {
    const struct grammar_vocabulary *vocabulary = walk->vocabulary;
    uint32_t at = 0;
    for (uint32_t i = 0; i < vocabulary->long_count; i++) {
        uint32_t rank = vocabulary->long_ranks[i];
        while (at < walk->range_count && walk->ranges[at].to <= rank)
            at++;
        if (at < walk->range_count && walk->ranges[at].from <= rank && walk->ranges[at].endless)
            set_bit(bits, vocabulary->order[rank]);
    }
}

/* Adds the ranges' plain tokens; where they are most of all, by taking away the others from all. */
static void add_ranges(struct walk *walk) {
    const struct grammar_vocabulary *vocabulary = walk->vocabulary;
    uint32_t covered = 0, at = 0;
    size_t words = vocabulary_words(vocabulary);
    for (uint32_t i = 0; i < walk->range_count; i++)
        covered += walk->ranges[i].to - walk->ranges[i].from;
    if (covered <= vocabulary->ranks / 2) {
        for (uint32_t i = 0; i < walk->range_count; i++)
            mark_plain(vocabulary, walk->ranges[i], walk->bits, true);
        return;
    }
    uint64_t *scratch = walk->grammar->automaton->scratch;
    walk->base = PLAIN_CHARACTERS + 1;
    memcpy(scratch, vocabulary_plain_mask(vocabulary, PLAIN_CHARACTERS), words * sizeof *scratch);
    for (uint32_t i = 0; i < walk->range_count; i++) {
        mark_plain(vocabulary, (struct range){.from = at, .to = walk->ranges[i].from}, scratch, false);
        at = walk->ranges[i].to;
    }
    mark_plain(vocabulary, (struct range){.from = at, .to = vocabulary->ranks}, scratch, false);
    mark_long(walk, scratch);
    for (size_t i = 0; i < words; i++)
        walk->bits[i] |= scratch[i];
}

/* Control tokens and the end. */
static void mask_controls(const struct automaton *automaton, const struct set *set, uint64_t *bits) {
    const struct configuration *all = configurations_of(automaton, set);
    for (uint32_t i = 0; i < set->count; i++) {
        uint32_t state = all[i].state;
        if (state & TOKEN_FLAG && (state & ~(uint32_t)TOKEN_FLAG) < automaton->vocabulary->count)
            set_bit(bits, state & ~(uint32_t)TOKEN_FLAG);
    }
    if (set->accepting)
        set_bit(bits, automaton->vocabulary->end);
}

/* The mask of a set, and the ready one that it is near to. */
static enum result fresh_mask(struct grammar *grammar, uint32_t number, uint64_t *bits, uint32_t *base) {
    struct walk walk = {.grammar = grammar, .vocabulary = grammar->automaton->vocabulary, .bits = bits};
    memset(bits, 0, vocabulary_words(walk.vocabulary) * sizeof *bits);
    if (walk.vocabulary->nodes)
        TRY(walk_trie(&walk, number));
    if (walk.range_count)
        add_ranges(&walk);
    mask_controls(grammar->automaton, set_at(grammar->automaton, number), bits);
    *base = walk.base;
    return OK;
}

/* ---- kept masks ---- */

static struct kept_mask *kept_at(const struct automaton *automaton, uint32_t number) {
    return (struct kept_mask *)automaton->masks.data + number;
}

enum result masks_create(struct automaton *automaton) {
    automaton->scratch = malloc((vocabulary_words(automaton->vocabulary) + 1) * sizeof *automaton->scratch);
    if (!automaton->scratch)
        return out_of_memory();
    TRY(array_grow(&automaton->masks, sizeof(struct kept_mask), 1));
    *kept_at(automaton, 0) = (struct kept_mask){0};
    automaton->masks.count = 1;
    return OK;
}

size_t masks_bytes(const struct automaton *automaton) {
    return automaton->mask_bytes + automaton->masks.capacity * sizeof(struct kept_mask) +
           vocabulary_words(automaton->vocabulary) * sizeof *automaton->scratch;
}

static void take_out(struct automaton *automaton, uint32_t number) {
    const struct kept_mask *kept = kept_at(automaton, number);
    kept_at(automaton, kept->newer)->older = kept->older;
    kept_at(automaton, kept->older)->newer = kept->newer;
}

static void put_first(struct automaton *automaton, uint32_t number) {
    struct kept_mask *anchor = kept_at(automaton, 0), *kept = kept_at(automaton, number);
    kept->newer = 0;
    kept->older = anchor->older;
    kept_at(automaton, anchor->older)->newer = number;
    anchor->older = number;
}

static void drop_oldest(struct automaton *automaton) {
    uint32_t oldest = kept_at(automaton, 0)->newer;
    struct kept_mask *kept = kept_at(automaton, oldest);
    take_out(automaton, oldest);
    set_at(automaton, kept->set)->kept = 0;
    automaton->mask_bytes -= kept->bytes;
    free(kept->gaps);
    /* The last one moves to its place, so that the numbers stay without holes. */
    uint32_t last = (uint32_t)automaton->masks.count - 1;
    if (last != oldest) {
        *kept = *kept_at(automaton, last);
        kept_at(automaton, kept->newer)->older = oldest;
        kept_at(automaton, kept->older)->newer = oldest;
        set_at(automaton, kept->set)->kept = oldest + 1;
    }
    automaton->masks.count--;
}

void masks_clear(struct automaton *automaton) {
    while (automaton->masks.count > 1)
        drop_oldest(automaton);
}

static void base_mask(const struct automaton *automaton, uint32_t base, uint64_t *bits) {
    size_t bytes = vocabulary_words(automaton->vocabulary) * sizeof *bits;
    if (base)
        memcpy(bits, vocabulary_plain_mask(automaton->vocabulary, base - 1), bytes);
    else
        memset(bits, 0, bytes);
}

static void restore(const struct automaton *automaton, const struct kept_mask *kept, uint64_t *bits) {
    if (kept->base == WRITTEN_OUT) {
        memcpy(bits, kept->gaps, kept->bytes);
        return;
    }
    base_mask(automaton, kept->base, bits);
    uint32_t token = 0;
    for (uint32_t i = 0; i < kept->differences; i++) {
        token += kept->gaps[i];
        if (kept->gaps[i] != GAP_GOES_ON)
            bits[token >> 6] ^= (uint64_t)1 << (token & 63);
    }
}

/* Stores the gaps between the tokens in which `bits` differs from the base, in `gaps` unless it is NULL. */
static uint32_t find_gaps(
    const struct automaton *automaton, uint32_t base, const uint64_t *bits, uint16_t *gaps) {
    uint32_t count = 0, before = 0;
    const uint64_t *from = base ? vocabulary_plain_mask(automaton->vocabulary, base - 1) : NULL;
    for (size_t word = 0; word < vocabulary_words(automaton->vocabulary); word++)
        for (uint64_t left = bits[word] ^ (from ? from[word] : 0); left; left &= left - 1) {
            uint32_t token = (uint32_t)(word << 6) + (uint32_t)__builtin_ctzll(left);
            for (; token - before >= GAP_GOES_ON; before += GAP_GOES_ON, count++)
                if (gaps)
                    gaps[count] = GAP_GOES_ON;
            if (gaps)
                gaps[count] = (uint16_t)(token - before);
            count++;
            before = token;
        }
    return count;
}

/* Writes the mask out where that is shorter than its gaps. */
static enum result pack(struct automaton *automaton, struct kept_mask *kept, const uint64_t *bits) {
    size_t whole = vocabulary_words(automaton->vocabulary) * sizeof *bits;
    kept->differences = find_gaps(automaton, kept->base, bits, NULL);
    kept->bytes = kept->differences * sizeof *kept->gaps;
    bool written_out = kept->bytes > whole;
    if (written_out)
        kept->bytes = whole;
    kept->gaps = malloc(kept->bytes + 1);
    if (!kept->gaps)
        return out_of_memory();
    if (written_out) {
        kept->base = WRITTEN_OUT;
        memcpy(kept->gaps, bits, whole);
    } else
        (void)find_gaps(automaton, kept->base, bits, kept->gaps);
    return OK;
}

static enum result keep(struct automaton *automaton, uint32_t set, uint32_t base, const uint64_t *bits) {
    struct kept_mask kept = {.set = set, .base = base};
    TRY(array_grow(&automaton->masks, sizeof kept, 1));
    TRY(pack(automaton, &kept, bits));
    automaton->mask_bytes += kept.bytes;
    while (automaton->mask_bytes > MASKS_BYTES_LIMIT && automaton->masks.count > 1)
        drop_oldest(automaton);
    uint32_t number = (uint32_t)automaton->masks.count++;
    *kept_at(automaton, number) = kept;
    put_first(automaton, number);
    set_at(automaton, set)->kept = number + 1;
    return OK;
}

enum result masks_take(struct grammar *grammar, uint32_t set, uint64_t *bits) {
    struct automaton *automaton = grammar->automaton;
    uint32_t base = 0;
    TRY(automaton_masked(grammar, set, &set));
    uint32_t kept = set_at(automaton, set)->kept;
    if (kept) {
        restore(automaton, kept_at(automaton, kept - 1), bits);
        take_out(automaton, kept - 1);
        put_first(automaton, kept - 1);
        return OK;
    }
    TRY(fresh_mask(grammar, set, bits, &base));
    return keep(automaton, set, base, bits);
}
