#include "cache/index_check.h"

#include <errno.h>    /* errno */
#include <fcntl.h>    /* open */
#include <stdbool.h>  /* bool */
#include <stdio.h>    /* snprintf */
#include <stdlib.h>   /* calloc, free */
#include <string.h>   /* memcpy */
#include <sys/mman.h> /* mmap */
#include <sys/stat.h> /* fstat */
#include <unistd.h>   /* pread, close */

/* ---- LMDB's structures, by their places ---- */

enum {
    PAGE_HEADER =
        16, /* u64 number, u16, u16 flags, u16 lower, u16 upper or (overflow) u32 pages; then u16 places of nodes */
    FLAGS_AT = 10,
    LOWER_AT = 12,
    UPPER_AT = 14,
    NODE_HEADER = 8, /* u16 low, u16 high, u16 flags, u16 bytes of the key; then key and data */

    BRANCH = 0x01,
    LEAF = 0x02,
    OVERFLOW_PAGE = 0x04,
    META = 0x08,
    PASSING_FLAGS = 0xC010, /* dirty, loose, keep: of no meaning in a file */

    BIG_DATA = 0x01, /* of a leaf's node: its data is the number of an overflow page */
    SUB_TREE = 0x02, /* its data is a tree's description */

    TREE_BYTES = 48, /* u32, u16 flags, u16 depth, u64 branch, leaf, overflow pages, u64 entries, u64 root */
    META_BYTES = 24 + 2 * TREE_BYTES + 16,
    INTEGER_KEYS = 0x08,
    MOST_DEPTH = 32,
    LEAST_PAGE = 512,
    MOST_PAGE = 32768,
};

#define LMDB_MAGIC 0xBEEFC0DEu
#define LMDB_DATA_VERSION 1u
#define NO_PAGE UINT64_MAX

struct tree {
    uint32_t pad;
    uint16_t flags, depth;
    uint64_t branch_pages, leaf_pages, overflow_pages, entries, root;
};
_Static_assert(sizeof(struct tree) == TREE_BYTES, "as LMDB lays it out");

struct meta {
    uint32_t magic, version;
    uint64_t address, map_bytes;
    struct tree trees[2]; /* of free pages, its `pad` being the size of a page; of named tables */
    uint64_t last_page, transaction;
};
_Static_assert(sizeof(struct meta) == META_BYTES, "as LMDB lays it out");

struct walk {
    const char *name;
    const uint8_t *file;
    uint64_t file_pages, last_page, transaction;
    uint32_t page_bytes;
    uint8_t *seen; /* a bit for each page up to last_page */
    struct tree counted;
};

static uint16_t u16_at(const uint8_t *bytes, size_t at) {
    uint16_t value;
    memcpy(&value, bytes + at, sizeof value);
    return value;
}

static uint64_t u64_at(const uint8_t *bytes, size_t at) {
    uint64_t value;
    memcpy(&value, bytes + at, sizeof value);
    return value;
}

/* ---- meta pages ---- */

static enum result check_meta(
    const char *name, const uint8_t *page, int which, uint64_t file_bytes, struct meta *meta) {
    memcpy(meta, page + PAGE_HEADER, sizeof *meta);
    uint32_t size = meta->trees[0].pad;
    if (!(u16_at(page, FLAGS_AT) & META) || u64_at(page, 0) != (uint64_t)which || meta->magic != LMDB_MAGIC)
        return fail(ERROR_INPUT, "%s: meta page %d is damaged", name, which);
    if (meta->version != LMDB_DATA_VERSION)
        return fail(ERROR_INPUT, "%s: LMDB's data version is %u, and this program knows %u", name,
            meta->version, LMDB_DATA_VERSION);
    if (size < LEAST_PAGE || size > MOST_PAGE || (size & (size - 1)) ||
        meta->trees[0].flags != INTEGER_KEYS || meta->trees[1].flags != 0 ||
        meta->last_page >= file_bytes / size * 2 + ((uint64_t)64 << 20) / size || meta->last_page < 1)
        return fail(ERROR_INPUT, "%s: meta page %d makes no sense", name, which);
    return OK;
}

/* The meta page that counts. `start`: the file's first bytes, two pages. */
static enum result choose_meta(
    const char *name, const uint8_t *start, uint64_t start_bytes, uint64_t file_bytes, struct meta *chosen) {
    struct meta metas[2];
    if (start_bytes < PAGE_HEADER + META_BYTES)
        return fail(ERROR_INPUT, "%s: it ends within its first page", name);
    TRY(check_meta(name, start, 0, file_bytes, &metas[0]));
    uint32_t size = metas[0].trees[0].pad;
    if (start_bytes < size + PAGE_HEADER + META_BYTES)
        return fail(ERROR_INPUT, "%s: it ends within its second page", name);
    TRY(check_meta(name, start + size, 1, file_bytes, &metas[1]));
    if (metas[1].trees[0].pad != size)
        return fail(ERROR_INPUT, "%s: its meta pages differ in the size of a page", name);
    int newer = metas[1].transaction > metas[0].transaction;
    *chosen = metas[newer];
    /* LMDB writes transaction n to meta page n mod 2, and looks for it there. */
    if (chosen->transaction % 2 != (uint64_t)newer)
        return fail(ERROR_INPUT, "%s: its newest transaction is in the wrong meta page", name);
    return OK;
}

/* ---- pages ---- */

static enum result take_page(struct walk *walk, uint64_t page, bool must_be_in_file) {
    if (page < 2 || page > walk->last_page || (must_be_in_file && page >= walk->file_pages))
        return fail(ERROR_INPUT, "%s: page %llu lies outside", walk->name, (unsigned long long)page);
    if (walk->seen[page / 8] & 1 << page % 8)
        return fail(ERROR_INPUT, "%s: page %llu is reached twice", walk->name, (unsigned long long)page);
    walk->seen[page / 8] |= (uint8_t)(1 << page % 8);
    return OK;
}

static enum result bad_page(const struct walk *walk, uint64_t page) {
    return fail(ERROR_INPUT, "%s: page %llu is damaged", walk->name, (unsigned long long)page);
}

static const uint8_t *page_at(const struct walk *walk, uint64_t page) {
    return walk->file + page * walk->page_bytes;
}

/* A node's parts, all of them within the page. */
struct node {
    const uint8_t *key, *data;
    uint32_t key_bytes, data_bytes; /* of the data in the page */
    uint64_t value;                 /* branch: the child; leaf: bytes of the data, wherever it is */
    uint16_t flags;                 /* of a leaf's node */
    uint32_t bytes;                 /* in the page */
};

static bool read_node(
    const struct walk *walk, const uint8_t *page, uint32_t place, bool leaf, struct node *node) {
    if (place % 2 || place < u16_at(page, UPPER_AT) || place + NODE_HEADER > walk->page_bytes)
        return false;
    const uint8_t *at = page + place;
    uint64_t value = u16_at(at, 0) | (uint64_t)u16_at(at, 2) << 16;
    *node = (struct node){.key = at + NODE_HEADER, .key_bytes = u16_at(at, 6), .value = value};
    uint64_t bytes = NODE_HEADER + node->key_bytes;
    if (leaf) {
        node->flags = u16_at(at, 4);
        node->data_bytes = node->flags & BIG_DATA ? 8 : (uint32_t)value;
        bytes += node->flags & BIG_DATA ? 8 : value;
    } else
        node->value |= (uint64_t)u16_at(at, 4) << 32;
    bytes += bytes % 2;
    if (place + bytes > walk->page_bytes)
        return false;
    node->bytes = (uint32_t)bytes;
    node->data = node->key + node->key_bytes;
    return true;
}

/* Takes a run of overflow pages; *data: the data in them. */
static enum result take_overflow(struct walk *walk, const struct node *node, const uint8_t **data) {
    uint64_t first = u64_at(node->data, 0), wanted = (PAGE_HEADER + node->value - 1) / walk->page_bytes + 1;
    if (first < 2 || first >= walk->file_pages || wanted > walk->file_pages - first)
        return fail(ERROR_INPUT, "%s: page %llu lies outside", walk->name, (unsigned long long)first);
    const uint8_t *page = page_at(walk, first);
    uint32_t pages = u16_at(page, LOWER_AT) | (uint32_t)u16_at(page, UPPER_AT) << 16;
    if ((u16_at(page, FLAGS_AT) & ~PASSING_FLAGS) != OVERFLOW_PAGE || u64_at(page, 0) != first ||
        pages != wanted)
        return bad_page(walk, first);
    for (uint64_t i = 0; i < pages; i++)
        TRY(take_page(walk, first + i, true));
    walk->counted.overflow_pages += pages;
    *data = page + PAGE_HEADER;
    return OK;
}

/* What a table's nodes must be like, besides lying in their pages. */
typedef enum result check_node(
    struct walk *walk, const struct node *node, const uint8_t *data, void *context);

static enum result walk_page(struct walk *walk, uint64_t page, int levels, check_node *check, void *context);

static enum result walk_leaf_node(
    struct walk *walk, const struct node *node, uint64_t page, check_node *check, void *context) {
    const uint8_t *data = node->data;
    if (node->flags & ~(BIG_DATA | SUB_TREE) || node->flags == (BIG_DATA | SUB_TREE))
        return bad_page(walk, page);
    if (node->flags & BIG_DATA)
        TRY(take_overflow(walk, node, &data));
    walk->counted.entries++;
    return check(walk, node, data, context);
}

static enum result walk_page(struct walk *walk, uint64_t page, int levels, check_node *check, void *context) {
    TRY(take_page(walk, page, true));
    const uint8_t *bytes = page_at(walk, page);
    bool leaf = levels == 1;
    uint32_t lower = u16_at(bytes, LOWER_AT), upper = u16_at(bytes, UPPER_AT), used = 0;
    if (u64_at(bytes, 0) != page || (u16_at(bytes, FLAGS_AT) & ~PASSING_FLAGS) != (leaf ? LEAF : BRANCH) ||
        lower < PAGE_HEADER || lower % 2 || upper < lower || upper > walk->page_bytes)
        return bad_page(walk, page);
    uint32_t nodes = (lower - PAGE_HEADER) / 2;
    if (nodes < (leaf ? 1 : 2))
        return bad_page(walk, page);
    if (leaf)
        walk->counted.leaf_pages++;
    else
        walk->counted.branch_pages++;
    for (uint32_t i = 0; i < nodes; i++) {
        struct node node;
        if (!read_node(walk, bytes, u16_at(bytes, PAGE_HEADER + 2 * i), leaf, &node))
            return bad_page(walk, page);
        used += node.bytes;
        TRY(leaf ? walk_leaf_node(walk, &node, page, check, context)
                 : walk_page(walk, node.value, levels - 1, check, context));
    }
    return used == walk->page_bytes - upper ? OK : bad_page(walk, page);
}

static enum result walk_tree(
    struct walk *walk, const char *what, const struct tree *tree, check_node *check, void *context) {
    struct tree outer = walk->counted;
    walk->counted = (struct tree){0};
    if (tree->depth > MOST_DEPTH || (tree->root == NO_PAGE) != (tree->depth == 0))
        return fail(ERROR_INPUT, "%s: the description of its %s is damaged", walk->name, what);
    if (tree->root != NO_PAGE)
        TRY(walk_page(walk, tree->root, tree->depth, check, context));
    const struct tree *counted = &walk->counted;
    if (counted->branch_pages != tree->branch_pages || counted->leaf_pages != tree->leaf_pages ||
        counted->overflow_pages != tree->overflow_pages || counted->entries != tree->entries)
        return fail(ERROR_INPUT, "%s: its %s have other counts than they say", walk->name, what);
    walk->counted = outer;
    return OK;
}

/* ---- the tables ---- */

static enum result check_plain(
    struct walk *walk, const struct node *node, const uint8_t *data, void *context) {
    (void)data, (void)context;
    return node->flags == 0 ? OK : fail(ERROR_INPUT, "%s: a value is of the wrong kind", walk->name);
}

static enum result check_table(
    struct walk *walk, const struct node *node, const uint8_t *data, void *context) {
    struct tree tree;
    (void)context;
    if (node->flags != SUB_TREE || node->data_bytes != TREE_BYTES)
        return fail(ERROR_INPUT, "%s: a table's description is damaged", walk->name);
    memcpy(&tree, data, sizeof tree);
    if (tree.flags != 0)
        return fail(ERROR_INPUT, "%s: a table is of the wrong kind", walk->name);
    return walk_tree(walk, "tables", &tree, check_plain, NULL);
}

/* Pages that a transaction freed: their count, and their numbers in falling order. Such pages may lie beyond the file's end: used
 * and freed again within one transaction, they were never written. */
static enum result check_free(
    struct walk *walk, const struct node *node, const uint8_t *data, void *context) {
    uint64_t *last = context, bytes = node->value;
    if (node->flags & SUB_TREE || node->key_bytes != 8 || bytes < 8 || bytes % 8)
        return fail(ERROR_INPUT, "%s: the list of free pages is damaged", walk->name);
    uint64_t transaction = u64_at(node->key, 0), count = u64_at(data, 0), above = UINT64_MAX;
    if (transaction <= *last || transaction > walk->transaction || count > bytes / 8 - 1)
        return fail(ERROR_INPUT, "%s: the list of free pages is damaged", walk->name);
    *last = transaction;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t page = u64_at(data, 8 + 8 * (size_t)i);
        if (page >= above)
            return fail(ERROR_INPUT, "%s: the list of free pages is not in order", walk->name);
        above = page;
        TRY(take_page(walk, page, false));
    }
    return OK;
}

enum result index_check_bytes(const char *name, const uint8_t *file, size_t bytes) {
    struct meta meta;
    uint64_t last_transaction = 0;
    TRY(choose_meta(name, file, bytes, bytes, &meta));
    struct walk walk = {.name = name,
        .file = file,
        .page_bytes = meta.trees[0].pad,
        .file_pages = bytes / meta.trees[0].pad,
        .last_page = meta.last_page,
        .transaction = meta.transaction};
    walk.seen = calloc(meta.last_page / 8 + 1, 1);
    if (!walk.seen)
        return fail(ERROR_MEMORY, "%s: no memory to look through it", name);
    enum result status = walk_tree(&walk, "tables", &meta.trees[1], check_table, NULL);
    if (status == OK)
        status = walk_tree(&walk, "free pages", &meta.trees[0], check_free, &last_transaction);
    free(walk.seen);
    return status;
}

/* ---- files ---- */

static enum result open_data(const char *path, char *name, size_t capacity, int *fd, uint64_t *bytes) {
    struct stat found;
    snprintf(name, capacity, "%s/data.mdb", path);
    *bytes = 0;
    *fd = open(name, O_RDONLY | O_CLOEXEC);
    if (*fd < 0)
        return errno == ENOENT ? OK : fail_errno(ERROR_IO, "%s", name);
    if (fstat(*fd, &found) == 0 && S_ISREG(found.st_mode)) {
        *bytes = (uint64_t)found.st_size;
        return OK;
    }
    close(*fd);
    return fail(ERROR_INPUT, "%s: it is no file", name);
}

enum result index_check_start(const char *path) {
    char name[4096];
    uint64_t bytes;
    int fd;
    TRY(open_data(path, name, sizeof name, &fd, &bytes));
    if (fd < 0)
        return OK;
    uint8_t *start = malloc(2 * MOST_PAGE);
    if (!start || bytes == 0) {
        close(fd);
        free(start);
        return bytes == 0 ? OK : fail(ERROR_MEMORY, "%s: no memory to look at it", name);
    }
    enum result status = OK;
    for (int tries = 0; tries < 5; tries++) { /* a process may be writing one of them just now */
        struct meta meta;
        ssize_t got = pread(fd, start, 2 * MOST_PAGE, 0);
        status = got < 0 ? fail_errno(ERROR_IO, "%s", name)
                         : choose_meta(name, start, (uint64_t)got, bytes, &meta);
        if (status == OK)
            break;
        usleep(1000);
    }
    free(start);
    close(fd);
    return status;
}

enum result index_check_pages(const char *path) {
    char name[4096];
    uint64_t bytes;
    int fd;
    TRY(open_data(path, name, sizeof name, &fd, &bytes));
    if (fd < 0)
        return fail(ERROR_INPUT, "%s: it is gone", name);
    if (bytes == 0) {
        close(fd);
        return fail(ERROR_INPUT, "%s: it is empty", name);
    }
    const uint8_t *file = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (file == MAP_FAILED)
        return fail_errno(ERROR_IO, "%s", name);
    enum result status = index_check_bytes(name, file, bytes);
    munmap((void *)(uintptr_t)file, bytes);
    return status;
}
