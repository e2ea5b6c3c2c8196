#include "base/options.h"

#include <errno.h>  /* errno */
#include <stdio.h>  /* printf */
#include <stdlib.h> /* strtoll, realloc */
#include <string.h> /* strcmp */

MUST_CHECK enum result parse_bytes(const char *text, int64_t *bytes) {
    char *end;
    errno = 0;
    double value = strtod(text, &end);
    static const char suffixes[] = "KMGT";
    double unit = 1;
    if (*end) {
        const char *found = strchr(suffixes, *end >= 'a' ? *end - 'a' + 'A' : *end);
        if (!found)
            return fail(ERROR_USAGE, "'%s' is not a size: give bytes, or a number with K, M, G or T", text);
        for (const char *c = suffixes; c <= found; c++)
            unit *= 1024;
        end++;
        if ((*end == 'i' || *end == 'B') && end[1] == (*end == 'i' ? 'B' : 0))
            end += *end == 'i' ? 2 : 1;
    }
    if (end == text || *end || errno || !(value >= 0) || value * unit > 9e18)
        return fail(ERROR_USAGE, "'%s' is not a size: give bytes, or a number with K, M, G or T", text);
    *bytes = (int64_t)(value * unit);
    return OK;
}

enum { LEFT_COLUMN = 26 }; /* of the table of options */

static void print_usage(const struct command_usage *usage, const struct option *options) {
    printf("usage: nocturne %s", usage->name);
    for (const struct option *o = options; o->name; o++)
        if (o->required)
            printf(" --%s %s", o->name, o->placeholder);
    printf(" [options]%s%s\n\n%s\n\noptions:\n", usage->arguments ? " " : "",
        usage->arguments ? usage->arguments : "", usage->summary);
    for (const struct option *o = options; o->name; o++) {
        char left[96];
        if (o->kind == OPTION_CHOICE) {
            int used = snprintf(left, sizeof left, "--%s ", o->name);
            for (int i = 0; o->choices[i]; i++)
                used +=
                    snprintf(left + used, sizeof left - (size_t)used, "%s%s", i ? "|" : "", o->choices[i]);
        } else {
            snprintf(left, sizeof left, "--%s%s%s%s", o->name, o->placeholder ? " " : "",
                o->placeholder ? o->placeholder : "", o->kind == OPTION_LIST ? " ..." : "");
        }
        if (strlen(left) > LEFT_COLUMN)
            printf("  %s\n  %-*s %s\n", left, LEFT_COLUMN, "", o->help);
        else
            printf("  %-*s %s\n", LEFT_COLUMN, left, o->help);
    }
    printf("  %-*s %s\n", LEFT_COLUMN, "--help", "show this text");
    if (usage->notes)
        printf("\n%s\n", usage->notes);
}

static enum result append(struct option_list *list, const char *item) {
    const char **grown = realloc(list->items, sizeof *grown * (size_t)(list->count + 1));
    if (!grown)
        return fail(ERROR_MEMORY, "out of memory while reading the command line");
    list->items = grown;
    list->items[list->count++] = item;
    return OK;
}

static enum result set_value(const struct command_usage *usage, const struct option *o, const char *text) {
    switch (o->kind) {
    case OPTION_FLAG:
        return fail(ERROR_USAGE, "%s: --%s takes no value", usage->name, o->name);
    case OPTION_TEXT:
        *(const char **)o->value = text;
        return OK;
    case OPTION_LIST:
        return append(o->value, text);
    case OPTION_COUNT:
    case OPTION_BYTES: {
        int64_t value = 0;
        if (o->kind == OPTION_BYTES) {
            enum result parsed = parse_bytes(text, &value);
            if (parsed != OK)
                return fail_context(parsed, "%s: --%s", usage->name, o->name);
        } else {
            char *end;
            errno = 0;
            value = strtoll(text, &end, 10);
            if (end == text || *end || errno)
                return fail(ERROR_USAGE, "%s: --%s: '%s' is not a whole number", usage->name, o->name, text);
        }
        int64_t most = o->most || o->least ? o->most : INT64_MAX;
        if (value < o->least || value > most)
            return fail(ERROR_USAGE, "%s: --%s: %s is outside %lld..%lld", usage->name, o->name, text,
                (long long)o->least, (long long)most);
        *(int64_t *)o->value = value;
        return OK;
    }
    case OPTION_CHOICE:
        for (int i = 0; o->choices[i]; i++)
            if (!strcmp(o->choices[i], text)) {
                *(int *)o->value = i;
                return OK;
            }
        return fail(ERROR_USAGE, "%s: --%s: '%s' is not one of the choices (see 'nocturne %s --help')",
            usage->name, o->name, text, usage->name);
    }
    return fail(ERROR_INTERNAL, "%s: --%s has an unknown kind", usage->name, o->name);
}

static const struct option *find(const struct option *options, const char *name, size_t length) {
    for (const struct option *o = options; o->name; o++)
        if (strlen(o->name) == length && !memcmp(o->name, name, length))
            return o;
    return NULL;
}

MUST_CHECK enum result options_parse(const struct command_usage *usage, const struct option *options,
    int argc, char **argv, struct option_list *positional, bool *help_shown) {
    *help_shown = false;
    enum { MOST_OPTIONS = 64 };
    bool given[MOST_OPTIONS] = {false};
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h")) {
            print_usage(usage, options);
            *help_shown = true;
            return OK;
        }
    bool only_positional = false;
    const struct option *open_list = NULL;
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i];
        if (!only_positional && !strcmp(word, "--")) {
            only_positional = true;
            open_list = NULL;
            continue;
        }
        if (only_positional || word[0] != '-' || word[1] == '\0') {
            if (open_list) {
                TRY(append(open_list->value, word));
                continue;
            }
            if (!positional)
                return fail(ERROR_USAGE, "%s: unexpected argument '%s' (see 'nocturne %s --help')",
                    usage->name, word, usage->name);
            TRY(append(positional, word));
            continue;
        }
        const char *name = word + (word[1] == '-' ? 2 : 1);
        const char *equals = strchr(name, '=');
        const struct option *o = find(options, name, equals ? (size_t)(equals - name) : strlen(name));
        if (!o || word[1] != '-')
            return fail(ERROR_USAGE, "%s: unknown option '%s' (see 'nocturne %s --help')", usage->name, word,
                usage->name);
        given[o - options] = true;
        open_list = NULL;
        if (o->kind == OPTION_FLAG && !equals) {
            *(bool *)o->value = true;
            continue;
        }
        const char *value = equals ? equals + 1 : i + 1 < argc ? argv[++i] : "";
        if (!*value || (!equals && value[0] == '-' && value[1] == '-'))
            return fail(ERROR_USAGE, "%s: --%s needs a value (%s)", usage->name, o->name, o->placeholder);
        TRY(set_value(usage, o, value));
        if (o->kind == OPTION_LIST)
            open_list = o;
    }
    for (const struct option *o = options; o->name; o++)
        if (o->required && !given[o - options])
            return fail(ERROR_USAGE, "%s: --%s %s is missing (see 'nocturne %s --help')", usage->name,
                o->name, o->placeholder ? o->placeholder : "", usage->name);
    return OK;
}
