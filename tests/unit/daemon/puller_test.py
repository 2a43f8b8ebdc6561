#!/usr/bin/env python3
"""The role puller against registries: Debian's docker-registry with images of umoci and skopeo, and a server of this test that
misbehaves in every way that a registry can.

    puller_test.py PULL_TOOL [names of tests]

pull_tool.c starts the role, confined as in the server, and pulls one image. All traffic is on loopback.
"""

import base64
import contextlib
import fcntl
import gzip
import hashlib
import http.server
import io
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import unittest
import urllib.parse
import urllib.request

TOOL = sys.argv.pop(1) if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else None
UNPACKED = pathlib.Path(__file__).resolve().parents[3] / "build/test/docker-registry/usr/bin"  # by scripts/setup.sh
os.environ["PATH"] += f":{UNPACKED}"
HAS_REGISTRY = all(map(shutil.which, ("docker-registry", "skopeo", "umoci")))
NO_REGISTRY = "docker-registry, skopeo or umoci is not installed (scripts/setup.sh test)"

OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
OCI_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"


def sha(data):
    return hashlib.sha256(data).hexdigest()


def tar_of(files):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


class Image:
    """An image of some layers, as bytes."""

    def __init__(self, layers, architecture="amd64", env=("PATH=/bin",), media=OCI_MANIFEST):
        self.media = media
        self.diffs = [sha(layer) for layer in layers]
        self.blobs = [gzip.compress(layer, mtime=0) for layer in layers]
        self.config = json.dumps({
            "architecture": architecture, "os": "linux", "config": {"Env": list(env)},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{diff}" for diff in self.diffs]},
        }).encode()
        self.manifest = json.dumps({
            "schemaVersion": 2, "mediaType": media,
            "config": {"mediaType": OCI_CONFIG, "digest": f"sha256:{sha(self.config)}", "size": len(self.config)},
            "layers": [{"mediaType": OCI_LAYER, "digest": f"sha256:{sha(blob)}", "size": len(blob)} for blob in self.blobs],
        }).encode()

    def chains(self):
        chains = [self.diffs[0]]
        for diff in self.diffs[1:]:
            chains.append(sha(f"sha256:{chains[-1]} sha256:{diff}".encode()))
        return chains

    def all_blobs(self):
        return {sha(blob): blob for blob in [self.config, *self.blobs]}


SMALL = Image([tar_of({"hello": b"hello\n"}), tar_of({"second": os.urandom(50000)})])
LARGE = Image([tar_of({"large": os.urandom(3_000_000)})])
WIDE = Image([tar_of({f"part-{i}": os.urandom(400_000)}) for i in range(5)])


class Registry:
    """A registry that does what the repository's name says. Knows every request that it got."""

    def __init__(self):
        self.requests, self.blobs, self.manifests, self.counts = [], {}, {}, {}
        registry = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                registry.handle(self)

            do_HEAD = do_POST = do_GET

            def log_message(self, *args):
                pass

        self.servers = [http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)]
        self.port = self.servers[0].server_address[1]
        self.servers.append(http.server.ThreadingHTTPServer(("127.0.0.2", self.port), Handler))
        for server in self.servers:
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, daemon=True).start()
        self.host, self.other = f"127.0.0.1:{self.port}", f"127.0.0.2:{self.port}"
        self.crowd, self.crowd_now, self.crowd_changed = [], set(), threading.Condition()
        for image in (SMALL, LARGE, WIDE):
            self.blobs.update(image.all_blobs())

    def close(self):
        for server in self.servers:
            server.shutdown()
            server.server_close()

    def count(self, what):
        self.counts[what] = self.counts.get(what, 0) + 1
        return self.counts[what]

    def put(self, repository, reference, body, media):
        self.manifests[repository, reference] = self.manifests[repository, f"sha256:{sha(body)}"] = (body, media)

    def put_image(self, repository, image, tag="latest"):
        self.put(repository, tag, image.manifest, image.media)
        self.blobs.update(image.all_blobs())

    def handle(self, call):
        length = int(call.headers.get("Content-Length", 0))
        body = call.rfile.read(length) if length else b""
        self.requests.append((call.command, call.headers["Host"], call.path, dict(call.headers), body))
        path = urllib.parse.urlsplit(call.path)
        if path.path.startswith("/token"):
            return self.token(call, urllib.parse.parse_qs(path.query or body.decode()))
        if path.path.startswith("/cdn/"):
            return self.send_blob(call, path.path[5:])
        match = re.fullmatch(r"/v2/(.+)/(manifests|blobs)/([^/]+)", path.path)
        if not match:
            return self.send(call, 404)
        repository, kind, name = match.groups()
        trick = getattr(self, "trick_" + repository.split("/")[0].replace("-", "_"), None)
        if trick and trick(call, kind, name, repository):
            return None
        if kind == "blobs":
            return self.send_blob(call, name.removeprefix("sha256:"))
        return self.send_manifest(call, repository, name)

    def send(self, call, status, body=b"", headers=()):
        call.send_response(status)
        for key, value in dict(headers).items():
            call.send_header(key, value)
        call.send_header("Content-Length", str(len(body)))
        call.end_headers()
        if call.command != "HEAD":
            call.wfile.write(body)

    def send_manifest(self, call, repository, name):
        found = self.manifests.get((repository, name))
        if not found:
            return self.send(call, 404, b'{"errors":[{"code":"MANIFEST_UNKNOWN"}]}')
        body, media = found
        if media not in call.headers.get("Accept", ""):
            return self.send(call, 404, b'{"errors":[{"code":"MANIFEST_UNKNOWN","message":"not accepted"}]}')
        return self.send(call, 200, body, {"Content-Type": media, "Docker-Content-Digest": f"sha256:{sha(body)}"})

    def send_blob(self, call, name):
        data = self.blobs.get(name)
        if data is None:
            return self.send(call, 404, b'{"errors":[{"code":"BLOB_UNKNOWN"}]}')
        wanted = re.fullmatch(r"bytes=(\d+)-", call.headers.get("Range", ""))
        if not wanted:
            return self.send(call, 200, data)
        at = int(wanted[1])
        return self.send(call, 206, data[at:], {"Content-Range": f"bytes {at}-{len(data) - 1}/{len(data)}"})

    def token(self, call, fields):
        login = call.headers.get("Authorization", "")
        if login not in ("", "Basic " + base64.b64encode(b"user:right").decode()) or (
                call.command == "POST" and fields.get("refresh_token") != ["identity"]):
            return self.send(call, 401, b'{"errors":[{"code":"UNAUTHORIZED"}]}')
        who = "user" if login or call.command == "POST" else "anyone"
        return self.send(call, 200, json.dumps({"token": f"{who}-{fields['scope'][0]}"}).encode())

    # ---- tricks, by the first part of the repository's name; True: the answer was sent ----

    def trick_bearer(self, call, kind, name, repository):
        if call.headers.get("Authorization") in (f"Bearer user-repository:{repository}:pull",
                                                f"Bearer anyone-repository:{repository}:pull"):
            return False
        self.send(call, 401, b"", {"WWW-Authenticate": f'Bearer realm="http://{self.host}/token",service="test"'})
        return True

    def trick_redirect(self, call, kind, name, repository):
        if self.trick_bearer(call, kind, name, repository):
            return True
        if kind == "blobs":
            self.send(call, 307, b"", {"Location": f"http://{self.other}/cdn/{name.removeprefix('sha256:')}"})
            return True
        return False

    def trick_inward(self, call, kind, name, repository):
        if kind == "blobs":
            self.send(call, 307, b"", {"Location": "http://127.0.0.1:1/secret"})
        return kind == "blobs"

    def trick_cut(self, call, kind, name, repository):
        """Sends at most a million bytes, then cuts the connection."""
        data = self.blobs.get(name.removeprefix("sha256:"), b"")
        if kind != "blobs" or len(data) < 1_000_000:
            return False
        wanted = re.fullmatch(r"bytes=(\d+)-", call.headers.get("Range", ""))
        at = int(wanted[1]) if wanted else 0
        call.send_response(206 if wanted else 200)
        if wanted:
            call.send_header("Content-Range", f"bytes {at}-{len(data) - 1}/{len(data)}")
        call.send_header("Content-Length", str(len(data) - at))
        call.end_headers()
        call.wfile.write(data[at:at + 1_000_000])
        call.wfile.flush()
        if at + 1_000_000 < len(data):
            call.connection.shutdown(socket.SHUT_RDWR)
        call.close_connection = True
        return True

    def trick_slow(self, call, kind, name, repository):
        """Half of a layer, and then nothing until the client goes away."""
        data = self.blobs.get(name.removeprefix("sha256:"), b"")
        if kind != "blobs" or len(data) < 1_000_000:
            return False
        call.send_response(200)
        call.send_header("Content-Length", str(len(data)))
        call.end_headers()
        call.wfile.write(data[:len(data) // 2])
        call.wfile.flush()
        self.slow_ended = threading.Event()
        call.connection.settimeout(30)
        try:
            call.connection.recv(1)
        except OSError:
            pass
        self.slow_ended.set()
        call.close_connection = True
        return True

    def trick_crowd(self, call, kind, name, repository):
        """A layer is sent when three are wanted at the same time, or the last ones are."""
        if kind != "blobs" or name == f"sha256:{sha(WIDE.config)}":
            return False
        with self.crowd_changed:
            self.crowd_now.add(name)
            self.crowd.append(len(self.crowd_now))
            self.crowd_changed.notify_all()
            self.crowd_changed.wait_for(lambda: len(self.crowd_now) >= 3 or len(self.crowd) == len(WIDE.blobs), 10)
        self.send_blob(call, name.removeprefix("sha256:"))
        with self.crowd_changed:
            self.crowd_now.discard(name)
        return True

    def trick_stall(self, call, kind, name, repository):
        """Half of the lowest layer, and then nothing until the client goes away: the first time."""
        wanted = f"sha256:{sha(WIDE.blobs[0])}"
        if name != wanted or self.count(repository) > 1:
            return False
        self.send_half(call, WIDE.blobs[0])
        return True

    def trick_broken(self, call, kind, name, repository):
        """The highest layer is not there, after a while; the lowest stalls."""
        if name == f"sha256:{sha(WIDE.blobs[0])}":
            self.send_half(call, WIDE.blobs[0])
            return True
        if name == f"sha256:{sha(WIDE.blobs[4])}":
            time.sleep(0.3)
            self.send(call, 404)
            return True
        return False

    def trick_moody(self, call, kind, name, repository):
        """Each layer: too many requests, then a third of it and a cut, then an error, and then the rest."""
        data = self.blobs.get(name.removeprefix("sha256:"), b"")
        times = self.count(repository + name) if kind == "blobs" and data in WIDE.blobs else 0
        if times in (1, 3):
            self.send(call, 429 if times == 1 else 500, b"", {"Retry-After": "1"})
        elif times == 2:
            call.send_response(200)
            call.send_header("Content-Length", str(len(data)))
            call.end_headers()
            call.wfile.write(data[:len(data) // 3])
            call.wfile.flush()
            call.connection.shutdown(socket.SHUT_RDWR)
            call.close_connection = True
        return times in (1, 2, 3)

    def send_half(self, call, data):
        call.send_response(200)
        call.send_header("Content-Length", str(len(data)))
        call.end_headers()
        call.wfile.write(data[:len(data) // 2])
        call.wfile.flush()
        call.connection.settimeout(30)
        try:
            call.connection.recv(1)
        except OSError:
            pass
        call.close_connection = True

    def trick_wrong_layer(self, call, kind, name, repository):
        data = self.blobs.get(name.removeprefix("sha256:"), b"")
        if kind != "blobs" or data not in SMALL.blobs:
            return False
        self.send(call, 200, bytes([data[0] ^ 1]) + data[1:])
        return True

    def trick_wrong_config(self, call, kind, name, repository):
        if kind != "blobs" or name != f"sha256:{sha(SMALL.config)}":
            return False
        self.send(call, 200, SMALL.config.replace(b"PATH", b"HTAP"))
        return True

    def trick_long(self, call, kind, name, repository):
        data = self.blobs.get(name.removeprefix("sha256:"), b"")
        if kind == "blobs":
            self.send(call, 200, data + b"more")
        return kind == "blobs"

    def trick_wrong_manifest(self, call, kind, name, repository):
        if kind == "manifests":
            self.send(call, 200, SMALL.manifest, {"Content-Type": OCI_MANIFEST, "Docker-Content-Digest": f"sha256:{'0' * 64}"})
        return kind == "manifests"

    def trick_status(self, call, kind, name, repository):
        self.send(call, int(name), b"<html>no</html>")
        return True

    def trick_busy(self, call, kind, name, repository):
        if self.count(repository) <= 3:
            self.send(call, 429 if self.counts[repository] % 2 else 500, b"", {"Retry-After": "1"})
            return True
        return False

    def trick_garbage(self, call, kind, name, repository):
        call.wfile.write(b"\x00\xffgarbage" * 100)
        call.close_connection = True
        return True

    def trick_silence(self, call, kind, name, repository):
        time.sleep(8)
        call.close_connection = True
        return True

    def trick_endless(self, call, kind, name, repository):
        call.send_response(200)
        call.send_header("Content-Type", OCI_MANIFEST)
        call.end_headers()
        try:
            for _ in range(1000):
                call.wfile.write(b" " * 100_000)
        except OSError:
            pass
        call.close_connection = True
        return True

    def trick_partial(self, call, kind, name, repository):
        if kind == "blobs" and name == f"sha256:{sha(SMALL.blobs[1])}":
            self.send(call, 404)
            return True
        return False

    def trick_downgrade(self, call, kind, name, repository):
        self.send(call, 401, b"", {"WWW-Authenticate": f'Bearer realm="http://{self.host}/token",service="test"'})
        return True

    def trick_circle(self, call, kind, name, repository):
        self.send(call, 302, b"", {"Location": call.path})
        return True


def children(pid):
    return [int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class Result:
    def __init__(self, code, output):
        self.code, self.output = code, output
        self.layers = [dict(zip(("number", "diff", "chain", "size", "how"), found)) for found in re.findall(
            r"^layer (\d+) diff (\w+) chain (\w+) size (\d+) (\w+)$", output, re.M)]
        self.said = re.findall(r"^said: (.*)$", output, re.M)
        found = re.search(r"^error (.*?): (.*)$", output, re.M)
        self.kind, self.error = found.groups() if found else (None, None)

    def value(self, name):
        found = re.search(rf"^{name} (.*)$", self.output, re.M)
        return found and found[1]


class Base(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.registry = Registry()

    @classmethod
    def tearDownClass(cls):
        cls.registry.close()

    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="cloister-puller."))
        self.addCleanup(shutil.rmtree, self.dir)
        (self.dir / "blobs").mkdir()
        self.registry.requests.clear()

    def run_tool(self, what, image, *words):
        (self.dir / "out").mkdir(exist_ok=True)
        done = subprocess.run([TOOL, what, image, f"blobs={self.dir}/blobs", f"out={self.dir}/out", *words],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
        self.assertEqual(done.stderr, "", f"{image}: {done.stderr}")
        self.assertIn(done.returncode, (0, 1))
        return Result(done.returncode, done.stdout)

    def pull(self, repository, *words, what="pull"):
        return self.run_tool(what, f"{self.registry.host}/{repository}", f"insecure={self.registry.host}", *words)

    def pulled(self, repository, image, *words):
        result = self.pull(repository, *words)
        self.assertEqual(result.code, 0, result.output)
        self.check(result, image)
        return result

    def check(self, result, image):
        self.assertEqual([layer["diff"] for layer in result.layers], image.diffs)
        self.assertEqual([layer["chain"] for layer in result.layers], image.chains())
        for layer in result.layers:
            if layer["how"] == "came":
                self.assertEqual((self.dir / "out" / layer["number"]).read_bytes(), image.blobs[int(layer["number"])])

    def fails(self, repository, kind, text, *words):
        result = self.pull(repository, *words)
        self.assertEqual((result.code, result.kind), (1, kind), result.output)
        self.assertIn(text, result.error)
        return result


class Registries(Base):
    # ---- the ordinary way ----

    def test_an_image_comes_with_layers_variables_and_digests(self):
        self.registry.put_image("plain/app", SMALL)
        result = self.pulled("plain/app", SMALL)
        self.assertEqual(result.value("manifest"), sha(SMALL.manifest))
        self.assertEqual(result.value("reference"), sha(SMALL.manifest))
        self.assertEqual(result.value("env"), "PATH=/bin")
        self.assertEqual(result.said, ["Base Docker image size: 1 MB"])

    def test_what_is_here_is_not_downloaded_again(self):
        self.registry.put_image("plain/again", SMALL)
        self.pulled("plain/again", SMALL)
        self.registry.requests.clear()
        self.pulled("plain/again", SMALL)
        self.assertEqual([path for _, _, path, _, _ in self.registry.requests], ["/v2/plain/again/manifests/latest"])
        self.registry.requests.clear()
        result = self.pulled("plain/again", SMALL, f"have={SMALL.chains()[0]}")
        self.assertEqual([layer["how"] for layer in result.layers], ["here", "came"])

    def test_a_damaged_file_is_downloaded_again(self):
        self.registry.put_image("plain/damaged", SMALL)
        self.pulled("plain/damaged", SMALL)
        for path in (self.dir / "blobs").iterdir():
            path.write_bytes(path.read_bytes()[:-1] + b"?")
        self.pulled("plain/damaged", SMALL)

    def test_one_for_which_others_leave_no_room_waits(self):
        self.registry.put_image("plain/waits", SMALL)
        with (self.dir / "blobs" / "promise-0").open("w+b") as promise:  # of another process
            promise.truncate(40 << 30)
            fcntl.flock(promise, fcntl.LOCK_EX)
            begun = time.monotonic()
            timer = threading.Timer(1, fcntl.flock, (promise, fcntl.LOCK_UN))
            timer.start()
            result = self.pulled("plain/waits", SMALL)
            timer.join()
        self.assertGreater(time.monotonic() - begun, 1)
        self.assertEqual(result.said[0], "Waiting until other downloads have ended")
        self.assertEqual([path.name for path in (self.dir / "blobs").iterdir() if path.name.startswith("promise")], [])

    def test_another_repository_does_not_give_away_files(self):
        self.registry.put_image("plain/mine", SMALL)
        self.pulled("plain/mine", SMALL)
        self.registry.put("empty/app", "latest", SMALL.manifest, OCI_MANIFEST)
        blobs, self.registry.blobs = self.registry.blobs, {}
        try:
            self.fails("empty/app", "not found", "not found")
        finally:
            self.registry.blobs = blobs

    def test_a_digest_is_looked_up_without_a_download(self):
        self.registry.put_image("plain/digest", SMALL)
        result = self.pull("plain/digest", what="digest")
        self.assertEqual(result.value("reference"), sha(SMALL.manifest))
        self.assertEqual([method for method, *_ in self.registry.requests], ["HEAD"])

    def test_a_reference_by_digest(self):
        self.registry.put_image("plain/pinned", SMALL)
        self.pulled(f"plain/pinned@sha256:{sha(SMALL.manifest)}", SMALL)

    def make_list(self, media, platforms):
        return json.dumps({"schemaVersion": 2, "mediaType": media, "manifests": [
            {"mediaType": image.media, "digest": f"sha256:{sha(image.manifest)}", "size": len(image.manifest),
             "platform": platform, "annotations": annotations} for image, platform, annotations in platforms]}).encode()

    def test_the_right_image_of_a_list_is_chosen(self):
        arm = Image([tar_of({"arm": b"arm"})], "arm64")
        proof = Image([tar_of({"proof": b"x"})], "unknown")
        for media in (OCI_INDEX, DOCKER_LIST):
            repository = f"list/{len(media)}"
            body = self.make_list(media, [
                (arm, {"os": "linux", "architecture": "arm64", "variant": "v8"}, {}),
                (proof, {"os": "linux", "architecture": "amd64"}, {"vnd.docker.reference.type": "attestation-manifest"}),
                (SMALL, {"os": "linux", "architecture": "amd64"}, {})])
            for image in (arm, proof, SMALL):
                self.registry.put_image(repository, image, "x")
            self.registry.put(repository, "latest", body, media)
            result = self.pulled(repository, SMALL)
            self.assertEqual(result.value("reference"), sha(body))
            self.assertEqual(result.value("manifest"), sha(SMALL.manifest))
            self.check(self.pull(repository, "arch=arm64"), arm)
            self.fails(repository, "invalid", "has no variant for linux/s390x", "arch=s390x")

    def test_docker_types(self):
        image = Image([tar_of({"docker": b"x"})], media=DOCKER_MANIFEST)
        self.registry.put_image("plain/docker", image)
        self.pulled("plain/docker", image)

    # ---- logins ----

    def test_bearer_tokens(self):
        self.registry.put_image("bearer/app", SMALL)
        self.pulled("bearer/app", SMALL)
        self.pulled("bearer/app", SMALL, "user=user", "password=right")
        self.pulled("bearer/app", SMALL, "user=<token>", "password=identity")
        self.fails("bearer/app", "denied", "access denied to", "user=user", "password=wrong")
        self.fails("bearer/app", "denied", "access denied to", "user=<token>", "password=wrong")

    def test_a_redirect_goes_without_the_token(self):
        self.registry.put_image("redirect/app", LARGE)
        self.pulled("redirect/app", LARGE, f"insecure={self.registry.other}")
        others = [headers for _, host, _, headers, _ in self.registry.requests if host == self.registry.other]
        self.assertEqual(len(others), 2)
        self.assertTrue(all("Authorization" not in headers for headers in others))

    # ---- addresses ----

    def test_addresses_that_nobody_has_named_are_refused(self):
        self.registry.put_image("redirect/private", LARGE)
        self.registry.put_image("inward/app", SMALL)
        self.fails("redirect/private", "denied", "which pulls may not call: address of the host")
        self.fails("inward/app", "denied", "127.0.0.1 port 1, which pulls may not call")
        for image in (f"{self.registry.host}/plain/app", "127.0.0.1/app", "10.0.0.1:5000/app", "169.254.169.254/latest/meta",
                      "[::1]:5000/app", "localhost/app", "registry.internal/app", "[::ffff:127.0.0.1]:80/app"):
            result = self.run_tool("pull", image)
            self.assertEqual((result.code, result.kind), (1, "denied"), f"{image}: {result.output}")
        self.assertNotIn("/v2/plain/app/manifests/latest", [path for _, _, path, _, _ in self.registry.requests])

    def test_http_only_for_those_who_are_named_insecure(self):
        self.registry.put_image("plain/http", SMALL)
        result = self.run_tool("pull", f"{self.registry.host}/plain/http", f"allow={self.registry.host}")
        self.assertEqual(result.code, 1)
        self.assertNotIn("/v2/", "".join(path for _, _, path, _, _ in self.registry.requests))

    def test_what_the_operator_denies_stays_denied(self):
        self.registry.put_image("plain/deny", SMALL)
        self.fails("plain/deny", "denied", "range that the operator denies", "deny=127.0.0.0/8")

    # ---- the operator's options ----

    def test_mirrors_come_first_and_are_passed_over(self):
        self.registry.put_image("hub/library/python", SMALL, "3")
        result = self.run_tool("pull", "python:3", f"mirror=docker.io=http://{self.registry.host}/nowhere",
                               f"mirror=docker.io=http://{self.registry.host}/hub")
        self.assertEqual(result.code, 0, result.output)
        self.check(result, SMALL)
        self.assertIn("is passed over", result.said[0])

    def test_a_mirror_that_has_not_all_layers(self):
        self.registry.put_image("partial/plain/half", SMALL)
        self.registry.put_image("plain/half", SMALL)
        result = self.pulled("plain/half", SMALL, f"mirror={self.registry.host}=http://{self.registry.host}/partial")
        self.assertEqual(len([line for line in result.said if "is passed over" in line]), 1)
        self.assertIn("/v2/plain/half/blobs/sha256:" + sha(SMALL.blobs[1]),
                      [path for _, _, path, _, _ in self.registry.requests])

    def test_the_image_map(self):
        self.registry.put_image("local/python", SMALL, "3")
        words = (f"image=*=docker://{self.registry.host}/local/", f"insecure={self.registry.host}", "image=node=template:base")
        result = self.run_tool("pull", "python:3", *words)
        self.check(result, SMALL)
        self.assertEqual(self.run_tool("template", "node:20", *words).value("template"), "base")
        self.assertEqual(self.run_tool("template", "python:3", *words).value("template"), "")
        self.assertEqual(self.run_tool("template", "e2bdev/base", *words).value("template"), "base")
        self.assertIn("--image", self.run_tool("pull", "x", "image=x=nonsense").output)

    # ---- misbehaviour ----

    def test_a_download_that_is_cut_goes_on(self):
        self.registry.put_image("cut/app", LARGE)
        self.pulled("cut/app", LARGE)
        ranges = [headers.get("Range") for _, _, path, headers, _ in self.registry.requests if sha(LARGE.blobs[0]) in path]
        self.assertEqual(ranges, [None, "bytes=1000000-", "bytes=2000000-", "bytes=3000000-"][:len(ranges)])
        self.assertGreaterEqual(len(ranges), 3)

    def test_a_pull_that_is_cancelled_is_taken_up_later(self):
        self.registry.put_image("slow/app", LARGE)
        began = time.monotonic()
        result = self.pull("slow/app", "cancel=1000")
        self.assertEqual((result.kind, result.error), ("conflict", "the pull was cancelled"))
        self.assertLess(time.monotonic() - began, 6)
        self.assertTrue(self.registry.slow_ended.wait(5))
        (part,) = (self.dir / "blobs").glob("*.part")
        self.assertEqual(part.stat().st_size, len(LARGE.blobs[0]) // 2)
        trick, Registry.trick_slow = Registry.trick_slow, lambda *args: False
        try:
            self.pulled("slow/app", LARGE)
        finally:
            Registry.trick_slow = trick
        self.assertIn(f"bytes={len(LARGE.blobs[0]) // 2}-",
                      [headers.get("Range") for _, _, _, headers, _ in self.registry.requests])
        self.assertFalse(list((self.dir / "blobs").glob("*.part")))

    def blob_sizes(self):
        sizes = {}
        for path in (self.dir / "blobs").glob(f"*-{'?' * 64}*"):
            with contextlib.suppress(FileNotFoundError):  # it has just got its name
                sizes[path.name.partition("-")[2]] = path.stat().st_size
        return sizes

    def blob_requests(self):
        return [(path.rpartition(":")[2], headers.get("Range")) for _, _, path, headers, _ in self.registry.requests
                if "/blobs/" in path]

    def test_three_layers_come_at_once_and_no_more(self):
        self.registry.put_image("crowd/app", WIDE)
        self.pulled("crowd/app", WIDE)
        self.assertEqual(max(self.registry.crowd), 3)
        self.assertEqual(len(self.registry.crowd), 5)

    def test_a_layer_that_an_image_has_twice(self):
        (first, second) = (tar_of({"a": os.urandom(300_000)}), tar_of({"b": b"b"}))
        image = Image([first, second, first, first])
        self.registry.put_image("plain/twice", image)
        self.pulled("plain/twice", image)
        names = [name for name, _ in self.blob_requests()]
        self.assertEqual(sorted(names), sorted({sha(image.config), sha(image.blobs[0]), sha(image.blobs[1])}))

    def test_one_layer_that_stalls_does_not_hold_up_the_others(self):
        self.registry.put_image("stall/app", WIDE)
        result = self.pulled("stall/app", WIDE)
        half = len(WIDE.blobs[0]) // 2
        asked = self.blob_requests()
        self.assertEqual(asked[-1], (sha(WIDE.blobs[0]), f"bytes={half}-"))  # all others came before
        self.assertEqual(len(asked), 7)
        self.assertEqual(len([line for line in result.said if "trying again" in line]), 1)

    def test_one_layer_that_fails_ends_the_others(self):
        self.registry.put_image("broken/app", WIDE)
        began = time.monotonic()
        self.fails("broken/app", "not found", "not found")
        self.assertLess(time.monotonic() - began, 8)  # the one that stalls would be tried again and again
        sizes = [part.stat().st_size for part in (self.dir / "blobs").glob("*.part")]
        self.assertIn(len(WIDE.blobs[0]) // 2, sizes)
        self.assertFalse(list((self.dir / "blobs").glob("promise-*")))

    def test_errors_in_the_middle_of_layers(self):
        self.registry.put_image("moody/app", WIDE)
        result = self.pulled("moody/app", WIDE)
        for blob in WIDE.blobs:
            self.assertEqual([range for name, range in self.blob_requests() if name == sha(blob)],
                             [None, None, f"bytes={len(blob) // 3}-", f"bytes={len(blob) // 3}-"])
        for words in ("status code 429", "gave no answer", "status code 500"):
            self.assertEqual(len([line for line in result.said if words in line]), 5, result.said)

    def test_one_that_is_killed_is_taken_up_later(self):
        self.registry.put_image("stall/killed", WIDE)
        tool = subprocess.Popen([TOOL, "pull", f"{self.registry.host}/stall/killed", f"blobs={self.dir}/blobs",
                                 f"insecure={self.registry.host}"], stdout=subprocess.PIPE, text=True)
        half, end = len(WIDE.blobs[0]) // 2, time.monotonic() + 20
        wanted = {sha(blob): len(blob) for blob in [WIDE.config, *WIDE.blobs[1:]]} | {f"{sha(WIDE.blobs[0])}.part": half}
        while self.blob_sizes() != wanted:
            self.assertLess(time.monotonic(), end)
            time.sleep(0.01)
        (role,) = children(tool.pid)
        (child,) = children(role)
        self.assertEqual(len(os.listdir(f"/proc/{child}/task")), 3)
        os.kill(child, signal.SIGKILL)
        self.assertIn("the process that pulls the image has ended; try again", tool.communicate(timeout=20)[0])
        self.registry.requests.clear()
        self.pulled("stall/killed", WIDE)
        self.assertEqual(self.blob_requests(), [(sha(WIDE.blobs[0]), f"bytes={half}-")])

    def test_a_damaged_part_is_begun_again(self):
        self.registry.put_image("plain/part", LARGE)
        self.pulled("plain/part", LARGE)
        (blob,) = [path for path in (self.dir / "blobs").iterdir() if path.name.endswith(sha(LARGE.blobs[0]))]
        blob.rename(f"{blob}.part")
        pathlib.Path(f"{blob}.part").write_bytes(b"?" * 1000)
        self.pulled("plain/part", LARGE)

    def test_two_at_once_download_once(self):
        self.registry.put_image("cut/both", LARGE)
        tools = [subprocess.Popen([TOOL, "pull", f"{self.registry.host}/cut/both", f"blobs={self.dir}/blobs",
                                   f"insecure={self.registry.host}"], stdout=subprocess.PIPE, text=True) for _ in range(3)]
        outputs = [tool.communicate(timeout=60)[0] for tool in tools]
        for output in outputs:
            self.assertIn(LARGE.chains()[0], output)
        firsts = [headers for _, _, path, headers, _ in self.registry.requests
                  if sha(LARGE.blobs[0]) in path and "Range" not in headers]
        self.assertEqual(len(firsts), 1)

    def test_wrong_digests(self):
        for repository, text in (("wrong-layer/app", "does not have the digest"),
                                 ("wrong-config/app", "does not have the digest"),
                                 ("wrong-manifest/app", "does not have the digest"),
                                 ("long/app", "more bytes")):
            self.registry.put_image(repository, SMALL)
            self.fails(repository, "invalid", text)
            self.assertFalse([path.name for path in (self.dir / "blobs").iterdir()
                              if path.name.endswith(sha(SMALL.blobs[0]))], repository)

    def test_statuses(self):
        host = self.registry.host
        for status, kind, text in (
                (401, "denied", f"access denied to '{host}/status/a:401': authentication required or insufficient permissions"),
                (403, "denied", f"access denied to '{host}/status/a:403'"),
                (404, "not found", f"image '{host}/status/a:404' not found: the image or tag does not exist in the registry"),
                (429, "unavailable", "registry returned status code 429"),
                (500, "unavailable", f"failed to pull image '{host}/status/a:500': registry returned status code 500"),
                (418, "invalid", "registry returned status code 418")):
            self.fails(f"status/a:{status}", kind, text)

    def test_a_busy_registry(self):
        self.registry.put_image("busy/app", SMALL)
        result = self.pulled("busy/app", SMALL)
        self.assertEqual(len([line for line in result.said if "trying again" in line]), 3)

    def test_garbage_silence_and_floods(self):
        self.fails("garbage/app", "unavailable", "gave no answer")
        began = time.monotonic()
        result = self.fails("silence/app", "timeout", "gave no answer")
        self.assertLess(time.monotonic() - began, 30)
        self.assertEqual(len(result.said), 4)
        self.fails("endless/app", "limit", "more than 4194304 bytes")
        self.fails("circle/app", "invalid", "redirects in a circle")

    def test_nobody_listens(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            host = f"127.0.0.1:{free.getsockname()[1]}"
            result = self.run_tool("pull", f"{host}/app", f"insecure={host}")
        self.assertEqual(result.kind, "unavailable")

    def test_documents_that_are_none(self):
        schema1 = b'{"schemaVersion":1,"name":"x","fsLayers":[{"blobSum":"x"}]}'
        self.registry.put("odd/schema1", "latest", schema1, DOCKER_MANIFEST)
        self.registry.put("odd/html", "latest", b"<html>", OCI_MANIFEST)
        self.registry.put("odd/none", "latest", b"{}", OCI_MANIFEST)
        self.registry.put_image("odd/arm", Image([tar_of({"a": b"a"})], "arm64"))
        self.fails("odd/schema1", "invalid", "manifest")
        self.fails("odd/html", "invalid", "not a JSON object")
        self.fails("odd/none", "invalid", "no configuration or no layers")
        self.fails("odd/arm", "invalid", 'image architecture "arm64" does not match expected "amd64"')

    def test_references_that_are_none(self):
        for image in ("", "UPPER", "a b", "http://x/y", "x" * 600):
            result = self.run_tool("pull", image)
            self.assertEqual((result.code, result.kind), (1, "invalid"), image)


class Https(Base):
    """A registry with a certificate, at a private address."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.keys = pathlib.Path(tempfile.mkdtemp(prefix="cloister-puller."))
        cls.addClassCleanup(shutil.rmtree, cls.keys)
        cls.cert = cls.keys / "cert.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=test", "-days", "2", "-addext",
                        "subjectAltName=IP:127.0.0.1", "-keyout", str(cls.keys / "key.pem"), "-out", str(cls.cert)],
                       check=True, stderr=subprocess.DEVNULL)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cls.cert, cls.keys / "key.pem")
        for server in cls.registry.servers:
            server.socket = context.wrap_socket(server.socket, server_side=True)

    def test_a_certificate_that_the_machine_trusts(self):
        self.registry.put_image("plain/tls", SMALL)
        result = self.run_tool("pull", f"{self.registry.host}/plain/tls", f"allow={self.registry.host}", f"roots={self.cert}")
        self.assertEqual(result.code, 0, result.output)
        self.check(result, SMALL)

    def test_a_certificate_of_somebody_else(self):
        other = self.dir / "other.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=test", "-days", "2", "-keyout",
                        "/dev/null", "-out", str(other)], check=True, stderr=subprocess.DEVNULL)
        for host, roots in ((self.registry.host, other), (self.registry.other, self.cert)):  # not signed by it; for another name
            result = self.run_tool("pull", f"{host}/plain/tls", f"allow={host}", f"roots={roots}", "user=user", "password=right")
            self.assertEqual((result.kind, result.said), ("denied", []), result.output)
            self.assertIn("certificate is not one that this machine trusts", result.error)
        self.assertEqual(self.registry.requests, [])

    def test_passwords_do_not_leave_by_http(self):
        self.registry.put_image("downgrade/app", SMALL)
        words = (f"allow={self.registry.host}", f"roots={self.cert}", "user=user", "password=right")
        result = self.run_tool("pull", f"{self.registry.host}/downgrade/app", *words)
        self.assertEqual((result.code, result.kind), (1, "invalid"), result.output)
        self.assertIn("must begin with https://", result.error)


class Layouts(Base):
    """Images that are on this machine."""

    def make_layout(self, image, tag="one"):
        layout = self.dir / "layout"
        (layout / "blobs/sha256").mkdir(parents=True)
        for name, data in {**image.all_blobs(), sha(image.manifest): image.manifest}.items():
            (layout / "blobs/sha256" / name).write_bytes(data)
        (layout / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
        (layout / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [{
            "mediaType": OCI_MANIFEST, "digest": f"sha256:{sha(image.manifest)}", "size": len(image.manifest),
            "annotations": {"org.opencontainers.image.ref.name": tag}}]}))
        return layout

    def test_a_layout(self):
        layout = self.make_layout(SMALL)
        result = self.run_tool("pull", "x", f"image=x=oci:{layout}:one")
        self.assertEqual(result.code, 0, result.output)
        self.check(result, SMALL)
        self.check(self.run_tool("pull", "x", f"image=x=oci:{layout}"), SMALL)
        self.assertEqual(self.run_tool("digest", "x", f"image=x=oci:{layout}").value("reference"), sha(SMALL.manifest))
        self.assertEqual(self.run_tool("pull", "x", f"image=x=oci:{layout}:two").kind, "not found")
        with self.assertRaisesRegex(AssertionError, "which cannot be opened"):  # the role says so when it starts
            self.run_tool("pull", "x", f"image=x=oci:{self.dir}/nowhere")

    def test_a_damaged_layout(self):
        layout = self.make_layout(SMALL)
        (layout / "blobs/sha256" / sha(SMALL.blobs[1])).write_bytes(b"other")
        result = self.run_tool("pull", "x", f"image=x=oci:{layout}")
        self.assertEqual(result.kind, "invalid")
        self.assertIn("another digest", result.error)

    def test_a_layout_that_may_not_be_read(self):
        layout = self.make_layout(SMALL)
        for path in (layout / "index.json", layout / "blobs/sha256" / sha(SMALL.blobs[1])):
            path.chmod(0)
            result = self.run_tool("pull", "x", f"image=x=oci:{layout}")
            path.chmod(0o644)
            self.assertEqual(result.kind, "unavailable", result.output)
            self.assertIn(f"the layout {layout} of this image has files that the user", result.error)

    def test_links_in_a_layout_lead_nowhere(self):
        layout = self.make_layout(SMALL)
        blob = layout / "blobs/sha256" / sha(SMALL.blobs[1])
        secret = self.dir / "secret"
        secret.write_bytes(SMALL.blobs[1])
        blob.unlink()
        blob.symlink_to(secret)
        self.assertEqual(self.run_tool("pull", "x", f"image=x=oci:{layout}").code, 1)


class Archives(Base):
    """Archives of `docker save`."""

    def make_archive(self, images, links=(), pack=bytes):
        files, listed = {}, []
        for number, (image, tags) in enumerate(images):
            names = [f"{number}-{i}/layer.tar" for i in range(len(image.diffs))]
            files.update({name: gzip.decompress(blob) for name, blob in zip(names, image.blobs)})
            files[f"{number}.json"] = image.config
            listed.append({"Config": f"{number}.json", "RepoTags": tags, "Layers": names})
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as tar:
            for name, target in links:
                info = tarfile.TarInfo(name)
                info.type, info.linkname = tarfile.SYMTYPE, target
                tar.addfile(info)
                files.pop(name)
            for name, content in {**files, "manifest.json": json.dumps(listed).encode()}.items():
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
        path = self.dir / "saved.tar"
        path.write_bytes(pack(out.getvalue()))
        return path

    def check_plain(self, result, image):
        self.assertEqual(result.code, 0, result.output)
        self.assertEqual([layer["diff"] for layer in result.layers], image.diffs)
        for layer in result.layers:
            if layer["how"] == "came":
                self.assertEqual(sha((self.dir / "out" / layer["number"]).read_bytes()), layer["diff"])

    def test_an_archive(self):
        for pack in (bytes, gzip.compress):
            path = self.make_archive([(SMALL, ["x:1"])], pack=pack)
            self.check_plain(self.run_tool("pull", "x", f"image=x=docker-archive:{path}"), SMALL)
            self.check_plain(self.run_tool("pull", "x", f"image=x=docker-archive:{path}:x:1"), SMALL)
            result = self.run_tool("pull", "x", f"image=x=docker-archive:{path}", f"have={SMALL.chains()[0]}")
            self.assertEqual([layer["how"] for layer in result.layers], ["here", "came"])
            self.check_plain(result, SMALL)
            self.assertEqual(self.run_tool("digest", "x", f"image=x=docker-archive:{path}").value("reference"),
                             sha(SMALL.config))

    def test_one_of_several_images(self):
        path = self.make_archive([(LARGE, ["large:1"]), (SMALL, ["x:1", "x:2"])])
        self.check_plain(self.run_tool("pull", "x", f"image=x=docker-archive:{path}:x:2"), SMALL)
        self.assertEqual(self.run_tool("pull", "x", f"image=x=docker-archive:{path}:x:3").kind, "not found")
        self.assertIn("say which", self.run_tool("pull", "x", f"image=x=docker-archive:{path}").error)

    def test_layers_that_are_links(self):
        twice = Image([tar_of({"a": b"a"}), tar_of({"b": b"b"}), tar_of({"a": b"a"})])
        path = self.make_archive([(twice, ["x:1"])], links=[("0-2/layer.tar", "../0-0/layer.tar")])
        self.check_plain(self.run_tool("pull", "x", f"image=x=docker-archive:{path}"), twice)
        path = self.make_archive([(twice, ["x:1"])], links=[("0-2/layer.tar", "../0-2/layer.tar")])
        self.assertIn("has not all files", self.run_tool("pull", "x", f"image=x=docker-archive:{path}").error)

    def test_a_layer_that_is_there_many_times(self):
        many = Image([tar_of({"a": b"a"})] + 30 * [tar_of({"b": b"b"})])
        links = [(f"0-{i}/layer.tar", "../0-1/layer.tar") for i in range(2, 31)]
        path = self.make_archive([(many, ["x:1"])], links=links)
        self.check_plain(self.run_tool("pull", "", f"archive={path}"), many)

    def test_an_archive_that_unpacks_to_much_can_be_cancelled(self):
        """16 GiB of zeros in 16 MB, of which nothing is a file that is sought."""
        info = tarfile.TarInfo("zeros")
        info.size = 16 << 30
        zeros = gzip.compress(bytes(64 << 20))
        path = self.dir / "bomb.tar.gz"
        with path.open("wb") as file:
            file.write(gzip.compress(info.tobuf()))
            for _ in range(256):
                file.write(zeros)
        began = time.monotonic()
        self.check_error("conflict", "the pull was cancelled", "", f"archive={path}", "cancel=500")
        self.assertLess(time.monotonic() - began, 6)

    def test_damaged_archives(self):
        path = self.make_archive([(SMALL, ["x:1"])])
        whole = path.read_bytes()
        for data in (b"", b"garbage", whole[:20000], whole.replace(b"manifest.json", b"mannifest.jso")):
            path.write_bytes(data)
            result = self.run_tool("pull", "x", f"image=x=docker-archive:{path}")
            self.assertEqual((result.code, result.kind), (1, "invalid"), result.output)


    def check_error(self, kind, text, *words):
        result = self.run_tool("pull", *words)
        self.assertEqual((result.code, result.kind), (1, kind), result.output)
        self.assertIn(text, result.error)

    def test_an_archive_that_came_with_the_request(self):
        path = self.make_archive([(LARGE, ["docker.io/library/large:latest"]), (SMALL, ["x:1", "team/x:2"])])
        path.chmod(0)  # the descriptor is all that the role has
        for name in ("x:1", "team/x:2", "x:2"):
            self.check_plain(self.run_tool("pull", name, f"archive={path}"), SMALL)
        for name in ("large", "large:latest", "docker.io/library/large"):
            self.check_plain(self.run_tool("pull", name, f"archive={path}"), LARGE)
        listed = "docker.io/library/large:latest, x:1, team/x:2"
        self.check_error("not found", f"there is no image 'x' in it; there is: {listed}", "x", f"archive={path}")
        self.check_error("invalid", f"several images in it, say which: {listed}", "", f"archive={path}")
        self.check_error("invalid", 'image architecture "amd64" does not match expected "arm64"', "x:1", f"archive={path}",
                         "arch=arm64")

    def test_names_in_an_archive_do_nothing_to_a_terminal(self):
        path = self.make_archive([(SMALL, ["evil\x1b[2J:1"]), (LARGE, ["y" * 400])])
        self.check_error("not found", "there is: ?, …", "x", f"archive={path}")

    def test_what_is_no_archive_of_an_image(self):
        path = self.dir / "some"
        for data in (b"", b"garbage" * 1000, gzip.compress(b"garbage" * 1000), os.urandom(3000)):
            path.write_bytes(data)
            self.check_error("invalid", "this is no archive of an image: one of `docker save`", "", f"archive={path}")
        path.write_bytes(tar_of({"etc/passwd": b"root"}))
        self.check_error("invalid", "neither manifest.json, as `docker save` writes it", "", f"archive={path}")
        whole = self.make_archive([(SMALL, ["x:1"])]).read_bytes()
        path.write_bytes(whole[:20000])
        self.check_error("invalid", "the archive is cut short at byte 20000", "", f"archive={path}")
        path.write_bytes(gzip.compress(whole)[:-100])
        self.check_error("invalid", "the compressed archive is cut short", "", f"archive={path}")


class PackedLayouts(Base):
    """A tar of an OCI layout."""

    def make_packed(self, images, top="", change=None, pack=bytes):
        """images: (Image, tag or None). `change` gets the files, by name."""
        files, rows = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}'}, []
        for image, tag in images:
            for blob in (image.manifest, image.config, *image.blobs):
                files[f"blobs/sha256/{sha(blob)}"] = blob
            notes = {"annotations": {"org.opencontainers.image.ref.name": tag}} if tag else {}
            rows.append({"mediaType": OCI_MANIFEST, "digest": f"sha256:{sha(image.manifest)}", "size": len(image.manifest),
                         **notes})
        files["index.json"] = json.dumps({"schemaVersion": 2, "manifests": rows}).encode()
        if change:
            change(files)
        path = self.dir / "layout.tar"
        path.write_bytes(pack(tar_of({top + name: data for name, data in files.items()})))
        return path

    def check_image(self, result, image):
        self.assertEqual(result.code, 0, result.output)
        self.assertEqual([layer["diff"] for layer in result.layers], image.diffs)
        for layer, blob in zip(result.layers, image.blobs):
            if layer["how"] == "came":
                self.assertEqual((self.dir / "out" / layer["number"]).read_bytes(), blob)

    check_error = Archives.check_error

    def test_with_and_without_a_directory_around_it(self):
        for top, pack in (("", bytes), ("./", bytes), ("some/", gzip.compress), ("./some/", bytes)):
            path = self.make_packed([(SMALL, "one")], top, pack=pack)
            result = self.run_tool("pull", "", f"archive={path}")
            self.check_image(result, SMALL)
            self.assertEqual(result.value("manifest"), sha(SMALL.manifest))
            self.check_image(self.run_tool("pull", "one", f"archive={path}"), SMALL)
            result = self.run_tool("pull", "one", f"archive={path}", f"have={SMALL.chains()[0]}")
            self.assertEqual([layer["how"] for layer in result.layers], ["here", "came"])

    def test_the_image_map_knows_it_too(self):
        path = self.make_packed([(SMALL, "one")])
        self.check_image(self.run_tool("pull", "x", f"image=x=docker-archive:{path}:one"), SMALL)

    def test_links_that_want_many_readings(self):
        """Each leads to one that comes before it: that is one reading for each."""
        def link(name, target):
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target.rsplit("/", 1)[-1]
            return info.tobuf()

        def chain(blob, count):
            names = [f"blobs/sha256/{i}-{sha(blob)}" for i in range(count)] + [f"blobs/sha256/{sha(blob)}"]
            return tar_of({names[0]: blob})[:512 + -(-len(blob) // 512) * 512] + b"".join(link(new, old) for old, new in zip(names, names[1:]))

        whole = self.make_packed([(SMALL, None)], change=lambda files: (files.pop(f"blobs/sha256/{sha(SMALL.manifest)}"),
                                                                        files.pop(f"blobs/sha256/{sha(SMALL.config)}")))
        rest, path = whole.read_bytes(), self.dir / "linked.tar"
        path.write_bytes(chain(SMALL.manifest, 8) + chain(SMALL.config, 1) + rest)
        self.check_image(self.run_tool("pull", "", f"archive={path}"), SMALL)
        path.write_bytes(chain(SMALL.manifest, 8) + chain(SMALL.config, 8) + rest)
        result = self.run_tool("pull", "", f"archive={path}")
        self.assertEqual(result.kind, "limit", result.output)
        self.assertIn("the archive was read 16 times", result.error)

    def test_one_of_several(self):
        path = self.make_packed([(SMALL, "one"), (LARGE, "two")])
        self.check_image(self.run_tool("pull", "two", f"archive={path}"), LARGE)
        self.check_error("invalid", "several images in it, say which: one, two", "", f"archive={path}")
        self.check_error("not found", "there is no image 'three' in it; there is: one, two", "three", f"archive={path}")

    def test_what_is_damaged(self):
        layer, config = f"blobs/sha256/{sha(SMALL.blobs[1])}", f"blobs/sha256/{sha(SMALL.config)}"
        manifest = f"blobs/sha256/{sha(SMALL.manifest)}"

        def other(name):
            def change(files):
                files[name] = bytes([files[name][0] ^ 1]) + files[name][1:]
            return change

        for change, text in (
            (other(layer), f"sha256:{sha(SMALL.blobs[1])[:12]}… has another digest or size: it is damaged"),
            (other(config), f"sha256:{sha(SMALL.config)[:12]}… has another digest: it is damaged"),
            (other(manifest), f"sha256:{sha(SMALL.manifest)[:12]}… has another digest: it is damaged"),
            (lambda files: files.update({layer: files[layer] + b"x"}), "has another size than its manifest says"),
            (lambda files: files.pop(layer), "the archive has not all files that its manifest names"),
            (lambda files: files.update({"index.json": b"[]"}), "index is not a JSON object"),
        ):
            self.check_error("invalid", text, "one", f"archive={self.make_packed([(SMALL, 'one')], change=change)}")
        path = self.make_packed([(SMALL, "one")])
        self.check_error("invalid", 'image architecture "amd64" does not match', "one", f"archive={path}", "arch=arm64")
        path.write_bytes(path.read_bytes()[:3000])
        self.check_error("invalid", "cut short", "one", f"archive={path}")


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@unittest.skipUnless(HAS_REGISTRY, NO_REGISTRY)
class Debian(unittest.TestCase):
    """Debian's registry, with images that umoci has made and skopeo has pushed."""

    run_tool = Base.run_tool

    @classmethod
    def setUpClass(cls):
        cls.work = pathlib.Path(tempfile.mkdtemp(prefix="cloister-puller."))
        cls.addClassCleanup(shutil.rmtree, cls.work)
        (cls.work / "policy.json").write_text('{"default":[{"type":"insecureAcceptAnything"}]}')
        layout = cls.work / "layout"
        cls.command("umoci", "init", "--layout", str(layout))
        cls.command("umoci", "new", "--image", f"{layout}:one")
        cls.tars = [tar_of({"etc/a": b"a\n", "big": os.urandom(300_000)}), tar_of({"etc/.wh.a": b"", "b": b"b" * 100_000})]
        for number, data in enumerate(cls.tars):
            (cls.work / f"{number}.tar").write_bytes(data)
            cls.command("umoci", "raw", "add-layer", "--image", f"{layout}:one", str(cls.work / f"{number}.tar"))
        cls.command("umoci", "config", "--image", f"{layout}:one", "--architecture", "amd64", "--config.env", "A=b c")
        cls.layout = layout

    @classmethod
    def command(cls, *words):
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if done.returncode:
            raise AssertionError(f"{' '.join(words)}: {done.stdout}")
        return done.stdout

    def setUp(self):
        self.dir = pathlib.Path(tempfile.mkdtemp(prefix="cloister-puller."))
        self.addCleanup(shutil.rmtree, self.dir)
        (self.dir / "blobs").mkdir()

    def serve(self, auth=""):
        port = free_port()
        (self.dir / "registry.yml").write_text(
            f"version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {self.dir}/registry}}}}\n"
            f'http: {{addr: "127.0.0.1:{port}"}}\n{auth}')
        with open(self.dir / "registry.log", "w", encoding="utf-8") as log:
            server = subprocess.Popen(["docker-registry", "serve", str(self.dir / "registry.yml")], stdout=log, stderr=log)
        self.addCleanup(server.wait)
        self.addCleanup(server.kill)
        for _ in range(200):
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                return f"127.0.0.1:{port}"
            except OSError:
                time.sleep(0.05)
        self.fail((self.dir / "registry.log").read_text())

    def push(self, host, name, *words):
        self.command("skopeo", "--policy", str(self.work / "policy.json"), "copy", "--dest-tls-verify=false", *words,
                     f"oci:{self.layout}:one", f"docker://{host}/{name}")

    def pull(self, host, name, *words):
        return self.run_tool("pull", f"{host}/{name}", f"insecure={host}", *words)

    def check(self, result, unpack):
        self.assertEqual(result.code, 0, result.output)
        self.assertEqual([layer["diff"] for layer in result.layers], [sha(data) for data in self.tars])
        self.assertEqual([unpack((self.dir / "out" / layer["number"]).read_bytes()) for layer in result.layers], self.tars)
        self.assertEqual(result.value("env"), "A=b c")

    def test_oci_and_docker_types(self):
        host = self.serve()
        self.push(host, "team/oci:1")
        self.push(host, "team/docker:1", "--format", "v2s2")
        for name in ("team/oci:1", "team/docker:1"):
            result = self.pull(host, name)
            self.check(result, gzip.decompress)
            raw = self.command("skopeo", "inspect", "--raw", "--tls-verify=false", f"docker://{host}/{name}").encode()
            self.assertEqual(result.value("manifest"), sha(raw))
        missing = self.pull(host, "team/oci:2")
        self.assertIn("the image or tag does not exist in the registry", missing.error)
        missing = self.pull(host, "nowhere/x")
        self.assertEqual(missing.kind, "not found")

    def test_zstd(self):
        host = self.serve()
        plain = self.dir / "plain"
        self.command("skopeo", "--policy", str(self.work / "policy.json"), "copy", "--dest-decompress",
                     f"oci:{self.layout}:one", f"dir:{plain}")
        self.command("skopeo", "--policy", str(self.work / "policy.json"), "copy", "--dest-tls-verify=false", "--format", "oci",
                     "--dest-compress-format", "zstd", f"dir:{plain}", f"docker://{host}/z:1")
        result = self.pull(host, "z:1")
        for number in ("0", "1"):
            self.assertEqual((self.dir / "out" / number).read_bytes()[:4], b"\x28\xb5\x2f\xfd")
        self.assertEqual([layer["diff"] for layer in result.layers], [sha(data) for data in self.tars])

    def test_a_docker_list(self):
        host = self.serve()
        self.push(host, "team/list:one", "--format", "v2s2")
        raw = self.command("skopeo", "inspect", "--raw", "--tls-verify=false", f"docker://{host}/team/list:one").encode()
        body = json.dumps({"schemaVersion": 2, "mediaType": DOCKER_LIST, "manifests": [
            {"mediaType": DOCKER_MANIFEST, "digest": f"sha256:{sha(raw)}", "size": len(raw),
             "platform": {"os": "linux", "architecture": "amd64"}}]}).encode()
        request = urllib.request.Request(f"http://{host}/v2/team/list/manifests/latest", body, {"Content-Type": DOCKER_LIST},
                                         method="PUT")
        with urllib.request.urlopen(request) as answer:
            self.assertEqual(answer.status, 201)
        result = self.pull(host, "team/list")
        self.check(result, gzip.decompress)
        self.assertEqual((result.value("reference"), result.value("manifest")), (sha(body), sha(raw)))

    def test_basic(self):
        # bcrypt of "right"
        (self.dir / "htpasswd").write_text("user:$2b$05$AAAAAAAAAAAAAAAAAAAAA.aeCsId1myXsofEWcl6dc./2MBfLwCey\n")
        host = self.serve(f"auth: {{htpasswd: {{realm: test, path: {self.dir}/htpasswd}}}}\n")
        self.push(host, "team/basic:1", "--dest-creds", "user:right")
        self.check(self.pull(host, "team/basic:1", "user=user", "password=right"), gzip.decompress)
        for words in ((), ("user=user", "password=wrong")):
            result = self.pull(host, "team/basic:1", *words)
            self.assertEqual(result.kind, "denied")
            self.assertIn("access denied to", result.error)

    def test_bearer(self):
        issuer = Issuer(self.dir)
        self.addCleanup(issuer.close)
        host = self.serve(f"auth: {{token: {{realm: 'http://{issuer.host}/token', service: test, issuer: tester, "
                          f"rootcertbundle: {self.dir}/cert.pem}}}}\n")
        self.push(host, "team/bearer:1", "--dest-creds", "user:right")
        words = (f"insecure={issuer.host}", "user=user", "password=right")
        self.check(self.pull(host, "team/bearer:1", *words), gzip.decompress)
        result = self.pull(host, "team/bearer:1", f"insecure={issuer.host}")
        self.assertEqual(result.kind, "denied")
        result = self.pull(host, "team/bearer:1", "user=user", "password=right")  # the issuer is not named
        self.assertIn("may not call", result.error)

    def test_the_layout_itself(self):
        self.check(self.run_tool("pull", "x", f"image=x=oci:{self.layout}:one"), gzip.decompress)

    def test_an_archive_that_skopeo_has_made(self):
        path = self.dir / "saved.tar"
        self.command("skopeo", "--policy", str(self.work / "policy.json"), "copy", f"oci:{self.layout}:one",
                     f"docker-archive:{path}:team/app:1")
        self.check(self.run_tool("pull", "x", f"image=x=docker-archive:{path}:docker.io/team/app:1"), bytes)
        self.check(self.run_tool("pull", "team/app:1", f"archive={path}"), bytes)

    def test_a_tar_that_skopeo_has_made_of_a_layout(self):
        path = self.dir / "layout.tar"
        self.command("skopeo", "--policy", str(self.work / "policy.json"), "copy", f"oci:{self.layout}:one",
                     f"oci-archive:{path}:app:1")
        self.check(self.run_tool("pull", "app:1", f"archive={path}"), gzip.decompress)
        self.check(self.run_tool("pull", "", f"archive={path}"), gzip.decompress)


class Issuer:
    """Gives out tokens for docker-registry, signed by openssl."""

    def __init__(self, directory):
        self.dir = directory
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=test", "-days", "2", "-keyout",
                        str(directory / "key.pem"), "-out", str(directory / "cert.pem")], check=True, stderr=subprocess.DEVNULL)
        self.cert = "".join((directory / "cert.pem").read_text().splitlines()[1:-1])
        issuer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                issuer.handle(self)

            def log_message(self, *args):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.host = f"127.0.0.1:{self.server.server_address[1]}"

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def sign(self, payload):
        def text(data):
            return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

        head = text(json.dumps({"typ": "JWT", "alg": "RS256", "x5c": [self.cert]}).encode())
        signed = f"{head}.{text(json.dumps(payload).encode())}"
        done = subprocess.run(["openssl", "dgst", "-sha256", "-sign", str(self.dir / "key.pem")], input=signed.encode(),
                              stdout=subprocess.PIPE, check=True)
        return f"{signed}.{text(done.stdout)}"

    def handle(self, call):
        fields = urllib.parse.parse_qs(urllib.parse.urlsplit(call.path).query)
        is_user = call.headers.get("Authorization") == "Basic " + base64.b64encode(b"user:right").decode()
        access = []
        for scope in fields.get("scope", []) if is_user else []:
            kind, name, actions = scope.split(":")
            access.append({"type": kind, "name": name, "actions": actions.split(",")})
        now = int(time.time())
        token = self.sign({"iss": "tester", "sub": "user", "aud": fields["service"][0], "exp": now + 300, "nbf": now - 10,
                           "iat": now, "jti": "x", "access": access})
        body = json.dumps({"token": token}).encode()
        call.send_response(200)
        call.send_header("Content-Length", str(len(body)))
        call.end_headers()
        call.wfile.write(body)


if __name__ == "__main__":
    if not HAS_REGISTRY:
        print(NO_REGISTRY)
    unittest.main(verbosity=1)
