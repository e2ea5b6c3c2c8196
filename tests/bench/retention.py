#!/usr/bin/env python3
"""The replays of bench-retention: retention.py BENCH_RETENTION BENCH_TRAFFIC

Without a limit its hit rates are those that a second program counts on the same trace, written here from the description alone; with
limits and other policies they keep what must hold for any: none finds more than there is without a limit, and longer keeping loses
nothing while nothing is evicted."""
import json
import sys

from programs import expect, run

BLOCK = 128
DEFAULT_HOURS = {"other": 72, "agents": 72, "chats": 168}


def lines_of(*arguments):
    done = run(*arguments)
    expect(done.returncode == 0, f"{arguments}: status {done.returncode}: {done.stderr}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def kind_of(request):
    if request["kind"] == "chats":
        return "chats" if request["turn"] else "other"
    return "agents" if request["kind"] == "agents" else "other"


def count_hits(trace, days, begin):
    """Shares of the prompts' tokens in blocks that were used within their time, by kind of request."""
    used, tokens, hits = {}, {}, {}
    for request in trace:
        now, found, missed = request["hours"], 0, False
        for block in range((request["prompt"] + request["answer"] - 1) // BLOCK):
            own = request["system"] < 0 or (block + 1) * BLOCK > request["system_end"]
            key = ("conversation", request["conversation"], block) if own else ("system", request["system"], block)
            last, keep = used.get(key, (-1e9, 0))
            there = now - last <= keep
            used[key] = (now, keep if there else 24 * days or DEFAULT_HOURS[kind_of(request)])
            missed = missed or not there
            found += not missed and block < (request["prompt"] - 1) // BLOCK
        if now >= begin:
            for kind in (request["kind"], "all"):
                tokens[kind] = tokens.get(kind, 0) + request["prompt"]
                hits[kind] = hits.get(kind, 0) + BLOCK * found
    return {kind: hits[kind] / tokens[kind] for kind in tokens}


def main():
    retention, traffic = sys.argv[1:]
    sizes = ["--requests", 1500, "--days", 20, "--seed", 3]
    # The tail of bench-traffic's trace.
    rows = lines_of(retention, *sizes, "--measured", 10, "--json", "--tail", "pareto", "--shape", "0.6", "--hours", "1")
    trace = lines_of(traffic, *sizes, "--list")
    expect(len(trace) == 1500 and sum(r["return"] for r in trace) > 50, "a trace with returns")

    free = {row["days"]: row for row in rows if not row["limit"]}
    expect(set(free) == {0, 1, 3, 7, 14}, f"times {set(free)}")
    for days, row in free.items():
        counted = count_hits(trace, days, 24 * 10)
        for name, kind in (("hit", "all"), ("hit_agents", "agents"), ("hit_chats", "chats"), ("hit_questions", "questions")):
            expect(abs(row[name] - counted[kind]) < 1e-4, f"{days} days, {kind}: {row[name]}, counted {counted[kind]}")
        expect(row["evicted"] == 0, f"{days} days without a limit: {row}")
    expect(free[1]["hit_chats"] < free[3]["hit_chats"] < free[14]["hit_chats"], "longer keeping finds more")

    limited = [row for row in rows if row["limit"]]
    expect(len(limited) == 3 * 3 * 5 and any(row["evicted"] for row in limited), "limits that bind")
    for row in limited:
        expect(row["most_bytes"] <= row["limit"], f"within the limit: {row}")
        expect(row["hit"] <= free[14]["hit"] + 1e-9, f"no more than is to be had: {row}")
        if row["evicted"] == 0:
            expect(abs(row["hit"] - free[row["days"]]["hit"]) < 1e-9, f"as without a limit: {row}")

    for arguments, text in ((("--measured", 50, "--days", 50), "--measured"), (("--tail", "pareto"), "--shape"),
                            (("--tail", "pareto", "--shape", "x", "--hours", 1), "--shape")):
        done = run(retention, *arguments)
        expect(done.returncode == 2 and text in done.stderr, f"{arguments}: status {done.returncode}: {done.stderr}")
    print("hit rates as counted by hand, limits kept")


if __name__ == "__main__":
    main()
