/* The published rebuilding of a strict JSON Schema: what it knows survives, in its own order of keys, and
 * objects take exactly their properties. */
#ifndef NOCTURNE_RECIPE_STRICT_SCHEMA_H
#define NOCTURNE_RECIPE_STRICT_SCHEMA_H

#include "base/json.h"
#include "recipe/body.h"

/* `for_tool`: the parameters of a function, which may take none; NULL or null parameters are such. The
 * result lives in the conversation's arena and points into `schema`. */
bool rebuild_strict_schema(struct body_reader *reader, const struct place *place, const struct json *schema,
    bool for_tool, const struct json **rebuilt);

#endif
