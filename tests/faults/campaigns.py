"""What the fault tests share: launching Nocturne on several ranks with a deadline, killing every process of a launch, and
reading a campaign's answers so that two campaigns can be compared.

The environment gives NOCTURNE_PROGRAM (the program) and NOCTURNE_SOURCE (the source folder).
"""

import base64
import glob
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import uuid
import zlib

import h5py
import numpy as np

PROGRAM = os.environ["NOCTURNE_PROGRAM"]
SOURCE = os.environ["NOCTURNE_SOURCE"]
MODEL = os.path.join(SOURCE, "inputs", "nano")

# The program's exit codes (src/base/error.h).
DONE, INTERNAL, USAGE, INPUT, IO, MEMORY, CONFLICT, RANKS, STOPPED = 0, 1, 2, 3, 4, 5, 6, 7, 75

# Longest that any launch of these tests may take; past it the launch hangs and the test fails.
DEADLINE = 120.0

MARK = "NOCTURNE_TEST_LAUNCH"

# How ranks are started; {ranks} is their number. Another launcher: NOCTURNE_LAUNCHER="srun --mpi=pmix --overcommit -n {ranks}".
LAUNCHER = os.environ.get("NOCTURNE_LAUNCHER", "mpirun --oversubscribe --bind-to none -n {ranks}")


class Failure(Exception):
    """A test failed; the text says how."""


def check(condition, text):
    if not condition:
        raise Failure(text)


def environment(extra=None):
    result = dict(os.environ)
    result.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    result.update(extra or {})
    return result


class Launch:
    """A running command: `arguments` of nocturne, on `ranks` MPI ranks, or without mpirun when ranks is None.

    Every process of the launch carries a mark in its environment, by which kill_all finds it wherever the launcher put
    it. With `codes`, a folder, each rank's own exit code is written there and the launcher sees 0. `program`: a command that runs it.
    """

    def __init__(self, arguments, ranks=None, extra_environment=None, codes=None, program=(PROGRAM,)):
        self.mark = uuid.uuid4().hex
        self.arguments = [str(a) for a in arguments]
        command = [*program, *self.arguments]
        if codes is not None:
            os.makedirs(codes, exist_ok=True)
            script = '"$@"; echo $? > "$CODES/$OMPI_COMM_WORLD_RANK"; exit 0'
            command = ["/bin/sh", "-c", script, "sh", *command]
            extra_environment = dict(extra_environment or {}, CODES=codes)
        if ranks is not None:
            command = [*LAUNCHER.format(ranks=ranks).split(), *command]
        self.output_file = tempfile.TemporaryFile()
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self.output_file,
            stderr=subprocess.STDOUT,
            env=environment({**(extra_environment or {}), MARK: self.mark}),
            start_new_session=True,
        )

    def output(self):
        self.output_file.seek(0)
        return self.output_file.read().decode("utf-8", "replace")

    def processes(self):
        """Ids of the living processes of this launch."""
        wanted = f"{MARK}={self.mark}".encode()
        found = []
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    with open(f"/proc/{entry}/environ", "rb") as file:
                        if wanted in file.read().split(b"\0"):
                            found.append(int(entry))
                except OSError:
                    continue
        return found

    def rank_processes(self):
        """Ids of the launch's nocturne processes, the launcher left out."""
        found = []
        for pid in self.processes():
            try:
                if os.path.samefile(f"/proc/{pid}/exe", PROGRAM):
                    found.append(pid)
            except OSError:
                continue
        return found

    def process_of_rank(self, rank):
        """The id of a rank's process, or None."""
        for pid in self.rank_processes():
            try:
                with open(f"/proc/{pid}/environ", "rb") as file:
                    variables = file.read().split(b"\0")
            except OSError:
                continue
            if f"OMPI_COMM_WORLD_RANK={rank}".encode() in variables or f"PMIX_RANK={rank}".encode() in variables:
                return pid
        return None

    def wait_for_text(self, text, deadline=30):
        """Returns once the launch has printed `text`, or has ended; True when it runs."""
        while text not in self.output():
            if self.process.poll() is not None:
                return False
            check(time.monotonic() < self.started + deadline, f"'{text}' did not come within {deadline} s\n{self.output()}")
            time.sleep(0.002)
        return self.process.poll() is None

    def kill_all(self):
        """SIGKILL to every process of the launch, until none is left."""
        deadline = time.monotonic() + 30
        while True:
            pids = self.processes()
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            self.process.poll()
            if not pids:
                break
            check(time.monotonic() < deadline, f"processes {pids} outlive SIGKILL")
            time.sleep(0.002)
        self.process.wait()

    def wait(self, deadline=DEADLINE):
        """Waits for the end; returns the exit code. A launch that hangs is killed and fails the test."""
        try:
            code = self.process.wait(timeout=max(0.1, self.started + deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.kill_all()
            raise Failure(f"{' '.join(self.arguments)} hangs: {deadline:.0f} s\n{self.output()}") from None
        self.kill_all()  # what the launcher left behind
        return code


def run(arguments, ranks=None, expect=DONE, extra_environment=None, deadline=DEADLINE):
    """Runs a command to its end, checks its exit code and returns (output, seconds)."""
    launch = Launch(arguments, ranks, extra_environment)
    code = launch.wait(deadline)
    output = launch.output()
    check(code == expect, f"nocturne {' '.join(launch.arguments)}: exit {code}, expected {expect}\n{output}")
    return output, time.monotonic() - launch.started


def run_each(arguments, ranks, expect, extra_environment=None, deadline=DEADLINE):
    """Runs a command on ranks and checks the exit code of each of them; returns the output."""
    with tempfile.TemporaryDirectory() as codes:
        launch = Launch(arguments, ranks, extra_environment, codes)
        launch.wait(deadline)
        output = launch.output()
        found = {}
        for rank in range(ranks):
            try:
                with open(os.path.join(codes, str(rank)), encoding="ascii") as file:
                    found[rank] = int(file.read())
            except (OSError, ValueError):
                found[rank] = None
        check(
            all(code == expect for code in found.values()),
            f"nocturne {' '.join(launch.arguments)}: exit codes of the ranks {found}, expected {expect}\n{output}",
        )
        return output


def chat(custom_id, text, **options):
    body = {"model": "nano", "messages": [{"role": "user", "content": text}], "thinking": {"type": "disabled"}}
    body.update(options)
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body}


def small_requests(max_tokens=24, repeat=1):
    """A few short requests with every kind of sampling, and one line that is refused.

    `repeat` makes their prompts longer, so that a small step holds few of them.
    """
    greedy = {"temperature": 0, "max_tokens": max_tokens}
    lines = [chat(f"define-{word}", f"Define {word}.", **greedy) for word in ("dog", "river", "king", "bread")]
    lines += [
        chat("hello", "Hello!", logprobs=True, top_logprobs=3, **greedy),
        chat("capital", "What is the capital of France?", **greedy),
        chat("story-seed", "Tell me a story about a fox.", temperature=0.9, seed=4, max_tokens=max_tokens),
        chat("story-campaign", "Tell me a story about a fox.", temperature=0.9, max_tokens=max_tokens),
        chat("two", "Tell me a story about a king.", temperature=1.0, n=2, logprobs=True, max_tokens=max_tokens),
        chat("stop", "Tell me a story about a dog.", temperature=0.7, seed=1, stop=["."], max_tokens=max_tokens),
        chat("json", "Give a JSON array of the numbers from 3 to 9.", **greedy),
        chat("penalty", "What does hope mean?", temperature=0.5, presence_penalty=0.5, max_tokens=max_tokens),
    ]
    for line in lines:
        message = line["body"]["messages"][0]
        message["content"] = " ".join([message["content"]] * repeat)
    text = [json.dumps(line) for line in lines]
    text.insert(3, '{"custom_id": "cut off", "method":')
    return text


def picture(width, height, seed):
    """A picture of its own, as a data URL."""
    row = b"\0" + bytes((seed * 5 + i) % 256 for i in range(3 * width))

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(row * height)) + chunk(b"IEND", b"")
    return "data:image/png;base64," + base64.b64encode(data).decode()


def write_lines(path, lines):
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(line + "\n" for line in lines)
    return path


def text_list(file, name):
    """The texts of a dataset of bytes with its offsets."""
    values, offsets = file[name][()].tobytes(), file[name + "_offsets"][()]
    return [values[int(a) : int(b)].decode("utf-8") for a, b in zip(offsets[:-1], offsets[1:])]


def parts(campaign, phase):
    return sorted(glob.glob(os.path.join(glob.escape(campaign), phase, "rank-*", "part-*.h5")))


def answers(campaign):
    """custom_id -> everything that must not change from run to run, read from the parts themselves.

    A request with two records or none is a failure.
    """
    with h5py.File(os.path.join(campaign, "requests.h5"), "r") as file:
        ids = text_list(file, "custom_id")
    found = {}
    for path in parts(campaign, "results"):
        with h5py.File(path, "r") as file:
            data = {name: dataset[()] for name, dataset in file.items()}
            texts, codes = text_list(file, "text"), text_list(file, "error_code")
        for record, request in enumerate(data["request"]):
            custom_id = ids[int(request)]
            check(custom_id not in found, f"{path}: {custom_id} has a second result")
            choices = []
            for choice in range(int(data["choice_offsets"][record]), int(data["choice_offsets"][record + 1])):
                tokens = slice(int(data["token_offsets"][choice]), int(data["token_offsets"][choice + 1]))
                tops = slice(int(data["top_offsets"][choice]), int(data["top_offsets"][choice + 1]))
                choices.append(
                    (
                        tuple(data["token_ids"][tokens]),
                        data["logprobs"][tokens].astype(np.float32).tobytes(),
                        tuple(data["top_ids"][tops]),
                        data["top_logprobs"][tops].astype(np.float32).tobytes(),
                        texts[choice],
                        int(data["finish"][choice]),
                        int(data["stop_index"][choice]),
                    )
                )
            found[custom_id] = (int(data["prompt_tokens"][record]), codes[record], tuple(choices))
    missing = [custom_id for custom_id in ids if custom_id not in found]
    check(not missing, f"{campaign}: no result for {', '.join(missing)}")
    return found


def lost_and_doubled(campaign):
    """How many requests have no result, and how many results there are beyond one for each request."""
    with h5py.File(os.path.join(campaign, "requests.h5"), "r") as file:
        total = len(text_list(file, "custom_id"))
    records = [int(request) for path in parts(campaign, "results") for request in records_of(path)]
    return total - len(set(records)), len(records) - len(set(records))


def records_of(path):
    with h5py.File(path, "r") as file:
        return file["request"][()]


def compare(found, expected, what):
    """Fails with the first difference between two results of answers()."""
    check(found.keys() == expected.keys(), f"{what}: requests differ: {found.keys() ^ expected.keys()}")
    for custom_id, expected_answer in expected.items():
        answer = found[custom_id]
        if answer != expected_answer:
            raise Failure(f"{what}: {custom_id} differs\n  found    {answer}\n  expected {expected_answer}")


def forget_cached(usage):
    """Takes out of a usage what depends on the layout of ranks and on the cache."""
    for details in ("prompt_tokens_details", "input_tokens_details"):
        usage.get(details, {}).pop("cached_tokens", None)
    for name in ("prompt_cache_hit_tokens", "prompt_cache_miss_tokens"):
        usage.pop(name, None)
    if "cache_read_input_tokens" in usage:
        usage["input_tokens"] += usage.pop("cache_read_input_tokens")


def exported(campaign):
    """(lines of results.jsonl, lines of errors.jsonl), without what depends on the time or on the cache; each input line once."""
    lists = []
    for name in ("results.jsonl", "errors.jsonl"):
        path = os.path.join(campaign, name)
        lines = []
        if os.path.exists(path):
            with open(path, encoding="utf-8") as file:
                for line in file:
                    record = json.loads(line)
                    body = (record["response"] or {}).get("body", {})
                    body.pop("created", None)
                    forget_cached(body.get("usage") or {})
                    lines.append(record)
        lists.append(lines)
    ids = [line["custom_id"] for lines in lists for line in lines if line["custom_id"] is not None]
    check(len(ids) == len(set(ids)), f"{campaign}: a custom_id is exported twice: {sorted(ids)}")
    return tuple(lists)


def complete(campaign, commands, ranks, extra=()):
    """Runs the given phases to their end, and export."""
    for command in commands:
        run([command, "--campaign", campaign, *extra], ranks)
    run(["export", "--campaign", campaign])


def ingest(campaign, requests, model=MODEL, expect=DONE, extra=(), **options):
    return run(["ingest", "--input", requests, "--model", model, "--campaign", campaign, *extra], expect=expect, **options)


def fresh_copy(template, target):
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(template, target)
    return target


def main(tests):
    """Runs the named tests (all, or those on the command line) in a folder that is kept when one fails."""
    names = sys.argv[1:] or list(tests)
    failed = 0
    for name in names:
        folder = tempfile.mkdtemp(prefix=f"nocturne-{name}-")
        started = time.monotonic()
        try:
            tests[name](folder)
        except Failure as failure:
            failed += 1
            print(f"FAILED {name} ({time.monotonic() - started:.1f} s; files in {folder}): {failure}", flush=True)
            continue
        shutil.rmtree(folder, ignore_errors=True)
        print(f"passed {name} ({time.monotonic() - started:.1f} s)", flush=True)
    return 1 if failed else 0
