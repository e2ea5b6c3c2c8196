/* The formats of strings that have a grammar. */
#ifndef NOCTURNE_GRAMMAR_FORMATS_H
#define NOCTURNE_GRAMMAR_FORMATS_H

/* The pattern (regex.h) that the whole string must match, or NULL for a name that is not known. */
const char *format_pattern(const char *name);

/* The known names, for messages. */
const char *format_names(void);

#endif
