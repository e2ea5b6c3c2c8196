#include "schedule/plan.h"

#include "schedule/loads.h"
#include "schedule/prompt_order.h"
#include "schedule/prompt_trie.h"

#include <stdbool.h> /* bool */
#include <stdlib.h>  /* malloc, calloc, qsort */

/* Whole families go to ranks, the costliest first, each to the rank that has least. When that leaves a rank with too much,
 * families are cut: all prompts are laid in a row, rank after rank, and the row is cut anew into pieces that cost no more than the
 * least bound that lets it end with the last rank. A cut costs the prefix that the prompts on both sides share. */

enum {
    CHEAP_PART = 64,  /* prefixes that cost less than this part of a rank's work make no families */
    SMALL_PART = 32,  /* but what is less than this part of a rank's work stays together all the same */
    WHOLE_PART = 64,  /* families stay whole when that makes the longest rank longer by less than this part */
    WINDOW_PART = 32, /* a rank may get less than the bound by this part where a cut is cheaper */
    BOUND_ROUNDS = 24, /* halvings in the search for the bound */
};

struct planning {
    const struct plan_request *requests;
    int64_t count;
    int32_t ranks;
    const struct plan_costs *costs;
    int64_t *order;  /* [count] requests, sorted for families, else as they came */
    int32_t *shared; /* [count] of each in that order with the one before it */
    int32_t *rank;   /* [count] of each in that order */
    struct prompt_trie trie;
};

static double work(const struct planning *planning, int64_t tokens, int64_t answers) {
    return planning->costs->prompt_token * (double)tokens + planning->costs->answer_token * (double)answers;
}

/* Of a request behind one that it shares tokens with. */
static double request_work(
    const struct planning *planning, const struct plan_request *request, int32_t shared) {
    int32_t held = request->cached_tokens > shared ? request->cached_tokens : shared;
    int32_t tokens = request->token_ids && request->tokens > held ? request->tokens - held : 0;
    return work(planning, tokens, request->answer_tokens);
}

static enum result fail_memory(const struct planning *planning) {
    return fail(ERROR_MEMORY, "out of memory for the plan of %lld requests", (long long)planning->count);
}

/* ---- families ---- */

struct family {
    int64_t begin, end; /* in the sorted order */
    int64_t node, parent;
    double work;
    int32_t held; /* tokens of its prefix that count as nothing */
    int32_t rank;
};

struct families {
    struct family *list; /* [count], of memory for all nodes */
    int64_t count;
};

static struct family make_family(const struct planning *planning, int64_t index) {
    const struct prompt_node *node = &planning->trie.nodes[index];
    int32_t held = node->parent >= 0 ? planning->trie.nodes[node->parent].depth : 0;
    return (struct family){.begin = node->begin,
        .end = node->end,
        .node = index,
        .parent = node->parent,
        .work = work(planning, prompt_trie_tokens(node, held), node->answers),
        .held = held};
}

/* Whether a family may be taken apart. Each rank may then have to compute its prefix, so all that are taken apart may have so many
 * tokens together that they cost a small part of a rank's work. */
static bool take_apart(
    const struct planning *planning, const struct family *family, double share, double *spare) {
    const struct prompt_node *node = &planning->trie.nodes[family->node];
    double prefix = work(planning, node->depth - family->held, 0);
    if (node->first_child < 0 || (node->depth > 0 && (family->work < share / SMALL_PART || prefix > *spare)))
        return false;
    *spare -= prefix;
    return true;
}

/* The subtries below prefixes that are too short to matter: a template that all prompts begin with makes no family of them. */
static enum result find_families(const struct planning *planning, struct families *families) {
    const struct prompt_trie *trie = &planning->trie;
    double share = make_family(planning, trie->root).work / (double)planning->ranks,
           spare = share / CHEAP_PART;
    families->list = malloc((size_t)trie->node_count * sizeof *families->list);
    if (!families->list)
        return fail_memory(planning);
    families->list[0] = make_family(planning, trie->root);
    int64_t kept = 0, found = 1;
    for (int64_t i = 0; i < found; i++) {
        if (!take_apart(planning, &families->list[i], share, &spare)) {
            families->list[kept++] = families->list[i];
            continue;
        }
        for (int64_t child = trie->nodes[families->list[i].node].first_child; child >= 0;
             child = trie->nodes[child].next_sibling)
            families->list[found++] = make_family(planning, child);
    }
    families->count = kept;
    return OK;
}

static int costliest_first(const void *left, const void *right) {
    const struct family *a = left, *b = right;
    if (a->work < b->work || b->work < a->work)
        return a->work > b->work ? -1 : 1;
    return (a->begin > b->begin) - (a->begin < b->begin);
}

static int by_rank(const void *left, const void *right) {
    const struct family *a = left, *b = right;
    if (a->rank != b->rank)
        return a->rank < b->rank ? -1 : 1;
    return (a->begin > b->begin) - (a->begin < b->begin);
}

/* Gives each family a rank and brings them in the ranks' order; *most is the longest rank's work. */
static enum result place_whole(const struct planning *planning, struct families *families, double *most) {
    struct loads loads;
    enum result status = loads_create(&loads, planning->ranks);
    if (status == OK) {
        qsort(families->list, (size_t)families->count, sizeof *families->list, costliest_first);
        for (int64_t i = 0; i < families->count; i++)
            families->list[i].rank = loads_add(&loads, families->list[i].work);
        qsort(families->list, (size_t)families->count, sizeof *families->list, by_rank);
        *most = loads_most(&loads);
    }
    loads_free(&loads);
    return status;
}

/* ---- cutting families ---- */

/* All prompts in a row. */
struct row {
    int64_t count;
    int64_t *place;  /* [count] in the sorted order */
    int32_t *shared; /* [count] with the one before it in the row */
    double *alone;   /* [count] its work when it is a rank's first one */
    double *sum;     /* [count + 1] work of all before it, each behind its neighbour */
};

static enum result row_create(
    const struct planning *planning, const struct families *families, struct row *row) {
    size_t count = (size_t)planning->count + 1;
    *row = (struct row){.place = malloc(count * sizeof *row->place),
        .shared = malloc(count * sizeof *row->shared),
        .alone = malloc(count * sizeof *row->alone),
        .sum = malloc(count * sizeof *row->sum)};
    if (!row->place || !row->shared || !row->alone || !row->sum)
        return fail_memory(planning);
    row->sum[0] = 0;
    for (int64_t f = 0; f < families->count; f++) {
        const struct family *family = &families->list[f];
        bool neighbours = f > 0 && family[-1].parent == family->parent;
        for (int64_t at = family->begin; at < family->end; at++) {
            const struct plan_request *request = &planning->requests[planning->order[at]];
            int64_t i = row->count++;
            row->place[i] = at;
            row->shared[i] = at > family->begin ? planning->shared[at] : neighbours ? family->held : 0;
            row->alone[i] = request_work(planning, request, 0);
            row->sum[i + 1] = row->sum[i] + request_work(planning, request, row->shared[i]);
        }
    }
    return OK;
}

static void row_free(struct row *row) {
    free(row->place);
    free(row->shared);
    free(row->alone);
    free(row->sum);
}

/* How far a rank comes that begins at `begin` with work within `bound`; at least one prompt. */
static int64_t reach(const struct row *row, int64_t begin, double bound) {
    if (begin >= row->count)
        return row->count;
    double most = bound - row->alone[begin] + row->sum[begin + 1];
    int64_t low = begin + 1, high = row->count;
    while (low < high) {
        int64_t middle = low + (high - low + 1) / 2;
        if (row->sum[middle] <= most)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

static bool fits(const struct row *row, int64_t begin, int32_t ranks, double bound) {
    for (int32_t i = 0; i < ranks && begin < row->count; i++)
        begin = reach(row, begin, bound);
    return begin == row->count;
}

/* The least work of the longest rank, nearly; at most `whole`, which is enough. */
static double find_bound(const struct row *row, int32_t ranks, double whole) {
    double low = 0, high = whole;
    for (int64_t i = 0; i < row->count; i++)
        low = row->alone[i] > low ? row->alone[i] : low;
    if (low >= high || fits(row, 0, ranks, low))
        return low < high ? low : high;
    for (int32_t round = 0; round < BOUND_ROUNDS; round++) {
        double middle = low + (high - low) / 2;
        if (fits(row, 0, ranks, middle))
            high = middle;
        else
            low = middle;
    }
    return high;
}

/* Where the rank that begins at `begin` ends: as far as the bound lets it, or near that where less is shared; further where the
 * ranks that are left could not take the rest. */
static int64_t choose_cut(const struct row *row, int64_t begin, int32_t ranks_left, double bound) {
    double loose = bound + bound / WHOLE_PART;
    int64_t farthest = reach(row, begin, loose);
    if (farthest == row->count)
        return farthest;
    int64_t even = reach(row, begin, bound), nearest = reach(row, begin, bound - bound / WINDOW_PART);
    int64_t best = even;
    for (int64_t i = farthest; i >= nearest; i--)
        if (row->shared[i] < row->shared[best])
            best = i;
    if (fits(row, best, ranks_left, loose))
        return best;
    return fits(row, even, ranks_left, loose) ? even : farthest;
}

static void cut_row(const struct planning *planning, const struct row *row, double bound) {
    int64_t at = 0;
    for (int32_t rank = 0; rank < planning->ranks; rank++) {
        int32_t left = planning->ranks - 1 - rank;
        int64_t end = left ? choose_cut(row, at, left, bound) : row->count;
        for (; at < end; at++)
            planning->rank[row->place[at]] = rank;
    }
}

static void keep_whole(const struct planning *planning, const struct families *families) {
    for (int64_t f = 0; f < families->count; f++)
        for (int64_t at = families->list[f].begin; at < families->list[f].end; at++)
            planning->rank[at] = families->list[f].rank;
}

/* `most`: the longest rank's work when all families stay whole. */
static enum result cut_families(
    const struct planning *planning, const struct families *families, double most) {
    struct row row;
    enum result status = row_create(planning, families, &row);
    if (status == OK) {
        /* In the row prefixes on both sides of a rank's border may be paid that place_whole took as shared. */
        double bound = find_bound(&row, planning->ranks, most + most / WHOLE_PART);
        if (bound + bound / WHOLE_PART < most)
            cut_row(planning, &row, bound);
        else
            keep_whole(planning, families);
    }
    row_free(&row);
    return status;
}

static enum result place_families(struct planning *planning, bool cut) {
    TRY(prompt_order(planning->requests, planning->order, planning->shared, planning->count));
    TRY(prompt_trie_build(
        planning->requests, planning->order, planning->shared, planning->count, &planning->trie));
    struct families families = {0};
    double most = 0, all = make_family(planning, planning->trie.root).work;
    enum result status = find_families(planning, &families);
    if (status == OK)
        status = place_whole(planning, &families, &most);
    if (status == OK && cut && most > all / planning->ranks * (1 + 1.0 / WHOLE_PART))
        status = cut_families(planning, &families, most);
    else if (status == OK)
        keep_whole(planning, &families);
    free(families.list);
    return status;
}

/* ---- placements to compare with ---- */

static uint64_t mix(uint64_t value) {
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
    return value ^ (value >> 31);
}

static enum result place_as_they_come(struct planning *planning, enum plan_placement placement) {
    struct loads loads;
    enum result status = loads_create(&loads, planning->ranks);
    for (int64_t i = 0; status == OK && i < planning->count; i++) {
        const uint64_t number = (uint64_t)i, ranks = (uint64_t)planning->ranks;
        if (placement == PLAN_ROUND_ROBIN)
            planning->rank[i] = (int32_t)(number % ranks);
        else if (placement == PLAN_RANDOM)
            planning->rank[i] = (int32_t)(mix(number + 0x9E3779B97F4A7C15u) % ranks);
        else
            planning->rank[i] = loads_add(&loads, request_work(planning, &planning->requests[i], 0));
    }
    loads_free(&loads);
    return status;
}

/* ---- the ranks' orders ---- */

/* What one rank has. */
struct share {
    int64_t count;
    int64_t *order;  /* [count] requests */
    int32_t *shared; /* [count] with the one before it */
    int64_t *leaves; /* [count] the rank's order: numbers of these */
};

static enum result share_create(const struct planning *planning, int64_t requests, struct share *share) {
    size_t count = (size_t)requests + 1;
    *share = (struct share){.order = malloc(count * sizeof *share->order),
        .shared = malloc(count * sizeof *share->shared),
        .leaves = malloc(count * sizeof *share->leaves)};
    return share->order && share->shared && share->leaves ? OK : fail_memory(planning);
}

static void share_free(struct share *share) {
    free(share->order);
    free(share->shared);
    free(share->leaves);
}

/* places: what the rank has in the plan's order. */
static void take_share(
    const struct planning *planning, const int64_t *places, int64_t count, bool sorted, struct share *share) {
    const struct plan_request *requests = planning->requests;
    share->count = count;
    for (int64_t i = 0; i < count; i++) {
        int64_t request = planning->order[places[i]];
        share->order[i] = request;
        share->leaves[i] = i;
        if (i == 0)
            share->shared[i] = 0;
        else if (sorted && places[i] == places[i - 1] + 1)
            share->shared[i] = planning->shared[places[i]];
        else
            share->shared[i] = prompt_shared(&requests[share->order[i - 1]], &requests[request]);
    }
}

static enum result arrange_share(const struct planning *planning, struct share *share) {
    struct prompt_trie trie;
    enum result status =
        prompt_trie_build(planning->requests, share->order, share->shared, share->count, &trie);
    if (status == OK)
        status = prompt_trie_arrange(&trie);
    if (status == OK)
        prompt_trie_walk(&trie, share->leaves, share->shared);
    prompt_trie_free(&trie);
    return status;
}

static void write_share(
    const struct planning *planning, const struct share *share, struct plan_entry *entries) {
    for (int64_t i = 0; i < share->count; i++) {
        int64_t index = share->order[share->leaves[i]];
        const struct plan_request *request = &planning->requests[index];
        entries[i] = (struct plan_entry){.request = request->request,
            .tokens = request->tokens,
            .shared = share->shared[i],
            .cached_tokens = request->token_ids ? request->cached_tokens : request->tokens,
            .answer_tokens = request->answer_tokens};
    }
}

/* Brings the places of the plan's order in the ranks' order: first [ranks + 1], places [count]. */
static void sort_by_rank(const struct planning *planning, int64_t *first, int64_t *places) {
    for (int32_t rank = 0; rank <= planning->ranks; rank++)
        first[rank] = 0;
    for (int64_t i = 0; i < planning->count; i++)
        first[planning->rank[i] + 1]++;
    for (int32_t rank = 0; rank < planning->ranks; rank++)
        first[rank + 1] += first[rank];
    for (int64_t i = 0; i < planning->count; i++)
        places[first[planning->rank[i]]++] = i;
    for (int32_t rank = planning->ranks; rank > 0; rank--)
        first[rank] = first[rank - 1];
    first[0] = 0;
}

static enum result write_rank(const struct planning *planning, const int64_t *places, int64_t count,
    bool families, struct plan_entry *entries) {
    struct share share;
    enum result status = share_create(planning, count, &share);
    if (status == OK)
        take_share(planning, places, count, families, &share);
    if (status == OK && families)
        status = arrange_share(planning, &share);
    if (status == OK)
        write_share(planning, &share, entries);
    share_free(&share);
    return status;
}

static enum result write_ranks(
    const struct planning *planning, bool families, struct plan_entry *entries, int64_t *first) {
    int64_t *places = malloc(((size_t)planning->count + 1) * sizeof *places);
    enum result status = places ? OK : fail_memory(planning);
    if (status == OK)
        sort_by_rank(planning, first, places);
    for (int32_t rank = 0; status == OK && rank < planning->ranks; rank++)
        status = write_rank(
            planning, places + first[rank], first[rank + 1] - first[rank], families, entries + first[rank]);
    free(places);
    return status;
}

enum result plan_make(const struct plan_request *requests, int64_t count, int32_t ranks,
    const struct plan_costs *costs, enum plan_placement placement, struct plan_entry *entries,
    int64_t *first) {
    struct planning planning = {.requests = requests, .count = count, .ranks = ranks, .costs = costs};
    size_t size = (size_t)count + 1;
    bool families = placement == PLAN_FAMILIES || placement == PLAN_PREFIX_AFFINITY;
    planning.order = malloc(size * sizeof *planning.order);
    planning.shared = calloc(size, sizeof *planning.shared);
    planning.rank = malloc(size * sizeof *planning.rank);
    enum result status = planning.order && planning.shared && planning.rank ? OK : fail_memory(&planning);
    for (int64_t i = 0; status == OK && i < count; i++)
        planning.order[i] = i;
    if (status == OK && families)
        status = place_families(&planning, placement == PLAN_FAMILIES);
    else if (status == OK)
        status = place_as_they_come(&planning, placement);
    if (status == OK)
        status = write_ranks(&planning, families, entries, first);
    prompt_trie_free(&planning.trie);
    free(planning.order);
    free(planning.shared);
    free(planning.rank);
    return status;
}
