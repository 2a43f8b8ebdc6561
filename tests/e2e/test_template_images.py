"""Templates that begin with an image: a registry on this machine, real images, and what E2B's SDKs make of them.

The references are those that people write (ubuntu:22.04, python:3, e2bdev/base); the server's image map leads them to the
registry. What an image has in a sandbox must be what umoci unpacks.
"""

import asyncio
import contextlib
import gzip
import json
import os
import shutil
import subprocess
import threading
import uuid

import pytest
import registry as images
from e2b import AsyncSandbox, AsyncTemplate, BuildException, Sandbox, Template
from server import TEST_DATA, Server, cloister, free_port, wait_for

USER, PASSWORD, OTHER = "reader", "correct-horse", "battery-staple"
GONE = "gone.example/image"  # the image map leads it to where nothing listens

# Every file below these directories: its kind, mode, owner, names, size, time and where it leads; then what is in it.
LOOK = """cd "$0" && find usr srv \\( -type d -printf '%p %y %m %U %G\\n' \\) -o -printf '%p %y %m %U %G %n %s %Ts %l\\n' | sort
find usr srv -type f -exec sha256sum {} + | sort
getcap -r srv usr"""


class Place:
    def __init__(self, server, registry, private, layout):
        self.server, self.registry, self.private, self.layout = server, registry, private, layout
        self.secret = f"{private.host}/team/secret:1"

    def reason(self, name):
        """Why the newest build of that template failed."""
        template = self.server.api("GET", f"/templates/{name}").json
        path = f"/templates/{template['templateID']}/builds/{template['builds'][0]['buildID']}/status"
        status = self.server.api("GET", path).json
        assert status["status"] == "error", status
        return status["reason"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    if os.geteuid() != 0:
        pytest.skip("needs root: a server makes namespaces, mounts and cgroups")
    if missing := images.missing_tools():
        pytest.skip(f"not installed: {', '.join(missing)} (scripts/setup.sh test)")
    home = tmp_path_factory.mktemp("registry")
    with contextlib.ExitStack() as stack:
        registry = images.Registry(home / "open").start()
        stack.callback(registry.stop)
        private = images.Registry(home / "private", USER, PASSWORD).start()
        stack.callback(private.stop)
        layout = images.fill(registry, private, home / "images")
        nobody = f"127.0.0.1:{free_port()}"
        options = ["--registry-insecure", f"{registry.host},{private.host},{nobody}"]
        for name, source in {
            "ubuntu": f"docker://{registry.host}/ubuntu",
            "debian": f"docker://{registry.host}/debian",
            "garbage": f"docker://{registry.host}/garbage",
            "e2bdev/base": f"docker://{registry.host}/base:latest",
            "python:3": f"docker://{registry.host}/zstd/python:3",
            GONE: f"docker://{nobody}/image:latest",
        }.items():
            options += ["--image", f"{name}={source}"]
        data = TEST_DATA.parent / f"{TEST_DATA.name}-images"
        shutil.rmtree(data / "blobs", ignore_errors=True)  # what an earlier run downloaded
        server = Server(data, options)
        server.start_when_free()
        stack.callback(server.stop)
        server.kill_all()
        stack.callback(server.kill_all)
        for name in [name for name in os.environ if name.startswith("E2B_")]:
            del os.environ[name]
        os.environ.update(server.environment())
        yield Place(server, registry, private, layout)


@pytest.fixture
def name(place):
    prefix = f"e2e-{uuid.uuid4().hex[:12]}"
    yield prefix
    place.server.kill_all()
    for row in place.server.api("GET", "/templates").json:
        if any(alias.startswith(prefix) for alias in row["aliases"]):
            place.server.api("DELETE", f"/templates/{row['templateID']}")


def build(template, name):
    lines = []
    Template.build(template, name, cpu_count=1, memory_mb=512, on_build_logs=lines.append)
    return [line.message for line in lines]


def from_line(lines):
    return next(line for line in lines if "[base] FROM " in line)


def says(name, command, **options):
    with Sandbox.create(name, timeout=60) as box:
        return box.commands.run(command, **options).stdout


def test_an_image_is_what_umoci_unpacks(place, name):
    lines = build(Template().skip_cache().from_image("ubuntu:22.04"), name)
    assert from_line(lines).startswith("[base] FROM ubuntu:22.04 ["), lines
    assert sum(line.startswith("Uncompressing layer sha256:") for line in lines) == 3, lines
    assert any(line.startswith("Base Docker image size: ") for line in lines), lines
    order = [next(i for i, line in enumerate(lines) if text in line) for text in ("Layers extracted", "Provisioning")]
    assert order == sorted(order)
    root = place.layout.unpack("full")
    environment = {**os.environ, "LC_ALL": "C", "PATH": f"{os.environ['PATH']}:/usr/sbin:/sbin"}
    want = subprocess.run(["bash", "-c", LOOK, root], env=environment, capture_output=True, text=True, check=True).stdout
    assert "srv/capable cap_net_raw=ep" in want and "srv/setuid f 4755 0 0 1 " in want, want
    assert "srv/gone" not in want and "srv/emptied/old" not in want and "usr/bin/by-link" in want, want
    have = says(name, f"LC_ALL=C bash -c {quoted(LOOK)} /", user="root")
    have_lines, want_lines = have.splitlines(), want.splitlines()
    assert [line for line in have_lines if line not in want_lines] == ["usr/local d 755 0 0"]  # by provision.sh
    assert [line for line in want_lines if line not in have_lines] == []
    same = "test /srv/two -ef /srv/one && test /srv/shared-too -ef /srv/shared && echo same"
    assert says(name, f"id -un; pwd; {same}") == "user\n/home/user\nsame\n"


def test_what_an_image_has_left_is_counted_and_pruned(place, name):
    def ask(*words):
        return json.loads(cloister(*words, "--json", data=place.server.data, stdout=subprocess.PIPE).stdout)

    build(Template().skip_cache().from_image("ubuntu:22.04"), name)
    layers = ask("template", "inspect", name)["layers"]
    assert [layer["origin"] for layer in layers[:4]] == ["image"] * 3 + ["step"], layers
    assert layers[3]["step"] == "FROM ubuntu:22.04" and all(layer["bytes"] > 0 for layer in layers[:3]), layers
    assert ask("template", "disk")["downloadBytes"] > 0
    assert place.server.api("DELETE", f"/templates/{name}").status == 204
    pruned = ask("template", "prune")
    assert pruned["downloads"]["count"] > 0 and pruned["layers"]["count"] >= 4, pruned
    assert ask("template", "disk")["downloadBytes"] == 0 and os.listdir(place.server.data / "blobs") == []
    lines = build(Template().from_image("ubuntu:22.04"), name)  # all of it again
    assert from_line(lines).startswith("[base] FROM ubuntu:22.04 ["), lines
    assert says(name, "id -un") == "user\n"


def quoted(text):
    return "'" + text.replace("'", "'\\''") + "'"


def test_a_second_build_pulls_nothing(place, name):
    recipe = Template().from_image("ubuntu:22.04").run_cmd('echo "$FROM_IMAGE" > ~/n')
    build(recipe, name)
    lines = build(recipe, name)
    assert from_line(lines).startswith("CACHED [base] FROM ubuntu:22.04 ["), lines
    assert any(line.startswith("CACHED [builder 1/") for line in lines), lines
    assert not any("Uncompressing" in line for line in lines), lines
    assert says(name, "cat ~/n") == "yes\n"


def test_layers_can_be_compressed_by_zstd(place, name):
    media, manifest = place.registry.manifest("zstd/python:3")
    kinds = [layer["mediaType"].rsplit("+", 1)[1] for layer in json.loads(manifest)["layers"]]
    assert media == images.OCI_MANIFEST and kinds == ["zstd", "zstd"]
    build(Template().skip_cache().from_python_image("3"), name)
    assert says(name, "cat /srv/zstd /etc/compressed") == "from zstd\nby zstd\n"


def test_of_a_docker_list_the_image_that_fits_is_taken(place, name):
    assert place.registry.manifest("debian:stable")[0] == images.DOCKER_LIST
    lines = build(Template().skip_cache().from_debian_image("stable"), name)
    assert "FROM debian:stable" in from_line(lines), lines
    assert says(name, "cat /srv/architecture") == f"{images.ARCHITECTURE}\n"


def test_the_async_sdk_and_the_base_image(place, name):
    async def run():
        lines = []
        recipe = AsyncTemplate().skip_cache().from_base_image().run_cmd("cat /srv/was-file/inside > ~/n")
        await AsyncTemplate.build(recipe, name, cpu_count=1, memory_mb=512, on_build_logs=lines.append)
        box = await AsyncSandbox.create(name, timeout=60)
        try:
            return [line.message for line in lines], (await box.commands.run("cat ~/n")).stdout
        finally:
            await box.kill()

    lines, text = asyncio.run(run())
    assert "[base] FROM e2bdev/base" in from_line(lines) and text == "inside\n"


def test_a_login_is_used(place, name):
    recipe = Template().skip_cache().from_image(place.secret, username=USER, password=PASSWORD)
    build(recipe, name)
    assert says(name, "cat /srv/was-file/inside") == "inside\n"


def test_what_cannot_be_pulled_fails_at_the_base(place, name):
    denied = f"access denied to '{place.secret}': authentication required or insufficient permissions"
    missing = "not found: the image or tag does not exist in the registry"
    cases = {
        "ubuntu:99.99": f"image 'ubuntu:99.99' {missing}",
        f"{place.registry.host}/no/such:1": f"image '{place.registry.host}/no/such:1' {missing}",
        "debian:theirs": f'image architecture "{images.FOREIGN}" does not match expected "{images.ARCHITECTURE}"',
        "debian:foreign": f"image 'debian:foreign' has no variant for linux/{images.ARCHITECTURE}",
        GONE: f"failed to pull image '{GONE}': the registry's server gave no answer",
        "garbage:bytes": "or this is no tar archive",
        "garbage:diff": "a layer of the image has the sum ",
        "not a reference": "invalid image reference 'not a reference'",
        "127.0.0.1:1/image": "127.0.0.1 port 1, which pulls may not call",
    }
    recipes = [(Template().skip_cache().from_image(image), text) for image, text in cases.items()]
    recipes.append((Template().skip_cache().from_image(place.secret), denied))
    recipes.append((Template().skip_cache().from_image(place.secret, username=USER, password=OTHER), denied))
    for recipe, text in recipes:
        with pytest.raises(BuildException) as raised:
            build(recipe, name)
        reason = place.reason(name)
        assert text in str(raised.value) and text in reason["message"] and reason["step"] == "base", reason
        assert PASSWORD not in reason["message"] and OTHER not in reason["message"]


def test_nobody_gets_a_layer_by_its_sum(place, name):
    build(Template().from_image("ubuntu:22.04"), name)
    config = json.loads(place.registry.manifest("ubuntu:22.04")[1])["config"]["digest"]
    diff = json.loads(place.registry.call("GET", f"/v2/ubuntu/blobs/{config}")[2])["rootfs"]["diff_ids"][0]
    assert (place.server.data / "layers" / diff.removeprefix("sha256:")).is_dir()
    place.registry.put_wrong_image("garbage:stolen", gzip.compress(images.tar_with([images.entry("srv")])), diff)
    with pytest.raises(BuildException, match="a layer of the image has the sum "):
        build(Template().skip_cache().from_image("garbage:stolen"), name)


def test_two_images_of_the_same_layers_at_once(place, name):
    lines = {}

    def run(image, which):
        lines[which] = build(Template().skip_cache().from_image(image), f"{name}-{which}")

    threads = [threading.Thread(target=run, args=row) for row in (("ubuntu:22.04", "a"), ("e2bdev/base", "b"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for which in ("a", "b"):
        assert sum(line.startswith("Uncompressing layer sha256:") for line in lines[which]) == 3, lines
        assert says(f"{name}-{which}", "cat /srv/was-file/inside") == "inside\n"


def test_nothing_stays_of_an_image_that_is_not_fit(place, name):
    layer = images.tar_with([images.entry("srv"), images.entry("srv/no-shell", f"{name}\n")])
    diff = images.digest(layer)
    place.registry.put_wrong_image("garbage:no-shell", gzip.compress(layer), diff)
    with pytest.raises(BuildException, match="failed to provision the image"):
        build(Template().skip_cache().from_image("garbage:no-shell"), name)
    places = [place.server.data / kind / diff.removeprefix("sha256:") for kind in ("snapshots", "layers")]
    assert wait_for(lambda: not any(path.exists() for path in places))


def test_the_javascript_sdk(place, name):
    home = os.environ.get("CLOISTER_E2E_NPM")
    if not home:
        pytest.skip("CLOISTER_E2E_NPM names no directory with the JavaScript SDK: run.py images does")
    script = shutil.copy(images.ROOT / "tests/e2e/test_template_images.mjs", home)  # where node looks for packages
    words = ["node", script, name, place.secret, USER, PASSWORD]
    done = subprocess.run(words, cwd=home, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0 and done.stdout.endswith("done\n"), done.stdout + done.stderr
