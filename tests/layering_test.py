#!/usr/bin/env python3
"""Keeps the map true: who may include whom.

Reads every `#include "folder/file.h"` below src/ and checks it against the table below, which is the one place where
the layering is written down. Three rules:

  layer      a folder includes only folders that its row names
  door       of another folder only the front door, the header of its own name (sandbox/sandbox.h); toolboxes have a
             header a tool instead; DOORS and WIRING list the few folders with other doors, each with its reason
  daemon     nothing includes daemon/, which wires everything together

    layering_test.py            check the tree
    layering_test.py --self     check the checker: samples that break each rule must be caught
"""

import pathlib
import re
import sys
import tempfile

# folder -> what it may include besides itself. Order: from the bottom up.
TABLE = {
    "base": "",
    "wire": "base",
    "policy": "base",
    "io": "base",
    "http": "io wire base",
    "privsep": "io base",
    "registry": "privsep wire base",
    "store": "base",
    "image": "io wire base",
    "isolation": "privsep io wire base",
    "egress": "policy http privsep io wire base",
    "smtp": "privsep io wire base",
    "mail": "store policy privsep wire base",
    # io: deadlines are timers on a loop, and starting a sandbox is a worker's job.
    "sandbox": "isolation image store policy privsep io wire base",
    "template": "registry sandbox isolation image store policy privsep io wire base",
    "actions": "template sandbox mail store policy base",
    # io: a control call leaves the loop for a worker before it calls its action.
    # policy: a sandbox's network rules are decoded into the struct that the rules themselves use.
    "api": "actions policy http io wire base",
    "mcp": "actions http io wire base",
    "proxy": "sandbox http io base",
    "guest": "http io wire base",
    "cli": "http io wire base",
    "daemon": "*",
}

# Every header of these is a door: they are boxes of tools, not modules with a life of their own.
TOOLBOXES = {"base", "wire", "policy", "io"}

# Folders with other doors than the header of their own name.
DOORS = {
    # mail/ keeps each inbox in a database of its own, by the same connection that the store uses. Mail's rows are a page of
    # their own beside store.h.
    "store": {"store.h", "sql.h", "mail_rows.h"},
    # A driver is a vtable and a plan is plain data; what implements them stays behind these two.
    "isolation": {"driver.h", "plan.h"},
    # Five tools that every role needs, and no module above them.
    "privsep": {"role.h", "channel.h", "message.h", "confine.h", "frame.h"},
    # Mail is as large as the rest of the actions together, and has callers and objects of its own. Building templates needs
    # the shapes of template/, which the others do not.
    "actions": {"actions.h", "mail.h", "build.h"},
    # The disk side has no single object either: templates are made of layers, and recipes make them.
    "image": {"layers.h", "templates.h", "bootstrap.h", "recipe.h"},
}

# Doors for daemon/ alone, which picks the parts and wires them together.
WIRING = {
    # Keeper owns the native driver and serves it, front owns the remote end of it, doctor asks what the host can do.
    "isolation": {"native/native.h", "native/probe.h", "serve.h", "remote.h"},
    # The roles for mail are loops around these: an inbox, a message, a webhook. Keeper derives the operator's public key,
    # and front its own keys.
    "mail": {"inbox.h", "compose.h", "seal.h", "hook.h"},
    # The role puller gets images by these.
    "registry": {"fetch.h", "web.h", "blobs.h"},
    # Front owns its end of the puller.
    "template": {"pull.h"},
    # Front reads what egress reports, and the role makes the resolver.
    "egress": {"egress.h", "flows.h", "resolver.h"},
}

INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"')


def allowed_folders(folder):
    if TABLE[folder] == "*":
        return set(TABLE)
    return set(TABLE[folder].split()) | {folder}


def problem_with(folder, target):
    """Why a file in `folder` may not include `target`, or None."""
    parts = target.split("/")
    if len(parts) < 2 or ".." in parts:
        return f'write "{folder}/{parts[-1]}": includes are named from src/'
    other, header = parts[0], "/".join(parts[1:])
    if other not in TABLE:
        return f"{other}/ is not in the table of tests/layering_test.py"
    if other == folder:
        return None
    if other == "daemon":
        return "nothing includes daemon/"
    if other not in allowed_folders(folder):
        return f"{folder}/ may include: {TABLE[folder] or 'nothing'}"
    doors = {f"{other}.h"} | DOORS.get(other, set())
    if folder == "daemon":
        doors |= WIRING.get(other, set())
    if other in TOOLBOXES or header in doors:
        return None
    return f"{header} is {other}/'s own business; its doors are {', '.join(sorted(doors))}"


def check_tree(src):
    """(includes seen, list of 'file:line: …')."""
    seen, wrong = 0, []
    for path in sorted(src.rglob("*.[ch]")):
        folder = path.relative_to(src).parts[0]
        shown = path.relative_to(src.parent)
        if folder not in TABLE:
            wrong.append(f"{shown}:1: {folder}/ is not in the table of tests/layering_test.py")
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            match = INCLUDE.match(line)
            if not match:
                continue
            seen += 1
            why = problem_with(folder, match[1])
            if why:
                wrong.append(f'{shown}:{number}: {folder}/ includes "{match[1]}": {why}')
    return seen, wrong


def check_table():
    """A row may name only rows above it: then there are no circles."""
    above = set()
    for folder, row in TABLE.items():
        for name in [] if row == "*" else row.split():
            if name not in above:
                yield f"the row of {folder}/ names {name}/, which does not stand above it"
        above.add(folder)


def self_test():
    samples = [  # file, include, is it right?
        ("base/str.c", "base/err.h", True),
        ("base/str.c", "wire/json.h", False),  # upwards
        ("wire/json.c", "io/loop.h", False),  # the pure ones do no I/O
        ("http/server.c", "io/stream.h", True),
        ("api/api.c", "sandbox/sandbox.h", False),  # past the actions
        ("api/api.c", "actions/actions.h", True),
        ("proxy/target.c", "sandbox/sandbox.h", True),
        ("proxy/target.c", "sandbox/manager.h", False),  # not a door
        ("sandbox/manager.c", "sandbox/manager.h", True),  # at home
        ("sandbox/manager.c", "isolation/plan.h", True),
        ("sandbox/manager.c", "isolation/native/mount.h", False),
        ("sandbox/manager.c", "isolation/native/native.h", False),  # which driver is daemon's choice
        ("daemon/keeper.c", "isolation/native/native.h", True),
        ("cli/cli.c", "daemon/config.h", False),
        ("daemon/main.c", "cli/cli.h", True),
        ("daemon/front.c", "sandbox/manager.h", False),  # daemon wires, by the doors
        ("cli/cli.c", "cli.h", False),  # not named from src/
        ("cli/cli.c", "../base/str.h", False),
        ("cli/cli.c", "nowhere/x.h", False),
    ]
    failures = list(check_table())
    for file, include, right in samples:
        with tempfile.TemporaryDirectory() as root:
            path = pathlib.Path(root, "src", file)
            path.parent.mkdir(parents=True)
            path.write_text(f'#include <stdio.h>\n\n#include "{include}"\n', encoding="utf-8")
            seen, wrong = check_tree(pathlib.Path(root, "src"))
            if seen != 1 or bool(wrong) == right:
                failures.append(f'{file} including "{include}" should be {"fine" if right else "refused"}')
            if wrong and not wrong[0].startswith(f"src/{file}:3: "):
                failures.append(f"no file and line in: {wrong[0]}")
    for line in failures:
        print(line)
    print(f"layering: {len(samples)} samples, {len(failures)} misjudged")
    return 1 if failures else 0


def main():
    if sys.argv[1:] == ["--self"]:
        return self_test()
    src = pathlib.Path(__file__).resolve().parent.parent / "src"
    seen, wrong = check_tree(src)
    for line in wrong:
        print(line)
    print(f"layering: {seen} includes, {len(wrong)} against the table")
    return 1 if wrong or not seen else 0


if __name__ == "__main__":
    sys.exit(main())
