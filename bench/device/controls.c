/* The controls of the emulation where tests run on a device, which has none of them: settings are kept and change nothing. */
#include "simt.h"

static struct simt_options kept;

struct simt_options simt_get_options(void) {
    return kept;
}

void simt_set_options(const struct simt_options *options) {
    kept = *options;
}

void simt_on_error(simt_error_handler handler, void *context) {
    (void)handler;
    (void)context;
}

struct simt_counts simt_get_counts(void) {
    return (struct simt_counts){0, 0};
}
