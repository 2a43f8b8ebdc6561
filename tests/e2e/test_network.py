"""What programs in a sandbox without a network see: an error at once, not retries for a minute.

Before, npm took 71 seconds, pip 8, apt-get 7. The timeouts of these commands are what is tested.
"""

import io
import zipfile

import pytest

from e2b import CommandExitException, PtySize, Sandbox

TIMEOUT_S = 5  # of a command that takes half a second on an idle machine
NO_NETWORK = "This sandbox has no network"


@pytest.fixture(scope="module")
def box(server):
    with Sandbox.create("base", timeout=300) as sandbox:
        yield sandbox


def fails(box, command, **options):
    """All that it said. A timeout is another exception, and hence a failed test."""
    with pytest.raises(CommandExitException) as caught:
        box.commands.run(command, timeout=TIMEOUT_S, **options)
    return caught.value.stdout + caught.value.stderr


@pytest.mark.parametrize(
    "command, says",
    [
        ("pip install left-pad", "Name or service not known"),
        ("sudo pip install left-pad", "Name or service not known"),
        ("sudo su - user -c 'pip install left-pad'", "Name or service not known"),
        ("env -i pip install left-pad", "Name or service not known"),
        ("npm install left-pad", "ENOTFOUND"),
        ("env -i npm install left-pad", "ENOTFOUND"),
        ("sudo npm install --global left-pad", "ENOTFOUND"),
        ("npx --yes left-pad", "ENOTFOUND"),
        ("curl -sS https://example.com", "Could not resolve host: example.com"),
        ("git clone https://example.com/a/b", "Could not resolve host: example.com"),
        ("git clone git@example.com:a/b", "Could not resolve hostname example.com"),
        ("sudo apt-get update", "Could not resolve"),
        ("node -e \"fetch('https://example.com').catch(e => { throw e.cause })\"", "ENOTFOUND example.com"),
    ],
)
def test_what_needs_the_network_fails_at_once(box, command, says):
    assert says in fails(box, command)


def test_names_of_the_sandbox_itself_resolve(box):
    code = "import socket; print(socket.gethostbyname('localhost'), socket.gethostbyname(socket.gethostname()))"
    assert box.commands.run(f'python3 -c "{code}"').stdout == "127.0.0.1 127.0.0.1\n"


def test_the_callers_variables_win(box):
    found = box.commands.run("npm config get fetch-retries; npm_config_fetch_retries=3 npm config get fetch-retries")
    assert found.stdout == "0\n3\n"


def test_the_files_that_one_looks_at_say_so(box):
    for path in ("/etc/motd", "/etc/resolv.conf", "/etc/nsswitch.conf", "/etc/pip.conf", "/etc/npmrc"):
        assert NO_NETWORK in box.files.read(path)
    rest = box.commands.run("getent passwd user").stdout
    assert rest.startswith("user:x:1000:"), rest


def wheel(name):
    """The smallest one that pip installs."""
    files = {
        f"{name}.py": "answer = 42\n",
        f"{name}-1.0.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{name}-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: hand\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{name}-1.0.dist-info/RECORD": "",
    }
    room = io.BytesIO()
    with zipfile.ZipFile(room, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return room.getvalue()


def test_what_was_uploaded_can_be_installed(box):
    box.files.write("/tmp/wheels/tiny-1.0-py3-none-any.whl", wheel("tiny"))
    box.commands.run("pip install --no-index --find-links /tmp/wheels tiny")
    assert box.commands.run("python3 -c 'import tiny; print(tiny.answer)'").stdout == "42\n"
    box.files.write(
        "/tmp/deb/DEBIAN/control", "Package: tiny\nVersion: 1\nArchitecture: all\nMaintainer: a\nDescription: b\n"
    )
    box.files.write("/tmp/deb/usr/share/tiny/answer", "43\n")
    box.commands.run("dpkg-deb --build /tmp/deb /tmp/tiny.deb && sudo apt-get install -y /tmp/tiny.deb")
    assert box.files.read("/usr/share/tiny/answer") == "43\n"
    box.files.write("/tmp/npm/package.json", '{"name": "tiny", "version": "1.0.0"}')
    box.files.write("/tmp/npm/index.js", "module.exports = 44\n")
    box.commands.run(
        "cd /tmp && npm pack ./npm && mkdir app && cd app && npm install ../tiny-1.0.0.tgz", timeout=TIMEOUT_S
    )
    assert box.commands.run("node -p 'require(\"tiny\")'", cwd="/tmp/app").stdout == "44\n"


def test_a_terminal_says_so_first(box):
    said = []
    terminal = box.pty.create(PtySize(rows=24, cols=80))
    box.pty.send_stdin(terminal.pid, b"exit\n")
    terminal.wait(on_pty=lambda data: said.append(bytes(data)))
    assert NO_NETWORK in b"".join(said).decode(), said


def test_a_command_does_not(box):
    """Nor does a login shell inside it: frameworks wrap each command in `sh -lc`, and read what it prints."""
    for command in ("true", "sh -lc true", "bash -lc true", "sudo su - user -c true"):
        result = box.commands.run(command)
        assert (result.stdout, result.stderr) == ("", ""), command
