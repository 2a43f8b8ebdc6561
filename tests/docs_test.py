#!/usr/bin/env python3
"""Checks that every file and function that ARCHITECTURE.md, SECURITY.md and docs/*.md name exists."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PATH = re.compile(r"`((?:src/|tests/|scripts/)?[a-z0-9_]+(?:/[a-z0-9_]+)*/(?:[a-z0-9_]+\.(?:c|h|py|sh|md))?)`")
FUNCTION = re.compile(r"`([a-z0-9_]+)\(\)`")
# Directories that exist at run time, not in the repository.
ELSEWHERE = {"templates/", "layers/", "store/", "blobs/", "packages/"}


def main():
    source = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "src").rglob("*.[ch]")))
    wrong, seen = [], 0
    for page in [ROOT / "ARCHITECTURE.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        name = page.relative_to(ROOT)
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            for path in PATH.findall(line):
                seen += 1
                if path not in ELSEWHERE and not any((base / path).exists() for base in (ROOT, ROOT / "src")):
                    wrong.append(f"{name}:{number}: there is no {path}")
            for function in FUNCTION.findall(line):
                seen += 1
                if not re.search(rf"\b{function}\(", source):
                    wrong.append(f"{name}:{number}: there is no function {function}()")
    for line in wrong:
        print(line)
    print(f"docs: {seen} names, {len(wrong)} of them wrong")
    return 1 if wrong or not seen else 0


if __name__ == "__main__":
    sys.exit(main())
