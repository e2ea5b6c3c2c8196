"""jobs/submit.sh: the chain of jobs under a real Slurm of one node, what ends it early, and the same chain without Slurm.

    chain.py [TEST ...]

Status 77 when there can be no Slurm here.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "faults"))

import campaigns  # noqa: E402
import cluster  # noqa: E402
from campaigns import MODEL, PROGRAM, SOURCE, answers, chat, check, compare, run  # noqa: E402

SUBMIT = os.path.join(SOURCE, "jobs", "submit.sh")
EXAMPLES = os.path.join(SOURCE, "inputs", "requests.jsonl")


def call(*command, expect=0, **options):
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, **options
    )
    text = done.stdout + done.stderr
    check(done.returncode == expect, f"{' '.join(map(str, command))}: exit {done.returncode}, expected {expect}\n{text}")
    return done.stdout


def submit(campaign, requests, *options):
    """Submits; returns the jobs' numbers by name."""
    output = call(SUBMIT, campaign, requests, "--program", PROGRAM, "--tasks-per-node", 2, "--signal", 0, *options)
    return dict(re.findall(r"^(\w+) +job (\d+),", output, re.MULTILINE))


def states(jobs):
    """State of each job by name; Slurm's controller remembers ended ones long enough."""
    found = {}
    for name, job in jobs.items():
        text = call("scontrol", "show", "job", job)
        found[name] = re.search(r"JobState=(\S+)", text).group(1)
    return found


def logs(campaign):
    text = ""
    for name in sorted(os.listdir(os.path.join(campaign, "logs"))):
        with open(os.path.join(campaign, "logs", name), encoding="utf-8", errors="replace") as file:
            text += f"--- {name}\n{file.read()}"
    return text


def hurry():
    """A requeued job need not wait its two minutes here. (Changed too often it would never start.)"""
    for line in call("squeue", "--noheader", "--format", "%i %t %r %S").splitlines():
        job, state, reason, start = line.split(maxsplit=3)
        if state != "PD" or reason != "BeginTime" or start == "N/A":
            continue
        # Not in its first seconds, when it is still being put back.
        if 5 < time.mktime(time.strptime(start, "%Y-%m-%dT%H:%M:%S")) - time.time() < 118:
            subprocess.run(["scontrol", "update", f"JobId={job}", "StartTime=now"], capture_output=True, check=False)


def wait_for(jobs, campaign, seconds=150):
    """Until no job waits or runs any more."""
    end = time.monotonic() + seconds
    while True:
        now = states(jobs)
        if not {"PENDING", "RUNNING", "COMPLETING", "CONFIGURING"} & set(now.values()):
            return now
        hurry()
        check(time.monotonic() < end, f"jobs do not end: {now}\n{logs(campaign)}")
        time.sleep(0.5)


def wait_until(condition, what, campaign, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        check(time.monotonic() < end, f"{what} does not come\n{logs(campaign)}")
        hurry()
        time.sleep(0.4)


def completed(found, campaign):
    check(set(found.values()) == {"COMPLETED"}, f"jobs ended as {found}\n{logs(campaign)}")


def examples(folder, count=10):
    with open(EXAMPLES, encoding="utf-8") as file:
        return campaigns.write_lines(os.path.join(folder, "examples.jsonl"), [line.rstrip("\n") for line in file][:count])


def long_work(folder, tokens=1000, count=40):
    return campaigns.write_lines(
        os.path.join(folder, "long.jsonl"),
        [json.dumps(chat(f"s{i}", "Tell me a story about a fox.", seed=i, max_tokens=tokens, ignore_eos=True)) for i in range(count)],
    )


def expected_answers(folder, requests):
    campaign = os.path.join(folder, "expected")
    campaigns.ingest(campaign, requests)
    run(["run", "--campaign", campaign], 1)
    return answers(campaign)


def chain(folder):
    """ingest -> prefill -> decode -> export by srun, and ingest -> run -> export by mpirun within the job."""
    requests = examples(folder)
    expected = expected_answers(folder, requests)
    for name, options in (("srun", ()), ("mpirun", ("--launcher", "mpirun", "--run", "--", "--batch", "3"))):
        campaign = os.path.join(folder, name)
        jobs = submit(campaign, requests, "--time", "5", *options)
        phases = ["ingest", "run", "export"] if "--run" in options else ["ingest", "prefill", "decode", "export"]
        check(list(jobs) == phases, f"jobs {jobs}, expected {phases}")
        completed(wait_for(jobs, campaign), campaign)
        compare(answers(campaign), expected, name)
        check(len(campaigns.exported(campaign)[0]) == len(expected), f"{name}: answers are missing from results.jsonl")
        check("2 ranks on 1 node" in logs(campaign), f"{name} did not make one run of its tasks\n{logs(campaign)}")


def walltime(folder):
    """A walltime shorter than the work: the job stops by itself in time, goes back into the queue and continues until it is done."""
    requests = long_work(folder)
    expected = expected_answers(folder, requests)
    campaign = os.path.join(folder, "campaign")
    jobs = submit(campaign, requests, "--time", "1", "--run", "--", "--grace", "50", "--threads", "1", "--batch", "6")
    completed(wait_for(jobs, campaign), campaign)
    text = logs(campaign)
    launches = len(re.findall(r"^run: job .*, launch \d+,", text, re.MULTILINE))
    check(launches >= 2, f"the work was done in {launches} launches\n{text}")
    check(text.count("stopped by the end of the allocation") == launches - 1, f"{launches} launches, but not as many stops\n{text}")
    check("TIMEOUT" not in text and "TIME LIMIT" not in text, f"Slurm had to end the job\n{text}")
    compare(answers(campaign), expected, f"{launches} launches")
    check(len(campaigns.exported(campaign)[0]) == len(expected), "answers are missing from results.jsonl")
    print(f"{launches} launches")


def launch_limit(folder):
    """A phase does not go back into the queue for ever, and what waits for it goes with it."""
    campaign = os.path.join(folder, "campaign")
    jobs = submit(campaign, long_work(folder, 2000), "--time", "1", "--run", "--launches", 1, "--", "--grace", "55", "--batch", "1")
    found = wait_for(jobs, campaign)
    check(found["run"] == "FAILED" and found["export"] == "CANCELLED", f"jobs ended as {found}\n{logs(campaign)}")
    check("submit again to go on" in logs(campaign), f"the log does not say what to do\n{logs(campaign)}")


def decoding(campaign):
    path = os.path.join(campaign, "progress.json")
    if not os.path.exists(path):
        return False
    with open(path, encoding="utf-8") as file:
        return json.load(file)["generated_tokens"] > 0


def signalled(folder):
    """The scheduler's warning, to the batch shell: the ranks stop, and the job goes back into the queue. Then scancel; the same command of
    submit.sh goes on."""
    requests = long_work(folder, 1500, 24)
    expected = expected_answers(folder, requests)
    campaign = os.path.join(folder, "campaign")
    options = ("--time", "10", "--run", "--", "--threads", "1", "--batch", "6")
    jobs = submit(campaign, requests, *options)
    wait_until(lambda: decoding(campaign), "the first token", campaign)
    call("scancel", "--signal=USR1", "--batch", jobs["run"])
    wait_until(lambda: "back into the queue" in logs(campaign), "the requeue", campaign)
    check("stopped by SIGUSR1" in logs(campaign), f"the ranks did not hear of it\n{logs(campaign)}")
    os.remove(os.path.join(campaign, "progress.json"))
    wait_until(lambda: decoding(campaign), "the second launch", campaign)
    call("scancel", *jobs.values())
    found = wait_for(jobs, campaign)
    check(found["run"] == "CANCELLED", f"after scancel: {found}\n{logs(campaign)}")
    check("launch 3" not in logs(campaign), f"a cancelled job came back\n{logs(campaign)}")
    jobs = submit(campaign, requests, *options)
    completed(wait_for(jobs, campaign), campaign)
    compare(answers(campaign), expected, "after USR1 and scancel")


def processes(job, pattern):
    """Processes of a job whose command line matches: Slurm's step daemons, or the job's own."""
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                words = file.read().decode("utf-8", "replace").replace("\0", " ")
            with open(f"/proc/{entry}/environ", "rb") as file:
                is_own = f"SLURM_JOB_ID={job}".encode() in file.read().split(b"\0")
        except OSError:
            continue
        if re.match(pattern, words) and (is_own or words.startswith(f"slurmstepd: [{job}.")):
            found.append(int(entry))
    return found


def kill(pids):
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def node_failure(folder):
    """The node dies with everything on it: Slurm puts the job back into the queue, and the chain completes when the node is back."""
    requests = long_work(folder)
    expected = expected_answers(folder, requests)
    campaign = os.path.join(folder, "campaign")
    jobs = submit(campaign, requests, "--time", "10", "--run", "--", "--threads", "1", "--batch", "6", "--part-seconds", "1")
    wait_until(lambda: campaigns.parts(campaign, "results"), "the first result", campaign)
    node = call("sinfo", "--noheader", "--format", "%n").strip()
    kill(processes(jobs["run"], ".*"))
    cluster.forget_steps()
    call("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
    wait_until(lambda: states(jobs)["run"] == "PENDING", "the requeue", campaign)
    # It may have come back by itself, as its daemon lives.
    subprocess.run(["scontrol", "update", f"NodeName={node}", "State=RESUME"], capture_output=True, check=False)
    completed(wait_for(jobs, campaign), campaign)
    compare(answers(campaign), expected, "after the loss of a node")


def step_failure(folder):
    """Slurm's daemon of the step is killed under the ranks: the job ends, nothing of it stays, and the same command goes on."""
    requests = long_work(folder)
    expected = expected_answers(folder, requests)
    campaign = os.path.join(folder, "campaign")
    options = ("--time", "10", "--run", "--silence", 8, "--", "--threads", "1", "--batch", "6", "--part-seconds", "1")
    jobs = submit(campaign, requests, *options)
    wait_until(lambda: campaigns.parts(campaign, "results"), "the first result", campaign)
    daemons = processes(jobs["run"], rf"slurmstepd: \[{jobs['run']}\.0\]")
    check(len(daemons) == 1, f"{len(daemons)} daemons of the step")
    kill(daemons)
    found = wait_for(jobs, campaign, 90)
    check(found["run"] == "FAILED" and found["export"] == "CANCELLED", f"jobs ended as {found}\n{logs(campaign)}")
    wait_until(lambda: not processes(jobs["run"], ".*nocturne"), "the end of the ranks", campaign)
    jobs = submit(campaign, requests, *options)
    completed(wait_for(jobs, campaign), campaign)
    compare(answers(campaign), expected, "after the loss of the step's daemon")


def plain(folder):
    """The chain without Slurm, a dry run of both forms, and wrong command lines."""
    requests = examples(folder)
    expected = expected_answers(folder, requests)
    campaign = os.path.join(folder, "campaign")
    environment = dict(os.environ, HOME="/nonexistent", PATH=os.environ["PATH"])
    call(SUBMIT, campaign, requests, "--program", PROGRAM, "--local", "--ranks", 2, "--", "--batch", 4, env=environment)
    compare(answers(campaign), expected, "--local")
    text = call(SUBMIT, os.path.join(folder, "new"), requests, "--program", PROGRAM, "--dry-run", "--nodes", 3, "--begin", "20:00",
        "--time", "8:00:00", "--partition", "night", "--sbatch", "--exclusive", "--", "--batch", "9")  # fmt: skip
    lines = [line for line in text.splitlines() if line.startswith("sbatch ")]
    check(len(lines) == 4, f"a dry run shows {len(lines)} jobs\n{text}")
    check("--begin=20:00" in lines[0] and "--begin" not in lines[1], f"--begin is not with the first job alone\n{text}")
    check("--nodes=3" in lines[1] and "--nodes" not in lines[0] and "--nodes" not in lines[3], f"--nodes is not with the phases\n{text}")
    check(all("--exclusive" in line and "--partition=night" in line for line in lines), f"options of all jobs are missing\n{text}")
    check("afterok" in lines[1] and lines[1].rstrip().endswith("prefill.sh"), f"no dependency\n{text}")
    check("--batch" in text and not os.path.exists(os.path.join(folder, "new")), "a dry run made something, or forgot the options")
    image = campaigns.write_lines(os.path.join(folder, "image.jsonl"), ['{"body": {"content": [{"type": "image_url"}]}}'])
    text = call(SUBMIT, campaign, image, "--program", PROGRAM, "--dry-run")
    check("/vision.sh" in text, f"no vision for images\n{text}")
    text = call(SUBMIT, campaign, requests, "--program", PROGRAM, "--dry-run", "--local")
    check("mpirun" in text and "sbatch" not in text, f"a dry run of --local\n{text}")
    for wrong in (
        [campaign],
        [campaign, os.path.join(folder, "absent.jsonl")],
        [campaign, requests, "--nodes", "none"],
        [campaign, requests, "--what"],
        [campaign, requests, "--launcher", "aprun"],
        [campaign, requests, "--model", folder],
        [campaign, requests, "--program", "/nonexistent"],
    ):
        call(SUBMIT, "--program", PROGRAM, *wrong, expect=2)


NEED_SLURM = (chain, walltime, launch_limit, signalled, node_failure, step_failure)
TESTS = {test.__name__: test for test in (plain, *NEED_SLURM)}


def main():
    wanted = sys.argv[1:] or list(TESTS)
    if not any(TESTS[name] in NEED_SLURM for name in wanted):
        return campaigns.main(TESTS)
    reason = cluster.missing()
    if reason:
        print(f"skipped: {reason}")
        return 77
    with tempfile.TemporaryDirectory(prefix="nocturne-slurm-") as folder:
        cluster.start(folder)
        try:
            return campaigns.main(TESTS)
        finally:
            subprocess.run(["scancel", "--user", "root"], check=False, capture_output=True)
            time.sleep(0.5)
            cluster.stop(folder)


if __name__ == "__main__":
    sys.exit(main())
