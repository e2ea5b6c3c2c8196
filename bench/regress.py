#!/usr/bin/env python3
"""Compares the instructions that the main kernels and text paths take on fixed inputs with a stored table.

    bench/regress.py --program build/bench/bench-regress             check
    bench/regress.py --program build/bench/bench-regress --update    write the table anew, on purpose

Callgrind counts, so the result doesn't depend on the machine's speed or load. Valgrind knows no AVX-512: the sets counted are
avx2 and generic, which share their source with the others. Counts depend on the compiler: the table names it and
valgrind's version, and with others the check is skipped (status 77). Status 1: a count differs by more than the
tolerance, or a case was added or removed.
"""
import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile

FOLDER = pathlib.Path(__file__).resolve().parent
SETS = ("avx2", "generic", "text")
TOLERANCE = 0.05
SKIPPED = 77


class Skip(Exception):
    """Why nothing can be compared."""


def output_of(command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def find_tools(program):
    """What the counts depend on besides the source."""
    try:
        valgrind = output_of(["valgrind", "--version"])
    except FileNotFoundError:
        raise Skip("valgrind is not installed (Debian: apt-get install valgrind)") from None
    return {"compiler": output_of([program, "--compiler"]), "valgrind": valgrind}


def has_set(name):
    """Whether this processor can run it; where that can't be asked, the run will tell."""
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    return name != "avx2" or not cpuinfo.exists() or bool(re.search(r"\bavx2\b", cpuinfo.read_text()))


def count_set(program, source, name):
    """{case: instructions} in the order of the program: callgrind writes FILE.1, FILE.2 ... as the cases end."""
    with tempfile.TemporaryDirectory() as folder:
        prefix = os.path.join(folder, "counts")
        environment = dict(os.environ, OMP_NUM_THREADS="1", OMP_WAIT_POLICY="passive", LC_ALL="C")
        command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={prefix}", "--combine-dumps=no",
                   "--toggle-collect=regress_counted", "--dump-after=regress_counted", str(program), name, str(source)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
                              check=False)
        if done.returncode != 0:
            sys.exit(f"regress: {' '.join(command)} ended with {done.returncode}:\n{done.stderr}")
        counts = {}
        for number, case in enumerate(done.stdout.splitlines(), start=1):
            path = pathlib.Path(f"{prefix}.{number}")
            if not path.exists():
                sys.exit(f"regress: callgrind counted nothing for {name}, {case}: was regress_counted inlined?")
            counts[(name, case)] = int(re.search(r"^totals: (\d+)", path.read_text(), re.MULTILINE).group(1))
        return counts


def read_table(path):
    tools, counts = {}, {}
    for line in path.read_text().splitlines():
        fields = line.split("\t")
        if line.startswith("# ") and len(fields) == 2:
            tools[fields[0][2:]] = fields[1]
        elif line and not line.startswith("#"):
            counts[(fields[0], fields[1])] = int(fields[2])
    return tools, counts


def write_table(path, tools, counts):
    lines = ["# Instructions of one call, counted by callgrind; written by bench/regress.py --update",
             *(f"# {name}\t{value}" for name, value in tools.items()),
             *(f"{name}\t{case}\t{count}" for (name, case), count in counts.items())]
    path.write_text("\n".join(lines) + "\n")


def compare(stored, counted, sets):
    """Complaints, one a line."""
    complaints = []
    for key, count in counted.items():
        if key not in stored:
            complaints.append(f"{key[0]}: {key[1]}: not in the table ({count} instructions)")
            continue
        change = count / stored[key] - 1
        if abs(change) > TOLERANCE:
            verdict = "grew" if change > 0 else "shrank (good, but the table must say so)"
            complaints.append(f"{key[0]}: {key[1]}: {stored[key]} -> {count} instructions, {change:+.1%}: {verdict}")
    complaints += [f"{key[0]}: {key[1]}: in the table, but no longer counted"
                   for key in stored if key[0] in sets and key not in counted]
    return complaints


def check(arguments):
    tools = find_tools(arguments.program)
    if not arguments.update:
        stored_tools, stored = read_table(arguments.table)
        for name, value in tools.items():
            if stored_tools.get(name) != value:
                raise Skip(f"the table was made with {stored_tools.get(name)}, here is {value}; counts depend on it")
    sets = [name for name in arguments.sets or SETS if has_set(name)]
    counted = {}
    for name in sets:
        counted.update(count_set(arguments.program, arguments.source, name))
    if arguments.update:
        if sets != list(SETS):
            sys.exit("regress: --update needs all sets: " + ", ".join(SETS))
        write_table(arguments.table, tools, counted)
        print(f"regress: wrote {len(counted)} counts to {arguments.table}")
        return 0
    complaints = compare(stored, counted, sets)
    for complaint in complaints:
        print(complaint)
    if complaints:
        print(f"regress: {len(complaints)} of {len(counted)} counts differ by more than {TOLERANCE:.0%}. If that is meant, "
              f"run bench/regress.py --program {arguments.program} --update and commit bench/regress.tsv.")
        return 1
    print(f"regress: {len(counted)} counts are within {TOLERANCE:.0%} of the table")
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=pathlib.Path, required=True, help="bench-regress, as built")
    parser.add_argument("--source", type=pathlib.Path, default=FOLDER.parent, help="the source folder (inputs/)")
    parser.add_argument("--table", type=pathlib.Path, default=FOLDER / "regress.tsv", help="bench/regress.tsv")
    parser.add_argument("--update", action="store_true", help="write the table instead of comparing")
    parser.add_argument("sets", nargs="*", metavar="SET", help=f"of {', '.join(SETS)} (default: all)")
    arguments = parser.parse_args()
    unknown = set(arguments.sets) - set(SETS)
    if unknown:
        parser.error(f"unknown set: {', '.join(sorted(unknown))}")
    try:
        return check(arguments)
    except Skip as reason:
        print(f"regress: skipped: {reason}")
        return SKIPPED


if __name__ == "__main__":
    sys.exit(main())
