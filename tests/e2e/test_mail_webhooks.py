"""Webhooks from registration to the call: the operator's code, both signatures, tries again, and places that may not be
called. Needs no SDK."""

import hashlib
import hmac
import http.server
import json
import threading

import pytest
from server import Server, wait_for
from test_mail_processes import admin, decide, make_inbox


class Receiver:
    """An HTTP server on this machine that writes down what it gets, and answers with `statuses`, the last one for ever."""

    def __init__(self, statuses=(200,), answers=None):
        """answers: an event, before which nothing is answered."""
        self.got, self.statuses = [], list(statuses)
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.got.append((dict(self.headers), body))
                if answers:
                    answers.wait()
                self.send_response(receiver.statuses.pop(0) if len(receiver.statuses) > 1 else receiver.statuses[0])
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *words):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/hook"

    def events(self):
        return [json.loads(body)["event"] for _, body in self.got]

    def mailboxes(self):
        return [json.loads(body)["data"]["mailbox_id"] for _, body in self.got]

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture(scope="module")
def mail(server):
    mine = Server(server.data.parent / f"{server.data.name}-hooks", ["--webhook-allow", "127.0.0.0/8"])
    mine.start()
    yield mine
    mine.stop()


@pytest.fixture
def receiver():
    made = Receiver()
    yield made
    made.close()


def add_webhook(inbox, url, events):
    """With the code that the operator sees."""
    body = {"url": url, "events": events, "mailbox_id": inbox.id}
    first = inbox.call("POST", "/v1/webhooks", body, {"Content-Type": "application/json"})
    if first.status != 202:
        return first
    codes = inbox.server.call("GET", "/mail/codes", headers=admin(inbox.server)).json["codes"]
    code = next(row["code"] for row in codes if url in row["what"])
    return inbox.call("POST", "/v1/webhooks", {**body, "approval_code": code}, {"Content-Type": "application/json"})


def test_a_webhook_is_told_about_what_happens_to_messages_and_not_what_they_say(mail, receiver):
    inbox, other = make_inbox(mail), make_inbox(mail)
    added = add_webhook(inbox, receiver.url, ["oversight.pending", "oversight.approved", "email.sent"])
    assert added.status == 201, added
    arriving = add_webhook(other, receiver.url + "/in", ["message.received"])
    assert arriving.status == 201, arriving
    held = inbox.send(other.address, "a subject for nobody", "a text for nobody")
    assert wait_for(lambda: "oversight.pending" in receiver.events())
    assert decide(mail, held).status == 200
    assert wait_for(lambda: {"oversight.approved", "email.sent", "message.received"} <= set(receiver.events()))
    for headers, body in receiver.got:
        told = json.loads(body)
        secret = (arriving if told["event"] == "message.received" else added).json["signing_secret"]
        want = hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
        assert headers["X-MultiMail-Signature"] == f"sha256={want}"
        assert b"nobody" not in body and b"@" not in body
    first = json.loads(receiver.got[0][1])
    assert first["data"]["email_id"] == held.json["id"] and first["data"]["mailbox_id"] == inbox.id


def test_a_webhook_that_fails_is_called_again_with_the_same_delivery(mail):
    receiver = Receiver([500, 200])
    try:
        inbox = make_inbox(mail)
        assert add_webhook(inbox, receiver.url, ["oversight.pending"]).status == 201
        inbox.send("somebody@example.com")
        assert wait_for(lambda: len(receiver.got) == 2)
        ids = {headers["X-Cloister-Delivery"] for headers, _ in receiver.got}
        assert len(ids) == 1
    finally:
        receiver.close()


def test_a_removed_webhook_is_not_called(mail, receiver):
    inbox = make_inbox(mail)
    added = add_webhook(inbox, receiver.url, ["oversight.pending"])
    assert inbox.call("DELETE", f"/v1/webhooks/{added.json['id']}").status == 200
    other = add_webhook(inbox, receiver.url + "/other", ["oversight.pending"])
    assert other.status == 201
    inbox.send("somebody@example.com")
    assert wait_for(lambda: receiver.got)
    assert len(receiver.got) == 1


def test_a_server_that_hangs_holds_up_no_other_inbox(mail, receiver):
    """Six inboxes call it, and have more to tell: another inbox adds a webhook, and is told about its message."""
    answers = threading.Event()
    hanging = Receiver(answers=answers)
    try:
        stuck, other = [make_inbox(mail) for _ in range(6)], make_inbox(mail)
        for inbox in stuck:
            assert add_webhook(inbox, f"{hanging.url}/{inbox.id}", ["oversight.pending"]).status == 201
        for number in range(3):
            for inbox in stuck:
                inbox.send("somebody@example.com", f"number {number}")
        assert wait_for(lambda: len(hanging.got) == len(stuck))
        assert add_webhook(other, receiver.url, ["oversight.pending"]).status == 201
        other.send("somebody@example.com")
        assert wait_for(lambda: receiver.mailboxes() == [other.id])
        # Theirs were not given up meanwhile: each inbox still has its first call.
        assert sorted(hanging.mailboxes()) == sorted(inbox.id for inbox in stuck)
        answers.set()
        assert wait_for(lambda: len(hanging.got) == 3 * len(stuck))
    finally:
        answers.set()
        hanging.close()


@pytest.mark.parametrize(
    "url",
    [
        "https://10.0.0.1/",
        "https://169.254.169.254/latest/meta-data/",
        "https://[::1]/",
        "http://192.0.2.1/",  # plain HTTP, and not one of --webhook-allow
        "ftp://example.com/",
        "https://user:word@example.com/",
        "https://192.0.2.1:25/",
    ],
)
def test_a_webhook_to_a_place_that_may_not_be_called_is_refused_when_it_is_added(mail, url):
    answer = add_webhook(make_inbox(mail), url, ["oversight.pending"])
    assert answer.status == 400, answer
    assert "webhook" in answer.json["error"]
