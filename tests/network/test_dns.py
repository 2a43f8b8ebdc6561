"""Questions to DNS: every one goes to egress, whichever server was asked, over UDP and TCP, IPv4 and IPv6."""

import struct

import pytest

from world import HOSTS

ONE = HOSTS["one"]
OFF = {"allow_internet_access": False}
SERVERS = ["8.8.8.8", HOSTS["dns"], "203.0.113.200", "2001:4860:4860::8888"]


@pytest.mark.parametrize("over_tcp", [False, True], ids=["udp", "tcp"])
@pytest.mark.parametrize("server", SERVERS)
def test_whichever_server_is_asked_egress_answers(cloister, hosts, server, over_tcp):
    box = cloister.shared_box()
    hosts.forget()
    found = box.ok("dns", "one.test", 1, server, over_tcp)
    assert found["rcode"] == 0 and found["id"] == 0x1234
    assert [row[2] for row in found["answers"]] == [ONE]
    assert not [event for event in hosts.seen("dns") if event.get("silent")], "a question went to the server that the guest named"


def test_answers_have_every_address(cloister):
    box = cloister.shared_box()
    assert box.ok("resolve", "one.test") == sorted([ONE, HOSTS["one_six"]])
    assert box.ok("resolve", "chain.test") == sorted([ONE, HOSTS["one_six"]])
    assert box.ok("resolve", "six.test") == [HOSTS["one_six"]]


# name, type, code
CODES = [
    ("nothing.test", 1, 3),
    ("four.test", 28, 0),  # there is no such record
    ("servfail.test", 1, 2),
    ("refused.test", 1, None),
    ("bomb.test", 1, None),
    ("short.test", 1, None),
    ("loop.test", 1, None),
    ("wrongname.test", 1, None),
]


@pytest.mark.parametrize("name, kind, code", CODES, ids=[row[0] for row in CODES])
def test_an_answer_that_is_none_is_told_at_once(cloister, name, kind, code):
    found = cloister.shared_box().ok("dns", name, kind)
    assert not [row for row in found["answers"] if row[1] in (1, 28)], found
    if code is not None:
        assert found["rcode"] == code


def test_answers_with_another_id_or_from_another_address_are_not_believed(cloister, hosts):
    box = cloister.shared_box()
    for name in ("wrongid.test", "wrongaddr.test"):
        assert [row[2] for row in box.ok("dns", name)["answers"]] in ([ONE], []), name


def test_a_huge_answer_is_cut_to_what_the_guest_can_take(cloister):
    box = cloister.shared_box()
    assert box.ok("dns", "many.test")["size"] <= 512
    assert len(box.ok("dns", "many.test", 1, "8.8.8.8", True)["answers"]) >= 1
    answer = box.ok("dns", "big.test", 1, "8.8.8.8", True)
    assert answer["size"] < 65536


# type, its number, the code, what is in the answer, whether a name server is asked
TYPES = [
    ("TXT", 16, 0, ["hello from TXT"], True),
    ("MX", 15, 0, [], True),
    ("SRV", 33, 0, [], True),
    ("CAA", 257, 0, [], True),
    ("HTTPS", 65, 0, [], False),  # has addresses of its own
    ("SVCB", 64, 0, [], False),
    ("NULL", 10, 0, [], False),  # any bytes: what tunnels like best
    ("a type that nobody knows", 4711, 0, [], False),
    ("ANY", 255, 4, [], False),
    ("a zone transfer", 252, 4, [], False),
]


@pytest.mark.parametrize("what, kind, code, texts, is_asked", TYPES, ids=[row[0] for row in TYPES])
def test_every_type_has_a_decided_answer(cloister, hosts, what, kind, code, texts, is_asked):
    box = cloister.shared_box()
    hosts.forget()
    found = box.ok("dns", "text.test", kind, "8.8.8.8", kind == 252)
    assert (found["rcode"], [row[2] for row in found["answers"]]) == (code, texts), found
    assert bool(hosts.seen("dns", type=kind)) <= is_asked


def test_a_name_that_leads_to_a_private_address_is_not_pinned(cloister, hosts):
    box = cloister.shared_box()
    hosts.forget()
    for name in ("private.test", "metadata.test", "mapped.test", "loopback.test", "machine.test"):
        result = box.fails("http", name, name)
        assert result["error"] != "TimeoutError", result
    assert not hosts.seen("tcp")


def test_a_server_that_never_answers_is_given_up(cloister, hosts):
    """The guest is told; meanwhile other questions of the same sandbox are answered."""
    box = cloister.shared_box()
    box.run("python3 /tmp/guest.py dns '[\"silent.test\"]' >/tmp/silent 2>&1 &")
    assert hosts.wait_seen("dns", name="silent.test")
    assert box.ok("dns", "one.test")["rcode"] == 0
    found = box.ok("dns", "silent.test")
    assert found["rcode"] == 2, found


def question_bytes(**changes):
    fields = {"flags": 0x0100, "questions": 1, "answers": 0, "body": b"\x03one\x04test\0" + struct.pack(">HH", 1, 1), **changes}
    return struct.pack(">HHHHHH", 7, fields["flags"], fields["questions"], fields["answers"], 0, 0) + fields["body"]


@pytest.mark.parametrize("what, data", [
    ("nothing", b""),
    ("half a head", b"\0\7\1\0\0"),
    ("no question", question_bytes(questions=0, body=b"")),
    ("65535 questions", question_bytes(questions=65535)),
    ("two questions", question_bytes(questions=2, body=(b"\x03one\x04test\0" + struct.pack(">HH", 1, 1)) * 2)),
    ("an answer", question_bytes(flags=0x8180)),
    ("a name that points at itself", question_bytes(body=b"\xc0\x0c" + struct.pack(">HH", 1, 1))),
    ("a label that is too long", question_bytes(body=b"\x40" + b"a" * 64 + b"\0" + struct.pack(">HH", 1, 1))),
    ("a name that is too long", question_bytes(body=(b"\x3f" + b"a" * 63) * 5 + b"\0" + struct.pack(">HH", 1, 1))),
    ("a name without an end", question_bytes(body=b"\x03one\x04te")),
    ("another class", question_bytes(body=b"\x03one\x04test\0" + struct.pack(">HH", 1, 3))),
    ("an update", question_bytes(flags=0x2800)),
    ("a zone transfer", question_bytes(body=b"\x04test\0" + struct.pack(">HH", 252, 1))),
    ("zero bytes in a name", question_bytes(body=b"\x03o\0e\x04test\0" + struct.pack(">HH", 1, 1))),
], ids=lambda value: value if isinstance(value, str) else "")  # fmt: skip
def test_a_malformed_question_is_answered_with_an_error_or_not_at_all(cloister, hosts, what, data):
    box = cloister.shared_box()
    hosts.forget()
    result = box.call("dns_raw", data.hex(), "8.8.8.8", 1)
    if "ok" in result:
        assert bytes.fromhex(result["ok"])[3] & 15 != 0, result
    else:
        assert result["error"] == "TimeoutError"
    assert not hosts.seen("dns"), "it was passed on"
    assert box.ok("dns", "one.test")["rcode"] == 0


def test_internet_off_answers_at_once_and_asks_nobody(cloister, hosts):
    box = cloister.shared_box(**OFF)
    hosts.forget()
    found = box.ok("dns", "one.test")
    assert found["rcode"] != 0 and not found["answers"]
    assert box.ok("dns", "one.test", 1, "8.8.8.8", True)["rcode"] != 0
    assert not hosts.seen("dns")
    assert box.wait_log("one.test")


def test_a_tunnel_through_dns_is_limited(cloister, hosts):
    """Data in the labels of many names: the first of a burst pass, the rest are refused, and the log says it."""
    box = cloister.box()
    try:
        hosts.forget()
        codes = box.ok("dns_flood", 3000, "wild.test")
        passed = len({event["name"] for event in hosts.seen("dns") if event["name"]})
        assert passed < 1500, f"{passed} of 3000 questions were passed on; answers: {codes}"
        assert box.wait_log("question")
    finally:
        box.kill()


def test_another_sandbox_is_answered_while_one_floods(cloister, make_box):
    flooder, other = make_box(), make_box()
    flooder.run("for i in 1 2 3; do python3 /tmp/guest.py dns_flood '[2000, \"wild.test\"]' >/dev/null & done")
    assert other.ok("resolve", "one.test")
    assert other.ok("http", "one.test", "one.test")
