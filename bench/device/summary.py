#!/usr/bin/env python3
"""Puts a report of bench/device.sh into tables: summary.py FOLDER

Reads steps.tsv (how each step ended) and the JSON lines of the benches; prints the kernels' table, which also goes to
kernels-table.txt, and the table of checks, results and goals, which goes to summary.txt, and as JSON lines to summary.jsonl.
Status 1: a check of correctness failed, or a bench did. Goals of speed are only compared.
"""
import json
import pathlib
import sys

CORRECTNESS = ("build", "test-", "golden-", "agree", "memcheck-", "racecheck-")
MATRIX_KERNELS = ("product", "grouped_product", "experts")
DECODE_KERNELS = (*MATRIX_KERNELS, "attend", "choose")
DECODE_GOAL, PREFILL_GOAL, EXPERTS_GOAL = .70, .60, 1.5
DECODE_TOKENS, PREFILL_TOKENS = (1, 8), 4096
LEAST_BYTES = 16e6  # of a decoding call: below it starts and ends of kernels weigh more than reads
# Microseconds of a rank's share of an expert layer on 8 H200 for the tokens of each rank: published FP8 figures (413 and 3,269 for 256
# experts of 4096 x 2048), scaled to 384 of 5120 x 2304.
PUBLISHED_MICROSECONDS = {512: 581, 8192: 4597}


def read_lines(path):
    """JSON lines of a file that may not be there, or end in the middle of a line."""
    rows = []
    for line in path.read_text(errors="replace").splitlines() if path.exists() else []:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            pass
    return rows


def check_steps(folder):
    """(check, result, goal, passed) of each step; passed is None where speed is measured only."""
    rows = []
    path = folder / "steps.tsv"
    for line in path.read_text().splitlines() if path.exists() else []:
        name, status, seconds = line.split("\t")
        good = status == "0"
        result = f"{seconds} s" if good else {"124": f"not done after {seconds} s", "skipped": "no time left"}.get(
            status, f"status {status}")
        if name.startswith(("memcheck-", "racecheck-")) and status in ("124", "137", "skipped"):
            rows.append((name, result, "no findings", None))
        elif name.startswith(CORRECTNESS):
            rows.append((name, result, "ends with 0", good))
        elif not good:
            rows.append((name, result, "measured", False))
    return rows


def check_agreement(folder):
    return [("nano: likeliest token, CPU = CUDA", f"{row['argmax_equal']:.2%}", ">= 98%", row["argmax_equal"] >= .98)
            for row in read_lines(folder / "agree.jsonl")] + \
           [("nano: perplexity, CPU to CUDA", f"{row['perplexity_difference']:.3%}", "<= 0.5%",
             row["perplexity_difference"] <= .005) for row in read_lines(folder / "agree.jsonl")]


def name_of(row):
    return f"{row['kernel']} {row['shape']}, {row['tokens']} tokens"


def check_kernels(folder):
    rows, limits = [], {}
    for row in read_lines(folder / "kernels.jsonl"):
        if row["bench"] == "limits":
            limits = row
            continue
        read, peak = limits.get("read_gbytes", 0), limits.get("bf16_gflops", 0)
        if row["tokens"] in DECODE_TOKENS and row["kernel"] in DECODE_KERNELS and read > 0:
            share = row["gbytes"] / read
            is_large = row["gbytes"] * row["microseconds"] * 1e3 >= LEAST_BYTES
            rows.append((name_of(row), f"{row['gbytes']:.0f} GB/s, {share:.0%} of reads", ">= 70%" if is_large else "measured",
                         share >= DECODE_GOAL if is_large else None))
        if row["tokens"] == PREFILL_TOKENS and row["kernel"] in MATRIX_KERNELS and peak > 0:
            share = row["gflops"] / peak
            rows.append((name_of(row), f"{row['gflops'] / 1e3:.0f} TFLOP/s, {share:.0%} of BF16", ">= 60%",
                         share >= PREFILL_GOAL))
    return rows


def check_experts(folder):
    rows = []
    for row in read_lines(folder / "experts.jsonl"):
        published = PUBLISHED_MICROSECONDS.get(row.get("tokens"))
        if published:
            times = row["microseconds"] / published
            rows.append((name_of(row) + " a rank", f"{row['microseconds']:.0f} us, {times:.2f} x {published}",
                         "<= 1.5 x published", times <= EXPERTS_GOAL))
    return rows


def check_models(folder):
    rows = []
    for preset in ("bench", "layer"):
        for row in read_lines(folder / f"model-{preset}.jsonl"):
            if "phase" in row:
                shape = f"prompt {row['prompt']}" if row["phase"] == "prefill" else f"batch {row['batch']}"
                rows.append((f"{preset}: {row['phase']}, {shape}", f"{row['tokens_per_second']:.0f} tokens/s, "
                             f"{row['share_of_limit']:.0%} of {row['limit']}", "measured", None))
    return rows


def kernel_table(folder):
    lines = []
    for row in read_lines(folder / "kernels.jsonl") + read_lines(folder / "experts.jsonl"):
        if row["bench"] == "limits":
            lines.append(f"{row['device']}: fma {row['fma_gflops'] / 1e3:.1f} TFLOP/s, bf16 {row['bf16_gflops'] / 1e3:.1f} "
                         f"TFLOP/s, read {row['read_gbytes']:.0f} GB/s")
            lines.append(f"{'kernel':15} {'shape':36} {'tokens':>6} {'microsec':>10} {'TFLOP/s':>8} {'GB/s':>7} {'share':>6} "
                         f"{'of':5} {'cuBLASLt':>9} {'ours/its':>8}")
            continue
        share = f"{row['share_of_limit']:.0%}" if row["share_of_limit"] > 0 else "-"
        peer = f"{row['cublaslt_microseconds']:9.1f} {row['times_cublaslt']:8.2f}" if "times_cublaslt" in row else ""
        lines.append(f"{row['kernel']:15} {row['shape']:36} {row['tokens']:6} {row['microseconds']:10.1f} "
                     f"{row['gflops'] / 1e3:8.1f} {row['gbytes']:7.0f} {share:>6} {row['limit']:5} {peer}".rstrip())
    return lines


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    folder = pathlib.Path(sys.argv[1])
    correct = check_steps(folder) + check_agreement(folder)
    speed = check_kernels(folder) + check_experts(folder) + check_models(folder)
    table = kernel_table(folder)
    if table:
        (folder / "kernels-table.txt").write_text("\n".join(table) + "\n")
        print("\n".join(table), end="\n\n")
    words = {True: "pass", False: "FAIL", None: "-"}
    missed = {True: "pass", False: "missed", None: "-"}
    rows = [("check", "result", "goal", "")] + [(*row[:3], words[row[3]]) for row in correct] + \
           [(*row[:3], missed[row[3]]) for row in speed]
    widths = [max(len(row[i]) for row in rows) for i in range(3)]
    lines = ["  ".join([*(row[i].ljust(widths[i]) for i in range(3)), row[3]]).rstrip() for row in rows]
    (folder / "summary.txt").write_text("\n".join(lines) + "\n")
    with open(folder / "summary.jsonl", "w") as out:
        for check, result, goal, passed in correct + speed:
            out.write(json.dumps(dict(check=check, result=result, goal=goal, passed=passed)) + "\n")
    print("\n".join(lines))
    failed = [row[0] for row in correct if row[3] is False]
    checked = [row for row in correct if row[3] is not None]
    print(f"\n{len(checked)} checks of correctness, {len(failed)} failed{': ' if failed else ''}{', '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
