#include "grammar/formats.h"

#include <stddef.h> /* NULL */
#include <string.h> /* strcmp */

/* RFC 3339, full-date, with the days of each month; February has 29 days in leap years. */
#define LEAP_YEAR "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26]|00)00)"
#define DATE                                                                                                 \
    "(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|"    \
    "02-(?:0[1-9]|1[0-9]|2[0-8]))|" LEAP_YEAR "-02-29)"
#define TIME                                                                                                 \
    "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]+)?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
/* RFC 1123: labels of at most 63 characters. */
#define LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define HOST LABEL "(?:\\." LABEL ")*"
#define ATOM "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
#define OCTET "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define IPV4 OCTET "(?:\\." OCTET "){3}"
/* RFC 3986, appendix A: IPv6address. */
#define H16 "[0-9A-Fa-f]{1,4}"
#define LS32 "(?:" H16 ":" H16 "|" IPV4 ")"
#define IPV6                                                                                                 \
    "(?:(?:" H16 ":){6}" LS32 "|::(?:" H16 ":){5}" LS32 "|(?:" H16 ")?::(?:" H16 ":){4}" LS32 "|(?:(?:" H16  \
    ":){0,1}" H16 ")?::(?:" H16 ":){3}" LS32 "|(?:(?:" H16 ":){0,2}" H16 ")?::(?:" H16 ":){2}" LS32          \
    "|(?:(?:" H16 ":){0,3}" H16 ")?::" H16 ":" LS32 "|(?:(?:" H16 ":){0,4}" H16 ")?::" LS32 "|(?:(?:" H16    \
    ":){0,5}" H16 ")?::" H16 "|(?:(?:" H16 ":){0,6}" H16 ")?::)"
#define ESCAPED "%[0-9A-Fa-f]{2}"
#define UNRESERVED "A-Za-z0-9._~-"
#define DELIMITERS "!$&'()*+,;="
#define PATH_CHARACTER "(?:[:@" DELIMITERS UNRESERVED "]|" ESCAPED ")"
#define AUTHORITY                                                                                            \
    "(?:(?:[:" DELIMITERS UNRESERVED "]|" ESCAPED ")*@)?(?:\\[" IPV6 "\\]|(?:[" DELIMITERS UNRESERVED        \
    "]|" ESCAPED ")*)(?::[0-9]*)?"
#define URI                                                                                                  \
    "[A-Za-z][A-Za-z0-9+.-]*:(?://" AUTHORITY "(?:/" PATH_CHARACTER "*)*|/(?:" PATH_CHARACTER                \
    "+(?:/" PATH_CHARACTER "*)*)?|" PATH_CHARACTER "+(?:/" PATH_CHARACTER                                    \
    "*)*|)(?:\\?(?:[/?]|" PATH_CHARACTER ")*)?(?:#(?:[/?]|" PATH_CHARACTER ")*)?"
/* RFC 3339, appendix A. */
#define DURATION_TIME "T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
#define DURATION_DATE "(?:[0-9]+D|[0-9]+M(?:[0-9]+D)?|[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?)(?:" DURATION_TIME ")?"
#define DURATION "P(?:" DURATION_DATE "|" DURATION_TIME "|[0-9]+W)"

static const struct {
    const char *name, *pattern;
} formats[] = {
    {"date", DATE},
    {"time", TIME},
    {"date-time", DATE "T" TIME},
    {"duration", DURATION},
    {"email", ATOM "(?:\\." ATOM ")*@" HOST},
    {"hostname", HOST},
    {"ipv4", IPV4},
    {"ipv6", IPV6},
    {"uri", URI},
    {"uuid", "[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}"},
};

const char *format_pattern(const char *name) {
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (!strcmp(formats[i].name, name))
            return formats[i].pattern;
    return NULL;
}

const char *format_names(void) {
    return "date, time, date-time, duration, email, hostname, ipv4, ipv6, uri, uuid";
}
