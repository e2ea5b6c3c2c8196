#include "grammar/store.h"

#include "base/buffer.h"

#include <pthread.h> /* pthread_mutex_t */
#include <stdlib.h>  /* calloc, free */
#include <string.h>  /* memcmp, strlen */

/* One grammar; `key` is all that its specification says. */
struct entry {
    struct entry *newer, *older;
    struct grammar *grammar;
    struct buffer key;
    size_t users, bytes;
};

struct grammar_store {
    pthread_mutex_t lock;
    struct entry ring; /* older: the one used last; newer: the one used longest ago */
    size_t count, bytes, limit;
};

enum result grammar_store_create(size_t bytes, struct grammar_store **store) {
    *store = calloc(1, sizeof **store);
    if (!*store || pthread_mutex_init(&(*store)->lock, NULL) != 0) {
        free(*store);
        *store = NULL;
        return fail(ERROR_MEMORY, "no memory for a store of grammars");
    }
    (*store)->limit = bytes;
    (*store)->ring.newer = (*store)->ring.older = &(*store)->ring;
    return OK;
}

static void free_entry(struct entry *entry) {
    if (!entry)
        return;
    grammar_free(entry->grammar);
    buffer_free(&entry->key);
    free(entry);
}

void grammar_store_free(struct grammar_store *store) {
    if (!store)
        return;
    while (store->ring.older != &store->ring) {
        struct entry *entry = store->ring.older;
        store->ring.older = entry->older;
        free_entry(entry);
    }
    pthread_mutex_destroy(&store->lock);
    free(store);
}

static void append_text(struct buffer *key, const char *text, size_t bytes) {
    buffer_printf(key, "%zu:", bytes);
    if (bytes)
        buffer_append(key, text, bytes);
}

static void append_key(struct buffer *key, const struct grammar_specification *specification) {
    buffer_printf(key, "%d %d %d %d %d %u ", (int)specification->kind, specification->strict,
        specification->compact, (int)specification->tool_choice, specification->one_call,
        specification->marker_token);
    const char *name = specification->tool_name ? specification->tool_name : "";
    append_text(key, name, strlen(name));
    append_text(key, specification->text, specification->text ? specification->bytes : 0);
}

/* ---- under the lock ---- */

static void take_out(struct entry *entry) {
    entry->newer->older = entry->older;
    entry->older->newer = entry->newer;
}

static void put_first(struct grammar_store *store, struct entry *entry) {
    entry->newer = &store->ring;
    entry->older = store->ring.older;
    entry->older->newer = entry;
    store->ring.older = entry;
}

/* An equal specification's grammar, with one user more, or NULL. */
static struct grammar *use_known(struct grammar_store *store, const struct buffer *key) {
    for (struct entry *entry = store->ring.older; entry != &store->ring; entry = entry->older)
        if (entry->key.bytes == key->bytes && !memcmp(entry->key.data, key->data, key->bytes)) {
            take_out(entry);
            put_first(store, entry);
            entry->users++;
            return entry->grammar;
        }
    return NULL;
}

static void add_entry(struct grammar_store *store, struct entry *entry) {
    put_first(store, entry);
    store->count++;
    store->bytes += entry->bytes;
}

/* Takes out unused grammars, those used longest ago, until the limit holds; gives them as a chain by `older`. */
static struct entry *take_surplus(struct grammar_store *store) {
    struct entry *surplus = NULL, *entry = store->ring.newer;
    while (store->bytes > store->limit && entry != &store->ring) {
        struct entry *newer = entry->newer;
        if (!entry->users) {
            take_out(entry);
            store->count--;
            store->bytes -= entry->bytes;
            entry->older = surplus;
            surplus = entry;
        }
        entry = newer;
    }
    return surplus;
}

/* ---- without the lock ---- */

static void free_chain(struct entry *entry) {
    while (entry) {
        struct entry *older = entry->older;
        free_entry(entry);
        entry = older;
    }
}

static enum result compile(const struct grammar_specification *specification, struct entry **made) {
    *made = calloc(1, sizeof **made);
    if (!*made)
        return fail(ERROR_MEMORY, "no memory for a grammar");
    enum result status = grammar_compile(specification, &(*made)->grammar);
    if (status != OK) {
        free(*made);
        *made = NULL;
        return status;
    }
    append_key(&(*made)->key, specification);
    (*made)->users = 1;
    (*made)->bytes = grammar_bytes((*made)->grammar) + (*made)->key.bytes;
    return OK;
}

enum result grammar_store_get(struct grammar_store *store, const struct grammar_specification *specification,
    struct grammar **grammar) {
    struct buffer key = {0};
    struct entry *made = NULL;
    enum result status = OK;
    append_key(&key, specification);
    pthread_mutex_lock(&store->lock);
    *grammar = use_known(store, &key);
    pthread_mutex_unlock(&store->lock);
    if (!*grammar)
        status = compile(specification, &made);
    if (made) { /* another thread may have been faster */
        pthread_mutex_lock(&store->lock);
        *grammar = use_known(store, &key);
        if (!*grammar) {
            *grammar = made->grammar;
            add_entry(store, made);
            made = NULL;
        }
        struct entry *surplus = take_surplus(store);
        pthread_mutex_unlock(&store->lock);
        free_chain(surplus);
        free_entry(made);
    }
    buffer_free(&key);
    return status;
}

void grammar_store_release(struct grammar_store *store, struct grammar *grammar) {
    size_t bytes = grammar_bytes(grammar);
    pthread_mutex_lock(&store->lock);
    struct entry *entry = store->ring.older;
    while (entry != &store->ring && entry->grammar != grammar)
        entry = entry->older;
    if (entry != &store->ring) {
        entry->users--;
        store->bytes -= entry->bytes;
        entry->bytes = bytes + entry->key.bytes;
        store->bytes += entry->bytes;
    }
    struct entry *surplus = take_surplus(store);
    pthread_mutex_unlock(&store->lock);
    free_chain(surplus);
}

size_t grammar_store_count(struct grammar_store *store) {
    pthread_mutex_lock(&store->lock);
    size_t count = store->count;
    pthread_mutex_unlock(&store->lock);
    return count;
}

size_t grammar_store_bytes(struct grammar_store *store) {
    pthread_mutex_lock(&store->lock);
    size_t bytes = store->bytes;
    pthread_mutex_unlock(&store->lock);
    return bytes;
}
