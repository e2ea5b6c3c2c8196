/* The kinds of rows a saved sequence state consists of, as the model names them and files store them. */
#ifndef NOCTURNE_MODEL_STATE_SECTION_H
#define NOCTURNE_MODEL_STATE_SECTION_H

#include <stdint.h> /* int32_t, int64_t */

struct state_section {
    char name[32];           /* dataset name, such as "latent_02" */
    const char *description; /* attribute of the dataset: the layout of a row in words */
    int32_t row_bytes;
};

struct section_rows {
    const void *data; /* [rows, row_bytes] */
    int64_t rows;
};

#endif
