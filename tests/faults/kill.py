"""Kills campaigns at random instants and checks that rerunning the same commands ends as an undisturbed run does.

    kill.py [--rounds N] [--seed N] [--ranks N] [--phase NAME]

A round takes a phase (ingest, prefill, decode, run, export), starts it from a campaign that stands just before it, kills all its
processes with SIGKILL after a delay drawn over the phase's measured length (in some rounds only one rank is killed, in some the
rerun is killed too), reruns all commands from the first, and compares answers and exported files.
"""

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time

import campaigns
from campaigns import Failure, Launch, answers, check, compare, exported, fresh_copy, run

CHAINS = {
    "staged": ("ingest", "prefill", "decode", "export"),
    "run": ("ingest", "run", "export"),
}
TARGETS = [("staged", "ingest"), ("staged", "prefill"), ("staged", "decode"), ("run", "run"), ("staged", "export")]


class Rounds:
    def __init__(self, folder, ranks, seed):
        self.folder, self.ranks = folder, ranks
        self.random = random.Random(seed)
        self.requests = campaigns.write_lines(os.path.join(folder, "requests.jsonl"), campaigns.small_requests(24, 5))
        self.seconds = {}  # length of each phase, undisturbed
        self.templates = {}  # a campaign that stands just before each phase
        self.expected = self.expected_export = None
        self.instants = {}  # phase -> kills that hit a living launch

    def arguments(self, phase, campaign):
        if phase == "ingest":
            return ["ingest", "--input", self.requests, "--model", campaigns.MODEL, "--campaign", campaign]
        if phase == "export":
            return ["export", "--campaign", campaign]
        # Parts as small as can be: many instants at which one is half written.
        return [phase, "--campaign", campaign, "--threads", "1", "--part-seconds", "0", "--batch", "3", "--step-tokens", "128"]

    def ranks_of(self, phase):
        return self.ranks if phase in ("prefill", "decode", "run") else None

    def measure(self, phase, campaign):
        """Runs a phase; returns how long it takes. A phase of an instant is measured thrice, for kills must hit it."""
        least = float("inf")
        for _ in range(1 if self.ranks_of(phase) else 3):
            if phase == "ingest":
                shutil.rmtree(campaign, ignore_errors=True)
            least = min(least, run(self.arguments(phase, campaign), self.ranks_of(phase))[1])
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
        print("undisturbed:", ", ".join(f"{phase} {seconds:.2f} s" for phase, seconds in self.seconds.items()), flush=True)

    def kill_once(self, phase, campaign, one_rank):
        """Starts the phase and kills it; returns what was done, in words."""
        delay = self.random.uniform(0, 1.1 * self.seconds[phase])
        victim = self.random.random()
        launch = Launch(self.arguments(phase, campaign), self.ranks_of(phase))
        while time.monotonic() < launch.started + delay and launch.process.poll() is None:
            time.sleep(0.001)
        alive = launch.process.poll() is None
        self.instants[phase] = self.instants.get(phase, 0) + alive
        if not one_rank:
            launch.kill_all()
            return f"killed after {delay:.3f} s" if alive else "ended before its kill"
        ranks = launch.rank_processes()
        if ranks:
            try:
                os.kill(ranks[int(victim * len(ranks))], signal.SIGKILL)
            except ProcessLookupError:
                pass
        launch.wait(60)  # the others must not hang
        return f"one rank killed after {delay:.3f} s"

    def round(self, number, chain, phase):
        campaign = os.path.join(self.folder, "round")
        template = self.templates[chain, phase]
        shutil.rmtree(campaign, ignore_errors=True)
        if os.path.exists(template):
            fresh_copy(template, campaign)
        one_rank = self.ranks_of(phase) is not None and self.random.random() < 0.25
        story = [self.kill_once(phase, campaign, one_rank)]
        if self.random.random() < 0.2:
            story.append("again " + self.kill_once(phase, campaign, False))
        try:
            # The same commands from the first; export last.
            for command in CHAINS[chain]:
                run(self.arguments(command, campaign), self.ranks_of(command))
            compare(answers(campaign), self.expected, phase)
            files = exported(campaign)
            check(files == self.expected_export, f"exported files differ\n  found    {files}\n  expected {self.expected_export}")
            # A killed export leaves a temporary file of what can be made again; nothing else may be left.
            left = [n for _, _, names in os.walk(campaign) for n in names if n.endswith(".tmp")]
            left = [n for n in left if not n.startswith((".results.", ".errors."))]
            check(not left, f"temporary files are left: {left}")
        except Failure as failure:
            raise Failure(f"round {number}, {phase}, {'; '.join(story)}: {failure}") from None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=20261)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--phase", choices=sorted({phase for _, phase in TARGETS}))
    options = parser.parse_args()
    targets = [t for t in TARGETS if options.phase in (None, t[1])]

    folder = tempfile.mkdtemp(prefix="nocturne-kill-")
    print(f"seed {options.seed}, {options.rounds} rounds, {options.ranks} ranks", flush=True)
    rounds = Rounds(folder, options.ranks, options.seed)
    try:
        rounds.undisturbed()
        for number in range(options.rounds):
            rounds.round(number, *targets[number % len(targets)])
    except Failure as failure:
        print(f"FAILED (files in {folder}): {failure}")
        return 1
    print("kills that hit a running phase:", ", ".join(f"{phase} {count}" for phase, count in rounds.instants.items()))
    check(options.rounds < 20 or sum(rounds.instants.values()) >= options.rounds // 2, "too few kills hit a running phase")
    shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
