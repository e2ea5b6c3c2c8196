#include "schedule/plan.h"

#include <stdbool.h> /* bool */
#include <stdlib.h>  /* calloc, realloc */

/* A rank's queue is a few stretches of the plan's entries. What two entries share is the least `shared` behind the first of them
 * up to the second: a rank's entries stand in the order of a walk over their trie, and the first of each rank shares nothing. */

/* Entries [begin, end). */
struct stretch {
    int64_t begin, end;
    int64_t
        extra; /* prompt tokens that its first one costs above what its `shared` says, for it comes behind another one */
};

struct queue {
    struct stretch *stretches; /* [head, tail) of [capacity] */
    int64_t head, tail, capacity;
    int64_t left, taken;
    int64_t prompt, answers; /* tokens of what is left */
    int64_t last;            /* entry taken last, -1: none */
    bool keeps_front;        /* in queues_agree */
};

struct queues {
    const struct plan_entry *entries;
    int64_t count;
    int32_t ranks;
    struct plan_costs costs;
    int64_t *prompt, *answers; /* [count + 1] tokens of all entries before */
    int64_t *later;            /* [count] the next entry with less `shared`, or count */
    int32_t *chain;            /* [chain_capacity] lengths at which later entries branch off, descending */
    int64_t chain_capacity;
    struct queue *queue; /* [ranks] */
    double *load;        /* [ranks] seconds of work, in queues_agree */
};

/* ---- entries ---- */

static double seconds(const struct queues *queues, int64_t prompt, int64_t answers) {
    return queues->costs.prompt_token * (double)prompt + queues->costs.answer_token * (double)answers;
}

/* Prompt tokens to compute when `shared` ones are there. */
static int64_t prompt_tokens(const struct plan_entry *entry, int32_t shared) {
    int32_t held = entry->cached_tokens > shared ? entry->cached_tokens : shared;
    return entry->tokens > held ? entry->tokens - held : 0;
}

static int64_t own_tokens(const struct queues *queues, int64_t index) {
    return queues->prompt[index + 1] - queues->prompt[index];
}

static int32_t shared_between(const struct queues *queues, int64_t a, int64_t b) {
    int64_t low = a < b ? a : b, high = a < b ? b : a;
    int32_t shared = INT32_MAX;
    for (int64_t i = low + 1; i <= high && shared > 0; i++)
        if (queues->entries[i].shared < shared)
            shared = queues->entries[i].shared;
    return shared;
}

/* What the entry costs above its own tokens when it comes behind entry `before` (-1: none). May be negative. */
static int64_t extra_tokens(const struct queues *queues, int64_t before, int64_t index) {
    int32_t shared = before >= 0 ? shared_between(queues, before, index) : 0;
    return prompt_tokens(&queues->entries[index], shared) - own_tokens(queues, index);
}

/* ---- life ---- */

static void sum_tokens(struct queues *queues) {
    queues->prompt[0] = queues->answers[0] = 0;
    for (int64_t i = 0; i < queues->count; i++) {
        const struct plan_entry *entry = &queues->entries[i];
        queues->prompt[i + 1] = queues->prompt[i] + prompt_tokens(entry, entry->shared);
        queues->answers[i + 1] = queues->answers[i] + entry->answer_tokens;
    }
}

/* From the last entry to the first: `open` holds those whose `shared` is less than of all between, the nearest last. Their
 * number is the most branches that an entry can have. */
static void find_later(struct queues *queues, int64_t *open) {
    int64_t count = 0;
    for (int64_t i = queues->count - 1; i >= 0; i--) {
        while (count > 0 && queues->entries[open[count - 1]].shared >= queues->entries[i].shared)
            count--;
        queues->later[i] = count > 0 ? open[count - 1] : queues->count;
        open[count++] = i;
        if (count > queues->chain_capacity)
            queues->chain_capacity = count;
    }
}

static enum result allocate(struct queues *queues) {
    size_t count = (size_t)queues->count + 1, ranks = (size_t)queues->ranks;
    queues->prompt = calloc(count, sizeof *queues->prompt);
    queues->answers = calloc(count, sizeof *queues->answers);
    queues->later = calloc(count, sizeof *queues->later);
    queues->queue = calloc(ranks, sizeof *queues->queue);
    queues->load = calloc(ranks, sizeof *queues->load);
    int64_t *open = calloc(count, sizeof *open);
    bool memory = queues->prompt && queues->answers && queues->later && queues->queue && queues->load && open;
    if (memory) {
        sum_tokens(queues);
        find_later(queues, open);
        queues->chain = calloc((size_t)queues->chain_capacity + 1, sizeof *queues->chain);
    }
    free(open);
    return memory && queues->chain
               ? OK
               : fail(ERROR_MEMORY, "out of memory for queues of %lld requests", (long long)queues->count);
}

/* Makes room for one more stretch. */
static enum result queue_reserve(struct queue *queue) {
    if (queue->tail < queue->capacity)
        return OK;
    int64_t used = queue->tail - queue->head;
    for (int64_t i = 0; i < used; i++)
        queue->stretches[i] = queue->stretches[queue->head + i];
    queue->head = 0;
    queue->tail = used;
    if (used < queue->capacity)
        return OK;
    int64_t capacity = queue->capacity ? 2 * queue->capacity : 4;
    struct stretch *grown = realloc(queue->stretches, (size_t)capacity * sizeof *grown);
    if (!grown)
        return fail(ERROR_MEMORY, "out of memory for a queue of %lld stretches", (long long)capacity);
    queue->stretches = grown;
    queue->capacity = capacity;
    return OK;
}

static void count_stretch(
    const struct queues *queues, struct queue *queue, struct stretch stretch, int sign) {
    queue->left += sign * (stretch.end - stretch.begin);
    queue->prompt += sign * (queues->prompt[stretch.end] - queues->prompt[stretch.begin] + stretch.extra);
    queue->answers += sign * (queues->answers[stretch.end] - queues->answers[stretch.begin]);
}

enum result queues_create(const struct plan_entry *entries, int64_t count, const int64_t *first,
    int32_t ranks, const struct plan_costs *costs, struct queues **queues) {
    struct queues *made = calloc(1, sizeof *made);
    *queues = made;
    if (!made)
        return fail(ERROR_MEMORY, "out of memory for queues of requests");
    *made = (struct queues){.entries = entries, .count = count, .ranks = ranks, .costs = *costs};
    enum result status = allocate(made);
    for (int32_t rank = 0; status == OK && rank < ranks; rank++) {
        struct queue *queue = &made->queue[rank];
        queue->last = -1;
        if (first[rank] == first[rank + 1])
            continue;
        status = queue_reserve(queue);
        if (status == OK) {
            queue->stretches[queue->tail++] = (struct stretch){first[rank], first[rank + 1], 0};
            count_stretch(made, queue, queue->stretches[0], 1);
        }
    }
    if (status != OK) {
        queues_free(made);
        *queues = NULL;
    }
    return status;
}

void queues_free(struct queues *queues) {
    if (!queues)
        return;
    for (int32_t rank = 0; queues->queue && rank < queues->ranks; rank++)
        free(queues->queue[rank].stretches);
    free(queues->queue);
    free(queues->load);
    free(queues->prompt);
    free(queues->answers);
    free(queues->later);
    free(queues->chain);
    free(queues);
}

int64_t queues_left(const struct queues *queues, int32_t rank) {
    return queues->queue[rank].left;
}

double queues_cost(const struct queues *queues, int32_t rank) {
    return seconds(queues, queues->queue[rank].prompt, queues->queue[rank].answers);
}

int64_t queues_taken(const struct queues *queues, int32_t rank) {
    return queues->queue[rank].taken;
}

void queues_set_costs(struct queues *queues, const struct plan_costs *costs) {
    queues->costs = *costs;
}

/* ---- taking ---- */

/* The front entry leaves the queue. */
static int64_t take_front(const struct queues *queues, struct queue *queue) {
    struct stretch *front = &queue->stretches[queue->head];
    int64_t index = front->begin;
    count_stretch(queues, queue, (struct stretch){index, index + 1, front->extra}, -1);
    *front = (struct stretch){index + 1, front->end, 0};
    if (front->begin == front->end)
        queue->head++;
    queue->last = index;
    queue->taken++;
    return index;
}

/* The lengths above `shared` at which entries of the queue branch off from `index`, which has just left it, descending; returns
 * how many. A length is met at the first of the entries below it only, so that all calls together look at each inner node of the
 * trie about once. */
static int64_t find_branches(
    const struct queues *queues, const struct queue *queue, int64_t index, int32_t shared) {
    const struct plan_entry *entries = queues->entries;
    int32_t met = INT32_MAX; /* the least length so far */
    int64_t count = 0;
    for (int64_t s = queue->head; s < queue->tail; s++) {
        int64_t at = queue->stretches[s].begin;
        if (at < index) /* got from before it in the plan: not seen as branches, which costs time only */
            continue;
        int32_t length = shared_between(queues, index, at);
        while (at < queue->stretches[s].end) {
            if (length < met) {
                if (length <= shared)
                    return count;
                met = queues->chain[count++] = length;
            }
            at = queues->later[at];
            length = at < queues->count ? entries[at].shared : 0;
        }
    }
    return count;
}

/* From the shortest on, for it serves most of those that follow. */
static void choose_branches(const int32_t *chain, int64_t count, int32_t least, struct queue_next *next) {
    for (int64_t apart = least > 1 ? least : 1;; apart *= 2) {
        int32_t last = next->shared;
        next->branch_count = 0;
        int64_t i = count - 1;
        for (; i >= 0; i--) {
            if (chain[i] - last < apart)
                continue;
            if (next->branch_count == MOST_BRANCHES)
                break;
            last = next->branches[next->branch_count++] = chain[i];
        }
        if (i < 0)
            return;
    }
}

void queues_take(struct queues *queues, int32_t rank, int32_t least, struct queue_next *next) {
    struct queue *queue = &queues->queue[rank];
    *next = (struct queue_next){0};
    if (queue->left == 0)
        return;
    int64_t before = queue->last, index = take_front(queues, queue);
    next->entry = &queues->entries[index];
    next->shared = before >= 0 ? shared_between(queues, before, index) : 0;
    choose_branches(queues->chain, find_branches(queues, queue, index, next->shared), least, next);
}

/* ---- moving ---- */

static enum result follow(struct queues *queues, const int64_t *taken) {
    for (int32_t rank = 0; rank < queues->ranks; rank++) {
        struct queue *queue = &queues->queue[rank];
        if (taken[rank] < queue->taken || taken[rank] - queue->taken > queue->left)
            return fail(ERROR_INTERNAL,
                "rank %d says that it has taken %lld requests; here it has taken %lld and %lld are left to "
                "it",
                rank, (long long)taken[rank], (long long)queue->taken, (long long)queue->left);
        while (queue->taken < taken[rank])
            (void)take_front(queues, queue);
    }
    return OK;
}

/* The queue with the most seconds of work that has a request to give. */
static int32_t find_longest(const struct queues *queues) {
    int32_t found = -1;
    for (int32_t rank = 0; rank < queues->ranks; rank++)
        if (queues->queue[rank].left > queues->queue[rank].keeps_front &&
            (found < 0 || queues->load[rank] > queues->load[found]))
            found = rank;
    return found;
}

/* Seconds of entries [begin, end) on a rank that has nothing of them. */
static double move_seconds(const struct queues *queues, int64_t begin, int64_t end) {
    int64_t prompt = queues->prompt[end] - queues->prompt[begin] + extra_tokens(queues, -1, begin);
    return seconds(queues, prompt, queues->answers[end] - queues->answers[begin]);
}

/* Where the part of the queue's last stretch begins that shall move: of parts that cost between half of `amount` and all of it the
 * one that shares least with what stays, and of these the largest; else the largest below; else one entry. */
static int64_t choose_part(const struct queues *queues, const struct queue *queue, double amount) {
    const struct stretch *stretch = &queue->stretches[queue->tail - 1];
    bool is_front = queue->tail - queue->head == 1;
    int64_t lowest = stretch->begin + (is_front && queue->keeps_front), best = stretch->end - 1;
    bool is_large = false;
    for (int64_t i = stretch->end - 1; i >= lowest; i--) {
        double cost = move_seconds(queues, i, stretch->end);
        if (cost > amount)
            break;
        if (is_large && queues->entries[i].shared > queues->entries[best].shared)
            continue;
        is_large = cost >= amount / 2;
        best = i;
    }
    return best;
}

static void remove_part(const struct queues *queues, struct queue *queue, int64_t begin) {
    struct stretch *stretch = &queue->stretches[queue->tail - 1];
    struct stretch part = {begin, stretch->end, begin == stretch->begin ? stretch->extra : 0};
    count_stretch(queues, queue, part, -1);
    stretch->end = begin;
    if (stretch->begin == stretch->end)
        queue->tail--;
}

/* At the end, or joined to the front where it precedes that in the plan. */
static enum result add_part(const struct queues *queues, struct queue *queue, int64_t begin, int64_t end) {
    TRY(queue_reserve(queue));
    struct stretch *front = &queue->stretches[queue->head];
    if (queue->left > 0 && front->begin == end) {
        count_stretch(queues, queue, *front, -1);
        *front = (struct stretch){begin, front->end, extra_tokens(queues, queue->last, begin)};
        count_stretch(queues, queue, *front, 1);
        return OK;
    }
    int64_t before = queue->left > 0 ? queue->stretches[queue->tail - 1].end - 1 : queue->last;
    struct stretch *added = &queue->stretches[queue->tail++];
    *added = (struct stretch){begin, end, extra_tokens(queues, before, begin)};
    count_stretch(queues, queue, *added, 1);
    return OK;
}

/* Moves one part to `rank`, which shall have `target` seconds of work; *moved stays 0 when that helps nobody. */
static enum result feed(
    struct queues *queues, int32_t rank, double target, const double *busy, int64_t *moved) {
    int32_t longest = find_longest(queues);
    *moved = 0;
    if (longest < 0 || longest == rank || queues->load[rank] >= target)
        return OK;
    struct queue *from = &queues->queue[longest], *to = &queues->queue[rank];
    double half = (queues->load[longest] - queues->load[rank]) / 2, lack = target - queues->load[rank];
    int64_t begin = choose_part(queues, from, half < lack ? half : lack);
    int64_t end = from->stretches[from->tail - 1].end;
    if (queues->load[rank] + move_seconds(queues, begin, end) >= queues->load[longest])
        return OK;
    remove_part(queues, from, begin);
    TRY(add_part(queues, to, begin, end));
    queues->load[longest] = busy[longest] + queues_cost(queues, longest);
    queues->load[rank] = busy[rank] + queues_cost(queues, rank);
    *moved = end - begin;
    return OK;
}

enum result queues_agree(
    struct queues *queues, const int64_t *taken, const int64_t *hungry, const double *busy, int64_t *moved) {
    *moved = 0;
    TRY(follow(queues, taken));
    double sum = 0;
    for (int32_t rank = 0; rank < queues->ranks; rank++) {
        sum += queues->load[rank] = busy[rank] + queues_cost(queues, rank);
        queues->queue[rank].keeps_front = queues->queue[rank].left > 1;
    }
    for (int32_t rank = 0; rank < queues->ranks; rank++) {
        if (!hungry[rank] || queues->queue[rank].left > 0)
            continue;
        int64_t part;
        do {
            TRY(feed(queues, rank, sum / queues->ranks, busy, &part));
            *moved += part;
        } while (part > 0);
    }
    return OK;
}
