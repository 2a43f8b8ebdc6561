"""PyPI's `multimail`, unmodified: every method, by its synchronous and its asynchronous client. Then the published calls by
plain HTTP, as scripts make them. Methods that a self-hosted server cannot serve have an error that says why."""

import asyncio
import base64
import inspect
import secrets
import time
import warnings

import pytest
import requests
from server import wait_for

with warnings.catch_warnings():
    warnings.simplefilter("ignore", FutureWarning)  # the package says that it is retired
    from multimail import (
        AsyncMultiMail,
        AuthenticationError,
        MultiMail,
        MultiMailError,
        NotFoundError,
        RateLimitError,
    )

# Methods that answer 501 on a self-hosted server, with a word of the reason.
NOT_SERVED = {
    "update_account": "operator",
    "delete_account": "operator",
    "add_domain": "domain",
    "verify_domain": "domain",
    "delete_domain": "domain",
    "list_suppressions": "suppression",
    "remove_suppression": "suppression",
}


class Blocking:
    """The asynchronous client, called like the other one."""

    def __init__(self, key, base_url):
        self.loop = asyncio.new_event_loop()
        self.client = AsyncMultiMail(key, base_url=base_url)

    def __getattr__(self, name):
        method = getattr(self.client, name)
        return lambda *args, **named: self.loop.run_until_complete(method(*args, **named))

    def close(self):
        self.loop.run_until_complete(self.client.close())
        self.loop.close()


class Operator:
    """What `cloister mail` does, by the routes that it uses."""

    def __init__(self, server):
        self.server = server
        self.token = (server.data / "admin-token").read_text().strip()

    def call(self, method, path, body=None):
        answer = self.server.call(method, path, body, {"X-Admin-Token": self.token})
        assert answer.status < 300, answer
        return answer.json

    def inbox(self, **fields):
        """Each has an address that was never used: the data directory stays between runs."""
        return self.call("POST", "/mail/inboxes", {"name": f"t-{secrets.token_hex(6)}", **fields})

    def oversight_key(self, tenant="default"):
        return self.call("POST", "/mail/keys", {"name": "eyes", "scopes": ["oversight"], "tenant": tenant})["key"]

    def code(self, inbox=None):
        """The newest code, of this inbox."""
        codes = [row for row in self.call("GET", "/mail/codes")["codes"] if inbox in (None, row["inbox"])]
        return max(codes, key=lambda row: row["created_at"])["code"]


@pytest.fixture(scope="module")
def operator(server):
    """The data directory stays between runs: what they have left held would fill the first page of every list."""
    made, seen = Operator(server), set()
    while rows := [row["id"] for row in made.call("GET", "/mail/pending")["pending"] if row["id"] not in seen]:
        for message in rows:
            seen.add(message)
            server.call("POST", f"/mail/messages/{message}/decide", {"action": "reject"}, {"X-Admin-Token": made.token})
    return made


@pytest.fixture(scope="module", params=["sync", "async"])
def connect(request, server):
    """Makes clients of one kind."""
    made = []

    def make(key):
        client = (MultiMail if request.param == "sync" else Blocking)(key, base_url=server.url + "/")
        made.append(client)
        return client

    yield make
    for client in made:
        client.close()


@pytest.fixture
def box(operator):
    return operator.inbox()


@pytest.fixture
def mail(connect, box):
    return connect(box["key"])


@pytest.fixture
def eyes(connect, operator):
    return connect(operator.oversight_key())


@pytest.fixture
def other(operator):
    """A recipient on the same server."""
    return operator.inbox()


def refused(status, call, *args, **named):
    with pytest.raises(MultiMailError) as caught:
        call(*args, **named)
    assert caught.value.status_code == status, caught.value
    assert isinstance(caught.value.body["error"], str)
    return caught.value


def approve(eyes, email_id):
    return eyes.decide(email_id, "approve")


def received(client, mailbox_id, subject):
    """The message with this subject, once it is there."""

    def look():
        rows = client.list_emails(mailbox_id, direction="inbound")["emails"]
        return next((row for row in rows if row["subject"] == subject), None)

    row = wait_for(look, 20)
    assert row, f"'{subject}' has not arrived"
    return row


# ---- every method ----


def test_this_file_knows_every_method_of_the_client():
    source = inspect.getsource(inspect.getmodule(test_this_file_knows_every_method_of_the_client))
    for client in (MultiMail, AsyncMultiMail):
        names = [name for name in vars(client) if not name.startswith("_") and name != "close"]
        assert len(names) > 30
        missing = [name for name in names if f".{name}(" not in source and name not in NOT_SERVED]
        assert not missing


@pytest.mark.parametrize("name", NOT_SERVED)
def test_what_a_self_hosted_server_cannot_do_says_why(mail, name):
    arguments = {
        "update_account": ((), {"name": "x"}),
        "delete_account": ((), {}),
        "list_suppressions": ((), {}),
        "remove_suppression": (("a+b@x.example",), {}),
    }.get(name, (("x.example",), {}))
    error = refused(501, getattr(mail, name), *arguments[0], **arguments[1])
    assert NOT_SERVED[name] in str(error)


def test_account_and_usage(mail, box):
    account = mail.get_account()
    assert account["is_active"] == 1
    assert account["plan"] == "self-hosted"
    usage = mail.get_usage()
    assert usage["emails_sent"] == 0
    assert usage["from"] < usage["to"]
    assert [row["domain"] for row in mail.list_domains()] == [box["address"].split("@")[1]]


def test_the_oversight_address_needs_a_code_and_is_not_of_this_server(mail, box, other, operator):
    want = {"oversight_email": "eyes@oversight.example"}
    assert mail.update_account(**want)["status"] == "pending_approval"
    assert mail.update_account(**want, approval_code=operator.code())["status"] == "updated"
    assert mail.get_account()["oversight_email"] == want["oversight_email"]
    refused(400, mail.update_account, oversight_email=other["address"])
    operator.call("PUT", "/mail/oversight", {"address": ""})
    assert mail.get_account()["oversight_email"] is None


def test_mailboxes(mail, box, connect, operator):
    (row,) = mail.list_mailboxes()
    assert row["id"] == box["id"]
    assert row["address"] == box["address"]
    assert row["oversight_mode"] == "gated_send"
    assert mail.update_mailbox(box["id"], display_name="New name")["status"] == "updated"
    assert mail.list_mailboxes()[0]["display_name"] == "New name"
    local = f"t-{secrets.token_hex(6)}"
    assert mail.create_mailbox(local, "Second")["status"] == "pending_approval"
    code = operator.code()
    refused(403, mail.create_mailbox, local, "Second", approval_code="AAA-AAA")
    made = mail.create_mailbox(local, "Second", approval_code=code, oversight_mode="gated_send")
    assert made["address"].startswith(local + "@")
    second = connect(made["api_key"])
    assert [row["id"] for row in second.list_mailboxes()] == [made["id"]]
    second.delete_mailbox(made["id"])
    with pytest.raises(MultiMailError):
        second.list_emails(made["id"])


def test_a_message_is_held_approved_and_delivered(mail, box, eyes, other, connect):
    receiver = connect(other["key"])
    attached = {
        "name": "100%.txt",
        "content_base64": base64.b64encode(b"attached").decode(),
        "content_type": "text/plain",
    }
    sent = mail.send_email(
        box["id"], to=[other["address"]], subject="Report", markdown="**Hello**", attachments=[attached]
    )
    assert sent["status"] == "pending_send_approval"
    assert sent["id"].startswith("em_")
    assert receiver.list_emails(other["id"])["emails"] == []

    (held,) = [row for row in eyes.list_pending() if row["id"] == sent["id"]]
    assert held["subject"] == "Report"
    assert held["to"] == [other["address"]]
    assert "Hello" in held["body_markdown"]
    assert held["content_sha256"] == sent["content_sha256"]
    assert [file["name"] for file in held["attachments"]] == ["100%.txt"]
    refused(403, mail.decide, sent["id"], "approve")  # the composer's own key

    assert approve(eyes, sent["id"])["status"] in ("approved", "approved_and_sent")
    assert refused(409, approve, eyes, sent["id"])
    row = received(receiver, other["id"], "Report")
    assert row["from_address"] == box["address"]
    assert row["status"] == "unread"
    assert row["has_attachments"]
    email = receiver.get_email(other["id"], row["id"])
    assert "Hello" in email["text_body"]
    assert receiver.list_emails(other["id"])["emails"][0]["status"] == "read"
    assert receiver.download_attachment(other["id"], row["id"], "100%.txt") == b"attached"
    refused(404, receiver.download_attachment, other["id"], row["id"], "no.txt")
    assert wait_for(lambda: mail.get_email(box["id"], sent["id"])["status"] == "sent", 20)

    # And the answer, in the same thread on both sides.
    answer = receiver.reply_email(other["id"], row["id"], markdown="Thanks")
    approve(eyes, answer["id"])
    back = received(mail, box["id"], "Re: Report")
    assert back["thread_id"] == sent["thread_id"]
    thread = mail.get_thread(box["id"], sent["thread_id"])
    assert [email["direction"] for email in thread["emails"]] == ["outbound", "inbound"]
    assert thread["message_count"] == 2
    assert thread["has_unanswered_inbound"]


def test_a_rejected_message_never_arrives(mail, box, eyes, other, connect):
    sent = mail.send_email(box["id"], to=[other["address"]], subject="No", markdown="x")
    assert eyes.decide(sent["id"], "reject", reason="not now")["status"] == "rejected"
    refused(409, eyes.decide, sent["id"], "approve")
    email = mail.get_email(box["id"], sent["id"])
    assert email["status"] == "rejected"
    assert email["reason"] == "not now"
    time.sleep(0.5)
    assert connect(other["key"]).list_emails(other["id"])["emails"] == []


def test_a_cancelled_message_cannot_be_approved(mail, box, eyes, other):
    sent = mail.send_email(box["id"], to=[other["address"]], subject="Stop", markdown="x")
    assert mail.cancel_email(box["id"], sent["id"])["status"] == "cancelled"
    assert mail.cancel_email(box["id"], sent["id"])["status"] == "cancelled"
    refused(409, approve, eyes, sent["id"])


def test_an_idempotency_key_sends_once(mail, box, eyes, other):
    """A repeat has the service's words, and how the message stands now beside them."""

    def send():
        return mail.send_email(box["id"], to=[other["address"]], subject="Once", markdown="x", idempotency_key="k")

    first, again = send(), send()
    assert "email_status" not in first
    assert again["id"] == first["id"] and again["idempotent"]
    assert (again["status"], again["email_status"]) == ("already_sent", "pending_send_approval")
    eyes.decide(first["id"], "reject")
    assert (send()["status"], send()["email_status"]) == ("already_sent", "rejected")


def test_a_loop_of_sends_meets_429(mail, box, other):
    caught = None
    for number in range(200):
        try:
            mail.send_email(box["id"], to=[other["address"]], subject=f"Loop {number}", markdown="x")
        except RateLimitError as error:
            caught = error
            break
    assert caught
    assert caught.retry_after >= 1


def test_tags(mail, box, other):
    sent = mail.send_email(box["id"], to=[other["address"]], subject="Tagged", markdown="x")
    assert mail.set_tags(box["id"], sent["id"], {"a": "1", "b": "2"})["tags"] == {"a": "1", "b": "2"}
    assert mail.set_tags(box["id"], sent["id"], {"b": "3"})["tags"] == {"a": "1", "b": "3"}
    mail.delete_tag(box["id"], sent["id"], "a")
    assert mail.get_tags(box["id"], sent["id"])["tags"] == {"b": "3"}


def test_contacts(mail):
    made = mail.add_contact("bob@b.example", "Bob", tags=["friend"])
    mail.add_contact("carol@c.example", "Carol")
    assert [row["email"] for row in mail.list_contacts(q="bob")] == ["bob@b.example"]
    assert len(mail.list_contacts()) == 2
    assert mail.list_contacts(q="bob")[0]["tags"] == ["friend"]
    mail.delete_contact(made["id"])
    assert [row["name"] for row in mail.list_contacts()] == ["Carol"]
    refused(404, mail.delete_contact, made["id"])


def test_api_keys(mail, box, connect, operator):
    assert mail.create_api_key("reader", ["read"])["status"] == "pending_approval"
    # The client has no parameter for the code; scripts send it in the body.
    key = requests.post(
        f"{operator.server.url}/v1/api-keys",
        headers={"Authorization": f"Bearer {box['key']}"},
        json={"name": "reader", "scopes": ["read"], "approval_code": operator.code(box["id"])},
        timeout=30,
    ).json()
    assert key["api_key"].startswith("mm_live_")
    reader = connect(key["api_key"])
    assert reader.list_emails(box["id"])["emails"] == []
    refused(403, reader.send_email, box["id"], to=["a@b.example"], subject="s", markdown="x")
    assert key["id"] in [row["id"] for row in mail.list_api_keys()]
    refused(400, mail.create_api_key, "both", ["send", "oversight"])
    mail.revoke_api_key(key["id"])  # asks for a code as well
    requests.delete(
        f"{operator.server.url}/v1/api-keys/{key['id']}",
        headers={"Authorization": f"Bearer {box['key']}"},
        params={"approval_code": operator.code(box["id"])},
        timeout=30,
    ).raise_for_status()
    with pytest.raises(AuthenticationError):
        reader.list_mailboxes()


def test_webhooks(mail, box, operator):
    want = {"url": "https://hooks.example/x", "events": ["message.received"]}
    answer = mail.create_webhook(want["url"], want["events"])
    assert answer["status"] == "pending_approval"
    made = requests.post(
        f"{operator.server.url}/v1/webhooks",
        headers={"Authorization": f"Bearer {box['key']}"},
        json={**want, "approval_code": operator.code(box["id"])},
        timeout=30,
    ).json()
    assert made["signing_secret"].startswith("whsec_")
    (row,) = mail.list_webhooks()
    assert row["url"] == want["url"]
    assert row["events"] == want["events"]
    assert "signing_secret" not in row
    mail.delete_webhook(made["id"])
    assert mail.list_webhooks() == []


def test_the_audit_log_is_a_chain(mail, box, other):
    mail.send_email(box["id"], to=[other["address"]], subject="Quite secret", markdown="x")
    entries = mail.get_audit_log()
    assert len(entries) >= 2
    for newer, older in zip(entries, entries[1:], strict=False):
        assert newer["prev_hash"] == older["hash"]
    assert "Quite secret" not in str(entries)
    assert other["address"] not in str(entries)


# ---- errors ----


def test_a_wrong_key_is_an_authentication_error(connect, box):
    with pytest.raises(AuthenticationError):
        connect("mm_live_wrong").list_mailboxes()


def test_what_is_of_others_looks_like_what_does_not_exist(mail, box, other):
    texts = set()
    for call in (
        lambda: mail.list_emails(other["id"]),
        lambda: mail.list_emails("01JAAAAAAAAAAAAAAAAAAAAAAA"),
        lambda: mail.get_email(box["id"], "em_01JAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"),
        lambda: mail.send_email(other["id"], to=["a@b.example"], subject="s", markdown="x"),
        lambda: mail.update_mailbox(other["id"], display_name="x"),
        lambda: mail.delete_mailbox(other["id"]),
        lambda: mail.get_thread(other["id"], "01JAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"),
    ):
        with pytest.raises(NotFoundError) as caught:
            call()
        texts.add(str(caught.value))
    assert len(texts) == 1, texts


# ---- published scripts ----


def test_the_published_scripts(server, box, other, operator):
    """Only the key and the mailbox are filled in."""
    base = f"{server.url}/v1"
    headers = {"Authorization": f"Bearer {box['key']}"}
    resp = requests.post(
        f"{base}/send",
        headers=headers,
        json={"mailbox_id": box["id"], "to": other["address"], "subject": "Hello", "body": "From a script"},
        timeout=30,
    )
    sent = resp.json()
    assert resp.status_code == 202
    assert sent["status"] == "pending_send_approval"
    held = operator.call("GET", f"/mail/messages/{sent['id']}")
    assert held["content_sha256"] == sent["content_sha256"]
    operator.call(
        "POST",
        f"/mail/messages/{sent['id']}/decide",
        {"action": "approve", "content_sha256": held["content_sha256"]},
    )

    def inbox():
        return requests.get(
            f"{base}/mailboxes/{other['id']}/inbox",
            headers={"Authorization": f"Bearer {other['key']}"},
            params={"limit": 5},
            timeout=30,
        ).json()["messages"]

    (message,) = wait_for(inbox, 20)
    assert message["subject"] == "Hello"
    assert box["address"] in message["from"]
    assert message["date"].endswith("Z")


def test_a_decision_about_other_bytes_is_refused(server, box, other, operator, eyes):
    sent = requests.post(
        f"{server.url}/v1/emails/send",
        headers={"X-API-Key": box["key"]},
        json={"mailbox": box["address"], "to": [other["address"]], "subject": "s", "text": "x"},
        timeout=30,
    ).json()
    key = operator.oversight_key()
    answer = requests.post(
        f"{server.url}/v1/emails/{sent['id']}/decide",
        headers={"Authorization": f"Bearer {key}"},
        json={"decision": "approve", "content_sha256": "0" * 64},
        timeout=30,
    )
    assert answer.status_code == 409
    rows = requests.get(
        f"{server.url}/v1/emails/pending",
        params={"mailbox": box["address"]},
        headers={"Authorization": f"Bearer {key}"},
        timeout=30,
    ).json()["emails"]
    assert [row["id"] for row in rows] == [sent["id"]]


def test_short_forms(server, box, other, operator):
    headers = {"Authorization": f"Bearer {other['key']}"}
    sent = requests.post(
        f"{server.url}/v1/send",
        headers={"Authorization": f"Bearer {box['key']}"},
        json={"to": other["address"], "subject": "Short", "body": "x"},  # the key has one mailbox
        timeout=30,
    ).json()
    operator.call("POST", f"/mail/messages/{sent['id']}/decide", {"action": "approve"})

    def get(path, **params):
        answer = requests.get(f"{server.url}/v1{path}", headers=headers, params=params, timeout=30)
        assert answer.status_code == 200, answer.text
        return answer.json()

    (row,) = wait_for(lambda: get("/emails/inbox", mailbox=other["address"])["emails"], 20)
    assert get(f"/emails/{row['id']}")["body"].strip() == "x"
    assert get(f"/emails/thread/{row['thread_id']}")["emails"][0]["id"] == row["id"]
    tagged = requests.post(
        f"{server.url}/v1/emails/{row['id']}/tag", headers=headers, json={"tags": ["a", "b"]}, timeout=30
    ).json()
    assert tagged == {"id": row["id"], "tags": {"a": "true", "b": "true"}}
    answer = requests.post(
        f"{server.url}/v1/emails/{row['id']}/reply", headers=headers, json={"body": "yes"}, timeout=30
    )
    assert answer.status_code == 202, answer.text
    spam = requests.post(f"{server.url}/v1/emails/{row['id']}/report-spam", headers=headers, timeout=30).json()
    assert spam["status"] == "spam_quarantined"
    assert [r["id"] for r in get("/emails", status="spam_quarantined")["emails"]] == [row["id"]]
    assert requests.post(f"{server.url}/v1/emails/{row['id']}/not-spam", headers=headers, timeout=30).json()["status"] == "unread"


def test_attachment_links_work_without_a_key_and_only_as_downloads(server, box, other, operator):
    sent = requests.post(
        f"{server.url}/v1/send",
        headers={"Authorization": f"Bearer {box['key']}"},
        json={
            "to": other["address"],
            "subject": "Page",
            "body": "x",
            "attachments": [
                {"name": "p.html", "content_base64": base64.b64encode(b"<b>").decode(), "content_type": "text/html"}
            ],
        },
        timeout=30,
    ).json()
    link = requests.get(
        f"{server.url}/v1/mailboxes/{box['id']}/emails/{sent['id']}/attachments/p.html/url",
        headers={"Authorization": f"Bearer {box['key']}"},
        timeout=30,
    ).json()
    answer = requests.get(link["url"], timeout=30)
    assert answer.content == b"<b>"
    assert answer.headers["Content-Type"] == "application/octet-stream"
    assert answer.headers["Content-Disposition"].startswith("attachment")
    assert requests.get(link["url"] + "x", timeout=30).status_code == 404


def test_lists_are_filtered_by_status_and_paged(server, box, other, operator):
    headers = {"Authorization": f"Bearer {box['key']}"}

    def send(to, subject):
        answer = requests.post(
            f"{server.url}/v1/send", headers=headers, json={"to": to, "subject": subject, "body": "x"}, timeout=30
        )
        assert answer.status_code == 202, answer.text
        return answer.json()["id"]

    def ids(**params):
        answer = requests.get(f"{server.url}/v1/mailboxes/{box['id']}/emails", headers=headers, params=params, timeout=30)
        assert answer.status_code == 200, answer.text
        rows = answer.json()
        return [row["id"] for row in rows["emails"]], rows["cursor"]

    inside, outside, held = send(other["address"], "In"), send("x@far.example", "Out"), send("y@far.example", "Held")
    for message in (inside, outside):
        operator.call("POST", f"/mail/messages/{message}/decide", {"action": "approve"})
    # This version does not send to the outside: what is approved for it waits in the queue.
    assert wait_for(lambda: ids(status="sent")[0] == [inside], 20)
    assert wait_for(lambda: ids(status="queued")[0] == [outside], 20)
    assert ids(status="pending_send_approval")[0] == [held]
    assert ids(status="pending_approval")[0] == [held]
    assert ids(subject_contains="OUT")[0] == [outside]
    assert ids(since_id=inside)[0] == [held, outside]
    seen, cursor = ids(limit=2)
    assert seen == [held, outside]
    assert ids(limit=2, cursor=cursor) == ([inside], None)
    assert ids(limit=2, offset=2)[0] == [inside]


# ---- modes ----


def test_the_ladder(server, box, operator):
    headers = {"Authorization": f"Bearer {box['key']}"}
    path = f"{server.url}/v1/mailboxes/{box['id']}"

    def call(method, more="", **body):
        return requests.request(method, path + more, headers=headers, json=body, timeout=30)

    assert call("PATCH", oversight_mode="autonomous").status_code == 403
    assert call("POST", "/request-upgrade", target_mode="gated_all").status_code == 400
    assert call("POST", "/request-upgrade", target_mode="monitored").json()["status"] == "upgrade_requested"
    assert call("POST", "/upgrade", code="AAA-AAA").status_code == 403
    assert call("POST", "/upgrade", code=operator.code(box["id"])).json()["status"] == "upgraded"
    assert requests.get(path, headers=headers, timeout=30).json()["oversight_mode"] == "monitored"
    assert call("PATCH", oversight_mode="read_only").json()["status"] == "updated"
    refusal = call("POST", "/send", to="a@b.example", subject="s", markdown="x")
    assert refusal.status_code == 403
    assert "error" in refusal.json()
    operator.call("PUT", f"/mail/inboxes/{box['id']}/mode", {"mode": "gated_send"})
    assert call("POST", "/send", to="a@b.example", subject="s", markdown="x").status_code == 202


def test_the_allowlist_needs_a_code(server, box, other, operator):
    headers = {"Authorization": f"Bearer {box['key']}"}
    path = f"{server.url}/v1/mailboxes/{box['id']}"
    want = {"pattern": other["address"]}
    assert requests.post(f"{path}/allowlist", headers=headers, json=want, timeout=30).status_code == 202
    want["approval_code"] = operator.code(box["id"])
    assert requests.post(f"{path}/allowlist", headers=headers, json=want, timeout=30).status_code == 201
    sent = requests.post(
        f"{path}/send",
        headers=headers,
        json={"to": [other["address"]], "subject": "Allowed", "markdown": "x"},
        timeout=30,
    ).json()
    assert sent["status"] in ("queued", "sent")
    sent = requests.post(
        f"{path}/send",
        headers=headers,
        json={"to": [other["address"], "x@y.example"], "subject": "Not all allowed", "markdown": "x"},
        timeout=30,
    ).json()
    assert sent["status"] == "pending_send_approval"
