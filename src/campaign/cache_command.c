/* nocturne cache: what a prefix cache's folder holds, whether it is whole, and making it smaller or carrying it elsewhere. */
#include "base/buffer.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/options.h"
#include "cache/keys.h"
#include "cache/store.h"
#include "campaign/campaign.h"

#include <math.h>     /* INFINITY */
#include <stdio.h>    /* printf */
#include <stdlib.h>   /* malloc, qsort, free */
#include <string.h>   /* strcmp */
#include <sys/stat.h> /* stat */

enum {
    RUN = 64, /* entries read in one go */
    RUN_BYTES = 4 << 20,
    PROGRESS_SECONDS = 5,
    HEX_DIGITS = 2 * CACHE_KEY_BYTES,
    PATH_BYTES = 4096,
};

static const char *const traffic_names[] = {"other", "agent", "chat", NULL};
static const char *const policy_names[] = {"value", "recent", "oldest", NULL};

/* ---- entries ---- */

struct item {
    struct cache_key key;
    struct index_entry entry;
};

struct item_list {
    struct item *items;
    int64_t count, capacity;
    int traffic; /* only these; -1: all */
    bool failed;
};

static bool collect(void *context, const struct cache_key *key, const struct index_entry *entry) {
    struct item_list *list = context;
    if (list->traffic >= 0 && entry->traffic != (uint32_t)list->traffic)
        return true;
    if (list->count == list->capacity) {
        int64_t capacity = list->capacity ? 2 * list->capacity : 1024;
        struct item *grown = realloc(list->items, (size_t)capacity * sizeof *grown);
        if (!grown) {
            list->failed = true;
            return false;
        }
        list->items = grown;
        list->capacity = capacity;
    }
    list->items[list->count++] = (struct item){*key, *entry};
    return true;
}

/* As they lie in the files, so that they are read in order. */
static int by_place(const void *a, const void *b) {
    const struct index_entry *x = &((const struct item *)a)->entry, *y = &((const struct item *)b)->entry;
    if (x->segment != y->segment)
        return x->segment < y->segment ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static void hex_of(const struct cache_key *key, char text[HEX_DIGITS + 1]) {
    for (int i = 0; i < CACHE_KEY_BYTES; i++)
        snprintf(text + 2 * i, 3, "%02x", key->bytes[i]);
}

/* The last segment whose header was asked for. */
struct segment_memo {
    struct segment_header header;
    char path[PATH_BYTES], space[HEX_DIGITS + 1];
    uint32_t number; /* 0: none yet */
    bool readable;
};

static bool header_of(struct store *store, uint32_t number, struct segment_memo *memo) {
    if (memo->number != number) {
        memo->number = number;
        memo->readable = store_segment(store, number, &memo->header, memo->path, sizeof memo->path) == OK;
        if (memo->readable)
            hex_of(&memo->header.space, memo->space);
        else
            snprintf(memo->path, sizeof memo->path, "segment %u", number);
    }
    return memo->readable;
}

/* Leaves out the entries of other spaces; `space`: the first digits, or NULL. */
static void keep_space(struct store *store, struct item_list *list, const char *space) {
    struct segment_memo memo = {0};
    int64_t kept = 0;
    if (!space)
        return;
    for (int64_t i = 0; i < list->count; i++)
        if (header_of(store, list->items[i].entry.segment, &memo) &&
            !strncmp(memo.space, space, strlen(space)))
            list->items[kept++] = list->items[i];
    list->count = kept;
}

static enum result collect_all(
    struct store *store, const char *folder, int traffic, const char *space, struct item_list *list) {
    int64_t damaged = 0;
    *list = (struct item_list){.traffic = traffic};
    TRY(index_each_entry(store_index(store), collect, list, &damaged));
    if (list->failed)
        return fail(ERROR_MEMORY, "%s: no memory for a list of its entries", folder);
    if (damaged > 0)
        log_warning("%s: %lld entries of the index are damaged; they are absent", folder, (long long)damaged);
    if (list->count > 0)
        qsort(list->items, (size_t)list->count, sizeof *list->items, by_place);
    keep_space(store, list, space);
    return OK;
}

/* ---- what the commands share ---- */

struct command {
    const char *folder, *space, *to;
    int64_t limit, hours;
    int traffic, policy; /* indexes of names; traffic -1: all */
    bool json, repair, dry_run;
};

static struct option space_option(struct command *c) {
    return (struct option){.name = "space",
        .kind = OPTION_TEXT,
        .value = &c->space,
        .placeholder = "HEX",
        .help = "only entries of this space: its first digits, as 'nocturne cache stat' shows them"};
}

static struct option traffic_option(struct command *c) {
    return (struct option){.name = "traffic",
        .kind = OPTION_CHOICE,
        .value = &c->traffic,
        .choices = traffic_names,
        .placeholder = "KIND",
        .help = "only entries of this kind of traffic: other, agent or chat"};
}

static struct option json_option(struct command *c, const char *help) {
    return (struct option){.name = "json", .kind = OPTION_FLAG, .value = &c->json, .help = help};
}

/* Parses the options and the one folder. */
static enum result parse(struct command *c, const struct command_usage *usage, const struct option *options,
    int argc, char **argv, bool *help_shown) {
    struct option_list folders = {0};
    TRY(options_parse(usage, options, argc, argv, &folders, help_shown));
    enum result status = OK;
    if (!*help_shown && folders.count != 1)
        status = fail(ERROR_USAGE, "%s: give one folder of a prefix cache (see 'nocturne %s --help')",
            usage->name, usage->name);
    else if (!*help_shown)
        c->folder = folders.items[0];
    free(folders.items);
    return status;
}

static enum result open_store(const struct command *c, bool still, struct store **store) {
    double hours[CACHE_TRAFFIC_KINDS];
    for (int kind = 0; kind < CACHE_TRAFFIC_KINDS; kind++)
        hours[kind] = (double)c->hours;
    const struct store_options options = {.folder = c->folder,
        .limit = c->limit,
        .policy = policy_make((enum cache_eviction)c->policy, hours),
        .existing = true,
        .still = still};
    return store_open(&options, store);
}

static void show_progress(const char *what, int64_t done, int64_t total, double *next) {
    if (wall_clock() < *next)
        return;
    *next = wall_clock() + PROGRESS_SECONDS;
    log_info("%s: %lld of %lld entries", what, (long long)done, (long long)total);
}

/* How many entries from `first` on are read in one go: of one segment, up to RUN_BYTES. */
static int32_t run_of(const struct item_list *list, int64_t first) {
    const struct index_entry *begin = &list->items[first].entry;
    int32_t count = 1;
    while (count < RUN && first + count < list->count && (count + 1) * begin->bytes <= RUN_BYTES &&
           list->items[first + count].entry.segment == begin->segment &&
           list->items[first + count].entry.bytes == begin->bytes)
        count++;
    return count;
}

struct reading {
    struct cache_key keys[RUN];
    struct index_entry entries[RUN];
    uint8_t *payloads[RUN];
    uint8_t *memory;
    int64_t memory_bytes;
};

/* Reads entries from `first` on; *good: how many leading ones of `count` are right. */
static enum result read_items(struct store *store, const struct item_list *list, int64_t first, int32_t count,
    struct reading *reading, int32_t *good) {
    int64_t bytes = list->items[first].entry.bytes;
    if (reading->memory_bytes < count * bytes) {
        free(reading->memory);
        reading->memory = malloc((size_t)(count * bytes));
        reading->memory_bytes = reading->memory ? count * bytes : 0;
        if (!reading->memory)
            return fail(ERROR_MEMORY, "no memory for %lld bytes of blocks", (long long)(count * bytes));
    }
    for (int32_t i = 0; i < count; i++) {
        reading->keys[i] = list->items[first + i].key;
        reading->entries[i] = list->items[first + i].entry;
        reading->payloads[i] = reading->memory + i * bytes;
    }
    *good = store_read(store, reading->keys, reading->entries, count, reading->payloads);
    return OK;
}

/* ---- stat ---- */

struct group {
    int64_t entries, bytes, uses;
    double cost_seconds;
};

struct space_group {
    struct segment_header header;
    char space[HEX_DIGITS + 1];
    struct group group;
};

struct statistics {
    struct group all, traffic[CACHE_TRAFFIC_KINDS];
    struct space_group *spaces;
    int32_t space_count;
    double oldest, newest, last_used;
    int64_t file_bytes;
};

static void add_to(struct group *group, const struct index_entry *entry) {
    group->entries++;
    group->bytes += entry->bytes;
    group->uses += entry->uses;
    group->cost_seconds += (double)entry->cost_seconds;
}

static enum result add_to_space(
    struct statistics *s, const struct segment_memo *memo, const struct index_entry *entry) {
    int32_t at = 0;
    while (at < s->space_count && strcmp(s->spaces[at].space, memo->space) != 0)
        at++;
    if (at == s->space_count) {
        struct space_group *grown = realloc(s->spaces, ((size_t)at + 1) * sizeof *grown);
        if (!grown)
            return fail(ERROR_MEMORY, "no memory for the list of spaces");
        s->spaces = grown;
        s->spaces[s->space_count++] = (struct space_group){.header = memo->header};
        memcpy(s->spaces[at].space, memo->space, sizeof memo->space);
    }
    add_to(&s->spaces[at].group, entry);
    return OK;
}

static enum result sum_up(struct store *store, const struct item_list *list, struct statistics *s) {
    struct segment_memo memo = {0};
    struct store_counts counts;
    s->oldest = INFINITY;
    for (int64_t i = 0; i < list->count; i++) {
        const struct index_entry *entry = &list->items[i].entry;
        add_to(&s->all, entry);
        add_to(&s->traffic[entry->traffic], entry);
        s->oldest = entry->created < s->oldest ? entry->created : s->oldest;
        s->newest = entry->created > s->newest ? entry->created : s->newest;
        s->last_used = entry->last_used > s->last_used ? entry->last_used : s->last_used;
        if (header_of(store, entry->segment, &memo))
            TRY(add_to_space(s, &memo, entry));
    }
    store_counts(store, &counts);
    s->file_bytes = counts.bytes;
    return OK;
}

static double hours_since(double then) {
    double hours = (wall_clock() - then) / 3600;
    return hours > 0 ? hours : 0;
}

static void print_group(const char *name, const struct group *group) {
    printf("%-10s %10lld entries %16lld bytes %10lld uses %12.1f s to compute\n", name,
        (long long)group->entries, (long long)group->bytes, (long long)group->uses, group->cost_seconds);
}

static void print_statistics(const struct command *c, const struct statistics *s) {
    printf("%s\n", c->folder);
    print_group("all", &s->all);
    for (int kind = 0; kind < CACHE_TRAFFIC_KINDS; kind++)
        if (s->traffic[kind].entries)
            print_group(traffic_names[kind], &s->traffic[kind]);
    printf("files      %lld bytes\n", (long long)s->file_bytes);
    if (s->all.entries)
        printf("age        %.1f to %.1f hours; last used %.1f hours ago\n", hours_since(s->newest),
            hours_since(s->oldest), hours_since(s->last_used));
    for (int32_t i = 0; i < s->space_count; i++) {
        const struct space_group *space = &s->spaces[i];
        printf("space %s\n    checkpoint %s, backend %s, %s; blocks of %d tokens, %lld bytes\n    ",
            space->space, space->header.fingerprint, space->header.backend, space->header.instruction_set,
            space->header.block_tokens, (long long)space->header.payload_bytes);
        print_group("", &space->group);
    }
}

static void append_group(struct buffer *text, const struct group *group) {
    buffer_printf(text, "\"entries\":%lld,\"bytes\":%lld,\"uses\":%lld,\"cost_seconds\":%.3f",
        (long long)group->entries, (long long)group->bytes, (long long)group->uses, group->cost_seconds);
}

static void append_text(struct buffer *text, const char *name, const char *value) {
    buffer_printf(text, "\"%s\":", name);
    buffer_append_json_string(text, value, strlen(value));
}

static void print_statistics_json(const struct command *c, const struct statistics *s) {
    struct buffer text = {0};
    buffer_append_text(&text, "{");
    append_text(&text, "folder", c->folder);
    buffer_append_text(&text, ",");
    append_group(&text, &s->all);
    buffer_printf(&text, ",\"file_bytes\":%lld,\"traffic\":{", (long long)s->file_bytes);
    for (int kind = 0; kind < CACHE_TRAFFIC_KINDS; kind++) {
        buffer_printf(&text, "%s\"%s\":{", kind ? "," : "", traffic_names[kind]);
        append_group(&text, &s->traffic[kind]);
        buffer_append_text(&text, "}");
    }
    buffer_append_text(&text, "},\"spaces\":[");
    for (int32_t i = 0; i < s->space_count; i++) {
        const struct segment_header *header = &s->spaces[i].header;
        buffer_append_text(&text, i ? ",{" : "{");
        append_text(&text, "space", s->spaces[i].space);
        buffer_append_text(&text, ",");
        append_text(&text, "fingerprint", header->fingerprint);
        buffer_append_text(&text, ",");
        append_text(&text, "backend", header->backend);
        buffer_append_text(&text, ",");
        append_text(&text, "instruction_set", header->instruction_set);
        buffer_printf(&text, ",\"block_tokens\":%d,\"payload_bytes\":%lld,", header->block_tokens,
            (long long)header->payload_bytes);
        append_group(&text, &s->spaces[i].group);
        buffer_append_text(&text, "}");
    }
    buffer_append_text(&text, "]");
    if (s->all.entries)
        buffer_printf(
            &text, ",\"oldest\":%.3f,\"newest\":%.3f,\"last_used\":%.3f", s->oldest, s->newest, s->last_used);
    buffer_append_text(&text, "}");
    puts(text.data);
    buffer_free(&text);
}

static enum result run_stat(struct command *c, struct store *store, struct item_list *list) {
    struct statistics statistics = {0};
    enum result status = sum_up(store, list, &statistics);
    if (status == OK && c->json)
        print_statistics_json(c, &statistics);
    else if (status == OK)
        print_statistics(c, &statistics);
    free(statistics.spaces);
    return status;
}

/* ---- list ---- */

static void print_entry(const struct command *c, const struct item *item, const struct segment_memo *memo) {
    char key[HEX_DIGITS + 1];
    const struct index_entry *entry = &item->entry;
    hex_of(&item->key, key);
    if (!c->json) {
        printf("%s %-6s %9d %10lld %9.4f %9.2f %9.2f %6lld %s %lld\n", key, traffic_names[entry->traffic],
            entry->first_token, (long long)entry->bytes, (double)entry->cost_seconds,
            hours_since(entry->created), hours_since(entry->last_used), (long long)entry->uses, memo->path,
            (long long)entry->offset);
        return;
    }
    struct buffer text = {0};
    buffer_append_text(&text, "{");
    append_text(&text, "key", key);
    buffer_append_text(&text, ",");
    append_text(&text, "space", memo->readable ? memo->space : "");
    buffer_printf(&text, ",\"traffic\":\"%s\",\"first_token\":%d,\"bytes\":%lld,\"cost_seconds\":",
        traffic_names[entry->traffic], entry->first_token, (long long)entry->bytes);
    buffer_append_json_float(&text, entry->cost_seconds);
    buffer_printf(&text, ",\"created\":%.3f,\"last_used\":%.3f,\"uses\":%lld,", entry->created,
        entry->last_used, (long long)entry->uses);
    append_text(&text, "segment", memo->path);
    buffer_printf(&text, ",\"offset\":%lld}", (long long)entry->offset);
    puts(text.data);
    buffer_free(&text);
}

static enum result run_list(struct command *c, struct store *store, struct item_list *list) {
    struct segment_memo memo = {0};
    if (!c->json)
        printf("%-32s %-6s %9s %10s %9s %9s %9s %6s %s\n", "key", "kind", "token", "bytes", "cost s", "age h",
            "idle h", "uses", "segment, byte");
    for (int64_t i = 0; i < list->count; i++) {
        header_of(store, list->items[i].entry.segment, &memo);
        print_entry(c, &list->items[i], &memo);
    }
    return OK;
}

/* ---- verify ---- */

static enum result name_damage(const struct command *c, struct store *store, const struct item *item) {
    char key[HEX_DIGITS + 1];
    struct segment_memo memo = {0};
    hex_of(&item->key, key);
    header_of(store, item->entry.segment, &memo);
    printf("damaged: %s at %s, byte %lld%s\n", key, memo.path, (long long)item->entry.offset,
        c->repair ? "; removed" : "");
    return c->repair ? store_remove(store, &item->key) : OK;
}

static enum result run_verify(struct command *c, struct store *store, struct item_list *list) {
    struct reading reading = {0};
    int64_t damaged = 0, bytes = 0;
    double next = wall_clock() + PROGRESS_SECONDS;
    enum result status = OK;
    for (int64_t at = 0; status == OK && at < list->count;) {
        int32_t count = run_of(list, at), good = 0;
        status = read_items(store, list, at, count, &reading, &good);
        bytes += good * list->items[at].entry.bytes;
        at += good;
        if (status == OK && good < count) {
            damaged++;
            status = name_damage(c, store, &list->items[at++]);
        }
        show_progress("verify", at, list->count, &next);
    }
    free(reading.memory);
    TRY(status);
    printf("%s: %lld entries, %lld bytes are whole; %lld damaged\n", c->folder,
        (long long)(list->count - damaged), (long long)bytes, (long long)damaged);
    if (damaged == 0)
        return OK;
    return fail(ERROR_INPUT, "%s: %lld entries are damaged; %s", c->folder, (long long)damaged,
        c->repair ? "they are removed" : "runs compute them again; --repair removes them");
}

/* ---- prune ---- */

static enum result run_prune(const struct command *c) {
    struct store *store;
    struct store_counts before, after;
    TRY(open_store(c, true, &store));
    int64_t entries = 0, bytes = 0;
    enum result status = OK;
    store_counts(store, &before);
    if (c->dry_run) {
        status = store_foresee_upkeep(store, c->limit, &entries, &bytes);
        if (status == OK)
            printf("%s: %lld of %lld entries with %lld bytes would be removed\n", c->folder,
                (long long)entries, (long long)before.entries, (long long)bytes);
    } else {
        store_upkeep(store, c->limit, 60);
        store_counts(store, &after);
        printf("%s: %lld of %lld entries are removed; the files have %lld bytes, %lld before\n", c->folder,
            (long long)after.evicted, (long long)before.entries, (long long)after.bytes,
            (long long)before.bytes);
        if (after.bytes > c->limit)
            status = fail(ERROR_CONFLICT,
                "%s: its files are still above %lld bytes: segments that running jobs write cannot be "
                "removed yet",
                c->folder, (long long)c->limit);
    }
    store_close(store);
    return status;
}

/* ---- export ---- */

static enum result copy_run(struct store *store, struct store *target, const struct item_list *list,
    int64_t first, int32_t count, struct reading *reading, int64_t *copied, int32_t *read) {
    struct store_put puts[RUN];
    struct segment_memo memo = {0};
    TRY(read_items(store, list, first, count, reading, read));
    if (*read == 0 || !header_of(store, list->items[first].entry.segment, &memo))
        return OK;
    for (int32_t i = 0; i < *read; i++) {
        const struct index_entry *entry = &list->items[first + i].entry;
        puts[i] = (struct store_put){.key = list->items[first + i].key,
            .entry = {.traffic = (enum cache_traffic)entry->traffic,
                .first_token = entry->first_token,
                .cost_seconds = entry->cost_seconds},
            .created = entry->created,
            .payload = reading->payloads[i]};
    }
    int32_t there = store_append(target, &memo.header, puts, *read);
    *copied += there;
    return there == *read ? OK : fail(ERROR_IO, "the other folder takes no more: see the warnings above");
}

static enum result run_export(struct command *c, struct store *store, struct item_list *list) {
    const struct store_options options = {
        .folder = c->to, .limit = c->limit, .policy = policy_make(CACHE_EVICT_LEAST_VALUE, (double[3]){0})};
    struct store *target;
    struct stat from, to;
    if (stat(c->folder, &from) == 0 && stat(c->to, &to) == 0 && from.st_dev == to.st_dev &&
        from.st_ino == to.st_ino)
        return fail(ERROR_USAGE, "%s: this is the folder that is exported; name another with --to", c->to);
    TRY(store_open(&options, &target));
    enum result status = OK;
    struct reading reading = {0};
    int64_t copied = 0, damaged = 0;
    double next = wall_clock() + PROGRESS_SECONDS;
    for (int64_t at = 0; status == OK && at < list->count;) {
        int32_t count = run_of(list, at), read = 0;
        status = copy_run(store, target, list, at, count, &reading, &copied, &read);
        damaged += read < count;
        at += read < count ? read + 1 : count;
        show_progress("export", at, list->count, &next);
    }
    free(reading.memory);
    store_close(target);
    printf("%s: %lld of %lld entries are in %s%s\n", c->folder, (long long)copied, (long long)list->count,
        c->to, damaged ? "; damaged ones were left out" : "");
    return status;
}

/* ---- the commands ---- */

typedef enum result run_on_list(struct command *c, struct store *store, struct item_list *list);

static enum result with_list(struct command *c, bool still, run_on_list *run) {
    struct store *store;
    struct item_list list;
    TRY(open_store(c, still, &store));
    enum result status = collect_all(store, c->folder, c->traffic, c->space, &list);
    if (status == OK)
        status = run(c, store, &list);
    free(list.items);
    store_close(store);
    return status;
}

static struct command defaults(void) {
    return (struct command){.limit = INT64_MAX / 4, .traffic = -1};
}

static enum result command_stat(int argc, char **argv) {
    struct command c = defaults();
    const struct option options[] = {
        space_option(&c), traffic_option(&c), json_option(&c, "one JSON object instead of text"), {0}};
    static const struct command_usage usage = {.name = "cache stat",
        .summary = "Sums up what a prefix cache's folder holds: by kind of traffic and by space (what rows "
                   "depend on\n"
                   "besides the prompt: checkpoint, backend, instruction set, size of blocks).",
        .arguments = "DIR"};
    bool help_shown;
    TRY(parse(&c, &usage, options, argc, argv, &help_shown));
    return help_shown ? OK : with_list(&c, true, run_stat);
}

static enum result command_list(int argc, char **argv) {
    struct command c = defaults();
    const struct option options[] = {space_option(&c), traffic_option(&c),
        json_option(&c, "one JSON object a line instead of columns"), {0}};
    static const struct command_usage usage = {.name = "cache list",
        .summary =
            "Lists the entries of a prefix cache's folder, one a line: key, kind of traffic, first token in "
            "its\n"
            "prompt, bytes, seconds to compute it again, hours since it was made and last used, uses, place.",
        .arguments = "DIR"};
    bool help_shown;
    TRY(parse(&c, &usage, options, argc, argv, &help_shown));
    return help_shown ? OK : with_list(&c, true, run_list);
}

static enum result command_verify(int argc, char **argv) {
    struct command c = defaults();
    const struct option options[] = {space_option(&c), traffic_option(&c),
        {.name = "repair", .kind = OPTION_FLAG, .value = &c.repair, .help = "remove damaged entries"}, {0}};
    static const struct command_usage usage = {.name = "cache verify",
        .summary = "Reads all entries of a prefix cache's folder and compares their checksums; names each "
                   "damaged one.\n"
                   "Exit code 3 when there are any. Runs do the same check on what they read, and compute "
                   "what is damaged.",
        .arguments = "DIR"};
    bool help_shown;
    TRY(parse(&c, &usage, options, argc, argv, &help_shown));
    return help_shown ? OK : with_list(&c, true, run_verify);
}

static enum result command_prune(int argc, char **argv) {
    struct command c = defaults();
    const struct option options[] = {{.name = "max-bytes",
                                         .kind = OPTION_BYTES,
                                         .value = &c.limit,
                                         .placeholder = "SIZE",
                                         .help = "when its files are larger than this: remove entries until "
                                                 "a tenth of it is free (default: none)"},
        {.name = "older-than",
            .kind = OPTION_COUNT,
            .value = &c.hours,
            .placeholder = "HOURS",
            .least = 1,
            .most = 1000000,
            .help = "remove what was not used for so long (default: as runs do, 72, and 168 for chats)"},
        {.name = "policy",
            .kind = OPTION_CHOICE,
            .value = &c.policy,
            .choices = policy_names,
            .help = "what goes first: the least 'value', the least 'recent'ly used, the 'oldest' (default: "
                    "value)"},
        {.name = "dry-run", .kind = OPTION_FLAG, .value = &c.dry_run, .help = "only say how much would go"},
        {0}};
    static const struct command_usage usage = {.name = "cache prune",
        .summary =
            "Removes entries of a prefix cache's folder and gives their room back. Jobs may go on using it.",
        .arguments = "DIR"};
    bool help_shown;
    TRY(parse(&c, &usage, options, argc, argv, &help_shown));
    return help_shown ? OK : run_prune(&c);
}

static enum result command_export_cache(int argc, char **argv) {
    struct command c = defaults();
    const struct option options[] = {
        {.name = "to",
            .kind = OPTION_TEXT,
            .value = &c.to,
            .placeholder = "DIR",
            .required = true,
            .help = "the other folder, made when missing; what it has already is left alone"},
        {.name = "max-bytes",
            .kind = OPTION_BYTES,
            .value = &c.limit,
            .placeholder = "SIZE",
            .help = "limit of the other folder's files (default: none)"},
        space_option(&c), traffic_option(&c), {0}};
    static const struct command_usage usage = {.name = "cache export",
        .summary = "Copies entries of a prefix cache's folder into another one, such as one to carry to "
                   "another cluster.",
        .arguments = "DIR"};
    bool help_shown;
    TRY(parse(&c, &usage, options, argc, argv, &help_shown));
    return help_shown ? OK : with_list(&c, true, run_export);
}

static const struct {
    const char *name, *summary;
    enum result (*run)(int argc, char **argv);
} commands[] = {
    {"stat", "sum up what it holds", command_stat},
    {"list", "list its entries", command_list},
    {"verify", "read all and compare checksums", command_verify},
    {"prune", "make it smaller", command_prune},
    {"export", "copy entries into another folder", command_export_cache},
};

enum { COMMANDS = sizeof commands / sizeof *commands };

enum result command_cache(int argc, char **argv) {
    for (size_t i = 0; argc > 1 && i < COMMANDS; i++)
        if (!strcmp(argv[1], commands[i].name))
            return commands[i].run(argc - 1, argv + 1);
    if (argc > 1 && !strcmp(argv[1], "--help")) {
        printf("usage: nocturne cache COMMAND DIR [options]\n\n"
               "What a prefix cache's folder holds (that of --cache or --cache-local), whether it is whole, "
               "and making\n"
               "it smaller. All may be used while jobs use the folder.\n\n");
        for (size_t i = 0; i < COMMANDS; i++)
            printf("  %-8s %s\n", commands[i].name, commands[i].summary);
        printf("\n'nocturne cache COMMAND --help' shows a command's options.\n");
        return OK;
    }
    return fail(ERROR_USAGE,
        "cache: give stat, list, verify, prune or export, and a folder (see 'nocturne cache --help')");
}
