"""The code interpreter in domain mode: nothing but the pasted lines without the URLs, so everything goes by TLS to
https://api.DOMAIN and https://PORT-ID.DOMAIN. Releases from 1.5 on; what one does not have is skipped."""

import inspect
import json
import os
import time
import urllib.error
import urllib.request

import pytest

if not os.environ.get("CLOISTER_E2E_SDK", "").startswith("interpreter"):
    pytest.skip("for the suites domain-code…", allow_module_level=True)

from e2b_code_interpreter import Sandbox  # noqa: E402

IS_1X = "1.5" in os.environ["CLOISTER_E2E_SDK"]


def make(**options):
    """As the tutorials of that age do."""
    if IS_1X:
        return Sandbox(template="base", timeout=300, **options)
    return Sandbox.create(template="base", timeout=300, **options)


def fetch(url, headers=None, data=None, seconds=15):
    """Status and body, as soon as the port inside is open."""
    end = time.monotonic() + seconds
    while True:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, data, headers or {}), timeout=10) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            body = error.read()
            if error.code != 502 or time.monotonic() > end:
                return error.code, body
        time.sleep(0.1)


@pytest.fixture(scope="module")
def box(server):
    assert "E2B_SANDBOX_URL" not in os.environ and "E2B_API_URL" not in os.environ
    made = make()
    yield made
    made.kill()


def serve(box, port):
    """A service inside that answers with the headers it got."""
    program = (
        "import http.server, json\n"
        "class H(http.server.BaseHTTPRequestHandler):\n"
        "    def do_GET(self):\n"
        "        body = json.dumps(dict(self.headers)).encode()\n"
        "        self.send_response(200); self.send_header('Content-Length', str(len(body))); self.end_headers()\n"
        "        self.wfile.write(body)\n"
        "    def log_message(self, *rest): pass\n"
        f"http.server.HTTPServer(('127.0.0.1', {port}), H).serve_forever()\n"
    )
    box.files.write("/tmp/serve.py", program)
    box.commands.run("python3 /tmp/serve.py", background=True)


def test_the_tutorials_own_code(server):
    box = make()
    try:
        box.run_code("x = 20")
        result = box.run_code("print('hi'); x + 22")
        assert result.text == "42" and result.logs.stdout == ["hi\n"], result
        context = box.create_code_context()
        assert box.run_code("1 + 1", context=context).text == "2"
        box.files.write("note", "written")
        assert box.files.read("note") == "written"
        assert [entry.name for entry in box.files.list("/home/user") if entry.name == "note"]
        assert box.commands.run("cat note").stdout == "written"
    finally:
        box.kill()


def test_output_streams_while_code_runs(box):
    seen = []
    box.run_code(
        "import time\nfor i in range(3):\n    print(i, flush=True)\n    time.sleep(0.3)",
        on_stdout=lambda message: seen.append((time.monotonic(), message.line.strip())),
    )
    assert [line for _, line in seen] == ["0", "1", "2"]
    assert seen[-1][0] - seen[0][0] > 0.3


def test_large_files_arrive_whole(box):
    content = os.urandom(8 << 20)
    box.files.write("large.bin", content)
    assert bytes(box.files.read("large.bin", format="bytes")) == content


def test_a_port_is_at_its_https_name(box):
    serve(box, 8000)
    host = box.get_host(8000)
    assert host == f"8000-{box.sandbox_id}.{os.environ['E2B_DOMAIN']}"
    status, body = fetch(f"https://{host}/")
    assert status == 200 and json.loads(body)["Host"] == host
    status, body = fetch(f"https://8001-{box.sandbox_id}.{os.environ['E2B_DOMAIN']}/", seconds=0)
    assert status == 502 and json.loads(body)["message"] == "The sandbox is running but port is not open"


def test_signed_links_are_https(box):
    box.files.write("linked.txt", "by link")
    secure = {} if IS_1X else {"use_signature_expiration": 60}
    link = box.download_url("linked.txt", **secure)
    assert link.startswith(f"https://49983-{box.sandbox_id}.{os.environ['E2B_DOMAIN']}/files?")
    if not IS_1X:  # 1.x signs links of secure sandboxes only
        assert fetch(link) == (200, b"by link")
        assert fetch(link.replace("linked", "other"))[0] == 401


def has_network_options():
    return not IS_1X and "network" in inspect.signature(Sandbox.create).parameters


def test_a_private_sandbox_wants_its_traffic_token(server):
    if not has_network_options():
        pytest.skip("this release has no network options")
    box = make(network={"allow_public_traffic": False})
    try:
        serve(box, 8000)
        url = f"https://{box.get_host(8000)}/"
        assert fetch(url)[0] == 403
        assert fetch(url, {"e2b-traffic-access-token": "wrong"})[0] == 403
        assert fetch(url, {"e2b-traffic-access-token": box.traffic_access_token})[0] == 200
        assert box.run_code("40 + 2").text == "42"  # the SDK sends it by itself
    finally:
        box.kill()


def test_the_host_is_masked(server):
    if not has_network_options():
        pytest.skip("this release has no network options")
    box = make(network={"mask_request_host": "inner.test:${PORT}"})
    try:
        serve(box, 8000)
        status, body = fetch(f"https://{box.get_host(8000)}/")
        headers = json.loads(body)
        assert status == 200 and headers["Host"] == "inner.test:8000"
        assert headers["X-Forwarded-Host"] == box.get_host(8000)
    finally:
        box.kill()


def test_a_secure_sandbox_of_1x_still_wants_the_token(server):
    """1.x offers the option, and sends no token with run_code for it either."""
    if not IS_1X:
        pytest.skip("for releases 1.x")
    box = make(secure=True)
    try:
        assert box.commands.run("echo hi").stdout == "hi\n"
        with pytest.raises(Exception, match="401"):
            box.run_code("1")
    finally:
        box.kill()


def test_a_killed_sandbox_is_not_found(server):
    box = make()
    host = box.get_host(3000)
    box.kill()
    status, body = fetch(f"https://{host}/", seconds=0)
    assert status == 502 and json.loads(body)["message"] == "The sandbox was not found"
