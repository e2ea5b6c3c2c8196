"""Takes from a campaign what it needs: disk space, write access, the checkpoint. Every rank ends with the same documented code
and a message that names the file, nobody hangs, and once the trouble is over the same commands end as an undisturbed run does.

    resources.py [TEST ...]

FAULT_LIBRARY is the library built from system_fault.c.
"""

import os
import random
import resource
import shutil
import subprocess
import sys

import campaigns
from campaigns import CONFLICT, DONE, INPUT, IO, Failure, Launch, answers, check, compare, exported, fresh_copy, ingest, run, run_each

RANKS = 3
PHASES = ("ingest", "prefill", "decode", "run", "export")
SMALL_PARTS = ["--threads", "1", "--part-seconds", "0"]
LIBRARY = os.environ.get("FAULT_LIBRARY", "")


def fault(kind, path):
    check(os.path.exists(LIBRARY), f"FAULT_LIBRARY: '{LIBRARY}' is not there")
    return {"LD_PRELOAD": LIBRARY, "NOCTURNE_FAULT": kind, "NOCTURNE_FAULT_PATH": path}


class Template:
    """Copies of a campaign before each phase, and its undisturbed answers."""

    def __init__(self, folder, model=campaigns.MODEL):
        self.folder, self.model = folder, model
        self.requests = campaigns.write_lines(os.path.join(folder, "requests.jsonl"), campaigns.small_requests(12))
        campaign = os.path.join(folder, "template")
        self.before = {"ingest": None}
        self.do("ingest", campaign)
        self.before["run"] = self.before["prefill"] = fresh_copy(campaign, os.path.join(folder, "before-prefill"))
        self.do("prefill", campaign)
        self.before["decode"] = fresh_copy(campaign, os.path.join(folder, "before-decode"))
        self.do("decode", campaign)
        self.before["export"] = fresh_copy(campaign, os.path.join(folder, "before-export"))
        self.do("export", campaign)
        self.expected, self.files = answers(campaign), exported(campaign)

    def arguments(self, phase, campaign):
        if phase == "ingest":
            return ["ingest", "--input", self.requests, "--model", self.model, "--campaign", campaign]
        if phase == "export":
            return ["export", "--campaign", campaign]
        return [phase, "--campaign", campaign, *SMALL_PARTS]

    def do(self, phase, campaign, **options):
        return run(self.arguments(phase, campaign), RANKS if phase in ("prefill", "decode", "run") else None, **options)

    def copy(self, phase):
        campaign = os.path.join(self.folder, "campaign")
        shutil.rmtree(campaign, ignore_errors=True)
        if self.before[phase]:
            fresh_copy(self.before[phase], campaign)
        return campaign

    def fails(self, phase, campaign, code, extra_environment=None):
        """Runs a phase that must end on every rank with `code`; returns its output."""
        arguments = self.arguments(phase, campaign)
        if phase in ("prefill", "decode", "run"):
            output = run_each(arguments, RANKS, code, extra_environment)
        else:
            output, _ = run(arguments, expect=code, extra_environment=extra_environment)
        return output

    def completes(self, phase, campaign, what):
        rest = ["run", "export"] if phase == "run" else ["ingest", "prefill", "decode", "export"]
        for command in rest:
            self.do(command, campaign)
        compare(answers(campaign), self.expected, what)
        check(exported(campaign) == self.files, f"{what}: exported files differ")


def full_disk(folder):
    """The disk fills up at once, early, and somewhere later in each phase."""
    template = Template(folder)
    chance = random.Random(3)
    for phase in PHASES:
        for limit in (0, chance.randrange(1, 2000), chance.randrange(2000, 20000)):
            campaign = template.copy(phase)
            environment = fault(f"full:{limit}", campaign)
            what = f"{phase}, disk full after {limit} bytes"
            try:
                output = template.fails(phase, campaign, IO, environment)
            except Failure:
                # A phase that writes less than the limit on some rank ends well there: only an end with other codes is wrong.
                if limit == 0:
                    raise
                launch = Launch(template.arguments(phase, template.copy(phase)), ranks_of(phase), environment)
                code = launch.wait()
                output = launch.output()
                check(code in (DONE, IO), f"{what}: exit {code}\n{output}")
                if code == DONE:
                    continue
            check("No space left" in output, f"{what}: the message does not say so\n{output}")
            template.completes(phase, campaign, what)


def ranks_of(phase):
    return RANKS if phase in ("prefill", "decode", "run") else None


def read_only(folder):
    template = Template(folder)
    for phase in PHASES:
        campaign = template.copy(phase)
        output = template.fails(phase, campaign, IO, fault("read-only", campaign))
        check("Read-only file system" in output and campaign in output, f"{phase}: unclear message\n{output}")
        template.completes(phase, campaign, f"{phase}, read-only")


def unsynced(folder):
    """fsync fails: what was not flushed must not count as done."""
    template = Template(folder)
    for phase in ("ingest", "prefill", "run"):
        campaign = template.copy(phase)
        output = template.fails(phase, campaign, IO, fault("unsynced", campaign))
        check("Input/output error" in output, f"{phase}: unclear message\n{output}")
        template.completes(phase, campaign, f"{phase}, fsync fails")


def failing_writes(folder):
    """The first, the second and a later write fails, and all after it; or no file can take its final name."""
    template = Template(folder)
    for phase in PHASES:
        for kind in ("write:1", "write:2", f"write:{random.Random(phase).randrange(3, 12)}", "unrenamed"):
            campaign = template.copy(phase)
            what = f"{phase}, {kind}"
            environment = fault(kind, campaign)
            launch = Launch(template.arguments(phase, campaign), ranks_of(phase), environment)
            code = launch.wait()
            output = launch.output()
            # A phase that writes less often than that ends well.
            check(code == IO or (code == DONE and kind not in ("write:1", "unrenamed")), f"{what}: exit {code}\n{output}")
            if code == IO:
                check("Input/output error" in output and campaign in output, f"{what}: unclear message\n{output}")
            template.completes(phase, campaign, what)


def locks(folder):
    """File systems without locks: the text of the lock decides. A lock that another one holds: conflict."""
    template = Template(folder)
    for phase in ("ingest", "prefill", "run"):
        for name in ("ENOLCK", "ENOSYS"):
            campaign = template.copy(phase)
            template.do(phase, campaign, extra_environment=fault("locks:" + name, campaign))
            template.completes(phase, campaign, f"{phase}, {name}")
        campaign = template.copy(phase)
        output = template.fails(phase, campaign, CONFLICT, fault("locks:EAGAIN", campaign))
        check("is in use by" in output and campaign in output, f"{phase}: unclear message\n{output}")
        template.completes(phase, campaign, f"{phase}, EAGAIN")
    campaign = template.copy("run")
    holder = "host elsewhere\npid 12\njob 345\nstarted 2026-01-01T00:00:00Z\n"
    with open(os.path.join(campaign, "lock"), "w", encoding="ascii") as file:
        file.write(holder)
    output = template.fails("run", campaign, CONFLICT, fault("locks:ENOLCK", campaign))
    check("process 12 on host elsewhere, job 345" in output and "remove its file 'lock'" in output, output)
    os.remove(os.path.join(campaign, "lock"))
    template.completes("run", campaign, "lock removed")


def late_messages(folder):
    """Messages that arrive late, of one rank and of all, change nothing."""
    template = Template(folder)
    for phase in ("prefill", "decode", "run"):
        for extra in ({}, {"NOCTURNE_FAULT_RANK": "1"}):
            campaign = template.copy(phase)
            template.do(phase, campaign, extra_environment={**fault("late:5,40", campaign), **extra})
            template.completes(phase, campaign, f"{phase}, late messages")


def file_size_limit(folder):
    """A limit on file sizes (ulimit -f) is an error with a message, not a death by SIGXFSZ."""
    template = Template(folder)
    for phase in ("ingest", "export"):
        campaign = template.copy(phase)
        done = subprocess.run(
            [campaigns.PROGRAM, *template.arguments(phase, campaign)],
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2048, resource.RLIM_INFINITY)),
            capture_output=True,
            text=True,
            timeout=campaigns.DEADLINE,
            check=False,
        )
        check(done.returncode == IO, f"{phase}: exit {done.returncode}, expected {IO}\n{done.stderr}")
        check("File too large" in done.stderr, f"{phase}: unclear message\n{done.stderr}")
        template.completes(phase, campaign, f"{phase}, file size limit")


def small_file_system(folder):
    """A real file system that is too small; needs the right to mount one."""
    template = Template(folder)
    mount = os.path.join(folder, "small")
    os.mkdir(mount)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", mount], capture_output=True, check=False).returncode:
        print("small_file_system: no right to mount a file system here; full_disk tests the same by other means")
        return
    try:
        for phase in PHASES:
            campaign = os.path.join(mount, "campaign")
            shutil.rmtree(campaign, ignore_errors=True)
            remount(mount, "64m")
            if template.before[phase]:
                shutil.copytree(template.before[phase], campaign)
            # Whole pages are counted: leave what is in use, and one page more.
            used = os.statvfs(mount)
            remount(mount, f"{(used.f_blocks - used.f_bfree) * used.f_frsize + 4096}")
            output = template.fails(phase, campaign, IO)
            check("No space left" in output, f"{phase}: the message does not say so\n{output}")
            remount(mount, "64m")
            template.completes(phase, campaign, f"{phase} on a small file system")
    finally:
        subprocess.run(["umount", mount], check=False)


def remount(mount, size):
    subprocess.run(["mount", "-o", f"remount,size={size}", mount], check=True)


def checkpoint(folder):
    """The checkpoint becomes unreadable, truncated, incomplete or another one between ingest and prefill."""
    model = fresh_copy(campaigns.MODEL, os.path.join(folder, "nano"))
    template = Template(folder, model)
    shard = "model-00002-of-00002.safetensors"
    path = os.path.join(model, shard)
    original = os.path.join(campaigns.MODEL, shard)

    def restore():
        shutil.rmtree(model)
        shutil.copytree(campaigns.MODEL, model)

    def damaged(name, code, damage, expected_in_message, environment=None):
        campaign = template.copy("prefill")
        damage()
        output = template.fails("prefill", campaign, code, environment)
        check(expected_in_message in output, f"{name}: the message does not name {expected_in_message}\n{output}")
        restore()
        return campaign

    damaged("unreadable shard", IO, lambda: None, shard, fault("unreadable", path))
    damaged("shard cut by a byte", INPUT, lambda: os.truncate(path, os.path.getsize(path) - 1), shard)
    damaged("shard cut in its header", INPUT, lambda: os.truncate(path, 100), shard)
    damaged("shard empty", INPUT, lambda: os.truncate(path, 0), shard)
    damaged("config.json empty", INPUT, lambda: os.truncate(os.path.join(model, "config.json"), 0), "config.json")
    damaged("no index", INPUT, lambda: os.remove(os.path.join(model, "model.safetensors.index.json")), "index.json")
    campaign = damaged("no shard", INPUT, lambda: os.remove(path), shard)
    check(os.path.getsize(path) == os.path.getsize(original), "the checkpoint was not restored")
    template.completes("prefill", campaign, "checkpoint restored")


TESTS = {
    test.__name__: test
    for test in (
        full_disk,
        read_only,
        unsynced,
        failing_writes,
        locks,
        late_messages,
        file_size_limit,
        small_file_system,
        checkpoint,
    )
}

if __name__ == "__main__":
    sys.exit(campaigns.main(TESTS))
