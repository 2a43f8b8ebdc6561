"""pip, npm, git and apt-get in a sandbox: they install through egress, and without internet access they fail at once.

The servers have the public names of the real ones. The programs are told of the tests' authority and nothing else.
"Within a second" is tested by what the programs did, not by a clock: no question and no connection arrived outside, and
the program has not tried again.
"""

import pytest

from world import HOSTS

OFF = {"allow_internet_access": False}
APT = (
    "echo 'deb [trusted=yes] http://deb.debian.org/tiny ./' >/tmp/tiny.list && "
    "sudo apt-get {options} -o Dir::Etc::sourcelist=/tmp/tiny.list -o Dir::Etc::sourceparts=- update && "
    "sudo apt-get {options} -o Dir::Etc::sourcelist=/tmp/tiny.list -o Dir::Etc::sourceparts=- install -y tiny"
)
# program, what installs, what shows the result, the result
INSTALLS = [
    ("pip", "pip install tiny", "python3 -c 'import tiny; print(tiny.answer)'", "42"),
    ("npm", "mkdir -p /tmp/app && cd /tmp/app && npm install tiny", "cd /tmp/app && node -p 'require(\"tiny\")'", "44"),
    ("git", "rm -rf /tmp/clone && git clone https://github.com/tiny/tiny.git /tmp/clone", "cat /tmp/clone/answer", "45"),
    ("apt-get", APT.format(options="-q"), "cat /usr/share/tiny/answer", "43"),
]


def trust(box):
    return {"PIP_CERT": box.ca, "NODE_EXTRA_CA_CERTS": box.ca, "GIT_SSL_CAINFO": box.ca, "SSL_CERT_FILE": box.ca}


@pytest.mark.parametrize("program, install, show, answer", INSTALLS, ids=[row[0] for row in INSTALLS])
def test_it_installs_through_egress(cloister, hosts, program, install, show, answer):
    box = cloister.shared_box(metadata={"for": "packages"})
    hosts.forget()
    result = box.run(install, env=trust(box))
    assert result.code == 0, result
    assert box.run(show).stdout.strip() == answer
    assert hosts.seen("request", to=HOSTS["packages"])


@pytest.mark.parametrize("program, install, show, answer", INSTALLS, ids=[row[0] for row in INSTALLS])
def test_it_installs_where_only_its_names_are_allowed(cloister, hosts, program, install, show, answer):
    names = ["pypi.org", "files.pythonhosted.org", "*.npmjs.org", "github.com", "deb.debian.org"]
    box = cloister.shared_box(network={"allowOut": names, "denyOut": ["0.0.0.0/0"]}, metadata={"for": "names"})
    result = box.run(install, env=trust(box))
    assert result.code == 0, result
    assert box.run(show).stdout.strip() == answer


WHY = ("internet-access-is-off-for-this-sandbox.invalid",)
# What each says is the program's own text about a name that is not resolved, or a connection that is refused.
FAILS = [
    ("pip", "pip install tiny", WHY),
    ("pip as root", "sudo pip install tiny", WHY),
    ("npm", "cd /tmp && npm install tiny", WHY),
    ("git", "git clone https://github.com/tiny/tiny.git /tmp/clone", WHY),
    ("apt-get", APT.format(options="-q"), WHY),
    ("curl", "curl -sS https://one.test/", ("Could not resolve host", "refused", "reset")),
    ("curl by address", f"curl -sS http://{HOSTS['one']}/", ("Failed to connect", "refused", "reset", "Empty reply")),
    ("node", "node -e \"fetch('https://one.test').catch(e => { throw e.cause })\"", ("ENOTFOUND", "ECONNREFUSED")),
]


@pytest.mark.parametrize("program, command, says", FAILS, ids=[row[0] for row in FAILS])
def test_without_internet_access_it_fails_at_once_and_says_why(cloister, hosts, program, command, says):
    box = cloister.shared_box(**OFF)
    hosts.forget()
    result = box.run(command, timeout=20)
    text = result.stdout + result.stderr
    assert result.code != 0 and any(word in text for word in says), result
    # pip says why only when it tries again; it does so once, at once.
    assert text.count("Retrying") <= 1, result
    assert not hosts.seen(), "something left"


def test_without_internet_access_what_was_uploaded_can_be_installed(cloister):
    import packages

    box = cloister.shared_box(**OFF)
    box.run("mkdir -p /tmp/wheels")
    box.write("/tmp/wheels/tiny-1.0-py3-none-any.whl", packages.wheel())
    assert box.run("pip install --no-index --find-links /tmp/wheels tiny").code == 0
