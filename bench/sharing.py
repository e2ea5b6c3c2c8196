#!/usr/bin/env python3
"""What shared beginnings and the prefix cache cost beside what they leave to compute.

    sharing.py PROGRAM MODEL [--requests 1000] [--families 20] [--prefix-words 400] [--rest-words 30] [--max-tokens 8]
               [--repeats 3] [--threads N] [--json]

Campaigns of chats whose prompts begin with one of a few long texts, run

    alone     each prompt by itself (--no-sharing)
    shared    beginnings run once and their states forked
    warm      a second campaign of the same beginnings and other ends, with the rows that a first one left in --cache

beside campaigns that have nothing to share and as many tokens to run: their prompts are the beginnings, each once (in the second
control as many of their words as exact replay runs again), and the ends alone. The controls' contexts are shorter, so that attention and the choice
of rows cost less there; what sharing itself costs is in `besides`: the share of the time that was spent outside the forward pass and sampling, on
scheduling with the copies of states, on files and on the cache. Last, a campaign without any hit with an empty cache beside one
without a cache. Medians of the engine's own seconds (progress.json); the trials take turns.
"""

import argparse
import json
import os
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile

WORDS = "dog river king bread hope horse fox stone tree house water night light hand road song".split()


def words(seed, count):
    return " ".join(random.Random(seed).choices(WORDS, k=count))


def chat(custom_id, text, max_tokens):
    body = {"model": "nocturne", "messages": [{"role": "user", "content": text}], "thinking": {"type": "disabled"},
            "temperature": 0, "max_tokens": max_tokens, "ignore_eos": True}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}


class Bench:
    def __init__(self, options, folder):
        self.options, self.folder, self.made = options, folder, 0

    def run(self, lines, *extra):
        """Seconds and counts of a fresh campaign."""
        o = self.options
        self.made += 1
        campaign = os.path.join(self.folder, f"campaign-{self.made}")
        with open(campaign + ".jsonl", "w", encoding="utf-8") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
        for command in (["ingest", "--input", campaign + ".jsonl", "--model", o.model, "--model-name", "nocturne"],
                        ["run", *(["--threads", str(o.threads)] if o.threads else []), *extra]):
            done = subprocess.run([o.program, *command, "--campaign", campaign], capture_output=True, text=True)
            said = done.stdout + done.stderr
            if done.returncode:
                sys.exit(f"nocturne {' '.join(command)}: exit {done.returncode}\n{said}")
        parts = dict(re.findall(r"([a-z ]+) ([0-9.]+)%", said[said.index("time by part:") + 13:]))
        besides = sum(float(parts.get(name, 0)) for name in (" other", " scheduling", " files"))
        with open(os.path.join(campaign, "progress.json"), encoding="utf-8") as file:
            counts = json.load(file) | {"besides": besides / 100}
        shutil.rmtree(campaign)
        return counts

    def prompts(self, ends):
        o = self.options
        return [chat(f"{ends}-{i}", words(f"prefix {i % o.families}", o.prefix_words) + " " + words(f"{ends} {i}", o.rest_words),
                     o.max_tokens) for i in range(o.requests)]

    def control(self, ends, prefix_words):
        """The same number of answers; beginnings once each, and ends alone."""
        o = self.options
        lines = [chat(f"prefix-{i}", words(f"prefix {i}", prefix_words), 1) for i in range(o.families)]
        return lines + [chat(f"{ends}-{i}", words(f"{ends} {i}", o.rest_words), o.max_tokens) for i in range(o.requests)]


def median(trials, key):
    return statistics.median(trial[key] for trial in trials)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("model")
    for name, value in (("requests", 1000), ("families", 20), ("prefix-words", 400), ("rest-words", 30), ("max-tokens", 8),
                        ("repeats", 3), ("threads", 0)):
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="nocturne-sharing-") as folder:
        bench = Bench(options, folder)
        store = os.path.join(folder, "store")
        bench.run(bench.prompts("first"), "--cache", store)
        trials = {}
        for repeat in range(options.repeats):
            def trial(name, lines, *extra):
                trials.setdefault(name, []).append(bench.run(lines, *extra))
            if repeat == 0:
                trial("alone", bench.prompts("first"), "--no-sharing")
            trial("shared", bench.prompts("first"))
            trial("control", bench.control("first", options.prefix_words))
            copy = os.path.join(folder, f"store-{repeat}")
            shutil.copytree(store, copy)
            trial("warm", bench.prompts(f"second {repeat}"), "--cache", copy)
            shutil.rmtree(copy)
            warm = trials["warm"][-1]
            per_family = warm["replayed_tokens"] / options.families
            shared_words = options.prefix_words * per_family / max(1, (warm["shared_tokens"] + warm["cached_tokens"]) / options.requests)
            trial("warm control", bench.control(f"second {repeat}", max(1, round(shared_words))))
            fresh = bench.control(f"fresh {repeat}", options.prefix_words)
            trial("no cache", fresh, "--no-sharing")
            empty = os.path.join(folder, f"empty-{repeat}")
            trial("no hits", fresh, "--no-sharing", "--cache", empty)
            shutil.rmtree(empty)
    rows = []
    for name, of in (("alone", None), ("shared", "control"), ("control", None), ("warm", "warm control"), ("warm control", None),
                     ("no cache", None), ("no hits", "no cache")):
        row = {"case": name, "seconds": median(trials[name], "seconds")}
        for key in ("prompt_tokens", "shared_tokens", "cached_tokens", "replayed_tokens", "generated_tokens", "besides"):
            row[key] = median(trials[name], key)
        if of:
            tokens = row["prompt_tokens"] / median(trials[of], "prompt_tokens")
            row["beside"], row["tokens_ratio"] = of, tokens
            row["time_ratio"] = row["seconds"] / median(trials[of], "seconds")
            row["ratio_by_token"] = row["time_ratio"] / tokens
        rows.append(row)
    for row in rows:
        if options.json:
            print(json.dumps(row))
            continue
        beside = f"  {row['time_ratio']:.3f} of '{row['beside']}', {row['tokens_ratio']:.3f} of its prompt tokens" if "beside" in row else ""
        print(f"{row['case']:>12}: {row['seconds']:7.2f} s, {row['prompt_tokens']:8.0f} prompt tokens run, {row['shared_tokens']:8.0f} "
              f"shared, {row['cached_tokens']:7.0f} cached, {row['replayed_tokens']:6.0f} replayed, besides {100 * row['besides']:.1f}%{beside}")


if __name__ == "__main__":
    main()
