/* Writing of the report's page: escaped text, and plots as inline SVG that take their colours from the page's style. */
#ifndef NOCTURNE_CAMPAIGN_REPORT_PAGE_H
#define NOCTURNE_CAMPAIGN_REPORT_PAGE_H

#include "base/buffer.h"

#include <stddef.h> /* size_t */
#include <stdint.h> /* int32_t, int64_t */

/* Appends text that came from outside: markup escaped; control characters and bytes that are no UTF-8 as U+FFFD. NULL: nothing. */
void page_text(struct buffer *page, const char *text, size_t bytes);
void page_string(struct buffer *page, const char *text);
/* 1234567 as "1,234,567". */
void page_count(struct buffer *page, int64_t value);
/* Seconds as "3 h 05 min", "2 min 10 s" or "9.1 s". */
void page_duration(struct buffer *page, double seconds);
/* Unix seconds as "2026-01-31 06:30:00 UTC". */
void page_time(struct buffer *page, double unix_seconds);

/* The head with the style, up to the title; and the end. */
void page_begin(struct buffer *page, const char *title);
void page_end(struct buffer *page);

/* A line of a plot: values [count] over x [count]; NaN interrupts it. */
struct plot_line {
    const char *name;
    const double *values;
};

/* A border between launches, at x. */
struct plot_mark {
    double x;
    const char *name;
};

struct plot {
    const char *title, *description, *x_label, *y_label;
    double least_most; /* the y axis begins at `floor` and reaches at least this */
    double floor;
    const double *x;
    size_t count;
    const struct plot_line *lines;
    int line_count; /* at most 4 */
    const struct plot_mark *marks;
    size_t mark_count;
};
void plot_lines(struct buffer *page, const struct plot *plot);

/* Stacked bars: shares [bars, parts] of each bar, in percent. */
void plot_bars(struct buffer *page, const char *title, const char *description, const char *x_label,
    const char *const *parts, int part_count, const double *shares, size_t bars);

/* A map of cells [rows, columns], each shown relative to the mean of its row. */
void plot_heat_map(struct buffer *page, const char *title, const char *description, const char *x_label,
    const char *y_label, const int64_t *cells, size_t rows, size_t columns);

#endif
