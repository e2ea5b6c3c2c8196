"""Kills campaigns at random instants and checks that rerunning the same commands ends as an undisturbed run does.

    kill.py [--rounds N] [--seed N] [--ranks N[,N...]] [--phase NAME] [--jobs N] [--minutes N]

A round takes a phase (ingest, vision, prefill, decode, run, export), starts it from a campaign that stands just before it on one of the
numbers of ranks, kills all its processes with SIGKILL after a delay drawn over the phase's measured length (in some rounds only one rank
is killed, in some the rerun is killed too), reruns all commands from the first, each on a number of ranks drawn anew, and compares answers
and exported files. At the end it prints a table of what was killed, lost and doubled. With --jobs several rounds run at once; with --minutes no
round is begun after that time.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time

import campaigns
from campaigns import Failure, Launch, answers, check, compare, exported, fresh_copy, lost_and_doubled, run

CHAINS = {
    "staged": ("ingest", "vision", "prefill", "decode", "export"),
    "run": ("ingest", "vision", "run", "export"),
}
TARGETS = [
    ("staged", "ingest"),
    ("staged", "vision"),
    ("staged", "prefill"),
    ("staged", "decode"),
    ("run", "run"),
    ("staged", "export"),
]
ON_RANKS = ("vision", "prefill", "decode", "run")
COLUMNS = ("rounds", "kills", "of one rank", "lost", "doubled", "launcher hung", "seconds")


def requests():
    """Texts with all kinds of sampling, one refused line, and images."""
    lines = campaigns.small_requests(24, 5)
    for number in range(3):
        content = [{"type": "text", "text": "What is "}, {"type": "image_url", "image_url": {"url": campaigns.picture(90, 70, number)}}]
        lines.append(json.dumps(campaigns.chat(f"image-{number}", content, temperature=0, max_tokens=6)))
    return lines


class Rounds:
    def __init__(self, folder, ranks, seed):
        self.folder, self.ranks = folder, ranks
        # A launcher's own: one that ends can remove the folder of another that starts.
        self.environment = {"TMPDIR": os.path.join(folder, "temporary")}
        os.makedirs(self.environment["TMPDIR"], exist_ok=True)
        self.random = random.Random(seed)
        self.requests = campaigns.write_lines(os.path.join(folder, "requests.jsonl"), requests())
        self.seconds = {}  # length of each phase, undisturbed
        self.templates = {}  # a campaign that stands just before each phase
        self.expected = self.expected_export = None
        self.counts = {phase: collections.Counter() for _, phase in TARGETS}

    def arguments(self, phase, campaign):
        if phase == "ingest":
            return ["ingest", "--input", self.requests, "--model", campaigns.MODEL, "--campaign", campaign]
        if phase == "export":
            return ["export", "--campaign", campaign]
        # Parts as small as can be: many instants at which one is half written.
        arguments = [phase, "--campaign", campaign, "--threads", "1", "--part-seconds", "0"]
        return arguments if phase == "vision" else [*arguments, "--batch", "3", "--step-tokens", "128"]

    def ranks_of(self, phase):
        return self.random.choice(self.ranks) if phase in ON_RANKS else None

    def measure(self, phase, campaign):
        """Runs a phase; returns how long it takes. A phase of an instant is measured thrice, for kills must hit it."""
        least = float("inf")
        for _ in range(1 if phase in ON_RANKS else 3):
            if phase == "ingest":
                shutil.rmtree(campaign, ignore_errors=True)
            ranks = max(self.ranks) if phase in ON_RANKS else None
            least = min(least, run(self.arguments(phase, campaign), ranks, extra_environment=self.environment)[1])
        return least

    def undisturbed(self):
        """Measures the phases, keeps a copy of the campaign before each, and the answers to compare with."""
        for chain, phases in CHAINS.items():
            campaign = os.path.join(self.folder, "undisturbed-" + chain)
            for phase in phases:
                template = os.path.join(self.folder, f"before-{chain}-{phase}")
                if os.path.exists(campaign):
                    shutil.copytree(campaign, template)
                self.templates[chain, phase] = template
                self.seconds[phase] = self.measure(phase, campaign)
            found = answers(campaign)
            files = exported(campaign)
            if self.expected is None:
                self.expected, self.expected_export = found, files
            compare(found, self.expected, f"undisturbed {chain}")
            check(files == self.expected_export, f"undisturbed {chain}: exported files differ from those of the staged chain")

    def kill_once(self, phase, campaign, one_rank):
        """Starts the phase and kills it; returns what was done, in words."""
        delay = self.random.uniform(0, 1.1 * self.seconds[phase])
        victim = self.random.random()
        launch = Launch(self.arguments(phase, campaign), self.ranks_of(phase), self.environment)
        while time.monotonic() < launch.started + delay and launch.process.poll() is None:
            time.sleep(0.001)
        alive = launch.process.poll() is None
        self.counts[phase]["kills"] += alive
        if not one_rank:
            launch.kill_all()
            return f"killed after {delay:.3f} s" if alive else "ended before its kill"
        ranks = launch.rank_processes()
        self.counts[phase]["of one rank"] += bool(alive and ranks)
        if ranks:
            try:
                os.kill(ranks[int(victim * len(ranks))], signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.wait_for_end(phase, launch)
        return f"one rank killed after {delay:.3f} s"

    def wait_for_end(self, phase, launch):
        """The other ranks must not hang. A launcher may, without any of ours, when one is killed while it starts them."""
        while launch.process.poll() is None and time.monotonic() < launch.started + 60:
            time.sleep(0.01)
        if launch.process.poll() is None and not launch.rank_processes():
            self.counts[phase]["launcher hung"] += 1
            launch.kill_all()
            return
        launch.wait(60)

    def round(self, number, chain, phase):
        campaign = os.path.join(self.folder, "round")
        template = self.templates[chain, phase]
        started = time.monotonic()
        shutil.rmtree(campaign, ignore_errors=True)
        if os.path.exists(template):
            fresh_copy(template, campaign)
        one_rank = phase in ON_RANKS and self.random.random() < 0.25
        story = [self.kill_once(phase, campaign, one_rank)]
        if self.random.random() < 0.2:
            story.append("again " + self.kill_once(phase, campaign, False))
        try:
            # The same commands from the first; export last.
            for command in CHAINS[chain]:
                run(self.arguments(command, campaign), self.ranks_of(command), extra_environment=self.environment)
            lost, doubled = lost_and_doubled(campaign)
            self.counts[phase].update({"rounds": 1, "lost": lost, "doubled": doubled})
            compare(answers(campaign), self.expected, phase)
            files = exported(campaign)
            check(files == self.expected_export, f"exported files differ\n  found    {files}\n  expected {self.expected_export}")
            # A killed export leaves a temporary file of what can be made again; nothing else may be left.
            left = [n for _, _, names in os.walk(campaign) for n in names if n.endswith(".tmp")]
            left = [n for n in left if not n.startswith((".results.", ".errors."))]
            check(not left, f"temporary files are left: {left}")
        except Failure as failure:
            raise Failure(f"round {number}, {phase}, {'; '.join(story)}: {failure}") from None
        finally:
            self.counts[phase]["seconds"] += time.monotonic() - started


def run_rounds(ranks, seed, rounds, targets, minutes):
    """One job's rounds: (counts by phase, how long phases take, failure or None)."""
    folder = tempfile.mkdtemp(prefix="nocturne-kill-")
    job = Rounds(folder, ranks, seed)
    try:
        job.undisturbed()
        end = time.monotonic() + 60 * minutes
        for number in range(rounds):
            if time.monotonic() > end:
                break
            job.round(number, *targets[number % len(targets)])
    except Failure as failure:
        return job.counts, job.seconds, f"FAILED (seed {seed}, files in {folder}): {failure}"
    shutil.rmtree(folder, ignore_errors=True)
    return job.counts, job.seconds, None


def print_table(counts):
    total = sum(counts.values(), collections.Counter())
    print("| phase | " + " | ".join(COLUMNS) + " |")
    print("|---" * (len(COLUMNS) + 1) + "|")
    for phase, row in [*counts.items(), ("all", total)]:
        if row["rounds"]:
            print(f"| {phase} | " + " | ".join(f"{row[column]:.0f}" for column in COLUMNS) + " |")
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=20261)
    parser.add_argument("--ranks", default="1,2,3,4", type=lambda text: [int(word) for word in text.split(",")])
    parser.add_argument("--phase", choices=sorted({phase for _, phase in TARGETS}))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=float("inf"))
    options = parser.parse_args()
    targets = [t for t in TARGETS if options.phase in (None, t[1])]
    print(f"seed {options.seed}, {options.rounds} rounds, {options.jobs} at once, {options.ranks} ranks", flush=True)

    counts = {phase: collections.Counter() for _, phase in targets}
    failures = []
    with concurrent.futures.ProcessPoolExecutor(options.jobs) as pool:
        shares = [options.rounds // options.jobs + (job < options.rounds % options.jobs) for job in range(options.jobs)]
        jobs = [pool.submit(run_rounds, options.ranks, options.seed + job, share, targets, options.minutes) for job, share in enumerate(shares)]
        for job in concurrent.futures.as_completed(jobs):
            found, seconds, failure = job.result()
            for phase, row in counts.items():
                row.update(found[phase])
            print("undisturbed:", ", ".join(f"{phase} {time_taken:.2f} s" for phase, time_taken in seconds.items()), flush=True)
            if failure:
                print(failure, flush=True)
            failures += [failure] if failure else []
    total = print_table(counts)
    if not failures:
        check(total["rounds"] == options.rounds or options.minutes < float("inf"), f"{total['rounds']} rounds were done")
        check(total["rounds"] < 20 or total["kills"] >= total["rounds"] // 2, "too few kills hit a running phase")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
