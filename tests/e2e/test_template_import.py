"""`cloister template import`: images in files, made by umoci and skopeo, become templates of a server that runs.

The command is a client: it gets the server's address and a key from the environment, and nothing of its data directory.
"""

import contextlib
import gzip
import http.client
import json
import os
import shutil
import signal
import subprocess
import tarfile
import uuid

import pytest
import registry as images
from e2b import Sandbox
from server import TEST_DATA, Server, build_dir, wait_for

ENV = ("FROM_IMAGE=yes", "PATH=/usr/bin:/bin:/usr/sbin")
LEAST_TOOLS = ("skopeo", "umoci", "getcap", "find")


class Place:
    def __init__(self, server, layout, home):
        self.server, self.layout, self.home = server, layout, home

    def save(self, kind, file, *tags):
        """A file by skopeo: `kind` is docker-archive or oci-archive; tags are (of the layout, in the archive)."""
        policy = self.home / "policy.json"
        policy.write_text('{"default": [{"type": "insecureAcceptAnything"}]}')
        for tag, name in tags:
            images.run("skopeo", "--policy", policy, "copy", f"oci:{self.layout.path}:{tag}", f"{kind}:{file}:{name}")
        return file

    def run(self, *words, env=None):
        command = [str(build_dir() / "cloister"), "template", "import", *map(str, words)]
        return subprocess.run(command, env={**self.server.environment(), **(env or {})}, capture_output=True, text=True, check=False, timeout=120)

    def make(self, *words):
        done = self.run(*words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    def refuse(self, *words, code=2):
        done = self.run(*words)
        assert done.returncode == code and not done.stdout, done.stdout + done.stderr
        return done.stderr


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    if os.geteuid() != 0:
        pytest.skip("needs root: a server makes namespaces, mounts and cgroups")
    if missing := [name for name in LEAST_TOOLS if not images.tool(name)]:
        pytest.skip(f"not installed: {', '.join(missing)} (scripts/setup.sh test)")
    home = tmp_path_factory.mktemp("import")
    images.make_tree(home / "tree")
    layout = images.Layout(home)
    system = images.tar_of(home / "tree")
    layout.make("full", system, images.tar_with(images.LOWER), images.tar_with(images.UPPER), env=ENV)
    layout.make("small", system, images.tar_with([images.entry("srv"), images.entry("srv/small", "small\n")]))
    layout.make("theirs", images.tar_with([images.entry("srv")]), architecture=images.FOREIGN)
    with contextlib.ExitStack() as stack:
        server = Server(TEST_DATA.parent / f"{TEST_DATA.name}-import")
        shutil.rmtree(server.data / "store", ignore_errors=True)  # what an earlier run has uploaded and built
        server.start_when_free()
        stack.callback(server.stop)
        server.kill_all()
        stack.callback(server.kill_all)
        for name in [name for name in os.environ if name.startswith("E2B_")]:
            del os.environ[name]
        os.environ.update(server.environment())
        yield Place(server, layout, home)


@pytest.fixture
def name(place):
    prefix = f"e2e-{uuid.uuid4().hex[:12]}"
    yield prefix
    place.server.kill_all()
    for row in place.server.api("GET", "/templates").json:
        if any(alias.startswith(prefix) for alias in row["aliases"]):
            place.server.api("DELETE", f"/templates/{row['templateID']}")


def says(name, command, **options):
    with Sandbox.create(name, timeout=60) as box:
        return box.commands.run(command, **options).stdout


def test_an_archive_of_docker_save(place, name):
    file = place.save("docker-archive", place.home / f"{name}.tar", ("full", "team/app:1"))
    done = place.make(file, "--cpu", "1", "--memory", "512")
    assert done.stdout == f"{name}\n"  # the file's own name
    for text in (f"as the template '{name}'", "[base] FROM ARCHIVE ", "Uncompressing layer sha256:", "Layers extracted",
                 "Provisioning", f"sandbox create {name}\n"):
        assert text in done.stderr, done.stderr
    text = says(name, "id -un; pwd; cat /srv/was-file/inside; test -e /srv/gone || echo gone")
    assert text == "user\n/home/user\ninside\ngone\n"
    row = next(row for row in place.server.api("GET", "/templates").json if name in row["aliases"])
    assert (row["cpuCount"], row["memoryMB"]) == (1, 512)


def test_the_same_archive_again_unpacks_nothing(place, name):
    file = place.save("docker-archive", place.home / f"{name}.tar", ("full", "team/app:1"))
    place.make(file)
    done = place.make(file, "--name", f"{name}-2:v2", "--json")
    made = json.loads(done.stdout)
    assert made["name"] == f"{name}-2:v2" and made["templateID"] and made["buildID"]
    assert "The server has the archive already." in done.stderr and "CACHED [base] FROM ARCHIVE " in done.stderr
    assert "Uncompressing" not in done.stderr
    assert says(f"{name}-2:v2", "cat /srv/was-file/inside") == "inside\n"


@pytest.mark.parametrize("kind", ["directory", "tar", "tar.gz", "tar.zst", "oci-archive", "in a directory"])
def test_a_layout(place, name, kind):
    file = place.home / f"{name}-file"
    if kind == "directory":
        file = place.layout.path
    elif kind == "oci-archive":
        place.save("oci-archive", file, ("small", "small"))
    else:
        subprocess.run(["tar", "-cf", file, "-C", *([place.layout.path, "."] if kind.startswith("tar") else [place.home, "layout"])], check=True)
        if kind == "tar.gz":
            file.write_bytes(gzip.compress(file.read_bytes(), 1))
        elif kind == "tar.zst":
            if not images.tool("zstd"):
                pytest.skip("zstd is not installed")
            subprocess.run(["zstd", "-q", "--rm", "-o", f"{file}.zst", file], check=True)
            file = file.with_name(f"{file.name}.zst")
    done = place.make(file, "--name", name, "--image", "small")
    assert done.stdout == f"{name}\n"
    assert says(name, "cat /srv/small") == "small\n"


def test_what_cannot_be_imported(place, name):
    odd = place.home / name
    odd.write_bytes(b"not an archive\n" * 1000)
    assert "this is no archive of an image: one of `docker save` or a tar of an OCI layout is needed" in place.refuse(odd)
    with tarfile.open(odd, "w") as tar:
        tar.add(__file__)
    assert "the archive is of no image: it has neither manifest.json" in place.refuse(odd)
    layout = place.layout.path
    assert "there are several images in it, say which: full, small, theirs" in place.refuse(layout, "--name", name)
    text = place.refuse(layout, "--name", name, "--image", "other")
    assert "there is no image 'other' in it; there is: full, small, theirs" in text
    text = place.refuse(layout, "--name", name, "--image", "theirs")
    assert f'image architecture "{images.FOREIGN}" does not match expected "{images.ARCHITECTURE}"' in text
    saved = place.save("docker-archive", place.home / f"{name}.tar", ("small", "a:1"))
    assert "in it; there is: docker.io/library/a:1" in place.refuse(saved, "--image", "b")
    whole = saved.read_bytes()
    saved.write_bytes(whole[: len(whole) // 2])
    assert "cut short" in place.refuse(saved)
    saved.write_bytes(whole.replace(b"small\n\0", b"SMALL\n\0"))
    text = place.refuse(saved)
    assert "failed to unpack layer sha256:" in text and "a layer of the image has the sum " in text
    # Nothing that failed is a template.
    with pytest.raises(Exception, match="not found|does not exist|404"):
        Sandbox.create(name, timeout=10)


def test_a_layout_with_a_damaged_layer(place, name):
    copy = place.home / f"{name}-layout"
    shutil.copytree(place.layout.path, copy)
    index = json.loads((copy / "index.json").read_text())
    row = next(row for row in index["manifests"] if row["annotations"]["org.opencontainers.image.ref.name"] == "small")
    manifest = json.loads((copy / "blobs/sha256" / row["digest"].split(":")[1]).read_text())
    layer = copy / "blobs/sha256" / manifest["layers"][1]["digest"].split(":")[1]
    data = bytearray(layer.read_bytes())
    data[-5] ^= 1
    layer.write_bytes(data)
    text = place.refuse(copy, "--name", name, "--image", "small")
    assert f"the file for sha256:{layer.name[:12]}… has another digest or size: it is damaged" in text
    layer.unlink()
    assert "the archive has not all files that its manifest names" in place.refuse(copy, "--name", name, "--image", "small")


def test_what_the_command_refuses_itself(place, name):
    nowhere = place.home / "nowhere"
    assert "No such file" in place.refuse(nowhere, code=4)
    assert "the directory is no OCI layout: it has no index.json" in place.refuse(place.home)
    large = place.home / f"{name}-large"
    with open(large, "wb") as file:
        file.truncate((5 << 30) + 1)
    assert "an upload may have at most 5120" in place.refuse(large, code=6)
    assert "--memory needs a number" in place.refuse(place.layout.path, "--name", name, "--memory", "much")
    assert "CPU count must be 1 or an even number" in place.refuse(place.layout.path, "--name", name, "--cpu", "3")
    done = place.run(place.layout.path, "--name", name, env={"E2B_API_KEY": "e2b_" + "0" * 40})
    assert done.returncode == 3, done.stderr


def test_an_upload_that_is_cut_leaves_nothing(place, name):
    template = place.server.api("POST", "/v3/templates", {"name": name}).json
    digest = "ab" * 32
    link = place.server.api("GET", f"/templates/{template['templateID']}/files/{digest}").json["url"]
    connection = http.client.HTTPConnection("127.0.0.1", place.server.port)
    connection.putrequest("PUT", link.split(str(place.server.port), 1)[1])
    connection.putheader("Content-Length", str(10_000_000))
    connection.endheaders(b"x" * 1_000_000)
    connection.close()
    uploads = place.server.data / "store" / "uploads"
    assert wait_for(lambda: not [file for file in uploads.iterdir() if file.name.startswith(".") or digest in file.name])
    path = f"/v2/templates/{template['templateID']}/builds/{template['buildID']}"
    assert place.server.api("POST", path, {"fromArchive": digest}).status == 202
    status = lambda: place.server.api("GET", f"{path.removeprefix('/v2')}/status").json  # noqa: E731
    assert wait_for(lambda: status()["status"] == "error")
    assert status()["reason"]["message"] == "the archive is not here: upload it again"


def test_an_interrupt_cancels_the_build(place, name):
    slow = images.entry("usr/bin/apt-get", "#!/bin/sh\nsleep 100\n", mode=0o755)  # which provisioning runs
    place.layout.make(name, images.tar_of(place.home / "tree"), images.tar_with([slow]))
    command = [str(build_dir() / "cloister"), "template", "import", place.layout.path, "--name", name, "--image", name]
    with subprocess.Popen(command, env=place.server.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if "Provisioning" in line:
                process.send_signal(signal.SIGINT)
                break
        rest = process.stderr.read()
        assert process.wait(30) == 130 and "interrupted; the build is cancelled" in rest, rest
    template = place.server.api("GET", f"/templates/{name}").json
    path = f"/templates/{template['templateID']}/builds/{template['builds'][0]['buildID']}/status"
    assert wait_for(lambda: place.server.api("GET", path).json["status"] == "error")
    assert wait_for(lambda: not place.server.running())


def test_another_team_does_not_get_at_an_upload(place, name):
    file = place.save("docker-archive", place.home / f"{name}.tar", ("small", "a:1"))
    place.make(file)
    data = str(place.server.data)
    program = str(build_dir() / "cloister")
    subprocess.run([program, "team", "create", name, "--data", data], check=True, capture_output=True)
    try:
        key = subprocess.run([program, "key", "create", name, "--team", name, "--data", data], check=True, capture_output=True, text=True)
        done = place.run(file, env={"E2B_API_KEY": key.stdout.strip()})
        assert done.returncode == 0 and "has the archive already" not in done.stderr and "CACHED" not in done.stderr, done.stderr
    finally:
        subprocess.run([program, "team", "delete", name, "--force", "--data", data], check=True, capture_output=True)
