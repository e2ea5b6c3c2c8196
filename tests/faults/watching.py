"""What a launch shows while it works: the line on a terminal, lines in a log, and the file for Prometheus.

    watching.py [TEST ...]
"""

import json
import os
import pty
import re
import sys

import campaigns
from campaigns import PROGRAM, STOPPED, chat, check, ingest, run

LINE = re.compile(
    r'^nocturne_[a-z_]+\{campaign="(?:[^"\\\n]|\\[\\"n])*",phase="[a-z]+"\} -?\d+(\.\d+)?(e[+-]?\d+)?$'
)


def prepared(folder, tokens, name="campaign"):
    lines = [json.dumps(chat(f"s{i}", "Tell me a story about a fox.", seed=i, max_tokens=tokens, ignore_eos=True)) for i in range(12)]
    lines.append('{"custom_id": "cut off')
    campaign = os.path.join(folder, name)
    ingest(campaign, campaigns.write_lines(os.path.join(folder, "requests.jsonl"), lines))
    return campaign


def read_metrics(path):
    """name -> value; each metric has its HELP and TYPE once, before it, as the text format asks for."""
    found, helped, typed = {}, set(), {}
    with open(path, encoding="utf-8") as file:
        for line in file.read().split("\n")[:-1]:
            words = line.split(" ")
            if line.startswith("# HELP "):
                check(words[2] not in helped and len(words) > 3, f"{line}: twice, or no help")
                helped.add(words[2])
            elif line.startswith("# TYPE "):
                check(words[2] in helped and words[3] in ("gauge", "counter"), f"{line}: no help before, or an unknown type")
                typed[words[2]] = words[3]
            else:
                check(LINE.match(line), f"not in the text format: {line!r}")
                name = line.split("{")[0]
                check(name in typed and name not in found, f"{line}: no type before, or twice")
                check((typed[name] == "counter") == name.endswith("_total"), f"{line}: a counter's name ends in _total, no other")
                found[name] = float(line.rsplit(" ", 1)[1])
    return found


def prometheus(folder):
    campaign = prepared(folder, 60, 'quote " and \\ backslash')
    path = os.path.join(folder, "nocturne.prom")
    run(["run", "--campaign", campaign, "--prometheus", path, "--until", "+1000", "--grace", "10"], 2)
    found = read_metrics(path)
    expected = {"requests": 12, "requests_done": 12, "requests_failed_total": 0, "generated_tokens_total": 720, "ranks": 2, "running": 0}
    for name, value in expected.items():
        check(found.get(f"nocturne_{name}") == value, f"{name} is {found.get(f'nocturne_{name}')}, expected {value}")
    check(0 < found["nocturne_walltime_left_seconds"] < 1000, f"walltime left: {found}")
    check(not os.path.exists(path + ".tmp"), "a temporary file stays")
    check(campaigns.answers(campaign), "no answers")
    # What cannot be written is a warning, no failure.
    output, _ = run(["run", "--campaign", campaign, "--restart", "--prometheus", os.path.join(folder, "absent", "x.prom")], 2)
    check("absent/x.prom" in output and "warning" in output, f"no warning\n{output}")


def log(folder):
    """A log has no control characters, and tells of the allocation's end."""
    campaign = prepared(folder, 100)
    output, _ = run(["run", "--campaign", campaign, "--until", "+1000"], 2)
    check(not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", output), f"control characters in a log: {output!r}")
    check("the allocation ends in" in output and "12 of 12 done" in output, output)


def terminal(folder):
    """On a terminal one line is written anew, no longer than the terminal is wide."""
    campaign = prepared(folder, 1500)
    pid, terminal_end = pty.fork()
    if pid == 0:
        os.system("stty cols 60")
        os.execv(PROGRAM, [PROGRAM, "run", "--campaign", campaign, "--until", "+5", "--grace", "1", "--batch", "4"])
    text = b""
    while True:
        try:
            piece = os.read(terminal_end, 4096)
        except OSError:
            break
        if not piece:
            break
        text += piece
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    check(code in (0, STOPPED), f"exit {code}\n{text.decode()}")
    lines = [piece.split("\x1b[K")[0] for piece in text.decode().split("\r") if "\x1b[K" in piece]
    shown = [line for line in lines if line.startswith("run: ")]
    check(len(shown) >= 3, f"the line was shown {len(shown)} times\n{text.decode()}")
    check(all(len(line) <= 59 for line in shown), f"a line is wider than the terminal: {shown}")
    check(any("of 12 done" in line for line in shown), f"the line does not tell how far it is: {shown}")


TESTS = {test.__name__: test for test in (prometheus, log, terminal)}

if __name__ == "__main__":
    sys.exit(campaigns.main(TESTS))
