"""checks.py - what the Python scripts of tests/clients share: one JSON line on standard output for each check.

A check is a block of code under a name. The script goes on after a check that failed, so that one missing capability
does not hide the rest; a check that the others need is `vital`, and the script ends when it fails.

    with check("run code"):
        assert executor("1 + 1").output == "2"
"""

import contextlib
import http.client
import json
import os
import signal
import time
import traceback
import urllib.parse
import urllib.request

CHECK_SECONDS = 60

# Frameworks print to standard output. That is for our results alone, so their output goes to the log.
_results = os.fdopen(os.dup(1), "w", encoding="utf-8")
os.dup2(2, 1)


def _say(**fields):
    print(json.dumps(fields), file=_results, flush=True)


def _chain(error):
    """The error and its causes: frameworks wrap what the server said."""
    texts, seen = [], set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        text = f"{type(error).__name__}: {error}"
        if isinstance(error, AssertionError) and not str(error):
            text += traceback.extract_tb(error.__traceback__)[-1].line
        if text not in texts:
            texts.append(text)
        error = error.__cause__ or error.__context__
    return " <- ".join(texts)


def _too_long(*_):
    raise TimeoutError(f"the check took longer than {CHECK_SECONDS} s")


signal.signal(signal.SIGALRM, _too_long)


@contextlib.contextmanager
def check(name, vital=False):
    start = time.monotonic()
    signal.alarm(CHECK_SECONDS)
    try:
        yield
        error = None
    except Exception as caught:
        error = _chain(caught)
    finally:
        signal.alarm(0)
    seconds = round(time.monotonic() - start, 2)
    _say(check=name, ok=error is None, seconds=seconds, **({"error": error} if error else {}))
    if error and vital:
        _say(done=False)
        os._exit(0)  # without waiting for threads and event loops of the framework


def done():
    """The last line of every script: without it the script broke off."""
    _say(done=True)


def api(method, path):
    """One call of the server's API, beside the SDK that is under test."""
    request = urllib.request.Request(
        os.environ["E2B_API_URL"] + path, method=method, headers={"X-API-Key": os.environ["E2B_API_KEY"]}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read() or b"null")


def running():
    return [row["sandboxID"] for row in api("GET", "/v2/sandboxes?state=running,paused")]


def fetch(url, seconds=10):
    """The body at a sandbox's URL; tried again while its server starts. Python's resolver may not know *.localhost."""
    parts = urllib.parse.urlsplit(url)
    host = "127.0.0.1" if parts.hostname.endswith(".localhost") else parts.hostname
    end = time.monotonic() + seconds
    while True:
        connection = http.client.HTTPConnection(host, parts.port, timeout=10)
        try:
            connection.request("GET", parts.path or "/", headers={"Host": parts.netloc})
            answer = connection.getresponse()
            body = answer.read().decode(errors="replace")
        finally:
            connection.close()
        if answer.status == 200:
            return body
        assert time.monotonic() < end, f"{url}: {answer.status} {body[:200]}"
        time.sleep(0.2)


def wait_for(what, seconds=10):
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, f"not within {seconds} s"
        time.sleep(0.1)
