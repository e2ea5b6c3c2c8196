/* Folders, payloads and keys for the tests of the prefix cache. */
#ifndef NOCTURNE_TESTS_CACHE_FOLDER_H
#define NOCTURNE_TESTS_CACHE_FOLDER_H

#include "cache/keys.h"
#include "cache/segment.h"

#include <dirent.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <xxhash.h>

static inline int remove_one(const char *path, const struct stat *found, int kind, struct FTW *place) {
    (void)found, (void)kind, (void)place;
    return remove(path);
}

static inline void remove_folder(const char *path) {
    nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* A new empty folder, below /dev/shm where there is one: tests write and sync a lot. */
static inline char *make_folder(char path[64]) {
    snprintf(path, 64, "%s/nocturne-cache-XXXXXX", access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm");
    if (!mkdtemp(path))
        abort();
    return path;
}

/* Key and payload number n: the payload can be told from all others. */
static inline struct cache_key numbered_key(uint64_t n) {
    XXH128_hash_t hash = XXH3_128bits(&n, sizeof n);
    struct cache_key key;
    memcpy(key.bytes, &hash, sizeof key);
    return key;
}

static inline void fill_payload(uint64_t n, uint8_t *payload, int64_t bytes) {
    for (int64_t i = 0; i < bytes; i++)
        payload[i] = (uint8_t)((n * 0x9E3779B97F4A7C15u >> 32) + (uint64_t)i * 31 + n);
    memcpy(payload, &n, bytes < 8 ? (size_t)bytes : 8);
}

static inline bool is_payload(uint64_t n, const uint8_t *payload, int64_t bytes) {
    uint8_t *wanted = malloc((size_t)bytes);
    if (!wanted)
        abort();
    fill_payload(n, wanted, bytes);
    bool same = !memcmp(wanted, payload, (size_t)bytes);
    free(wanted);
    return same;
}

/* Paths of the files below FOLDER/NAME, sorted; the number found. */
static inline int by_text(const void *a, const void *b) {
    return strcmp(a, b);
}

static inline int list_files(const char *folder, const char *name, char paths[][512], int most) {
    char below[256];
    int count = 0;
    snprintf(below, sizeof below, "%s/%s", folder, name);
    DIR *opened = opendir(below);
    for (struct dirent *item; opened && count < most && (item = readdir(opened));)
        if (item->d_name[0] != '.')
            snprintf(paths[count++], 512, "%s/%s", below, item->d_name);
    if (opened)
        closedir(opened);
    qsort(paths, (size_t)count, sizeof *paths, by_text);
    return count;
}

static inline int64_t file_bytes(const char *path) {
    struct stat found;
    return stat(path, &found) ? -1 : found.st_size;
}

/* Flips a bit of a file. */
static inline void flip_bit(const char *path, int64_t offset, int bit) {
    unsigned char byte;
    FILE *file = fopen(path, "r+b");
    if (!file || fseek(file, (long)offset, SEEK_SET) || fread(&byte, 1, 1, file) != 1)
        abort();
    byte ^= (unsigned char)(1 << bit);
    if (fseek(file, (long)offset, SEEK_SET) || fwrite(&byte, 1, 1, file) != 1 || fclose(file))
        abort();
}

#endif
