#!/usr/bin/env python3
"""Nocturne's speed beside that of other engines on the same machine, in the same run.

    bench/compare.py --build build --checkpoint DIR --python VENV/bin/python

Runs, one after the other and each in a process of its own: bench-model, fastllm and mlx-vlm on the checkpoint (decoding of
1, 8 and 32 sequences, a prompt of 512 tokens), and bench-kernels and ggml on one FP4 product. What isn't installed in the
given Python, fails or takes too long is named below the tables. To install all of them:

    python3 -m venv VENV && VENV/bin/pip install ftllm mlx-vlm 'mlx[cpu]' ggml-python

The checkpoint folder is only read; what other engines want beside its files goes to a temporary folder of links.
Nocturne's sequences decode after 256 tokens, the others' after 8.
"""
import argparse
import json
import os
import pathlib
import platform
import signal
import subprocess
import sys
import tempfile

PEERS = pathlib.Path(__file__).resolve().parent / "peers"
NOT_INSTALLED = 77
BATCHES, PROMPT, TOKENS = "1,8,32", 512, "1,8,64,512"
SHAPES = {"2304x5120": "w1 fp4 2304x5120", "512x1024": "small w1 fp4 512x1024"}  # ggml's name: bench-kernels' shape


def run(name, command, seconds, problems):
    """The JSON objects that a command printed a line each, also when it then failed or took too long."""
    print(f"running {name} ...", file=sys.stderr, flush=True)
    try:
        done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              timeout=seconds, check=False)
        output, errors, status = done.stdout, done.stderr, done.returncode
    except subprocess.TimeoutExpired as expired:
        output, errors, status = expired.stdout or b"", b"", f"none: stopped after {seconds} s (--timeout)"
    except OSError as error:
        problems.append(f"{name}: {error}")
        return []
    if status == NOT_INSTALLED:
        problems.append(errors.decode(errors="replace").strip().splitlines()[-1])
    elif status != 0:
        last = errors.decode(errors="replace").strip().splitlines()[-3:]
        problems.append("\n    ".join([f"{name}: status {status}", *last]))
    rows = []
    for line in output.decode(errors="replace").splitlines():
        if line.startswith("{"):  # engines print other things too
            try:
                rows.append(json.loads(line))
            except ValueError:
                continue
    return rows


def ratio(ours, theirs):
    return f"{ours / theirs:.1f}x" if ours and theirs else "-"


def number(value, width=9):
    return f"{value:{width}.1f}" if value else f"{'-':>{width}}"


# ---- the model ----

def speeds(rows):
    """{("decode", batch) or ("prefill", tokens): row}"""
    return {(row["phase"], row["batch"] if row["phase"] == "decode" else row["prompt"]): row
            for row in rows if "tokens_per_second" in row}


def compare_models(arguments, problems):
    wanted = {"nocturne", "fastllm", "mlx-vlm"} & set(arguments.engines)
    size = ["--prompt", PROMPT, "--batches", BATCHES]
    found = {}
    with tempfile.TemporaryDirectory(prefix="nocturne-compare-") as scratch:
        commands = {
            "nocturne": [arguments.build / "bench" / "bench-model", arguments.checkpoint, "--threads", arguments.threads,
                         "--prompts", PROMPT, "--batches", BATCHES, "--json"],
            "fastllm": [arguments.python, PEERS / "fastllm_peer.py", arguments.checkpoint, scratch,
                        "--threads", arguments.threads, *size],
            "mlx-vlm": [arguments.python, PEERS / "mlx_vlm_peer.py", arguments.checkpoint, *size]}
        for name, command in commands.items():
            if name in wanted:
                found[name] = speeds(run(name, command, arguments.timeout, problems))
    ours, others = found.get("nocturne", {}), [name for name in found if name != "nocturne"]
    print(f"\nTokens a second, threads: {arguments.threads}, checkpoint {os.path.basename(os.path.normpath(arguments.checkpoint))}")
    print(f"{'phase':<12} {'nocturne':>9} {'of limit':>8}" + "".join(f" {name:>9} {'ratio':>7}" for name in others))
    for key in [*(("decode", int(batch)) for batch in BATCHES.split(",")), ("prefill", PROMPT)]:
        row = ours.get(key, {})
        speed = row.get("tokens_per_second")
        share = f"{row['share_of_limit']:.0%}" if "share_of_limit" in row else "-"
        line = f"{key[0] + ' ' + str(key[1]):<12} {number(speed)} {share:>8}"
        for name in others:
            theirs = found[name].get(key, {}).get("tokens_per_second")
            line += f" {number(theirs)} {ratio(speed, theirs):>7}"
        print(line, flush=True)


# ---- one product ----

def compare_products(arguments, problems):
    clock = ["--processor-time"] if arguments.processor_time else []
    ours = {(row["shape"], row["tokens"]): row["gflops"] for row in run(
        "bench-kernels", [arguments.build / "bench" / "bench-kernels", "--threads", arguments.threads,
                          "--tokens", TOKENS, "--json", *clock, "product"], arguments.timeout, problems)
            if row.get("kernel") == "product"}
    theirs = {(row["shape"], row["tokens"]): row["gflops"] for row in run(
        "ggml", [arguments.python, PEERS / "ggml_peer.py", "--threads", arguments.threads, "--tokens", TOKENS, *clock,
                 *SHAPES], arguments.timeout, problems)}
    print(f"\nFP4 product, GFLOP/s, threads: {arguments.threads}; ggml: repacked MXFP4 by 8-bit integers")
    print(f"{'rows x columns':<14} {'tokens':>6} {'nocturne':>9} {'ggml':>9} {'ratio':>7}")
    for shape, name in SHAPES.items():
        for tokens in [int(text) for text in TOKENS.split(",")]:
            one, other = ours.get((name, tokens)), theirs.get((shape, tokens))
            print(f"{shape:<14} {tokens:>6} {number(one)} {number(other)} {ratio(one, other):>7}", flush=True)


def processor():
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


def main():
    engines = ["nocturne", "fastllm", "mlx-vlm", "ggml"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build"), help="the build folder (build)")
    parser.add_argument("--checkpoint", type=pathlib.Path, help="without it: the product only")
    parser.add_argument("--python", default=sys.executable, help="the Python that has the other engines")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="(all processors)")
    parser.add_argument("--timeout", type=int, default=1500, help="seconds for each engine (1500)")
    parser.add_argument("--processor-time", action="store_true", help="of one thread, for the product")
    parser.add_argument("--engines", type=lambda text: text.split(","), default=engines,
                        help=f"which to run: {','.join(engines)}")
    arguments = parser.parse_args()
    unknown = set(arguments.engines) - set(engines)
    if unknown:
        parser.error(f"unknown engine: {', '.join(sorted(unknown))}")
    if arguments.processor_time:
        arguments.threads = 1
    if not (arguments.build / "bench" / "bench-model").exists():
        parser.error(f"no bench/bench-model in {arguments.build}: build with -DNOCTURNE_BENCH=ON and give --build")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the running engine and removes the temporary folder
    problems = []
    print(f"{processor()}, {os.cpu_count()} processors")
    if arguments.checkpoint:
        compare_models(arguments, problems)
    if "ggml" in arguments.engines:
        compare_products(arguments, problems)
    for problem in problems:
        print(f"missing: {problem}")
    return 1 if any("bench-" in problem or problem.startswith("nocturne") for problem in problems) else 0


if __name__ == "__main__":
    sys.exit(main())
