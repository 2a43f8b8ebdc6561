"""Isolation of inboxes: every route of both services and of the operator, every MCP tool, the WebSocket and every link that
works without a key, with every foreign credential.

The routes are read from the tables in src/api, and the tools are asked for, so that new ones are tried, too; one that
this file cannot try fails it. Each call is made twice: with ids of the victim, and with ids of the same form that do
not exist. The answers must not differ. Needs no SDK."""

import base64
import contextlib
import json
import os
import pathlib
import re
import secrets
import signal
import sqlite3
import time
import urllib.parse

import pytest
from server import ROOT, wait_for
from websocket import Closed, Refused, WebSocket

ROUTE = re.compile(r'\b(?:MAIL_ROUTE|MAIL_NO_ROUTE|OPERATOR)\(\s*(GET|POST|PUT|PATCH|DELETE),\s*"([^"]+)"')
ANY_ROUTE = re.compile(r"^ +(?:MAIL_ROUTE|MAIL_NO_ROUTE|OPERATOR)\(", re.MULTILINE)
OWN_BODY = re.compile(r"/(send|decide)$")  # the body names the inbox or the message
WEBHOOK = "https://hooks.example/x"


def routes(*files):
    found = [row for file in files for row in ROUTE.findall((ROOT / "src" / "api" / file).read_text())]
    assert found
    return list(dict.fromkeys(found))


MULTIMAIL = routes("mail_multimail.c")
LOBSTERMAIL = routes("mail_lobstermail.c")
OPERATOR = routes("mail_operator.c")


MCP = routes("mcp.c")
# Not tried like the others, for a reason:
OTHERWISE = {
    ("POST", "/v1/signup"),  # makes an account of one's own, for everybody
    ("GET", "/v1/ws"),  # "WebSocket" below
    ("POST", "/mcp"),  # "MCP" below
}
NOBODYS = {"name", "index", "domain", "what", "slug", "provider"}  # parts of paths that belong to no inbox
TOKENS = [  # "links" below
    ("GET", "/v1/files/{token}"),
    ("GET", "/approve/{token}"),
    ("GET", "/approve/{token}/attachments/{index}"),
    ("POST", "/approve/{token}"),
    ("GET", "/v1/approve/{token}"),
    ("GET", "/v1/approve/{token}/attachments/{index}"),
    ("POST", "/v1/approve/{token}"),
    ("GET", "/v1/unsubscribe/{token}"),
    ("POST", "/v1/unsubscribe/{token}"),
]


def test_the_tables_are_found():
    assert len(MULTIMAIL) > 50 and len(LOBSTERMAIL) > 15 and len(OPERATOR) > 20
    rows = {file.name: len(ANY_ROUTE.findall(file.read_text())) for file in (ROOT / "src" / "api").glob("*.c")}
    known = {"mail_multimail.c": MULTIMAIL, "mail_lobstermail.c": LOBSTERMAIL, "mail_operator.c": OPERATOR, "mcp.c": MCP}
    assert {name: count for name, count in rows.items() if count} == {name: len(table) for name, table in known.items()}


def test_every_route_is_tried(world):
    """A new route, or a new part of a path, needs a row or an id here."""
    everywhere = {*MULTIMAIL, *LOBSTERMAIL, *OPERATOR, *MCP}
    tried = {row for ids in (world.multimail_ids, world.lobstermail_ids) for row in everywhere if filled(row[1], ids)[0]}
    tried |= {row for row in OPERATOR if filled(row[1], operator_ids(world))[0]}
    assert everywhere - tried - OTHERWISE == set(TOKENS)
    assert OTHERWISE <= everywhere


class World:
    """A victim in each dialect, and everybody who must not get at them."""

    def __init__(self, server):
        self.server = server
        self.inboxes = []
        self.token = (server.data / "admin-token").read_text().strip()
        self.words = {name: f"{name}{secrets.token_hex(6)}" for name in ("subject", "body", "contact", "allowed")}
        other_tenant = f"t{secrets.token_hex(4)}"
        self.victim = self.inbox()
        self.neighbour = self.inbox()
        self.stranger = self.inbox(tenant=other_tenant)
        self.account, self.lobster = self.signup()
        self.other_account, self.other_lobster = self.signup()
        self.fill_victim()
        self.credentials = {
            "an inbox of the same tenant": self.neighbour["key"],
            "an inbox of another tenant": self.stranger["key"],
            "an approver of another tenant": self.operator("POST", "/mail/keys", {"name": "eyes", "tenant": other_tenant})["key"],
            "another account": self.other_account,
            "an inbox of another account": self.other_lobster["token"],
            "the key for sandboxes": server.key,
            "the admin token": self.token,
            "a key that does not exist": "mm_live_" + "a" * 43,
            "a token that does not exist": "lm_sk_live_" + "a" * 43,
            "half a key": self.victim["key"][:30],
            "nothing": None,
        }

    # ---- making it ----

    def operator(self, method, path, body=None):
        answer = self.server.call(method, path, body, {"X-Admin-Token": self.token, "Content-Type": "application/json"})
        assert answer.status < 300, answer
        return answer.json

    def inbox(self, **fields):
        self.inboxes.append(self.operator("POST", "/mail/inboxes", {"name": f"m-{secrets.token_hex(6)}", **fields}))
        return self.inboxes[-1]

    def end(self):
        """The data directory stays between runs, and what is held would fill the lists of other tests."""
        for inbox in self.inboxes:
            answer = self.server.call("DELETE", f"/mail/inboxes/{inbox['id']}", headers={"X-Admin-Token": self.token})
            assert answer.status in (200, 404), answer  # 404: a test has done it

    def call(self, key, method, path, body=None, ok=True):
        headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        for _ in range(20):
            answer = self.server.call(method, path, body, headers)
            if answer.status != 429 or int(answer.headers.get("retry-after", "99")) > 3:
                break
            time.sleep(1)
        assert not ok or answer.status < 300, answer
        return answer

    def signup(self):
        token = self.call(None, "POST", "/v1/signup", {}).json["token"]
        inbox = self.call(token, "POST", "/v1/inboxes", {"localPart": f"l-{secrets.token_hex(6)}"}).json
        return token, inbox

    def with_code(self, method, path, body):
        """The first call asks for a code, the second uses it."""
        key = self.victim["key"]
        answer = self.call(key, method, path, body)
        if answer.status == 202:
            codes = [row for row in self.operator("GET", "/mail/codes")["codes"] if row["inbox"] == self.victim["id"]]
            code = max(codes, key=lambda row: row["created_at"])["code"]
            answer = self.call(key, method, path, {**body, "approval_code": code})
        return answer.json

    def deliver(self, sender, to, subject, body):
        file = {"name": "a.txt", "content_base64": base64.b64encode(body.encode()).decode(), "content_type": "text/plain"}
        draft = {"to": to, "subject": subject, "body": body, "attachments": [file]}
        sent = self.call(sender["key"], "POST", "/v1/send", draft).json
        self.operator("POST", f"/mail/messages/{sent['id']}/decide", {"action": "approve"})

    def fill_victim(self):
        one, key, words = self.victim, self.victim["key"], self.words
        for to in (one["address"], self.lobster["address"]):
            self.deliver(one, to, words["subject"], words["body"])
        (row,) = wait_for(lambda: self.call(key, "GET", f"/v1/mailboxes/{one['id']}/inbox").json["messages"], 20)
        path = f"/v1/inboxes/{self.lobster['id']}/emails"
        (lobster_row,) = wait_for(lambda: self.call(self.account, "GET", path).json["data"], 20)
        held = self.call(
            key, "POST", "/v1/send", {"to": "x@y.example", "subject": words["subject"], "body": words["body"]}
        ).json
        contact = self.call(key, "POST", "/v1/contacts", {"name": words["contact"], "email": f"{words['contact']}@y.example"}).json
        allowed = self.operator("POST", f"/mail/inboxes/{one['id']}/allow", {"pattern": f"{words['allowed']}@y.example"})
        webhook = self.with_code("POST", "/v1/webhooks", {"url": WEBHOOK, "events": ["message.received"]})
        spare = self.with_code("POST", "/v1/api-keys", {"name": "spare", "scopes": ["read"]})
        lobster_hook = self.call(self.account, "POST", "/v1/webhooks", {"url": WEBHOOK, "events": ["email.received"]}).json
        self.multimail_ids = {
            "id": one["id"], "email": row["id"], "held": held["id"], "thread": row["thread_id"], "name": "a.txt", "index": "0", "key": spare["id"],
            "webhook": webhook["id"], "contact": contact["id"], "entry": allowed["id"], "address": one["address"],
            "domain": "dom_1", "what": "portal", "slug": "foreign", "provider": "x",
        }  # fmt: skip
        self.lobstermail_ids = {
            "id": self.lobster["id"], "email": lobster_row["id"], "held": held["id"], "thread": lobster_row["threadId"], "index": "0",
            "webhook": lobster_hook["id"], "address": self.lobster["address"],
            "domain": "dom_1", "what": "portal", "slug": "foreign", "provider": "x",
        }  # fmt: skip

    # ---- looking at it ----

    def state(self):
        """What the victims have, as they see it themselves."""
        one = self.victim["id"]
        seen = [
            self.call(self.victim["key"], "GET", path).body
            for path in (
                f"/v1/mailboxes/{one}", f"/v1/mailboxes/{one}/emails", f"/v1/mailboxes/{one}/allowlist", "/v1/contacts",
                "/v1/webhooks", "/v1/api-keys", f"/v1/mailboxes/{one}/emails/{self.multimail_ids['email']}/tags",
            )
        ]  # fmt: skip
        lobster = f"/v1/inboxes/{self.lobster['id']}"
        seen += [self.call(self.account, "GET", path).body for path in (lobster, f"{lobster}/emails", "/v1/webhooks")]
        return [re.sub(rb'"(last_used_at|lastUsedAt)":[^,}]*', b"", body) for body in seen]

    def secrets(self):
        return [*self.words.values(), self.victim["address"], self.lobster["address"]]


@pytest.fixture(scope="module")
def world(server):
    made = World(server)
    yield made
    made.end()


@pytest.fixture(autouse=True)
def nothing_has_changed(request):
    if "world" not in request.fixturenames:
        yield
        return
    world = request.getfixturevalue("world")
    before = world.state()
    yield
    assert world.state() == before


def unknown(text, seed):
    """An id of the same form that nobody has: the same prefix, and other characters of the same alphabet."""
    if "@" in text:
        return "m-000000000000@" + text.partition("@")[2]
    prefix, mark, rest = text.rpartition("_")
    if len(rest) < 20:
        return text  # "a.txt", "0"
    return f"{prefix}{mark}01J" + "".join("0123456789ABCDEFGHJKMNPQRSTVWXYZ"[(seed + 7 * i) % 32] for i in range(len(rest) - 3))


def body_for(ids):
    """Every field that any route takes; each takes what it knows."""
    return {
        "mailbox_id": ids["id"], "inbox_id": ids["id"], "inboxId": ids["id"], "from": ids["address"], "email_id": ids["held"], "to": ["x@y.example"],
        "subject": "foreign", "body": "foreign", "markdown": "foreign", "tags": {"foreign": "yes"}, "action": "approve",
        "display_name": "foreign", "displayName": "foreign", "oversight_mode": "read_only", "mode": "autonomous",
        "target_mode": "autonomous", "code": "AAA-AAA", "pattern": "*@y.example", "name": "foreign", "scopes": ["read"],
        "url": WEBHOOK, "events": ["message.received"], "send_at": "2030-01-01T00:00:00Z", "enabled": True, "key": "foreign", "email": "x@y.example", "address_local": "foreign",
    }  # fmt: skip


def filled(pattern, ids):
    """None if a part of the path is not an id of ours."""
    names = re.findall(r"{(\w+)}", pattern)
    if any(name not in ids for name in names):
        return None, names
    if "decide" in pattern or "cancel" in pattern or "schedule" in pattern or "pending/" in pattern:
        ids = {**ids, "email": ids["held"]}
    return re.sub(r"{(\w+)}", lambda match: ids[match[1]], pattern), names


def plain(answer, ids):
    """An answer without what is new in each."""
    text = re.sub(r'"requestId":\s*"[^"]*"', "", answer.body.decode(errors="replace"))
    for value in sorted(ids.values(), key=len, reverse=True):
        if len(value) > 20:
            text = text.replace(value, "ID")
    return answer.status, text


def try_route(world, credential, method, pattern, ids):
    """What is wrong; nothing, if all is refused alike."""
    key = world.credentials[credential]
    nobody = {name: unknown(value, number) for number, (name, value) in enumerate(ids.items())}
    path, names = filled(pattern, ids)
    if path is None:
        return []
    wrong, results = [], []
    for mine in (ids, nobody):
        target = filled(pattern, mine)[0]
        # A list may be asked for the inbox of somebody else, too.
        more = f"?mailbox_id={mine['id']}&mailbox={mine['id']}&inboxId={mine['id']}&q=subject" if method == "GET" else ""
        answer = world.call(key, method, target + more, None if method == "GET" else body_for(mine), ok=False)
        results.append(plain(answer, mine))
        text = answer.body.decode(errors="replace").replace(target, "")  # "no route" repeats what was asked for
        wrong += [f"{credential}: {method} {pattern}: shows {word}" for word in world.secrets() if word in text]
    foreign, missing = results
    must_fail = [name for name in names if name not in NOBODYS] or (OWN_BODY.search(pattern) and method == "POST")
    if must_fail and foreign[0] < 400:
        wrong.append(f"{credential}: {method} {pattern}: {foreign}")
    if (must_fail or foreign[0] >= 400) and foreign != missing and 429 not in (foreign[0], missing[0]):
        wrong.append(f"{credential}: {method} {pattern}: {foreign} for what exists, {missing} for what does not")
    if foreign[0] >= 500 and foreign[0] != 501:
        wrong.append(f"{credential}: {method} {pattern}: {foreign}")
    return wrong


CREDENTIALS = [
    "an inbox of the same tenant", "an inbox of another tenant", "an approver of another tenant", "another account",
    "an inbox of another account", "the key for sandboxes", "the admin token", "a key that does not exist",
    "a token that does not exist", "half a key", "nothing",
]  # fmt: skip


def test_all_credentials_are_tried(world):
    assert list(world.credentials) == CREDENTIALS


@pytest.mark.parametrize("credential", CREDENTIALS)
def test_routes_of_the_services_refuse_foreign_credentials_alike(world, credential):
    wrong = []
    for table in (MULTIMAIL, LOBSTERMAIL):
        for method, pattern in table:
            for ids in (world.multimail_ids, world.lobstermail_ids):
                if (method, pattern) in OTHERWISE:
                    continue
                wrong += try_route(world, credential, method, pattern, ids)
    assert not wrong, "\n".join(sorted(set(wrong)))


def operator_ids(world):
    ids = {**world.multimail_ids, "inbox": world.victim["id"], "message": world.multimail_ids["held"], "tenant": "default"}
    return {**ids, "grant": unknown(ids["id"], 3)}


@pytest.mark.parametrize("credential", [name for name in CREDENTIALS if name != "the admin token"])
def test_routes_of_the_operator_are_the_operators(world, credential):
    ids = operator_ids(world)
    seen = set()
    for key in (world.credentials[credential], world.victim["key"]):
        for method, pattern in OPERATOR:
            path, _ = filled(pattern, ids)
            assert path, pattern
            answer = world.call(key, method, path, None if method == "GET" else body_for(ids), ok=False)
            assert answer.status in (401, 403), (credential, method, pattern, answer)
            seen.add((answer.status, answer.body))
    assert len(seen) == 1, seen


def test_the_token_of_the_operator_reads_nothing_that_is_not_held(world):
    """Each GET of the operator, with ids of the victim's received message."""
    ids = {**world.multimail_ids, "inbox": world.victim["id"], "message": world.multimail_ids["email"], "tenant": "default"}
    for method, pattern in OPERATOR:
        path, _ = filled(pattern, ids)
        if method == "GET" and path and pattern != "/mail/pending":
            answer = world.server.call("GET", path, headers={"X-Admin-Token": world.token})
            text = answer.body.decode()
            assert not [word for name, word in world.words.items() if name != "allowed" and word in text], (pattern, answer)


# ---- MCP ----


def rpc(world, key, method, params):
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    headers = {
        "Content-Type": "application/json",
        "Accept": "application/json, text/event-stream",
        **({"Authorization": f"Bearer {key}"} if key else {}),
    }
    return world.server.call("POST", "/mcp", message, headers)


def tools(world, key):
    return rpc(world, key, "tools/list", {}).json["result"]["tools"]


def arguments_for(tool, ids):
    values = {
        **body_for(ids), "thread_id": ids["thread"], "contact_id": ids.get("contact", ids["id"]), "key_id": ids.get("key", ids["id"]),
        "webhook_id": ids["webhook"], "entry_id": ids.get("entry", ids["id"]), "filename": "a.txt", "timeout_seconds": 1, "timeout": 1,
        "q": "subject", "query": "", "body_text": "foreign", "address_local_part": "foreign",
    }  # fmt: skip
    if tool["name"] not in ("decide_email", "cancel_message", "edit_scheduled_email"):
        values["email_id"] = ids["email"]
    return {name: values[name] for name in tool["inputSchema"]["properties"] if name in values and name != "approval_code"}


@pytest.mark.parametrize("credential", CREDENTIALS[:5])
def test_tools_refuse_foreign_ids_alike(world, credential):
    key, wrong = world.credentials[credential], []
    offered = tools(world, key)
    assert offered
    for tool in offered:
        for ids in (world.multimail_ids, world.lobstermail_ids):
            nobody = {name: unknown(value, number) for number, (name, value) in enumerate(ids.items())}
            results = []
            for mine in (ids, nobody):
                answer = rpc(world, key, "tools/call", {"name": tool["name"], "arguments": arguments_for(tool, mine)})
                results.append(plain(answer, mine))
                text = answer.body.decode(errors="replace")
                wrong += [f"{tool['name']}: shows {word}" for word in world.secrets() if word in text]
            foreign, missing = results
            named = [name for name in tool["inputSchema"]["properties"] if name.endswith("_id") or name == "inboxId"]
            if named and foreign != missing:
                wrong.append(f"{tool['name']}: {foreign} for what exists, {missing} for what does not")
            # A list of what waits is empty for inboxes that this approver does not have.
            is_empty = tool["name"] == "list_pending" and '"text":"[]"' in foreign[1]
            if named and not is_empty and '"isError":true' not in foreign[1].replace(" ", ""):
                wrong.append(f"{tool['name']}: {foreign}")
    assert not wrong, "\n".join(sorted(set(wrong)))


@pytest.mark.parametrize("credential", CREDENTIALS[5:])
def test_there_are_no_tools_without_a_key_of_mail(world, credential):
    seen = {
        (answer.status, answer.body)
        for method, params in (("initialize", {}), ("tools/list", {}), ("tools/call", {"name": "list_mailboxes", "arguments": {}}))
        for answer in [rpc(world, world.credentials[credential], method, params)]
    }
    ((status, _),) = seen
    assert status == 401


# ---- what differs by scope ----


def test_a_key_that_sends_never_approves_and_one_that_approves_never_reads(world):
    held, one = world.multimail_ids["held"], world.victim["id"]
    for path, body in (
        (f"/v1/emails/{held}/decide", {"action": "approve"}),
        ("/v1/oversight/decide", {"email_id": held, "action": "approve"}),
    ):
        assert world.call(world.victim["key"], "POST", path, body, ok=False).status == 403
    assert world.call(world.victim["key"], "GET", "/v1/oversight/pending", ok=False).status == 403
    eyes = world.operator("POST", "/mail/keys", {"name": "eyes", "scopes": ["oversight"]})["key"]
    assert held in world.call(eyes, "GET", f"/v1/oversight/pending?mailbox_id={one}").body.decode()
    email = world.multimail_ids["email"]
    for path in (f"/v1/mailboxes/{one}/emails", f"/v1/mailboxes/{one}/emails/{email}", f"/v1/emails/{email}"):
        answer = world.call(eyes, "GET", path, ok=False)
        assert answer.status == 403, answer
        assert not [word for word in world.words.values() if word in json.dumps(answer.json)]


def test_the_token_of_an_inbox_makes_no_inboxes(world):
    """Otherwise each new one could make a hundred more."""
    answer = world.call(world.lobster["token"], "POST", "/v1/inboxes", {}, ok=False)
    assert answer.status == 403, answer
    assert len(world.call(world.account, "GET", "/v1/inboxes").json["data"]) == 1


# ---- WebSocket ----


def ways(key):
    """How a client can send a key with a handshake: (query, headers)."""
    if key is None:
        return [("", {})]
    return [
        (f"?token={urllib.parse.quote(key)}", {}),
        ("", {"Authorization": f"Bearer {key}"}),
        ("", {"X-API-Key": key}),
    ]


def dial(world, way):
    query, headers = way
    return WebSocket("127.0.0.1", world.server.port, f"/v1/ws{query}", headers)


def handshake(world, way):
    """(status, body) of a refusal without what is new in each; 101 if there is none."""
    for _ in range(20):
        try:
            dial(world, way).close()
            return 101, ""
        except Refused as answer:
            if answer.status != 429:
                return answer.status, re.sub(rb'"requestId":\s*"[^"]*"', b"", answer.body)
        time.sleep(1)
    raise AssertionError("always 429")


@contextlib.contextmanager
def feed(world, key):
    """An open WebSocket, past its greeting."""
    socket = dial(world, ways(key)[0])
    try:
        assert socket.receive() == {"type": "authenticated"}
        yield socket
    finally:
        socket.close()


def subscribe(socket, *ids):
    """What the server says, up to and with "subscribed"; ids that were asked for are replaced by their number."""
    socket.send(type="subscribe", id="req", inbox_ids=list(ids))
    text = json.dumps(socket.until("subscribed"))
    for number, one in enumerate(ids):
        text = text.replace(one, f"ID {number}")
    return json.loads(text)


LISTENERS = ("another account", "an inbox of another account")


@pytest.mark.parametrize("credential", CREDENTIALS)
def test_the_websocket_opens_for_keys_of_its_service_only(world, credential):
    """A key of the other service is refused in the same words whether anybody has it or not, and so are all that are none."""
    for way, bad in zip(ways(world.credentials[credential]), ways("lm_sk_live_" + "b" * 43)):
        got = handshake(world, way)
        if credential in LISTENERS:
            assert got[0] == 101
        elif (world.credentials[credential] or "").startswith("mm_"):
            nobodys = ways("mm_live_" + "b" * 43)[ways(world.credentials[credential]).index(way)]
            assert got == handshake(world, nobodys) and got[0] == 404
        elif credential == "nothing":
            assert got[0] == 401
        else:
            assert got == handshake(world, bad) and got[0] == 401


@pytest.mark.parametrize("credential", LISTENERS)
def test_a_foreign_inbox_is_subscribed_to_like_one_that_does_not_exist(world, credential):
    with feed(world, world.credentials[credential]) as socket:
        mine = world.other_lobster["id"]
        assert subscribe(socket, mine) == [{"type": "subscribed", "id": "req", "inbox_ids": ["ID 0"]}]
        for ids in (world.lobstermail_ids, world.multimail_ids):
            foreign, missing = (subscribe(socket, one) for one in (ids["id"], unknown(ids["id"], 5)))
            assert foreign == missing
            assert [(row["type"], row.get("code")) for row in foreign] == [("error", "not_found"), ("subscribed", None)]
            assert foreign[-1]["inbox_ids"] == []
            mixed = subscribe(socket, ids["id"], mine)
            assert [row["type"] for row in mixed] == ["error", "subscribed"] and mixed[-1]["inbox_ids"] == ["ID 1"]
            socket.send(type="unsubscribe", id="req", inbox_ids=[ids["id"]])  # says nothing either
            foreign = socket.until("unsubscribed")[-1]
            socket.send(type="unsubscribe", id="req", inbox_ids=[unknown(ids["id"], 5)])
            assert len(foreign["inbox_ids"]) == len(socket.until("unsubscribed")[-1]["inbox_ids"])


def test_no_event_of_another_inbox_arrives(world):
    """The owner hears each, a sibling and strangers who ask for it hear none, and the key of a sibling cannot ask either."""
    account, target = world.signup()
    sibling = world.call(account, "POST", "/v1/inboxes", {"localPart": f"l-{secrets.token_hex(6)}"}).json
    sender = world.inbox()
    strangers = {name: (world.credentials[name], world.other_lobster["id"]) for name in LISTENERS}
    strangers["an inbox of the same account"] = (sibling["token"], sibling["id"])
    with contextlib.ExitStack() as stack:
        owner = stack.enter_context(feed(world, account))
        assert subscribe(owner, target["id"])[-1]["inbox_ids"] == ["ID 0"]
        listening = {}
        for name, (key, own) in strangers.items():
            socket = listening[name] = stack.enter_context(feed(world, key))
            said = subscribe(socket, target["id"], unknown(target["id"], 5), own)
            assert [row["type"] for row in said] == ["error", "error", "subscribed"], (name, said)
            assert said[0] == said[1] and said[2]["inbox_ids"] == ["ID 2"], (name, said)
        world.deliver(sender, target["address"], "for the owner only", "text")
        event = owner.until("event")[-1]
        assert (event["event_type"], event["inbox_id"]) == ("email.received", target["id"])
        # What they do have reaches them, so an event of the other inbox would have come before it.
        world.deliver(sender, sibling["address"], "for the sibling", "text")
        event = listening["an inbox of the same account"].until("event")
        assert [row.get("inbox_id") for row in event if row["type"] == "event"] == [sibling["id"]]
        for name, socket in listening.items():
            socket.send(type="ping")
            said = socket.until("pong")
            assert [row for row in said if row["type"] not in ("ping", "pong")] == [], (name, said)


def test_a_websocket_hears_nothing_more_once_its_key_is_revoked(world):
    account, target = world.signup()
    with feed(world, target["token"]) as socket:
        assert subscribe(socket, target["id"])[-1]["inbox_ids"] == ["ID 0"]
        world.call(account, "DELETE", f"/v1/inboxes/{target['id']}")
        socket.send(type="subscribe", id="req", inbox_ids=[target["id"]])
        with pytest.raises(Closed) as closed:
            socket.until("subscribed")
        assert closed.value.status == 4401
    assert handshake(world, ways(target["token"])[0])[0] == 401
    with feed(world, account) as socket:
        gone, missing = (subscribe(socket, one) for one in (target["id"], unknown(target["id"], 5)))
        assert gone == missing and gone[-1]["inbox_ids"] == []


# ---- links: what works without a key ----

FORM = "application/x-www-form-urlencoded"


def worker_of(server, inbox_id):
    for pid in pathlib.Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split():
        try:
            if pathlib.Path(os.readlink(f"/proc/{pid}/cwd")).name == inbox_id:
                return int(pid)
        except OSError:
            continue  # it has just ended
    return None


def expire_links(server, inbox_id):
    """As if a day had passed. The worker has its file for itself, so it is ended first; the next call starts another."""
    pid = worker_of(server, inbox_id)
    if pid:
        os.kill(pid, signal.SIGKILL)
        assert wait_for(lambda: not pathlib.Path(f"/proc/{pid}").exists())
    (path,) = (server.data / "mail" / inbox_id).glob("*.db")
    with contextlib.closing(sqlite3.connect(path, timeout=10)) as database:
        database.execute("PRAGMA locking_mode = EXCLUSIVE")
        assert database.execute("UPDATE links SET expires_us = 1000000").rowcount > 0
        database.commit()


class Links:
    """Links of both kinds: two that work, and those of each way not to work."""

    def __init__(self, world):
        self.world = world
        owner, other, late, gone = (world.inbox() for _ in range(4))
        self.text = f"linked{secrets.token_hex(6)}"
        self.owner = owner
        self.file, self.held = self.file_of(owner), self.hold(owner)
        self.good = {"file": self.file, "approve": self.link(self.held)}
        strange = {"file": self.file_of(other), "approve": self.link(self.hold(other))}
        used = self.hold(owner)
        used_link = self.link(used)
        assert self.decide(used_link, used, "reject").status == 200
        decided = self.hold(owner)
        decided_link = self.link(decided)
        world.operator("POST", f"/mail/messages/{decided['id']}/decide", {"action": "reject"})
        self.bad = {
            "used": used_link, "decided in another way": decided_link,
            "expired, approve": self.link(self.hold(late)), "expired, file": self.file_of(late),
            "of a deleted inbox, approve": self.link(self.hold(gone)), "of a deleted inbox, file": self.file_of(gone),
        }  # fmt: skip
        expire_links(world.server, late["id"])
        world.operator("DELETE", f"/mail/inboxes/{gone['id']}")
        for kind, token in self.good.items():
            theirs = strange[kind]
            self.bad |= {
                f"{kind}, last letter": token[:-1] + ("a" if token[-1] != "a" else "b"),
                f"{kind}, first letter of the secret": token[:-50] + ("a" if token[-50] != "a" else "b") + token[-49:],
                f"{kind}, no such inbox": unknown(token[:-50], 9) + token[-50:],
                f"{kind}, secret of another inbox": token[:-50] + theirs[-50:],
                f"{kind}, inbox of another secret": theirs[:-50] + token[-50:],
                f"{kind}, shorter": token[:-1],
                f"{kind}, longer": token + "a",
                f"{kind}, in capitals": token.upper(),
            }
        self.bad |= {"id of the message": self.held["id"], "long": "Q" * 150}

    def hold(self, inbox):
        subject = f"{self.text} {secrets.token_hex(4)}"  # the same again would be refused for a minute
        body = {"to": "x@y.example", "subject": subject, "body": self.text, "attachments": [self.attachment()]}
        return self.world.call(inbox["key"], "POST", "/v1/send", body).json

    def attachment(self):
        content = base64.b64encode(self.text.encode()).decode()
        return {"name": "a.txt", "content_base64": content, "content_type": "text/plain"}

    def link(self, held):
        path = self.world.operator("POST", f"/mail/messages/{held['id']}/link")["path"]
        return path.removeprefix("/approve/")

    def file_of(self, inbox):
        world = self.world
        world.deliver(inbox, inbox["address"], self.text, self.text)
        path = f"/v1/mailboxes/{inbox['id']}/"
        (row,) = wait_for(lambda: world.call(inbox["key"], "GET", path + "inbox").json["messages"], 20)
        url = world.call(inbox["key"], "GET", f"{path}emails/{row['id']}/attachments/a.txt/url").json["url"]
        return url.rpartition("/v1/files/")[2]

    def form(self, held, decision):
        row = self.world.operator("GET", f"/mail/messages/{held['id']}")
        return urllib.parse.urlencode({"decision": decision, "sha256": row["content_sha256"]})

    def decide(self, token, held, decision):
        return self.world.server.call("POST", f"/approve/{token}", self.form(held, decision), {"Content-Type": FORM})

    def state(self):
        return self.world.operator("GET", f"/mail/messages/{self.held['id']}")["status"]


@pytest.fixture(scope="module")
def links(world):
    return Links(world)


def try_link(world, key, method, pattern, token, form):
    headers = {"Content-Type": FORM, **({"Authorization": f"Bearer {key}"} if key else {})}
    path = pattern.replace("{token}", token).replace("{index}", "0")
    answer = world.server.call(method, path, form if method == "POST" else None, headers)
    text = re.sub(r'"requestId":\s*"[^"]*"', "", answer.body.decode(errors="replace"))
    return answer.status, text.replace(token, "TOKEN")


@pytest.mark.parametrize("credential", CREDENTIALS)
def test_links_that_do_not_work_do_not_say_why(world, links, credential):
    """Also with a credential beside them: the link alone counts."""
    key, form, wrong = world.credentials[credential], links.form(links.held, "approve"), []
    for method, pattern in TOKENS:
        kind = "file" if "/files/" in pattern else "approve"
        tokens = {**links.bad, "of the other kind": links.good["approve" if kind == "file" else "file"]}
        seen = {}
        for why, token in tokens.items():
            status, text = try_link(world, key, method, pattern, token, form)
            if links.text in text or status < 400 or (status >= 500 and status != 501):
                wrong.append(f"{method} {pattern}: {why}: {status} {text}")
            seen.setdefault((status, text), []).append(why)
        if len(seen) > 1:
            wrong.append(f"{method} {pattern}: {seen}")
        # LobsterMail has no pages for approvers, so its keys beside such a link lead to no route.
        if method == "GET" and "unsubscribe" not in pattern and (kind == "file" or not (key or "").startswith("lm_")):
            status, text = try_link(world, key, method, pattern, links.good[kind], form)
            if status != 200 or links.text not in text:
                wrong.append(f"{method} {pattern}: a link that works: {status} {text}")
    assert not wrong, "\n".join(wrong)
    assert links.state() == "pending_send_approval"


def test_a_link_decides_its_own_message_only(world, links):
    """Also if the form has the hash of another, and only once."""
    other = links.hold(links.owner)
    token = links.link(other)
    headers = {"Content-Type": FORM}
    answer = world.server.call("POST", f"/approve/{token}", links.form(links.held, "approve"), headers)
    held = [world.operator("GET", f"/mail/messages/{one['id']}")["status"] for one in (other, links.held)]
    assert answer.status in (400, 409) and held == ["pending_send_approval"] * 2, answer
    assert links.decide(token, other, "reject").status == 200
    again = world.server.call("POST", f"/approve/{token}", links.form(links.held, "reject"), headers)
    assert again.status == 404 and links.state() == "pending_send_approval", again
