#!/usr/bin/env python3
"""Compares layouts of ranks and threads on one campaign: tokens a second of prefill and decode, beside those of the first layout.

    python3 bench/ranks.py BUILD_DIR CHECKPOINT [--layouts 1x2,2x1,4x1] [--requests 64] [--prompt 160] [--generate 24]
                           [--batch 16] [--step-tokens 512] [--rounds 2] [--json]

A layout is RANKSxTHREADS. --batch is of a rank, and there are requests enough to fill those of all ranks, as in a real
campaign. Each round runs all layouts in turn, on campaigns of
their own, and the best of all rounds counts. "exchange" is the time in which ranks pack, send and receive, "waiting" that
before the others' data come, both as a share of the ranks' time; "processor" are seconds of all processes, start and end
included: on a machine that others use too it says more than the wall clock. A checkpoint without a tokenizer is given that
of inputs/nano, filled up to its vocabulary. Only the standard library is needed.
"""
import argparse
import json
import os
import random
import re
import resource
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
NANO = ROOT + "/inputs/nano/tokenizer.json"


def with_tokenizer(checkpoint, folder):
    """The checkpoint, or a folder of links to it with a tokenizer."""
    if os.path.exists(checkpoint + "/tokenizer.json"):
        return checkpoint
    shadow = folder + "/checkpoint"
    os.mkdir(shadow)
    for name in os.listdir(checkpoint):
        os.symlink(os.path.abspath(os.path.join(checkpoint, name)), os.path.join(shadow, name))
    with open(checkpoint + "/config.json", encoding="utf-8") as file:
        config = json.load(file)
    size = config.get("text_config", config)["vocab_size"]
    with open(NANO, encoding="utf-8") as file:
        tokenizer = json.load(file)
    vocabulary, taken = tokenizer["model"]["vocab"], {token["id"] for token in tokenizer["added_tokens"]}
    taken |= set(vocabulary.values())
    vocabulary |= {f"fill{i}": i for i in range(size) if i not in taken}
    with open(shadow + "/tokenizer.json", "w", encoding="utf-8") as file:
        json.dump(tokenizer, file)
    return shadow


def request_lines(options):
    """Prompts of about options.prompt tokens and half as many at least, answers of exactly options.generate."""
    chance = random.Random(1)
    words = "dog river king bread hope horse fox stone tree house story water people light night".split()
    for i in range(options.requests):
        length = chance.randrange(options.prompt // 2, options.prompt + 1)
        text = " ".join(chance.choice(words) for _ in range(length))
        yield json.dumps({"custom_id": f"r{i}", "method": "POST", "url": "/v1/chat/completions", "body": {
            "model": "deepseek-v4.1-flash", "messages": [{"role": "user", "content": text}], "thinking": {"type": "disabled"},
            "temperature": 0.8, "seed": i, "max_tokens": options.generate, "ignore_eos": True}}) + "\n"


class Failure(Exception):
    pass


def launch(command, ranks=None):
    """Output and processor seconds of a command."""
    environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    if ranks:
        command = ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(ranks), *command]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise Failure(f"{' '.join(command)} ended with code {done.returncode}:\n{done.stdout}")
    return done.stdout, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def share(output, part):
    found = re.search(rf"time by part: .*?{part} ([\d.]+)%", output)
    return float(found.group(1)) if found else 0.0


def run_phase(options, phase, campaign, ranks, threads):
    output, processor = launch(
        [options.build + "/nocturne", phase, "--campaign", campaign, "--threads", str(threads), "--batch",
         str(options.batch), "--step-tokens", str(options.step_tokens), "--kv-memory", "512M"], ranks)
    kind = "prompt" if phase == "prefill" else "generated"
    found = re.findall(rf"{phase}: .* (\d+) {kind} tokens \(([\d.]+)/s\)", output)
    if not found:
        raise Failure(f"{phase} on {ranks} ranks did nothing:\n{output}")
    rate = found[-1]
    return {"phase": phase, "layout": f"{ranks}x{threads}", "tokens": int(rate[0]), "rate": float(rate[1]),
            "exchange": share(output, "exchange"), "waiting": share(output, "waiting"), "processor": processor}


def measure(options, folder):
    """The best of all rounds by phase and layout."""
    model = with_tokenizer(options.checkpoint, folder)
    with open(folder + "/requests.jsonl", "w", encoding="utf-8") as file:
        file.writelines(request_lines(options))
    best = {}
    for number in range(options.rounds):
        for layout in options.layouts.split(","):
            ranks, threads = map(int, layout.split("x"))
            campaign = f"{folder}/{layout}-{number}"
            launch([options.build + "/nocturne", "ingest", "--input", folder + "/requests.jsonl", "--model", model,
                    "--campaign", campaign])
            for phase in ("prefill", "decode"):
                row = run_phase(options, phase, campaign, ranks, threads)
                known = best.get((phase, layout))
                if known is None or row["rate"] > known["rate"]:
                    best[phase, layout] = dict(row, processor=min(row["processor"], (known or row)["processor"]))
                elif row["processor"] < known["processor"]:
                    known["processor"] = row["processor"]
    return best


def show(options, best):
    if not options.json:
        print(f"{'phase':8} {'layout':>7} {'tokens':>8} {'tokens/s':>9} {'of first':>9} {'exchange':>9} {'waiting':>8} "
              f"{'processor':>10} {'of first':>9}")
    for phase in ("prefill", "decode"):
        rows = [best[phase, layout] for layout in options.layouts.split(",")]
        for row in rows:
            ratio, cost = row["rate"] / rows[0]["rate"], row["processor"] / rows[0]["processor"]
            if options.json:
                print(json.dumps({"bench": "ranks", **row, "rate_ratio": ratio, "processor_ratio": cost}))
            else:
                print(f"{phase:8} {row['layout']:>7} {row['tokens']:8d} {row['rate']:9.1f} {100 * ratio:8.1f}% "
                      f"{row['exchange']:8.1f}% {row['waiting']:7.1f}% {row['processor']:9.1f}s {100 * cost:8.1f}%")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("checkpoint")
    parser.add_argument("--layouts", default="1x2,2x1,4x1")
    for name, default in (("requests", 64), ("prompt", 160), ("generate", 24), ("batch", 16), ("step-tokens", 512),
                          ("rounds", 2)):
        parser.add_argument("--" + name, type=int, default=default)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        try:
            show(options, measure(options, folder))
        except Failure as failure:
            print(failure, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
