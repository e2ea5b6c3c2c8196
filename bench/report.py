#!/usr/bin/env python3
"""Measures what docs/performance.md shows, and puts it there.

    bench/report.py --build build --checkpoint DIR --python VENV/bin/python [--only model,kernels,compare]

Each table of the page follows a line <!-- NAME -->; the block after it is replaced by the output of its program. Run it on a machine that
does nothing else (half an hour, most of it other engines), or with --processor-time, where one thread's processor
time counts and other programs disturb less; other engines are then compared on one product only.
"""
import argparse
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "performance.md"
# Of the rows of bench-kernels: the largest weights of each kind, and the sizes where a checkpoint's are small.
SHOWN = re.compile(r"instruction set|kernel +shape|small w1|small head|wq_b fp8 32768|wo_b fp8 5120|w1 fp4 2304|wo_a|experts|attend|"
                   r"choose|^(mix|encode|collapse_norm) .* 5120 ")


def show(command, arguments):
    """The command as the page shows it: without this machine's paths."""
    names = {str(arguments.build): "build", str(arguments.checkpoint): "CHECKPOINT", arguments.python: "VENV/bin/python"}
    parts = [str(part) for part in command]
    return " ".join([pathlib.Path(parts[0]).name, *(names.get(part, part) for part in parts[1:])])


def output_of(command):
    print(" ".join(str(part) for part in command), file=sys.stderr, flush=True)
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"report: {command[0]} ended with {done.returncode}")
    return done.stdout.rstrip().splitlines()


def replace_block(page, name, lines):
    block = f"<!-- {name} -->\n\n```text\n" + "\n".join(line.rstrip() for line in lines) + "\n```\n"
    pattern = re.compile(rf"<!-- {name} -->\n\n```text\n.*?\n```\n", re.DOTALL)
    if not pattern.search(page):
        sys.exit(f"report: {PAGE} has no block after <!-- {name} -->")
    return pattern.sub(lambda _: block, page, count=1)


def programs(arguments):
    """{name of the block: command}"""
    folder = arguments.build / "bench"
    clock = ["--processor-time"] if arguments.processor_time else []
    compared = ["--checkpoint", arguments.checkpoint] if not clock else ["--engines", "nocturne,ggml"]
    return {"model": [folder / "bench-model", arguments.checkpoint, *clock, *(["--long"] if arguments.long else [])],
            "kernels": [folder / "bench-kernels", *clock],
            "compare": [ROOT / "bench" / "compare.py", "--build", arguments.build, *compared,
                        "--python", arguments.python, *clock]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build"), help="the build folder (build)")
    parser.add_argument("--checkpoint", type=pathlib.Path, required=True)
    parser.add_argument("--python", default=sys.executable, help="the Python that has the other engines, for compare")
    parser.add_argument("--only", default="model,kernels,compare", help="blocks to make anew (all)")
    parser.add_argument("--long", action="store_true", help="bench-model with prompts of 32k and 200k tokens too")
    parser.add_argument("--processor-time", action="store_true")
    arguments = parser.parse_args()
    commands = programs(arguments)
    for name in arguments.only.split(","):
        if name not in commands:
            parser.error(f"unknown block: {name}")
        lines = output_of(commands[name])
        if name == "kernels":
            lines = [line for line in lines if SHOWN.search(line)]
        if name == "compare":
            lines = [line for line in lines if line]
        lines = ["$ " + show(commands[name], arguments), *lines]
        PAGE.write_text(replace_block(PAGE.read_text(), name, lines))
        print(f"report: {name} is in {os.path.relpath(PAGE)}", file=sys.stderr)


if __name__ == "__main__":
    main()
