#!/usr/bin/env python3
"""Turns a file of any bytes into a C array: embed_file.py OUT.c HEADER PREFIX FILE

enter.so becomes `const unsigned char PREFIX_enter_so[]` and `const unsigned long PREFIX_enter_so_size`; HEADER
declares both. For text there is embed_text.py.
"""
import pathlib
import re
import sys

BYTES_A_LINE = 24


def main():
    out, header, prefix, path = sys.argv[1:]
    data = pathlib.Path(path).read_bytes()
    name = prefix + "_" + re.sub(r"[^a-z0-9]", "_", pathlib.Path(path).name)
    lines = [
        "    " + " ".join(f"0x{byte:02x}," for byte in data[i : i + BYTES_A_LINE])
        for i in range(0, len(data), BYTES_A_LINE)
    ]
    pathlib.Path(out).write_text(
        f'/* Made by embed_file.py. */\n#include "{header}"\n\nconst unsigned char {name}[] = {{\n'
        + "\n".join(lines)
        + f"\n}};\nconst unsigned long {name}_size = sizeof {name};\n",
        encoding="ascii",
    )


if __name__ == "__main__":
    main()
