"""Things go wrong while an image is pulled: roles are killed, the registry stalls and errs, the disk is full. A build fails with a
reason or goes on, nothing half-made is used, and the next build of the same image goes on where this one ended."""

import contextlib
import gzip
import hashlib
import http.server
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
import uuid

import pytest
import registry as images
from e2b import Sandbox
from server import TEST_DATA, Server, wait_for

PART = 3_000_000
MANY = 12_000  # files in the layer that takes its time to unpack
READY_S = 240


def tar_of_files(files):
    return images.tar_with([images.entry("srv"), *(with_bytes(f"srv/{name}", data) for name, data in files.items())])


def with_bytes(name, data):
    info, _ = images.entry(name, "")
    info.size = len(data)
    return info, data


class Scripted:
    """A registry that holds layers back, or errs, as a test says."""

    def __init__(self):
        self.blobs, self.manifests, self.requests = {}, {}, []
        self.held = {}  # digest: how many bytes come before the client waits
        self.moods = {}  # digest: what happens to the next requests
        self.released = threading.Event()
        scripted = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                with contextlib.suppress(OSError):
                    scripted.answer(self)

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.host = f"127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self):
        self.released.set()
        self.server.shutdown()
        self.server.server_close()

    def put(self, data):
        self.blobs[images.digest(data)] = data
        return {"digest": images.digest(data), "size": len(data)}

    def put_image(self, repository, layers):
        """Archives, lowest first. Gives the digests of what is downloaded."""
        rows = [{"mediaType": images.OCI_LAYER, **self.put(gzip.compress(layer, 1, mtime=0))} for layer in layers]
        diffs = [images.digest(layer) for layer in layers]
        config = {"architecture": images.ARCHITECTURE, "os": "linux", "rootfs": {"type": "layers", "diff_ids": diffs}}
        manifest = {
            "schemaVersion": 2,
            "mediaType": images.OCI_MANIFEST,
            "config": {"mediaType": images.OCI_CONFIG, **self.put(json.dumps(config).encode())},
            "layers": rows,
        }
        self.manifests[repository] = json.dumps(manifest).encode()
        return [row["digest"] for row in rows]

    def hold(self, digest):
        """From here on only half of it comes, until release()."""
        self.released.clear()
        self.held[digest] = len(self.blobs[digest]) // 2
        return self.held[digest]

    def release(self):
        self.held.clear()
        self.released.set()

    def asked_for(self, digest):
        return [start for name, start in self.requests if name == digest]

    def answer(self, call):
        repository, kind, name = re.fullmatch(r"/v2/(.+)/(manifests|blobs)/([^/]+)", call.path).groups()
        data = self.manifests[repository] if kind == "manifests" else self.blobs[name]
        wanted = re.fullmatch(r"bytes=(\d+)-", call.headers.get("Range", ""))
        at = int(wanted[1]) if wanted else 0
        mood = None
        if kind == "blobs":
            self.requests.append((name, at))
            mood = self.moods.get(name) and self.moods[name].pop(0)
        if mood in (429, 500):
            call.send_response(mood)
            call.send_header("Retry-After", "1")
            call.send_header("Content-Length", "0")
            call.end_headers()
            return
        call.send_response(206 if wanted else 200)
        if wanted:
            call.send_header("Content-Range", f"bytes {at}-{len(data) - 1}/{len(data)}")
        call.send_header("Content-Type", images.OCI_MANIFEST if kind == "manifests" else "application/octet-stream")
        call.send_header("Content-Length", str(len(data) - at))
        call.end_headers()
        end = len(data) // 2 if mood == "cut" else self.held.get(name, len(data))
        call.wfile.write(data[at:end])
        call.wfile.flush()
        if mood == "cut":
            call.connection.shutdown(socket.SHUT_RDWR)
            call.close_connection = True
        elif end < len(data):
            self.wait_with(call)
            call.wfile.write(data[max(at, end):])

    def wait_with(self, call):
        """Until release(), or until the client has gone."""
        call.connection.settimeout(0.1)
        while not self.released.is_set():
            with contextlib.suppress(TimeoutError):
                if not call.connection.recv(1):
                    raise OSError("the client has gone")
        call.connection.settimeout(60)


class Place:
    def __init__(self, server, scripted, system):
        self.server, self.registry, self.system = server, scripted, system
        self.names = []

    # ---- images ----

    def image(self, *layers):
        """(reference, digests) of a new image: the system, and then these archives. None of it was there before."""
        repository = f"faults/{uuid.uuid4().hex[:12]}"
        lowest = tar_of_files({"mark": repository.encode()})
        digests = self.registry.put_image(repository, [lowest, self.system, *layers])
        return f"{self.registry.host}/{repository}:1", digests[2:]

    # ---- builds ----

    def start(self, image):
        name = f"pulls-{uuid.uuid4().hex[:12]}"
        self.names.append(name)
        made = self.server.api("POST", "/v3/templates", {"name": name, "cpuCount": 1, "memoryMB": 512})
        assert made.status == 202, made
        path = f"/templates/{made.json['templateID']}/builds/{made.json['buildID']}"
        begun = self.server.api("POST", f"/v2{path}", {"fromImage": image, "steps": []})
        assert begun.status == 202, begun
        return name, path

    def status(self, path):
        answer = self.server.api("GET", f"{path}/status?logsOffset=0")
        assert answer.status == 200, answer
        return answer.json

    def end(self, path):
        """The status of a build that is over."""
        assert wait_for(lambda: self.status(path)["status"] in ("ready", "error"), READY_S)
        return self.status(path)

    def builds(self, image):
        name, path = self.start(image)
        status = self.end(path)
        assert status["status"] == "ready", status
        return name, status

    def wait_for_bytes(self, digest, count):
        """Until so many bytes of a layer are on the disk."""
        hexadecimal = digest.removeprefix("sha256:")

        def has_come():
            files = list((self.server.data / "blobs").glob(f"*-{hexadecimal}.part"))
            return bool(files) and files[0].stat().st_size >= count

        assert wait_for(has_come, 60)

    def holds(self, name, files):
        """A sandbox of this template has these files."""
        box = Sandbox.create(name, timeout=120)
        try:
            words = " ".join(f"/srv/{file}" for file in files)
            sums = box.commands.run(f"sha256sum {words}").stdout.split()[::2]
            assert sums == [hashlib.sha256(data).hexdigest() for data in files.values()]
        finally:
            box.kill()

    def unpacks(self, path):
        """How many layers are, or were, unpacked."""
        return len([line for line in self.status(path)["logEntries"] if line["message"].startswith("Uncompressing")])

    def half_made(self):
        return [path.name for path in (self.server.data / "snapshots").iterdir() if path.name.endswith(".new")]

    def come_back(self):
        """After a kill: keeper starts the role again, or all have ended and the operator starts it."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.server.process.wait(2)
        if self.server.process.poll() is not None:
            self.server.start()
        self.server.wait_until_up()

    def kill(self, who):
        pid = {"puller": lambda: self.server.role_pid("puller"), "front": self.server.front_pid, "keeper": lambda: self.server.pid}[who]()
        os.kill(pid, signal.SIGKILL)
        self.come_back()


def set_environment(server):
    for name in [name for name in os.environ if name.startswith("E2B_")]:
        del os.environ[name]
    os.environ.update(server.environment())


@contextlib.contextmanager
def make_place(data, home):
    if os.geteuid() != 0:
        pytest.skip("needs root: a server makes namespaces, mounts and cgroups")
    home.mkdir(parents=True, exist_ok=True)
    images.make_tree(home / "tree")
    with contextlib.ExitStack() as stack:
        scripted = Scripted()
        stack.callback(scripted.close)
        server = Server(data, ["--registry-insecure", scripted.host])
        server.start_when_free()
        stack.callback(server.stop)
        server.kill_all()
        stack.callback(server.kill_all)
        set_environment(server)
        yield Place(server, scripted, images.tar_of(home / "tree"))


@pytest.fixture(scope="module")
def whole_place(tmp_path_factory):
    data = TEST_DATA.parent / f"{TEST_DATA.name}-pulls"
    shutil.rmtree(data / "blobs", ignore_errors=True)
    with make_place(data, tmp_path_factory.mktemp("pulls")) as place:
        yield place


@pytest.fixture
def place(whole_place):
    yield whole_place
    whole_place.registry.release()
    tidy(whole_place)


def tidy(place):
    if place.server.process.poll() is not None:
        place.server.start()
    while place.names:
        place.server.api("DELETE", f"/templates/{place.names.pop()}")


def parts(count=3, size=PART):
    files = [{f"part-{i}": os.urandom(size)} for i in range(count)]
    return files, [tar_of_files(file) for file in files]


REASONS = {
    "puller": "the process that pulls the image has ended; try again",
    "front": "the server was stopped during the build: start it again",
    "keeper": "the server was stopped during the build: start it again",
}


@pytest.mark.parametrize("who", REASONS)
def test_a_kill_in_the_middle_of_a_download(place, who):
    files, layers = parts()
    image, digests = place.image(*layers)
    half = place.registry.hold(digests[1])
    _, path = place.start(image)
    place.wait_for_bytes(digests[1], half)
    # All others are there: layers are downloaded beside one that waits.
    assert wait_for(lambda: all(place.registry.asked_for(digest) for digest in digests), 30)
    place.kill(who)
    status = place.end(path)
    assert status["status"] == "error", status
    assert REASONS[who] in status["reason"]["message"], status["reason"]
    place.registry.release()
    place.registry.requests.clear()
    name, _ = place.builds(image)
    assert place.registry.asked_for(digests[1]) == [half]  # it was resumed
    assert not place.half_made()
    place.holds(name, {file: data for one in files for file, data in one.items()})


@pytest.mark.parametrize("who", REASONS)
def test_a_kill_in_the_middle_of_an_unpack(place, who):
    files, layers = parts(2)
    many = {f"many/{i}": b"%d\n" % i for i in range(MANY)} | {"many/last": b"\0" * 100_000_000}
    image, _ = place.image(layers[0], tar_of_files(many), layers[1])
    _, path = place.start(image)
    assert wait_for(lambda: place.unpacks(path) == 4, 60, 0.01)  # the fourth is the large one
    assert wait_for(place.half_made, 20, 0.01)
    place.kill(who)
    status = place.end(path)
    reasons = [REASONS[who]]
    if who == "keeper":
        reasons.append("the process that was asked is gone")  # front has time to write it down, or has not
    # The puller's work is done, or it is not.
    assert (who == "puller" and status["status"] == "ready") or any(text in status["reason"]["message"] for text in reasons), status
    name, _ = place.builds(image)
    assert not place.half_made()
    place.holds(name, {"part-0": files[0]["part-0"], "part-1": files[1]["part-1"], f"many/{MANY - 1}": many[f"many/{MANY - 1}"],
                       "many/last": many["many/last"]})  # fmt: skip


def test_one_layer_of_three_stalls(place):
    files, layers = parts()
    image, digests = place.image(*layers)
    half = place.registry.hold(digests[0])
    name, path = place.start(image)
    place.wait_for_bytes(digests[0], half)
    other, _ = place.image(tar_of_files({"other": b"other"}))
    place.builds(other)  # one stuck connection does not stop other builds
    assert place.status(path)["status"] == "building"
    assert [place.registry.asked_for(digest) for digest in digests] == [[0], [0], [0]]
    place.registry.held.clear()  # the connection stays stuck; a new one does not
    status = place.end(path)
    assert status["status"] == "ready", status
    assert place.registry.asked_for(digests[0]) == [0, half]
    assert any("trying again" in line["message"] for line in status["logEntries"])
    place.holds(name, {file: data for one in files for file, data in one.items()})


def test_errors_in_the_middle(place):
    files, layers = parts()
    image, digests = place.image(*layers)
    for digest in digests:
        place.registry.moods[digest] = [429, "cut", 500]
    name, _ = place.builds(image)
    for digest in digests:
        half = len(place.registry.blobs[digest]) // 2
        assert place.registry.asked_for(digest) == [0, 0, half, half]
    place.holds(name, {file: data for one in files for file, data in one.items()})


def test_a_registry_that_goes_on_erring_fails_the_build(place):
    _, layers = parts()
    image, digests = place.image(*layers)
    place.registry.moods[digests[1]] = ["cut", *[500] * 20]
    _, path = place.start(image)
    status = place.end(path)
    assert status["status"] == "error" and "registry returned status code 500" in status["reason"]["message"], status
    place.registry.moods.clear()
    place.registry.requests.clear()
    place.builds(image)
    assert place.registry.asked_for(digests[1]) == [len(place.registry.blobs[digests[1]]) // 2]


@contextlib.contextmanager
def small_disk(home, megabytes):
    image = pathlib.Path(f"{home}.img")
    home.mkdir(mode=0o755, parents=True, exist_ok=True)
    with open(image, "wb") as file:
        file.truncate(megabytes << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(home)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(home)], check=False)
        image.unlink()
        if not os.path.ismount(home):
            home.rmdir()


def test_the_disk_is_full_in_the_middle_of_a_layer(whole_place, tmp_path):
    home = TEST_DATA.parent / f"{TEST_DATA.name}-pulls-full"
    try:
        with small_disk(home, 900), make_place(home, tmp_path) as place:
            files, layers = parts(3, 60_000_000)
            image, digests = place.image(*layers)
            half = place.registry.hold(digests[1])
            _, path = place.start(image)
            place.wait_for_bytes(digests[1], half)
            room = os.statvfs(home)
            with open(home / "ballast", "wb") as ballast:
                os.posix_fallocate(ballast.fileno(), 0, room.f_bavail * room.f_frsize - (4 << 20))
            place.registry.release()
            status = place.end(path)
            assert status["status"] == "error", status
            assert "disk" in status["reason"]["message"] or "No space" in status["reason"]["message"], status["reason"]
            (home / "ballast").unlink()
            place.registry.requests.clear()
            name, _ = place.builds(image)
            (start,) = place.registry.asked_for(digests[1])
            assert start >= half
            assert not place.half_made()
            place.holds(name, {file: data for one in files for file, data in one.items()})
            tidy(place)
    finally:
        set_environment(whole_place.server)
