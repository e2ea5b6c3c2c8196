/* tokenizer.json: any bytes give a message or a tokenizer that encodes and decodes without loss. */
#include "base/error.h"
#include "recipe/tokenizer.h"

#include <stdlib.h> /* abort, free */
#include <string.h> /* memcmp, strlen */

static const char TEXT[] =
    "Hello, the then \xE4\xBD\xA0\xE5\xA5\xBD 1234 <a> <b>\n\n  aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

static void check_round_trip(const struct tokenizer *tokenizer, bool added) {
    struct token_list ids = {0};
    struct buffer text = {0};
    enum result status = added ? tokenizer_encode(tokenizer, TEXT, strlen(TEXT), &ids)
                               : tokenizer_encode_plain(tokenizer, TEXT, strlen(TEXT), &ids);
    if (status != OK)
        abort();
    tokenizer_decode(tokenizer, ids.ids, ids.count, false, &text);
    if (text.bytes != strlen(TEXT) || memcmp(text.data, TEXT, text.bytes) != 0)
        abort();
    free(ids.ids);
    buffer_free(&text);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t bytes) {
    struct tokenizer *tokenizer = NULL;
    if (tokenizer_load_memory("tokenizer.json", (const char *)data, bytes, &tokenizer) != OK)
        return 0;
    check_round_trip(tokenizer, false);
    check_round_trip(tokenizer, true);
    tokenizer_free(tokenizer);
    return 0;
}
