# shellcheck shell=bash
# Sourced by the scripts of this folder: runs one phase of a campaign within a Slurm job. submit.sh sets the variables:
#
#     NOCTURNE_PROGRAM    the program (default: nocturne)
#     NOCTURNE_CAMPAIGN   the campaign's folder
#     NOCTURNE_LAUNCHER   srun (default) or mpirun
#     NOCTURNE_MPI        what srun's --mpi is given (default: pmix)
#     NOCTURNE_LAUNCHES   most launches of a phase (default: 20)
#     NOCTURNE_SILENCE    seconds without any progress after which the launcher is ended (default: 1800)
#     NOCTURNE_ARGUMENTS  further options of prefill, decode and run, one a line

program=${NOCTURNE_PROGRAM:-nocturne}
campaign=${NOCTURNE_CAMPAIGN:?"set NOCTURNE_CAMPAIGN, or submit by jobs/submit.sh"}
cancelled=false
arguments=()
if [[ -n ${NOCTURNE_ARGUMENTS-} ]]; then
    mapfile -t arguments <<<"$NOCTURNE_ARGUMENTS"
fi

# When the job ends, as an option, for versions of Slurm that do not tell in SLURM_JOB_END_TIME.
job_end() {
    if [[ -n ${SLURM_JOB_END_TIME-} ]]; then
        return
    fi
    local end
    end=$(scontrol show job "$SLURM_JOB_ID" 2>/dev/null | sed --quiet 's/.* EndTime=\([-0-9T:]*\).*/\1/p' | head -n 1)
    if [[ -n $end ]]; then
        printf -- '--until\n%s\n' "$end"
    fi
}

# Status 75 asks for another allocation: the job goes back into the queue under its own number, so that the jobs that wait for it
# go on waiting.
go_on_later() {
    local launches=$((${SLURM_RESTART_COUNT:-0} + 1))
    # scancel ends the ranks by SIGTERM too, and a job that was cancelled must not come back.
    if $cancelled || ! scontrol show job "$SLURM_JOB_ID" | grep --quiet 'JobState=RUNNING'; then
        echo "$1: cancelled; submit again to go on"
        exit 75
    fi
    if ((launches >= ${NOCTURNE_LAUNCHES:-20})); then
        echo "$1: stopped after $launches launches; submit again to go on, or give --launches more" >&2
        exit 75
    fi
    echo "$1: launch $launches has ended with its allocation; back into the queue"
    # Slurm ends this job while it requeues it.
    scontrol requeue "$SLURM_JOB_ID" || exit 75
    sleep 60
    exit 75
}

# Ranks watch each other and end when one is gone, but a launcher can outlive them for ever, for one when Slurm's daemon of the step was
# killed. progress.json is written anew every few seconds.
# watch_launcher NAME LAUNCHER
watch_launcher() {
    local silence=${NOCTURNE_SILENCE:-1800} begun=$SECONDS last
    while sleep 5 && kill -0 "$2" 2>/dev/null; do
        last=$(stat --format=%Y "$campaign/progress.json" 2>/dev/null || echo 0)
        if ((SECONDS - begun > silence && $(date +%s) - last > silence)); then
            echo "$1: no progress for $silence s: ending the launcher. Run the same command again to go on" >&2
            kill -TERM "$2" 2>/dev/null
            sleep 10
            kill -KILL "$2" 2>/dev/null
            return
        fi
    done
}

# run_command NAME ARGUMENTS...: a command without ranks.
run_command() {
    echo "$1: job $SLURM_JOB_ID on $SLURM_JOB_NODELIST, $(date --iso-8601=seconds)"
    "$program" "$@"
}

# run_phase NAME: a command on ranks, one a task.
run_phase() {
    local name=$1 status=0 options=()
    if [[ $name != vision ]]; then
        mapfile -t options < <(job_end)
        options+=("${arguments[@]}")
    fi
    echo "$name: job $SLURM_JOB_ID on $SLURM_JOB_NODELIST, launch $((${SLURM_RESTART_COUNT:-0} + 1)), $(date --iso-8601=seconds)"
    local command=("$program" "$name" --campaign "$campaign" "${options[@]}")
    case ${NOCTURNE_LAUNCHER:-srun} in
    srun) command=(srun --mpi="${NOCTURNE_MPI:-pmix}" --kill-on-bad-exit=0 "${command[@]}") ;;
    mpirun) command=(mpirun "${command[@]}") ;;
    *)
        echo "$name: NOCTURNE_LAUNCHER is $NOCTURNE_LAUNCHER, expected srun or mpirun" >&2
        exit 2
        ;;
    esac
    rm -f "$campaign/progress.json"
    "${command[@]}" &
    local launcher=$!
    # The warning before the walltime comes to this shell; both launchers hand it on to the ranks.
    trap 'kill -USR1 "$launcher" 2>/dev/null' USR1
    trap 'cancelled=true; kill -TERM "$launcher" 2>/dev/null' TERM
    watch_launcher "$name" "$launcher" &
    local watcher=$!
    # A signal ends a wait early.
    while :; do
        status=0
        wait "$launcher" || status=$?
        if ! kill -0 "$launcher" 2>/dev/null; then
            break
        fi
    done
    kill "$watcher" 2>/dev/null || true
    if ((status == 75)); then
        go_on_later "$name"
    fi
    # srun may return 0 though its tasks could not be started.
    if ((status == 0)) && ! grep --quiet '"finished": *true' "$campaign/progress.json" 2>/dev/null; then
        echo "$name: the launcher returned 0, but the phase did not come to its end: see above" >&2
        exit 1
    fi
    exit "$status"
}
