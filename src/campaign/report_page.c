#include "campaign/report_page.h"

#include "base/utf8.h"

#include <inttypes.h> /* PRId64 */
#include <math.h>     /* floor, log10, pow, isfinite */
#include <stdbool.h>  /* bool */
#include <stdio.h>    /* snprintf */
#include <string.h>   /* strlen */
#include <time.h>     /* gmtime_r, strftime */

/* Of all plots, in the units of their viewBox. */
enum { WIDTH = 760, HEIGHT = 280, LEFT = 72, RIGHT = 16, TOP = 44, BOTTOM = 48 };
enum { PLOT_WIDTH = WIDTH - LEFT - RIGHT, PLOT_HEIGHT = HEIGHT - TOP - BOTTOM };

/* ---- text ---- */

static void append_character(struct buffer *page, const char *text, unsigned length, uint32_t character) {
    static const struct {
        char character;
        const char *entity;
    } entities[] = {{'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&quot;"}, {'\'', "&#39;"}};
    for (size_t i = 0; i < sizeof entities / sizeof *entities; i++)
        if (character == (uint32_t)entities[i].character) {
            buffer_append_text(page, entities[i].entity);
            return;
        }
    bool is_control =
        character < 0x20 || (character >= 0x7F && character < 0xA0) || (character & 0xFFFE) == 0xFFFE;
    /* Overrides of the direction of writing would let an id disguise what stands around it. */
    bool turns = (character >= 0x202A && character <= 0x202E) || (character >= 0x2066 && character <= 0x2069);
    if (is_control || turns)
        buffer_append_text(page, UTF8_REPLACEMENT);
    else
        buffer_append(page, text, length);
}

void page_text(struct buffer *page, const char *text, size_t bytes) {
    for (size_t at = 0; text && at < bytes;) {
        uint32_t character;
        unsigned length = utf8_decode(text + at, bytes - at, &character);
        if (length)
            append_character(page, text + at, length, character);
        else
            buffer_append_text(page, UTF8_REPLACEMENT);
        at += length ? length : character;
    }
}

void page_string(struct buffer *page, const char *text) {
    if (text)
        page_text(page, text, strlen(text));
}

void page_count(struct buffer *page, int64_t value) {
    char digits[32];
    int length = snprintf(digits, sizeof digits, "%" PRId64, value < 0 ? -value : value);
    if (value < 0)
        buffer_append_text(page, "-");
    for (int i = 0; i < length; i++) {
        if (i && (length - i) % 3 == 0)
            buffer_append_text(page, ",");
        buffer_append(page, digits + i, 1);
    }
}

void page_duration(struct buffer *page, double seconds) {
    long long whole = llround(seconds);
    if (whole >= 3600)
        buffer_printf(page, "%lld h %02lld min", whole / 3600, whole % 3600 / 60);
    else if (whole >= 60)
        buffer_printf(page, "%lld min %02lld s", whole / 60, whole % 60);
    else
        buffer_printf(page, "%.1f s", seconds);
}

void page_time(struct buffer *page, double unix_seconds) {
    time_t time = (time_t)unix_seconds;
    struct tm utc;
    char text[64] = "?";
    if (gmtime_r(&time, &utc))
        strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S UTC", &utc);
    buffer_append_text(page, text);
}

/* ---- the page ---- */

static const char style[] =
    ":root{color-scheme:light dark;--paper:#fff;--ink:#1c2430;--soft:#5b6675;--line:#d5dae1;--c0:#1f6feb;"
    "--c1:#d1590b;--c2:#1a7f4b;--c3:#8250c8;--h0:#eef3fa;--h1:#d3e2f5;--h2:#b0ccee;--h3:#86b0e2;--h4:#5b92d3;"
    "--h5:#3873bd;--h6:#d9822b;--h7:#a3360f}"
    "@media (prefers-color-scheme:dark){:root{--paper:#14181f;--ink:#e4e8ee;--soft:#9aa5b4;--line:#343c48;"
    "--c0:#6aa9ff;--c1:#ff9d57;--c2:#57c98a;--c3:#c3a0ff;--h0:#1b222d;--h1:#1f3048;--h2:#234266;--h3:#2a5788;"
    "--h4:#3670ab;--h5:#5590cf;--h6:#e0953f;--h7:#ff6b3d}}"
    "@media "
    "print{:root{--paper:#fff;--ink:#000;--soft:#444;--line:#bbb;--c0:#1f6feb;--c1:#d1590b;--c2:#1a7f4b;"
    "--c3:#8250c8;--h0:#eef3fa;--h1:#d3e2f5;--h2:#b0ccee;--h3:#86b0e2;--h4:#5b92d3;--h5:#3873bd;--h6:#d9822b;"
    "--h7:#a3360f}figure,tr{break-inside:avoid}h2{break-after:avoid}*{print-color-adjust:exact;"
    "-webkit-print-color-adjust:exact}}"
    "body{background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif;max-width:60rem;"
    "margin:0 auto;padding:1rem}"
    "h1{font-size:1.6rem;overflow-wrap:anywhere}h2{font-size:1.2rem;margin:2rem 0 .5rem;border-bottom:1px "
    "solid "
    "var(--line)}.scroll,figure{overflow-x:auto}figure{margin:1rem 0}figure svg{width:100%;min-width:34rem;"
    "height:auto;display:block}"
    "@media print{figure svg{min-width:0}}"
    "table{border-collapse:collapse;width:100%;font-size:.9rem}th,td{text-align:left;vertical-align:top;"
    "padding:.25rem .75rem .25rem 0;border-bottom:1px solid var(--line);overflow-wrap:break-word}"
    "th{color:var(--soft);font-weight:600;white-space:nowrap}.n{text-align:right;white-space:nowrap;padding-"
    "right:1.25rem}table+.scroll{margin-top:1rem}td:first-child{overflow-wrap:normal}"
    ".scroll table{min-width:34rem}.note{color:var(--soft)}"
    "svg text{fill:var(--ink);font:12px system-ui,sans-serif}svg .soft{fill:var(--soft)}"
    "svg .title{font-weight:600;font-size:14px}svg .grid{stroke:var(--line);stroke-width:1}"
    "svg .mark{stroke:var(--soft);stroke-width:1;stroke-dasharray:3 3}"
    "svg .l{fill:none;stroke-width:1.8;stroke-linejoin:round}"
    ".s0{stroke:var(--c0)}.s1{stroke:var(--c1);stroke-dasharray:7 3}.s2{stroke:var(--c2);stroke-dasharray:2 "
    "3}"
    ".s3{stroke:var(--c3);stroke-dasharray:8 3 2 3}.f0{fill:var(--c0)}.f1{fill:var(--c1)}.f2{fill:var(--c2)}"
    ".f3{fill:var(--c3)}.h0{fill:var(--h0)}.h1{fill:var(--h1)}.h2{fill:var(--h2)}.h3{fill:var(--h3)}"
    ".h4{fill:var(--h4)}.h5{fill:var(--h5)}.h6{fill:var(--h6)}.h7{fill:var(--h7)}";

void page_begin(struct buffer *page, const char *title) {
    buffer_append_text(page,
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>"
        "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>");
    page_string(page, title);
    buffer_printf(page, "</title>\n<style>%s</style></head><body>\n<h1>", style);
    page_string(page, title);
    buffer_append_text(page, "</h1>\n");
}

void page_end(struct buffer *page) {
    buffer_append_text(page, "</body></html>\n");
}

/* ---- plots ---- */

static void begin_plot(struct buffer *page, const char *title, const char *description, int height) {
    buffer_printf(page, "<figure><svg viewBox=\"0 0 %d %d\" role=\"img\"><title>", WIDTH, height);
    page_string(page, title);
    buffer_append_text(page, "</title><desc>");
    page_string(page, description);
    buffer_printf(page, "</desc><text class=\"title\" x=\"%d\" y=\"16\">", LEFT);
    page_string(page, title);
    buffer_append_text(page, "</text>\n");
}

static void end_plot(struct buffer *page) {
    buffer_append_text(page, "</svg></figure>\n");
}

static void axis_labels(struct buffer *page, const char *x_label, const char *y_label, int height) {
    buffer_printf(page, "<text class=\"soft\" text-anchor=\"middle\" x=\"%d\" y=\"%d\">",
        LEFT + PLOT_WIDTH / 2, height - 8);
    page_string(page, x_label);
    int middle = TOP + (height - TOP - BOTTOM) / 2;
    buffer_printf(page,
        "</text><text class=\"soft\" text-anchor=\"middle\" transform=\"translate(14 %d) rotate(-90)\">",
        middle);
    page_string(page, y_label);
    buffer_append_text(page, "</text>\n");
}

/* 1, 2 or 5 times a power of ten, so that `span` has about `wanted` steps. */
static double tick_step(double span, int wanted) {
    double raw = span / wanted, power = pow(10, floor(log10(raw)));
    double ratio = raw / power;
    return power * (ratio <= 1 ? 1 : ratio <= 2 ? 2 : ratio <= 5 ? 5 : 10);
}

static void tick_text(struct buffer *page, double value) {
    double size = fabs(value);
    if (size >= 1e6)
        buffer_printf(page, "%.4gM", value / 1e6);
    else if (size >= 1e4)
        buffer_printf(page, "%.4gk", value / 1e3);
    else
        buffer_printf(page, "%.4g", value);
}

static double place_x(double value, double most) {
    return LEFT + (most > 0 ? value / most * PLOT_WIDTH : 0);
}

static double place_y(double value, double least, double most) {
    return TOP + PLOT_HEIGHT - (value - least) / (most - least) * PLOT_HEIGHT;
}

static void y_axis(struct buffer *page, double least, double most, double step) {
    const int ticks = (int)((most - least) / step + 1.5);
    for (int tick = 0; tick < ticks; tick++) {
        const double value = least + tick * step;
        double y = place_y(value, least, most);
        buffer_printf(page, "<line class=\"grid\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>", LEFT,
            WIDTH - RIGHT, y, y);
        buffer_printf(page, "<text class=\"soft\" text-anchor=\"end\" x=\"%d\" y=\"%.1f\">", LEFT - 6, y + 4);
        tick_text(page, value);
        buffer_append_text(page, "</text>\n");
    }
}

static void x_tick(struct buffer *page, double x, double value) {
    buffer_printf(
        page, "<text class=\"soft\" text-anchor=\"middle\" x=\"%.1f\" y=\"%d\">", x, HEIGHT - BOTTOM + 17);
    tick_text(page, value);
    buffer_append_text(page, "</text>\n");
}

/* Names in a row above the plot, from the right. */
static void legend(struct buffer *page, const char *const *names, int count, char kind) {
    int x = WIDTH - RIGHT;
    for (int i = count - 1; i >= 0; i--) {
        x -= 7 * (int)strlen(names[i]) + 34;
        if (kind == 's')
            buffer_printf(page, "<path class=\"l s%d\" d=\"M%d 12h22\"/>", i, x);
        else
            buffer_printf(
                page, "<rect class=\"f%d\" x=\"%d\" y=\"6\" width=\"12\" height=\"12\"/>", i, x + 10);
        buffer_printf(page, "<text x=\"%d\" y=\"16\">", x + 27);
        page_string(page, names[i]);
        buffer_append_text(page, "</text>\n");
    }
}

/* Borders of launches; names only where there is room for them. */
static void draw_marks(struct buffer *page, const struct plot *plot, double x_most) {
    double free_from = 0;
    for (size_t i = 0; i < plot->mark_count; i++) {
        double x = place_x(plot->marks[i].x, x_most), needed = 6.5 * (double)strlen(plot->marks[i].name) + 8;
        if (i)
            buffer_printf(page, "<line class=\"mark\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\"/>", x, x,
                TOP - 12, HEIGHT - BOTTOM);
        if (x < free_from || x + needed > WIDTH)
            continue;
        free_from = x + needed;
        buffer_printf(page, "<text class=\"soft\" x=\"%.1f\" y=\"%d\">", x + 3, TOP - 6);
        page_string(page, plot->marks[i].name);
        buffer_append_text(page, "</text>\n");
    }
}

static void draw_line(
    struct buffer *page, const struct plot *plot, int line, double x_most, double least, double most) {
    bool pen_down = false;
    buffer_printf(page, "<path class=\"l s%d\" d=\"", line);
    for (size_t i = 0; i < plot->count; i++) {
        double value = plot->lines[line].values[i];
        if (!isfinite(value)) {
            pen_down = false;
            continue;
        }
        buffer_printf(page, "%c%.1f %.1f", pen_down ? 'L' : 'M', place_x(plot->x[i], x_most),
            place_y(value, least, most));
        pen_down = true;
    }
    buffer_append_text(page, "\"/>\n");
}

void plot_lines(struct buffer *page, const struct plot *plot) {
    double x_most = plot->count ? plot->x[plot->count - 1] : 1, most = plot->least_most;
    const char *names[4];
    for (int l = 0; l < plot->line_count; l++) {
        names[l] = plot->lines[l].name;
        for (size_t i = 0; i < plot->count; i++)
            if (isfinite(plot->lines[l].values[i]) && plot->lines[l].values[i] > most)
                most = plot->lines[l].values[i];
    }
    if (most <= plot->floor)
        most = plot->floor + 1;
    double step = tick_step(most - plot->floor, 5);
    most = plot->floor + step * ceil((most - plot->floor) / step - 1e-9);
    begin_plot(page, plot->title, plot->description, HEIGHT);
    y_axis(page, plot->floor, most, step);
    double x_step = tick_step(x_most > 0 ? x_most : 1, 8);
    const int ticks = (int)(x_most / x_step + 1 + 1e-6);
    for (int tick = 0; tick < ticks; tick++)
        x_tick(page, place_x(tick * x_step, x_most), tick * x_step);
    draw_marks(page, plot, x_most);
    for (int l = 0; l < plot->line_count; l++)
        draw_line(page, plot, l, x_most, plot->floor, most);
    legend(page, names, plot->line_count, 's');
    axis_labels(page, plot->x_label, plot->y_label, HEIGHT);
    end_plot(page);
}

void plot_bars(struct buffer *page, const char *title, const char *description, const char *x_label,
    const char *const *parts, int part_count, const double *shares, size_t bars) {
    begin_plot(page, title, description, HEIGHT);
    y_axis(page, 0, 100, 20);
    double pitch = (double)PLOT_WIDTH / (double)bars, width = pitch > 80 ? 64 : pitch * 0.8;
    size_t label_step = (size_t)ceil(36 / pitch);
    for (size_t b = 0; b < bars; b++) {
        double x = LEFT + ((double)b + 0.5) * pitch, from = 0;
        for (int p = 0; p < part_count; p++) {
            double share = shares[b * (size_t)part_count + (size_t)p];
            buffer_printf(page, "<rect class=\"f%d\" x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\"/>",
                p, x - width / 2, place_y(from + share, 0, 100), width, share / 100 * PLOT_HEIGHT);
            from += share;
        }
        if (b % label_step == 0)
            x_tick(page, x, (double)b);
    }
    buffer_append_text(page, "\n");
    legend(page, parts, part_count, 'f');
    axis_labels(page, x_label, "share of time, %", HEIGHT);
    end_plot(page);
}

/* ---- the heat map ---- */

enum { LEVELS = 8 };
static const double level_ends[LEVELS - 1] = {0.25, 0.5, 0.75, 1, 1.5, 2, 4}; /* times the mean */

static int level_of(double value, double mean) {
    int level = 0;
    while (level < LEVELS - 1 && mean > 0 && value > level_ends[level] * mean)
        level++;
    return level;
}

static void heat_legend(struct buffer *page) {
    static const char *const names[LEVELS] = {"\u2264\u00BC", "\u2264\u00BD", "\u2264\u00BE", "\u22641",
        "\u22641.5", "\u22642", "\u22644", ">4 times the mean"};
    int x = WIDTH - RIGHT - LEVELS * 52 - 86;
    for (int i = 0; i < LEVELS; i++, x += 52) {
        buffer_printf(page,
            "<rect class=\"h%d\" x=\"%d\" y=\"24\" width=\"12\" height=\"12\"/><text x=\"%d\" y=\"34\">", i,
            x, x + 15);
        page_string(page, names[i]);
        buffer_append_text(page, "</text>\n");
    }
}

/* Neighbours of the same level are one rectangle. */
static void heat_row(struct buffer *page, const int64_t *cells, size_t columns, double y, double height) {
    double mean = 0, cell = (double)PLOT_WIDTH / (double)columns;
    for (size_t c = 0; c < columns; c++)
        mean += (double)cells[c] / (double)columns;
    for (size_t from = 0, to; from < columns; from = to) {
        int level = level_of((double)cells[from], mean);
        for (to = from + 1; to < columns && level_of((double)cells[to], mean) == level;)
            to++;
        buffer_printf(page, "<rect class=\"h%d\" x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\"/>",
            level, LEFT + (double)from * cell, y, (double)(to - from) * cell, height);
    }
}

void plot_heat_map(struct buffer *page, const char *title, const char *description, const char *x_label,
    const char *y_label, const int64_t *cells, size_t rows, size_t columns) {
    double row_height = rows <= 12 ? 18 : rows <= 40 ? 12 : 8;
    int height = TOP + BOTTOM + (int)ceil(row_height * (double)rows);
    size_t row_step = (size_t)ceil(16 / row_height), column_step = (size_t)tick_step((double)columns, 10);
    if (column_step < 1)
        column_step = 1;
    begin_plot(page, title, description, height);
    for (size_t r = 0; r < rows; r++) {
        double y = TOP + (double)r * row_height;
        heat_row(page, cells + r * columns, columns, y, row_height - 0.5);
        if (r % row_step == 0)
            buffer_printf(page, "<text class=\"soft\" text-anchor=\"end\" x=\"%d\" y=\"%.1f\">%zu</text>\n",
                LEFT - 6, y + row_height / 2 + 4, r);
    }
    for (size_t c = 0; c < columns; c += column_step)
        buffer_printf(page, "<text class=\"soft\" text-anchor=\"middle\" x=\"%.1f\" y=\"%d\">%zu</text>\n",
            LEFT + ((double)c + 0.5) * PLOT_WIDTH / (double)columns, height - BOTTOM + 17, c);
    heat_legend(page);
    axis_labels(page, x_label, y_label, height);
    end_plot(page);
}
