#!/bin/bash
# Submits a whole campaign to Slurm as a chain of jobs, or runs it here.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

usage() {
    cat <<USAGE
usage: jobs/submit.sh CAMPAIGN REQUESTS [REQUESTS ...] [options] [-- OPTIONS OF PREFILL, DECODE AND RUN]

Submits the jobs ingest -> vision (if a request has an image) -> prefill -> decode -> export to Slurm, each waiting for
the one before, and prints their numbers. A phase that does not end in its allocation stops in time, goes back into the
queue and continues. The same command again goes on with a campaign whose chain was broken.

  CAMPAIGN              the campaign's folder, on a file system that all nodes share; made when it is not there
  REQUESTS              files of OpenAI batch lines

  --model DIR           the checkpoint (default: the embedded model, to try things out)
  --program FILE        nocturne (default: the one installed with this script, else that in PATH)
  --run                 prefill and decode in one job, without files between them
  --nodes N             nodes of each phase (1)
  --tasks-per-node N    ranks of each node (1)
  --cpus-per-task N     cores of each rank
  --gpus-per-task N     accelerators of each rank (with GPUs: 1)
  --time LIMIT          walltime of each allocation of a phase, as sbatch takes it (the partition's)
  --begin TIME          when the chain may start, as sbatch takes it: 20:00, tomorrow, now+2hours
  --signal SECONDS      warning before the walltime (120; 0: none); the program also knows the end by itself
  --launches N          most allocations of a phase (20)
  --silence SECONDS     a launcher without progress for so long is ended; more than loading the model takes (1800)
  --partition NAME, --account NAME, --qos NAME, --constraint TEXT
  --sbatch OPTION       any further option of sbatch, as one word; may be given again
  --launcher NAME       srun or mpirun (srun)
  --mpi NAME            what srun's --mpi is given (pmix)
  --logs DIR            where the jobs' output goes (CAMPAIGN/logs)
  --dry-run             print the commands, submit nothing
  --local               no Slurm: run the phases here, one after the other, under mpirun
  --ranks N             with --local: ranks of a phase (1)
  --help                this text

Example: jobs/submit.sh /scratch/night requests.jsonl --model /models/v4.1 --nodes 16 --tasks-per-node 8 \\
    --gpus-per-task 1 --time 08:00:00 --begin 20:00
USAGE
}

refuse() {
    echo "submit.sh: $*" >&2
    echo "submit.sh --help shows how it is used" >&2
    exit 2
}

# ---- the command line ----

campaign=
requests=()
model=
program=
phases=(prefill decode)
tasks_per_node=1
launches=20
silence=1800
launcher=srun
mpi=pmix
signal=120
logs=
begin=
dry_run=false
here_and_now=false
ranks=1
resources=() # of jobs with ranks
everywhere=() # of all jobs
arguments=()

# count NAME VALUE: a number from 1 on.
count() {
    [[ $2 =~ ^[1-9][0-9]{0,6}$ ]] || refuse "$1 $2: expected a number from 1 on"
}

while (($# > 0)); do
    case $1 in
    --help | -h)
        usage
        exit 0
        ;;
    --run) phases=(run) ;;
    --dry-run) dry_run=true ;;
    --local) here_and_now=true ;;
    --)
        shift
        arguments=("$@")
        break
        ;;
    --*)
        (($# > 1)) || refuse "$1 needs a value"
        case $1 in
        --model) model=$2 ;;
        --program) program=$2 ;;
        --nodes | --cpus-per-task | --gpus-per-task)
            count "$1" "$2"
            resources+=("$1=$2")
            ;;
        --tasks-per-node)
            count "$1" "$2"
            tasks_per_node=$2
            ;;
        --time) resources+=("--time=$2") ;;
        --begin) begin=$2 ;;
        --signal)
            [[ $2 =~ ^[0-9]{1,5}$ ]] || refuse "--signal $2: expected a number of seconds"
            signal=$2
            ;;
        --launches)
            count "$1" "$2"
            launches=$2
            ;;
        --silence)
            count "$1" "$2"
            silence=$2
            ;;
        --partition | --account | --qos | --constraint) everywhere+=("$1=$2") ;;
        --sbatch) everywhere+=("$2") ;;
        --launcher)
            [[ $2 == srun || $2 == mpirun ]] || refuse "--launcher $2: expected srun or mpirun"
            launcher=$2
            ;;
        --mpi) mpi=$2 ;;
        --logs) logs=$2 ;;
        --ranks)
            count "$1" "$2"
            ranks=$2
            ;;
        *) refuse "unknown option $1" ;;
        esac
        shift
        ;;
    *)
        if [[ -z $campaign ]]; then
            campaign=$1
        else
            requests+=("$1")
        fi
        ;;
    esac
    shift
done
[[ -n $campaign ]] || refuse "no campaign given"
((${#requests[@]} > 0)) || refuse "no file of requests given"

campaign=$(realpath --canonicalize-missing "$campaign")
for i in "${!requests[@]}"; do
    [[ -f ${requests[i]} && -r ${requests[i]} ]] || refuse "cannot read ${requests[i]}"
    requests[i]=$(realpath "${requests[i]}")
done

# ---- what is run ----

if [[ -z $program ]]; then
    program=$(realpath --canonicalize-missing "$here/../../../bin/nocturne")
    if ! [[ -x $program ]]; then
        program=$(command -v nocturne || true)
    fi
    [[ -n $program ]] || refuse "nocturne is not in PATH: give --program"
fi
program=$(realpath --canonicalize-missing "$program")
[[ -x $program ]] || refuse "--program $program: no such program"
model=$(realpath --canonicalize-missing "${model:-$here/../inputs/nano}")
[[ -e $model/config.json ]] || refuse "--model $model: there is no config.json"
logs=$(realpath --canonicalize-missing "${logs:-$campaign/logs}")

# An image in a request stands in a member whose name or type begins with "image" (image_url, input_image, image).
if grep --quiet --extended-regexp '"(input_)?image' -- "${requests[@]}"; then
    phases=(vision "${phases[@]}")
fi

# ---- without Slurm ----

# shellcheck disable=SC2317 # called through show_or_run
run_here() {
    echo "== $*"
    "$@"
}

show_or_run() {
    if $dry_run; then
        printf '%q ' "$@"
        echo
    else
        run_here "$@"
    fi
}

run_locally() {
    # shellcheck source=jobs/mpi-environment.sh
    source "$here/mpi-environment.sh"
    local phase options
    show_or_run "$program" ingest --input "${requests[@]}" --model "$model" --campaign "$campaign"
    for phase in "${phases[@]}"; do
        options=()
        if [[ $phase != vision ]]; then
            options=("${arguments[@]}")
        fi
        show_or_run mpirun -n "$ranks" "$program" "$phase" --campaign "$campaign" "${options[@]}"
    done
    show_or_run "$program" export --campaign "$campaign"
}

if $here_and_now; then
    run_locally
    exit 0
fi

# ---- with Slurm ----

if ! $dry_run && ! command -v sbatch >/dev/null; then
    refuse "there is no sbatch here: give --local to run the campaign on this machine, or --dry-run"
fi

# Values with newlines in them: lists of file names and options, one a line.
export NOCTURNE_JOBS=$here/slurm NOCTURNE_PROGRAM=$program NOCTURNE_CAMPAIGN=$campaign NOCTURNE_MODEL=$model
export NOCTURNE_LAUNCHER=$launcher NOCTURNE_MPI=$mpi NOCTURNE_LAUNCHES=$launches
export NOCTURNE_SILENCE=$silence
NOCTURNE_REQUESTS=$(printf '%s\n' "${requests[@]}")
NOCTURNE_ARGUMENTS=$(printf '%s\n' "${arguments[@]}")
export NOCTURNE_REQUESTS NOCTURNE_ARGUMENTS

previous=
# submit NAME OPTIONS...: one job, after the one before.
submit() {
    local name=$1
    shift
    local command=(sbatch --parsable --export=ALL --output="$logs/$name-%j.log" "${everywhere[@]}" "$@")
    if [[ -n $previous ]]; then
        command+=(--dependency="afterok:$previous" --kill-on-invalid-dep=yes)
    elif [[ -n $begin ]]; then
        command+=(--begin="$begin")
    fi
    command+=("$here/slurm/$name.sh")
    if $dry_run; then
        printf '%q ' "${command[@]}"
        echo
        previous="JOB_OF_${name^^}"
        return
    fi
    previous=$("${command[@]}") || {
        echo "submit.sh: sbatch refused $name; jobs submitted before it wait or run: squeue --me" >&2
        exit 1
    }
    previous=${previous%%;*} # a cluster's name may follow
    printf '%-8s job %s, output in %s\n' "$name" "$previous" "$logs/$name-$previous.log"
}

if $dry_run; then
    for name in JOBS PROGRAM CAMPAIGN MODEL LAUNCHER MPI LAUNCHES SILENCE REQUESTS ARGUMENTS; do
        name=NOCTURNE_$name
        printf 'export %s=%q\n' "$name" "${!name}"
    done
else
    mkdir --parents "$logs"
fi
if ((signal > 0)); then
    resources+=("--signal=B:USR1@$signal")
fi
submit ingest
for phase in "${phases[@]}"; do
    submit "$phase" "${resources[@]}" --ntasks-per-node="$tasks_per_node"
done
submit export
