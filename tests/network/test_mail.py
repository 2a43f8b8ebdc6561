"""Mail from inside a sandbox: its names lead to the gate under every policy, and to nothing else."""

import json
import pathlib
import secrets
import time

import pytest
from server import wait_for
from test_inside import POLICIES

E2E = pathlib.Path(__file__).resolve().parents[1] / "e2e"
NAMES = ("http://mail.cloister.internal", "https://api.multimail.dev")
UNKNOWN = "01J" + "A" * 23


def operator(server, method, path, body=None):
    token = (server.data / "admin-token").read_text().strip()
    answer = server.call(method, path, body, {"X-Admin-Token": token, "Content-Type": "application/json"})
    assert answer.status < 300, answer
    return answer.json


def inbox(server, **fields):
    return operator(server, "POST", "/mail/inboxes", {"name": f"n-{secrets.token_hex(6)}", **fields})


def ask(box, url, *options):
    """(status, body) of a request by curl, with the authorities that the sandbox trusts."""
    result = box.run("curl", "--silent", "--show-error", "--max-time", "20", "--write-out", "\n%{http_code}", *options, url)
    assert result.code == 0, result
    body, _, status = result.stdout.rpartition("\n")
    return int(status), body


@pytest.fixture(scope="module", params=POLICIES)
def guest(request, cloister):
    made = cloister.box(**POLICIES[request.param])
    yield made
    made.kill()


def test_names_of_mail_lead_to_the_gate_under_every_policy(guest):
    ids = set()
    for name in NAMES:
        status, body = ask(guest, f"{name}/v1/mailboxes")
        assert status == 200, (name, body)
        (mailbox,) = json.loads(body)["mailboxes"]
        ids.add(mailbox["id"])
    assert len(ids) == 1  # the sandbox's own, by every name
    draft = json.dumps({"to": "x@y.example", "subject": "s", "body": "t"})
    status, body = ask(guest, f"{NAMES[1]}/v1/send", "--json", draft)
    assert status == 202 and json.loads(body)["status"] == "pending_send_approval", body


@pytest.fixture(scope="module")
def box(cloister):
    made = cloister.box(allow_internet_access=False)
    yield made
    made.kill()


def test_two_sandboxes_have_two_inboxes(cloister, box):
    other = cloister.box(allow_internet_access=False)
    try:
        mine, theirs = (json.loads(ask(one, f"{NAMES[0]}/v1/mailboxes")[1])["mailboxes"][0] for one in (box, other))
        assert mine["id"] != theirs["id"] and mine["address"] != theirs["address"]
        foreign, unknown = (ask(box, f"{NAMES[0]}/v1/mailboxes/{name}/inbox") for name in (theirs["id"], UNKNOWN))
        assert foreign == unknown and foreign[0] == 404
    finally:
        other.kill()


def test_keys_of_others_are_refused_inside(cloister, box):
    """Those of another tenant, and those that approve: what approves is never in a sandbox."""
    server = cloister.server
    foreign = inbox(server, tenant=f"t{secrets.token_hex(4)}")
    eyes = operator(server, "POST", "/mail/keys", {"name": "eyes", "scopes": ["oversight"]})["key"]
    for key in (foreign["key"], eyes):
        for name in NAMES:
            status, body = ask(box, f"{name}/v1/mailboxes", "--header", f"Authorization: Bearer {key}")
            assert status in (401, 403), (status, body)
            assert foreign["address"] not in body
    status, _ = ask(box, f"{NAMES[0]}/v1/oversight/pending", "--header", f"Authorization: Bearer {eyes}")
    assert status in (401, 403)
    assert server.call("GET", "/v1/oversight/pending", headers={"Authorization": f"Bearer {eyes}"}).status == 200


def test_a_key_that_nobody_has_is_as_good_as_none(box):
    """Scripts for the services have one in them, whatever it says."""
    header = "Authorization: Bearer mm_live_" + "a" * 43
    with_key, without = (ask(box, f"{NAMES[1]}/v1/mailboxes", *more) for more in (["--header", header], []))
    assert with_key == without and with_key[0] == 200


def test_a_sandbox_bound_to_an_inbox_takes_no_other_key(cloister):
    server = cloister.server
    own, other = inbox(server), inbox(server)
    bound = cloister.box(allow_internet_access=False, metadata={"mail.inbox": own["id"]})
    try:
        draft = json.dumps({"to": "x@y.example", "subject": "s", "body": "t"})
        status, body = ask(bound, f"{NAMES[0]}/v1/send", "--json", draft)
        assert status == 202 and json.loads(body)["mailbox_id"] == own["id"], body
        assert ask(bound, f"{NAMES[0]}/v1/mailboxes/{own['id']}/inbox")[0] == 403  # without its key it only sends
        for key, good in ((own["key"], True), (other["key"], False)):
            status, body = ask(bound, f"{NAMES[1]}/v1/mailboxes", "--header", f"Authorization: Bearer {key}")
            assert (status == 200) is good, (status, body)
            assert other["address"] not in body
    finally:
        bound.kill()


@pytest.mark.parametrize("path", ["/mail/inboxes", "/mail/pending", "/v2/sandboxes", "/sandboxes", "/templates", "/teams"])
def test_names_of_mail_lead_to_nothing_else(cloister, box, path):
    """Not to the operator's routes and not to the API of sandboxes, also with good credentials and other names."""
    token = (cloister.server.data / "admin-token").read_text().strip()
    for name in NAMES:
        for host in ([], ["--header", f"Host: 127.0.0.1:{cloister.server.port}"], ["--header", "Host: api.cloister.localhost"]):
            for header in (f"X-Admin-Token: {token}", f"X-API-Key: {cloister.server.key}"):
                status, body = ask(box, name + path, "--header", header, *host)
                assert status >= 400, (name, path, header, status, body)


def test_other_ports_of_these_names_are_closed(cloister, box):
    for port in (22, 25, 465, 587, 8080, cloister.server.port):
        box.fails("tcp", "mail.cloister.internal", port, "", True)


# ---- sign-up ----


def held_in(server, ids):
    return [row for row in operator(server, "GET", "/mail/pending")["pending"] if row["mailbox_id"] in ids]


def test_what_a_sandbox_makes_by_signing_up_is_bounded_and_gone_with_it(cloister, make_box):
    """The sandbox's own inbox is its account. A copy of the token is nothing outside, and in another sandbox."""
    server, api = cloister.server, "https://api.lobstermail.ai"
    one, other = make_box(allow_internet_access=False), make_box(allow_internet_access=False)
    accounts = [json.loads(ask(one, f"{api}/v1/signup", "--request", "POST")[1]) for _ in range(20)]
    assert all(row == accounts[0] for row in accounts)
    key = ("--header", f"Authorization: Bearer {accounts[0]['token']}")
    own = lobster_inbox(one)
    assert own["id"].removeprefix("ibx_") == accounts[0]["id"].removeprefix("acct_")
    made, refused = [], []
    for _ in range(12):
        status, body = ask(one, f"{api}/v1/inboxes", *key, "--json", "{}")
        (made if status == 201 else refused).append((status, json.loads(body)))
    assert not any(row.get("token") for _, row in made)  # a copy of the sandbox would have it
    assert len(made) == 10 and [status for status, _ in refused] == [429, 429], refused
    listed = json.loads(ask(one, f"{api}/v1/inboxes", *key)[1])["data"]
    assert {row["id"] for row in listed} == {own["id"], *(row["id"] for _, row in made)}
    for _, row in made[:3]:
        draft = json.dumps({"from": row["address"], "to": ["x@y.example"], "subject": "s", "body": {"text": "t"}})
        status, body = ask(one, f"{api}/v1/emails/send", *key, "--json", draft)
        assert (status, json.loads(body)["status"]) == (202, "pending_approval"), body
    ids = {row["id"].removeprefix("ibx_") for row in listed}
    assert len(held_in(server, ids)) == 3
    assert all((server.data / "mail" / name).is_dir() for name in ids)
    # The token elsewhere.
    assert server.call("GET", "/v1/inboxes", headers={"Authorization": key[1].removeprefix("Authorization: ")}).status == 401
    (theirs,) = json.loads(ask(other, f"{api}/v1/inboxes", *key)[1])["data"]
    assert theirs["id"] != own["id"]
    assert ask(other, f"{api}/v1/inboxes", *key, "--json", "{}")[0] == 403
    one.kill()
    assert wait_for(lambda: not any((server.data / "mail" / name).exists() for name in ids), 60)
    assert not held_in(server, ids)
    left = {row["id"] for row in operator(server, "GET", "/mail/inboxes")["inboxes"]}
    assert not left & ids and theirs["id"].removeprefix("ibx_") in left


def sign_up_with_inbox(box):
    """The ids of its own inbox and of one that it has made."""
    api = "https://api.lobstermail.ai"
    account = json.loads(ask(box, f"{api}/v1/signup", "--request", "POST")[1])
    key = ("--header", f"Authorization: Bearer {account['token']}")
    assert ask(box, f"{api}/v1/inboxes", *key, "--json", "{}")[0] == 201
    return {row["id"].removeprefix("ibx_") for row in json.loads(ask(box, f"{api}/v1/inboxes", *key)[1])["data"]}


def test_a_sandbox_that_ends_while_the_server_is_down_leaves_no_inbox(cloister, make_box):
    """A paused one keeps its own."""
    server = cloister.server
    ends, sleeps = make_box(allow_internet_access=False), make_box(allow_internet_access=False)
    gone, kept = sign_up_with_inbox(ends), sign_up_with_inbox(sleeps)
    assert len(gone) == len(kept) == 2
    assert server.api("POST", f"/sandboxes/{sleeps.id}/pause").status == 204
    assert server.api("POST", f"/sandboxes/{ends.id}/timeout", {"timeout": 5}).status == 204
    server.stop()
    time.sleep(6)  # past its deadline
    server.start()
    assert wait_for(lambda: not any((server.data / "mail" / name).exists() for name in gone), 60)
    assert all((server.data / "mail" / name).is_dir() for name in kept)
    left = {row["id"] for row in operator(server, "GET", "/mail/inboxes")["inboxes"]}
    assert kept <= left and not gone & left


def test_a_bound_sandbox_has_no_account(cloister, make_box):
    bound = make_box(allow_internet_access=False, metadata={"mail.inbox": inbox(cloister.server)["id"]})
    status, body = ask(bound, "https://api.lobstermail.ai/v1/signup", "--request", "POST")
    assert status == 403 and "mail.inbox" in json.loads(body)["message"], body


# ---- WebSocket ----

# Subscribes to what it is told to, sends a message to itself, and prints all that it hears, or the refusal.
LISTEN = """
import json, ssl, sys, urllib.request
from websocket import Closed, Refused, WebSocket

url, key, ids, address = sys.argv[1], sys.argv[2], sys.argv[3].split(), sys.argv[4]
scheme, _, host = url.partition("://")
tls = ssl.create_default_context() if scheme == "wss" else None
headers = {"Authorization": "Bearer " + key} if key else {}
try:
    socket = WebSocket(host, 443 if tls else 80, "/v1/ws", headers, tls)
    said = [socket.receive()]
    socket.send(type="subscribe", id="one", inbox_ids=ids)
    said += socket.until("subscribed")
    if address:
        draft = json.dumps({"to": address, "subject": "live " + url, "body": "text"}).encode()
        urllib.request.urlopen(urllib.request.Request(sys.argv[5] + "/v1/send", draft, {"Content-Type": "application/json"}))
        said += socket.until("event")
    socket.send(type="ping")
    said += socket.until("pong")
except Refused as answer:
    said = [{"type": "refused", "status": answer.status, "body": json.loads(answer.body)}]
except Closed as end:
    said.append({"type": "closed", "status": end.status})
print(json.dumps(said))
"""
FEEDS = ("ws://mail.cloister.internal", "wss://api.lobstermail.ai")


def listen(box, url, ids, address="", key=""):
    box.write("/tmp/websocket.py", (E2E / "websocket.py").read_bytes())
    box.write("/tmp/listen.py", LISTEN.encode())
    result = box.run("python3", "/tmp/listen.py", url, key, " ".join(ids), address, NAMES[0])
    assert result.code == 0, result
    return json.loads(result.stdout)


def lobster_inbox(box):
    (row,) = json.loads(ask(box, f"{NAMES[0]}/v1/inboxes")[1])["data"]
    return row


@pytest.mark.parametrize("url", FEEDS)
def test_a_websocket_from_inside_hears_the_sandboxs_own_inbox(cloister, box, url):
    """In clear to the name inside, and by TLS that egress ends; without a key, as with the rest of the API."""
    own = lobster_inbox(box)
    other = cloister.box(allow_internet_access=False)
    try:
        theirs = lobster_inbox(other)
    finally:
        other.kill()
    said = listen(box, url, [own["id"], theirs["id"], f"ibx_{UNKNOWN}"], own["address"])
    assert [row["type"] for row in said] == ["authenticated", "error", "error", "subscribed", "event", "pong"], said
    assert said[1] == said[2] and said[1]["code"] == "not_found"
    assert said[3]["inbox_ids"] == [own["id"]]
    assert said[4]["event_type"] == "oversight.pending" and said[4]["inbox_id"] == own["id"]


def account_of(server):
    return server.call("POST", "/v1/signup", {}, {"Content-Type": "application/json"}).json["token"]


def test_a_websocket_from_inside_hears_what_its_key_reaches(cloister, box):
    """With a key it is the key's inboxes, and the sandbox's own is one of others; a key that nobody has is none."""
    own = lobster_inbox(box)["id"]
    for url in FEEDS:
        said = listen(box, url, [own], key=account_of(cloister.server))
        assert [row["type"] for row in said] == ["authenticated", "error", "subscribed", "pong"], said
        assert said[1]["code"] == "not_found" and said[2]["inbox_ids"] == []
        said = listen(box, url, [own], key="lm_sk_live_" + "a" * 43)
        assert [row["type"] for row in said] == ["authenticated", "subscribed", "pong"], said


def test_a_websocket_of_a_bound_sandbox_needs_the_key_to_read(cloister):
    """Without it such a sandbox only sends, and another key is refused: an answer with a code, and no silence."""
    own = inbox(cloister.server)
    bound = cloister.box(allow_internet_access=False, metadata={"mail.inbox": own["id"]})
    try:
        for url in FEEDS:
            (said,) = listen(bound, url, [f"ibx_{own['id']}"])
            assert (said["type"], said["status"], said["body"]["error"]) == ("refused", 403, "insufficient_tier"), said
            (said,) = listen(bound, url, [f"ibx_{own['id']}"], key=account_of(cloister.server))
            assert (said["type"], said["status"], said["body"]["error"]) == ("refused", 401, "authentication_error"), said
    finally:
        bound.kill()
