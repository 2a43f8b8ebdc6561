"""Templates from a real Debian: mmdebstrap makes a minimal system of Debian's packages, umoci an image of it.

What is missing in it (curl, sudo, ss, pgrep, certificates, the user) is installed by the image's own apt-get, in the sandbox of the
build and through egress, from the mirror that this machine itself uses. So these tests need that mirror, and PyPI for pip.
"""

import concurrent.futures
import contextlib
import ipaddress
import os
import pathlib
import shutil
import socket
import subprocess
import urllib.parse
import uuid

import pytest
import registry as images
from e2b import Sandbox, Template
from server import ROOT, TEST_DATA, Server, build_dir

MIRROR = os.environ.get("CLOISTER_DEBIAN_MIRROR", "http://deb.debian.org/debian")
SUITE = "bookworm"
HOSTS = (urllib.parse.urlsplit(MIRROR).hostname, "pypi.org", "files.pythonhosted.org")
KEPT = ROOT / "build" / "e2e"  # the systems take minutes, so they are made once
pytestmark = pytest.mark.timeout(900)
OWN_ROOTS = pathlib.Path("/usr/local/share/ca-certificates")  # of a machine whose way to PyPI has an authority of its own


def addresses(name):
    """Those that a sandbox may not reach by itself: some machines get at the mirrors by an address of their own network."""
    try:
        found = {row[4][0] for row in socket.getaddrinfo(name, 80, socket.AF_INET)}
    except socket.gaierror:
        return None
    return [address for address in found if not ipaddress.ip_address(address).is_global]


def make_system(name, *packages):
    """A tar of a minimal Debian with these packages."""
    tar = KEPT / f"debian-{SUITE}-{name}.tar"
    if not tar.exists():
        KEPT.mkdir(parents=True, exist_ok=True)
        part = tar.with_suffix(".part.tar")
        include = [f"--include={','.join(packages)}"] if packages else []
        images.run("mmdebstrap", "--variant=minbase", *include, SUITE, part, MIRROR)
        part.rename(tar)
    return tar.read_bytes()


class Place:
    def __init__(self, server, home):
        self.server, self.home = server, home


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    if os.geteuid() != 0:
        pytest.skip("needs root: a server makes namespaces, mounts and cgroups")
    if missing := images.missing_tools() + [name for name in ("mmdebstrap",) if not images.tool(name)]:
        pytest.skip(f"not installed: {', '.join(missing)} (scripts/setup.sh test)")
    own = [addresses(name) for name in HOSTS]
    if None in own:
        pytest.skip("Debian's mirror and PyPI have no address here")
    home = tmp_path_factory.mktemp("debian")
    with contextlib.ExitStack() as stack:
        registry = images.Registry(home / "registry").start()
        stack.callback(registry.stop)
        layout = images.Layout(home)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:  # both wait for the mirror most of the time
            minimal, python = pool.submit(make_system, "minbase"), pool.submit(make_system, "python", "python3-pip")
        registry.push(layout.make("debian", minimal.result(), env=("DEBIAN=real",)), "debian:bookworm")
        registry.push(layout.make("python", python.result()), "python:3")
        shutil.rmtree(layout.path)  # the registry has it
        options = ["--registry-insecure", registry.host]
        for name in ("debian", "python"):
            options += ["--image", f"{name}=docker://{registry.host}/{name}"]
        if allowed := sorted({f"{address}/32" for list_of in own for address in list_of}):
            options += ["--egress-allow", ",".join(allowed)]
        data = TEST_DATA.parent / f"{TEST_DATA.name}-debian"
        server = Server(data, options)
        server.start_when_free()
        stack.callback(server.stop)
        server.kill_all()
        stack.callback(server.kill_all)
        for name in [name for name in os.environ if name.startswith("E2B_")]:
            del os.environ[name]
        os.environ.update(server.environment())
        yield Place(server, home)


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


def check_promises(box):
    """What E2B's templates promise, and what their SDKs do."""
    assert box.commands.run("id -un; pwd; echo $HOME").stdout == "user\n/home/user\n/home/user\n"
    assert box.commands.run("sudo id -un").stdout == "root\n"
    assert box.commands.run("whoami", user="root").stdout == "root\n"
    for command in ("bash --version", "curl --version", "ss --version", "pgrep -V", "test -s /etc/ssl/certs/ca-certificates.crt"):
        assert box.commands.run(command).exit_code == 0
    box.files.write("notes/a.txt", "one\ntwo\n")
    assert box.files.read("/home/user/notes/a.txt") == "one\ntwo\n"
    assert [entry.name for entry in box.files.list("notes")] == ["a.txt"]
    assert box.commands.run("stat -c %U:%a notes/a.txt && wc -l < notes/a.txt").stdout == "user:644\n2\n"
    box.files.rename("notes/a.txt", "notes/b.txt")
    assert box.files.exists("notes/b.txt") and not box.files.exists("notes/a.txt")
    background = box.commands.run("sleep 100", background=True)
    assert background.pid in [process.pid for process in box.commands.list()]
    assert background.kill()


def test_debian(place, name):
    recipe = Template().skip_cache().from_debian_image("bookworm").run_cmd('echo "$DEBIAN" > ~/env')
    lines = build(recipe, name)
    text = "\n".join(lines)
    assert "installing: curl sudo iproute2 procps ca-certificates" in text, text
    assert "warning:" not in text, text
    with Sandbox.create(name, timeout=120) as box:
        check_promises(box)
        assert box.commands.run("cat ~/env; . /etc/os-release; echo $ID").stdout == "real\ndebian\n"
        # apt goes on working, in the sandbox as well as in the next build.
        assert box.commands.run("sudo apt-get update -qq && sudo apt-get install -y -qq tree && tree --version", timeout=300).exit_code == 0
    lines = build(Template().from_template(name).apt_install(["jq"]), f"{name}-jq")
    with Sandbox.create(f"{name}-jq", timeout=60) as box:
        assert box.commands.run("echo '{\"a\": 1}' | jq .a").stdout == "1\n"


def test_python(place, name):
    recipe = Template(file_context_path=str(place.home)).skip_cache().from_python_image("3")
    if roots := list(OWN_ROOTS.glob("*.crt")):
        (place.home / "roots").mkdir()
        for root in roots:
            shutil.copy(root, place.home / "roots")
        recipe = recipe.copy("roots", str(OWN_ROOTS)).run_cmd("update-ca-certificates", user="root")
    lines = build(recipe.set_envs({"PIP_BREAK_SYSTEM_PACKAGES": "1"}).pip_install(["iniconfig"]), name)
    assert any("Successfully installed iniconfig" in line for line in lines), lines
    with Sandbox.create(name, timeout=120) as box:
        check_promises(box)
        assert box.commands.run("python3 -c 'import iniconfig; print(iniconfig.__name__)'").stdout == "iniconfig\n"
        text = box.commands.run("pip install --break-system-packages --user sniffio && python3 -c 'import sniffio'", timeout=300).stdout
        assert "Successfully installed sniffio" in text, text


def test_an_import_of_it(place, name):
    (place.home / name).mkdir()
    layout = images.Layout(place.home / name)
    layout.make("it", make_system("minbase"))
    words = [build_dir() / "cloister", "template", "import", layout.path, "--name", name, "--memory", "512", "--cpu", "1"]
    environment = place.server.environment()
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    with Sandbox.create(name, timeout=60) as box:
        check_promises(box)
