/* The tokens that may follow a set: one walk over the tokens' trie, without the parts of it that are known to be
 * allowed. Where every text of a kind (vocabulary.h) may follow, a node's tokens of the kind are taken from what the
 * vocabulary has ready, and only the others below it are walked. */
#include "grammar/automaton.h"

#include <stdlib.h> /* calloc, malloc, free */
#include <string.h> /* memcpy, memset */

enum {
    RANGES = 256,
    GAP_GOES_ON = 0xFFFF,
    FILTER_FROM = 48,
    PLACES_LIMIT = 1024,
    CONFIGURATIONS_LIMIT = 8192,
    SPARE_WORDS = 32
};
static const uint32_t WRITTEN_OUT = UINT32_MAX; /* a kept mask without a base */
/* Of kept masks of one grammar; the least recently used goes first. */
static const size_t MASKS_BYTES_LIMIT = (size_t)256 << 10;

static enum result out_of_memory(void) {
    return fail(ERROR_MEMORY, "no memory for the masks of a grammar");
}

static void set_bit(uint64_t *bits, uint32_t bit) {
    bits[bit >> 6] |= (uint64_t)1 << (bit & 63);
}

/* ---- how much text of a kind can follow ---- */

/* A set within text, and the text's state; `level`: whole characters before it. */
struct text_place {
    uint32_t set;
    uint8_t state, level;
};

/* A search over the texts of a kind by their number of whole characters. */
struct text_search {
    const struct text_class *text;
    struct text_place places[PLACES_LIMIT];
    uint16_t table[2 * PLACES_LIMIT]; /* hash table of places, + 1 */
    uint32_t count, configurations;   /* configurations: of all sets that were left */
    bool met_again;                   /* a place was reached by texts of different lengths */
    bool full, lives, dies;
};

static void add_place(struct text_search *search, uint32_t set, unsigned state, unsigned level) {
    uint32_t key = (set * TEXT_STATES + state) * 0x9E3779B9u >> 16;
    uint32_t slot = key % (2 * PLACES_LIMIT);
    for (; search->table[slot]; slot = (slot + 1) % (2 * PLACES_LIMIT)) {
        const struct text_place *place = &search->places[search->table[slot] - 1];
        if (place->set == set && place->state == state) {
            search->met_again = search->met_again || place->level != level;
            return;
        }
    }
    if (search->count == PLACES_LIMIT) {
        search->full = true;
        return;
    }
    search->places[search->count] =
        (struct text_place){.set = set, .state = (uint8_t)state, .level = (uint8_t)level};
    search->table[slot] = (uint16_t)++search->count;
}

/* Follows all bytes with which the text goes on from a place. */
static enum result leave_place(struct grammar *grammar, struct text_search *search, uint32_t number) {
    struct text_place place = search->places[number];
    const uint8_t *step = search->text->step[place.state];
    uint32_t row = 0, next = DEAD_SET;
    uint8_t told[256]; /* of each class of bytes: the state behind its last one */
    search->configurations += set_at(grammar->automaton, place.set)->count;
    search->full = search->full || search->configurations > CONFIGURATIONS_LIMIT;
    TRY(automaton_row(grammar, place.set, &row));
    const uint8_t *class_of = set_at(grammar->automaton, place.set)->class_of;
    memset(told, TEXT_OVER, sizeof told);
    unsigned last = search->text->last[place.state];
    for (unsigned byte = search->text->first[place.state]; byte <= last && !search->full; byte++) {
        unsigned state = step[byte];
        if (state == TEXT_OVER || told[class_of[byte]] == state)
            continue;
        told[class_of[byte]] = (uint8_t)state;
        TRY(automaton_step(grammar, place.set, (unsigned char)byte, &next));
        search->lives = search->lives || next != DEAD_SET;
        search->dies = search->dies || next == DEAD_SET;
        if (next != DEAD_SET)
            add_place(search, next, state, place.level + (state == search->text->goes_on));
        else if (place.level == 0)
            return OK; /* not one character is free */
    }
    return OK;
}

/* Leaves all places of a level; those within a character come late in the list, behind some of the next level. */
static enum result search_level(
    struct grammar *grammar, struct text_search *search, unsigned level, bool *any) {
    *any = search->lives = false;
    for (uint32_t i = 0; i < search->count && !search->full; i++) {
        if (search->places[i].level != level)
            continue;
        *any = true;
        TRY(leave_place(grammar, search, i));
        if (search->dies && (search->lives || level == 0))
            return OK;
    }
    return OK;
}

/* Finds out the set's `free` and `to_the_end` of a case. */
static enum result search_text(struct grammar *grammar, uint32_t number, unsigned free_case) {
    struct text_search search;
    search.text = &grammar->automaton->vocabulary->classes[free_case / 2];
    search.count = search.configurations = 0;
    search.met_again = search.full = search.dies = false;
    memset(search.table, 0, sizeof search.table);
    add_place(&search, number, free_case % 2 ? search.text->goes_on : TEXT_START, 0);
    unsigned level = 0;
    bool any = false;
    do
        TRY(search_level(grammar, &search, level, &any));
    while (any && !search.dies && !search.full && ++level < TEXT_CHARACTERS);
    struct set *set = set_at(grammar->automaton, number);
    if (search.dies && !search.lives && !search.met_again && level > 0 && !search.full)
        set->to_the_end |= (uint8_t)(1u << free_case);
    if (search.full)
        set->free[free_case] = 1;
    else if (search.dies || level == TEXT_CHARACTERS)
        set->free[free_case] = (uint8_t)(level + 1);
    else
        set->free[free_case] = FREE_ENDLESS;
    return OK;
}

/* ---- the walk ---- */

/* Tokens of a kind that are allowed: of ranks from..to, of at most so many characters (LONG_TOKEN: all). */
struct range {
    uint32_t from, to;
    uint8_t kind, most;
};

struct walk {
    struct grammar *grammar;
    const struct grammar_vocabulary *vocabulary;
    uint64_t *bits;
    struct range ranges[RANGES];
    uint32_t range_count;
    uint32_t base; /* of the mask, as in kept masks */
};

struct level {
    const uint64_t *filter;  /* nodes to be walked, or NULL: all */
    const uint8_t *class_of; /* bytes' classes, and place of the row of successors */
    uint32_t row, set, end;  /* of the subtree */
    uint32_t characters;     /* before it */
};

/* A place in the trie, where the walk has reached a set. */
struct spot {
    uint32_t set, from, to; /* nodes below it */
    uint32_t characters;    /* before it */
    bool is_root;
};

/* Takes the spot's tokens of a kind and gives the nodes that are left; NULL when not every text of the kind can
 * follow. `height`: of its tokens' texts. */
static enum result take_kind(struct walk *walk, const struct spot *spot, enum text_kind kind, unsigned height,
    const uint64_t **filter) {
    const struct text_class *text = &walk->vocabulary->classes[kind];
    unsigned free_case = 2 * (unsigned)kind + !spot->is_root;
    struct automaton *automaton = walk->grammar->automaton;
    if (set_at(automaton, spot->set)->free[free_case] == FREE_UNKNOWN)
        TRY(search_text(walk->grammar, spot->set, free_case));
    const struct set *set = set_at(automaton, spot->set);
    unsigned characters = set->free[free_case] - 1u;
    bool endless = set->free[free_case] == FREE_ENDLESS, to_the_end = set->to_the_end >> free_case & 1;
    *filter = NULL;
    if (!endless && !to_the_end && characters < height)
        return OK;
    *filter = endless ? text->special : text->irregular;
    if (spot->is_root) {
        walk->base = vocabulary_base(kind, endless ? 0 : characters) + 1;
        memcpy(walk->bits, vocabulary_mask(walk->vocabulary, walk->base - 1),
            walk->vocabulary->words * sizeof *walk->bits);
        return OK;
    }
    unsigned most = endless ? LONG_TOKEN : to_the_end ? spot->characters + characters : TEXT_CHARACTERS;
    walk->ranges[walk->range_count++] = (struct range){.from = walk->vocabulary->trie[spot->from].rank,
        .to = walk->vocabulary->trie[spot->to].rank,
        .kind = (uint8_t)kind,
        .most = (uint8_t)(most < TEXT_CHARACTERS || endless ? most : TEXT_CHARACTERS)};
    return OK;
}

/* The nodes that are left to be walked below a spot; NULL: all. */
static enum result filter_below(struct walk *walk, const struct spot *spot, const uint64_t **filter) {
    *filter = NULL;
    for (unsigned kind = 0; kind < TEXT_KINDS && !*filter && walk->range_count < RANGES; kind++) {
        unsigned height =
            spot->is_root ? TEXT_CHARACTERS : walk->vocabulary->classes[kind].heights[spot->from - 1];
        if (height)
            TRY(take_kind(walk, spot, (enum text_kind)kind, height, filter));
    }
    return OK;
}

static enum result enter_level(struct walk *walk, struct level *level, uint32_t number, uint32_t end) {
    const struct set *set = set_at(walk->grammar->automaton, number);
    if (!set->row) {
        uint32_t row = 0;
        TRY(automaton_row(walk->grammar, number, &row));
    }
    set = set_at(walk->grammar->automaton, number);
    level->row = set->row - 1;
    level->class_of = set->class_of;
    level->set = number;
    level->end = end;
    return OK;
}

static uint32_t next_node(const uint64_t *filter, uint32_t node, uint32_t end) {
    uint32_t word = node >> 6;
    uint64_t left = filter[word] >> (node & 63) << (node & 63);
    while (!left && (word + 1) << 6 < end)
        left = filter[++word];
    return left ? (word << 6) + (uint32_t)__builtin_ctzll(left) : end;
}

static enum result walk_trie(struct walk *walk, uint32_t number) {
    const struct grammar_vocabulary *vocabulary = walk->vocabulary;
    const struct trie_node *trie = vocabulary->trie;
    const struct array *rows = &walk->grammar->automaton->rows;
    struct level levels[TOKEN_BYTES_LIMIT + 1], *level = levels;
    TRY(enter_level(walk, level, number, (uint32_t)vocabulary->nodes));
    struct spot root = {.set = number, .to = (uint32_t)vocabulary->nodes, .is_root = true};
    level->characters = 0;
    TRY(filter_below(walk, &root, &level->filter));
    for (uint32_t i = 0;;) {
        if (level->filter && i < level->end)
            i = next_node(level->filter, i, level->end);
        if (i >= level->end) {
            if (level == levels)
                return OK;
            i = level->end;
            level--;
            continue;
        }
        struct trie_node node = trie[i];
        uint32_t next = ((const uint32_t *)rows->data)[level->row + level->class_of[node.byte]];
        if (next == DEAD_SET) {
            i += node.subtree;
            continue;
        }
        if (next == UNKNOWN_SET) {
            TRY(automaton_step(walk->grammar, level->set, (unsigned char)node.byte, &next));
            if (next == DEAD_SET)
                continue; /* the row tells so now */
        }
        for (uint32_t rank = node.rank; rank < trie[i + 1].rank; rank++)
            set_bit(walk->bits, vocabulary->order[rank]);
        i++;
        if (node.subtree == 1)
            continue;
        struct spot spot = {.set = next, .from = i, .to = i - 1 + node.subtree};
        const uint64_t *filter = level->filter;
        spot.characters = level->characters + ((node.byte & 0xC0) != 0x80);
        if (!filter && node.subtree >= FILTER_FROM)
            TRY(filter_below(walk, &spot, &filter));
        level++;
        level->filter = filter;
        level->characters = spot.characters;
        TRY(enter_level(walk, level, next, spot.to));
    }
}

/* Sets the bits of a range of all tokens that are more than a space and begin with one. */
static void mark_spaces(const struct grammar_vocabulary *vocabulary, struct range range, uint64_t *bits) {
    unsigned most = range.most == LONG_TOKEN ? 0 : range.most;
    const uint64_t *mask = vocabulary_mask(vocabulary, vocabulary_base((enum text_kind)range.kind, most));
    for (size_t i = 0; i < vocabulary->words; i++)
        bits[i] |= mask[i] & vocabulary->space_mask[i];
}

/* Sets or clears the bits of a range's tokens. */
static void mark(const struct grammar_vocabulary *vocabulary, struct range range, uint64_t *bits, bool set) {
    const uint8_t *characters = vocabulary->classes[range.kind].characters;
    for (uint32_t rank = range.from; rank < range.to; rank++) {
        uint32_t token = vocabulary->order[rank];
        uint64_t bit = (uint64_t)(characters[rank] <= range.most) << (token & 63);
        bits[token >> 6] = set ? bits[token >> 6] | bit : bits[token >> 6] & ~bit;
    }
}

/* The long plain tokens within the ranges in which they are allowed. */
static void mark_long(const struct walk *walk, uint64_t *bits) {
    const struct text_class *text = &walk->vocabulary->classes[TEXT_PLAIN];
    uint32_t at = 0;
    for (uint32_t i = 0; i < text->long_count; i++) {
        uint32_t rank = text->long_ranks[i];
        while (at < walk->range_count && walk->ranges[at].to <= rank)
            at++;
        if (at < walk->range_count && walk->ranges[at].from <= rank && walk->ranges[at].most == LONG_TOKEN)
            set_bit(bits, walk->vocabulary->order[rank]);
    }
}

/* Adds the tokens of ranges that hold most plain tokens, by taking away the others from all. */
static void add_most(struct walk *walk) {
    const struct grammar_vocabulary *vocabulary = walk->vocabulary;
    size_t words = vocabulary->words;
    uint64_t *scratch = walk->grammar->automaton->scratch;
    uint32_t base = vocabulary_base(TEXT_PLAIN, TEXT_CHARACTERS);
    struct range gap = {.kind = TEXT_PLAIN, .most = TEXT_CHARACTERS};
    memcpy(scratch, vocabulary_mask(vocabulary, base), words * sizeof *scratch);
    for (uint32_t i = 0; i < walk->range_count; i++) {
        gap.to = walk->ranges[i].from;
        mark(vocabulary, gap, scratch, false);
        gap.from = walk->ranges[i].to;
    }
    gap.to = vocabulary->ranks;
    mark(vocabulary, gap, scratch, false);
    mark_long(walk, scratch);
    for (size_t i = 0; i < words; i++)
        walk->bits[i] |= scratch[i];
    walk->base = base + 1;
}

/* The token that is one space ends where the range begins, and was allowed by itself. */
static bool is_all_spaces(const struct grammar_vocabulary *vocabulary, const struct range *range) {
    return range->to == vocabulary->spaces[1] && range->from <= vocabulary->spaces[0] + 1 &&
           range->from >= vocabulary->spaces[0];
}

static void add_ranges(struct walk *walk) {
    uint32_t covered = 0;
    for (uint32_t i = 0; i < walk->range_count; i++)
        if (walk->ranges[i].kind == TEXT_PLAIN && walk->ranges[i].most >= TEXT_CHARACTERS)
            covered += walk->ranges[i].to - walk->ranges[i].from;
    bool whole = true;
    for (uint32_t i = 0; i < walk->range_count; i++)
        whole = whole && walk->ranges[i].kind == TEXT_PLAIN && walk->ranges[i].most >= TEXT_CHARACTERS;
    if (whole && covered > walk->vocabulary->ranks / 2) {
        add_most(walk);
        return;
    }
    for (uint32_t i = 0; i < walk->range_count; i++)
        if (is_all_spaces(walk->vocabulary, &walk->ranges[i]))
            mark_spaces(walk->vocabulary, walk->ranges[i], walk->bits);
        else
            mark(walk->vocabulary, walk->ranges[i], walk->bits, true);
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
    memset(bits, 0, walk.vocabulary->words * sizeof *bits);
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
    size_t words = automaton->vocabulary->words;
    /* Room for a mask, or for its gaps and those of one word and of numbers that go on more. */
    automaton->scratch = malloc((words + words / 1024 + SPARE_WORDS) * sizeof *automaton->scratch);
    if (!automaton->scratch)
        return out_of_memory();
    TRY(array_grow(&automaton->masks, sizeof(struct kept_mask), 1));
    *kept_at(automaton, 0) = (struct kept_mask){0};
    automaton->masks.count = 1;
    return OK;
}

size_t masks_bytes(const struct automaton *automaton) {
    return automaton->mask_bytes + automaton->masks.capacity * sizeof(struct kept_mask) +
           automaton->vocabulary->words * sizeof *automaton->scratch;
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
    size_t bytes = automaton->vocabulary->words * sizeof *bits;
    if (base)
        memcpy(bits, vocabulary_mask(automaton->vocabulary, base - 1), bytes);
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

/* Stores the gaps between the tokens in which `bits` differs from the base; more than `most`: stops. */
static uint32_t find_gaps(
    const struct automaton *automaton, uint32_t base, const uint64_t *bits, uint16_t *gaps, uint32_t most) {
    uint32_t count = 0, before = 0;
    size_t words = automaton->vocabulary->words;
    const uint64_t *from = base ? vocabulary_mask(automaton->vocabulary, base - 1) : NULL;
    for (size_t word = 0; word < words && count <= most; word++)
        for (uint64_t left = bits[word] ^ (from ? from[word] : 0); left; left &= left - 1) {
            uint32_t token = (uint32_t)(word << 6) + (uint32_t)__builtin_ctzll(left);
            for (; token - before >= GAP_GOES_ON; before += GAP_GOES_ON)
                gaps[count++] = GAP_GOES_ON;
            gaps[count++] = (uint16_t)(token - before);
            before = token;
        }
    return count;
}

/* Writes the mask out where that is shorter than its gaps. */
static enum result pack(struct automaton *automaton, struct kept_mask *kept, const uint64_t *bits) {
    size_t whole = automaton->vocabulary->words * sizeof *bits;
    uint32_t most = (uint32_t)(whole / sizeof *kept->gaps);
    uint16_t *gaps = (uint16_t *)(void *)automaton->scratch;
    kept->differences = find_gaps(automaton, kept->base, bits, gaps, most);
    bool written_out = kept->differences > most;
    kept->bytes = written_out ? whole : kept->differences * sizeof *gaps;
    kept->gaps = malloc(kept->bytes + 1);
    if (!kept->gaps)
        return out_of_memory();
    memcpy(kept->gaps, written_out ? (const void *)bits : gaps, kept->bytes);
    if (written_out)
        kept->base = WRITTEN_OUT;
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
