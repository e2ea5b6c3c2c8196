#include "base/beacon.h"

#include <stdio.h>  /* snprintf */
#include <string.h> /* memcpy, strnlen */
#include <time.h>   /* clock_gettime */

static struct beacon process_beacon = {.layer = -1};
static struct beacon *beacon = &process_beacon;

static void changed(void) {
    struct timespec now = {0};
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    atomic_store_explicit(&beacon->seconds, (int64_t)now.tv_sec, memory_order_relaxed);
    atomic_fetch_add_explicit(&beacon->progress, 1, memory_order_release);
}

/* The last byte of `to` stays 0 whatever a reader sees of the rest. */
static void set_text(char *to, size_t capacity, const char *from) {
    size_t length = strnlen(from, capacity - 1);
    memcpy(to, from, length);
    to[length] = '\0';
}

void beacon_move(struct beacon *place) {
    if (!place)
        place = &process_beacon;
    if (place == beacon)
        return;
    memcpy(place, beacon, sizeof *place);
    beacon = place;
}

const struct beacon *beacon_own(void) {
    return beacon;
}

void beacon_phase(const char *phase) {
    set_text(beacon->phase, sizeof beacon->phase, phase);
    changed();
}

void beacon_step(int64_t step) {
    atomic_store_explicit(&beacon->step, step, memory_order_relaxed);
    atomic_store_explicit(&beacon->layer, -1, memory_order_relaxed);
    changed();
}

void beacon_layer(int32_t layer) {
    atomic_store_explicit(&beacon->layer, layer, memory_order_relaxed);
    changed();
}

void beacon_tick(void) {
    changed();
}

static void set_place(_Atomic int32_t *is_there, char *to, size_t capacity, const char *text) {
    if (text)
        set_text(to, capacity, text);
    atomic_store_explicit(is_there, text != NULL, memory_order_relaxed);
    changed();
}

void beacon_wait(const char *what) {
    set_place(&beacon->waits, beacon->wait, sizeof beacon->wait, what);
}

void beacon_file(const char *path) {
    set_place(&beacon->in_file, beacon->file, sizeof beacon->file, path);
}

void beacon_leave(enum beacon_left how) {
    atomic_store_explicit(&beacon->left, (int32_t)how, memory_order_relaxed);
}

void beacon_describe(const struct beacon *of, char *text, size_t capacity) {
    char step[32] = "", layer[32] = "", place[BEACON_FILE_BYTES + 32] = "";
    if (of->step > 0)
        snprintf(step, sizeof step, ", step %lld", (long long)of->step);
    if (of->step > 0 && of->layer >= 0)
        snprintf(layer, sizeof layer, ", layer %d", of->layer);
    if (of->in_file)
        snprintf(place, sizeof place, ", at the file %.*s", BEACON_FILE_BYTES, of->file);
    else if (of->waits)
        snprintf(place, sizeof place, ", waiting in '%.*s'", BEACON_WAIT_BYTES, of->wait);
    snprintf(text, capacity, "%.*s%s%s%s", BEACON_PHASE_BYTES, of->phase[0] ? of->phase : "start", step,
        layer, place);
}
