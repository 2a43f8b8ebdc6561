#!/usr/bin/env python3
"""Keeps names apart: no two of our libraries define the same function or variable.

A program that has both libraries gets one of the two definitions for all its calls, whatever their arguments are. No linker
says so.

usage: names_test.py NM BUILD        (looks at BUILD/src/**/lib*.a; --self checks the check)
"""

import collections
import pathlib
import subprocess
import sys


def defined(listing):
    """Of what `nm -g --defined-only` prints."""
    fields = (line.split() for line in listing.splitlines())
    return {field[2] for field in fields if len(field) == 3 and field[1] in "TDBRC"}


def twice(names_of):
    """The names that several have, each with those that have it."""
    places = collections.defaultdict(list)
    for place, names in sorted(names_of.items()):
        for name in names:
            places[name].append(place)
    return {name: where for name, where in sorted(places.items()) if len(where) > 1}


def check_self():
    listing = "frame.c.o:\n0000000000000000 T frame_read\n0000000000000010 t hidden\n0000000000000000 R table\n                 U mem_new\n"
    assert defined(listing) == {"frame_read", "table"}, defined(listing)
    assert twice({"a": {"x", "y"}, "b": {"y"}}) == {"y": ["a", "b"]}


def main():
    if sys.argv[1:] == ["--self"]:
        check_self()
        return 0
    nm, build = sys.argv[1:]
    libraries = sorted(pathlib.Path(build, "src").rglob("lib*.a"))
    assert libraries, f"there are no libraries in {build}/src"
    listings = {
        path.name: subprocess.run([nm, "-g", "--defined-only", path], check=True, capture_output=True, text=True).stdout
        for path in libraries
    }
    wrong = twice({name: defined(listing) for name, listing in listings.items()})
    for name, where in wrong.items():
        print(f"{name} is defined in {' and in '.join(where)}")
    print(f"names: {len(libraries)} libraries, {len(wrong)} names in two of them")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
