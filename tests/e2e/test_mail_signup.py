"""Who may sign up for mail: nobody from the network unless the operator says so, and no web page. Needs no SDK and no sandbox."""

import pytest
from server import Server

JSON = {"Content-Type": "application/json"}


def start(server, name, *options):
    mine = Server(server.data.parent / f"{server.data.name}-signup-{name}", list(options))
    yield mine.start_when_free()
    mine.stop()


@pytest.fixture(scope="module")
def closed(server):
    yield from start(server, "closed")


@pytest.fixture(scope="module")
def opened(server):
    yield from start(server, "open", "--mail-signups-per-hour", "1000000")


def test_nobody_signs_up_from_the_network_unless_the_operator_allows_it(closed, opened):
    for _ in range(3):
        answer = closed.call("POST", "/v1/signup", {}, JSON)
        assert (answer.status, answer.json["error"]) == (403, "insufficient_tier"), answer
        assert "--mail-signups-per-hour" in answer.json["message"]
    answer = opened.call("POST", "/v1/signup", {}, JSON)
    assert answer.status == 201 and answer.json["token"].startswith("lm_sk_live_"), answer


@pytest.mark.parametrize("headers", [
    {"Origin": "http://evil.example", **JSON}, {"Origin": "null", **JSON},
    {"Origin": "http://evil.example", "Content-Type": "text/plain"}, {"Content-Type": "text/plain"},
])  # fmt: skip
def test_a_web_page_does_not_sign_up(opened, headers):
    answer = opened.call("POST", "/v1/signup", {}, headers)
    assert answer.status == (403 if "Origin" in headers else 415), answer
    assert "token" not in answer.json and answer.json["message"]
    assert "access-control-allow-origin" not in {name.lower() for name in answer.headers}
    ask = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    answer = opened.call("OPTIONS", "/v1/signup", headers=ask)
    assert answer.status == 405
    assert "access-control-allow-origin" not in {name.lower() for name in answer.headers}
