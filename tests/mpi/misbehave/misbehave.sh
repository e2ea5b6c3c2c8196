#!/bin/bash
# Three ranks of which the last misbehaves: the run ends in bounded time with the right code and a message that names what
# happened. misbehave.sh PROGRAM MPIRUN...
set -uo pipefail
program=$1
shift
failures=0

expect() { # KIND CODE TEXT: a regular expression that one line must match
    local output code
    # Open MPI's launcher itself crashes at times while it reports a rank's end (139: SIGSEGV in PMIx_server_finalize): it gets another try.
    for _ in 1 2; do
        output=$(timeout --kill-after=5 30 "${mpirun[@]}" -n 3 "$program" "$1" 2>&1)
        code=$?
        [[ $code == 139 && $output == *PMIx_server_finalize* ]] || break
    done
    if [[ $code != "$2" ]] || ! grep -qE -- "$3" <<<"$output"; then
        echo "$1: exit code $code, expected $2 and a line like '$3'. The output was:"
        printf '%s\n' "$output"
        failures=$((failures + 1))
    fi
}

mpirun=("$@")
host=$(hostname)
missing="rank [01] on $host waited 2\.[0-9]+ s in 'second barrier' \(call 2 of a group of 3 ranks; [^)]*\)"
seen="last seen [0-9]+ s ago in"

quiet=$(timeout 30 "${mpirun[@]}" -n 3 "$program" behave 2>&1)
if [[ $? != 0 || -n $quiet ]]; then
    echo "behave: an orderly run failed, or printed this: $quiet"
    failures=1
fi
expect sleep 7 "$missing; no sign of rank 2 on $host \(process [0-9]+\) is alive, $seen"
expect stop 7 "$missing; rank 2 on $host \(process [0-9]+\) is stopped \(by a signal or a debugger\), $seen"
expect never-start 7 "process [0-9]+ on $host waited 2 s for the other ranks at the start of the run.*; not arrived: rank 2; the run"
expect never-end 7 "process [0-9]+ on $host waited 2 s for the other ranks at the end of the run.*; no sign of rank 2"
# mpirun makes the code when a rank exits with 0 before the end.
expect leave 1 "rank 2 on $host \(process [0-9]+\) has gone without a word"
expect fail-alone 4 'rank 2\]: error: the disk of rank 2 is full'
expect agree 3 "rank 0\]: error: rank 2 on $host: a bad file"
expect bad-supernode 2 'rank 0\]: error: --supernode 2: the run has 3 ranks'
exit "$failures"
