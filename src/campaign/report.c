/* nocturne report: the morning's page. */
#include "base/clock.h"
#include "base/options.h"
#include "campaign/campaign.h"
#include "campaign/files.h"
#include "campaign/lock.h"
#include "campaign/report_metrics.h"
#include "campaign/report_page.h"
#include "campaign/report_results.h"

#include <inttypes.h> /* PRId64 */
#include <math.h>     /* isfinite, NAN */
#include <stdio.h>    /* snprintf */
#include <stdlib.h>   /* calloc, strtod */
#include <string.h>   /* strcmp */

struct report {
    const char *folder, *output, *price_text, *currency;
    double price; /* of a card-hour; < 0: not given */
    bool running;
    char holder[512];
    struct report_results results;
    struct report_metrics metrics;
    struct buffer page;
};

/* ---- summary ---- */

static double launch_seconds(const struct report_launch *launch) {
    return launch->written > launch->begun ? launch->written - launch->begun : 0;
}

static double card_hours(const struct report *report) {
    double hours = 0;
    for (int32_t i = 0; i < report->metrics.count; i++)
        hours += launch_seconds(&report->metrics.launches[i]) * report->metrics.launches[i].ranks / 3600;
    return hours;
}

static void count_row(struct report *report, const char *name, const char *key, int64_t value) {
    buffer_printf(
        &report->page, "<tr><th scope=\"row\">%s</th><td data-%s=\"%" PRId64 "\">", name, key, value);
    page_count(&report->page, value);
    buffer_append_text(&report->page, "</td></tr>\n");
}

static const char *state_of(const struct report *report) {
    if (report->running)
        return "running";
    if (!report->results.waiting)
        return "finished";
    return report->metrics.count || report->results.done + report->results.failed ? "not finished"
                                                                                  : "not begun";
}

static void cost_rows(struct report *report) {
    struct buffer *page = &report->page;
    if (!report->metrics.count)
        return;
    buffer_printf(page,
        "<tr><th scope=\"row\">card-hours</th><td data-card-hours=\"%.6f\">%.3f (one card a rank, from each "
        "launch's "
        "begin to its end)</td></tr>\n",
        card_hours(report), card_hours(report));
    if (report->price < 0)
        return;
    double cost = card_hours(report) * report->price;
    buffer_printf(page, "<tr><th scope=\"row\">cost</th><td data-cost=\"%.6f\">%.2f ", cost, cost);
    page_string(page, report->currency);
    buffer_printf(page, " at %g a card-hour", report->price);
    if (report->results.generated_tokens)
        buffer_printf(
            page, "; %.4g a million generated tokens", cost / (double)report->results.generated_tokens * 1e6);
    buffer_append_text(page, "</td></tr>\n");
}

/* What all launches together did not compute. */
static void saved_rows(struct report *report) {
    static const char *const tiers[CACHE_TIERS] = {"memory", "local folder", "shared folder"};
    struct report_launch sum = {0};
    struct buffer *page = &report->page;
    for (int32_t i = 0; i < report->metrics.count; i++) {
        const struct report_launch *launch = &report->metrics.launches[i];
        sum.prompt_tokens += launch->prompt_tokens;
        sum.shared_tokens += launch->shared_tokens;
        sum.cached_tokens += launch->cached_tokens;
        sum.replayed_tokens += launch->replayed_tokens;
        sum.saved_milliseconds += launch->saved_milliseconds;
        for (int tier = 0; tier < CACHE_TIERS; tier++) {
            sum.cache_hits[tier] += launch->cache_hits[tier];
            sum.cache_bytes[tier] = launch->cache_bytes[tier];
        }
    }
    if (!sum.shared_tokens && !sum.cached_tokens)
        return;
    count_row(report, "prompt tokens run", "run-tokens", sum.prompt_tokens);
    count_row(report, "shared by prompts instead", "shared-tokens", sum.shared_tokens);
    count_row(report, "taken from the cache", "cached-tokens", sum.cached_tokens);
    count_row(report, "of these run again", "replayed-tokens", sum.replayed_tokens);
    buffer_printf(page,
        "<tr><th scope=\"row\">time saved</th><td data-saved-seconds=\"%.3f\">about %.0f s of all ranks "
        "together</td></tr>\n",
        (double)sum.saved_milliseconds / 1000, (double)sum.saved_milliseconds / 1000);
    for (int tier = 0; tier < CACHE_TIERS; tier++)
        if (sum.cache_hits[tier] || sum.cache_bytes[tier])
            buffer_printf(page,
                "<tr><th scope=\"row\">cache, %s</th><td>%" PRId64 " blocks used, %.1f MiB held by the last "
                "launch</td></tr>\n",
                tiers[tier], sum.cache_hits[tier], (double)sum.cache_bytes[tier] / 1048576);
}

static void add_summary(struct report *report) {
    const struct report_results *results = &report->results;
    struct buffer *page = &report->page;
    buffer_append_text(page, "<h2>Summary</h2>\n<table><tbody>\n<tr><th scope=\"row\">state</th><td>");
    buffer_append_text(page, state_of(report));
    if (report->running && *report->holder) {
        buffer_append_text(page, ": ");
        page_string(page, report->holder);
    }
    buffer_append_text(page, "</td></tr>\n");
    count_row(report, "lines of the input", "lines", results->lines);
    count_row(report, "done", "done", results->done);
    count_row(report, "failed", "failed", results->failed);
    count_row(report, "refused by ingest", "refused", results->refused);
    count_row(report, "waiting", "waiting", results->waiting);
    count_row(report, "prompt tokens of what is done", "prompt-tokens", results->prompt_tokens);
    count_row(report, "generated tokens", "generated-tokens", results->generated_tokens);
    saved_rows(report);
    cost_rows(report);
    buffer_append_text(page, "</tbody></table>\n");
    if (results->skipped)
        buffer_printf(page,
            "<p class=\"note\">%" PRId64 " parts of results/ are damaged or foreign and were left out.</p>\n",
            results->skipped);
    if (report->metrics.damaged)
        buffer_printf(page,
            "<p class=\"note\">%" PRId64
            " metrics files are damaged or of another version and were left out.</p>\n",
            report->metrics.damaged);
}

/* ---- plots over time ---- */

/* All launches one after another, without the time between them. */
struct timeline {
    size_t count;
    double *x, *values[4];
    struct plot_mark *marks;
    size_t mark_count;
    char (*names)[48];
    double unit; /* seconds */
    const char *label;
};

enum { TIMELINE_VALUES = 4 };

static void timeline_free(struct timeline *line) {
    free(line->x);
    for (int v = 0; v < TIMELINE_VALUES; v++)
        free(line->values[v]);
    free(line->marks);
    free(line->names);
}

static enum result timeline_create(const struct report_metrics *metrics, struct timeline *line) {
    size_t room = 1;
    double total = 0, before = 0;
    for (int32_t i = 0; i < metrics->count; i++) {
        room += (size_t)metrics->launches[i].intervals + 2;
        total += launch_seconds(&metrics->launches[i]);
    }
    line->unit = total > 3 * 3600 ? 3600 : total > 180 ? 60 : 1;
    line->label = line->unit == 3600 ? "time of work, h"
                  : line->unit == 60 ? "time of work, min"
                                     : "time of work, s";
    line->x = calloc(room, sizeof *line->x);
    line->marks = calloc((size_t)metrics->count + 1, sizeof *line->marks);
    line->names = calloc((size_t)metrics->count + 1, sizeof *line->names);
    bool whole = line->x && line->marks && line->names;
    for (int v = 0; v < TIMELINE_VALUES; v++) {
        line->values[v] = calloc(room, sizeof **line->values);
        whole &= line->values[v] != NULL;
    }
    if (!whole)
        return fail(ERROR_MEMORY, "out of memory for the plots");
    for (int32_t i = 0; i < metrics->count; i++) {
        const struct report_launch *launch = &metrics->launches[i];
        if (!launch->intervals)
            continue;
        snprintf(
            line->names[line->mark_count], sizeof *line->names, "%.24s %d", launch->command, launch->number);
        line->marks[line->mark_count] =
            (struct plot_mark){before / line->unit, line->names[line->mark_count]};
        line->mark_count++;
        double begin = launch->time[0], end = launch->time[launch->intervals] - begin;
        line->x[line->count++] = before / line->unit;
        for (int32_t k = 0; k < launch->intervals; k++)
            line->x[line->count++] =
                (before + (launch->time[k] + launch->time[k + 1]) / 2 - begin) / line->unit;
        before += end;
        line->x[line->count++] = before / line->unit;
    }
    return OK;
}

/* Fills values[v] by `value` of each interval; the last one reaches to the launch's end. */
static void timeline_fill(const struct report_metrics *metrics, struct timeline *line, int v,
    double (*value)(const struct report_launch *launch, int32_t interval)) {
    size_t at = 0;
    for (int32_t i = 0; i < metrics->count; i++) {
        const struct report_launch *launch = &metrics->launches[i];
        if (!launch->intervals)
            continue;
        /* The line begins at the first interval's middle: none comes from the launch before. */
        line->values[v][at++] = NAN;
        for (int32_t k = 0; k < launch->intervals; k++)
            line->values[v][at++] = value(launch, k);
        line->values[v][at] = line->values[v][at - 1];
        at++;
    }
}

static double prompt_rate(const struct report_launch *launch, int32_t k) {
    return launch->prompt_rate[k];
}
static double generated_rate(const struct report_launch *launch, int32_t k) {
    return launch->generated_rate[k];
}
static double sequences(const struct report_launch *launch, int32_t k) {
    return launch->sequences[k];
}
static double kv_use(const struct report_launch *launch, int32_t k) {
    return launch->kv_use[k];
}
static double share(const struct report_launch *launch, int32_t k, enum time_share which) {
    double sum = 0;
    for (int s = 0; s < SHARES; s++)
        sum += launch->shares[s][k];
    return sum > 0 ? 100 * launch->shares[which][k] / sum : NAN;
}
static double share_exchange(const struct report_launch *launch, int32_t k) {
    return share(launch, k, SHARE_EXCHANGE);
}
static double share_waiting(const struct report_launch *launch, int32_t k) {
    return share(launch, k, SHARE_WAITING);
}
static double imbalance(const struct report_launch *launch, int32_t k) {
    return launch->pairs_sum[k] > 0 ? launch->pairs_most[k] * launch->ranks_read / launch->pairs_sum[k] : NAN;
}

struct line_source {
    const char *name;
    double (*value)(const struct report_launch *launch, int32_t interval);
};

static void add_lines(struct report *report, struct timeline *line, struct plot plot,
    const struct line_source *sources, int count) {
    struct plot_line lines[TIMELINE_VALUES];
    for (int i = 0; i < count; i++) {
        timeline_fill(&report->metrics, line, i, sources[i].value);
        lines[i] = (struct plot_line){sources[i].name, line->values[i]};
    }
    plot.x = line->x;
    plot.count = line->count;
    plot.x_label = line->label;
    plot.lines = lines;
    plot.line_count = count;
    plot.marks = line->marks;
    plot.mark_count = line->mark_count;
    plot_lines(&report->page, &plot);
}

static void add_time_plots(struct report *report, struct timeline *line) {
    add_lines(report, line,
        (struct plot){.title = "Tokens per second",
            .description = "Prompt and generated tokens per second of all ranks over the time of work.",
            .y_label = "tokens/s"},
        (const struct line_source[]){{"prompt", prompt_rate}, {"generated", generated_rate}}, 2);
    add_lines(report, line,
        (struct plot){.title = "Batch size",
            .description = "Sequences in a step of all ranks over the time of work.",
            .y_label = "sequences a step"},
        (const struct line_source[]){{"all ranks", sequences}}, 1);
    add_lines(report, line,
        (struct plot){.title = "Key/value memory",
            .description = "Share of the key/value blocks that is set aside for requests in work.",
            .y_label = "reserved, %"},
        (const struct line_source[]){{"reserved", kv_use}}, 1);
    add_lines(report, line,
        (struct plot){.title = "Time between ranks",
            .description = "Share of the ranks' time spent exchanging data and waiting for other ranks.",
            .y_label = "share of time, %"},
        (const struct line_source[]){{"exchange", share_exchange}, {"waiting", share_waiting}}, 2);
    if (report->metrics.load && report->metrics.most_ranks > 1)
        add_lines(report, line,
            (struct plot){.title = "Imbalance of the experts",
                .description =
                    "Pairs of token and expert on the busiest rank over the mean of the ranks; 1 is even.",
                .y_label = "max / mean over ranks",
                .floor = 1,
                .least_most = 1.1},
            (const struct line_source[]){{"imbalance", imbalance}}, 1);
}

/* ---- plots by rank and expert ---- */

static enum result add_rank_plot(struct report *report) {
    static const char *const names[SHARES] = {"computing", "exchange", "waiting", "rest"};
    size_t ranks = (size_t)report->metrics.most_ranks;
    double *shares = calloc(ranks * SHARES + 1, sizeof *shares);
    if (!shares)
        return fail(ERROR_MEMORY, "out of memory for the plots");
    for (size_t r = 0; r < ranks; r++) {
        double sum = 0;
        for (int s = 0; s < SHARES; s++)
            sum += report->metrics.rank_shares[r][s];
        for (int s = 0; s < SHARES; s++)
            shares[r * SHARES + (size_t)s] = sum > 0 ? 100 * report->metrics.rank_shares[r][s] / sum : 0;
    }
    plot_bars(&report->page, "Time of each rank",
        "How each rank's time divides into computing, exchanging data, waiting for others and the rest, over "
        "all "
        "launches.",
        "rank", names, SHARES, shares, ranks);
    free(shares);
    return OK;
}

static enum result add_plots(struct report *report) {
    struct timeline line = {0};
    buffer_append_text(&report->page, "<h2>Launches over time</h2>\n");
    enum result status = timeline_create(&report->metrics, &line);
    if (status == OK && line.count) {
        add_time_plots(report, &line);
        status = add_rank_plot(report);
    } else if (status == OK)
        buffer_append_text(
            &report->page, "<p class=\"note\">No launch of this campaign has left metrics to plot.</p>\n");
    timeline_free(&line);
    if (status == OK && report->metrics.load)
        plot_heat_map(&report->page, "Load of the experts",
            "Tokens sent to each expert of each layer, relative to the mean of the layer's experts.",
            "expert", "layer", report->metrics.load, (size_t)report->metrics.layers,
            (size_t)report->metrics.experts);
    return status;
}

/* ---- tables ---- */

static void add_codes(struct report *report) {
    struct buffer *page = &report->page;
    const struct report_results *results = &report->results;
    buffer_append_text(page, "<h2>Failures</h2>\n");
    if (!results->code_count) {
        buffer_append_text(page, "<p class=\"note\">None.</p>\n");
        return;
    }
    buffer_append_text(
        page, "<table><thead><tr><th>kind</th><th class=\"n\">requests</th></tr></thead><tbody>\n");
    for (int32_t i = 0; i < results->code_count; i++) {
        buffer_append_text(page, "<tr><td>");
        page_string(page, results->codes[i].code);
        buffer_append_text(page, "</td><td class=\"n\">");
        page_count(page, results->codes[i].count);
        buffer_append_text(page, "</td></tr>\n");
    }
    buffer_append_text(page,
        "</tbody></table>\n<div class=\"scroll\"><table><thead><tr><th>line</th><th>custom_id</th>"
        "<th>status</th><th>kind</th><th>field</th><th>message</th></tr></thead><tbody>\n");
    for (int32_t i = 0; i < results->error_count; i++) {
        const struct report_error *error = &results->errors[i];
        buffer_printf(page, "<tr><td>%" PRId64 "</td><td>", error->line);
        page_string(page, error->custom_id);
        buffer_append_text(page, "</td><td>");
        if (error->status)
            buffer_printf(page, "%d", error->status);
        const char *const texts[] = {error->code, error->param, error->message};
        for (int t = 0; t < 3; t++) {
            buffer_append_text(page, "</td><td>");
            page_string(page, texts[t]);
        }
        buffer_append_text(page, "</td></tr>\n");
    }
    buffer_append_text(page, "</tbody></table></div>\n");
    int64_t all = results->failed + results->refused;
    if (all > results->error_count)
        buffer_printf(page,
            "<p class=\"note\">The first %d of %" PRId64
            "; errors.jsonl, which 'nocturne export' makes, has all.</p>\n",
            results->error_count, all);
}

static void add_longest(struct report *report) {
    struct buffer *page = &report->page;
    if (!report->results.longest_count)
        return;
    buffer_append_text(page,
        "<h2>Slowest requests</h2>\n<p class=\"note\">Those that took the most steps: a step generates one "
        "token of each "
        "choice, so the longest choice counts.</p>\n<div "
        "class=\"scroll\"><table><thead><tr><th>line</th><th>custom_id</th>"
        "<th class=\"n\">steps</th><th class=\"n\">prompt tokens</th><th class=\"n\">generated tokens</th>"
        "<th>finished</th></tr></thead><tbody>\n");
    for (int32_t i = 0; i < report->results.longest_count; i++) {
        const struct report_long *row = &report->results.longest[i];
        buffer_printf(page, "<tr><td>%" PRId64 "</td><td>", row->line);
        page_string(page, row->custom_id);
        const int64_t counts[] = {row->longest, row->prompt_tokens, row->generated_tokens};
        for (int c = 0; c < 3; c++) {
            buffer_append_text(page, "</td><td class=\"n\">");
            page_count(page, counts[c]);
        }
        buffer_append_text(page, "</td><td>");
        page_time(page, row->finished_at);
        buffer_append_text(page, "</td></tr>\n");
    }
    buffer_append_text(page, "</tbody></table></div>\n");
}

/* "node1 (4 ranks), node2" for the hosts of ranks in their order. */
static void add_hosts(struct buffer *page, const char *hosts) {
    for (const char *at = hosts; *at;) {
        size_t length = strcspn(at, " ");
        int64_t ranks = 0;
        const char *next = at;
        while (*next && strcspn(next, " ") == length && !strncmp(next, at, length)) {
            ranks++;
            next += length;
            next += *next == ' ';
        }
        if (at != hosts)
            buffer_append_text(page, ", ");
        page_text(page, at, length);
        if (ranks > 1)
            buffer_printf(page, " (%" PRId64 " ranks)", ranks);
        at = length ? next : at + 1;
    }
}

static void add_end(const struct report *report, const struct report_launch *launch, bool last) {
    struct buffer *page = (struct buffer *)&report->page;
    if (!launch->ended && last && report->running)
        buffer_append_text(page, "running");
    else if (!launch->ended)
        buffer_append_text(page, "ended without a word: killed, or its node failed");
    else if (launch->exit_code == OK)
        buffer_append_text(page, "0, done");
    else {
        buffer_printf(page, "%" PRId64 ": ", launch->exit_code);
        page_string(page, launch->message);
    }
}

static void add_history(struct report *report) {
    struct buffer *page = &report->page;
    buffer_append_text(page, "<h2>Launches</h2>\n");
    if (!report->metrics.count) {
        buffer_append_text(page, "<p class=\"note\">No launch is known.</p>\n");
        return;
    }
    buffer_append_text(page,
        "<div class=\"scroll\"><table><thead><tr><th>launch</th><th>begin</th><th>time</th><th "
        "class=\"n\">ranks</th>"
        "<th>nodes</th><th>job</th><th "
        "class=\"n\">finished</th><th>exit</th><th>version</th></tr></thead><tbody>\n");
    for (int32_t i = 0; i < report->metrics.count; i++) {
        const struct report_launch *launch = &report->metrics.launches[i];
        buffer_printf(page, "<tr><td>%d ", launch->number);
        page_string(page, launch->command);
        buffer_append_text(page, "</td><td>");
        page_time(page, launch->begun);
        buffer_append_text(page, "</td><td>");
        page_duration(page, launch_seconds(launch));
        buffer_printf(page, "</td><td class=\"n\">%d</td><td>", launch->ranks);
        add_hosts(page, launch->hosts);
        buffer_append_text(page, "</td><td>");
        page_string(page, launch->job);
        buffer_append_text(page, "</td><td class=\"n\">");
        page_count(page, launch->finished);
        buffer_append_text(page, "</td><td>");
        add_end(report, launch, i == report->metrics.count - 1);
        buffer_append_text(page, "</td><td>");
        page_string(page, launch->version);
        buffer_append_text(page, "</td></tr>\n");
    }
    buffer_append_text(page, "</tbody></table></div>\n");
}

/* ---- the command ---- */

static enum result make_page(struct report *report) {
    struct buffer title = {0};
    buffer_printf(&title, "Campaign %s", report->folder);
    page_begin(&report->page, title.data);
    buffer_free(&title);
    buffer_append_text(&report->page, "<p class=\"note\">As of ");
    page_time(&report->page, wall_clock());
    buffer_append_text(&report->page, ", made by nocturne " NOCTURNE_VERSION ".</p>\n");
    add_summary(report);
    TRY(add_plots(report));
    add_codes(report);
    add_longest(report);
    add_history(report);
    page_end(&report->page);
    return OK;
}

static enum result write_page(const struct report *report) {
    struct output_file file = {0};
    bool taken;
    TRY(output_check(report->output));
    TRY(output_file_create(report->output, &file));
    enum result status = output_file_write(&file, report->page.data, report->page.bytes);
    if (status == OK)
        return output_file_commit(&file, true, &taken);
    output_file_abandon(&file);
    return status;
}

static enum result run(struct report *report) {
    struct requests *requests;
    TRY(requests_open(report->folder, &requests));
    report->running = lock_is_held(report->folder, report->holder, sizeof report->holder);
    enum result status = report_results_read(report->folder, requests, &report->results);
    if (status == OK)
        status = report_metrics_read(report->folder, requests_identity(requests), &report->metrics);
    requests_close(requests);
    if (status == OK)
        status = make_page(report);
    return status == OK ? write_page(report) : status;
}

static enum result read_price(struct report *report) {
    char *end = NULL;
    report->price = -1;
    if (!report->price_text)
        return OK;
    report->price = strtod(report->price_text, &end);
    if (end == report->price_text || *end || !isfinite(report->price) || report->price < 0)
        return fail(ERROR_USAGE, "report: --card-hour: '%s' is no price: give a number such as 2.50",
            report->price_text);
    return OK;
}

enum result command_report(int argc, char **argv) {
    static const struct command_usage usage = {.name = "report",
        .summary = "Writes a page on a campaign: what became of its requests, tokens over time, where the "
                   "time went,\n"
                   "failures, and the launches. One file for any browser, without a network. Reads only; may "
                   "be used\n"
                   "while the campaign runs.",
        .arguments = "CAMPAIGN"};
    struct report *report = calloc(1, sizeof *report);
    if (!report)
        return fail(ERROR_MEMORY, "out of memory for a report");
    report->output = "report.html";
    report->currency = "EUR";
    const struct option options[] = {
        {.name = "output",
            .kind = OPTION_TEXT,
            .value = &report->output,
            .placeholder = "FILE",
            .help = "the page (default: report.html); an older one is replaced"},
        {.name = "card-hour",
            .kind = OPTION_TEXT,
            .value = &report->price_text,
            .placeholder = "PRICE",
            .help = "price of one card (a rank) for an hour, for the cost (default: no cost is shown)"},
        {.name = "currency",
            .kind = OPTION_TEXT,
            .value = &report->currency,
            .placeholder = "TEXT",
            .help = "of the price (default: EUR)"},
        {0},
    };
    struct option_list folders = {0};
    bool help_shown;
    enum result status = options_parse(&usage, options, argc, argv, &folders, &help_shown);
    if (status == OK && !help_shown) {
        if (folders.count != 1)
            status = fail(ERROR_USAGE, "report: give the campaign's folder (see 'nocturne report --help')");
        else
            report->folder = folders.items[0];
        if (status == OK)
            status = read_price(report);
        if (status == OK)
            status = run(report);
        if (status == OK)
            printf("%s is ready\n", report->output);
    }
    free(folders.items);
    report_results_free(&report->results);
    report_metrics_free(&report->metrics);
    buffer_free(&report->page);
    free(report);
    return status;
}
