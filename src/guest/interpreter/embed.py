#!/usr/bin/env python3
"""Turns text files into C strings: embed.py OUT.c driver.py charts.py -> interpreter_driver_py, interpreter_charts_py"""
import pathlib
import sys


def c_text(line):
    return '    "' + line.replace("\\", "\\\\").replace('"', '\\"').replace("?", "\\?") + '\\n"'


def main():
    out, *names = sys.argv[1:]
    text = '/* Made by embed.py. */\n#include "guest/interpreter/python.h"\n'
    for path in map(pathlib.Path, names):
        body = "\n".join(c_text(line) for line in path.read_text(encoding="ascii").splitlines())
        text += f"\nconst char interpreter_{path.name.replace('.', '_')}[] =\n{body};\n"
    pathlib.Path(out).write_text(text, encoding="ascii")


if __name__ == "__main__":
    main()
