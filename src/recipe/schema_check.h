/* Whether a JSON value is a JSON Schema (draft 2020-12): every known keyword's value has the shape that the
 * draft asks for. Unknown keywords are anything.
 * References must lead somewhere within the schema. Schemas that say so may be of an older draft. */
#ifndef NOCTURNE_RECIPE_SCHEMA_CHECK_H
#define NOCTURNE_RECIPE_SCHEMA_CHECK_H

#include "base/json.h"
#include "recipe/body.h"

/* Refuses the first keyword that has a wrong value, by its path under `place`. */
bool check_schema(struct body_reader *reader, const struct place *place, const struct json *schema);

#endif
