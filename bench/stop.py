#!/usr/bin/env python3
"""Measures a clean stop: seconds from a signal at one rank to the end of all, and what it saves.

    python3 bench/stop.py BUILD_DIR CHECKPOINT [--ranks 2] [--threads 1] [--requests 128] [--prompt 120] [--batch 64]
                          [--tokens 3] [--grace 60] [--step-tokens 512]

One stop finds the ranks in their first prompts, one in decoding, when each sequence of the batches has drawn --tokens tokens. "kept":
seconds until the last part of the stop is whole, "ended": until mpirun has ended, after all ranks; "states" and "megabytes" are what was
written. Only the standard library is needed.
"""
import argparse
import glob
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

import ranks

STOPPED = 75


def part_files(campaign):
    """Parts of results/ and prefill/."""
    return glob.glob(os.path.join(glob.escape(campaign), "*", "rank-*", "part-*.h5"))


class Launch:
    """A `run` in the background, its output in a file."""

    def __init__(self, options, program, campaign, log):
        arguments = [program, "run", "--campaign", campaign, "--threads", str(options.threads), "--batch", str(options.batch),
            "--grace", str(options.grace), "--step-tokens", str(options.step_tokens), "--part-seconds", "30"]  # fmt: skip
        environment = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
        self.campaign, self.log, self.progress = campaign, log, os.path.join(campaign, "progress.json")
        if os.path.exists(self.progress):
            os.remove(self.progress)
        with open(log, "wb") as output:
            self.process = subprocess.Popen(
                ["mpirun", "--oversubscribe", "--bind-to", "none", "-n", str(options.ranks), *arguments],
                stdout=output, stderr=subprocess.STDOUT, env=environment)  # fmt: skip

    def text(self):
        with open(self.log, encoding="utf-8", errors="replace") as file:
            return file.read()

    def counted(self, name):
        try:
            with open(self.progress, encoding="utf-8") as file:
                return json.load(file)[name]
        except (OSError, ValueError):
            return 0

    def wait_for(self, condition):
        while not condition():
            if self.process.poll() is not None:
                raise ranks.Failure(f"the launch ended with code {self.process.returncode} before the stop\n{self.text()}")
            time.sleep(0.05)

    def stop(self):
        """Signals the last rank, waits for the end of all, and tells how it went."""
        with open(f"/proc/{self.process.pid}/task/{self.process.pid}/children", encoding="ascii") as file:
            last = int(file.read().split()[-1])
        sent = time.time()
        os.kill(last, signal.SIGUSR1)
        code = self.process.wait()
        seconds = time.time() - sent
        if code != STOPPED:
            raise ranks.Failure(f"exit {code} after the signal, expected {STOPPED}\n{self.text()}")
        parts = [path for path in part_files(self.campaign) if os.path.getmtime(path) > sent]
        return {
            "kept": max(map(os.path.getmtime, parts), default=sent) - sent,
            "ended": seconds,
            "states": int(re.search(r"states of (\d+) requests that were decoding", self.text()).group(1)),
            "megabytes": sum(map(os.path.getsize, parts)) / 1e6,
        }


def measure(options, program, campaign, folder):
    sequences = min(options.requests, options.batch * options.ranks)
    for where, name, count in (
        ("first prompts", "prompt_tokens", 1), ("decoding", "generated_tokens", options.tokens * sequences),
    ):  # fmt: skip
        launch = Launch(options, program, campaign, os.path.join(folder, "log"))
        launch.wait_for(lambda: launch.counted(name) >= count)
        yield where, launch.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("checkpoint")
    for name, value in (
        ("ranks", 2), ("threads", 1), ("requests", 128), ("prompt", 120), ("batch", 64), ("tokens", 3), ("grace", 60),
        ("step-tokens", 512),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=value, help=f"default: {value}")
    options = parser.parse_args()
    options.generate = 1000
    program = os.path.join(options.build, "nocturne")
    with tempfile.TemporaryDirectory() as folder:
        model = ranks.with_tokenizer(options.checkpoint, folder)
        requests, campaign = os.path.join(folder, "requests.jsonl"), os.path.join(folder, "campaign")
        with open(requests, "w", encoding="utf-8") as file:
            file.writelines(ranks.request_lines(options))
        ranks.launch([program, "ingest", "--input", requests, "--model", model, "--campaign", campaign])
        columns = ("kept", "ended", "states", "megabytes")
        print(f"{'stop in':<16}" + "".join(f"{name:>11}" for name in columns))
        for where, found in measure(options, program, campaign, folder):
            print(f"{where:<16}" + "".join(f"{found[name]:>11.4g}" for name in columns), flush=True)


if __name__ == "__main__":
    try:
        main()
    except ranks.Failure as failure:
        sys.exit(f"stop.py: {failure}")
