#!/bin/bash
# Writes the manual page of the program from what it says of itself, so that it cannot be out of date.
#
#     tools/make_man_page.sh PROGRAM VERSION >nocturne.1
set -euo pipefail

if (($# != 2)); then
    echo "usage: $0 PROGRAM VERSION >nocturne.1" >&2
    exit 2
fi
program=$1
version=$2

# Text as roff takes it: backslashes and hyphens stay what they are, and no line begins with a control character.
as_text() {
    sed -e 's/\\/\\e/g' -e 's/-/\\-/g' -e "s/^\([.']\)/\\\\\&\1/"
}

# The commands' names, in the order of the list of commands.
commands() {
    "$program" --help | awk '/^commands:/ { inside = 1; next } inside && !NF { exit } inside { print $1 }'
}

# One command's help text: its usage, then words, with the table of options as tagged paragraphs.
command_section() {
    "$program" "$1" --help | as_text | awk '
        function leave() { if (example) { print ".EE"; example = 0 } }
        NR == 1 { sub(/^usage: /, ""); print ".SS " name; print ".B " $0; next }
        !NF { leave(); print ".PP"; next }
        /^  \\-\\-/ {
            leave()
            line = substr($0, 3)
            at = match(line, /  +/)
            print ".TP"
            print ".B " (at ? substr(line, 1, at - 1) : line)
            if (at) print substr(line, at + RLENGTH)
            next
        }
        /^   / { leave(); sub(/^ +/, ""); print; next }
        /^  / { if (!example) { print ".EX"; example = 1 } print; next }
        { leave(); print }
        END { leave() }' name="$1"
}

cat <<PAGE
.TH NOCTURNE 1 "" "Nocturne $version" "Nocturne"
.SH NAME
nocturne \- offline inference of DeepSeek\-V4.1\-Flash as batch jobs on clusters
.SH SYNOPSIS
.B nocturne
.I COMMAND
.RI [ options ]
.br
.B srun nocturne
.I COMMAND
.RI [ options ]
.br
.B mpirun \-n
.I N
.B nocturne
.I COMMAND
.RI [ options ]
.SH DESCRIPTION
PAGE
"$program" --help | as_text | awk '
    NR == 1 { next }
    /^commands:/ { inside = 1; next }
    inside && !NF { inside = 0; print ".PP"; next }
    inside { name = $1; sub(/^ *[^ ]+ +/, ""); print ".TP"; print ".B " name; print; next }
    !NF { if (example) print ".EE"; example = 0; print ".PP"; next }
    /^  / { if (!example) print ".EX"; example = 1; print; next }
    { if (example) print ".EE"; example = 0; print }'
echo ".SH COMMANDS"
while read -r command; do
    command_section "$command"
done < <(commands)
cat <<'PAGE'
.SH FILES
A campaign is a folder:
.TP
.I requests.h5
token ids and settings of all requests, made by ingest
.TP
.I vision/, prefill/, results/
parts written by the phases; a part that has its final name is complete
.TP
.I results.jsonl, errors.jsonl, results.h5
answers and refused lines, made by export
.TP
.I lock
who works on the campaign
.SH ENVIRONMENT
Open MPI, Slurm, OpenMP, HDF5 and CUDA read their own variables; the variables of a Slurm job that name its end and its number are looked at.
.B TMPDIR
is where MPI puts its sockets.
.SH SEE ALSO
.BR mpirun (1),
.BR srun (1),
.BR sbatch (1)
.br
The user guide, the file formats and the guide to operations are in the documentation folder of the installation.
PAGE
