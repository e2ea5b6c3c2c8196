#!/usr/bin/env python3
"""bench/regress.py must tell when counts differ from its table: comparison.py BENCH_REGRESS

Counts the text paths into a table of its own, then runs the comparison on doctored copies of it."""
import pathlib
import subprocess
import sys
import tempfile

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "bench" / "regress.py"
sys.dont_write_bytecode = True  # no __pycache__ beside the script
sys.path.insert(0, str(SCRIPT.parent))
import regress  # noqa: E402 (the script above)


def run(program, table, *arguments):
    return subprocess.run([sys.executable, SCRIPT, "--program", program, "--table", table, *arguments],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)


def expect(what, done, status, *texts):
    if done.returncode != status or any(text not in done.stdout for text in texts):
        sys.exit(f"{what}: expected status {status} and {texts}, found {done.returncode}:\n{done.stdout}")
    print(f"{what}: as expected")


def main():
    program = pathlib.Path(sys.argv[1])
    try:
        tools = regress.find_tools(program)
    except regress.Skip as reason:
        print(reason)
        return 77
    counts = regress.count_set(program, SCRIPT.parents[1], "text")
    key = ("text", "tokenize")
    with tempfile.TemporaryDirectory() as folder:
        table = pathlib.Path(folder) / "table.tsv"

        def doctored(changes, told=tools):
            regress.write_table(table, told, {**counts, **changes})
            return run(program, table, "text")

        expect("the same counts", doctored({}), 0, "4 counts are within 5%")
        expect("4% more", doctored({key: int(counts[key] / 1.04)}), 0)
        expect("6% more", doctored({key: int(counts[key] / 1.06)}), 1, "tokenize", "+6.0%: grew", "--update")
        expect("8% less", doctored({key: int(counts[key] / 0.92)}), 1, "tokenize", "-8.0%: shrank")
        expect("a case more in the table", doctored({("text", "gone"): 5}), 1, "gone: in the table")
        expect("of a set not counted", doctored({("avx2", "other"): 5}), 0)
        expect("another compiler", doctored({key: 1}, {**tools, "compiler": "gcc 0"}), 77, "gcc 0")
        regress.write_table(table, tools, {k: v for k, v in counts.items() if k != key})
        expect("a case missing in the table", run(program, table, "text"), 1, "tokenize: not in the table")
        expect("update of some sets", run(program, table, "text", "--update"), 1, "all sets")
    return 0


if __name__ == "__main__":
    sys.exit(main())
