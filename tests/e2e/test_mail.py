"""Mail as a whole, by published scripts: code in a sandbox sends, a person decides by command line or page, mail arrives."""

import base64
import json
import pathlib
import re
import secrets
import subprocess
import sys
import tempfile
import time
import urllib.parse

import pytest

e2b_code_interpreter = pytest.importorskip("e2b_code_interpreter")

from e2b_code_interpreter import Sandbox  # noqa: E402
from run import WORK  # noqa: E402
from server import build_dir, wait_for  # noqa: E402

sys.path.append(str(pathlib.Path(__file__).parents[1] / "network"))

import browser  # noqa: E402

FULL = "code-interpreter-v1"
HELD = "pending_send_approval"
CONFLICT = 5  # what the command line ends with: it is decided already, or it is not the one that was shown

# As published for MultiMail; the key and the mailbox are filled in, and what is said.
SEND_SCRIPT = """
import requests

resp = requests.post(
    "https://api.multimail.dev/v1/send",
    headers={{"Authorization": "Bearer {key}"}},
    json={{
        "mailbox_id": "{mailbox}",
        "to": "{to}",
        "subject": "{subject}",
        "body": "{body}",
    }},
)
data = resp.json()
print(data["status"])
print(data["id"])
"""

INBOX_SCRIPT = """
import requests

resp = requests.get(
    "https://api.multimail.dev/v1/mailboxes/{mailbox}/inbox",
    headers={{"Authorization": "Bearer {key}"}},
    params={{"limit": 5}},
)
for message in resp.json()["messages"]:
    print(message["from"], "|", message["subject"], "|", message["date"])
"""

LOOP_SCRIPT = """
import requests

seen = {{}}
for number in range(130):
    resp = requests.post(
        "https://api.multimail.dev/v1/send",
        headers={{"Authorization": "Bearer {key}"}},
        json={{"mailbox_id": "{mailbox}", "to": "{to}", "subject": f"loop {{number}}", "body": "again"}},
    )
    seen[resp.status_code] = seen.get(resp.status_code, 0) + 1
    if resp.status_code == 429:
        print("retry after", resp.headers.get("Retry-After"))
        break
print(seen)
"""


class Command:
    """`cloister mail …`, as a person types it."""

    def __init__(self, server):
        self.server = server

    def run(self, *words, code=0):
        result = subprocess.run(
            [str(build_dir() / "cloister"), "mail", *words, "--data", str(self.server.data)],
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
            stdin=subprocess.DEVNULL,
        )
        assert result.returncode == code, result
        return result

    def json(self, *words):
        return json.loads(self.run(*words, "--json").stdout)

    def inbox(self, **options):
        """Each has an address that was never used: the data directory stays between runs."""
        more = [word for name, value in options.items() for word in (f"--{name}", value)]
        return self.json("inbox", "create", f"t-{secrets.token_hex(6)}", *more)


@pytest.fixture(scope="module")
def command(server):
    return Command(server)


def install_requests(box):
    """As the script does. Where PyPI is a mirror whose authority only the host trusts, the host gets the wheels."""
    if box.commands.run("pip install requests || echo failed", timeout=300).stdout.splitlines()[-1] != "failed":
        return
    with tempfile.TemporaryDirectory() as wheels:
        get = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--platform=any"]
        subprocess.run(
            [*get, f"--dest={wheels}", "requests", "urllib3", "idna", "certifi", "charset-normalizer"], check=True
        )
        for wheel in pathlib.Path(wheels).iterdir():
            box.files.write(f"/tmp/wheels/{wheel.name}", wheel.read_bytes())
    box.commands.run("pip install --no-index --find-links /tmp/wheels requests", timeout=300)


@pytest.fixture(scope="module")
def box(server):
    """As the script begins. The full template has requests; without it, they come from PyPI."""
    names = [name for row in server.api("GET", "/templates").json for name in row.get("aliases") or row.get("names") or []]
    made = Sandbox.create(FULL if FULL in names else "base", timeout=900)
    try:
        install_requests(made)
        yield made
    finally:
        made.kill()


def output(box, script, **filled):
    result = box.run_code(script.format(**filled))
    assert not result.error, result.error
    return "".join(result.logs.stdout).splitlines()


def send(box, sender, to, subject="Hello", body="From a sandbox"):
    status, message = output(
        box, SEND_SCRIPT, key=sender["key"], mailbox=sender["id"], to=to["address"], subject=subject, body=body
    )
    assert status == HELD
    return message


def listed(box, inbox):
    return [line.split(" | ") for line in output(box, INBOX_SCRIPT, key=inbox["key"], mailbox=inbox["id"])]


def subjects(box, inbox):
    return [subject for _, subject, _ in listed(box, inbox)]


def test_a_tenant_is_made_by_an_inbox_aloud_and_by_a_key_never(command):
    tenant, typo = (f"t{secrets.token_hex(4)}" for _ in range(2))
    refused = command.run("key", "create", "eyes", "--tenant", tenant, code=4)  # not found
    assert f"there is no tenant '{tenant}'" in refused.stderr and "mail inbox list" in refused.stderr
    assert command.inbox(tenant=tenant)["made_tenant"] is True
    assert command.inbox(tenant=tenant)["made_tenant"] is False
    assert command.inbox()["made_tenant"] is False
    name = f"t-{secrets.token_hex(6)}"
    assert f"Made tenant {typo}," in command.run("inbox", "create", name, "--tenant", typo).stderr
    assert "Made tenant" not in command.run("inbox", "create", f"{name}2", "--tenant", typo).stderr
    assert command.json("key", "create", "eyes", "--tenant", tenant)["tenant"] == tenant
    unknown = f"u{secrets.token_hex(4)}"
    command.run("key", "create", "eyes", "--tenant", unknown, code=4)
    command.run("oversight", "x@y.example", "--tenant", unknown, code=4)
    assert not [row for row in command.json("key", "list")["keys"] if row["tenant"] == unknown]


def test_the_published_scripts_and_a_person_at_the_command_line(box, command):
    sender, other = command.inbox(), command.inbox()
    assert sender["key"].startswith("mm_live_")
    message = send(box, sender, other)
    assert subjects(box, other) == []
    (row,) = [row for row in command.json("pending")["pending"] if row["mailbox_id"] == sender["id"]]
    assert row["id"] == message and row["subject"] == "Hello"
    shown = command.run("show", message).stdout
    for text in (sender["address"], other["address"], "Hello", "From a sandbox", "/approve/"):
        assert text in shown, shown
    assert command.json("show", message)["content_sha256"] == row["content_sha256"]
    command.run("approve", message, "--sha256", row["content_sha256"], "--yes")
    assert wait_for(lambda: subjects(box, other) == ["Hello"], 20)
    ((author, _, date),) = listed(box, other)
    assert sender["address"] in author
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", date)
    assert command.run("approve", message, "--yes", code=CONFLICT).stderr  # spent


def test_a_rejected_message_never_arrives(box, command):
    sender, other = command.inbox(), command.inbox()
    message = send(box, sender, other, "Rejected")
    command.run("reject", message, "--reason", "not this one", "--yes")
    later = send(box, sender, other, "Approved", "another text")
    command.run("approve", later, "--yes")
    assert wait_for(lambda: subjects(box, other) == ["Approved"], 20)
    time.sleep(1)
    assert subjects(box, other) == ["Approved"]
    command.run("approve", message, "--yes", code=CONFLICT)


def test_the_bytes_that_were_seen_are_the_ones_that_are_approved(box, command):
    sender, other = command.inbox(), command.inbox()
    message = send(box, sender, other)
    assert command.run("approve", message, "--sha256", "0" * 64, "--yes", code=CONFLICT).stderr
    assert [row["id"] for row in command.json("pending")["pending"] if row["mailbox_id"] == sender["id"]] == [message]
    assert subjects(box, other) == []


def test_a_loop_of_sends_meets_a_limit(box, command):
    sender, other = command.inbox(), command.inbox()
    retry, seen = output(box, LOOP_SCRIPT, key=sender["key"], mailbox=sender["id"], to=other["address"])
    counts = {int(status): int(count) for status, count in re.findall(r"(\d+): (\d+)", seen)}
    assert counts[429] == 1 and 1 <= counts[202] <= 20 and set(counts) == {202, 429}, counts
    assert int(retry.split()[-1]) >= 1
    assert len([row for row in command.json("pending")["pending"] if row["mailbox_id"] == sender["id"]]) == counts[202]
    # The other inbox is not slowed down by that.
    send(box, other, sender, "Not limited")


# ---- inside, without a key ----


def test_a_sandbox_has_an_inbox_of_its_own_without_any_key(server, command):
    script = """
import json, urllib.request
def call(path, body=None):
    request = urllib.request.Request("http://mail.cloister.internal/v1" + path,
        None if body is None else json.dumps(body).encode(), {"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(request, timeout=60))
(mailbox,) = call("/mailboxes")["mailboxes"]
sent = call("/send", {"mailbox_id": mailbox["id"], "to": "TO", "subject": "Own", "body": "x"})
print(mailbox["id"], sent["status"], sent["id"])
"""
    other = command.inbox()
    boxes = [Sandbox.create("base", timeout=120) for _ in range(2)]
    try:
        rows = []
        for one in boxes:
            result = one.run_code(script.replace("TO", other["address"]))
            assert not result.error, result.error
            rows.append("".join(result.logs.stdout).split())
    finally:
        for one in boxes:
            one.kill()
    (first, *held), (second, *_) = rows
    assert first != second and held[0] == HELD
    command.run("approve", held[1], "--yes")
    headers = {"Authorization": f"Bearer {other['key']}"}
    path = f"/v1/mailboxes/{other['id']}/inbox"
    assert wait_for(lambda: server.call("GET", path, headers=headers).json["messages"], 20)


def test_a_key_from_outside_opens_nothing_else_inside(box, command):
    """A foreign inbox's id with a good key of another inbox: as from outside."""
    one, two = command.inbox(), command.inbox()
    script = """
import requests
for mailbox in ({foreign!r}, "01JAAAAAAAAAAAAAAAAAAAAAAA"):
    resp = requests.get("https://api.multimail.dev/v1/mailboxes/" + mailbox + "/inbox",
                        headers={{"Authorization": "Bearer {key}"}})
    print(resp.status_code, resp.text.strip())
"""
    foreign, unknown = output(box, script, key=one["key"], foreign=two["id"])
    assert foreign == unknown and foreign.startswith("404 ")


# ---- the page ----


def page(server, path, form=None, headers=None):
    body = urllib.parse.urlencode(form).encode() if form else None
    more = {"Content-Type": "application/x-www-form-urlencoded"} if form else {}
    return server.call("POST" if form else "GET", path, body, {**more, **(headers or {})})


def form_of(answer):
    """The hidden fields of the page's form, as a browser would send them."""
    fields = {}
    for tag in re.findall(r"<input[^>]*>", answer.body.decode()):
        attributes = dict(re.findall(r'([\w-]+)="([^"]*)"', tag))
        if attributes.get("type") == "hidden":
            fields[attributes["name"]] = attributes.get("value", "")
    return fields


def test_the_page_decides_once_and_only_by_its_form(server, box, command):
    sender, other = command.inbox(), command.inbox()
    message = send(box, sender, other, "By page")
    shown = command.run("show", message).stdout
    path = re.search(r"/approve/\S+", shown).group()
    for _ in range(3):  # a prefetch decides nothing and spends nothing
        seen = page(server, path)
        assert seen.status == 200
    for text in (sender["address"], other["address"], "By page", "From a sandbox"):
        assert text in seen.body.decode()
    assert "<script" not in seen.body.decode()
    fields = form_of(seen)
    assert page(server, path, {"decision": "approve"}).status >= 400  # without the page's own fields
    assert subjects(box, other) == []
    done = page(server, path, {**fields, "decision": "approve"})
    assert done.status == 200, done
    assert wait_for(lambda: subjects(box, other) == ["By page"], 20)
    assert page(server, path, {**fields, "decision": "approve"}).status >= 400
    assert page(server, path).status >= 400


@pytest.fixture
def chromium(server):
    try:
        made = browser.Browser(server.data / "tls" / "ca.pem")
    except browser.Missing as why:
        pytest.skip(str(why))
    yield made
    made.stop()


class Page:
    """In the browser, with scripts switched off; read and clicked as a person does."""

    def __init__(self, chromium, url):
        self.browser = chromium
        self.session, _ = chromium.open("about:blank")
        self.call("Emulation.setScriptExecutionDisabled", value=True)
        why = self.call("Page.navigate", url=url).get("errorText")
        assert not why, (url, why)

    def call(self, method, **params):
        return self.browser.call(method, self.session, **params)

    def root(self):
        return self.call("DOM.getDocument")["root"]["nodeId"]

    def html(self):
        """Nothing while one document takes the place of another."""
        try:
            return self.call("DOM.getOuterHTML", nodeId=self.root())["outerHTML"]
        except RuntimeError:
            return ""

    def click(self, selector):
        node = self.call("DOM.querySelector", nodeId=self.root(), selector=selector)["nodeId"]
        self.call("DOM.scrollIntoViewIfNeeded", nodeId=node)
        corners = self.call("DOM.getBoxModel", nodeId=node)["model"]["content"]
        x, y = (corners[0] + corners[4]) / 2, (corners[1] + corners[5]) / 2
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def picture(self, name):
        """Kept below build/, for whoever wants to look."""
        data = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        (WORK / name).write_bytes(base64.b64decode(data))


@pytest.mark.parametrize("decision", ["approve", "reject"])
def test_a_person_decides_in_a_browser_without_scripts(server, box, command, chromium, decision):
    sender, other = command.inbox(), command.inbox()
    message = send(box, sender, other, f"To {decision}", "Seen in a browser & <b>as it is</b>")
    path = re.search(r"/approve/\S+", command.run("show", message).stdout).group()
    shown = Page(chromium, server.url + path)
    assert wait_for(lambda: "Seen in a browser &amp; " in shown.html(), 20)
    shown.picture(f"mail-page-{decision}.png")
    shown.click(f'button[value="{decision}"]')
    assert wait_for(lambda: "<main" in (text := shown.html()) and "<form" not in text, 20)
    shown.picture(f"mail-page-{decision}-done.png")
    later = send(box, sender, other, "Later", "and another")
    command.run("approve", later, "--yes")
    want = ["Later", "To approve"] if decision == "approve" else ["Later"]
    assert wait_for(lambda: sorted(subjects(box, other)) == want, 20), subjects(box, other)
