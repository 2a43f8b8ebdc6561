#!/usr/bin/env python3
"""template_packages.py - what the templates have installed, as README.md shows it.

    scripts/template_packages.py            prints README's block
    scripts/template_packages.py --write    puts it there
    scripts/template_packages.py --check    fails if README has another one; a test runs this

It reads the lists that the templates are made from: `packages` in src/image/bootstrap.c, `list` in
src/image/recipes/code-interpreter.sh. tests/e2e/test_packages.py compares the same lists with the built template.
"""

import pathlib
import re
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- made by scripts/template_packages.py --write -->\n", "<!-- end of what it made -->\n"


def base_packages(root=ROOT):
    """The Debian packages of `base`."""
    source = (root / "src/image/bootstrap.c").read_text(encoding="utf-8")
    strings = re.search(r'static const char packages\[\] =(.*?");', source, re.DOTALL).group(1)
    return "".join(re.findall(r'"([^"]*)"', strings)).split(",")


def interpreter_rows(root=ROOT):
    """Of the code interpreter: a row's title, and what it has by `debian`, `pypi` and `also`; names as PyPI has them."""
    script = (root / "src/image/recipes/code-interpreter.sh").read_text(encoding="utf-8")
    rows = []
    for line in re.search(r'^list="\n(.*?)^"\n', script, re.MULTILINE | re.DOTALL).group(1).splitlines():
        kind, _, rest = line.partition(" ")
        if kind == "for":
            rows.append((rest, {"debian": [], "pypi": [], "also": []}))
        elif kind == "debian":
            rows[-1][1][kind] += [
                shown or name.removeprefix("python3-")
                for name, _, shown in (word.partition("=") for word in rest.split())
            ]
        elif kind == "pypi":
            rows[-1][1][kind] += [word.partition("==")[0] for word in rest.split()]
        elif kind == "also":
            rows[-1][1][kind].append(rest)
        elif kind not in ("needs-debian", "needs-pypi"):
            raise ValueError(f"code-interpreter.sh: cannot read this line of `list`: {line}")
    return rows


def block():
    lines = ["| for | packages |", "|---|---|"]
    for title, has in interpreter_rows():
        parts = [", ".join(has["debian"])] if has["debian"] else []
        parts += ["from PyPI " + ", ".join(has["pypi"])] if has["pypi"] else []
        lines.append(f"| {title} | {'; '.join(parts + has['also'])} |")
    base = "`base`, on which `code-interpreter-v1` is built, has these Debian packages: " + ", ".join(base_packages()) + "."
    lines += [""] + textwrap.wrap(base, 120, break_on_hyphens=False)
    return BEGIN + "\n" + "\n".join(lines) + "\n\n" + END


def main():
    mode = sys.argv[1] if len(sys.argv) > 1 else ""
    path = ROOT / "README.md"
    text = path.read_text(encoding="utf-8")
    if mode == "":
        print(block(), end="")
        return 0
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if mode not in ("--write", "--check") or not begin or not end:
        print(__doc__ if begin and end else f"README.md has no lines {BEGIN}and {END}")
        return 2
    made = before + block() + after
    if mode == "--write":
        path.write_text(made, encoding="utf-8")
    elif made != text:
        print("README.md does not list what the recipes install: run scripts/template_packages.py --write")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
