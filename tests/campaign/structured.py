"""Answers held to schemas, patterns and tools, end to end on the small trained model: those that end by themselves are valid by
other programs' judgement, the others are beginnings of valid ones, and all are the same bits in every layout.

    structured.py valid|layouts|stopped|faults
"""

import json
import os
import re
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.environ["NOCTURNE_SOURCE"], "tests", "faults"))
from campaigns import DONE, MODEL, STOPPED, Launch, answers, chat, check, compare, exported, main, run, write_lines  # noqa: E402
from jsonschema import Draft202012Validator  # noqa: E402

MARKER = "\uff5cDSML\uff5c"
CALLS = f"\n\n<{MARKER} calls>\n"


def closed(**properties):
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


WORD = {"type": "string", "maxLength": 12}
SCHEMAS = {
    "person": closed(name=WORD, age={"type": "integer", "minimum": 0, "maximum": 150}, married={"type": "boolean"}),
    "choice": {"enum": ["dog", "fox", "a \"quoted\" king", 7, None, {"river": [1, 2]}]},
    "tree": {
        "$ref": "#/$defs/node",
        "$defs": {"node": closed(word=WORD, children={"type": "array", "maxItems": 1, "items": {"$ref": "#/$defs/leaf"}}), "leaf": closed(word=WORD)},
    },
    "either": {"anyOf": [closed(kind={"const": "dog"}, legs={"const": 4}), closed(kind={"const": "bird"}, wings={"const": 2})]},
    "row": {"type": "array", "prefixItems": [WORD, {"type": "integer", "minimum": -9, "maximum": 9}, {"type": "null"}], "items": False, "minItems": 3},
    "numbers": {"type": "array", "minItems": 2, "maxItems": 4, "items": {"type": "integer", "minimum": 10, "maximum": 99, "multipleOf": 7}},
    "code": closed(code={"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"}, note={"type": "string", "minLength": 2, "maxLength": 8}),
    "dated": closed(day={"type": "string", "format": "date"}, host={"type": "string", "format": "ipv4"}),
    "open": {"type": "object", "additionalProperties": {"type": "integer", "minimum": 0, "maximum": 9}, "propertyNames": {}, "maxProperties": 3},
    "optional": {"type": "object", "properties": {"a": WORD, "b": {"type": "boolean"}, "c": {"type": "array", "items": {"type": "null"}, "maxItems": 2}}, "required": ["b"]},
}
SCHEMAS["open"].pop("propertyNames")
PATTERNS = {
    "plate": r"[A-Z]{1,3}-\d{2,4}",
    "yes": r"(yes|no|perhaps), (dog|fox|king)s?",
    "words": r"([a-z]{1,8} ){2,5}[a-z]{1,8}\.",
    "letters": r"[\u00e4\u00f6\u00fc\u4e00-\u4e20]{2,6}",
}
LOOK = {"type": "function", "function": {"name": "look", "strict": True, "parameters": closed(
    where={"type": "string", "enum": ["north", "south"]}, steps={"type": "integer", "minimum": 1, "maximum": 20})}}
SAY = {"type": "function", "function": {"name": "say", "parameters": closed(text={"type": "string", "maxLength": 30})}}
# What grammars cannot hold is no fault of a function that is not strict: only names of parameters are held then.
BAG = {"type": "function", "function": {"name": "bag", "parameters": {"type": "object", "properties": {"things": {"type": "array", "uniqueItems": True, "maxItems": 3}}}}}
TOOLS = {
    "auto": {"tools": [LOOK, SAY], "tool_choice": "auto"},
    "none": {"tools": [LOOK, SAY], "tool_choice": "none"},
    "required": {"tools": [LOOK, SAY], "tool_choice": "required", "parallel_tool_calls": False},
    "several": {"tools": [LOOK, SAY], "tool_choice": "required"},
    "named": {"tools": [LOOK, SAY], "tool_choice": {"type": "function", "function": {"name": "look"}}},
    "loose": {"tools": [BAG], "tool_choice": "required", "parallel_tool_calls": False},
}
QUESTIONS = ["Define dog.", "Tell me a story about a fox.", "What is the capital of France?", "Hello!", "What does hope mean?"]


def line(kind, name, index):
    """One of a specification's requests: temperature 0 and 1 in turn; some think first, some have several choices."""
    options = {"max_tokens": 160, "temperature": index % 2, "seed": index}
    if kind == "schema":
        options["response_format"] = {"type": "json_schema", "whitespace": ["flexible", "none"][index // 2 % 2],
                                      "json_schema": {"name": name, "schema": SCHEMAS[name], "strict": index % 3 == 0}}
    elif kind == "pattern":
        options["response_format"] = {"type": "regex", "regex": PATTERNS[name]}
    else:
        options.update(TOOLS[name])
    if index % 5 == 3:
        options.update(logprobs=True, top_logprobs=3, n=2)
    if index % 5 == 4 and TOOLS.get(name, {}).get("tool_choice", "auto") in ("auto", "none"):
        # The model was not trained to reason: a push towards the end of it.
        options.update(thinking={"type": "enabled"}, logit_bias={"3027": 9})
    if index % 5 == 1:
        options.update(top_p=0.9, top_k=40, presence_penalty=0.5, frequency_penalty=0.2)
    if index % 7 == 2:
        options["logit_bias"] = {str(i): -100 for i in range(20, 60)}  # what must be is stronger
    return chat(f"{kind}-{name}-{index}", QUESTIONS[index % len(QUESTIONS)], **options)


def requests():
    specifications = [("schema", name) for name in SCHEMAS] + [("pattern", name) for name in PATTERNS] + [("tools", name) for name in TOOLS]
    return [line(kind, name, index) for kind, name in specifications for index in range(10)]


class Campaigns:
    def __init__(self, folder, lines):
        self.folder, self.lines, self.made = folder, lines, 0

    def make(self):
        self.made += 1
        campaign = os.path.join(self.folder, f"campaign-{self.made}")
        path = write_lines(campaign + ".jsonl", [json.dumps(line) for line in self.lines])
        run(["ingest", "--input", path, "--model", MODEL, "--campaign", campaign])
        return campaign

    def outcome(self, launches):
        campaign = self.make()
        for command, ranks, options in launches:
            run([command, "--campaign", campaign, "--threads", "1", *options], ranks)
        return answers(campaign)


# ---- valid ----


def check_calls(name, message, finish):
    """The calls of an answer that has ended are of known tools and hold to their schemas."""
    tools = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS[name]["tools"]}
    calls = message.get("tool_calls") or []
    choice = TOOLS[name]["tool_choice"]
    check(finish == ("tool_calls" if calls else "stop"), f"finish_reason {finish} with {len(calls)} calls")
    check(choice != "none" or not calls, "a call that was forbidden")
    check(choice in ("auto", "none") or calls, "no call, which was required")
    check(len(calls) <= 1 or name in ("auto", "several"), f"{len(calls)} calls")
    for call in calls:
        function = call["function"]
        check(function["name"] in tools, f"a call of {function['name']}")
        check(name != "named" or function["name"] == "look", "another function than the one named")
        arguments = json.loads(function["arguments"])
        if function["name"] == "bag":
            check(set(arguments) <= {"things"}, f"undeclared parameters: {arguments}")
        else:
            Draft202012Validator(tools[function["name"]]).validate(arguments)
    check(MARKER not in (message.get("content") or ""), "a tag in the content")


def check_whole(kind, name, message, finish, compact):
    content = message["content"]
    if kind == "tools":
        check_calls(name, message, finish)
    elif kind == "pattern":
        check(re.fullmatch(PATTERNS[name], content, re.ASCII) is not None, f"{content!r} does not match")
    else:
        Draft202012Validator(SCHEMAS[name]).validate(json.loads(content))
        if compact:
            check(not re.search(r"\s", re.sub(r'"(\\.|[^"\\])*"', "", content)), f"blanks in {content!r}")


def beginning_line(custom_id, body, text):
    """Asks `nocturne grammar` whether the text is a beginning of what the request's grammar allows."""
    asked = {"name": custom_id, "prefix_text": text.rstrip("\ufffd")}
    form = body.get("response_format", {})
    if "tools" in body:
        asked.update(tools=body["tools"], tool_choice=body["tool_choice"] if body["tool_choice"] in ("auto", "none") else "required")
    elif form["type"] == "regex":
        asked["pattern"] = form["regex"]
    else:
        asked.update(schema=form["json_schema"]["schema"], strict=form["json_schema"]["strict"], whitespace=form["whitespace"])
    return json.dumps(asked)


def check_beginnings(folder, lines):
    path = write_lines(os.path.join(folder, "beginnings.jsonl"), lines)
    output, _ = run(["grammar", "--tokenizer", MODEL, "--input", path])
    replies = [json.loads(text) for text in output.splitlines()]
    check(len(replies) == len(lines), f"{len(replies)} replies for {len(lines)} beginnings")
    for reply in replies:
        check("error" not in reply and reply["allowed_count"] > 0, f"{reply['name']}: no beginning of a valid answer: {reply}")


def valid(folder):
    """What ends by itself is valid; what max_tokens has cut is a beginning of something valid."""
    lines = requests()
    check(len(lines) == 200, f"{len(lines)} requests")
    campaigns = Campaigns(folder, lines)
    campaign = campaigns.make()
    started = time.monotonic()
    run(["run", "--campaign", campaign], 2, deadline=400)
    print(f"200 requests took {time.monotonic() - started:.1f} s")
    raw = answers(campaign)
    run(["export", "--campaign", campaign])
    results, errors = exported(campaign)
    check(not errors and len(results) == len(lines), f"{len(results)} answers, errors: {errors[:2]}")
    bodies = {line["custom_id"]: line["body"] for line in lines}
    ended, cut, called, reasoned, beginnings = 0, 0, 0, 0, []
    for record in results:
        custom_id, body = record["custom_id"], bodies[record["custom_id"]]
        kind, name = custom_id.split("-")[:2]
        for choice in record["response"]["body"]["choices"]:
            message, finish = choice["message"], choice["finish_reason"]
            text = raw[custom_id][2][choice["index"]][4]
            reasoned += "reasoning_content" in message
            if body["thinking"]["type"] == "enabled":
                _, found, text = text.partition("</think>")
                if not found:
                    # Beside tools an answer may be empty.
                    check(finish == "length" or kind == "tools", f"{custom_id} ended within its reasoning: {finish}")
                    cut += 1
                    continue
            if finish == "length":
                cut += 1
                begun = CALLS if body.get("tool_choice", "auto") not in ("auto", "none") else ""
                beginnings.append(beginning_line(custom_id, body, begun + text))
                continue
            ended += 1
            called += bool(message.get("tool_calls"))
            try:
                check_whole(kind, name, message, finish, body.get("response_format", {}).get("whitespace") == "none")
            except Exception as failure:
                raise type(failure)(f"{custom_id}: {failure}: {message}") from failure
    print(f"{ended} answers ended by themselves, {called} with calls, {reasoned} reasoned; {cut} were cut")
    check(ended > 160 and called > 40 and reasoned > 5, "too few answers ended to tell anything")
    check_beginnings(folder, beginnings)
    # json_object has no bounds: an object, or the beginning of one.
    check_object(folder)


def check_object(folder):
    lines = [chat(f"object-{i}", "Give JSON.", temperature=1, seed=i, max_tokens=60, response_format={"type": "json_object"}) for i in range(8)]
    campaign = Campaigns(os.path.join(folder), lines)
    campaign.made = 100
    folder = campaign.make()
    run(["run", "--campaign", folder, "--threads", "1"])
    cut = []
    for custom_id, (_, _, choices) in answers(folder).items():
        text, finish = choices[0][4], choices[0][5]
        if finish == 0:
            check(isinstance(json.loads(text), dict), f"{custom_id}: {text!r} is no object")
        else:
            cut.append(json.dumps({"name": custom_id, "kind": "json_object", "prefix_text": text.rstrip("\ufffd")}))
    check_beginnings(folder, cut)


# ---- the same bits ----


def layouts(folder):
    """One rank and several, small batches and steps, other threads, prefill with decode: the same answers."""
    campaigns = Campaigns(folder, requests()[::5] + requests()[3::10])
    expected = campaigns.outcome([("run", 1, [])])
    for launches in (
        [("run", 2, [])],
        [("run", 1, ["--threads", "2"])],
        [("run", 1, ["--batch", "3"])],
        [("run", 3, ["--batch", "7", "--step-tokens", "160"])],
        [("prefill", 2, []), ("decode", 1, ["--batch", "20"])],
    ):
        compare(campaigns.outcome(launches), expected, str(launches))
        print("ok", launches, flush=True)


def stopped(folder):
    """Launches that are stopped in the middle of answers go on where they were."""
    campaigns = Campaigns(folder, requests()[::4])
    whole = campaigns.make()
    _, seconds = run(["run", "--campaign", whole, "--threads", "1"], 1)
    expected = answers(whole)
    for phases in (("run",), ("prefill", "decode")):
        campaign, stops, launches = campaigns.make(), 0, 0
        for phase in phases:
            code = STOPPED
            while code == STOPPED:
                launches += 1
                check(launches < 40, f"{phase} makes no progress")
                arguments = [phase, "--campaign", campaign, "--threads", "1", "--grace", "10"]
                if stops < 3:
                    arguments += ["--until", f"+{10 + 0.3 * seconds:.2f}"]
                launch = Launch(arguments, 1 + launches % 2)
                code = launch.wait()
                check(code in (DONE, STOPPED), f"{phase}: exit {code}\n{launch.output()}")
                stops += code == STOPPED
        compare(answers(campaign), expected, f"{' and '.join(phases)}, stopped {stops} times")
        check(stops >= 1, f"{phases}: no stop in {launches} launches")
        print(f"{' and '.join(phases)}: {stops} stops")


# ---- faults ----


def faults(folder):
    """A fault inside a grammar, at the first token or later, fails its own request by name and nothing else."""
    with open(os.path.join(MODEL, "tokenizer.json"), encoding="utf-8") as file:
        token = json.load(file)["model"]["vocab"]["@"]
    good = [chat(f"good-{i}", "Define dog.", temperature=1, seed=i, max_tokens=20, n=1 + i % 2,
                 response_format={"type": "regex", "regex": "[a-c]{4,9}"}) for i in range(6)]
    good.append(chat("plain", "Define dog.", temperature=0, max_tokens=30))
    bad = [chat(f"bad-{i}", "Define fox.", temperature=1, seed=i, max_tokens=20, n=1 + i % 3,
                response_format={"type": "regex", "regex": "[a-c]{%d}@" % (4 * (i % 3))}) for i in range(6)]
    campaigns = Campaigns(folder, good)
    expected = campaigns.outcome([("run", 1, [])])
    campaigns.lines = [line for pair in zip(good, bad) for line in pair] + good[6:]
    for launches in ([("run", 2, [])], [("prefill", 1, []), ("decode", 2, [])]):
        campaign = campaigns.make()
        for command, ranks, options in launches:
            launch = Launch([command, "--campaign", campaign, "--threads", "1", *options], ranks,
                            {"NOCTURNE_FAULT_TOKEN": str(token)}, program=(os.environ["NOCTURNE_GRAMMAR_FAULT"],))
            check(launch.wait() == DONE, launch.output())
        found = answers(campaign)
        for line in bad:
            _, code, choices = found.pop(line["custom_id"])
            check(code == "grammar_failed" and not choices, f"{line['custom_id']}: {code}, {len(choices)} choices")
        compare(found, expected, str(launches))
        run(["export", "--campaign", campaign])
        _, errors = exported(campaign)
        check(len(errors) == len(bad), f"{len(errors)} errors")
        for error in errors:
            said = error["response"]["body"]["error"]
            check(error["response"]["status_code"] == 500 and said["type"] == "server_error" and "said the test" in said["message"], str(error))


if __name__ == "__main__":
    sys.exit(main({"valid": valid, "layouts": layouts, "stopped": stopped, "faults": faults}))
