/* The JSON reader: any bytes give a value or a message; what it accepts, the writer's form of it is read
 * to the same. */
#include "base/json.h"
#include "base/buffer.h"

#include <stdlib.h> /* abort */
#include <string.h> /* memcmp */

static void write_value(const struct json *value, struct buffer *text);

static void write_children(const struct json *value, struct buffer *text) {
    size_t count = 0;
    for (const struct json *child = value->first; child; child = child->next, count++) {
        if (count)
            buffer_append_text(text, ",");
        if (value->kind == JSON_OBJECT) {
            buffer_append_json_string(text, child->key, child->key_bytes);
            buffer_append_text(text, ":");
        }
        write_value(child, text);
    }
    if (count != value->count)
        abort();
}

static void write_value(const struct json *value, struct buffer *text) {
    static const char *const words[] = {[JSON_NULL] = "null", [JSON_FALSE] = "false", [JSON_TRUE] = "true"};
    switch (value->kind) {
    case JSON_NUMBER:
        buffer_append(text, value->text, value->bytes);
        break;
    case JSON_STRING:
        buffer_append_json_string(text, value->text, value->bytes);
        break;
    case JSON_ARRAY:
    case JSON_OBJECT:
        buffer_append_text(text, value->kind == JSON_ARRAY ? "[" : "{");
        write_children(value, text);
        buffer_append_text(text, value->kind == JSON_ARRAY ? "]" : "}");
        break;
    default:
        buffer_append_text(text, words[value->kind]);
    }
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t bytes) {
    static struct json_document *document; /* reused, as by readers of lines */
    const struct json *value = NULL;
    if (!document && json_document_create(&document) != OK)
        abort();
    if (json_parse(document, (const char *)data, bytes, &value) != OK)
        return 0;
    struct buffer first = {0}, second = {0};
    write_value(value, &first);
    if (json_parse(document, first.data, first.bytes, &value) != OK)
        abort();
    write_value(value, &second);
    if (first.bytes != second.bytes || memcmp(first.data, second.data, first.bytes) != 0)
        abort();
    buffer_free(&first);
    buffer_free(&second);
    return 0;
}
