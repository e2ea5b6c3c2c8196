"""Random schemas and patterns: what grammars allow, a validator and Python's re must allow.

Answers are drawn token by token over the real vocabulary (walk.c), which compares masks with accepting every token and checks that
beginnings of answers are allowed. Then answers are changed a little: what a grammar still takes must still be valid, and of
patterns what it does not take must not match. Everything is drawn from fixed seeds.
"""

import datetime
import decimal
import json
import os
import random
import re
import subprocess
import sys

import jsonschema

SOURCE = os.environ["NOCTURNE_SOURCE"]
WALK = sys.argv[1]
TOKENIZER = os.path.join(SOURCE, "tests/data/recipe")
SCHEMAS, PATTERNS, SEED = int(os.environ.get("SCHEMAS", 300)), int(os.environ.get("PATTERNS", 240)), int(os.environ.get("SEED", 7))
TOOLS = SCHEMAS // 3
STATES = 3  # of each walk, at which every token is tried
CHANGES = 12
# Texts of one kind by their number of characters, beside a longer one.
FIXED = [".{2}|abc", ".{3}|abcde", "[^b]{2}|abcd", "[a-z]{2}|abcd", "[一-龥]{2}|日本語", "(ab|.){3}", "[a-z ]{0,3}|the end"]
TEXT = 300  # characters of a text that re is asked about
decimal.getcontext().prec = 8000
sys.set_int_max_str_digits(0) if hasattr(sys, "set_int_max_str_digits") else None
failures = []


def check(holds, *what):
    if not holds:
        failures.append(" ".join(ascii(part) if not isinstance(part, str) else part for part in what))


# ---- schemas ----


class Schemas:
    """Random schemas; `$defs` of the root hold what $ref names."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def any_of(self, *choices):
        return self.random.choice(choices)

    def number(self, low, high):
        return self.random.randint(low, high)

    def some(self):
        return self.random.random() < 0.4

    def string(self):
        schema = {"type": "string"}
        kind = self.number(0, 4)
        if kind == 0:
            schema["minLength"] = self.number(0, 4)
        if kind in (0, 1):
            schema["maxLength"] = self.number(4, 12)
        if kind == 2:
            schema["pattern"] = self.any_of("^[a-z]{2,4}$", "[0-9]", "^x-", "a|b$", "^(ab)*c?$", "^[^\\\\d]{1,5}$", "é+", "^\\\\d{3}-\\\\d{2}$".replace("\\\\", "\\"), "[\"\\\\\\\\]")
        if kind == 3:
            schema["format"] = self.any_of("date", "ipv4", "ipv6", "email", "uuid")
        if kind == 2 and self.some():
            schema["maxLength"] = self.number(8, 20)
        return schema

    def integer(self):
        schema = {"type": "integer"}
        low = self.number(-300, 300)
        if self.some():
            schema[self.any_of("minimum", "exclusiveMinimum")] = low
        if self.some():
            schema[self.any_of("maximum", "exclusiveMaximum")] = low + self.number(30, 2000)
        if self.some():
            schema["multipleOf"] = self.number(1, 12)
        return schema

    def decimal(self):
        schema = {"type": "number"}
        low = decimal.Decimal(self.number(-5000, 5000)) / self.any_of(1, 10, 1000)
        if self.some():
            schema[self.any_of("minimum", "exclusiveMinimum")] = low
        if self.some():
            schema[self.any_of("maximum", "exclusiveMaximum")] = low + self.number(1, 100)
        if self.some():
            schema["multipleOf"] = self.any_of(decimal.Decimal("0.01"), decimal.Decimal("0.25"), decimal.Decimal("1.5"), 3)
        return schema

    def values(self):
        return {"enum": self.random.sample([None, True, "a", "ab", "abc", "é\"\\", "\n", 0, -1, decimal.Decimal("0.5"), [1, "x"], {"k": []}, 12345678901234567890123, {}], self.number(1, 5))}

    def array(self, depth):
        schema = {"type": "array", "items": self.schema(depth - 1)}
        if self.some():
            schema["prefixItems"] = [self.schema(depth - 1) for _ in range(self.number(1, 3))]
            if self.some():
                schema["items"] = False
        if schema["items"] is not False and self.some():
            schema["minItems"] = self.number(0, 3)
        if self.some():
            schema["maxItems"] = self.number(3, 6)
        return schema

    def object(self, depth):
        names = self.random.sample(["a", "ab", "b", "x-1", "naïve", "q\"q", "", "long name", "日本"], self.number(0, 4))
        schema = {"type": "object", "properties": {name: self.schema(depth - 1) for name in names}}
        schema["required"] = [name for name in names if self.some()]
        if self.some():
            schema["additionalProperties"] = self.any_of(False, True, self.schema(depth - 1))
        if self.number(0, 5) == 0:
            schema["patternProperties"] = {self.any_of("^x-", "[0-9]$", "b"): self.schema(depth - 1)}
        if self.number(0, 5) == 0:
            schema["minProperties"] = self.number(0, 2)
        if self.number(0, 5) == 0:
            schema["maxProperties"] = self.number(3, 6)
        return schema

    def schema(self, depth):
        kind = self.number(0, 12 if depth > 0 else 5)
        if kind < 2:
            return self.string()
        if kind < 5:
            return self.any_of(self.integer, self.decimal, self.values)()
        if kind == 5:
            return {"type": self.any_of("null", "boolean", ["string", "null"], ["integer", "boolean"])}
        if kind < 8:
            return self.object(depth)
        if kind == 8:
            return self.array(depth)
        if kind == 9:
            return {"anyOf": [self.schema(depth - 1) for _ in range(self.number(1, 3))]}
        if kind == 10:
            return {"allOf": [self.integer(), {"maximum": 5000}]}
        if kind == 11:
            return {"oneOf": [{"type": "string", "maxLength": 3}, {"type": "integer"}, self.object(depth)]}
        return {"$ref": "#/$defs/" + self.any_of("node", "short")}

    def root(self):
        schema = self.schema(3)
        schema["$defs"] = {
            "node": {"type": "object", "properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}, "required": ["v"], "additionalProperties": False},
            "short": {"type": "string", "maxLength": 2},
        }
        return schema


def write(value):
    """JSON with decimals as their digits."""
    if isinstance(value, decimal.Decimal):
        return format(value, "f")
    if isinstance(value, dict):
        return "{" + ",".join(json.dumps(key) + ":" + write(item) for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(write(item) for item in value) + "]"
    return json.dumps(value)


FORMATS = jsonschema.FormatChecker(["ipv4", "ipv6", "email", "uuid"])


@FORMATS.checks("date", raises=ValueError)
def is_date(text):
    """RFC 3339 has a year 0000, datetime has not: 2000 has the same days."""
    return not isinstance(text, str) or bool(datetime.date.fromisoformat(re.sub("^0000", "2000", text)))


class Repeated(Exception):
    pass


def unrepeated(pairs):
    if len({key for key, _ in pairs}) < len(pairs):
        raise Repeated
    return dict(pairs)


def number(text):
    try:
        return decimal.Decimal(text)
    except decimal.InvalidOperation:  # an exponent of twenty digits
        return decimal.Decimal("-1e9999" if text[0] == "-" else "1e9999")


def read(text):
    def refuse(word):
        raise ValueError(word)

    return json.loads(text, parse_float=number, object_pairs_hook=unrepeated, parse_constant=refuse)


def is_valid(validator, text):
    """None where keys come twice, which validators do not see."""
    try:
        return validator.is_valid(read(text))
    except Repeated:
        return None
    except ValueError:
        return False


# ---- patterns ----


def pattern(draw, depth):
    def atom():
        kind = draw.randint(0, 9 if depth else 7)
        if kind < 3:
            return draw.choice(["a", "b", "c", "é", "日", "x", "0", "-", "\\.", "\\\\", "\\n", "\\x41", "😀"])
        if kind == 3:
            return draw.choice(["[abc]", "[^a]", "[a-f0-9]", "[^\\d\\n]", "[é-ü]", "[\\]\\-^]", "[一-龥]"])
        if kind == 4:
            return draw.choice(["\\d", "\\w", "\\D", "\\W", "."])
        if kind < 8:
            return draw.choice(["ab", "foo", "12", "z"])
        return draw.choice(["(%s)", "(?:%s)", "(?P<n>%s)" if depth == 3 else "(%s)"]) % pattern(draw, depth - 1)

    branches = []
    for _ in range(draw.choice([1, 1, 1, 2, 3])):
        parts = []
        for _ in range(draw.randint(1, 3)):
            part = atom()
            single = len(part) == 1 or part[0] in "([" or part.startswith("\\")
            nested = part[0] == "(" and any(sign in part for sign in "*+,")  # re would take forever
            quantifiers = ["", "", "?", "{2}"] + ([] if nested else ["*", "+", "{1,3}", "{2,}", "+?"])
            parts.append(part + (draw.choice(quantifiers) if single else ""))
        branches.append("".join(parts))
    text = "|".join(branches)
    # A group's name may come once.
    first = text.find("(?P<n>")
    return text if first < 0 else text[: first + 6] + text[first + 6 :].replace("(?P<n>", "(?:")


# ---- walks and changes ----


def run(command, lines):
    text = "".join(json.dumps(line) + "\n" for line in lines)
    done = subprocess.run(command, input=text, capture_output=True, text=True, encoding="utf-8", timeout=500)
    answers = [json.loads(line) for line in done.stdout.split("\n") if line]
    if done.returncode or len(answers) != len(lines):
        at = len(answers)
        sys.exit(f"exit code {done.returncode} at {ascii(lines[at]) if at < len(lines) else 'the end'}: {done.stderr}")
    return answers


def changed(draw, text):
    """The text with a character taken out, put in, replaced or moved, or cut short."""
    at, other = draw.randrange(len(text) + 1), draw.choice("\"\\,:{}[]019-.eE a\nétx")
    kind = draw.randrange(5)
    if kind == 0:
        return text[:at] + text[at + 1 :]
    if kind == 1:
        return text[:at] + other + text[at:]
    if kind == 2:
        return text[:at] + other + text[at + 1 :]
    if kind == 3:
        return text[:at]
    return text[:at] + text[at + 1 : at + 2] + text[at : at + 1] + text[at + 2 :]


def try_texts(lines):
    command = [os.environ["NOCTURNE_PROGRAM"], "grammar", "--tokenizer", TOKENIZER, "--input", "-"]
    return run(command, lines)


def check_schemas():
    draw = random.Random(SEED)
    schemas = [Schemas(SEED * 100000 + i).root() for i in range(SCHEMAS)]
    lines = [
        {"kind": "schema", "text": write(schema), "strict": bool(i % 2), "compact": i % 3 == 0, "seed": SEED + i, "states": STATES}
        for i, schema in enumerate(schemas)
    ]
    walked, ended, refused, tried = run([WALK, TOKENIZER], lines), 0, 0, []
    for schema, line, answer in zip(schemas, lines, walked):
        refused += "error" in answer
        if "text" not in answer:
            continue
        ended += 1
        text = answer["text"]
        validator = jsonschema.Draft202012Validator(schema, format_checker=FORMATS)
        check(is_valid(validator, text) is not False, "not valid:", text, "by", line["text"])
        more = [changed(draw, text) for _ in range(CHANGES)]
        more += [changed(draw, other) for other in more[:3]]
        asked = {"kind": "schema_text", "spec": line["text"], "strict": line["strict"], "whitespace": "none" if line["compact"] else "flexible", "accept": [text] + more}
        tried.append((line, validator, asked))
    taken = 0
    for (line, validator, asked), answer in zip(tried, try_texts([asked for _, _, asked in tried])):
        check(answer.get("accept", [False])[0], "the answer itself is refused:", asked["accept"][0], answer.get("error", ""))
        for text, fits in zip(asked["accept"][1:], answer.get("accept", [])[1:]):
            taken += fits
            check(not fits or is_valid(validator, text) is not False, "taken but not valid:", text, "by", line["text"])
    print(f"schemas: {len(lines)}, {refused} refused, {ended} answers ended; {taken} changed answers were taken")
    check(refused <= 0.05 * len(lines), "many are refused:", refused)
    check(ended >= 0.9 * len(lines), "few answers ended:", ended)
    check(taken >= ended, "few changed answers were taken:", taken)


def random_tools(seed):
    """Two functions; names that calls can spell."""
    schemas = Schemas(seed)
    tools = []
    for name in ("f", "mail::send"):
        parameters = schemas.object(2)
        for key in ("minProperties", "maxProperties", "patternProperties"):
            parameters.pop(key, None)
        parameters["additionalProperties"] = False
        parameters["properties"] = {key: value for key, value in parameters["properties"].items() if key and '"' not in key}
        parameters["required"] = [key for key in parameters["required"] if key in parameters["properties"]]
        parameters["$defs"] = Schemas(seed).root()["$defs"]
        tools.append({"type": "function", "function": {"name": name, "strict": True, "parameters": parameters}})
    return tools


def check_tools():
    """Calls, as export reads them from answers, fit their functions' parameters."""
    tools = [random_tools(SEED * 100000 + i) for i in range(TOOLS)]
    lines = [{"kind": "tools", "text": write(each), "strict": True, "seed": SEED + i, "states": STATES} for i, each in enumerate(tools)]
    answers = run([WALK, TOKENIZER], lines)
    options = {"parse_tool_calls": True, "starts_in_tool_calls": False, "parse_json_output": False, "thinking_initial_stage": "ContentContinuation", "stop_sequences": []}
    # Numbers that no double holds are JSON, but not to export's reader.
    ended = [(each, answer["text"]) for each, answer in zip(tools, answers) if "text" in answer and not re.search(r"[0-9]{300}|[eE][+-]?[0-9]{3}", answer["text"])]
    command = [os.environ["NOCTURNE_PROGRAM"], "parse", "--repaired", "--tokenizer", TOKENIZER, "--input", "-"]
    calls = 0
    for (each, text), reply in zip(ended, run(command, [{"name": "x", "options": options, "text": text, "finish": "Stop"} for _, text in ended])):
        check(reply.get("tool_calls") and not reply["content"], "no call, or text beside it:", text, reply)
        for found in reply.get("tool_calls", []):
            calls += 1
            wanted = [tool["function"]["parameters"] for tool in each if tool["function"]["name"] == found["name"]]
            valid = wanted and is_valid(jsonschema.Draft202012Validator(wanted[0], format_checker=FORMATS), found["arguments"])
            check(valid is not False and wanted, "not valid:", found, "of", text, "by", write(each))
    refused = sum("error" in answer for answer in answers)
    print(f"tools: {len(lines)}, {refused} refused, {len(ended)} answers ended with {calls} calls")
    check(len(ended) >= 0.5 * len(lines) and calls >= len(ended), "few answers ended:", len(ended), [answer for answer in answers if "error" in answer][:2])


def check_patterns():
    draw = random.Random(SEED + 1)
    patterns = FIXED + [pattern(draw, 3) for _ in range(PATTERNS)]
    lines = [{"kind": "regex", "text": text, "seed": SEED + i, "states": STATES} for i, text in enumerate(patterns)]
    tried, ended, taken, refused = [], 0, 0, 0
    for text, answer in zip(patterns, run([WALK, TOKENIZER], lines)):
        check("error" not in answer, "refused:", text, answer.get("error", ""))
        if len(answer.get("text", "x" * TEXT)) >= TEXT:
            continue
        ended += 1
        check(re.fullmatch(text, answer["text"], re.ASCII), "does not match:", answer["text"], "by", text)
        more = [changed(draw, answer["text"]) for _ in range(CHANGES)]
        tried.append({"pattern": text, "accept": [answer["text"]] + more})
    for asked, answer in zip(tried, try_texts(tried)):
        for text, fits in zip(asked["accept"], answer["accept"]):
            matches = bool(re.fullmatch(asked["pattern"], text, re.ASCII))
            taken, refused = taken + fits, refused + (not fits)
            check(matches == fits, "taken" if fits else "refused", "unlike re:", text, "by", asked["pattern"])
    print(f"patterns: {len(lines)}, {ended} answers ended; of them and their changes {taken} match and {refused} do not")
    check(ended >= 0.8 * len(lines) and taken and refused, "few answers ended:", ended)


def check_searches():
    """`pattern` in a schema: a search in the string's value, with what JSON escapes."""
    draw = random.Random(SEED + 2)
    lines, wanted = [], []
    for _ in range(PATTERNS):
        start, end = draw.choice(["", "^"]), draw.choice(["", "$"])
        body = "(?:" + pattern(draw, 2) + ")"
        texts = ["".join(draw.choice("abcfoxz012-.é日😀\"\\\n\t ^]") for _ in range(draw.randrange(7))) for _ in range(16)]
        schema = {"type": "string", "pattern": start + body + end}
        lines.append({"schema": schema, "accept": [json.dumps(text, ensure_ascii=False) for text in texts]})
        expression = re.compile(start + body + ("\\Z" if end else ""), re.ASCII)
        wanted.append([bool(expression.search(text)) for text in texts])
    found = 0
    for line, answer, holds in zip(lines, try_texts(lines), wanted):
        found += sum(holds)
        check(answer.get("accept") == holds, "unlike re:", line, answer, holds)
    print(f"searches: {len(lines)}, {found} of {16 * len(lines)} strings fit")
    check(0.05 < found / (16 * len(lines)) < 0.9, "too few strings or too many fit")


check_schemas()
check_searches()
check_tools()
check_patterns()
print("\n".join(failure[:1000] for failure in failures[:20]) or "all properties hold")
sys.exit(bool(failures))
