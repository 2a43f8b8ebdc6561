#!/usr/bin/env python3
"""An interpreter that is there before the sandbox is set up (GUESTLINK_WARM): what guestd does with a zygote, and without.

A thread of this test stands in for keeper's zygote: it takes guestd's requests and starts interpreters, which run the real
driver.

usage: interpreter_warm_test.py GUESTD        (needs root, because guestd becomes other users; skips aloud without)
"""
import http.client
import json
import os
import pathlib
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest

GUESTD = ""
SKIPPED = 77
DRIVER = pathlib.Path(__file__).resolve().parents[3] / "src" / "guest" / "interpreter"
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
sys.dont_write_bytecode = True

from guestd_test import TOKEN, ZYGOTE, Clock, Keeper, packed, setup_message  # noqa: E402
from interpreter_test import free_port  # noqa: E402

PING, PREPARE, RESUMED, WARM, OK, READY, WARMED = 2, 6, 7, 8, 64, 67, 68  # wire/guestlink.h
INVALID, CONFLICT, TIMEOUT, UNAVAILABLE = 1, 4, 6, 7  # base/err.h
REQUEST_BYTES, REQUEST_FDS = 4 * (4 + 64), 3  # wire/zygote.h
IS_FORK = "import sys; hasattr(sys, 'is_fork')"

INTERPRETER = """
import pathlib, socket, sys, time
path, stuck, link, out, err = *sys.argv[1:3], *map(int, sys.argv[3:6])
sys.dont_write_bytecode = True
sys.path[:0] = [path]
sys.is_fork = True
from driver.interpreter import become_interpreter
from driver.warmth import make_shell
make_shell()
sock = socket.socket(fileno=link)
sock.sendall(b"\\0\\0\\0\\1B")
sock.recv(6, socket.MSG_WAITALL)
if stuck:
    sock.sendall(b"\\0\\0\\0\\1H")
    sock.recv(1)
    pathlib.Path(stuck).touch()
    time.sleep(1000)
sock.detach()
become_interpreter([link, out, err])
"""


def wait_for(holds, seconds=60):
    until = time.monotonic() + seconds
    while not holds() and time.monotonic() < until:
        time.sleep(0.01)
    return holds()


class StandIn(threading.Thread):
    """The zygote. `hold()` makes requests wait; it fails if it `refuses`, and if it is `stuck`, which is the name of a file that
    an interpreter makes when it has got its first message and does no more."""

    def __init__(self):
        super().__init__(daemon=True)
        self.socket, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.may_go = threading.Event()
        self.may_go.set()
        self.refuses, self.stuck = False, ""
        self.requests, self.started = 0, []
        self.start()

    def hold(self):
        self.may_go.clear()

    def run(self):
        while True:
            try:
                data, fds, _, _ = socket.recv_fds(self.socket, REQUEST_BYTES, REQUEST_FDS)
            except OSError:
                return
            if not data:
                return
            self.requests += 1
            self.may_go.wait()
            if not self.refuses:
                command = [sys.executable, "-c", INTERPRETER, str(DRIVER), self.stuck, *map(str, fds)]
                self.started.append(subprocess.Popen(command, pass_fds=fds, start_new_session=True, stdin=subprocess.DEVNULL,
                                                     stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
            for fd in fds:
                os.close(fd)

    def pids(self):
        return [process.pid for process in self.started if process.poll() is None]

    def close(self):
        self.may_go.set()
        self.socket.shutdown(socket.SHUT_RDWR)
        self.join()
        self.socket.close()
        for process in self.started:
            process.kill()
            process.wait()


class Case(unittest.TestCase):
    users = "root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home/user:/bin/sh\n"

    def setUp(self):
        self.dir = tempfile.mkdtemp(prefix="interpreter_warm_test.")
        os.chmod(self.dir, 0o755)
        self.clock = Clock(self.dir)
        self.keeper = Keeper(self.dir)
        self.link = self.keeper.link()
        self.link.settimeout(60)
        self.port = free_port()
        self.log = open(self.dir + "/log", "w+")
        pathlib.Path(self.dir, "passwd").write_text(self.users)
        # The users are its own, not this machine's.
        alone = ["unshare", "--mount", "sh", "-c", 'mount --bind "$0" /etc/passwd && exec "$@"', self.dir + "/passwd"]
        self.process = subprocess.Popen(
            [*alone, GUESTD, *self.keeper.option, "--port", str(free_port()), "--code-port", str(self.port)],
            pass_fds=self.keeper.fds, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
            env={"PATH": os.environ["PATH"], "ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "halt_on_error=1",
                 "CLOISTER_TEST_CLOCK": self.clock.path})
        self.keeper.listener.close()
        self.zygote = None
        self.assertEqual(self.tell(PING)[0], OK, "guestd does not answer")

    def tearDown(self):
        self.process.kill()
        self.process.wait()
        if self.zygote:
            self.zygote.close()
        self.link.close()
        self.log.seek(0)
        text = self.log.read()
        self.log.close()
        shutil.rmtree(self.dir)
        self.assertNotIn("Sanitizer", text)
        self.assertNotIn("runtime error", text)

    def give_zygote(self):
        self.zygote = StandIn()
        self.keeper.give(ZYGOTE, self.zygote.theirs.fileno())
        self.zygote.theirs.close()

    # guestlink

    def send(self, *types):
        self.link.sendall(b"".join(packed(bytes([kind])) for kind in types))

    def hear(self):
        (length,) = struct.unpack(">I", self.link.recv(4, socket.MSG_WAITALL))
        return self.link.recv(length, socket.MSG_WAITALL)

    def tell(self, kind):
        self.send(kind)
        return self.hear()

    def set_up(self, *envs, user=b"user"):
        self.link.sendall(setup_message(user=user, workdir=b"/tmp", envs=envs))
        self.assertEqual(self.hear(), bytes([OK]))

    def check_warm(self, answer):
        self.assertEqual(answer, bytes([WARMED, 1]))

    def check_cold(self, answer, kind, text):
        self.assertEqual(answer[:3], bytes([WARMED, 0, kind]), answer)
        self.assertIn(text, answer)

    # code

    def ask(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, json.dumps(body), {"X-Access-Token": TOKEN})
            return connection.getresponse().read()
        finally:
            connection.close()

    def run_code(self, code, **more):
        return [json.loads(line) for line in self.ask("POST", "/execute", {"code": code, **more}).splitlines()]

    def text(self, code, **more):
        lines = self.run_code(code, **more)
        return next((line["text"] for line in lines if line["type"] == "result"), lines)

    def turn_clock(self, seconds):
        self.clock.turn(seconds)
        self.ask("GET", "/health")  # guestd notices


class Warm(Case):
    def test_the_first_context_has_the_interpreter_that_was_there(self):
        self.give_zygote()
        self.check_warm(self.tell(WARM))
        (pid,) = self.zygote.pids()
        self.set_up((b"GREETING", b"hello"))
        lines = self.run_code("import os; x = 41; [os.getpid(), os.environ['GREETING'], os.environ['HOME'], os.getcwd()]")
        self.assertIn(f"[{pid}, 'hello', '/home/user', '/tmp']", [line.get("text") for line in lines])
        self.assertIn({"type": "number_of_executions", "execution_count": 1}, lines)
        self.assertEqual(self.text("x + 1"), "42")
        self.assertEqual(self.zygote.requests, 1)

    def test_there_is_no_other_before_a_second_is_asked_for(self):
        self.give_zygote()
        self.check_warm(self.tell(WARM))
        self.set_up()
        self.assertEqual(self.text(IS_FORK), "True")
        self.turn_clock(1)
        self.assertEqual(self.zygote.requests, 1)
        context = json.loads(self.ask("POST", "/contexts", {}))["id"]
        self.assertEqual(self.text(IS_FORK, context_id=context), "True")
        self.assertTrue(wait_for(lambda: self.zygote.requests == 3), "no spare")

    def test_asking_twice_makes_one(self):
        self.give_zygote()
        self.zygote.hold()
        self.send(WARM, WARM)
        self.assertTrue(wait_for(lambda: self.zygote.requests))
        self.zygote.may_go.set()
        self.check_warm(self.hear())
        self.check_warm(self.hear())
        self.check_warm(self.tell(WARM))
        self.assertEqual(self.tell(PING), bytes([OK]))
        self.assertEqual(self.zygote.requests, 1)

    def test_other_messages_are_answered_meanwhile(self):
        self.give_zygote()
        self.zygote.hold()
        self.send(WARM, PING)
        self.assertEqual(self.hear(), bytes([OK]))
        self.zygote.may_go.set()
        self.check_warm(self.hear())

    def test_a_setup_that_comes_first_does_not_wait_and_gets_the_interpreter(self):
        self.give_zygote()
        self.zygote.hold()
        self.send(WARM)
        self.assertTrue(wait_for(lambda: self.zygote.requests))
        self.link.sendall(setup_message(user=b"user", workdir=b"/tmp", envs=[(b"A", b"1")]))
        self.check_cold(self.hear(), CONFLICT, b"set up before")
        self.assertEqual(self.hear(), bytes([OK]))
        self.zygote.may_go.set()
        self.assertEqual(self.text("import sys, os; [hasattr(sys, 'is_fork'), os.environ['A']]"), "[True, '1']")
        self.assertEqual(self.zygote.requests, 1)
        self.assertEqual(self.tell(PING), bytes([OK]))  # and nothing was said in between

    def test_a_new_link_can_ask_again(self):
        self.give_zygote()
        self.zygote.hold()
        self.send(WARM)
        self.assertTrue(wait_for(lambda: self.zygote.requests))
        self.link.close()
        self.link = self.keeper.link()
        self.link.settimeout(60)
        self.send(WARM, PING)
        self.assertEqual(self.hear(), bytes([OK]))
        self.zygote.may_go.set()
        self.check_warm(self.hear())
        self.assertEqual(self.tell(PING), bytes([OK]))
        self.assertEqual(self.zygote.requests, 1)

    def test_after_setup_it_is_refused(self):
        self.give_zygote()
        self.set_up()
        self.check_cold(self.tell(WARM), CONFLICT, b"set up already")
        self.assertEqual(self.zygote.requests, 0)


class NotForThisSandbox(Case):
    def check_ends(self, *envs, user=b"user"):
        self.give_zygote()
        self.check_warm(self.tell(WARM))
        self.set_up(*envs, user=user)
        self.assertEqual(self.text(IS_FORK), "False")
        self.assertTrue(wait_for(lambda: not self.zygote.pids()), "the interpreter that nobody will use is still there")
        self.assertEqual(self.zygote.requests, 1)

    def test_a_variable_that_changes_how_python_starts(self):
        self.check_ends((b"PYTHONHASHSEED", b"7"))
        self.assertEqual(self.text("import os; os.environ['PYTHONHASHSEED']"), "7")
        seeded = subprocess.run([sys.executable, "-c", "print(hash('a'))"], env={"PYTHONHASHSEED": "7"}, capture_output=True)
        self.assertEqual(self.text("hash('a')"), seeded.stdout.decode().strip())

    def test_a_sandbox_that_asks_for_interpreters_of_its_own(self):
        self.check_ends((b"CLOISTER_INTERPRETER", b"cold"))

    def test_another_user(self):
        self.check_ends(user=b"root")
        self.assertEqual(self.text("import os; os.environ['USER']"), "root")

    def test_a_user_that_does_not_exist(self):
        self.give_zygote()
        self.check_warm(self.tell(WARM))
        self.set_up(user=b"nobody-here")
        self.assertTrue(wait_for(lambda: not self.zygote.pids()))


class Cold(Case):
    def check_fallback(self):
        self.set_up((b"A", b"1"))
        self.assertEqual(self.text("import sys, os; [hasattr(sys, 'is_fork'), os.environ['A']]"), "[False, '1']")

    def test_without_a_zygote_it_says_so(self):
        self.check_cold(self.tell(WARM), UNAVAILABLE, b"there is no zygote")
        self.check_fallback()

    def test_a_zygote_that_comes_later_works(self):
        self.check_cold(self.tell(WARM), UNAVAILABLE, b"there is no zygote")
        self.give_zygote()
        self.check_warm(self.tell(WARM))

    def test_a_spawn_that_fails(self):
        self.give_zygote()
        self.zygote.refuses = True
        self.check_cold(self.tell(WARM), UNAVAILABLE, b"did not come")
        self.check_cold(self.tell(WARM), UNAVAILABLE, b"has just failed")
        self.zygote.refuses = False
        self.turn_clock(10)
        self.check_warm(self.tell(WARM))

    def test_a_zygote_that_does_not_answer(self):
        self.give_zygote()
        self.zygote.hold()
        self.send(WARM)
        self.assertTrue(wait_for(lambda: self.zygote.requests))
        self.turn_clock(10)
        self.check_cold(self.hear(), UNAVAILABLE, b"did not come")
        self.check_fallback()

    def test_an_interpreter_that_never_has_its_first_cell_done(self):
        self.give_zygote()
        self.zygote.stuck = self.dir + "/stuck"
        self.send(WARM)
        self.assertTrue(wait_for(lambda: os.path.exists(self.zygote.stuck)))
        self.turn_clock(10)
        self.check_cold(self.hear(), TIMEOUT, b"not ready")
        self.assertTrue(wait_for(lambda: not self.zygote.pids()))
        self.check_fallback()

    def test_an_interpreter_that_dies(self):
        self.give_zygote()
        self.check_warm(self.tell(WARM))
        self.zygote.started[0].kill()
        self.zygote.started[0].wait()
        self.set_up()
        self.assertEqual(self.text("1 + 1"), "2")

    def test_a_zygote_that_ends_takes_it_along(self):
        self.give_zygote()
        self.check_warm(self.tell(WARM))
        self.zygote.socket.shutdown(socket.SHUT_RDWR)
        self.assertTrue(wait_for(lambda: not self.zygote.pids()))
        self.check_fallback()

    def test_a_pause_ends_it(self):
        self.give_zygote()
        self.check_warm(self.tell(WARM))
        self.set_up((b"A", b"1"))
        self.assertEqual(self.tell(PREPARE)[0], READY)
        self.assertTrue(wait_for(lambda: not self.zygote.pids()))
        self.assertEqual(self.tell(RESUMED), bytes([OK]))
        self.assertEqual(self.text("import os; os.environ['A']"), "1")

    def test_a_pause_before_it_has_come(self):
        self.give_zygote()
        self.zygote.hold()
        self.send(WARM)
        self.assertTrue(wait_for(lambda: self.zygote.requests))
        self.send(PREPARE)
        self.zygote.may_go.set()
        answers = [self.hear(), self.hear()]
        self.assertEqual(sorted(answer[0] for answer in answers), [READY, WARMED])
        self.check_cold(next(answer for answer in answers if answer[0] == WARMED), UNAVAILABLE, b"from the zygote")
        self.assertTrue(wait_for(lambda: not self.zygote.pids()))


class WithoutTheUser(Case):
    users = "root:x:0:0::/root:/bin/sh\n"

    def test_a_template_without_the_user(self):
        self.give_zygote()
        self.check_cold(self.tell(WARM), INVALID, b"no user 'user'")


class OtherUser(Case):
    users = "root:x:0:0::/root:/bin/sh\nuser:x:1001:1001::/home/user:/bin/sh\n"

    def test_a_template_whose_user_has_another_id(self):
        self.give_zygote()
        self.check_cold(self.tell(WARM), INVALID, b"uid 1000")
        self.assertEqual(self.zygote.requests, 0)



def can_mount():
    return subprocess.run(["unshare", "--mount", "mount", "--bind", "/etc/passwd", "/etc/passwd"], check=False,
                          capture_output=True).returncode == 0


if __name__ == "__main__":
    if os.geteuid() != 0 or not can_mount():
        print("skipped: guestd becomes other users and has an /etc/passwd of its own, which needs root and mount()")
        sys.exit(SKIPPED)
    GUESTD = os.path.abspath(sys.argv.pop(1))
    unittest.main(warnings="ignore")
