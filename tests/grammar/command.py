"""`nocturne grammar` and `nocturne grammar check`: exit codes, places of faults, lines that are wrong."""

import json
import os
import subprocess
import sys
import tempfile

SOURCE, PROGRAM = os.environ["NOCTURNE_SOURCE"], os.environ["NOCTURNE_PROGRAM"]
TOKENIZER = os.path.join(SOURCE, "inputs/nano")
USAGE, INPUT, IO = 2, 3, 4
failures = []
PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 5}, "n": {"type": "integer", "maximum": 30}}, "required": ["name"], "additionalProperties": False}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}} for name in ("f", "g")]


def call(name):
    parts = f'\n\n<| calls>\n<| invoke name="{name}">\n<| parameter name="a" string="false">1</| parameter>\n</| invoke>\n</| calls>'
    return parts.replace("|", "｜DSML｜")


def run(*arguments, text=""):
    command = [PROGRAM, "grammar", *arguments]
    return subprocess.run(command, input=text, capture_output=True, text=True, encoding="utf-8", timeout=60)


def check(arguments, code, *words, text=""):
    """The command ends with `code`, and its output holds all words."""
    done = run(*arguments, text=text)
    output = done.stdout + done.stderr
    if done.returncode != code or not all(word in output for word in words):
        failures.append(f"{arguments}: exit code {done.returncode} (not {code}): {output}")


def lines(*given):
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in given)
    done = run("--tokenizer", TOKENIZER, "--input", "-", text=text)
    if done.returncode:
        failures.append(f"exit code {done.returncode}: {done.stderr}")
    return [json.loads(line) for line in done.stdout.split("\n") if line]


def same(found, wanted):
    if found != wanted:
        failures.append(f"found {found}, not {wanted}")


def check_help():
    check(["--help"], 0, "--tokenizer", "prefix_hex", "tool_choice")
    check(["check", "--help"], 0, "--schema", "--text-file", "Exit code")
    check(["check"], USAGE, "--schema", "--help")
    check(["check", "--pattern", "a", "--json-object"], USAGE, "give one of")
    check(["check", "--pattern", "a", "--one-call"], USAGE, "--tools")
    check(["check", "--pattern", "a", "--text", "a", "--text-file", "x"], USAGE, "not both")
    check(["check", "--schema", "/no/such/file"], IO, "/no/such/file")
    check(["--tokenizer", TOKENIZER], USAGE, "--input")


def check_texts(folder):
    person, tools, answer = (os.path.join(folder, name) for name in ("person.json", "tools.json", "answer.json"))
    for path, content in ((person, PERSON), (tools, TOOLS), (answer, {"name": "Ada"})):
        with open(path, "w", encoding="utf-8") as file:
            file.write(json.dumps(content) + "\n")
    check(["check", "--schema", person], 0, "is supported")
    check(["check", "--schema", "-"], 0, "standard input is supported", text=json.dumps(PERSON))
    check(["check", "--schema", person, "--text", '{"name":"Ada"}'], 0, "the text fits")
    check(["check", "--schema", person, "--text-file", answer], 0, "the text fits")
    check(["check", "--schema", person, "--whitespace", "none", "--text-file", answer], INPUT, "byte 9 (line 1, column 9)")
    check(["check", "--schema", person, "--text", '{"name":"Adaline"}'], INPUT, "byte 15", 'at "ne')
    check(["check", "--schema", person, "--text", '{\n"nome":1}'], INPUT, "byte 5 (line 2, column 3)", 'must come is "ame')
    check(["check", "--schema", person, "--text", '{"name":"A","n":31'], INPUT, "byte 18", "<blank> 0 }")
    check(["check", "--schema", person, "--text", '{"name":"Ada"'], INPUT, "too early, behind byte 13", "<line end>", ", }")
    check(["check", "--schema", person, "--text", '{"name":"Ada"}}'], INPUT, "byte 15", "one of <the end>")
    check(["check", "--pattern", "日(本|々)", "--text", "日x"], INPUT, "byte 4", "one of <characters beyond ASCII>")
    check(["check", "--pattern", "[0-9]{4}-[a-f]", "--text", "1234-g"], INPUT, "byte 6", "one of a-f")
    check(["check", "--pattern", "[é-ê]", "--text", "e"], INPUT, "one of <characters beyond ASCII>")
    check(["check", "--json-object", "--text", "[1]"], INPUT, "byte 1", "one of {")
    check(["check", "--tools", tools, "--text", call("g")], 0, "the text fits")
    check(["check", "--tools", tools, "--tool", "f", "--text", call("g")], INPUT, "line 4", "must come is")
    check(["check", "--tools", tools, "--tool-choice", "auto", "--text", "No."], 0, "the text fits")
    check(["check", "--tools", tools, "--tool-choice", "none", "--text", call("g")], INPUT, "stops fitting")
    check(["check", "--tools", tools, "--tool", "h"], INPUT, "no such tool")


def check_refusals():
    check(["check", "--pattern", "(a"], INPUT, "offset 0")
    check(["check", "--pattern", "a(?=b)"], INPUT, "offset 1")
    check(["check", "--schema", "-"], INPUT, "#/properties/a", "'not'", text='{"properties":{"a":{"not":{}}}}')
    check(["check", "--schema", "-"], INPUT, "not JSON", "line 1", text="{")
    check(["check", "--tools", "-"], INPUT, "tool \"f\"", "oneOf", text='[{"function":{"name":"f","strict":true,"parameters":{"oneOf":[{},{}]}}}]')


def check_lines():
    answers = lines(
        {"name": "texts", "schema": PERSON, "accept": ['{"name":"Ada"}', '{"name":1}'], "reject": ["", "{}"]},
        {"name": "named", "tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "f"}}, "accept": [call("f"), call("g")]},
        {"name": "one call", "tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False, "accept": [call("f"), call("f").replace("</｜DSML｜ calls>", "") + call("g")[len("\n\n<｜DSML｜ calls>\n") :]]},
        {"name": "several", "tools": TOOLS, "tool_choice": "required", "accept": [call("f").replace("</｜DSML｜ calls>", "") + call("g")[len("\n\n<｜DSML｜ calls>\n") :]]},
        {"name": "end", "pattern": "é", "prefix_text": "é"},
        {"name": "inside", "pattern": "é", "prefix_hex": "c3", "list_allowed": True},
    )
    same(answers[0], {"name": "texts", "accept": [True, False], "reject": [False, False]})
    same(answers[1], {"name": "named", "accept": [True, False]})
    same(answers[2], {"name": "one call", "accept": [True, False]})
    same(answers[3], {"name": "several", "accept": [True]})
    same((answers[4]["allowed_count"], answers[4]["eos_allowed"]), (1, True))
    same((answers[5]["allowed_count"], len(answers[5]["allowed"]), answers[5]["eos_allowed"]), (1, 1, False))
    wrong = lines(
        "{",
        {"name": 1},
        {"name": 2, "kind": "grammar", "spec": {}},
        {"name": 3, "pattern": 5},
        {"name": 4, "pattern": "a", "accept": "a"},
        {"name": 5, "pattern": "a", "accept": [1]},
        {"name": 6, "pattern": "a", "prefix_hex": "6"},
        {"name": 7, "pattern": "a", "prefix_text": "b"},
        {"name": 8, "schema": {}, "strict": "yes"},
        {"name": 9, "schema": {}, "whitespace": "some"},
        {"name": 10, "tools": TOOLS, "tool_choice": "maybe"},
        {"name": 11, "schema": {"type": "text"}},
        {"name": 12, "pattern": "a", "accept": ["a"]},
    )
    same([set(answer) for answer in wrong[:-1]], [{"name", "error"}] * 12)
    same(wrong[-1], {"name": 12, "accept": [True]})
    same("-:1" in wrong[0]["error"], True)


def check_end_tags():
    """A parameter holds no end tag, neither as raw text nor within JSON: who reads calls would end there."""
    tags = ["</｜DSML｜ parameter>", "</｜DSML｜ invoke>", "</｜DSML｜ calls>"]
    for kind, flag, value in (("string", "true", "x%s"), ("object", "false", '{"k":"%s"}'), ("object", "false", '{"%s":1}')):
        tools = [{"function": {"name": "f", "parameters": {"properties": {"a": {"type": kind}}}}}]
        texts = [call("f").replace('"false">1', f'"{flag}">' + value % tag) for tag in tags]
        others = [text.replace("</｜DSML｜ ", "<｜DSML｜ ", 1) for text in texts]
        found = lines({"name": kind, "tools": tools, "tool_choice": "required", "reject": texts, "accept": others})
        same(found, [{"name": kind, "accept": [True] * 3, "reject": [False] * 3}])


check_help()
check_end_tags()
check_refusals()
check_lines()
with tempfile.TemporaryDirectory() as temporary:
    check_texts(temporary)
print("\n".join(failures) or "the commands do as they say")
sys.exit(bool(failures))
