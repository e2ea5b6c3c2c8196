/* The emulation's forms of what kernels/cuda/mma.h wraps: products of matrices, loads of matrices from shared memory, asynchronous
 * copies. */
#include "simt_internal.h"

#include <cstdlib>

#define ALL 0xffffffffu
static const char HEADER[] = "mma.h";

/* ---- products: D [16 x 8] += A [16 x 16] * B [16 x 8], in double, rounded once ---- */

typedef double four __attribute__((vector_size(32)));

static double bf16(uint32_t word, unsigned half) {
    uint32_t bits = half != 0 ? word & 0xffff0000u : word << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void gather(const simt_warp_state *warp, double a[16][16], double b[16][8]) {
    for (unsigned lane = 0; lane < SIMT_WARP; lane++) {
        const uint32_t *a_words = (const uint32_t *)warp->lanes[lane].operands[1];
        const uint32_t *b_words = (const uint32_t *)warp->lanes[lane].operands[2];
        unsigned group = lane / 4, pair = lane % 4 * 2;
        for (unsigned half = 0; half < 2; half++) {
            for (unsigned n = 0; n < 4; n++)
                a[group + n % 2 * 8][pair + half + n / 2 * 8] = bf16(a_words[n], half);
            for (unsigned n = 0; n < 2; n++)
                b[pair + half + n * 8][group] = bf16(b_words[n], half);
        }
    }
}

/* D = A * B: a row of D in two vectors, which the compiler cuts in half where there is no AVX2. */
#ifdef __x86_64__
__attribute__((target_clones("avx2", "default")))
#endif
static void
multiply_rows(const double a[16][16], const four b[16][2], four d[16][2]) {
    for (unsigned row = 0; row < 16; row++) {
        four low = {}, high = {};
        for (unsigned k = 0; k < 16; k++) {
            low += a[row][k] * b[k][0];
            high += a[row][k] * b[k][1];
        }
        d[row][0] = low;
        d[row][1] = high;
    }
}

static void multiply(const simt_warp_state *warp) {
    double a[16][16];
    alignas(32) double b[16][8], d[16][8];
    gather(warp, a, b);
    multiply_rows(a, (const four(*)[2])b, (four(*)[2])d);
    for (unsigned lane = 0; lane < SIMT_WARP; lane++) {
        float *sums = (float *)warp->lanes[lane].operands[0];
        unsigned group = lane / 4, pair = lane % 4 * 2;
        for (unsigned n = 0; n < 4; n++)
            sums[n] = (float)((double)sums[n] + d[group + n / 2 * 8][pair + n % 2]);
    }
}

static uint64_t take_part(
    enum simt_warp_kind kind, const void *first, const void *second, const void *third) {
    simt_worker *w = simt_current;
    if (w == NULL)
        abort();
    const void **operands = w->fiber->operands;
    operands[0] = first;
    operands[1] = second;
    operands[2] = third;
    return simt_warp(simt_operation(kind, 32, 0), ALL, 0, 0, HEADER);
}

extern "C" void simt_mma_bf16(float d[4], const uint32_t a[4], const uint32_t b[2]) {
    take_part(SIMT_MULTIPLY_MATRICES, d, a, b);
}

/* ---- loads of four 8 x 8 matrices of 16-bit values ---- */

static const uint16_t *checked_row(simt_worker *w, simt_fiber *fiber) {
    uintptr_t address = (uintptr_t)fiber->operands[1];
    if (address % 16 != 0)
        simt_fail(fiber, "misaligned load_matrices at %p, %zu bytes past a multiple of 16", (void *)address,
            (size_t)(address % 16));
    if (address - w->shared >= w->shared_bytes)
        simt_fail(fiber, "load_matrices at %p, which is not in the launch's %zu bytes of shared memory",
            (void *)address, w->shared_bytes);
    simt_check_for(w, fiber, address, 16, SIMT_READ, NULL);
    return (const uint16_t *)address;
}

static void load(simt_worker *w, simt_warp_state *warp, bool is_transposed) {
    uint16_t rows[SIMT_WARP][8];
    for (unsigned lane = 0; lane < SIMT_WARP; lane++)
        memcpy(rows[lane], checked_row(w, &warp->lanes[lane]), sizeof rows[lane]);
    for (unsigned lane = 0; lane < SIMT_WARP; lane++) {
        uint32_t *words = (uint32_t *)warp->lanes[lane].operands[0];
        unsigned group = lane / 4, pair = lane % 4 * 2;
        for (unsigned matrix = 0; matrix < 4; matrix++) {
            const uint16_t(*values)[8] = &rows[8 * matrix];
            uint32_t low = is_transposed ? values[pair][group] : values[group][pair];
            uint32_t high = is_transposed ? values[pair + 1][group] : values[group][pair + 1];
            words[matrix] = high << 16 | low;
        }
    }
}

extern "C" void simt_load_matrices(uint32_t r[4], const void *row) {
    take_part(SIMT_LOAD_MATRICES, r, row, NULL);
}

extern "C" void simt_load_matrices_transposed(uint32_t r[4], const void *row) {
    take_part(SIMT_LOAD_MATRICES_TRANSPOSED, r, row, NULL);
}

void simt_complete_matrices(simt_worker *w, simt_warp_state *warp, uint64_t operation) {
    enum simt_warp_kind kind = (enum simt_warp_kind)(operation & 255);
    if (kind == SIMT_MULTIPLY_MATRICES)
        multiply(warp);
    else
        load(w, warp, kind == SIMT_LOAD_MATRICES_TRANSPOSED);
}

/* ---- asynchronous copies: read and brought when they are waited for, as late as a device may ---- */

static simt_pending_copy *new_copy(simt_fiber *fiber) {
    if (fiber->copy_count == fiber->copy_capacity) {
        fiber->copy_capacity = fiber->copy_capacity == 0 ? 16 : 2 * fiber->copy_capacity;
        fiber->copies =
            (simt_pending_copy *)realloc(fiber->copies, fiber->copy_capacity * sizeof *fiber->copies);
        if (fiber->copies == NULL)
            abort();
    }
    return &fiber->copies[fiber->copy_count++];
}

extern "C" void simt_copy_async(void *shared, const void *global, int bytes) {
    simt_worker *w = simt_current;
    if (w == NULL)
        abort();
    uintptr_t to = (uintptr_t)shared, from = (uintptr_t)global;
    const void *code = __builtin_return_address(0);
    if (bytes < 0 || bytes > 16)
        simt_fail_at(NULL, code, "copy_async of %d bytes: 0 to 16 are allowed", bytes);
    if (to % 16 != 0 || from % 16 != 0)
        simt_fail_at(
            NULL, code, "misaligned copy_async to %p from %p: both must be multiples of 16", shared, global);
    if (to - w->shared >= w->shared_bytes)
        simt_fail_at(NULL, code, "copy_async to %p, which is not in the launch's %zu bytes of shared memory",
            shared, w->shared_bytes);
    if (bytes > 0 && simt_buffer_find(from, false) == NULL) {
        char place[160];
        simt_describe(from, place, sizeof place);
        simt_fail_at(
            NULL, code, "copy_async of %d bytes from an address that is in no buffer: %s", bytes, place);
    }
    simt_check(w, from, (size_t)bytes, SIMT_READ, code);
    simt_check(w, to, 16, SIMT_COPY_TARGET, code);
    w->has_copies = true;
    *new_copy(w->fiber) = {(uint8_t *)shared, global, (uint32_t)bytes, w->fiber->groups};
}

extern "C" void simt_copies_commit(void) {
    simt_current->fiber->groups++;
}

extern "C" void simt_copies_wait(int groups) {
    simt_worker *w = simt_current;
    simt_fiber *fiber = w->fiber;
    uint32_t done = 0;
    for (; done < fiber->copy_count; done++) {
        const simt_pending_copy *copy = &fiber->copies[done];
        if (copy->group + (uint32_t)groups >= fiber->groups)
            break;
        memcpy(copy->to, copy->from, copy->bytes);
        memset(copy->to + copy->bytes, 0, 16 - copy->bytes);
        simt_copy_arrived(w, (uintptr_t)copy->to, 16);
    }
    if (done == 0)
        return;
    fiber->copy_count -= done;
    memmove(fiber->copies, fiber->copies + done, fiber->copy_count * sizeof *fiber->copies);
}
