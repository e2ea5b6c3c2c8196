#!/usr/bin/env python3
"""Writes the grammars and texts that bench-grammar and peers/grammar.py time, as JSON lines on standard output.

    grammar_sets.py > sets.jsonl

A line: set, name, kind (schema, regex or json_object), spec (a text, null for json_object), texts (that fit). Sets: realworld, the real-world schemas of
tests/data/grammar with up to 4 of their texts; long, schemas and json_object with long documents; hard, grammars that are known
to be slow. The same lines on every machine.
"""
import json
import pathlib
import random

CASES = pathlib.Path(__file__).resolve().parent.parent / "tests/data/grammar/schema_cases.jsonl"
WORDS = """harbour lantern quiet river copper meadow signal winter orchard market engine paper garden stone bridge candle island
morning thunder velvet window yellow anchor basket cotton desert ember falcon glacier hollow ivory jungle kettle ladder marble needle
ocean pepper quarry ribbon saddle temple umbrella valley walnut zephyr report customer because without between another always
information development temperature Straße naïve 日本 語彙 данные παράδειγμα café résumé 漢字 données""".split()
CHOICE = random.Random(20240607)


def words(count):
    return " ".join(CHOICE.choice(WORDS) for _ in range(count))


def paragraph(count):
    """Prose with what a JSON text has to escape."""
    marks = [". ", ", ", "; ", " - ", ": ", "\n", "\n\n", ' "so" ', "\t", " \\ ", "! ", "? "]
    return "".join(CHOICE.choice(WORDS) + (CHOICE.choice(marks) if CHOICE.random() < 0.2 else " ") for _ in range(count))


def closed(properties, required=None, **more):
    return {"type": "object", "properties": properties, "required": list(properties) if required is None else required,
            "additionalProperties": False, **more}


TEXT = {"type": "string"}
INTEGER = {"type": "integer"}
NUMBER = {"type": "number"}


def listed(items, **more):
    return {"type": "array", "items": items, **more}


def from_cases():
    for line in CASES.read_text(encoding="utf-8").splitlines():
        case = json.loads(line)
        if case["origin"] == "realworld":
            yield "realworld", case["name"], "schema", case["schema"], case["accept"][:4]


def identifier():
    digits = "".join(CHOICE.choice("0123456789abcdef") for _ in range(32))
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def day():
    return f"20{CHOICE.randrange(10, 30)}-{CHOICE.randrange(1, 13):02}-{CHOICE.randrange(1, 29):02}"


def long_documents():
    people = listed(closed({"id": {"type": "string", "format": "uuid"}, "name": TEXT, "age": {"type": "integer", "minimum": 0,
                    "maximum": 150}, "email": {"type": "string", "format": "email"}, "active": {"type": "boolean"},
                    "tags": listed(TEXT)}))
    yield "people", people, [{"id": identifier(), "name": words(2), "age": CHOICE.randrange(100), "email":
                              f"{CHOICE.choice(WORDS[:40])}@example.org", "active": CHOICE.random() < 0.5,
                              "tags": [CHOICE.choice(WORDS) for _ in range(3)]} for _ in range(14)]
    article = closed({"title": TEXT, "sections": listed(closed({"heading": TEXT, "body": TEXT}))})
    yield "article", article, {"title": words(6), "sections": [{"heading": words(4), "body": paragraph(110)} for _ in range(6)]}
    yield "table", listed(listed(NUMBER)), [[round(CHOICE.uniform(-1000, 1000), CHOICE.randrange(5)) for _ in range(6)]
                                            for _ in range(30)]
    tree = {"$ref": "#/$defs/node", "$defs": {"node": closed({"value": INTEGER, "children": listed({"$ref": "#/$defs/node"})})}}

    def node(depth):
        return {"value": CHOICE.randrange(10000), "children": [node(depth - 1) for _ in range(3)] if depth else []}
    yield "tree", tree, node(3)
    orders = closed({"orders": listed(closed({"number": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{6}$"}, "placed": {
        "type": "string", "format": "date"}, "status": {"enum": ["open", "paid", "shipped", "returned"]}, "lines": listed(closed({
            "article": TEXT, "count": {"type": "integer", "minimum": 1, "maximum": 999}, "price": {"type": "number", "minimum": 0}}))
    }))})
    yield "orders", orders, {"orders": [{"number": f"AB-{CHOICE.randrange(10 ** 6):06}", "placed": day(), "status": CHOICE.choice([
        "open", "paid", "shipped", "returned"]), "lines": [{"article": words(3), "count": CHOICE.randrange(1, 99), "price":
                                                            CHOICE.randrange(99999) / 100} for _ in range(3)]} for _ in range(8)]}
    events = listed({"anyOf": [closed({"type": {"const": "message"}, "text": TEXT}), closed({"type": {"const": "move"}, "x": INTEGER,
                    "y": INTEGER}), closed({"type": {"const": "stop"}, "reason": {"enum": ["done", "error", "limit"]}})]})
    yield "events", events, [CHOICE.choice([{"type": "message", "text": words(12)}, {"type": "move", "x": CHOICE.randrange(999), "y":
                             CHOICE.randrange(-999, 0)}, {"type": "stop", "reason": "limit"}]) for _ in range(40)]
    yield "bundle", {"type": "object", "additionalProperties": TEXT}, {f"{CHOICE.choice(WORDS[:40])}.{i}": words(6)
                                                                       for i in range(50)}
    log = listed(closed({"time": {"type": "string", "format": "date-time"}, "level": {"enum": ["debug", "info", "warning", "error"]},
                         "message": {"type": "string", "maxLength": 400}, "context": {"type": "object"}}, ["time", "level", "message"]))
    yield "log", log, [{"time": f"{day()}T12:34:{i:02}Z", "level": CHOICE.choice(["debug", "info", "warning", "error"]), "message":
                        paragraph(9), "context": {"job": CHOICE.randrange(99999), "host": CHOICE.choice(WORDS[:40])}}
                       for i in range(18)]
    yield "code", closed({"language": {"enum": ["c", "python"]}, "code": TEXT}), {"language": "c", "code": "".join(
        f"static int {CHOICE.choice(WORDS[:40])}_{i}(const char *text, int count) {{\n\tif (count < {i})\n\t\treturn -1; /* \"no\" */\n"
        f"\treturn text[{i}] == '\\n' ? count + {i * 7} : 0;\n}}\n\n" for i in range(16))}
    yield "json_object", None, {"title": words(5), "list": [{"key": CHOICE.choice(WORDS), "value": CHOICE.random(), "more": [
        None, True, words(3)]} for _ in range(22)], "text": paragraph(150)}


def dumps(value, **more):
    return json.dumps(value, ensure_ascii=False, **more)


def from_long():
    for name, schema, document in long_documents():
        kind = "schema" if schema is not None else "json_object"
        yield "long", name, kind, schema, [dumps(document), dumps(document, indent=2)]


def hard_schemas():
    names = [f"{CHOICE.choice(WORDS[:40])}_{CHOICE.choice(WORDS[:40])}_{i}" for i in range(1000)]
    yield "enum_1000", listed({"enum": names}), [CHOICE.choice(names) for _ in range(40)]
    tools = {"anyOf": [closed({"name": {"const": f"{CHOICE.choice(['get', 'set', 'list'])}_{CHOICE.choice(WORDS[:40])}_{i}"},
             "arguments": closed({f"{CHOICE.choice(WORDS[:40])}_{j}": CHOICE.choice([TEXT, INTEGER, {"type": "boolean"}])
                                  for j in range(4)})}) for i in range(50)]}

    def call(tool):
        sample = {"string": lambda: words(4), "integer": lambda: CHOICE.randrange(9999), "boolean": lambda: True}
        arguments = tool["properties"]["arguments"]["properties"]
        return {"name": tool["properties"]["name"]["const"], "arguments": {key: sample[value["type"]]()
                                                                            for key, value in arguments.items()}}
    yield "tools_50", listed(tools), [call(CHOICE.choice(tools["anyOf"])) for _ in range(8)]
    bounded = closed({"summary": {"type": "string", "minLength": 10, "maxLength": 500}, "body": {"type": "string", "maxLength": 2000}})
    yield "lengths", bounded, {"summary": paragraph(90)[:500], "body": paragraph(330)[:1996]}
    points = listed(listed({"type": "number", "minimum": -180, "maximum": 180}, minItems=2, maxItems=2), minItems=3, maxItems=500)
    yield "points_500", points, [[round(CHOICE.uniform(-180, 180), 3), round(CHOICE.uniform(-90, 90), 2)] for _ in range(60)]
    options = {f"option_{CHOICE.choice(WORDS[:40])}_{i}": CHOICE.choice([TEXT, INTEGER, {"type": "boolean"}]) for i in range(100)}
    chosen = {key: {"string": "quiet river", "integer": 42, "boolean": False}[value["type"]] for key, value in options.items()
              if CHOICE.random() < 0.4}
    yield "optional_100", closed(options, []), chosen
    yield "chinese_400", closed({"text": {"type": "string", "pattern": "^[\u4e00-\u9fa5]{1,400}$"}}), {"text": "".join(
        CHOICE.choice("天地玄黃宇宙洪荒日月盈昃辰宿列張寒來暑往秋收冬藏閏餘成歲律呂調陽雲騰致雨露結為霜人大中國語文我們的是了不在有這個")
        for _ in range(395))}


def hard_patterns():
    nested = "(([a-z]{2,9}( [a-z]{1,12}){0,4}){1,3}(, ?|; )){1,30}end\\."
    plain = [word for word in WORDS[:44] if word.isascii() and word.islower() and len(word) < 10]
    yield "nested_counts", nested, ", ".join(" ".join(CHOICE.choice(plain) for _ in range(CHOICE.randrange(1, 5)))
                                             for _ in range(29)) + "; end."
    line = ("\\d{4}-\\d{2}-\\d{2}T\\d{2}:\\d{2}:\\d{2}(\\.\\d{1,6})?Z (DEBUG|INFO|WARN|ERROR) \\[[a-z0-9_.-]{1,40}\\] "
            "[^\\n]{1,200}\\n")
    yield "log_lines", f"({line}){{1,50}}", "".join(
        f"{day()}T01:02:{i:02}.{CHOICE.randrange(1000):03}Z {CHOICE.choice(['INFO', 'WARN'])} [{CHOICE.choice(WORDS[:40])}.{i}] "
        f"{words(9)}\n" for i in range(20))


def from_hard():
    for name, schema, document in hard_schemas():
        yield "hard", name, "schema", schema, [dumps(document)]
    for name, pattern, text in hard_patterns():
        yield "hard", name, "regex", pattern, [text]


def main():
    for group in from_cases(), from_long(), from_hard():
        for name_of_set, name, kind, spec, texts in group:
            text = dumps(spec) if kind == "schema" else spec
            print(dumps({"set": name_of_set, "name": name, "kind": kind, "spec": text, "texts": texts}))


if __name__ == "__main__":
    main()
