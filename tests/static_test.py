#!/usr/bin/env python3
"""Keeps guestd whole: nothing of ours in it may ask for what a static program has to load from the file system it is in.

The C library answers these with plugins: code of the guest's choosing, run as pid 1. The linker only warns of it. What
the libraries ask for is no better, so the part of the C library that looks for plugins must not be in guestd at all.

usage: static_test.py NM GUESTD        (looks at the objects in GUESTD.p/; --self checks the check)
"""

import pathlib
import re
import subprocess
import sys

LOADS = re.compile(
    r"dlm?open|dlsym|iconv_open"
    r"|(get|set|end)(pw|gr|sp|host|net|serv|proto|rpc|alias)(ent|nam|uid|gid|by\w+)?(_r)?"
    r"|getaddrinfo(_a)?|getnameinfo|getgrouplist|initgroups|innetgr")


def loaders(listing):
    names = (line.split()[-1] for line in listing.splitlines() if " U " in line)
    return sorted({name for name in names if LOADS.fullmatch(name)})


def plugin_parts(listing):
    return sorted({line.split()[-1] for line in listing.splitlines() if re.match(r"_*nss_", line.split()[-1])})


def check_self():
    assert plugin_parts("0 T __nss_module_load\n0 t nss_parse_line\n0 T missing\n") == [
        "__nss_module_load", "nss_parse_line"]
    assert loaders("    U getpwnam_r\n    U getpid\n  U setgroups\n U gethostname\n") == ["getpwnam_r"]
    assert loaders("  U getaddrinfo\n U dlopen\n0 T getpwuid\n U getgrgid\n") == ["dlopen", "getaddrinfo", "getgrgid"]
    return 0


def main():
    nm, guestd = sys.argv[1:]
    objects = sorted(pathlib.Path(guestd + ".p").rglob("*.o"))
    wrong = 0
    for path in objects:
        for name in loaders(subprocess.run([nm, path], check=True, capture_output=True, text=True).stdout):
            print(f"{path.name} asks for {name}()")
            wrong += 1
    listing = subprocess.run([nm, guestd], check=True, capture_output=True, text=True).stdout
    for name in plugin_parts(listing):
        print(f"guestd holds {name}(), which some library brought along")
        wrong += 1
    if " T main" not in listing:
        print("guestd has no symbols to look at")
        wrong += 1
    print(f"static: {len(objects)} objects of guestd, {wrong} calls that would load something")
    return 1 if wrong or not objects else 0


if __name__ == "__main__":
    sys.exit(check_self() if "--self" in sys.argv else main())
