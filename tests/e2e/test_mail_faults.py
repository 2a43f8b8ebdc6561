"""Mail when things go wrong: kills between each two steps of a message, a full disk, drafts that try to break the format.
Also what a thief of the disk finds. Needs no SDK."""

import base64
import concurrent.futures
import contextlib
import http.client
import os
import re
import secrets
import shutil
import sqlite3
import subprocess
import threading
import time

import pytest
from server import Server, wait_for
from test_mail_processes import Inbox, admin, decide, kill_and_wait, make_inbox, worker_of, workers

HELD = "pending_send_approval"
ROUNDS = 50
SENDERS = 10  # each may send 20 a minute, and what fails counts


@pytest.fixture
def mail(own_server):
    """A server of its own: these tests kill what it consists of."""
    return own_server


def delivered(inbox):
    """The subjects of all that has arrived, page after page."""
    subjects, cursor = [], ""
    while True:
        answer = inbox.call("GET", f"/v1/mailboxes/{inbox.id}/emails?direction=inbound&limit=50{cursor}")
        assert answer.status == 200, answer
        subjects += [row["subject"] for row in answer.json["emails"]]
        if not answer.json.get("cursor"):
            return subjects
        cursor = f"&cursor={answer.json['cursor']}"


def again(call, seconds=100):
    """A call as a patient client makes it: until the server answers with something else than that it cannot now."""

    def once():
        try:
            answer = call()
        except (OSError, http.client.HTTPException):
            return None  # front was killed
        return answer if answer.status < 500 and answer.status != 429 else None

    answer = wait_for(once, seconds, 0.4)
    assert answer, "the server does not come back"
    return answer


# ---- kills ----


class Killer:
    """Kills one process after a short while, beside what the test does."""

    # Mostly workers: keeper waits longer each time before it starts a role again.
    VICTIMS = ["inbox"] * 14 + ["composer", "composer", "egress", "webhooks", "front", "front"]

    def __init__(self, server):
        self.server, self.kills = server, {}

    def strike(self, role, seconds):
        time.sleep(seconds)
        pids = list(workers(self.server)) if role == "inbox" else [self.server.role_pid(role)]
        with contextlib.suppress(ProcessLookupError):
            if pids and (pid := secrets.choice(pids)):
                kill_and_wait(pid)  # one that is killed and still there could take a call that comes after this round
                self.kills[role] = self.kills.get(role, 0) + 1

    @contextlib.contextmanager
    def at_work(self, number):
        """The role takes its turn; when it is killed is random."""
        role = self.VICTIMS[number % len(self.VICTIMS)]
        thread = threading.Thread(target=self.strike, args=(role, secrets.randbelow(60) / 1000))
        thread.start()
        try:
            yield
        finally:
            thread.join()


@pytest.mark.timeout(400)
def test_kills_between_send_and_delivered(mail):
    """Each message is held, approved and delivered once, whatever is killed meanwhile; a rejected one never arrives."""
    senders = [make_inbox(mail) for _ in range(SENDERS)]
    others = [make_inbox(mail) for _ in range(2)]
    killer, wanted, rejected = Killer(mail), [], []
    for number in range(ROUNDS):
        sender, subject = senders[number % len(senders)], f"round {number}"
        first, second = (other.address for other in others)
        with killer.at_work(3 * number):
            sent = again(lambda: sender.send(first, subject, cc=[second], idempotency_key=subject))  # noqa: B023
        assert sent.status in (200, 202), sent  # 200: an earlier try was accepted, and its answer lost
        decision = "reject" if number % 5 == 4 else "approve"
        with killer.at_work(3 * number + 1):
            answer = again(lambda: decide(mail, sent, decision))  # noqa: B023
        # The first answer may have been lost with a process: then the decision is made already.
        assert answer.status in (200, 409), answer
        (rejected if decision == "reject" else wanted).append((sender, sent.json["id"], subject))
        with killer.at_work(3 * number + 2):
            pass  # while it is delivered
    mail.wait_until_up()
    assert sum(killer.kills.values()) >= ROUNDS and set(killer.kills) >= {"inbox", "front", "composer"}, killer.kills
    subjects = sorted(subject for _, _, subject in wanted)
    for other in others:
        assert wait_for(lambda: len(delivered(other)) >= len(subjects), 90, 0.5), len(delivered(other))  # noqa: B023
    time.sleep(3)  # for what would come twice
    for other in others:
        assert sorted(delivered(other)) == subjects
    # And each has exactly one state, which fits.
    for rows, states in ((wanted, {"sent", "delivered"}), (rejected, {"rejected"})):
        for sender, message, subject in rows:
            answer = sender.call("GET", f"/v1/mailboxes/{sender.id}/emails/{message}")
            assert answer.status == 200 and answer.json["status"] in states, (subject, answer)
    for inbox in senders + others:
        # By inbox: a list of all would ask each inbox that an earlier run has left with held mail, and show the first page.
        answer = mail.call("GET", f"/mail/pending?inbox={inbox.id}", headers=admin(mail))
        assert answer.status == 200 and answer.json["pending"] == [], answer
        assert mail.call("GET", f"/mail/inboxes/{inbox.id}/audit/verify", headers=admin(mail)).json["ok"]


def test_many_approvers_at_once_decide_once(mail):
    sender, other = make_inbox(mail), make_inbox(mail)
    for number in range(5):
        sent = sender.send(other.address, f"race {number}", f"text {number}")
        decisions = ["approve", "reject"] * 4
        with concurrent.futures.ThreadPoolExecutor(len(decisions)) as pool:
            answers = list(pool.map(lambda word: decide(mail, sent, word), decisions))  # noqa: B023
        won = [word for word, answer in zip(decisions, answers, strict=True) if answer.status == 200]
        assert len(won) == 1 and {answer.status for answer in answers} == {200, 409}, answers
        if won == ["approve"]:
            assert wait_for(lambda: f"race {number}" in delivered(other), 20)  # noqa: B023
        else:
            time.sleep(0.3)
            assert f"race {number}" not in delivered(other)
    assert len(delivered(other)) == len(set(delivered(other)))


def test_the_whole_server_is_killed_after_each_step(mail):
    sender, other = make_inbox(mail), make_inbox(mail)

    def restart():
        mail.process.kill()
        mail.process.wait()
        mail.start_when_free()

    sent = sender.send(other.address, "Survives")
    restart()
    assert decide(mail, sent).status == 200
    restart()
    assert wait_for(lambda: delivered(other) == ["Survives"], 30)
    restart()
    assert delivered(other) == ["Survives"]
    assert decide(mail, sent).status == 409
    time.sleep(1)
    assert delivered(other) == ["Survives"]


def known(server):
    """Ids of everything that has a directory, in any state."""
    with contextlib.closing(sqlite3.connect(f"file:{server.data}/store/cloister.db?mode=ro", uri=True, timeout=10)) as store:
        return {row[0] for row in store.execute("SELECT id FROM mail_inboxes UNION SELECT id FROM mail_tenants")}


def directories(server):
    return {path.name for path in (server.data / "mail").iterdir() if re.fullmatch("[0-9A-Z]{26}", path.name)}


def test_a_kill_while_inboxes_are_made_leaves_no_directory(mail):
    stop, made = threading.Event(), []

    def make():
        while not stop.is_set():
            with contextlib.suppress(OSError, http.client.HTTPException, AssertionError, ValueError):
                made.append(make_inbox(mail))

    front = mail.front_pid()
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        jobs = [pool.submit(make) for _ in range(4)]
        try:
            for round_ in range(6):
                before = len(made)
                assert wait_for(lambda: len(made) >= before + 2)
                time.sleep(0.013 * round_)
                front = wait_for(mail.front_pid)
                kill_and_wait(front)
        finally:
            stop.set()
        for job in jobs:
            job.result()
    kill_and_wait(wait_for(mail.front_pid))  # the list is that of a start
    again(lambda: mail.call("GET", "/mail/inboxes", headers=admin(mail)))
    assert wait_for(lambda: directories(mail) <= known(mail)), directories(mail) - known(mail)
    for inbox in made:
        assert again(lambda inbox=inbox: inbox.call("GET", f"/v1/mailboxes/{inbox.id}/inbox")).status == 200


def test_directories_without_a_row_are_removed_if_they_were_never_used(mail):
    """Those with a row stay in every state, and so does a used one that the store has forgotten."""
    used, unused, deleted = (make_inbox(mail) for _ in range(3))
    assert used.send("x@y.example").json["status"] == HELD
    assert mail.call("DELETE", f"/mail/inboxes/{deleted.id}", headers=admin(mail)).status == 200
    mail.stop()
    home = mail.data / "mail"
    empty, half, copy, forgotten = (f"01J{secrets.token_hex(12)[:23].upper()}" for _ in range(4))
    (home / empty).mkdir(mode=0o700)
    (home / half).mkdir(mode=0o700)
    for source, name in ((unused, copy), (used, forgotten)):
        subprocess.run(["cp", "--archive", str(home / source.id), str(home / name)], check=True)
    owner = (home / unused.id).stat()
    os.chown(home / half, owner.st_uid, owner.st_gid)
    (home / half / "inbox.db").touch(mode=0o600)
    os.chown(home / half / "inbox.db", owner.st_uid, owner.st_gid)
    (home / "lost+found").mkdir(exist_ok=True)
    try:
        mail.start()
        assert wait_for(lambda: not {empty, half, copy} & directories(mail)), directories(mail)
        assert wait_for(lambda: "belong to no inbox of the store, and stay" in mail.log_path.read_text())
        # A row without a directory: tests of copied stores bring rows of another server here.
        assert {used.id, unused.id, deleted.id, forgotten} <= directories(mail) <= known(mail) | {forgotten}
        assert (home / "lost+found").is_dir() and list((home / deleted.id).iterdir())
        assert unused.call("GET", f"/v1/mailboxes/{unused.id}/inbox").status == 200
        assert [row["subject"] for row in used.call("GET", f"/v1/mailboxes/{used.id}/emails").json["emails"]] == ["hello"]
    finally:
        mail.stop()
        shutil.rmtree(home / forgotten)
        (home / "lost+found").rmdir()
        mail.start()


def overwrite(path):
    path.write_bytes(path.read_bytes()[:1024] + secrets.token_bytes(max(0, path.stat().st_size - 1024)))


DAMAGES = {
    "all": lambda home: [overwrite(path) for path in home.iterdir()],
    "the log": lambda home: overwrite(home / "inbox.db-wal"),
    "no log": lambda home: (home / "inbox.db-wal").unlink(),
    "nothing left": lambda home: [path.unlink() for path in home.iterdir()],
}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda name: name.replace(" ", "-"))
def test_an_inbox_that_is_damaged_stops_nobody_else(mail, damage):
    """To a damaged recipient and a good one: the good one has the message, once."""
    sender, bad, good = make_inbox(mail), make_inbox(mail), make_inbox(mail)
    assert delivered(bad) == []
    if pid := worker_of(mail, bad):
        kill_and_wait(pid)
    DAMAGES[damage](mail.data / "mail" / bad.id)
    sent = sender.send(bad.address, "To both", cc=[good.address])
    assert decide(mail, sent).status == 200
    assert wait_for(lambda: delivered(good) == ["To both"], 30)
    assert bad.call("GET", f"/v1/mailboxes/{bad.id}/emails").status >= 500
    assert [line for line in mail.log_tail(200).splitlines() if bad.id in line and "damaged" in line], mail.log_tail()
    more = sender.send(good.address, "Next", "another text")
    assert decide(mail, more).status == 200
    assert wait_for(lambda: sorted(delivered(good)) == ["Next", "To both"], 30)
    # The operator can still get rid of it.
    assert mail.call("DELETE", f"/mail/inboxes/{bad.id}", headers=admin(mail)).status < 300
    assert mail.call("GET", f"/mail/inboxes/{bad.id}", headers=admin(mail)).status == 404


# ---- a full disk ----


@pytest.fixture
def small(server):
    """A server on a file system of 48 MiB. It needs no template: nobody starts a sandbox there."""
    home = server.data.parent / f"{server.data.name}-full-mail"
    image = home.with_name(f"{home.name}.img")
    home.mkdir(mode=0o755, parents=True, exist_ok=True)
    with open(image, "wb") as file:
        file.truncate(48 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(home)], check=True)
    mine = Server(home)
    mine.log_dir = server.data
    try:
        yield mine.start()
    finally:
        mine.stop()
        subprocess.run(["umount", "--lazy", str(home)], check=False)
        image.unlink()
        if not os.path.ismount(home):
            home.rmdir()


def fill(home):
    """To the last byte."""
    with open(home / "filler", "ab", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"x" * size)


def test_a_full_disk_loses_and_repeats_nothing(small):
    sender, other = make_inbox(small), make_inbox(small)
    before = sender.send(other.address, "before")
    assert before.json["status"] == HELD
    fill(small.data)
    refused = 0
    for number in range(12):  # some may fit into what the files have already
        answer = sender.send(other.address, f"full {number}", "x" * 20000)
        assert answer.status in (202, 500, 503, 507), answer
        refused += answer.status != 202
    assert refused
    assert small.call("GET", "/health").status < 300
    decision = decide(small, before)
    assert decision.status in (200, 500, 503, 507), decision
    (small.data / "filler").unlink()
    if decision.status != 200:
        assert again(lambda: decide(small, before)).status in (200, 409)
    assert wait_for(lambda: delivered(other) == ["before"], 60), small.log_tail()
    assert sender.send(other.address, "after", "y").json["status"] == HELD
    rows = small.call("GET", "/mail/pending", headers=admin(small)).json["pending"]
    subjects = [row["subject"] for row in rows if row["mailbox_id"] == sender.id]
    assert len(subjects) == len(set(subjects)) == 12 - refused + 1, subjects
    assert all(row["ok"] for row in small.call("GET", "/mail/audit/verify", headers=admin(small)).json["inboxes"])


# ---- what is on the disk ----


def forms(word):
    """How a text may be stored: as it is, in base64 wherever it begins, in hexadecimal, in UTF-16."""
    raw = word.encode()
    yield raw
    yield raw.hex().encode()
    yield word.encode("utf-16-le")
    for before in range(3):
        text = base64.b64encode(b"-" * before + raw)
        yield text[4 if before else 0 : -4]  # without what depends on the neighbours


@pytest.fixture
def clean(server):
    """A server that has nothing yet. What earlier runs leave in a directory grows with each of them, and may be gigabytes
    that keeper has not removed yet: a test that reads all files would take ever longer. It needs no template: nobody
    starts a sandbox there."""
    home = server.data.parent / f"{server.data.name}-clean-mail"
    shutil.rmtree(home, ignore_errors=True)
    mine = Server(home, ["--mail-signups-per-hour", "100"])
    try:
        yield mine.start_when_free()
    finally:
        mine.stop()


def found_in(data, words):
    """(file, name) of each word that is somewhere below the data directory."""
    found = []
    for home, _, files in os.walk(data):
        for name in files:
            path = os.path.join(home, name)
            if os.path.islink(path) or not os.path.isfile(path):
                continue
            try:
                with open(path, "rb") as file:
                    content = file.read().lower()
            except FileNotFoundError:
                continue  # it has just gone
            found += [(path, key) for key, word in words.items() for form in forms(word) if form.lower() in content]
    return found


def test_nothing_of_a_message_is_found_on_the_disk(clean):
    """Held, approved, rejected, scheduled, by both dialects; contacts, tags, searches. Also in logs and in SQLite's own files."""
    names = ("subject", "body", "correspondent", "attachment", "file", "contact", "tag", "local", "reason", "search", "display")
    words = {name: f"{name}{secrets.token_hex(8)}" for name in names}
    inbox, other = make_inbox(clean, words["local"]), make_inbox(clean)
    file = {"name": f"{words['file']}.txt", "content_base64": base64.b64encode(words["attachment"].encode()).decode()}
    outside = f"{words['correspondent']}@{words['correspondent']}.example"

    def send(to, number, **fields):
        answer = inbox.send(to, f"{words['subject']} {number}", f"{words['body']} {number}", attachments=[file], **fields)
        assert answer.status == 202, answer
        return answer

    send(outside, 0)
    send(outside, 1, send_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 86400)))
    assert decide(clean, send(outside, 2)).status == 200
    rejected = send(other.address, 3)
    path = f"/mail/messages/{rejected.json['id']}/decide"
    assert clean.call("POST", path, {"action": "reject", "reason": words["reason"]}, admin(clean)).status == 200
    assert decide(clean, send(other.address, 4, cc=[outside])).status == 200
    assert wait_for(lambda: delivered(other), 20)
    (row,) = other.call("GET", f"/v1/mailboxes/{other.id}/inbox").json["messages"]
    json_type = {"Content-Type": "application/json"}
    for method, target, body in (
        ("POST", "/v1/contacts", {"name": words["contact"], "email": f"{words['contact']}@x.example"}),
        ("PUT", f"/v1/mailboxes/{other.id}/emails/{row['id']}/tags", {"tags": {words["tag"]: words["tag"]}}),
        ("PATCH", f"/v1/mailboxes/{other.id}", {"display_name": words["display"]}),
    ):
        answer = other.call(method, target, body, json_type)
        assert answer.status < 300, answer
    assert other.call("GET", f"/v1/mailboxes/{other.id}/emails?subject_contains={words['search']}").status == 200
    token = clean.call("POST", "/v1/signup", {}, json_type).json["token"]
    lobster = {"Authorization": f"Bearer {token}", **json_type}
    address = clean.call("POST", "/v1/inboxes", {}, lobster).json["address"]
    draft = {"from": address, "to": [outside], "subject": words["subject"], "body": {"text": words["body"]}}
    assert clean.call("POST", "/v1/emails/send", draft, lobster).status == 202
    assert clean.call("GET", f"/v1/emails/search?q={words['search']}", headers=lobster).status == 200
    # The words are there for those who may see them: the search below would find nothing in an empty server, too.
    assert words["body"] in other.call("GET", f"/v1/mailboxes/{other.id}/emails/{row['id']}").body.decode()

    assert found_in(clean.data, words) == []  # while it runs, with write-ahead logs
    clean.process.kill()  # what was not written out in order
    clean.process.wait()
    assert found_in(clean.data, words) == []
    clean.start_when_free()
    clean.stop()
    assert found_in(clean.data, words) == []
    # The search does find what is there: ids are no secret.
    assert found_in(clean.data, {"id": inbox.id})


# ---- drafts that try to break the format ----

BREAKS = ["\r\n", "\n", "\r", "\0", "\u2028", "\u0085", "\v\n", "\r\n\r\n", "%0d%0a", "=?utf-8?q?=0D=0A?="]


def injected(evil):
    """(field, value) of a draft of each dialect."""
    for mark in BREAKS:
        more = f"{mark}Bcc: {evil}{mark}X-Evil: yes"
        file = {"content_base64": "eA==", "content": "eA=="}
        for dialect in ("multimail", "lobstermail"):
            yield dialect, {"subject": f"s{more}"}
            yield dialect, {"to": [f"x@y.example{more}"]}
            yield dialect, {"to": [f"Name{more} <x@y.example>"]}
            yield dialect, {"cc": [f"x@y.example{more}"]}
            yield dialect, {"attachments": [{"name": f"a{more}", "filename": f"a{more}", **file}]}
            attachment = {"name": "a", "filename": "a", "content_type": f"text/plain{more}", "contentType": f"text/plain{more}"}
            yield dialect, {"attachments": [{**attachment, **file}]}
            yield dialect, {"from": f"a@b.example{more}"}
        yield "multimail", {"bcc": [f"x@y.example{more}"]}
        yield "multimail", {"reply_to": f"x@y.example{more}"}
        yield "multimail", {"in_reply_to": f"<a@b>{more}"}
        yield "multimail", {"thread_id": f"a{more}"}
        yield "multimail", {"idempotency_key": f"k{secrets.token_hex(4)}{more}"}
        yield "lobstermail", {"replyTo": f"x@y.example{more}"}
        yield "lobstermail", {"inReplyTo": f"<a@b>{more}"}
        yield "lobstermail", {"threadId": f"a{more}"}


class Lobster:
    def __init__(self, server):
        self.server = server
        kind = {"Content-Type": "application/json"}
        self.headers = {"Authorization": f"Bearer {server.call('POST', '/v1/signup', {}, kind).json['token']}", **kind}
        self.renew()

    def renew(self):
        self.address = self.server.call("POST", "/v1/inboxes", {}, self.headers).json["address"]

    def send(self, fields):
        draft = {"from": self.address, "to": ["x@y.example"], "subject": "s", "body": {"text": secrets.token_hex(8)}, **fields}
        return self.server.call("POST", "/v1/emails/send", draft, self.headers)


@pytest.mark.timeout(300)
def test_no_field_of_a_draft_makes_a_header_or_a_recipient(mail):
    evil, lobster, sender, number = make_inbox(mail), Lobster(mail), None, 0
    held = 0
    for dialect, fields in injected(evil.address):
        if number % 15 == 0:  # each sends 20 a minute
            sender = make_inbox(mail)
            lobster.renew()
        number += 1
        if dialect == "lobstermail":
            answer = lobster.send(fields)
        else:
            draft = {"to": ["x@y.example"], "subject": "s", "body": secrets.token_hex(8), **fields}
            answer = sender.call("POST", "/v1/send", draft, {"Content-Type": "application/json"})
        assert answer.status in (202, 400, 403, 404, 422), (dialect, fields, answer)
        if answer.status != 202:
            continue
        held += 1  # it is text: then it must be nothing but text
        message = answer.json["id"].removeprefix("eml_")
        shown = mail.call("GET", f"/mail/messages/{message}", headers=admin(mail)).json
        assert evil.address not in shown["recipients"] and len(shown["recipients"]) == 1 + len(fields.get("cc", fields.get("bcc", []))), shown
        assert not [name for name in ("to", "cc", "bcc") if any(mark in text for text in shown[name] for mark in "\r\n\0")]
        assert decide(mail, answer_like(message)).status == 200
    assert held, "at least what is not a line break is text"
    time.sleep(1)
    assert delivered(evil) == []


class answer_like:  # noqa: N801
    def __init__(self, message):
        self.json = {"id": message}


def test_what_is_too_large_is_refused_and_nothing_is_kept(mail):
    sender = make_inbox(mail)
    big = "x" * (1 << 20)
    file = {"name": "a", "content_base64": "eA=="}
    for fields in (
        {"subject": "s" * 5000},
        {"body": big + "x"},
        {"to": [f"a{number}@y.example" for number in range(101)]},
        {"to": [f"{'a' * 300}@y.example"]},
        {"to": [f"a@{'b' * 64}.example"]},
        {"to": [f"{'N' * 2000} <a@y.example>"]},
        {"attachments": [file] * 11},
        {"attachments": [{**file, "name": "n" * 300}]},
        {"attachments": [{**file, "content_type": "t/" + "p" * 300}]},
        {"attachments": [{**file, "content_base64": "A" * (15 << 20)}]},
        {"attachments": [{**file, "content_base64": "not base64!"}]},
        {"idempotency_key": "k" * 300},
        {"reply_to": "r" * 2000},
        {"thread_id": "t" * 2000},
        {"send_at": "2" * 2000},
        {"send_at": "9999-01-01T00:00:00Z"},
        {"mailbox_id": "m" * 2000},
        {"body": {"a": "b"}},
        {"to": []},
        {"subject": ["a"]},
    ):
        draft = {"to": ["x@y.example"], "subject": "s", "body": "t", **fields}
        answer = sender.call("POST", "/v1/send", draft, {"Content-Type": "application/json"})
        assert answer.status in (400, 404, 413, 422), ({name: str(value)[:60] for name, value in fields.items()}, answer)
        assert len(answer.body) < 2000
    with contextlib.suppress(OSError):  # it may be refused before all is read
        answer = sender.call("POST", "/v1/send", b" " * (17 << 20), {"Content-Type": "application/json"})
        assert answer.status == 413, answer
    deep = b'{"to":' + b"[" * 100000
    assert sender.call("POST", "/v1/send", deep, {"Content-Type": "application/json"}).status == 400
    assert sender.call("GET", f"/v1/mailboxes/{sender.id}/emails").json["emails"] == []
    assert sender.send("x@y.example").json["status"] == HELD


@pytest.mark.parametrize(
    ("to", "code"),
    [
        ("x@ex\u0430mple.com", "lookalike"),  # a Cyrillic letter
        ("x@xn--exmple-4nf.com", "lookalike"),  # the same, as it is on the wire
        ('"boss@example.com" <x@y.example>', "misleading_name"),
        ("x@exam\u200bpl\u0435.com", "lookalike"),  # what nobody sees is not in a name; and another Cyrillic letter
    ],
)
def test_an_approver_is_told_of_recipients_that_look_like_others(mail, to, code):
    sent = make_inbox(mail).send(to)
    assert sent.status == 202, sent
    shown = mail.call("GET", f"/mail/messages/{sent.json['id']}", headers=admin(mail)).json
    assert code in [warning["code"] for warning in shown["warnings"]], shown["warnings"]
    assert all(address.isascii() for address in shown["recipients"])


@pytest.mark.parametrize("to", ["p\u0430ypal@example.com", "\u202eegami@example.com", "a\u200bb@example.com"])
def test_letters_that_nobody_sees_are_no_part_of_an_address(mail, to):
    answer = make_inbox(mail).send(to)
    assert answer.status == 400, answer


def test_a_sender_cannot_be_chosen(mail):
    sender, other = make_inbox(mail), make_inbox(mail)
    for name in (other.address, "ceo@example.com", f"CEO <{sender.address}>, {other.address}"):
        answer = sender.send(other.address, **{"from": name})
        assert answer.status in (400, 403, 404), answer
    assert isinstance(sender, Inbox)
