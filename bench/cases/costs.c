#include "bench/cases/costs.h"

#include "base/json.h"

#include <math.h>      /* fabs, isfinite */
#include <stdbool.h>   /* bool */
#include <stdio.h>     /* getline */
#include <stdlib.h>    /* realloc, qsort */
#include <sys/types.h> /* ssize_t */

enum { TERMS = 5 };

struct recorded {
    double terms[TERMS]; /* 1 and the content, as in struct recorded_costs */
    double seconds;
};

struct recording {
    struct recorded *steps; /* [count] */
    int64_t count, capacity;
};

double step_seconds(const struct recorded_costs *costs, const struct step_content *content) {
    if (content->prompt_tokens == 0 && content->sequences == 0)
        return 0;
    return costs->step + costs->prompt_token * content->prompt_tokens +
           costs->prompt_end * content->prompt_ends + costs->sequence * content->sequences +
           costs->position * content->positions;
}

/* ---- the file ---- */

static enum result add_step(struct recording *recording, const struct recorded *step) {
    if (recording->count == recording->capacity) {
        int64_t capacity = recording->capacity ? 2 * recording->capacity : 256;
        struct recorded *steps = realloc(recording->steps, (size_t)capacity * sizeof *steps);
        if (!steps)
            return fail(ERROR_MEMORY, "out of memory for %lld recorded steps", (long long)capacity);
        recording->steps = steps;
        recording->capacity = capacity;
    }
    recording->steps[recording->count++] = *step;
    return OK;
}

static enum result read_line(struct recording *recording, const struct json *line) {
    static const char *const names[TERMS] = {NULL, "prompt_tokens", "prompt_ends", "sequences", "positions"};
    struct recorded step = {.terms = {1}};
    if (line->kind != JSON_OBJECT)
        return fail(ERROR_INPUT, "expected an object, found %s", json_kind_name(line));
    if (!json_member(line, "seconds"))
        return OK;
    if (!json_double(json_member(line, "seconds"), &step.seconds) || !(step.seconds > 0))
        return fail(ERROR_INPUT, "\"seconds\": expected a number above 0");
    for (int i = 1; i < TERMS; i++)
        if (!json_double(json_member(line, names[i]), &step.terms[i]) || step.terms[i] < 0)
            return fail(ERROR_INPUT, "\"%s\": expected a number of at least 0", names[i]);
    return add_step(recording, &step);
}

static enum result read_recording(FILE *file, struct recording *recording) {
    struct json_document *document;
    char *text = NULL;
    size_t capacity = 0;
    enum result status = json_document_create(&document);
    if (status != OK)
        return status;
    for (int64_t number = 1; status == OK; number++) {
        const struct json *line = NULL;
        ssize_t bytes = getline(&text, &capacity, file);
        if (bytes < 0)
            break;
        status = json_parse(document, text, (size_t)bytes, &line);
        if (status == OK)
            status = read_line(recording, line);
        if (status != OK)
            status = fail_context(status, "line %lld", (long long)number);
    }
    free(text);
    json_document_free(document);
    return status;
}

/* ---- the fit ---- */

struct equations {
    double left[TERMS][TERMS], right[TERMS];
};

/* Normal equations of the errors relative to what was recorded. */
static struct equations set_up(const struct recording *recording) {
    struct equations e = {0};
    for (int64_t s = 0; s < recording->count; s++) {
        const struct recorded *step = &recording->steps[s];
        double weight = 1 / (step->seconds * step->seconds);
        for (int i = 0; i < TERMS; i++) {
            e.right[i] += weight * step->terms[i] * step->seconds;
            for (int j = 0; j < TERMS; j++)
                e.left[i][j] += weight * step->terms[i] * step->terms[j];
        }
    }
    return e;
}

/* Gauss and Jordan's, for the terms in use; a term that the others make up or that never occurs gets 0. */
static void solve(struct equations e, const bool *used, double *values) {
    bool solved[TERMS] = {false};
    for (int i = 0; i < TERMS; i++) {
        double scale = e.left[i][i];
        for (int j = 0; j < i; j++)
            if (solved[j]) {
                double factor = e.left[i][j] / e.left[j][j];
                for (int k = 0; k < TERMS; k++)
                    e.left[i][k] -= factor * e.left[j][k];
                e.right[i] -= factor * e.right[j];
            }
        solved[i] = used[i] && e.left[i][i] > 1e-12 * scale;
    }
    for (int i = TERMS - 1; i >= 0; i--) {
        values[i] = solved[i] ? e.right[i] : 0;
        for (int j = i + 1; solved[i] && j < TERMS; j++)
            values[i] -= e.left[i][j] * values[j];
        if (solved[i])
            values[i] /= e.left[i][i];
    }
}

/* Without the term that is furthest below 0, until none is: few terms, so no more care is needed. */
static void solve_without_negatives(const struct recording *recording, double *values) {
    const struct equations equations = set_up(recording);
    bool used[TERMS];
    for (int i = 0; i < TERMS; i++)
        used[i] = true;
    for (int round = 0; round < TERMS; round++) {
        int worst = -1;
        solve(equations, used, values);
        for (int i = 0; i < TERMS; i++)
            if (values[i] < 0 && (worst < 0 || values[i] * sqrt(equations.left[i][i]) <
                                                   values[worst] * sqrt(equations.left[worst][worst])))
                worst = i;
        if (worst < 0)
            return;
        used[worst] = false;
    }
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static enum result judge(const struct recording *recording, const double *values, struct step_fit *fit) {
    double *errors = calloc((size_t)recording->count, sizeof *errors);
    if (!errors)
        return fail(ERROR_MEMORY, "out of memory for %lld recorded steps", (long long)recording->count);
    for (int64_t s = 0; s < recording->count; s++) {
        double fitted = 0;
        for (int i = 0; i < TERMS; i++)
            fitted += values[i] * recording->steps[s].terms[i];
        errors[s] = fabs(fitted / recording->steps[s].seconds - 1);
    }
    qsort(errors, (size_t)recording->count, sizeof *errors, ascending);
    *fit = (struct step_fit){recording->count, errors[recording->count / 2], errors[recording->count - 1]};
    free(errors);
    return OK;
}

static enum result fit_costs(
    const struct recording *recording, struct recorded_costs *costs, struct step_fit *fit) {
    double values[TERMS];
    if (recording->count < TERMS)
        return fail(
            ERROR_INPUT, "%lld recorded steps are too few for %d costs", (long long)recording->count, TERMS);
    solve_without_negatives(recording, values);
    *costs = (struct recorded_costs){values[0], values[1], values[2], values[3], values[4]};
    return judge(recording, values, fit);
}

enum result recorded_costs_read(const char *path, struct recorded_costs *costs, struct step_fit *fit) {
    struct recording recording = {0};
    FILE *file = fopen(path, "r");
    if (!file)
        return fail_errno(ERROR_INPUT, "%s", path);
    enum result status = read_recording(file, &recording);
    fclose(file);
    if (status == OK)
        status = fit_costs(&recording, costs, fit);
    free(recording.steps);
    return status == OK ? OK : fail_context(status, "%s", path);
}
