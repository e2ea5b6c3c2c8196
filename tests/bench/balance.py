#!/usr/bin/env python3
"""The simulated ranks of bench-balance: balance.py BENCH_BALANCE STEPS.jsonl

Its goals are met, the product's placement is the best of the table in what it is for, the same numbers come out twice, and a recording
that cannot be used is refused by name. (That each request runs once with all of its tokens, bench-balance checks itself.)"""
import json
import pathlib
import sys
import tempfile

from programs import expect, run

GOALS = {("prefill", 2): 1.045, ("prefill", 4): 1.074, ("decode", 64): 1.09}


def rows_of(*arguments):
    done = run(*arguments, "--json")
    expect(done.returncode == 0, f"{arguments}: status {done.returncode}: {done.stderr}")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    for row in rows:
        row.pop("plan_seconds", None)  # the only thing that is measured
    return rows


def tables_of(rows):
    tables = {}
    for row in rows:
        if "placement" in row:
            tables.setdefault((row["phase"], row["ranks"]), {})[row["placement"]] = row
    return tables


def check_table(key, table, goal):
    ours = table["families"]
    expect(1 <= ours["ratio"] <= ours["worst_ratio"] <= goal, f"{key}: {ours} within {goal}")
    expect(ours["ratio"] <= table["round robin"]["ratio"], f"{key}: families {ours} no worse than {table['round robin']}")
    for name, row in table.items():
        expect(row["ratio"] >= 1 and 0 < row["busy_share"] <= 1, f"{key}: {row}")
        expect(ours["seconds"] <= row["seconds"] * 1.001, f"{key}: families in {ours['seconds']} s, {name} in {row['seconds']} s")
        expect(row["moved"] == 0 or name == "families", f"{key}: moves of {row}")
        if key[0] == "decode":
            expect(row["prompt_tokens"] == 0, f"{key}: prompts of {row}")


def main():
    program, steps = sys.argv[1:]
    rows = rows_of(program, "--costs", steps)
    tables = tables_of(rows)
    expect(set(tables) == set(GOALS), f"tables {set(tables)}")
    for key, table in tables.items():
        check_table(key, table, GOALS[key])
    for key in GOALS:
        if key[0] == "prefill":
            tokens = {name: row["prompt_tokens"] for name, row in tables[key].items()}
            expect(tokens["families"] * 1.3 < tokens["round robin"], f"{key}: prompt tokens {tokens}")
    expect(tables["decode", 64]["families"]["moved"] > 0, "requests moved when ranks ran out")

    small = [program, "--costs", steps, "--phase", "run", "--ranks", 3, "--requests", 200, "--seeds", 2, "--batch", 8]
    expect(rows_of(*small) == rows_of(*small), "the same numbers twice")
    alone = tables_of(rows_of(program, "--costs", steps, "--phase", "prefill", "--ranks", 1, "--requests", 100))
    expect(all(row["ratio"] == 1 for row in alone["prefill", 1].values()), "one rank is its own mean")

    good = pathlib.Path(steps).read_text().splitlines()
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "steps.jsonl"
        for what, text, names in (
                ("no such file", None, ("steps.jsonl",)),
                ("no JSON", "\n".join(good[:3] + ["{"]), ("steps.jsonl", "line 4")),
                ("no number", "\n".join(good[:2] + ['{"seconds":1,"prompt_tokens":"x"}']), ("line 3", "prompt_tokens")),
                ("below 0", "\n".join(good[:2] + ['{"seconds":-1}']), ("line 3", "seconds")),
                ("too few", "\n".join(good[:3]), ("too few",))):
            if text is not None:
                path.write_text(text + "\n")
            done = run(program, "--costs", path)
            expect(done.returncode == 3 and all(name in done.stderr for name in names),
                   f"{what}: status {done.returncode}: {done.stderr}")
    done = run(program)
    expect(done.returncode == 2 and "--costs" in done.stderr, f"without --costs: {done.stderr}")
    print("goals met, families no worse than others, bad recordings refused")


if __name__ == "__main__":
    main()
