"""browser.py - Debian's Chromium without a window, told what to do over a pipe (the DevTools protocol).

It has a home directory of its own, and trusts one more authority there. Certificates are checked as for any user.
"""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time


class Missing(Exception):
    """There is no browser here; the text says what to install."""


class Browser:
    def __init__(self, authority):
        for program, package in (("chromium", "chromium"), ("certutil", "libnss3-tools")):
            if not shutil.which(program):
                raise Missing(f"needs {program}: install Debian's package {package}")
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="cloister-browser-"))
        store = self.home / ".pki" / "nssdb"
        store.mkdir(parents=True)
        for arguments in (["-N", "--empty-password"], ["-A", "-t", "C,,", "-n", "cloister", "-i", str(authority)]):
            subprocess.run(["certutil", "-d", f"sql:{store}", *arguments], check=True)
        self.count, self.rest, self.events = 0, b"", []
        self.start()

    def start(self):
        down, self.write_end = os.pipe()
        self.read_end, up = os.pipe()
        # It reads descriptor 3 and writes 4. The shell moves ours there: bash, because sh takes one digit only.
        script = f"exec 3<&{down} 4>&{up}; exec \"$@\""
        self.process = subprocess.Popen(
            ["bash", "-c", script, "bash", "chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic",
             "--no-first-run", "--disable-dev-shm-usage", "--disable-background-networking", "--remote-debugging-pipe",
             f"--user-data-dir={self.home}/profile", "about:blank"],
            env={**os.environ, "HOME": str(self.home)},
            pass_fds=[down, up],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        os.close(down)
        os.close(up)

    def message(self):
        while b"\0" not in self.rest:
            piece = os.read(self.read_end, 1 << 20)
            if not piece:
                raise RuntimeError("the browser has ended")
            self.rest += piece
        line, self.rest = self.rest.split(b"\0", 1)
        return json.loads(line)

    def call(self, method, session=None, **params):
        self.count += 1
        order = {"id": self.count, "method": method, "params": params, **({"sessionId": session} if session else {})}
        os.write(self.write_end, json.dumps(order).encode() + b"\0")
        while True:
            reply = self.message()
            if reply.get("id") == self.count:
                if "error" in reply:
                    raise RuntimeError(f"{method}: {reply['error']}")
                return reply["result"]
            self.events.append(reply)

    def open(self, url):
        """A new page; its session, or the reason why it was not loaded."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        result = self.call("Page.navigate", session, url=url)
        return session, result.get("errorText")

    def evaluate(self, session, expression):
        return self.call("Runtime.evaluate", session, expression=expression)["result"].get("value")

    def wait(self, session, expression, seconds=30):
        end = time.monotonic() + seconds
        while not (value := self.evaluate(session, expression)) and time.monotonic() < end:
            time.sleep(0.1)
        return value

    def stop(self):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self.read_end)
        os.close(self.write_end)
        shutil.rmtree(self.home, ignore_errors=True)
