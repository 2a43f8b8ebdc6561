"""A guest fills the file system of the data directory, with bytes or with files, and goes on trying. The server goes on."""

import contextlib
import glob
import os
import pathlib
import shutil
import signal
import subprocess
import time
from datetime import datetime, timedelta

import pytest
from e2b import Sandbox, SandboxException
from server import SHARED_DATA, Server, free_port, share_template, wait_for

# In the sandbox, as fast as it can, until it is killed: whatever is freed is taken again.
FILL_BYTES = "while :; do cat /dev/zero >> /home/user/fill 2>/dev/null; done"
FILL_INODES = "cd /home/user; i=0; while :; do : > f$i && i=$((i+1)); done 2>/dev/null"
SIZES = {
    "bytes": (FILL_BYTES, ["-N", "16384"], "384M"),
    "inodes": (FILL_INODES, ["-N", "4096", "-b", "4096"], "384M"),
    "bytes, no reserve for root": (FILL_BYTES, ["-N", "16384", "-m", "0"], "384M"),
}


class SmallDisk:
    """A file system of its own, without the templates' layers: those are only read, from where they are."""

    def __init__(self, home, size, options):
        self.home = home
        self.image = pathlib.Path(f"{home}.img")
        if os.path.ismount(home):
            self.drop()  # of a run that was killed
        self.home.mkdir(mode=0o755, parents=True, exist_ok=True)
        with open(self.image, "wb") as image:
            image.truncate(int(size.removesuffix("M")) << 20)
        subprocess.run(["mkfs.ext4", "-q", "-F", *options, str(self.image)], check=True)
        subprocess.run(["mount", "-o", "loop", str(self.image), str(home)], check=True)
        (home / "layers").mkdir(mode=0o700)
        subprocess.run(["mount", "--bind", str(SHARED_DATA / "layers"), str(home / "layers")], check=True)
        shutil.copytree(SHARED_DATA / "templates", home / "templates")
        (home / "templates").chmod(0o700)

    def free(self):
        state = os.statvfs(self.home)
        return state.f_bavail * state.f_frsize, state.f_favail

    def is_full(self):
        space, inodes = self.free()
        return space == 0 or inodes == 0

    def end_guests(self):
        """Also if no server could be started to do it: what runs in there keeps the file system."""
        own = os.stat(self.home)
        name = f"cloister.{own.st_dev:x}.{own.st_ino:x}"
        for tree in glob.glob(f"/sys/fs/cgroup/{name}") + glob.glob(f"/sys/fs/cgroup/*/{name}"):
            for directory, _, _ in os.walk(tree):  # which may go meanwhile
                with contextlib.suppress(OSError):
                    for pid in (pathlib.Path(directory) / "cgroup.procs").read_text().split():
                        os.kill(int(pid), signal.SIGKILL)

    def drop(self):
        self.end_guests()
        for place in (self.home / "layers", self.home):
            # Lazily: what still holds on is no reason to leave a mount for the next run.
            if os.path.ismount(place):
                subprocess.run(["umount", "--lazy", str(place)], check=False)
        self.image.unlink(missing_ok=True)
        if not os.path.ismount(self.home):
            self.home.rmdir()


@pytest.fixture(params=SIZES, ids=lambda name: name.replace(", ", "-").replace(" ", "-"))
def small(request, server):
    share_template(server.data)  # so that there is one to read from
    fill, options, size = SIZES[request.param]
    disk = SmallDisk(server.data.parent / f"{server.data.name}-full-disk", size, options)
    mine = Server(disk.home)
    mine.log_dir = server.data
    mine.log_from = (server.data / "test-server.log").stat().st_size
    mine.fill, mine.disk = fill, disk
    try:
        mine.start()
        yield mine
    finally:
        try:
            if mine.process is None or mine.process.poll() is not None:
                mine.start()
            mine.kill_all()
            wait_for(lambda: not any((disk.home / "trash").iterdir()))
        finally:
            mine.stop()
            disk.drop()


def use(server, box):
    return Sandbox.connect(
        box["sandboxID"], timeout=600, api_key=server.key, api_url=server.url, sandbox_url=server.url
    )


def end_of(server, sandbox_id):
    answer = server.api("GET", f"/sandboxes/{sandbox_id}")
    assert answer.status == 200, answer
    return datetime.fromisoformat(answer.json["endAt"].replace("Z", "+00:00"))


HALF_A_SECOND = timedelta(seconds=0.5)


def set_timeout(server, sandbox_id, seconds):
    answer = server.api("POST", f"/sandboxes/{sandbox_id}/timeout", {"timeout": seconds})
    assert answer.status == 204, answer
    return end_of(server, sandbox_id)


def check_no_create(server):
    """507, with what is missing and where; nothing is left of the attempt."""
    answer = server.api("POST", "/v2/sandboxes", {"templateID": "base", "timeout": 60})
    assert answer.status == 507, answer
    assert str(server.data) in answer.json["message"], answer
    assert "kill sandboxes or remove files" in answer.json["message"], answer
    assert answer.headers["should-retry"] == "false"
    with pytest.raises(SandboxException, match="507.*a sandbox needs"):
        Sandbox.create(api_key=server.key, api_url=server.url, sandbox_url=server.url)


@pytest.mark.timeout(240)
def test_a_guest_that_fills_the_disk_stops_nothing_but_creates(small):
    box, bystander = small.create(timeout=600), small.create(timeout=600)
    use(small, box).commands.run(small.fill, background=True, timeout=0)
    assert wait_for(small.disk.is_full, 60), small.disk.free()

    ids = {box["sandboxID"], bystander["sandboxID"]}
    check_no_create(small)
    assert set(small.running()) == ids
    # Many changes: more than what happens to fit into a half-used page.
    for seconds in range(1000, 1400):
        wanted = set_timeout(small, bystander["sandboxID"], seconds)
    wanted_box = set_timeout(small, box["sandboxID"], 2000)

    # Stopped in good order, killed, and without the one file that SQLite makes anew: what was answered is still true, and
    # it still works.
    for how in ("stop", "kill", "no index"):
        if how == "kill":
            small.process.kill()
            small.process.wait()
        else:
            small.stop()
        if how == "no index":
            (small.data / "store" / "cloister.db-shm").unlink()
        assert wait_for(small.disk.is_full), small.disk.free()
        small.port = free_port()  # so that there is something to write down
        small.start()
        assert set(small.running()) == ids
        assert abs(end_of(small, bystander["sandboxID"]) - wanted) < HALF_A_SECOND
        assert abs(end_of(small, box["sandboxID"]) - wanted_box) < HALF_A_SECOND
        check_no_create(small)
        wanted = set_timeout(small, bystander["sandboxID"], 3000)
    assert use(small, bystander).commands.run("echo still here").stdout == "still here\n"

    # A kill frees what its guest has taken, and then there is room again: no restart.
    assert small.api("DELETE", f"/sandboxes/{box['sandboxID']}").status == 204
    assert small.running() == [bystander["sandboxID"]]
    deadline = time.monotonic() + 30
    while small.api("POST", "/v2/sandboxes", {"templateID": "base", "timeout": 60}).status != 201:
        assert time.monotonic() < deadline, small.disk.free()
        time.sleep(0.2)
    assert len(small.running()) == 2
    # And no role died over it, on a mapped file with a hole for instance.
    assert "ended by signal" not in small.log_path.read_text()[small.log_from :]
