#!/usr/bin/env python3
"""Turns text files into C strings: embed_text.py OUT.c HEADER PREFIX FILE…

driver.py becomes `const char PREFIX_driver_py[]`; HEADER declares it. The files are ASCII: so are C sources with strings.
"""
import pathlib
import re
import sys


def c_text(line):
    return '    "' + line.replace("\\", "\\\\").replace('"', '\\"').replace("?", "\\?").replace("\t", "\\t") + '\\n"'


def main():
    out, header, prefix, *names = sys.argv[1:]
    text = f'/* Made by embed_text.py. */\n#include "{header}"\n'
    for path in map(pathlib.Path, names):
        body = "\n".join(c_text(line) for line in path.read_text(encoding="ascii").splitlines())
        name = re.sub(r"[^a-z0-9]", "_", path.name)
        text += f"\nconst char {prefix}_{name}[] =\n{body};\n"
    pathlib.Path(out).write_text(text, encoding="ascii")


if __name__ == "__main__":
    main()
