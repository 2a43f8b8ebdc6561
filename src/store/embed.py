#!/usr/bin/env python3
"""Turns the numbered SQL files into one C table, in order: embed.py OUT.c 0001_first.sql 0002_….sql

Numbers start at 1 and have no gaps: a store that has applied N has applied all before it.
"""
import pathlib
import re
import sys


def c_text(line):
    return '"' + line.replace("\\", "\\\\").replace('"', '\\"') + '\\n"'


def main():
    out, *names = sys.argv[1:]
    rows = []
    for expected, path in enumerate(sorted(map(pathlib.Path, names), key=lambda p: p.name), start=1):
        found = re.fullmatch(r"(\d{4})_[a-z0-9_]+\.sql", path.name)
        if not found or int(found.group(1)) != expected:
            sys.exit(f"{path}: expected the name {expected:04}_….sql")
        lines = path.read_text(encoding="utf-8").splitlines()
        body = "\n".join("      " + c_text(line) for line in lines if line and not line.startswith("--"))
        rows.append(f'    {{ {expected}, "{path.stem}",\n{body} }},')
    text = ('/* Made by embed.py from migrations/. */\n#include "store/inside.h"\n\n'
            "const struct migration migrations[] = {\n" + "\n".join(rows) + "\n};\n"
            "const int migration_count = (int)COUNT_OF(migrations);\n")
    pathlib.Path(out).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
