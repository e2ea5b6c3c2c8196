#include "schedule/prompts.h"

#include "base/stopwatch.h"

#include <stdlib.h> /* calloc, free */
#include <string.h> /* memcpy */

enum {
    LEAST_SHARED = 32, /* tokens a prefix must add to what is held anyway, to be worth a state of its own */
};

void prompts_begin(struct prompts *prompts, const struct engine_options *options,
    const struct engine_source *source, struct engine_counts *counts, int32_t tail, int64_t *reserved,
    int64_t blocks_total) {
    *prompts = (struct prompts){.options = options,
        .source = source,
        .counts = counts,
        .tail = tail,
        .reserved = reserved,
        .blocks_total = blocks_total};
}

/* ---- prefixes ---- */

static int64_t shared_blocks(const struct prompts *prompts, const struct prefix *prefix) {
    return prefix ? sequence_whole_blocks(prompts->options->model, prefix->prompt.tokens) : 0;
}

/* A prefix whose sequence is gone holds only what others share of it: whole blocks of its own. */
static void keep_shared(struct prompts *prompts, struct prefix *prefix) {
    const struct prefix *from = prefix->prompt.from;
    int64_t shared = shared_blocks(prompts, prefix) - shared_blocks(prompts, from);
    *prompts->reserved -= prefix->blocks - shared;
    prefix->blocks = shared;
}

/* Frees prefixes that nobody will go on from, and gives back the blocks of those that nobody shares. */
static void drop_unused(struct prompts *prompts) {
    struct model *model = prompts->options->model;
    struct prefix **link = &prompts->first;
    bool is_again = false; /* a parent may come before its child */
    while (*link) {
        struct prefix *prefix = *link;
        if (prefix->is_open || prefix->waiting || !prefix->is_ready) {
            link = &prefix->next;
            continue;
        }
        sequence_free(model, prefix->prompt.sequence);
        prefix->prompt.sequence = NULL;
        keep_shared(prompts, prefix);
        if (prefix->users) {
            link = &prefix->next;
            continue;
        }
        *link = prefix->next;
        *prompts->reserved -= prefix->blocks;
        if (prefix->prompt.from)
            prefix->prompt.from->users--;
        is_again |= prefix->prompt.from != NULL;
        free(prefix->prompt.keys);
        free(prefix);
    }
    if (is_again)
        drop_unused(prompts);
}

void prompts_end(struct prompts *prompts) {
    while (prompts->first) {
        struct prefix *prefix = prompts->first;
        prompts->first = prefix->next;
        sequence_free(prompts->options->model, prefix->prompt.sequence);
        free(prefix->prompt.keys);
        free(prefix);
    }
    prompts->deepest = NULL;
}

static void close_above(struct prompts *prompts, int32_t tokens) {
    while (prompts->deepest && prompts->deepest->prompt.tokens > tokens) {
        prompts->deepest->is_open = false;
        prompts->deepest = prompts->deepest->parent;
    }
    drop_unused(prompts);
}

void prompts_follow(struct prompts *prompts, int32_t shared) {
    close_above(prompts, shared);
}

void prompts_close_all(struct prompts *prompts) {
    close_above(prompts, -1);
}

/* The longest open prefix that leaves a prompt of `tokens` tokens something to run. */
static struct prefix *longest_below(const struct prompts *prompts, int32_t tokens) {
    struct prefix *prefix = prompts->deepest;
    while (prefix && prefix->prompt.tokens >= tokens)
        prefix = prefix->parent;
    return prefix;
}

struct prefix *prompts_find(const struct prompts *prompts, int32_t tokens, int64_t *blocks) {
    struct prefix *prefix = longest_below(prompts, tokens);
    *blocks = shared_blocks(prompts, prefix);
    return prefix;
}

/* ---- keys ---- */

/* An image's span ends with its run of the image token, or where the next one begins. */
static int32_t image_end(const struct request *request, int32_t index, int32_t image_token) {
    int32_t most =
        index + 1 < request->image_count ? request->images[index + 1].position : request->token_count;
    int32_t end = request->images[index].position;
    while (end < most && request->token_ids[end] == image_token)
        end++;
    return end;
}

static enum result identify_images(
    const struct prompts *prompts, const struct request *request, struct cache_image **images) {
    *images = calloc((size_t)request->image_count + 1, sizeof **images);
    if (!*images)
        return fail(ERROR_MEMORY, "out of memory for the images of a prompt");
    int32_t image_token = model_config(prompts->options->model)->image_token_id;
    for (int32_t i = 0; i < request->image_count; i++) {
        struct cache_image *image = &(*images)[i];
        TRY(prompts->source->image_identity(
            prompts->source->context, request->images[i].image, image->content));
        image->begin = request->images[i].position;
        image->end = image_end(request, i, image_token);
    }
    return OK;
}

/* Agents call tools; a chat's later turns follow an earlier answer, which the end token has ended. */
static enum cache_traffic traffic_of(const struct prompts *prompts, const struct request *request) {
    if (request->parse_tool_calls)
        return CACHE_TRAFFIC_AGENT;
    int32_t end = model_config(prompts->options->model)->eos_token_id;
    for (int32_t t = 0; t < request->token_count; t++)
        if (request->token_ids[t] == end)
            return CACHE_TRAFFIC_CHAT;
    return CACHE_TRAFFIC_OTHER;
}

static enum result make_keys(struct prompts *prompts, struct prompt *prompt) {
    if (!prompts->options->cache)
        return OK;
    const struct cache_space *space = prompts->options->space;
    struct cache_image *images = NULL;
    prompt->key_count = prompt->tokens / space->block_tokens;
    prompt->keys = calloc((size_t)prompt->key_count + 1, sizeof *prompt->keys);
    prompt->traffic = traffic_of(prompts, prompt->request);
    enum result status = prompt->keys ? identify_images(prompts, prompt->request, &images)
                                      : fail(ERROR_MEMORY, "out of memory for the keys of a prompt");
    if (status == OK)
        cache_keys(space, prompt->request->token_ids, prompt->tokens, images, prompt->request->image_count,
            prompt->keys);
    free(images);
    return status;
}

/* The keys of a prompt's beginning are the first of its own. */
static enum result take_keys(
    const struct prompts *prompts, const struct prompt *whole, struct prompt *beginning) {
    if (!whole->keys)
        return OK;
    beginning->key_count = beginning->tokens / prompts->options->space->block_tokens;
    beginning->keys = calloc((size_t)beginning->key_count + 1, sizeof *beginning->keys);
    if (!beginning->keys)
        return fail(ERROR_MEMORY, "out of memory for the keys of a prompt");
    memcpy(beginning->keys, whole->keys, (size_t)beginning->key_count * sizeof *beginning->keys);
    beginning->traffic = whole->traffic;
    return OK;
}

/* ---- hits ---- */

int32_t prompts_usable_hit(int32_t blocks, const struct cache_space *space, int32_t tokens) {
    int32_t found = blocks * space->block_tokens, most = tokens - 1;
    return (found < most ? found : most) / 2 * 2;
}

/* A hit that is worth more than what is run again for it: where the prompt would begin then, and what it takes. */
static bool find_hit(
    const struct prompts *prompts, const struct prompt *prompt, int32_t blocks, struct restore *restore) {
    const struct engine_options *options = prompts->options;
    const struct replay exact = {.tail = prompts->tail};
    const struct replay wanted = {.tail = prompts->tail, .bounded = options->bounded_replay};
    int32_t tail_begin = prompt->tokens - prompts->tail;
    restore->ids = prompt->request->token_ids;
    restore->block_tokens = options->space->block_tokens;
    restore->hit = prompts_usable_hit(blocks, options->space, prompt->tokens);
    restore->begin = sequence_replay_begin(options->model, restore->hit, tail_begin, &wanted);
    restore->is_approximate =
        restore->begin != sequence_replay_begin(options->model, restore->hit, tail_begin, &exact);
    int32_t otherwise = prompt->from ? prompt->from->prompt.tokens : 0;
    return restore->begin > otherwise;
}

/* Rows that the prompt will go on from are read while others run; those that it will not are left alone. */
static void prefetch_hit(const struct prompts *prompts, const struct prompt *prompt) {
    struct restore restore = {0};
    struct cache *cache = prompts->options->cache;
    int32_t blocks = prompt->keys ? cache_match(cache, prompt->keys, prompt->key_count) : 0;
    if (blocks && find_hit(prompts, prompt, blocks, &restore))
        cache_prefetch(cache, prompt->keys, blocks);
}

/* ---- admission ---- */

static void go_on_from(struct prompt *prompt, struct prefix *prefix) {
    prompt->from = prefix;
    if (prefix) {
        prefix->waiting++;
        prefix->users++;
    }
}

static enum result add_prefix(
    struct prompts *prompts, const struct prompt *maker, int32_t tokens, int64_t blocks) {
    struct prefix *prefix = calloc(1, sizeof *prefix);
    if (!prefix)
        return fail(ERROR_MEMORY, "out of memory for a beginning that prompts share");
    prefix->prompt = (struct prompt){
        .request = maker->request, .owner = maker->owner, .tokens = tokens, .embeddings = maker->embeddings};
    prefix->is_open = true;
    prefix->blocks = blocks;
    prefix->parent = prompts->deepest;
    go_on_from(&prefix->prompt, prefix->parent);
    *prompts->reserved += blocks;
    prompts->left += tokens - (prefix->parent ? prefix->parent->prompt.tokens : 0);
    struct prefix **last = &prompts->first;
    while (*last)
        last = &(*last)->next;
    *last = prefix;
    prompts->deepest = prefix;
    TRY(take_keys(prompts, maker, &prefix->prompt));
    prefetch_hit(prompts, &prefix->prompt);
    return OK;
}

/* Tokens of the prefix at a branch, 0: it adds too little to the `held` ones. */
static int32_t prefix_tokens(int32_t branch, int32_t prompt_tokens, int32_t held) {
    int32_t tokens = branch < prompt_tokens - 1 ? branch : prompt_tokens - 1;
    return tokens < held + LEAST_SHARED ? 0 : tokens;
}

/* Blocks of a prefix behind one of `held` tokens. */
static int64_t prefix_blocks(const struct prompts *prompts, int32_t tokens, int32_t held) {
    const struct engine_options *options = prompts->options;
    return sequence_blocks(options->model, tokens, options->step_tokens, prompts->tail) -
           sequence_whole_blocks(options->model, held);
}

int64_t prompts_prefix_blocks(const struct prompts *prompts, int32_t tokens, const struct engine_work *work) {
    int32_t held = prompts->deepest ? prompts->deepest->prompt.tokens : 0;
    int64_t blocks = 0;
    for (int32_t i = 0; i < work->branch_count; i++) {
        int32_t next = prefix_tokens(work->branches[i], tokens, held);
        if (!next)
            continue;
        blocks += prefix_blocks(prompts, next, held);
        held = next;
    }
    return blocks;
}

/* Prefixes at the branches ahead, as long as each and the prompt itself have room. */
static enum result add_prefixes(
    struct prompts *prompts, const struct prompt *prompt, const struct engine_work *work, int64_t blocks) {
    for (int32_t i = 0; i < work->branch_count; i++) {
        int32_t held = prompts->deepest ? prompts->deepest->prompt.tokens : 0;
        int32_t tokens = prefix_tokens(work->branches[i], prompt->tokens, held);
        if (!tokens)
            continue;
        int64_t own = prefix_blocks(prompts, tokens, held);
        if (*prompts->reserved + own + blocks > prompts->blocks_total)
            break;
        TRY(add_prefix(prompts, prompt, tokens, own));
    }
    return OK;
}

enum result prompts_admit(struct prompts *prompts, struct prompt *prompt, const struct engine_work *work,
    int64_t blocks, int64_t *whole_blocks) {
    TRY(make_keys(prompts, prompt));
    TRY(add_prefixes(prompts, prompt, work, blocks));
    struct prefix *from = prompts_find(prompts, prompt->tokens, whole_blocks);
    go_on_from(prompt, from);
    prompts->left += prompt->tokens - (from ? from->prompt.tokens : 0);
    prefetch_hit(prompts, prompt);
    return OK;
}

/* ---- the begin of a prompt ---- */

/* Image tokens among a prompt's first `tokens`. */
static int64_t count_images(const struct prompts *prompts, const struct prompt *prompt, int32_t tokens) {
    int32_t image_token = model_config(prompts->options->model)->image_token_id;
    int64_t count = 0;
    for (int32_t t = 0; prompt->embeddings && t < tokens; t++)
        count += prompt->request->token_ids[t] == image_token;
    return count;
}

static void begin_at(struct prompts *prompts, struct prompt *prompt, int32_t done) {
    prompt->done = done;
    prompt->embeddings_done = count_images(prompts, prompt, done);
}

/* Reads a hit's rows and makes the sequence: *restored false when they were not all there in the end and what there is does not
 * suffice. */
static enum result restore_hit(
    struct prompts *prompts, struct prompt *prompt, struct restore *restore, bool *restored) {
    const struct engine_options *options = prompts->options;
    int32_t wanted = (restore->hit + restore->block_tokens - 1) / restore->block_tokens, found = 0;
    uint8_t *packed = malloc((size_t)(wanted * options->space->payload_bytes) + 1);
    if (!packed)
        return fail(ERROR_MEMORY, "out of memory for %d blocks of the cache", wanted);
    enum work_part before = stopwatch_switch(WORK_FILES);
    enum result status = cache_get(options->cache, prompt->keys, wanted, packed, &found);
    (void)stopwatch_switch(before);
    if (status == OK && found < wanted && !find_hit(prompts, prompt, found, restore)) {
        free(packed);
        return OK;
    }
    restore->packed = packed;
    if (status == OK)
        status = sequence_restore(options->model, restore, &prompt->sequence);
    free(packed);
    *restored = status == OK;
    return status;
}

static void leave_prefix(struct prompts *prompts, struct prompt *prompt) {
    if (prompt->from)
        prompt->from->waiting--;
    drop_unused(prompts);
}

static enum result start_from_cache(
    struct prompts *prompts, struct prompt *prompt, int64_t copies, int64_t *more) {
    struct restore restore = {0};
    int64_t each = shared_blocks(prompts, prompt->from);
    if (!prompt->keys || *prompts->reserved + each * copies > prompts->blocks_total)
        return OK;
    int32_t blocks = cache_match(prompts->options->cache, prompt->keys, prompt->key_count);
    if (!find_hit(prompts, prompt, blocks, &restore))
        return OK;
    bool restored = false;
    TRY(restore_hit(prompts, prompt, &restore, &restored));
    if (!restored)
        return OK;
    int32_t otherwise = prompt->from ? prompt->from->prompt.tokens : 0;
    prompts->left -= restore.begin - otherwise;
    prompts->counts->cached_tokens += restore.hit;
    prompts->counts->replayed_tokens += restore.hit - restore.begin;
    begin_at(prompts, prompt, restore.begin);
    prompt->reused = restore.hit;
    if (prompt->from) { /* it shares no block of it */
        prompt->from->users--;
        leave_prefix(prompts, prompt);
        prompt->from = NULL;
        *prompts->reserved += each * copies;
        *more = each;
    }
    return OK;
}

/* The last one to go on from a prefix takes its sequence over. */
static enum result start_from_prefix(struct prompts *prompts, struct prompt *prompt) {
    struct prefix *from = prompt->from;
    bool is_last = !from->is_open && from->waiting == 1;
    bool is_maker = from->prompt.owner == prompt->owner;
    if (is_last) {
        prompt->sequence = from->prompt.sequence;
        from->prompt.sequence = NULL;
    } else {
        TRY(sequence_fork(prompts->options->model, from->prompt.sequence, &prompt->sequence));
    }
    begin_at(prompts, prompt, from->prompt.tokens);
    prompt->reused = is_maker ? from->prompt.reused : from->prompt.tokens;
    if (!is_maker)
        prompts->counts->shared_tokens += from->prompt.tokens;
    leave_prefix(prompts, prompt);
    return OK;
}

enum result prompts_start(
    struct prompts *prompts, struct prompt *prompt, int64_t copies, bool *can_run, int64_t *more) {
    *more = 0;
    *can_run = true;
    if (prompt->sequence)
        return OK;
    *can_run = !prompt->from || prompt->from->is_ready;
    if (!*can_run)
        return OK;
    TRY(start_from_cache(prompts, prompt, copies, more));
    if (prompt->sequence)
        return OK;
    return prompt->from ? start_from_prefix(prompts, prompt)
                        : sequence_create(prompts->options->model, &prompt->sequence);
}

enum result prompts_start_prefix(struct prompts *prompts, struct prefix *prefix, bool *can_run) {
    int64_t more = 0;
    TRY(prompts_start(prompts, &prefix->prompt, 1, can_run, &more));
    prefix->blocks += more;
    return OK;
}

/* ---- the end ---- */

/* Puts blocks [first, count) of a conversation into the cache. */
static enum result put_blocks(struct prompts *prompts, const struct sequence *sequence,
    const struct cache_key *keys, int32_t first, int32_t count, enum cache_traffic traffic) {
    const struct engine_options *options = prompts->options;
    int32_t block = options->space->block_tokens;
    if (first >= count || sequence_is_approximate(sequence))
        return OK;
    uint8_t *packed = malloc((size_t)options->space->payload_bytes);
    if (!packed)
        return fail(ERROR_MEMORY, "out of memory for a block of the cache");
    enum work_part before = stopwatch_switch(WORK_FILES);
    enum result status = OK;
    for (int32_t i = first; i < count && status == OK; i++) {
        const struct cache_entry entry = {.traffic = traffic,
            .first_token = i * block,
            .cost_seconds = (float)(prompts->seconds_a_token * block)};
        status = sequence_rows_save(options->model, sequence, i * block, block, packed);
        if (status == OK)
            cache_put(options->cache, &keys[i], &entry, packed);
    }
    (void)stopwatch_switch(before);
    free(packed);
    return status;
}

enum result prompts_ended(struct prompts *prompts, const struct prompt *prompt) {
    if (!prompt->keys)
        return OK;
    int32_t known = cache_match(prompts->options->cache, prompt->keys, prompt->key_count);
    return put_blocks(prompts, prompt->sequence, prompt->keys, known, prompt->key_count, prompt->traffic);
}

enum result prompts_answered(struct prompts *prompts, const struct prompt *prompt,
    const struct sequence *sequence, const int32_t *token_ids, int32_t count) {
    const struct request *request = prompt->request;
    if (!prompts->options->cache)
        return OK;
    if (prompts->options->bounded_replay && !prompt->tokens)
        return OK; /* gone on from a saved state, which does not tell whether it is an approximation */
    const enum cache_traffic traffic = traffic_of(prompts, request);
    if (traffic == CACHE_TRAFFIC_OTHER)
        return OK; /* nobody will go on from the answer to a one-shot question */
    int32_t block = prompts->options->space->block_tokens, run = sequence_length(sequence);
    int32_t blocks = run / block, before = request->token_count / block;
    if (blocks <= before || run > request->token_count + count)
        return OK;
    int32_t *ids = malloc((size_t)run * sizeof *ids);
    struct cache_key *keys = calloc((size_t)blocks, sizeof *keys);
    struct cache_image *images = NULL;
    enum result status =
        ids && keys ? identify_images(prompts, request, &images)
                    : fail(ERROR_MEMORY, "out of memory for the keys of a conversation of %d tokens", run);
    if (status == OK) {
        for (int32_t t = 0; t < run; t++)
            ids[t] = t < request->token_count ? request->token_ids[t] : token_ids[t - request->token_count];
        cache_keys(prompts->options->space, ids, run, images, request->image_count, keys);
        status = put_blocks(prompts, sequence, keys, before, blocks, traffic);
    }
    free(images);
    free(keys);
    free(ids);
    return status;
}

void prompts_release(struct prompts *prompts, struct prompt *prompt) {
    sequence_free(prompts->options->model, prompt->sequence);
    if (prompt->from) {
        if (!prompt->sequence && !prompt->done)
            prompt->from->waiting--; /* it never began */
        prompt->from->users--;
        prompt->from = NULL;
    }
    prompt->sequence = NULL;
    free(prompt->keys);
    prompt->keys = NULL;
    drop_unused(prompts);
}
