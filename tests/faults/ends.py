"""One rank ends or stops in the midst of a phase: the others end within a minute with a message that names it, nothing is left of the
launch (processes, shared memory, temporary files), and the same commands then end as an undisturbed run does.

    ends.py [vision | prefill | decode | run | arrive | suspend | alone ...]

FAULT_LIBRARY is the library built from system_fault.c. NOCTURNE_LAUNCHER says how ranks are started (campaigns.py).
"""

import json
import os
import signal
import socket
import sys
import time

import campaigns
from campaigns import DONE, IO, RANKS, Launch, answers, check, chat, compare, fresh_copy, ingest, run

RANK_COUNT = 2
LONGEST = 60.0  # seconds from the fault to the end of everything
DEADLINE = ["--deadline", "3"]
SLOW = ["--threads", "1", "--part-seconds", "0", "--batch", "2", "--step-tokens", "128"]
LIBRARY = os.environ.get("FAULT_LIBRARY", "")
HOST = socket.gethostname()

# How a rank ends: a signal, and what the preloaded library makes of it.
ENDS = {
    "SIGKILL": (signal.SIGKILL, None),
    "SIGSEGV": (signal.SIGSEGV, None),
    "exit 0": (signal.SIGUSR2, "exit:0"),
    "exit 3": (signal.SIGUSR2, "exit:3"),
    "SIGSTOP": (signal.SIGSTOP, None),
}


def requests():
    """Enough work that a phase is still at it when a rank ends."""
    lines = [json.loads(line) for line in campaigns.small_requests(80, 30) if "cut off" not in line]
    for number in range(48):
        content = [{"type": "text", "text": f"Define {number}. "}, {"type": "image_url", "image_url": {"url": campaigns.picture(500 + number, 400, number)}}]
        lines.append(chat(f"image-{number}", content, temperature=0, max_tokens=8))
    return [json.dumps(line) for line in lines]


class Template:
    """Campaigns that stand before each phase, and the answers of an undisturbed run."""

    def __init__(self, folder):
        self.folder = folder
        requests_path = campaigns.write_lines(os.path.join(folder, "requests.jsonl"), requests())
        campaign = os.path.join(folder, "undisturbed")
        ingest(campaign, requests_path)
        self.before = {}
        for phase in ("vision", "prefill", "decode"):
            self.before[phase] = fresh_copy(campaign, os.path.join(folder, "before-" + phase))
            run([phase, "--campaign", campaign], RANK_COUNT)
        self.before["run"] = self.before["prefill"]
        self.expected = answers(campaign)

    def copy(self, phase):
        return fresh_copy(self.before[phase], os.path.join(self.folder, "campaign"))

    def completes(self, phase, campaign, what):
        rest = {"vision": ("vision", "run"), "prefill": ("prefill", "decode"), "decode": ("decode",), "run": ("run",)}[phase]
        for command in rest:
            run([command, "--campaign", campaign], RANK_COUNT)
        compare(answers(campaign), self.expected, what)


def shared_memory(launch):
    """Files of /dev/shm that the ranks of a launch have mapped."""
    names = set()
    for pid in launch.rank_processes():
        try:
            with open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as file:
                names |= {line.split(maxsplit=5)[-1].strip() for line in file if "/dev/shm/" in line}
        except OSError:
            continue
    return names


def left_behind(folder):
    return [os.path.join(where, name) for where, _, names in os.walk(folder) for name in names]


def nothing_left(launch, temporary, shared, since, what):
    """Waits until no process is left; then nothing else may be."""
    while launch.processes():
        check(time.monotonic() - since < LONGEST, f"{what}: processes {launch.processes()} are left\n{launch.output()}")
        time.sleep(0.05)
    check(not left_behind(temporary), f"{what}: temporary files are left: {left_behind(temporary)}")
    left = [name for name in shared if os.path.exists(name)]
    check(not left, f"{what}: shared memory is left: {left}")


def one_rank_ends(template, phase, end, rank):
    """Ends one rank in the midst of a phase; returns the seconds until nothing is left."""
    number, fault = ENDS[end]
    what = f"{end} of rank {rank} in {phase}"
    campaign = template.copy(phase)
    temporary = os.path.join(template.folder, "temporary")
    os.makedirs(temporary, exist_ok=True)
    extra = {"TMPDIR": temporary}
    if fault:
        extra.update({"LD_PRELOAD": LIBRARY, "NOCTURNE_FAULT": fault})
    arguments = [phase, "--campaign", campaign, *DEADLINE, *(SLOW if phase != "vision" else ["--threads", "1"])]
    launch = Launch(arguments, RANK_COUNT, extra)
    check(launch.wait_for_text(" done before, "), f"{what}: ended early\n{launch.output()}")
    pid = launch.process_of_rank(rank)
    check(pid is not None, f"{what}: rank {rank} is not there\n{launch.output()}")
    shared = shared_memory(launch)
    check(shared, f"{what}: no shared memory of the ranks is seen, so that none could be found left")
    since = time.monotonic()
    os.kill(pid, number)
    code = launch.process.wait(timeout=LONGEST)
    output = launch.output()
    nothing_left(launch, temporary, shared, since, what)
    seconds = time.monotonic() - since
    check(code != DONE, f"{what}: exit 0\n{output}")
    check(f"rank {rank} on {HOST} (process {pid})" in output, f"{what}: the message does not name it\n{output}")
    wanted = "is stopped (by a signal or a debugger)" if end == "SIGSTOP" else "has gone without a word"
    check(wanted in output and f" s ago in {phase}" in output, f"{what}: the message does not say what is known of it\n{output}")
    check(output.count("]: error: ") == 1, f"{what}: more than one last line\n{output}")
    if end == "SIGSTOP" and "mpirun" in campaigns.LAUNCHER:
        check(code == RANKS, f"{what}: exit {code}\n{output}")
    template.completes(phase, campaign, what)
    return seconds


def phase_test(phase):
    def test(folder):
        template = Template(folder)
        longest = {}
        for end in ENDS:
            for rank in (0, RANK_COUNT - 1):
                longest[end] = max(longest.get(end, 0), one_rank_ends(template, phase, end, rank))
        print(f"{phase}: seconds to the end: " + ", ".join(f"{end} {seconds:.1f}" for end, seconds in longest.items()))

    return test


def arrive(folder):
    """A rank that never starts, that is stopped before it has, or that leaves before: named."""
    campaign = os.path.join(folder, "campaign")
    ingest(campaign, campaigns.write_lines(os.path.join(folder, "requests.jsonl"), campaigns.small_requests(4)))
    rank = '"${OMPI_COMM_WORLD_RANK:-$PMIX_RANK}"'
    cases = {
        "sleeps": (f'if [ {rank} = 1 ]; then exec sleep 100; fi; exec "$@"', "not arrived: rank 1;"),
        "leaves": (f'if [ {rank} = 1 ]; then sleep 1; exit 3; fi; exec "$@"', None),
    }
    for name, (script, wanted) in cases.items():
        command = ["/bin/sh", "-c", script, "sh", campaigns.PROGRAM]
        launch = Launch(["run", "--campaign", campaign, *DEADLINE], 3, program=command)
        code = launch.process.wait(timeout=LONGEST)
        since = time.monotonic()
        while launch.processes():
            check(time.monotonic() - since < LONGEST, f"{name}: processes {launch.processes()} are left")
            time.sleep(0.05)
        output = launch.output()
        check(code != DONE, f"{name}: exit 0\n{output}")
        if wanted:
            # srun gives the highest code: that of the rank it has to kill.
            check(code == RANKS or "srun" in campaigns.LAUNCHER, f"{name}: exit {code}\n{output}")
            check(output.count(wanted) == 1, f"{name}: the message does not name rank 1, once\n{output}")
    run(["run", "--campaign", campaign], 3)


def suspend(folder):
    """A job that is suspended for longer than the deadline, as schedulers do, goes on."""
    template = Template(folder)
    campaign = template.copy("run")
    launch = Launch(["run", "--campaign", campaign, "--deadline", "2", *SLOW], RANK_COUNT)
    check(launch.wait_for_text(" done before, "), f"ended early\n{launch.output()}")
    pids = launch.rank_processes()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(5)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    code = launch.wait()
    check(code == DONE, f"exit {code}\n{launch.output()}")
    compare(answers(campaign), template.expected, "suspended")


def alone(folder):
    """A call to the file system that never returns ends commands of one process and of one rank, too."""
    requests_path = campaigns.write_lines(os.path.join(folder, "requests.jsonl"), campaigns.small_requests(4))
    campaign = os.path.join(folder, "campaign")
    fault = {"LD_PRELOAD": LIBRARY, "NOCTURNE_FAULT": "stuck:1", "NOCTURNE_FAULT_PATH": campaign}
    steps = [
        (["ingest", "--input", requests_path, "--model", campaigns.MODEL, "--campaign", campaign], None),
        (["run", "--campaign", campaign, "--threads", "1"], 1),
        (["export", "--campaign", campaign], None),
    ]
    for arguments, ranks in steps:
        output, seconds = run([*arguments, "--deadline", "2"], ranks, IO, fault)
        check("has not returned for 2 s" in output, f"{arguments[0]}: unclear message\n{output}")
        check(f"at the file {campaign}/" in output, f"{arguments[0]}: the message does not name the file\n{output}")
        check(seconds < LONGEST, f"{arguments[0]}: {seconds:.0f} s")
        run(arguments, ranks)


TESTS = {
    **{phase: phase_test(phase) for phase in ("vision", "prefill", "decode", "run")},
    "arrive": arrive,
    "suspend": suspend,
    "alone": alone,
}

if __name__ == "__main__":
    sys.exit(campaigns.main(TESTS))
