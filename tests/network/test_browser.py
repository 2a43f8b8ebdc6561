"""A real browser opens a page that a sandbox serves, at its https name, and talks to it over a WebSocket."""

import json
import pathlib
import subprocess

import pytest

import browser
from server import cloister as program
from server import wait_for

PORT = 8000


@pytest.fixture(scope="module")
def env(cloister):
    """The lines that `cloister env` prints."""
    return json.loads(program("env", "--json", data=cloister.server.data, stdout=subprocess.PIPE, text=True).stdout)


@pytest.fixture(scope="module")
def chromium(cloister):
    try:
        made = browser.Browser(cloister.server.data / "tls" / "ca.pem")
    except browser.Missing as why:
        pytest.skip(str(why))
    yield made
    made.stop()


@pytest.fixture(scope="module")
def box(cloister):
    made = cloister.box(allow_internet_access=False)
    made.write("/tmp/page.py", (pathlib.Path(__file__).parent / "page.py").read_bytes())
    made.run(f"python3 /tmp/page.py {PORT} >/tmp/page.log 2>&1 &")
    assert wait_for(lambda: made.run(f"curl -s http://127.0.0.1:{PORT}/").stdout, 20)
    yield made
    made.kill()


def test_a_browser_opens_a_page_of_a_sandbox_with_a_websocket(chromium, box, env):
    url = f"https://{PORT}-{box.id}.{env['E2B_DOMAIN']}/"
    session, why = chromium.open(url)
    assert not why, f"{why}: {url}"
    assert chromium.wait(session, "document.title.startsWith('echo') && document.title") == "echo: hello from the page"
    assert chromium.evaluate(session, "document.getElementById('text').textContent") == "a page from a sandbox"
    assert chromium.evaluate(session, "location.protocol + window.isSecureContext") == "https:true"
    # The page came by HTTP/2. For the WebSocket the browser has made a connection with HTTP/1.1 by itself.
    assert chromium.evaluate(session, "performance.getEntriesByType('navigation')[0].nextHopProtocol") == "h2"


def test_a_browser_is_not_shown_a_name_that_the_certificate_does_not_have(chromium, box, cloister):
    """The certificate is for the domain and the names below it, and the browser does check it."""
    _, why = chromium.open(f"https://other.localhost:{cloister.server.port}/")
    assert why and "CERT" in why, why
