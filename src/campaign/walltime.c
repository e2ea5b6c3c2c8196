#include "campaign/walltime.h"

#include <math.h>    /* isfinite */
#include <stdbool.h> /* bool */
#include <stdio.h>   /* sscanf */
#include <stdlib.h>  /* getenv, strtod */
#include <string.h>  /* strcmp */
#include <time.h>    /* localtime_r, mktime */

/* All of `text` as a number of seconds, not below 0. */
static bool read_seconds(const char *text, double *seconds) {
    char *end;
    if (*text < '0' || *text > '9')
        return false;
    *seconds = strtod(text, &end);
    return *end == '\0' && isfinite(*seconds) && *seconds < 1e12;
}

static bool is_time(int hour, int minute, int second) {
    return hour >= 0 && hour < 24 && minute >= 0 && minute < 60 && second >= 0 && second < 60;
}

/* "HH:MM": today, or tomorrow when that has passed. */
static bool read_clock(const char *text, double now, double *end) {
    int hour, minute, used = 0;
    if (sscanf(text, "%2d:%2d%n", &hour, &minute, &used) != 2 || text[used] || !is_time(hour, minute, 0))
        return false;
    time_t seconds = (time_t)now;
    struct tm local;
    localtime_r(&seconds, &local);
    for (int day = 0; day < 2; day++) {
        struct tm then = local;
        then.tm_mday += day;
        then.tm_hour = hour;
        then.tm_min = minute;
        then.tm_sec = 0;
        then.tm_isdst = -1;
        *end = (double)mktime(&then);
        if (*end > now)
            return true;
    }
    return false;
}

/* Whether a month has the day: mktime takes 30 February for 2 March. */
static bool is_day(const struct tm *date) {
    struct tm noon = *date; /* an hour that no clock change skips */
    noon.tm_hour = 12;
    noon.tm_isdst = -1;
    return mktime(&noon) != -1 && noon.tm_mday == date->tm_mday && noon.tm_mon == date->tm_mon;
}

static bool read_date(const char *text, double *end) {
    struct tm then = {.tm_isdst = -1};
    int used = 0;
    if (sscanf(text, "%4d-%2d-%2dT%2d:%2d%n", &then.tm_year, &then.tm_mon, &then.tm_mday, &then.tm_hour,
            &then.tm_min, &used) != 5)
        return false;
    if (text[used] == ':') {
        int more = 0;
        if (sscanf(text + used, ":%2d%n", &then.tm_sec, &more) != 1)
            return false;
        used += more;
    }
    then.tm_year -= 1900;
    then.tm_mon -= 1;
    if (text[used] || !is_time(then.tm_hour, then.tm_min, then.tm_sec) || !is_day(&then))
        return false;
    *end = (double)mktime(&then);
    return true;
}

static bool read_end(const char *text, double now, double *end) {
    if (*text == '+') {
        bool is_number = read_seconds(text + 1, end);
        *end += now;
        return is_number;
    }
    if (*text == '@')
        return read_seconds(text + 1, end);
    return read_clock(text, now, end) || read_date(text, end);
}

enum result walltime_end(const char *until, double now, double *end) {
    *end = 0;
    if (until && !strcmp(until, "never"))
        return OK;
    if (until) {
        if (!read_end(until, now, end))
            return fail(ERROR_USAGE,
                "--until %s: expected +SECONDS, HH:MM, YYYY-MM-DDTHH:MM[:SS], @UNIX_SECONDS or never", until);
        if (*end <= now)
            return fail(ERROR_USAGE, "--until %s: that time has passed", until);
        return OK;
    }
    const char *job_end = getenv("SLURM_JOB_END_TIME");
    if (job_end && (!read_seconds(job_end, end) || *end <= now))
        *end = 0; /* a variable that came from elsewhere */
    return OK;
}
