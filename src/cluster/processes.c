#include "cluster/processes.h"

#include <fcntl.h>      /* open */
#include <stddef.h>     /* offsetof */
#include <stdio.h>      /* snprintf */
#include <stdlib.h>     /* getenv, strtoll */
#include <string.h>     /* memset, strrchr */
#include <sys/socket.h> /* socket */
#include <sys/un.h>     /* struct sockaddr_un */
#include <unistd.h>     /* read, getuid */
#include <xxhash.h>

/* ---- processes ---- */

char process_state(int64_t pid, int64_t *started) {
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%lld/stat", (long long)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    *started = 0;
    if (fd < 0)
        return 0;
    ssize_t bytes = read(fd, text, sizeof text - 1);
    close(fd);
    if (bytes <= 0)
        return 0;
    text[bytes] = '\0';
    /* Field 2, the name, may hold blanks and parentheses; the state is field 3, the start field 22. */
    const char *at = strrchr(text, ')');
    if (!at || !at[1] || !at[2])
        return 0;
    at += 2;
    char state = *at;
    for (int field = 3; field < 22 && at; field++) {
        at = strchr(at, ' ');
        at = at ? at + 1 : NULL;
    }
    *started = at ? strtoll(at, NULL, 10) : 0;
    return state;
}

bool process_is_gone(char state) {
    return state == 0 || state == 'Z' || state == 'X';
}

bool process_is_stopped(char state) {
    return state == 'T' || state == 't';
}

void remove_shared_memory(void) {
    static const char begin[] = "/dev/shm/vader_segment.";
    char line[1024];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) {
        char *path = strstr(line, begin);
        if (!path || strstr(path, " (deleted)"))
            continue;
        path[strcspn(path, "\n")] = '\0';
        unlink(path);
    }
    if (maps)
        fclose(maps);
}

/* ---- arrivals ---- */

static int listener = -1;

/* The first of these variables that is set, as a number; -1 without one. */
static int32_t variable(const char *first, const char *second, const char *third) {
    const char *text = getenv(first);
    if (!text && second)
        text = getenv(second);
    if (!text && third)
        text = getenv(third);
    return text ? (int32_t)strtol(text, NULL, 10) : -1;
}

static int32_t launched_rank(void) {
    return variable("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID");
}

static int32_t launched_count(void) {
    return variable("OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS");
}

/* Ranks of this node; -1: unknown. */
static int32_t launched_here(void) {
    int32_t nodes = variable("SLURM_STEP_NUM_NODES", NULL, NULL);
    int32_t here = variable("OMPI_COMM_WORLD_LOCAL_SIZE", NULL, NULL);
    return here < 0 && nodes == 1 ? launched_count() : here;
}

/* The name of a rank's socket: the run's, hashed to a length that always fits, and the rank. */
static socklen_t address_of(int32_t rank, struct sockaddr_un *address) {
    const char *run = getenv("PMIX_NAMESPACE"), *job = getenv("SLURM_JOB_ID"),
               *step = getenv("SLURM_STEP_ID");
    char text[512];
    snprintf(text, sizeof text, "%s/%s/%s/%s", run ? run : "", job ? job : "", step ? step : "",
        getenv("PMIX_SERVER_URI3") ? getenv("PMIX_SERVER_URI3") : "");
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    int length = snprintf(address->sun_path + 1, sizeof address->sun_path - 1, "nocturne-%ld-%016llx-%d",
        (long)getuid(), (unsigned long long)XXH3_64bits(text, strlen(text)), rank);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

void arrival_show(void) {
    struct sockaddr_un address;
    int32_t rank = launched_rank();
    if (rank < 0 || launched_count() < 2)
        return;
    socklen_t bytes = address_of(rank, &address);
    listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (listener >= 0 && (bind(listener, (const struct sockaddr *)&address, bytes) || listen(listener, 16)))
        arrival_hide();
}

bool arrival_speaks(void) {
    struct sockaddr_un address;
    socklen_t bytes = address_of(-1, &address);
    int speaker = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0); /* stays bound until the process ends */
    return listener < 0 || speaker < 0 || bind(speaker, (const struct sockaddr *)&address, bytes) == 0;
}

void arrival_hide(void) {
    if (listener >= 0)
        close(listener);
    listener = -1;
}

/* The process that shows itself as `rank`, or 0. */
static int64_t find_arrived(int32_t rank) {
    struct sockaddr_un address;
    struct ucred peer = {0};
    socklen_t bytes = address_of(rank, &address), size = sizeof peer;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return 0;
    if (connect(fd, (const struct sockaddr *)&address, bytes) ||
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size))
        peer.pid = 0;
    close(fd);
    return peer.pid;
}

/* Appends "3, 5-7 and 9" piece by piece. */
struct number_list {
    struct buffer text;
    int32_t first, last, count;
};

static void list_end_run(struct number_list *list) {
    if (list->first < 0)
        return;
    buffer_printf(&list->text, list->text.bytes ? ", %d" : "%d", list->first);
    if (list->last > list->first)
        buffer_printf(&list->text, "-%d", list->last);
    list->first = -1;
}

static void list_add(struct number_list *list, int32_t number) {
    if (list->first >= 0 && number == list->last + 1) {
        list->last = number;
    } else {
        list_end_run(list);
        list->first = list->last = number;
    }
    list->count++;
}

void arrival_describe(struct buffer *text) {
    int32_t own = launched_rank(), count = launched_count(), here = launched_here();
    struct number_list absent = {.first = -1}, stopped = {.first = -1};
    if (listener < 0)
        return;
    for (int32_t rank = 0; rank < count; rank++) {
        int64_t started, pid = rank == own ? (int64_t)getpid() : find_arrived(rank);
        if (pid <= 0)
            list_add(&absent, rank);
        else if (process_is_stopped(process_state(pid, &started)))
            list_add(&stopped, rank);
    }
    list_end_run(&absent);
    list_end_run(&stopped);
    if (stopped.count)
        buffer_printf(text, "; stopped on this node (by a signal or a debugger): rank %s", stopped.text.data);
    if (absent.count && here == count)
        buffer_printf(text, "; not arrived: rank %s", absent.text.data);
    else if (absent.count && here > count - absent.count)
        buffer_printf(text, "; %d of this node's %d ranks have not arrived, among rank %s",
            here - count + absent.count, here, absent.text.data);
    else if (absent.count)
        buffer_printf(text, "; all of this node's ranks have arrived, so look at the nodes of rank %s",
            absent.text.data);
    buffer_free(&absent.text);
    buffer_free(&stopped.text);
}
