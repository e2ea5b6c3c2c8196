"""Stops, refusals and odd campaigns: signals, a second launch while one runs, other settings or another model on resume, more ranks
than requests, nothing to do.

    resume.py [TEST ...]
"""

import json
import os
import shutil
import signal
import sys
import time

import h5py

import campaigns
from campaigns import (
    CONFLICT,
    DONE,
    MODEL,
    STOPPED,
    USAGE,
    Launch,
    answers,
    chat,
    check,
    compare,
    exported,
    fresh_copy,
    ingest,
    parts,
    run,
    run_each,
)

RANKS = 2


def long_requests(count=12, max_tokens=100):
    """Work for some seconds: stories that do not end by themselves."""
    return [
        json.dumps(chat(f"story-{i}", "Tell me a story about a fox.", seed=i, max_tokens=max_tokens, ignore_eos=True))
        for i in range(count)
    ]


def prepared(folder, lines, name="campaign"):
    requests = campaigns.write_lines(os.path.join(folder, f"{name}.jsonl"), lines)
    campaign = os.path.join(folder, name)
    ingest(campaign, requests)
    return campaign


def status(campaign):
    output, _ = run(["status", "--campaign", campaign, "--json"])
    return json.loads(output)


def stop_by_signal(folder):
    """SIGTERM, SIGINT or SIGUSR1 at any one rank, or at all: exit 75, finished work kept, and the rerun goes on from there."""
    template = prepared(folder, long_requests())
    whole = fresh_copy(template, os.path.join(folder, "whole"))
    _, seconds = run(["run", "--campaign", whole, "--threads", "1"], RANKS)
    expected = answers(whole)
    campaign = os.path.join(folder, "stopped")
    for number, everyone in ((signal.SIGTERM, False), (signal.SIGTERM, True), (signal.SIGINT, False), (signal.SIGUSR1, True)):
        for phase in ("run", "prefill"):
            fresh_copy(template, campaign)
            arguments = [phase, "--campaign", campaign, "--threads", "1", "--part-seconds", "0", "--batch", "2"]
            launch = Launch(arguments, RANKS)
            if phase == "run":  # some results, but not all
                while launch.process.poll() is None and len(parts(campaign, "results")) < 2:
                    time.sleep(0.01)
            else:
                while launch.process.poll() is None and not parts(campaign, "prefill"):
                    time.sleep(0.002)
            ranks = launch.rank_processes()
            sent = time.monotonic()
            for pid in ranks if everyone else ranks[:1]:
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    pass
            code = launch.wait()
            what = f"{phase}, {signal.Signals(number).name} to {'all' if everyone else 'one'}"
            if phase == "prefill" and code == DONE:
                pass  # it was as good as finished
            else:
                check(code == STOPPED, f"{what}: exit {code}, expected {STOPPED}\n{launch.output()}")
            check(time.monotonic() - sent < 20, f"{what}: {time.monotonic() - sent:.0f} s from signal to exit")
            kept = len(parts(campaign, "results" if phase == "run" else "prefill"))
            check(kept >= 1, f"{what}: nothing was kept")
            if phase == "run":
                output, _ = run(["run", "--campaign", campaign, "--threads", "1"], RANKS)
                check(len(parts(campaign, "results")) > kept, f"{what}: the rerun made nothing\n{output}")
            else:
                run(["prefill", "--campaign", campaign, "--threads", "1"], RANKS)
                run(["decode", "--campaign", campaign, "--threads", "1"], RANKS)
            compare(answers(campaign), expected, what)
    print(f"the whole work takes {seconds:.1f} s")


def generated(campaign):
    """Tokens that the last launch on the campaign drew."""
    with open(os.path.join(campaign, "progress.json"), encoding="utf-8") as file:
        return json.load(file)["generated_tokens"]


def total_tokens(found):
    return sum(len(choice[0]) for _, _, choices in found.values() for choice in choices)


def stops_lose_no_token(folder):
    """Launches that are stopped again and again, by a signal or the end of their allocation, draw each token once, and the answers
    are those of an undisturbed launch. With several choices, log-probabilities, stop strings and penalties."""
    lines = campaigns.small_requests(150) + long_requests(10, 150)
    template = prepared(folder, lines)
    whole = fresh_copy(template, os.path.join(folder, "whole"))
    _, seconds = run(["run", "--campaign", whole, "--threads", "1"], RANKS)
    expected = answers(whole)
    check(generated(whole) == total_tokens(expected), f"a whole run drew {generated(whole)} tokens for {total_tokens(expected)}")
    for phases in (("run",), ("prefill", "decode")):
        campaign = fresh_copy(template, os.path.join(folder, "stopped"))
        drawn, stops, launches = 0, 0, 0
        for phase in phases:
            code = STOPPED
            while code == STOPPED:
                launches += 1
                check(launches < 40, f"{phase} makes no progress")
                arguments = [phase, "--campaign", campaign, "--threads", "1", "--grace", "10"]
                if launches % 2:  # the allocation's end
                    arguments += ["--until", f"+{10 + 0.45 * seconds:.2f}"]
                launch = Launch(arguments, RANKS + launches % 2)
                if launches % 2 == 0:
                    time.sleep(0.45 * seconds)
                    for pid in launch.rank_processes()[-1:]:
                        os.kill(pid, signal.SIGUSR1)
                code = launch.wait()
                check(code in (DONE, STOPPED), f"{phase}: exit {code}\n{launch.output()}")
                if os.path.exists(os.path.join(campaign, "progress.json")):
                    drawn += generated(campaign)
                    os.remove(os.path.join(campaign, "progress.json"))
                stops += code == STOPPED
        compare(answers(campaign), expected, f"{' and '.join(phases)}, stopped {stops} times")
        check(stops >= 1, f"{phases}: no stop in {launches} launches")  # how many depends on the load
        check(drawn == total_tokens(expected), f"{phases}: {drawn} tokens drawn for {total_tokens(expected)}")
        print(f"{' and '.join(phases)}: {stops} stops, {drawn} tokens drawn once each")


def no_prompt_for_nothing(folder):
    """Launches that know their end begin no prompt that would not end in time: over all of them hardly any prompt token is run twice.
    (Without that, each launch would lose a step's worth of prompts, and a long prompt might never end.)"""
    lines = [
        json.dumps(chat(f"long-{i}", f"Number {i}. " + "Tell me a story about a fox. " * 300, temperature=0, max_tokens=4))
        for i in range(60)
    ]
    campaign = prepared(folder, lines)
    ran, launches, code = 0, 0, STOPPED
    while code == STOPPED:
        launches += 1
        check(launches < 60, "prefill makes no progress")
        launch = Launch(["prefill", "--campaign", campaign, "--threads", "1", "--step-tokens", "256", "--grace", "10", "--until", "+13"], RANKS)
        code = launch.wait()
        check(code in (DONE, STOPPED), f"exit {code}\n{launch.output()}")
        with open(os.path.join(campaign, "progress.json"), encoding="utf-8") as file:
            ran += json.load(file)["prompt_tokens"]
    with h5py.File(os.path.join(campaign, "requests.h5"), "r") as file:
        tokens = int(file["token_ids"].shape[0])
    print(f"{launches} launches ran {ran} prompt tokens of {tokens}")
    check(launches > 1, "the first launch did it all")
    check(ran < 1.03 * tokens, f"{ran} prompt tokens were run for {tokens}")


def no_grace(folder):
    """Without time to save, the tokens of unfinished answers are given up by name, and computed again."""
    campaign = prepared(folder, long_requests(8, 1500))
    whole = fresh_copy(campaign, os.path.join(folder, "whole"))
    run(["run", "--campaign", whole, "--threads", "1"], RANKS)
    launch = Launch(["run", "--campaign", campaign, "--threads", "1", "--grace", "0", "--until", "+2"], RANKS)
    check(launch.wait() == STOPPED, f"no stop\n{launch.output()}")
    check("story-" in launch.output() and "computed again" in launch.output(), f"nothing is named\n{launch.output()}")
    check(not parts(campaign, "prefill"), "states were saved without grace")
    run(["run", "--campaign", campaign], RANKS)
    compare(answers(campaign), answers(whole), "without grace")


def impossible_ends(folder):
    campaign = prepared(folder, campaigns.small_requests(4))
    for until in ("soon", "+x", "25:00", "2020-01-01T00:00", "2030-13-01T00:00", "@-3", ""):
        output = run_each(["run", "--campaign", campaign, "--until", until], RANKS, USAGE)
        check("--until" in output, f"--until {until}: unclear refusal\n{output}")
    output = run_each(["run", "--campaign", campaign, "--until", "+5", "--grace", "60"], RANKS, STOPPED)
    check("allocation" in output, f"the end of the allocation is not named\n{output}")
    run(["run", "--campaign", campaign], RANKS, extra_environment={"SLURM_JOB_END_TIME": "12"})  # long gone: not ours
    answers(campaign)


def second_launch(folder):
    """A launch while another works on the campaign is refused and names the holder; status works all the while."""
    campaign = prepared(folder, long_requests(16, 200))
    first = Launch(["run", "--campaign", campaign, "--threads", "1", "--part-seconds", "0", "--batch", "2"], RANKS)
    while first.process.poll() is None and not parts(campaign, "results"):
        time.sleep(0.01)
    check(first.process.poll() is None, f"the first launch ended too soon\n{first.output()}")
    output = run_each(["run", "--campaign", campaign], RANKS, CONFLICT)
    check(os.uname().nodename in output, f"the refusal does not name the holder's host\n{output}")
    counts = status(campaign)
    check(counts["total"] == counts["done"] + counts["failed"] + counts["waiting"], f"counts do not add up: {counts}")
    check(counts["done"] > 0, f"status sees no results: {counts}")
    code = first.wait()
    check(code == DONE, f"the first launch: exit {code}\n{first.output()}")
    counts = status(campaign)
    check(counts["waiting"] == 0 and counts["total"] == counts["done"] + counts["failed"], f"at the end: {counts}")


def other_settings(folder):
    """Settings that tokens depend on may not change within a campaign, unless --restart makes it anew."""
    campaign = prepared(folder, campaigns.small_requests(12))
    run(["prefill", "--campaign", campaign], RANKS)
    output = run_each(["prefill", "--campaign", campaign, "--all-layers"], RANKS, CONFLICT)
    check("tail" in output and "--restart" in output, f"the refusal does not name the difference and --restart\n{output}")
    output, _ = run(["prefill", "--campaign", campaign, "--all-layers", "--restart"], RANKS)
    run(["decode", "--campaign", campaign, "--all-layers"], RANKS)
    fresh = prepared(folder, campaigns.small_requests(12), "fresh")
    run(["run", "--campaign", fresh, "--all-layers"], RANKS)
    compare(answers(campaign), answers(fresh), "--restart with --all-layers")
    output = run_each(["run", "--campaign", fresh], RANKS, CONFLICT)
    check("--restart" in output, f"the refusal does not name --restart\n{output}")
    run(["run", "--campaign", fresh, "--restart"], RANKS)
    answers(fresh)


def other_layout(folder):
    """What tokens do not depend on may change: ranks, batch, part length, memory."""
    campaign = prepared(folder, long_requests(12, 60))
    whole = fresh_copy(campaign, os.path.join(folder, "whole"))
    run(["run", "--campaign", whole], 1)
    launch = Launch(["run", "--campaign", campaign, "--part-seconds", "0", "--batch", "1", "--threads", "1"], 3)
    while launch.process.poll() is None and len(parts(campaign, "results")) < 2:
        time.sleep(0.01)
    launch.kill_all()
    run(["run", "--campaign", campaign, "--batch", "5", "--kv-memory", "64M"], 2)
    compare(answers(campaign), answers(whole), "other ranks on resume")


def other_model(folder):
    """Another checkpoint in the same place is refused, and so are other requests."""
    model = fresh_copy(MODEL, os.path.join(folder, "nano"))
    requests = campaigns.write_lines(os.path.join(folder, "requests.jsonl"), campaigns.small_requests(12))
    campaign = os.path.join(folder, "campaign")
    ingest(campaign, requests, model)
    run(["prefill", "--campaign", campaign], RANKS)
    shard = os.path.join(model, "model-00001-of-00002.safetensors")
    with open(shard, "r+b") as file:
        file.seek(-1, os.SEEK_END)
        byte = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([byte[0] ^ 1]))
    for command in ("prefill", "decode", "run"):
        output = run_each([command, "--campaign", campaign], RANKS, CONFLICT)
        check("checkpoint" in output or "fingerprint" in output, f"{command}: unclear refusal\n{output}")
    output, _ = ingest(campaign, requests, model, expect=CONFLICT)
    check("--restart" in output, f"ingest with another model: the refusal does not name --restart\n{output}")
    shutil.rmtree(model)
    shutil.copytree(MODEL, model)
    run(["decode", "--campaign", campaign], RANKS)
    other = campaigns.write_lines(os.path.join(folder, "other.jsonl"), campaigns.small_requests(13))
    ingest(campaign, other, model, expect=CONFLICT)
    ingest(campaign, requests, model)  # the same again changes nothing
    run(["export", "--campaign", campaign])
    ingest(campaign, other, model, extra=["--restart"])
    check(status(campaign)["done"] == 0, "--restart of ingest keeps old answers")


def more_ranks_than_requests(folder):
    lines = [json.dumps(chat("only", "Define dog.", temperature=0, max_tokens=20))]
    single = prepared(folder, lines, "single")
    run(["run", "--campaign", single], 1)
    expected = answers(single)
    for name, commands in (("run8", ("run",)), ("staged8", ("prefill", "decode"))):
        campaign = prepared(folder, lines, name)
        campaigns.complete(campaign, commands, 8)
        compare(answers(campaign), expected, name)


def nothing_to_do(folder):
    """No valid request: every phase ends well, and each refused line is in errors.jsonl."""
    bad = ['{"custom_id": "cut', "[]", "not JSON"]
    campaign = prepared(folder, bad, "refused")
    campaigns.complete(campaign, ("prefill", "decode"), RANKS)
    results, errors = exported(campaign)
    check((len(results), len(errors)) == (0, 3), f"{len(results)} results and {len(errors)} errors, expected 0 and 3")
    check(not os.path.exists(os.path.join(campaign, "results.jsonl")) or not results, "results from nowhere")
    again = prepared(folder, bad, "again")
    campaigns.complete(again, ("run",), 3)
    counts = status(again)
    check(counts["waiting"] == 0 and counts["total"] == counts["done"] + counts["failed"], f"counts: {counts}")


def finished_campaign(folder):
    """All commands once more on a finished campaign change nothing; no error file when no line failed."""
    lines = [line for line in campaigns.small_requests(8) if "cut off" not in line]
    campaign = prepared(folder, lines)
    campaigns.complete(campaign, ("prefill", "decode"), RANKS)
    expected, files, before = answers(campaign), exported(campaign), parts(campaign, "results")
    check(not os.path.exists(os.path.join(campaign, "errors.jsonl")), "an error file though no line failed")
    for command in ("prefill", "decode", "run"):
        run([command, "--campaign", campaign], RANKS)
    run(["export", "--campaign", campaign])
    check(parts(campaign, "results") == before, "parts were added to a finished campaign")
    compare(answers(campaign), expected, "run again")
    check(exported(campaign) == files, "exported files changed")


def no_campaign(folder):
    """A folder without requests, and one that is not there."""
    for campaign in (os.path.join(folder, "absent"), folder):
        for command in ("prefill", "decode", "run"):
            launch = Launch([command, "--campaign", campaign], RANKS)
            code = launch.wait()
            check(code not in (DONE, STOPPED, 139, 134), f"{command} on {campaign}: exit {code}\n{launch.output()}")
            check("ingest" in launch.output(), f"{command}: the message does not say to run ingest\n{launch.output()}")
    run(["prefill"], expect=USAGE)
    run(["prefill", "--campaign", folder, "--no-such-option"], expect=USAGE)


def bare_environment(folder):
    """A HOME in which nothing can be made, and one core for all ranks."""
    campaign = prepared(folder, campaigns.small_requests(8))
    run(["run", "--campaign", campaign], RANKS, extra_environment={"HOME": "/dev/null"})
    answers(campaign)
    single = prepared(folder, campaigns.small_requests(8), "single")
    cores = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(cores)})
        run(["run", "--campaign", single], RANKS)
    finally:
        os.sched_setaffinity(0, cores)
    compare(answers(single), answers(campaign), "one core")


TESTS = {
    test.__name__: test
    for test in (
        stop_by_signal,
        stops_lose_no_token,
        no_prompt_for_nothing,
        no_grace,
        impossible_ends,
        second_launch,
        other_settings,
        other_layout,
        other_model,
        more_ranks_than_requests,
        nothing_to_do,
        finished_campaign,
        no_campaign,
        bare_environment,
    )
}

if __name__ == "__main__":
    sys.exit(campaigns.main(TESTS))
