/* The table of this instruction set's operations. */
#include "kernels/cpu/operations/internal.h"

void FOR_SET(fill_operations)(struct kernels *kernels) {
    FOR_SET(fill_products)(kernels);
    FOR_SET(fill_experts)(kernels);
    FOR_SET(fill_rows)(kernels);
    FOR_SET(fill_streams)(kernels);
    FOR_SET(fill_attention)(kernels);
    FOR_SET(fill_choose)(kernels);
    FOR_SET(fill_route)(kernels);
    FOR_SET(fill_vision)(kernels);
}
