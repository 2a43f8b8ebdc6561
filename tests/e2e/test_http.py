"""The control API by hand: bad input, exact shapes, and what must not happen."""

import json
import re
import socket
import time

import pytest
from server import wait_for

BASE = {"templateID": "base", "timeout": 60}
UNKNOWN_ID = "inotthere0000000000000"


def check_error(answer, status, *words):
    """The JSON that every SDK parses: code and message, and code is the status."""
    assert answer.status == status, answer
    assert answer.headers["content-type"].startswith("application/json"), answer.headers
    body = answer.json
    assert body["code"] == status and isinstance(body["message"], str) and body["message"], body
    for word in words:
        assert word.lower() in body["message"].lower(), body


def raw(server, data, seconds=5):
    """Bytes in, bytes out, until the server closes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=seconds) as s:
        s.sendall(data)
        answer = b""
        try:
            while piece := s.recv(65536):
                answer += piece
        except (TimeoutError, ConnectionResetError):
            pass
        return answer


# ---- logs ----


def test_logs_have_a_command_that_ended_just_before_the_kill(server, made):
    from e2b import Sandbox

    box = Sandbox.create(timeout=60)
    made.append(box.sandbox_id)
    box.commands.run("echo last-words")
    box.kill()

    def kinds():
        entries = server.api("GET", f"/v2/sandboxes/{box.sandbox_id}/logs").json["logs"]
        found = {entry["fields"].get("event_type") for entry in entries}
        return {"process_start", "process_end"} <= found

    assert wait_for(kinds)


def test_logs_tell_what_ran_inside(server, made):
    from e2b import Sandbox

    box = Sandbox.create(timeout=60)
    made.append(box.sandbox_id)
    box.commands.run("echo needle", envs={"SECRET": "hush"})

    def ended():
        answer = server.api("GET", f"/sandboxes/{box.sandbox_id}/logs")
        assert answer.status == 200, answer
        assert b"hush" not in answer.body
        lines = [json.loads(entry["line"]) for entry in answer.json["logs"]]
        return [line for line in lines if line.get("event_type") == "process_end"] and lines

    lines = wait_for(ended)
    assert [line["logger"] for line in lines] == ["lifecycle", "process", "process"]
    assert "echo needle" in lines[1]["command"] and lines[2]["status"] == "exit status 0"
    assert lines[1]["pid"] == lines[2]["pid"] and lines[2]["output_bytes"] == "7"
    found = server.api("GET", f"/v2/sandboxes/{box.sandbox_id}/logs?search=needle").json["logs"]
    assert [entry["fields"]["event_type"] for entry in found] == ["process_start"]
    assert server.api("DELETE", f"/sandboxes/{box.sandbox_id}").status == 204
    after = server.api("GET", f"/sandboxes/{box.sandbox_id}/logs").json["logs"]
    assert len(after) == 4  # what ran, and the end


# ---- who may ask ----

ROUTES = [
    ("GET", "/v2/sandboxes"),
    ("GET", "/sandboxes"),
    ("POST", "/sandboxes"),
    ("POST", "/v2/sandboxes"),
    ("GET", f"/sandboxes/{UNKNOWN_ID}"),
    ("DELETE", f"/sandboxes/{UNKNOWN_ID}"),
    ("POST", f"/sandboxes/{UNKNOWN_ID}/timeout"),
    ("POST", f"/sandboxes/{UNKNOWN_ID}/connect"),
    ("POST", f"/v2/sandboxes/{UNKNOWN_ID}/connect"),
]


@pytest.mark.parametrize("method, path", ROUTES)
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X-API-Key": ""},
        {"X-API-Key": "e2b_" + "0" * 40},
        {"X-API-Key": "e2b_zz"},
        {"X-API-Key": "nonsense"},
        {"X-API-Key": "e2b_" + "a" * 5000},
        {"Authorization": "Bearer x"},
    ],
    ids=["none", "empty", "unknown", "no-hex", "nonsense", "long", "other-scheme"],
)
def test_without_a_good_key_every_route_is_401(server, method, path, headers):
    check_error(server.call(method, path, b"{}" if method == "POST" else None, headers), 401)


def test_health_needs_no_key(server):
    assert server.call("GET", "/health").status in (200, 204)


def test_preflights_need_no_key_and_name_the_headers(server):
    answer = server.call(
        "OPTIONS",
        "/v2/sandboxes",
        headers={
            "Origin": "http://page",
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "x-api-key",
        },
    )
    assert answer.status == 204, answer
    assert answer.headers["access-control-allow-origin"] == "*"
    allowed = answer.headers["access-control-allow-headers"].lower()
    assert "x-api-key" in allowed and "content-type" in allowed and "authorization" in allowed


def test_answers_can_be_read_by_pages(server):
    answer = server.api("GET", "/v2/sandboxes", headers={"Origin": "http://page"})
    assert answer.headers["access-control-allow-origin"] == "*"
    assert "x-next-token" in answer.headers["access-control-expose-headers"].lower()


# ---- create ----

BAD_BODIES = {
    "empty": b"",
    "not json": b"{templateID: base}",
    "cut off": b'{"templateID":"base"',
    "an array": b"[]",
    "a string": b'"base"',
    "null": b"null",
    "two values": b'{"templateID":"base"} {}',
    "bad utf-8": b'{"templateID":"\xff"}',
    "a NUL": b'{"templateID":"ba\\u0000se"}',
    "a raw NUL": b'{"templateID":"ba\0se"}',
    "no template": b'{"timeout":60}',
    "template is a number": b'{"templateID":1}',
    "template is empty": b'{"templateID":""}',
    "timeout is text": b'{"templateID":"base","timeout":"soon"}',
    "timeout is negative": b'{"templateID":"base","timeout":-1}',
    "timeout is zero": b'{"templateID":"base","timeout":0}',
    "timeout is huge": b'{"templateID":"base","timeout":1e300}',
    "timeout past a day": b'{"templateID":"base","timeout":86401}',
    "timeout is a fraction": b'{"templateID":"base","timeout":1.5}',
    "metadata is a list": b'{"templateID":"base","metadata":[]}',
    "metadata value is a number": b'{"templateID":"base","metadata":{"a":1}}',
    "envVars is text": b'{"templateID":"base","envVars":"A=b"}',
    "envVars value is null": b'{"templateID":"base","envVars":{"A":[]}}',
    "env name has =": b'{"templateID":"base","envVars":{"A=B":"c"}}',
    "env has a NUL": b'{"templateID":"base","envVars":{"A":"b\\u0000c"}}',
    "autoPause is text": b'{"templateID":"base","autoPause":"yes"}',
    "deeply nested": b'{"templateID":' + b"[" * 10000 + b"]" * 10000 + b"}",
    "template syntax": b'{"templateID":"../../etc"}',
    "template with space": b'{"templateID":"ba se"}',
}


@pytest.mark.parametrize("body", BAD_BODIES.values(), ids=[name.replace(" ", "-") for name in BAD_BODIES])
@pytest.mark.parametrize("path", ["/sandboxes", "/v2/sandboxes"])
def test_a_bad_create_is_a_400_and_makes_nothing(server, path, body):
    before = server.running()
    check_error(server.api("POST", path, body, {"Content-Type": "application/json"}), 400)
    assert server.running() == before


def test_an_unknown_template_is_a_404(server):
    check_error(server.api("POST", "/v2/sandboxes", {"templateID": "no-such-template"}), 404, "no-such-template")


def test_an_oversized_body_is_refused_and_makes_nothing(server):
    before = server.running()
    body = json.dumps({**BASE, "metadata": {"x": "y" * (17 << 20)}}).encode()
    try:
        answer = server.api("POST", "/v2/sandboxes", body)
    except (BrokenPipeError, ConnectionResetError):
        pass  # refused before all of it was sent
    else:
        check_error(answer, 413)
    assert server.running() == before


@pytest.mark.parametrize(
    "option",
    [
        {"volumeMounts": [{"name": "v", "path": "/v"}]},
        {"iam": {"tokens": {"a": {"audience": "b", "tokenType": "JWT-SVID"}}}},
        {"mcp": {"x": {}}, "templateID": "mcp-gateway"},
    ],
    ids=["volumeMounts", "iam", "mcp"],
)
def test_an_option_that_we_do_not_have_is_refused_by_name(server, made, option):
    answer = server.api("POST", "/v2/sandboxes", {**BASE, **option})
    if answer.status == 201:  # then it must be there: the test of that option has the rest
        made.append(answer.json["sandboxID"])
        pytest.skip("this option exists")
    check_error(answer, 400)
    assert any(name in answer.json["message"] for name in option), answer


def test_unknown_fields_and_null_are_ignored(server, made):
    answer = server.api("POST", "/v2/sandboxes", {**BASE, "whatIsThis": 1, "metadata": None, "envVars": None})
    assert answer.status == 201, answer
    made.append(answer.json["sandboxID"])


def test_a_created_sandbox_has_the_fields_that_sdks_need(server, made):
    for path in ("/sandboxes", "/v2/sandboxes"):
        answer = server.api("POST", path, {**BASE, "secure": True, "allow_internet_access": True})
        assert answer.status == 201, answer
        body = answer.json
        made.append(body["sandboxID"])
        assert body["sandboxID"].startswith("i") and len(body["sandboxID"]) == 21
        assert body["templateID"] and body["clientID"] and body["envdAccessToken"] and body["alias"] == "base"
        assert [int(part) for part in body["envdVersion"].split(".")] >= [0, 6, 4]


def test_a_sandbox_that_wants_no_access_token_has_one_all_the_same(server, made):
    box = server.create(secure=False)
    made.append(box["sandboxID"])
    assert box["envdAccessToken"]
    assert server.edge("GET", {"sandboxID": box["sandboxID"]}, "/files?path=/etc/hostname").status == 401
    assert server.edge("GET", box, "/files?path=/etc/hostname").status == 200


# ---- run_code without a token ----


def run_code_like_1x(server, box):
    """As e2b-code-interpreter 1.x asks: by host name, with its User-Agent and no token of any kind."""
    return server.call(
        "POST",
        "/execute",
        {"code": "print(6 * 7)", "context_id": None, "language": None, "env_vars": None},
        {"User-Agent": "python-httpx/0.28.1", "Accept": "*/*"},
        host=f"49999-{box['sandboxID']}.e2b.example",
    )


def create_on(server, route, **fields):
    answer = server.api("POST", route, {"templateID": "base", "timeout": 120, **fields})
    assert answer.status == 201, answer
    return answer.json


@pytest.mark.parametrize("fields", [{}, {"secure": False}], ids=["absent", "false"])
def test_code_runs_without_a_token_where_version_one_asks_for_no_security(server, made, fields):
    # What 1.x sends besides.
    box = create_on(server, "/sandboxes", autoPause=False, metadata={}, envVars={}, **fields)
    made.append(box["sandboxID"])
    answer = run_code_like_1x(server, box)
    assert answer.status == 200 and b"42" in answer.body, answer
    # guestd's own port stays shut.
    stranger = {"sandboxID": box["sandboxID"]}
    assert server.edge("GET", stranger, "/files?path=/etc/hostname").status == 401
    start = {"Content-Type": "application/json", "Connect-Protocol-Version": "1"}
    assert server.edge("POST", stranger, "/process.Process/List", {}, headers=start).status == 401
    assert server.edge("GET", box, "/files?path=/etc/hostname").status == 200


@pytest.mark.parametrize(
    "route,fields",
    [("/sandboxes", {"secure": True}), ("/v2/sandboxes", {}), ("/v2/sandboxes", {"secure": False})],
    ids=["v1 secure", "v2", "v2 insecure"],
)
def test_code_wants_the_token_everywhere_else(server, made, route, fields):
    box = create_on(server, route, **fields)
    made.append(box["sandboxID"])
    assert run_code_like_1x(server, box).status == 401
    headers = {"X-Access-Token": box["envdAccessToken"]}
    answer = server.edge("POST", box, "/execute", {"code": "print(6 * 7)"}, port=49999, headers=headers)
    assert answer.status == 200 and b"42" in answer.body, answer


def test_a_chunked_body_is_as_good_as_a_counted_one(server, made):
    text = json.dumps(BASE).encode()
    answer = raw(
        server,
        (
            f"POST /v2/sandboxes HTTP/1.1\r\nHost: x\r\nX-API-Key: {server.key}\r\nConnection: close\r\n"
            "Transfer-Encoding: chunked\r\n\r\n"
        ).encode()
        + b"%x\r\n%s\r\n0\r\n\r\n" % (len(text), text),
        30,
    )
    assert answer.startswith(b"HTTP/1.1 201 "), answer
    made.append(json.loads(answer[answer.index(b"{") : answer.rindex(b"}") + 1])["sandboxID"])


def test_the_two_routes_differ_in_their_default_timeout(server, made):
    for path, seconds in (("/sandboxes", 15), ("/v2/sandboxes", 300)):
        made.append(server.api("POST", path, {"templateID": "base"}).json["sandboxID"])
        info = server.api("GET", f"/sandboxes/{made[-1]}").json
        assert abs(life_of(info) - seconds) < 1, info


def life_of(info):
    from datetime import datetime

    def parse(text):
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()

    return parse(info["endAt"]) - parse(info["startedAt"])


# ---- repeats ----


def create_with_key(server, key, **fields):
    return server.api("POST", "/v2/sandboxes", {**BASE, **fields}, {"Idempotency-Key": key})


def test_a_repeated_create_makes_one_sandbox(server, made):
    key = f"repeat-{time.time_ns()}"
    first, second = create_with_key(server, key), create_with_key(server, key)
    made.append(first.json["sandboxID"])
    assert (first.status, second.status) == (201, 201)
    assert second.json == first.json
    assert server.running().count(made[0]) == 1 and len(set(server.running())) == len(server.running())
    other = create_with_key(server, key, timeout=61)
    check_error(other, 422)
    assert other.json["error_code"] == "idempotency_request_mismatch"


def test_repeats_at_the_same_time_make_one_sandbox(server, made):
    import concurrent.futures

    key, before = f"race-{time.time_ns()}", set(server.running())
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: create_with_key(server, key), range(8)))
    made.extend(set(server.running()) - before)
    assert len(made) == 1, answers
    for answer in answers:
        if answer.status == 201:
            assert answer.json["sandboxID"] == made[0]
        else:
            check_error(answer, 409)
            assert answer.json["error_code"] == "idempotency_in_progress"
            assert answer.headers["should-retry"] == "true" and int(answer.headers["retry-after"]) >= 1


@pytest.mark.parametrize(
    "key", ["", "UPPER", "with space", "a" * 256, "ü".encode("utf-8").decode("latin-1"), "semi;colon"]
)
def test_a_malformed_idempotency_key_is_a_400(server, key):
    before = server.running()
    check_error(create_with_key(server, key), 400)
    assert server.running() == before


def test_a_refused_create_does_not_use_up_its_key(server, made):
    key = f"refused-{time.time_ns()}"
    check_error(create_with_key(server, key, templateID="no-such-template"), 404)
    answer = create_with_key(server, key)
    assert answer.status == 201, answer
    made.append(answer.json["sandboxID"])


# ---- one sandbox ----

BAD_IDS = [
    "UPPER",
    "a_b",
    "a.b",
    "..",
    "%2e%2e",
    "a%2Fb",
    "%00",
    "a%00b",
    "%C3%BC",
    "'",
    "%25",
    "%zz",
    "a" * 5000,
    "-x",
]


@pytest.mark.parametrize("bad", BAD_IDS)
@pytest.mark.parametrize(
    "method, tail, body",
    [
        ("GET", "", None),
        ("DELETE", "", None),
        ("POST", "/timeout", {"timeout": 5}),
        ("POST", "/connect", {"timeout": 5}),
    ],
)
def test_a_bad_id_is_a_4xx(server, bad, method, tail, body):
    answer = server.api(method, f"/sandboxes/{bad}{tail}", body)
    assert answer.status in (400, 404, 414), answer
    assert answer.json["code"] == answer.status


@pytest.mark.parametrize(
    "method, tail, body",
    [
        ("GET", "", None),
        ("DELETE", "", None),
        ("POST", "/timeout", {"timeout": 5}),
        ("POST", "/connect", {"timeout": 5}),
        ("POST", "/refreshes", {}),
    ],
)
def test_an_unknown_id_is_a_404_with_a_code(server, method, tail, body):
    check_error(server.api(method, f"/sandboxes/{UNKNOWN_ID}{tail}", body), 404)
    if tail == "/connect":
        check_error(server.api(method, f"/v2/sandboxes/{UNKNOWN_ID}{tail}"), 404)


def test_an_old_client_suffix_is_dropped(server, made):
    made.append(server.create()["sandboxID"])
    assert server.api("GET", f"/sandboxes/{made[0]}-6532622b").json["sandboxID"] == made[0]


def test_detail_and_list_agree(server, made):
    made.append(server.create(metadata={"a": "b"})["sandboxID"])
    detail = server.api("GET", f"/sandboxes/{made[0]}").json
    listed = server.api("GET", "/v2/sandboxes")
    row = next(row for row in listed.json if row["sandboxID"] == made[0])
    for field in (
        "templateID",
        "clientID",
        "startedAt",
        "endAt",
        "cpuCount",
        "memoryMB",
        "diskSizeMB",
        "state",
        "envdVersion",
        "metadata",
        "alias",
    ):
        assert row[field] == detail[field], field
    assert detail["lifecycle"] == {"autoResume": False, "onTimeout": "kill"}
    assert detail["state"] == "running" and detail["volumeMounts"] == []
    assert None not in [detail.get(field, "") for field in ("network", "lifecycle", "pauseMode")]
    assert int(listed.headers["x-total-running"]) >= 1


@pytest.mark.parametrize(
    "path, body",
    [
        ("timeout", b""),
        ("timeout", b"{}"),
        ("timeout", b'{"timeout":-1}'),
        ("timeout", b'{"timeout":"5"x}'),
        ("timeout", b"[]"),
        ("connect", b"{}"),
        ("connect", b'{"timeout":-1}'),
        ("connect", b'{"timeout":86401}'),
    ],
)
def test_a_bad_deadline_is_a_400_and_changes_nothing(server, made, path, body):
    made.append(server.create()["sandboxID"])
    before = server.api("GET", f"/sandboxes/{made[0]}").json["endAt"]
    check_error(server.api("POST", f"/sandboxes/{made[0]}/{path}", body), 400)
    assert server.api("GET", f"/sandboxes/{made[0]}").json["endAt"] == before


def test_a_timeout_of_zero_ends_the_sandbox_now(server):
    sandbox_id = server.create()["sandboxID"]
    assert server.api("POST", f"/sandboxes/{sandbox_id}/timeout", {"timeout": 0}).status == 204
    assert wait_for(lambda: sandbox_id not in server.running())


def test_the_v2_connect_takes_no_body(server, made):
    created = server.create()
    made.append(created["sandboxID"])
    for body in (None, b"", {}):
        answer = server.api("POST", f"/v2/sandboxes/{made[0]}/connect", body)
        assert answer.status == 200, answer
        assert answer.json["envdAccessToken"] == created["envdAccessToken"]


def test_kill_is_204_then_404_and_gone_at_once(server):
    sandbox = server.create()
    sandbox_id = sandbox["sandboxID"]
    assert server.api("DELETE", f"/sandboxes/{sandbox_id}").status == 204
    assert sandbox_id not in server.running()
    assert server.edge("GET", sandbox, "/health").status == 502
    check_error(server.api("DELETE", f"/sandboxes/{sandbox_id}"), 404)
    check_error(server.api("GET", f"/sandboxes/{sandbox_id}"), 404)


# ---- list ----


@pytest.mark.parametrize(
    "query",
    [
        "limit=0",
        "limit=101",
        "limit=x",
        "nextToken=garbage",
        "order=sideways",
        "state=sleeping",
        "metadata=nopair",
        "startedAfter=yesterday",
        "template=base:tag",
        "limit=%zz",
    ],
)
def test_a_bad_list_query_is_a_400(server, query):
    check_error(server.api("GET", f"/v2/sandboxes?{query}"), 400)


def test_pages_follow_one_another_without_gap_or_repeat(server, made):
    made.extend(server.create(metadata={"page": "x"})["sandboxID"] for _ in range(5))
    for order, want in (("asc", made), ("desc", made[::-1])):
        seen, token = [], ""
        while True:
            answer = server.api(
                "GET",
                f"/v2/sandboxes?metadata=page%3Dx&limit=2&order={order}" + (f"&nextToken={token}" if token else ""),
            )
            seen += [row["sandboxID"] for row in answer.json]
            token = answer.headers.get("x-next-token")
            if not token:
                break
        assert seen == want


def test_the_metadata_filter_is_decoded_three_times(server, made):
    made.append(server.create(metadata={"k 1": "v&=/é+"})["sandboxID"])
    js = "metadata=k%2525201%3Dv%252526%25253D%25252F%2525C3%2525A9%25252B"
    for query in (js, js.replace("%25252F", "%252F")):
        assert [row["sandboxID"] for row in server.api("GET", f"/v2/sandboxes?{query}").json] == made
    assert server.api("GET", "/v2/sandboxes?metadata=k%3Dother").json == []


def test_an_unknown_template_lists_nothing(server):
    assert server.api("GET", "/v2/sandboxes?template=no-such").json == []


# ---- routes ----


@pytest.mark.parametrize("path", ["/nope", "/sandboxes/a/b/c", "/v3/sandboxes", "//", "/%00"])
def test_an_unknown_route_is_a_typed_error_that_names_it(server, path):
    answer = server.api("GET", path)
    assert answer.status in (400, 404), answer
    assert answer.json["code"] == answer.status and answer.json["message"]


def test_a_wrong_method_says_which_are_right(server):
    answer = server.api("PATCH", "/v2/sandboxes")
    check_error(answer, 405)
    assert "GET" in answer.headers["allow"] and "POST" in answer.headers["allow"]


@pytest.mark.parametrize("path", ["/volumes", "/snapshots", "/secrets", "/teams", "/api-keys"])
def test_a_route_that_we_do_not_have_yet_is_not_a_hang(server, path):
    answer = server.api("GET", path, timeout=5)
    assert answer.status >= 200 and (answer.status < 300 or answer.json["code"] == answer.status)


# ---- beneath the routes: requests that are not ----

BROKEN = {
    "bare LF": b"GET /health HTTP/1.1\nHost: x\n\n",
    "no host": b"GET /health HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
    "two lengths": b"POST /sandboxes HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "length and chunks": b"POST /sandboxes HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "space before colon": b"GET /health HTTP/1.1\r\nHost : x\r\n\r\n",
    "folded line": b"GET /health HTTP/1.1\r\nHost: x\r\nA: b\r\n c\r\n\r\n",
    "NUL in a header": b"GET /health HTTP/1.1\r\nHost: x\r\nA: b\0c\r\n\r\n",
    "NUL in the path": b"GET /hea\0lth HTTP/1.1\r\nHost: x\r\n\r\n",
    "negative length": b"POST /sandboxes HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    "unknown coding": b"POST /sandboxes HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n",
    "not HTTP": b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
    "version 2": b"GET / HTTP/2.0\r\nHost: x\r\n\r\n",
    "a long line": b"GET /" + b"a" * 70000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    "many headers": b"GET / HTTP/1.1\r\nHost: x\r\n" + b"".join(b"h%d: x\r\n" % i for i in range(1000)) + b"\r\n",
}


@pytest.mark.parametrize("request_bytes", BROKEN.values(), ids=[name.replace(" ", "-") for name in BROKEN])
def test_what_could_be_read_in_two_ways_is_refused(server, request_bytes):
    answer = raw(server, request_bytes)
    assert answer[:10] in (b"HTTP/1.1 4", b"HTTP/1.1 5"), answer[:200]
    assert len(re.findall(rb"HTTP/1\.1 \d{3} ", answer)) == 1, answer


def test_bytes_after_a_refused_request_are_not_a_second_one(server):
    smuggled = f"GET /v2/sandboxes HTTP/1.1\r\nHost: x\r\nX-API-Key: {server.key}\r\n\r\n".encode()
    answer = raw(
        server,
        b"POST /sandboxes HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        + smuggled,
    )
    assert b" 200 " not in answer and answer.count(b"HTTP/1.1 ") == 1, answer


def test_an_idle_connection_does_not_stop_the_others(server):
    idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(200)]
    try:
        for s in idle[:100]:
            s.sendall(b"GET /health HT")
        assert server.call("GET", "/health", timeout=5).status < 300
    finally:
        for s in idle:
            s.close()
