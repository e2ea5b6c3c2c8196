"""`nocturne check`: passes where all is well, in poor surroundings too, and each row fails or warns when its trouble is made, with the
documented exit code and what to do.

    preflight.py [TEST ...]

FAULT_LIBRARY is the library built from system_fault.c.
"""

import os
import random
import subprocess
import sys
import time

import campaigns
from campaigns import CONFLICT, DONE, INPUT, IO, MEMORY, MODEL, USAGE, Launch, check, fresh_copy, ingest

LIBRARY = os.environ.get("FAULT_LIBRARY", "")
RANK_COUNT = 2


def fault(kind, path="/nowhere", rank=None):
    extra = {"LD_PRELOAD": LIBRARY, "NOCTURNE_FAULT": kind, "NOCTURNE_FAULT_PATH": path}
    if rank is not None:
        extra["NOCTURNE_FAULT_RANK"] = str(rank)
    return extra


def table(output):
    """name -> (verdict, text with what to do)."""
    rows, name = {}, None
    for line in output.splitlines():
        words = line[14:].split("  ", 1) if len(line) > 14 else []
        if words and words[0] in ("pass", "warn", "FAIL"):
            name = line[:14].strip()
            rows[name] = (words[0], words[1])
        elif name and line.strip().startswith("-> "):
            rows[name] = (rows[name][0], rows[name][1] + "\n" + line.strip())
    return rows


def preflight(arguments, ranks=RANK_COUNT, expect=DONE, extra=None, program=(campaigns.PROGRAM,)):
    launch = Launch(["check", *arguments], ranks, extra, program=program)
    code = launch.wait()
    output = launch.output()
    check(code == expect, f"check {arguments}: exit {code}, expected {expect}\n{output}")
    rows = table(output)
    check(len(rows) == 18, f"{len(rows)} rows\n{output}")
    return rows, output


def finds(row, verdict, words, arguments, expect=DONE, **options):
    rows, output = preflight(arguments, expect=expect, **options)
    check(rows[row][0] == verdict, f"{row}: {rows[row]}, expected {verdict}\n{output}")
    check(words in rows[row][1], f"{row}: '{words}' is not in '{rows[row][1]}'")
    check("\n-> " in rows[row][1], f"{row}: does not say what to do: {rows[row][1]}")
    failed = [name for name, (found, _) in rows.items() if found == "FAIL"]
    check((expect != DONE) == bool(failed), f"exit {expect}, but failed rows {failed}")
    return rows


def prepared(folder):
    campaign = os.path.join(folder, "campaign")
    ingest(campaign, campaigns.write_lines(os.path.join(folder, "requests.jsonl"), campaigns.small_requests(4)))
    return campaign


def passes(folder):
    """On 1, 2 and 4 ranks, before and after ingest; nothing is left in the folder."""
    empty = os.path.join(folder, "not", "there")
    rows, output = preflight([empty, "--model", MODEL], None)
    check(all(verdict == "pass" for name, (verdict, _) in rows.items() if name != "memory"), output)
    check(not os.path.exists(os.path.join(folder, "not")), "check made the campaign's folder")
    campaign = prepared(folder)
    before = sorted(os.listdir(campaign))
    for ranks in (1, 2, 4):
        rows, output = preflight([campaign, "--hashes", "--kv-memory", "16M"], ranks)
        bad = [name for name, (verdict, _) in rows.items() if verdict != "pass" and name not in ("binding", "links", "memory")]
        check(not bad, f"{ranks} ranks: {bad}\n{output}")
        check("content " in rows["shards"][1], output)
    check(sorted(os.listdir(campaign)) == before, f"check left {sorted(os.listdir(campaign))}")
    check(sorted(os.listdir(folder)) == ["campaign", "requests.jsonl"], f"check left {os.listdir(folder)}")


def poor_surroundings(folder):
    """No HOME, a TMPDIR of 150 characters, one core, no network."""
    campaign = prepared(folder)
    long = os.path.join(folder, "t" * (150 - len(folder) - 1))
    os.makedirs(long, exist_ok=True)
    for home in ("/nonexistent", os.path.join(folder, "closed")):
        if home != "/nonexistent":
            os.makedirs(home, mode=0)
        for ranks in (None, 2):
            # Launchers have limits of their own: mpirun puts its socket below TMPDIR, so it gets the long one for its ranks only.
            program = ["/usr/bin/env", f"TMPDIR={long}", f"HOME={home}", "taskset", "-c", first_core(), campaigns.PROGRAM]
            rows, output = preflight([campaign, "--kv-memory", "16M"], ranks, program=program)
            wanted = "warn" if ranks else "pass"
            check(rows["binding"][0] == wanted, f"one core, {ranks} ranks: {rows['binding']}\n{output}")
            check(rows["TMPDIR"][0] == "pass" and long in rows["TMPDIR"][1], f"{rows['TMPDIR']}")
            launch = Launch(["run", "--campaign", campaign, "--restart"], ranks, program=program)
            check(launch.wait() == DONE, f"run with a poor environment\n{launch.output()}")
    alone = ["unshare", "--net", campaigns.PROGRAM]
    if subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False).returncode == 0:
        preflight([campaign, "--kv-memory", "16M"], None, program=alone)
    else:
        print("poor_surroundings: no right to leave the network here")


def first_core():
    return str(min(os.sched_getaffinity(0)))


def small_group(folder):
    """A control group of one core: warned about with two ranks."""
    campaign = prepared(folder)
    if os.path.exists("/sys/fs/cgroup/cgroup.controllers"):
        group, words = f"/sys/fs/cgroup/nocturne-test-{os.getpid()}", "the time of 1 core"
        settings = {"cpu.max": "100000 100000"}
    else:
        group, words = f"/sys/fs/cgroup/cpuset/nocturne-test-{os.getpid()}", "share cores"
        settings = {"cpuset.cpus": first_core(), "cpuset.mems": "0"}
    try:
        check(os.path.exists(os.path.join(os.path.dirname(group), "cgroup.procs")), "no control groups")
        os.mkdir(group)
        for name, value in settings.items():
            with open(os.path.join(group, name), "w", encoding="ascii") as file:
                file.write(value)
    except (OSError, campaigns.Failure) as error:
        print(f"small_group: control groups cannot be made here ({error})")
        remove_group(group)
        return
    try:
        program = ["/bin/sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh", campaigns.PROGRAM]
        finds("binding", "warn", words, [campaign, "--kv-memory", "16M"], program=program)
    finally:
        remove_group(group)


def remove_group(group):
    for _ in range(50):
        try:
            os.rmdir(group)
            return
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.1)


def checkpoints(folder):
    campaign = prepared(folder)
    model = os.path.join(folder, "model")
    shard = os.path.join(model, "model-00002-of-00002.safetensors")
    small = ["--kv-memory", "16M"]
    fresh_copy(MODEL, model)
    os.truncate(shard, os.path.getsize(shard) - 1)
    finds("checkpoint", "FAIL", "model-00002", [campaign, "--model", model, *small], INPUT)
    os.remove(shard)
    finds("checkpoint", "FAIL", "model-00002", [campaign, "--model", model, *small], INPUT)
    fresh_copy(MODEL, model)
    os.remove(os.path.join(model, "tokenizer.json"))
    rows, output = preflight([campaign, "--model", model, *small], expect=IO)
    check(rows["checkpoint"][0] == "FAIL" and "tokenizer.json" in rows["checkpoint"][1], output)
    fresh_copy(MODEL, model)
    with open(shard, "r+b") as file:  # the fingerprint covers the last bytes of a shard
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))
    finds("checkpoint", "FAIL", "was made for", [campaign, "--model", model, *small], CONFLICT)
    finds("shards", "FAIL", "Input/output error", [campaign, *small], IO, extra=fault("unread", MODEL))
    finds("checkpoint", "FAIL", "Permission denied", [campaign, *small], IO, extra=fault("unreadable", shard_of(MODEL)))
    finds("checkpoint", "FAIL", "no checkpoint", [os.path.join(folder, "absent"), *small], USAGE)


def shard_of(model):
    return os.path.join(model, "model-00002-of-00002.safetensors")


def machines(folder):
    campaign = prepared(folder)
    finds("memory", "FAIL", "key/value memory", [campaign, "--kv-memory", "100T"], MEMORY)
    small = [campaign, "--kv-memory", "16M"]
    other = 'if [ "${OMPI_COMM_WORLD_RANK:-$PMIX_RANK}" = 1 ]; then exec "$@" --cpu-kernels generic; fi; exec "$@" --cpu-kernels avx2'
    finds("kernels", "FAIL", "different bits", small, CONFLICT, program=["/bin/sh", "-c", other, "sh", campaigns.PROGRAM])
    finds("kernels", "FAIL", "cuda", [*small, "--backend", "cuda"], USAGE)
    finds("binding", "warn", "share cores", small, program=["taskset", "-c", first_core(), campaigns.PROGRAM])
    limited = ["/bin/sh", "-c", 'ulimit -n 100; exec "$@"', "sh", campaigns.PROGRAM]
    finds("limits", "warn", "only 100 open files", small, program=limited)
    finds("TMPDIR", "warn", "/nowhere", small, program=["/usr/bin/env", "TMPDIR=/nowhere", campaigns.PROGRAM])
    finds("clock", "warn", "rank 1", small, extra=fault("clock:30", rank=1))
    finds("clock", "FAIL", "rank 1", small, IO, extra=fault("clock:3600", rank=1))
    finds("clock", "FAIL", "before 2026", small, IO, extra=fault("clock:-1000000000"))
    finds("links", "warn", "a message between ranks 0 and 1", small, extra=fault("late:20,1"))


def file_systems(folder):
    campaign = prepared(folder)
    small = [campaign, "--kv-memory", "16M"]
    finds("flush", "FAIL", "Input/output error", small, IO, extra=fault("unsynced", campaign))
    finds("flush", "FAIL", "Read-only file system", small, IO, extra=fault("read-only", campaign))
    finds("flush", "FAIL", "No space left", small, IO, extra=fault("full:1000", campaign))
    finds("rename", "FAIL", "cannot rename", small, IO, extra=fault("unrenamed", campaign))
    for name in ("ENOLCK", "ENOSYS"):
        finds("locks", "warn", "takes no locks", small, extra=fault("locks:" + name, campaign))
    finds("HDF5", "FAIL", ".h5.tmp", small, IO, extra=fault("write:6", campaign))
    finds("file times", "warn", "the file system's clock", small, extra=fault("ages", campaign))
    damaged = fresh_copy(campaign, os.path.join(folder, "damaged"))
    path = os.path.join(damaged, "requests.h5")
    os.truncate(path, os.path.getsize(path) - random.Random(4).randrange(1, 1000))
    finds("campaign", "FAIL", "requests.h5", [damaged, "--model", MODEL, "--kv-memory", "16M"], INPUT)
    mount = os.path.join(folder, "small")
    os.mkdir(mount)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", mount], capture_output=True, check=False).returncode:
        print("file_systems: no right to mount a file system here, so too little space is not tried")
        return
    try:
        where = os.path.join(mount, "campaign")
        finds("free space", "warn", "GiB free", [where, "--model", MODEL, "--kv-memory", "16M"])
        many = [campaigns.chat(f"r{i}", "Define dog.", max_tokens=1) for i in range(100)]
        lines = campaigns.write_lines(os.path.join(folder, "many.jsonl"), [campaigns.json.dumps(line) for line in many])
        ingest(where, lines)
        finds("free space", "FAIL", "may need", [where, "--kv-memory", "16M"], IO)
    finally:
        subprocess.run(["umount", mount], check=False)


TESTS = {
    test.__name__: test for test in (passes, poor_surroundings, small_group, checkpoints, machines, file_systems)
}

if __name__ == "__main__":
    sys.exit(campaigns.main(TESTS))
