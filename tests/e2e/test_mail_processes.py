"""Mail's processes: a worker for each inbox in use, the composer, webhooks. What each can reach, and what happens when one is
killed. Needs no SDK."""

import concurrent.futures
import contextlib
import http.client
import os
import pathlib
import secrets
import signal
import threading
import time

import pytest
from server import Server, wait_for

# base/limits.h
LIMIT_INBOX_WORKERS = 64
LIMIT_COMPOSERS, LIMIT_COMPOSERS_EACH = 8, 2
INBOX_UIDS = range(0x75000000, 0x78000000)  # daemon/inboxes.h
HELD = "pending_send_approval"


class Inbox:
    def __init__(self, server, row):
        self.server, self.id, self.address, self.key = server, row["id"], row["address"], row["key"]

    def call(self, method, path, body=None, headers=None):
        return self.server.call(method, path, body, {"Authorization": f"Bearer {self.key}", **(headers or {})})

    def send(self, to, subject="hello", text="some text", **fields):
        body = {"mailbox_id": self.id, "to": [to], "subject": subject, "body": text, **fields}
        return self.call("POST", "/v1/send", body, {"Content-Type": "application/json"})

    def subjects(self):
        answer = self.call("GET", f"/v1/mailboxes/{self.id}/inbox?limit=50")
        assert answer.status == 200, answer
        return [message["subject"] for message in answer.json["messages"]]


def admin(server):
    return {"X-Admin-Token": (server.data / "admin-token").read_text().strip(), "Content-Type": "application/json"}


def make_inbox(server, name=None):
    answer = server.call("POST", "/mail/inboxes", {"name": name or f"p{secrets.token_hex(6)}"}, admin(server))
    assert answer.status in (200, 201), answer
    return Inbox(server, answer.json)


def decide(server, answer, decision="approve"):
    return server.call("POST", f"/mail/messages/{answer.json['id']}/decide", {"action": decision}, admin(server))


def workers(server):
    """pid -> the inbox whose directory the process is in."""
    found = {}
    for pid in pathlib.Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split():
        try:
            words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if words[1:3] == [b"role", b"inbox"]:
                found[int(pid)] = pathlib.Path(os.readlink(f"/proc/{pid}/cwd")).name
        except OSError:
            continue  # it has just ended
    return found


def worker_of(server, inbox):
    return next((pid for pid, name in workers(server).items() if name == inbox.id), None)


def kill_and_wait(pid):
    os.kill(pid, signal.SIGKILL)
    assert wait_for(lambda: not pathlib.Path(f"/proc/{pid}").exists())


def children_of(pid):
    return {int(child) for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def status_of(pid):
    lines = pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.split() for name, _, value in (line.partition(":") for line in lines)}


@pytest.fixture
def mail(own_server):
    """A server of its own: these tests kill what it consists of."""
    return own_server


def test_each_worker_has_a_user_of_its_own_and_its_directory_only(mail):
    one, two = make_inbox(mail), make_inbox(mail)
    uids = set()
    for inbox in (one, two):
        assert inbox.send(two.address).status in (200, 201, 202)
        pid = worker_of(mail, inbox)
        status = status_of(pid)
        uid = int(status["Uid"][0])
        assert uid in INBOX_UIDS and status["Uid"] == [str(uid)] * 4 and status["Gid"] == [str(uid)] * 4
        assert status.get("Groups") == []
        assert status["CapEff"] == status["CapPrm"] == status["CapBnd"] == ["0000000000000000"]
        assert status["NoNewPrivs"] == ["1"] and status["Seccomp"] == ["2"]
        directory = mail.data / "mail" / inbox.id
        assert directory.stat().st_uid == uid and directory.stat().st_mode & 0o777 == 0o700
        uids.add(uid)
        held = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd") if int(fd) > 2}
        files = {name for name in held if not name.startswith("socket:")}
        assert len(held - files) == 1, held  # the connection to front
        assert files and all(name.startswith(f"{directory.resolve()}/") for name in files), files
    assert len(uids) == 2


def test_composer_and_webhooks_have_users_of_their_own(mail):
    seen = set()
    for role in ("front", "composer", "webhooks"):
        assert wait_for(lambda role=role: status_of(mail.role_pid(role))["Seccomp"] == ["2"])  # the last thing it loads
        status = status_of(mail.role_pid(role))
        assert status["CapEff"] == ["0000000000000000"] and status["Seccomp"] == ["2"] and status["NoNewPrivs"] == ["1"]
        seen.add(status["Uid"][0])
    assert len(seen) == 3


def test_the_libraries_that_parse_mail_are_in_composer_and_webhooks_only(mail):
    make_inbox(mail)
    pids = {"keeper": mail.pid, **{role: mail.role_pid(role) for role in ("front", "egress", "signer", "inbox")}}
    for role, pid in pids.items():
        maps = pathlib.Path(f"/proc/{pid}/maps").read_text()
        assert "libgmime" not in maps and "libcurl" not in maps and "libglib" not in maps, role
    assert "libgmime" in pathlib.Path(f"/proc/{mail.role_pid('composer')}/maps").read_text()


def test_many_inboxes_have_few_workers(mail):
    inboxes = [make_inbox(mail) for _ in range(200)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda inbox: inbox.send(inboxes[0].address), inboxes))
    assert {answer.json["status"] for answer in answers} == {HELD}
    assert wait_for(lambda: len(workers(mail)) <= LIMIT_INBOX_WORKERS)
    # All of them are there, whether their worker runs or not.
    for inbox in inboxes[::20]:
        assert inbox.subjects() == []


def test_a_killed_worker_is_replaced(mail):
    inbox, other = make_inbox(mail), make_inbox(mail)
    assert inbox.send(other.address).json["status"] == HELD
    old = worker_of(mail, inbox)
    kill_and_wait(old)
    assert inbox.send(other.address, "again").json["status"] == HELD
    assert worker_of(mail, inbox) not in (None, old)


def test_workers_that_are_killed_all_the_time_lose_nothing_that_was_accepted(mail):
    """Each send that was answered is held exactly once; one that failed is there or not, but never twice."""
    inbox, other = make_inbox(mail), make_inbox(mail)
    end = time.monotonic() + 8
    subjects, accepted, number = [], set(), 0
    with concurrent.futures.ThreadPoolExecutor(1) as pool:

        def keep_killing():
            while time.monotonic() < end:
                if pid := worker_of(mail, inbox):
                    os.kill(pid, signal.SIGKILL)
                time.sleep(0.03 + secrets.randbelow(50) / 1000)

        killer = pool.submit(keep_killing)
        while time.monotonic() < end and number < 18:  # 20 a minute
            number += 1
            answer = inbox.send(other.address, f"kill {number}", f"text {number}")
            if answer.status in (200, 201, 202):
                accepted.add(f"kill {number}")
            else:
                assert answer.status in (500, 503), answer
            time.sleep(0.3)
        killer.result()
    pending = mail.call("GET", f"/mail/pending?inbox={inbox.id}", headers=admin(mail)).json["pending"]
    subjects = [row["subject"] for row in pending if row["mailbox_id"] == inbox.id]
    assert len(subjects) == len(set(subjects))
    assert accepted <= set(subjects)


@pytest.mark.parametrize("role", ["composer", "webhooks"])
def test_a_killed_role_is_started_again_and_mail_goes_on(mail, role):
    inbox = make_inbox(mail)
    old = mail.role_pid(role)
    kill_and_wait(old)
    assert wait_for(lambda: mail.role_pid(role) not in (None, old))
    assert wait_for(lambda: inbox.send(inbox.address).status in (200, 201, 202))


def test_inboxes_with_slow_messages_hold_up_no_other(mail):
    """Their composers are stopped, so what they send takes for ever: another inbox sends meanwhile."""
    slow, other = [make_inbox(mail) for _ in range(3)], make_inbox(mail)
    composer, stopped = mail.role_pid("composer"), set()
    text = "[a](b) *c* `d` " * 8000  # takes long enough to be caught

    def stop_composers():
        for pid in children_of(composer) - stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                stopped.add(pid)
        stopped.intersection_update(children_of(composer))
        return len(stopped)

    with concurrent.futures.ThreadPoolExecutor(30) as pool:
        floods = [pool.submit(slow[i % 3].send, other.address, f"slow {i}", text) for i in range(15)]
        try:
            assert wait_for(lambda: stop_composers() >= 3 * LIMIT_COMPOSERS_EACH, pause=0.002)
            for _ in range(1000):  # no more of them come, although each inbox has more to send
                assert stop_composers() <= 3 * LIMIT_COMPOSERS_EACH < LIMIT_COMPOSERS
                time.sleep(0.001)
            waiting = [flood for flood in floods if not flood.done()]
            assert len(waiting) > len(stopped)
            assert other.send(slow[0].address, "quick").json["status"] == HELD
            assert not any(flood.done() for flood in waiting)
        finally:
            for pid in stopped & children_of(composer):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
        for flood in floods:
            assert flood.result().status in (200, 201, 202, 503), flood.result()
    assert wait_for(lambda: not children_of(composer))
    assert slow[0].send(other.address, "once more").json["status"] == HELD


def test_a_recipient_that_is_stuck_holds_up_no_other_message(mail):
    """Six senders have mail for an inbox whose worker is stopped, and one for another inbox, all due at the same time."""
    senders, stuck, other = [make_inbox(mail) for _ in range(7)], make_inbox(mail), make_inbox(mail)
    for sender in senders:
        assert mail.call("PUT", f"/mail/inboxes/{sender.id}/mode", {"mode": "autonomous"}, admin(mail)).status == 200
    assert stuck.subjects() == []
    due = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 4))
    worker = worker_of(mail, stuck)
    os.kill(worker, signal.SIGSTOP)
    try:
        for sender in senders[1:]:
            assert sender.send(stuck.address, f"from {sender.id}", send_at=due).json["status"] == "scheduled"
        assert senders[0].send(other.address, "to the other", send_at=due).json["status"] == "scheduled"
        assert wait_for(lambda: other.subjects() == ["to the other"])
        assert worker_of(mail, stuck) == worker  # no call for it has been given up yet
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(worker, signal.SIGCONT)
    assert wait_for(lambda: len(stuck.subjects()) == 6, seconds=100)  # pauses grow while it does not answer
    assert sorted(stuck.subjects()) == sorted(f"from {sender.id}" for sender in senders[1:])


def test_front_that_is_killed_takes_the_workers_along_and_no_message(mail):
    inbox, other = make_inbox(mail), make_inbox(mail)
    held = inbox.send(other.address, "before")
    old = set(workers(mail))
    assert old
    kill_and_wait(mail.front_pid())
    mail.wait_until_up()
    assert wait_for(lambda: not old & set(workers(mail)))
    assert decide(mail, held).status == 200
    assert wait_for(lambda: other.subjects() == ["before"])


def test_each_message_arrives_once_while_all_roles_are_killed(mail):
    """Senders repeat a send that failed, with the same idempotency key; each message has three recipients."""
    sender, others = make_inbox(mail), [make_inbox(mail) for _ in range(3)]
    assert mail.call("PUT", f"/mail/inboxes/{sender.id}/mode", {"mode": "autonomous"}, admin(mail)).status == 200
    subjects = [f"number {number}" for number in range(12)]
    done = threading.Event()

    def victims():
        """Mostly workers: keeper waits longer each time before it starts a role again."""
        if secrets.randbelow(12):
            return list(workers(mail))
        return [pid for pid in (mail.role_pid("composer"), mail.role_pid("front")) if pid]

    def keep_killing():
        kills = 0
        while not done.wait(0.03 + secrets.randbelow(150) / 1000):
            if pids := victims():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(secrets.choice(pids), signal.SIGKILL)
                    kills += 1
        return kills

    def is_accepted(subject):
        first, *more = [other.address for other in others]
        try:
            answer = sender.send(first, subject, cc=more, idempotency_key=subject)
        except (OSError, http.client.HTTPException):
            return False  # front was killed
        assert answer.status in (200, 202, 429, 500, 503), answer
        return answer.status in (200, 202)

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        killer = pool.submit(keep_killing)
        try:
            for subject in subjects:
                assert wait_for(lambda subject=subject: is_accepted(subject), 90, 0.3), subject
                time.sleep(0.2)  # and some kills fall between two messages
        finally:
            done.set()
        assert killer.result() >= 5
    mail.wait_until_up()
    for other in others:
        assert wait_for(lambda other=other: len(other.subjects()) >= len(subjects), 60), other.subjects()
    time.sleep(2)  # for what would come twice
    for other in others:
        assert sorted(other.subjects()) == sorted(subjects)


def test_workers_end_with_the_server(mail):
    inbox = make_inbox(mail)
    assert inbox.subjects() == []
    pids = list(workers(mail))
    assert pids
    mail.process.kill()
    mail.process.wait()
    assert wait_for(lambda: not any(pathlib.Path(f"/proc/{pid}").exists() for pid in pids))
    mail.start()
    assert inbox.subjects() == []


def test_a_damaged_inbox_says_so_and_the_others_go_on(mail):
    bad, good = make_inbox(mail), make_inbox(mail)
    assert bad.subjects() == [] and good.subjects() == []
    kill_and_wait(worker_of(mail, bad))
    for path in (mail.data / "mail" / bad.id).iterdir():
        if path.name == "inbox.db":
            path.write_bytes(secrets.token_bytes(path.stat().st_size))
        else:
            path.unlink()
    answer = bad.call("GET", f"/v1/mailboxes/{bad.id}/inbox?limit=5")
    assert answer.status == 500 and "the file of this inbox is damaged" in answer.json["error"], answer
    said = [line for line in mail.log_tail(20).splitlines() if bad.id in line and "damaged" in line]
    assert said, mail.log_tail(20)
    assert good.send(good.address).json["status"] == HELD


def test_an_inbox_whose_directory_has_another_owner_is_refused(mail):
    bad, good = make_inbox(mail), make_inbox(mail)
    pid = worker_of(mail, bad)
    if pid:
        kill_and_wait(pid)
    directory = mail.data / "mail" / bad.id
    owner = directory.stat().st_uid
    os.chown(directory, 0, 0)
    assert bad.call("GET", f"/v1/mailboxes/{bad.id}/inbox").status >= 500
    assert good.subjects() == []
    os.chown(directory, owner, owner)
    assert bad.subjects() == []


def test_what_is_in_messages_is_not_on_the_disk(mail):
    words = {name: f"{name}{secrets.token_hex(8)}" for name in ("subject", "body", "correspondent", "local")}
    inbox, other = make_inbox(mail, words["local"]), make_inbox(mail)
    held = inbox.send(f"{words['correspondent']}@example.com", words["subject"], words["body"])
    assert held.json["status"] == HELD
    local = inbox.send(other.address, words["subject"], words["body"])
    assert decide(mail, local).status == 200
    assert wait_for(other.subjects)
    found = []
    for folder in ("mail", "store"):
        for path in (mail.data / folder).rglob("*"):
            if path.is_file():
                content = path.read_bytes()
                found += [(str(path), name) for name, word in words.items() if word.encode() in content]
    assert not found
    log = mail.log_path.read_text(errors="replace")
    assert not [name for name in ("subject", "body", "correspondent") if words[name] in log]


def test_env_has_the_keys_of_the_first_inbox_and_they_work(mail):
    first = {"Authorization": f"Bearer {mail.lines['MULTIMAIL_API_KEY']}"}
    assert mail.lines["MULTIMAIL_API_URL"] == mail.lines["LOBSTERMAIL_API_URL"] == mail.url
    answer = mail.call("GET", "/v1/mailboxes", headers=first)
    assert answer.status == 200 and len(answer.json["mailboxes"]) == 1, answer
    mail.stop()
    mail.start()  # the same keys, and the same inbox
    assert mail.call("GET", "/v1/mailboxes", headers=first).json["mailboxes"][0]["id"] == answer.json["mailboxes"][0]["id"]


def test_without_mail_there_are_no_processes_for_it_and_no_keys(server):
    data = server.data.parent / f"{server.data.name}-no-mail"
    mine = Server(data, ["--mail", "off"])
    mine.start()
    try:
        assert mine.role_pid("front") and not mine.role_pid("composer") and not mine.role_pid("webhooks")
        assert "MULTIMAIL_API_KEY" not in mine.lines
        answer = mine.call("GET", "/v1/mailboxes", headers={"Authorization": "Bearer mm_live_" + "a" * 43})
        assert answer.status >= 400, answer
    finally:
        mine.stop()
