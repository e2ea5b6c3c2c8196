/* JSON values written as text: in Python's style, as prompts have them, and compactly, as constraints do. */
#ifndef NOCTURNE_RECIPE_PYTHON_JSON_H
#define NOCTURNE_RECIPE_PYTHON_JSON_H

#include "base/buffer.h"
#include "base/json.h"

/* As Python's json.dumps(value, ensure_ascii=False): ", " and ": ", doubles as repr prints them. Integers
 * from -2^63 to 2^64 - 1 stay as spelled, all other numbers are doubles. */
void python_json_append(struct buffer *text, const struct json *value);

/* No blanks; doubles with the same digits, in exponent form outside 1e-5 .. 1e16. */
void compact_json_append(struct buffer *text, const struct json *value);

#endif
