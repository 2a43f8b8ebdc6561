"""traces.py - what a server and its sandboxes have on the machine: to see that nothing is left, and to compare before and after."""

import os
import pathlib
import re
import sqlite3

from server import wait_for

SANDBOX_ID = re.compile(r"i[a-z0-9]{20}$")


def traces_of(server, sandbox_id):
    """Everything on the host that still knows of a sandbox: mounts, cgroups, directories, processes, rows."""
    found = []
    for mounts in {"/proc/mounts", f"/proc/{server.pid}/mounts"}:
        found += [f"mount: {line}" for line in pathlib.Path(mounts).read_text().splitlines() if sandbox_id in line]
    for directory, names, _ in os.walk("/sys/fs/cgroup"):
        found += [f"cgroup: {directory}/{name}" for name in names if sandbox_id in name]
    for directory in ("sandboxes", "tmp"):
        path = server.data / directory
        if path.is_dir():
            found += [f"directory: {entry}" for entry in path.iterdir() if sandbox_id in entry.name]
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if sandbox_id in (entry / "cgroup").read_text():
                    found.append(f"process: {entry.name} {(entry / 'cmdline').read_bytes()!r}")
            except OSError:
                pass  # it has just ended
    found += [f"row: {row}" for row in rows(server) if sandbox_id in row]
    return found


def rows(server):
    """Ids in the table of sandboxes."""
    with sqlite3.connect(f"file:{server.data}/store/cloister.db?mode=ro", uri=True, timeout=10) as database:
        return [row[0] for row in database.execute("select id from sandboxes")]


def own_cgroup(server):
    """The name of its cgroup; other servers on this machine come and go."""
    data = os.stat(server.data)
    return f"cloister.{data.st_dev:x}.{data.st_ino:x}"


def cgroups(server):
    own = own_cgroup(server)
    return sorted(
        f"{directory}/{name}"
        for directory, names, _ in os.walk("/sys/fs/cgroup")
        for name in names
        if own in f"{directory}/{name}"
    )


def is_drained(server):
    """The memory of ended sandboxes is taken back before their cgroups go: a moment after everything else."""
    there = {entry.name for entry in (server.data / "sandboxes").iterdir()} if (server.data / "sandboxes").is_dir() else set()
    return all(path.rsplit("/", 1)[1] in there for path in cgroups(server) if SANDBOX_ID.match(path.rsplit("/", 1)[1]))


def inventory(server):
    """How much of everything this server has, to compare before and after."""
    wait_for(lambda: is_drained(server))
    return {
        "mounts": pathlib.Path(f"/proc/{server.pid}/mounts").read_text().count("\n"),
        "cgroups": cgroups(server),
        "directories": sorted(
            str(entry)
            for part in ("sandboxes", "tmp")
            if (server.data / part).is_dir()
            for entry in (server.data / part).iterdir()
        ),
        "rows": sorted(rows(server)),
    }


def traces_by_id(server):
    """As traces_of(), for all sandboxes of this server at once: kinds of traces by id."""
    own = own_cgroup(server)
    found = {}

    def note(kind, text):
        for word in re.split(r"[^a-z0-9]", text):
            if SANDBOX_ID.match(word):
                found.setdefault(word, set()).add(kind)

    if server.process and server.process.poll() is None:
        note("mount", pathlib.Path(f"/proc/{server.pid}/mounts").read_text())
    for path in cgroups(server):
        note("cgroup", path.rsplit("/", 1)[1])
    for directory in ("sandboxes", "tmp", "trash"):
        if (server.data / directory).is_dir():
            note(f"in {directory}/", " ".join(os.listdir(server.data / directory)))
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            lines = pathlib.Path(f"/proc/{pid}/cgroup").read_text().splitlines()
        except OSError:
            continue  # it has just ended
        note("process", " ".join(line for line in lines if own in line))
    note("row", " ".join(rows(server)))
    return found
