/* The command table. */
#include "base/beacon.h"
#include "base/error.h"
#include "base/log.h"
#include "base/options.h"
#include "campaign/campaign.h"
#include "campaign/check.h"
#include "campaign/phases.h"
#include "campaign/score.h"
#include "cluster/topo.h"
#include "kernels/kernels.h"
#include "model/checkpoint.h"
#include "recipe/commands.h"
#include "recipe/grammar_command.h"
#include "recipe/parse_command.h"

#include <hdf5.h>     /* H5get_libversion */
#include <hwloc.h>    /* hwloc_get_api_version */
#include <mpi.h>      /* MPI_Get_library_version */
#include <stdbool.h>  /* bool */
#include <stdio.h>    /* printf, snprintf */
#include <stdlib.h>   /* getenv, free */
#include <string.h>   /* strcmp */
#include <sys/stat.h> /* stat */

static enum result command_inspect(int argc, char **argv);

struct command {
    const char *name;
    enum result (*run)(int argc, char **argv);
    const char *summary;
};

static const struct command commands[] = {
    {"ingest", command_ingest, "requests.jsonl -> a campaign: token ids, sampling, refused lines"},
    {"vision", command_vision, "images -> embeddings (on ranks; only when requests show images)"},
    {"prefill", command_prefill, "prompts -> sequence states and first tokens (on ranks)"},
    {"decode", command_decode, "sequence states -> answers (on ranks)"},
    {"run", command_run, "prefill and decode in one launch (on ranks)"},
    {"export", command_export, "answers -> results.jsonl, errors.jsonl and results.h5"},
    {"status", command_status, "how far a campaign is"},
    {"report", command_report, "a page on what a campaign did, for a browser"},
    {"cache", command_cache, "what a prefix cache holds, whether it is whole; making it smaller"},
    {"score", command_score, "log-probabilities of given texts (on ranks)"},
    {"check", command_check, "whether a run would find what it needs (on ranks)"},
    {"tokenize", command_tokenize, "texts -> token ids"},
    {"detokenize", command_detokenize, "token ids -> texts"},
    {"render", command_render, "request bodies -> prompts, as the published toolkit makes them"},
    {"parse", command_parse, "what models wrote -> reasoning, content and tool calls"},
    {"grammar", command_grammar, "JSON Schemas and patterns with texts -> which texts fit"},
    {"topo", command_topo, "the machine, and where ranks and experts are placed"},
    {"inspect", command_inspect, "what a checkpoint, a campaign or one of its files holds"},
};

enum { COMMANDS = sizeof commands / sizeof *commands };

/* ---- inspect ---- */

static enum result inspect_checkpoint(const char *folder, bool tensors) {
    struct checkpoint *checkpoint;
    TRY(checkpoint_open(folder, &checkpoint));
    enum result status = checkpoint_print(checkpoint, stdout, tensors);
    checkpoint_close(checkpoint);
    return status;
}

static bool holds(const char *folder, const char *name) {
    char path[4096];
    struct stat found;
    int length = snprintf(path, sizeof path, "%s/%s", folder, name);
    return length < (int)sizeof path && stat(path, &found) == 0;
}

static enum result inspect(const char *path, bool tensors) {
    struct stat found;
    if (stat(path, &found) != 0)
        return fail_errno(ERROR_IO, "%s", path);
    if (!S_ISDIR(found.st_mode))
        return campaign_inspect(path);
    if (holds(path, "config.json"))
        return inspect_checkpoint(path, tensors);
    if (!holds(path, "requests.h5"))
        return fail(ERROR_IO,
            "%s: has neither the config.json of a checkpoint nor the requests.h5 of a campaign", path);
    return campaign_inspect(path);
}

static enum result command_inspect(int argc, char **argv) {
    const struct command_usage usage = {
        .name = "inspect",
        .summary = "Prints what a checkpoint folder, a campaign folder or one of its HDF5 files holds, and "
                   "checks it.",
        .arguments = "FILE_OR_DIR [...]",
    };
    bool tensors = false;
    const struct option options[] = {{.name = "tensors",
                                         .kind = OPTION_FLAG,
                                         .value = &tensors,
                                         .help = "list every tensor of a checkpoint"},
        {0}};
    struct option_list paths = {0};
    bool help_shown;
    enum result status = options_parse(&usage, options, argc, argv, &paths, &help_shown);
    if (status == OK && !help_shown && paths.count == 0)
        status = fail(ERROR_USAGE, "inspect: give a file or folder (see 'nocturne inspect --help')");
    for (int i = 0; status == OK && !help_shown && i < paths.count; i++)
        status = inspect(paths.items[i], tensors);
    free(paths.items);
    return status;
}

/* ---- help and version ---- */

static void print_help(void) {
    printf("usage: nocturne COMMAND [options]\n\n"
           "Runs sets of requests through DeepSeek-V4.1-Flash as batch jobs on a cluster.\n\ncommands:\n");
    for (int i = 0; i < COMMANDS; i++)
        printf("  %-10s %s\n", commands[i].name, commands[i].summary);
    printf("\n'nocturne COMMAND --help' or 'nocturne help COMMAND' shows a command's options. Commands on "
           "ranks are started by mpirun "
           "or srun, or alone:\n"
           "  nocturne ingest --input requests.jsonl --model DIR --campaign DIR\n"
           "  mpirun -n 4 nocturne run --campaign DIR\n"
           "  nocturne export --campaign DIR\n\n"
           "Exit codes: 0 done, 1 internal error, 2 command line, 3 content of a file, 4 file system, 5 "
           "memory, 6 conflict with\n"
           "another process or setting, 7 another rank failed, 75 stopped by a signal (run the same command "
           "again).\n");
}

static void print_instruction_sets(void) {
    static const char *const names[] = {"generic", "avx2", "avx512", "avx512bf16"};
    printf("cpu kernels:");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const struct kernels *kernels = NULL;
        if (kernels_cpu_create(1, names[i], &kernels) != OK)
            continue;
        printf(" %s", names[i]);
        kernels_free(kernels);
    }
    printf("\n");
}

static void print_devices(void) {
    const char *why = NULL;
    int32_t devices = kernels_cuda_devices(&why);
    if (devices > 0)
        printf("cuda devices: %d\n", devices);
    else
        printf("cuda devices: none: %s\n", why);
}

static void print_version(void) {
    char mpi[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0;
    unsigned major = 0, minor = 0, release = 0, hwloc = hwloc_get_api_version();
    MPI_Get_library_version(mpi, &length); /* may be called before MPI_Init */
    char *end = strpbrk(mpi, ",\n");
    if (end)
        *end = '\0';
    printf("nocturne %s\nmpi: %s\n", NOCTURNE_VERSION, mpi);
    if (H5get_libversion(&major, &minor, &release) >= 0)
        printf("hdf5: %u.%u.%u\n", major, minor, release);
    printf("hwloc: API %u.%u.%u\n", hwloc >> 16, hwloc >> 8 & 0xff, hwloc & 0xff);
    print_instruction_sets();
    print_devices();
}

/* ---- dispatch ---- */

/* Letters to change, add or drop to make `a` of `b` (names are short). */
static int edit_distance(const char *a, const char *b) {
    enum { MOST = 32 };
    int row[MOST + 1];
    size_t length = strlen(b);
    if (strlen(a) > MOST || length > MOST)
        return MOST;
    for (size_t k = 0; k <= length; k++)
        row[k] = (int)k;
    for (size_t i = 0; a[i]; i++) {
        int diagonal = row[0];
        row[0] = (int)i + 1;
        for (size_t k = 0; k < length; k++) {
            int change = diagonal + (a[i] != b[k]);
            diagonal = row[k + 1];
            int shorter = (row[k] < row[k + 1] ? row[k] : row[k + 1]) + 1;
            row[k + 1] = change < shorter ? change : shorter;
        }
    }
    return row[length];
}

static enum result unknown_command(const char *word) {
    const struct command *closest = commands;
    for (int i = 1; i < COMMANDS; i++)
        if (edit_distance(word, commands[i].name) < edit_distance(word, closest->name))
            closest = &commands[i];
    char list[256] = "";
    int used = 0;
    for (int i = 0; i < COMMANDS; i++)
        used += snprintf(list + used, sizeof list - (size_t)used, "%s%s", i ? ", " : "", commands[i].name);
    if (edit_distance(word, closest->name) <= 2)
        return fail(ERROR_USAGE, "'%s' is not a command; did you mean '%s'? The commands are: %s", word,
            closest->name, list);
    return fail(ERROR_USAGE, "'%s' is not a command. The commands are: %s", word, list);
}

/* Of the processes that a launcher started, one speaks for all: messages that concern one rank alone name
 * it. */
static bool is_first_process(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const char *rank = getenv(names[i]);
        if (rank)
            return strcmp(rank, "0") == 0;
    }
    return true;
}

static bool is_one_of(const char *word, const char *a, const char *b, const char *c) {
    return !strcmp(word, a) || !strcmp(word, b) || !strcmp(word, c);
}

static enum result run_command(int argc, char **argv) {
    for (int i = 0; i < COMMANDS; i++)
        if (!strcmp(argv[0], commands[i].name)) {
            beacon_phase(commands[i].name);
            return commands[i].run(argc, argv);
        }
    return unknown_command(argv[0]);
}

static enum result help(int argc, char **argv) {
    if (!is_first_process())
        return OK;
    if (argc > 2)
        return run_command(2, (char *[]){argv[2], (char *)"--help", NULL});
    print_help();
    return OK;
}

static enum result dispatch(int argc, char **argv) {
    if (argc < 2)
        return fail(ERROR_USAGE, "give a command: 'nocturne help' lists them");
    if (is_one_of(argv[1], "help", "--help", "-h"))
        return help(argc, argv);
    if (is_one_of(argv[1], "version", "--version", "-V")) {
        if (is_first_process())
            print_version();
        return OK;
    }
    return run_command(argc - 1, argv + 1);
}

static bool asks_for_help(int argc, char **argv) {
    for (int i = 2; i < argc; i++)
        if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"))
            return true;
    return false;
}

int main(int argc, char **argv) {
    bool first = is_first_process();
    if (!first && asks_for_help(argc, argv))
        return OK;
    enum result status = dispatch(argc, argv);
    if (status == OK && (fflush(stdout) || ferror(stdout)))
        status = fail(ERROR_IO, "standard output could not be written to its end");
    if (status != OK && first)
        log_error("%s", failure_message());
    return status;
}
