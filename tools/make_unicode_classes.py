#!/usr/bin/env python3
"""Writes src/recipe/unicode_classes.c from tests/data/recipe/char_classes.json.

The character classes are those of Unicode 16.0, as the published pre-tokenizer's regex engines see them.

    tools/make_unicode_classes.py > src/recipe/unicode_classes.c
"""
import json
import os

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
BITS = {"\\p{L}": 1, "\\p{M}": 2, "\\p{P}": 4, "\\p{S}": 8, "\\s": 16, "\\p{N}": 64}
NEWLINE, IDEOGRAPH = 32, 128
IDEOGRAPHS = [(0x4E00, 0x9FA5), (0x3040, 0x309F), (0x30A0, 0x30FF)]  # the second Split pattern
CHARACTERS, PAGE = 0x110000, 256


def classes():
    with open(os.path.join(FOLDER, "tests/data/recipe/char_classes.json"), encoding="utf-8") as file:
        data = json.load(file)["classes"]
    table = bytearray(CHARACTERS)
    for name, bit in BITS.items():
        for first, last in data[name]["ranges"]:
            for character in range(first, last + 1):
                table[character] |= bit
    for first, last in IDEOGRAPHS:
        for character in range(first, last + 1):
            assert not table[character] & BITS["\\p{N}"], "an ideograph is a number: the stages would overlap"
            table[character] |= IDEOGRAPH
    for character in (10, 13):
        table[character] |= NEWLINE
    return bytes(table)


def rows(values, per_row):
    return ["    " + " ".join(f"{value}," for value in values[i:i + per_row]) for i in range(0, len(values), per_row)]


def main():
    table = classes()
    pages, index = [], []
    for start in range(0, CHARACTERS, PAGE):
        page = table[start:start + PAGE]
        if page not in pages:
            pages.append(page)
        index.append(pages.index(page))
    assert len(pages) <= 256
    print("/* Made by tools/make_unicode_classes.py; edit that instead. */")
    print('#include "recipe/unicode_classes.h"\n')
    print("/* clang-format off */")
    print(f"const uint8_t unicode_class_index[{len(index)}] = {{")
    print("\n".join(rows(index, 24)))
    print("};\n")
    print(f"const uint8_t unicode_class_pages[{len(pages)}][{PAGE}] = {{")
    for page in pages:
        print("    {")
        print("\n".join("    " + row for row in rows(page, 24)))
        print("    },")
    print("};")


main()
