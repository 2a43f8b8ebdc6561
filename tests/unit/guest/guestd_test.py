#!/usr/bin/env python3
"""guestd as a whole: a daemon with the sanitizers on, set up over guestlink, driven over HTTP with the SDKs' own shapes.

usage: guestd_test.py GUESTD        (needs root; skips aloud without)
"""
import base64
import grp
import gzip
import hashlib
import http.client
import io
import json
import os
import pathlib
import pwd
import re
import resource
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
import unittest
import urllib.parse

GUESTD = ""
TOKEN = "tok-1"
SKIPPED = 77


def packed(text):
    return struct.pack(">I", len(text)) + text


def setup_message(token=TOKEN, user=b"root", workdir=b"", envs=(), open_code=0, network=True):
    body = b"\x01" + packed(b"sbx1") + packed(b"base") + packed(token.encode()) + bytes([open_code])
    body += packed(user) + packed(workdir) + bytes([network]) + packed(b"") + bytes(4)  # no authority
    body += struct.pack(">I", len(envs)) + b"".join(packed(k) + packed(v) for k, v in envs)
    return packed(body)


LINK, ZYGOTE, LISTENER = 1, 2, 3  # wire/handover.h


class Keeper:
    """Keeper's side of handovers: makes what guestd listens on, and gives it descriptors."""

    def __init__(self, directory):
        self.path = directory + "/guestd.socket"
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        self.listener.bind(self.path)
        self.listener.listen(8)
        self.option = ["--handover-fd", str(self.listener.fileno())]
        self.fds = [self.listener.fileno()]

    def give(self, kind, fd):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as giver:
            giver.connect(self.path)
            socket.send_fds(giver, [struct.pack("=I", kind)], [fd])

    def link(self):
        """A new guestlink, as keeper makes it: TCP, and nothing listens for it any more."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            ours = socket.create_connection(listener.getsockname())
            theirs = listener.accept()[0]
        self.give(LINK, theirs.fileno())
        theirs.close()
        return ours


def name_of(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/comm").read_text().rstrip()
    except (FileNotFoundError, ProcessLookupError):
        return None


class Clock:
    """guestd's time, which a test turns ahead: clock_file.c. guestd notices with the next request."""

    def __init__(self, dir):
        self.path, self.ahead_us = dir + "/clock", 0
        self.turn(0)

    def turn(self, seconds):
        self.ahead_us += int(seconds * 1000000)
        with open(self.path, "r+b" if self.ahead_us else "wb", buffering=0) as file:
            file.write(struct.pack("=Q", self.ahead_us))


class Daemon:
    def __init__(self, cgroup=None, descriptors=1024):
        self.dir = tempfile.mkdtemp(prefix="guestd_test.")
        self.clock = Clock(self.dir)
        self.keeper = Keeper(self.dir)
        self.link = self.keeper.link()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.cgroup = cgroup or open(self.dir + "/cgroup.procs", "wb", buffering=0)
        self.log = open(self.dir + "/log", "w+")
        self.process = subprocess.Popen(
            [GUESTD, *self.keeper.option, "--cgroup-fd", str(self.cgroup.fileno()), "--port", str(self.port)],
            pass_fds=[*self.keeper.fds, self.cgroup.fileno()],
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors)), stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
            env={"PATH": os.environ["PATH"], "ASAN_OPTIONS": "detect_leaks=0", "UBSAN_OPTIONS": "halt_on_error=1",
                 "CLOISTER_TEST_CLOCK": self.clock.path})
        self.keeper.listener.close()

    def tell(self, message):
        self.link.sendall(message)
        return self.hear()

    def hear(self):
        header = self.link.recv(4, socket.MSG_WAITALL)
        return self.link.recv(struct.unpack(">I", header)[0], socket.MSG_WAITALL)

    def wait_for_port(self):
        for _ in range(600):
            try:
                return socket.create_connection(("127.0.0.1", self.port)).close()
            except ConnectionRefusedError:
                time.sleep(0.05)
        raise RuntimeError("guestd does not listen")

    def spawners(self):
        return [child for child in children(self.process.pid) if name_of(child) == "guestd-spawner" and not is_dead(child)]

    def commands(self):
        return [child for child in children(self.process.pid) if name_of(child) != "guestd-spawner"]

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.log.seek(0)
        text = self.log.read()
        for thing in (self.log, self.cgroup, self.link):
            thing.close()
        shutil.rmtree(self.dir)
        return text


class Case(unittest.TestCase):
    envs = [(b"GLOBAL", b"yes"), (b"E2B_SANDBOX", b"forged")]

    @classmethod
    def make_daemon(cls):
        return Daemon()

    @classmethod
    def setUpClass(cls):
        cls.daemon = cls.make_daemon()
        cls.daemon.wait_for_port()
        cls.early = cls.bare("GET", "/files?path=/etc/passwd")[0], cls.bare("GET", "/health")[0]
        cls.set_up_answer = cls.daemon.tell(setup_message(envs=cls.envs))
        cls.dir = cls.daemon.dir + "/work"
        os.mkdir(cls.dir)

    @classmethod
    def tearDownClass(cls):
        text = cls.daemon.stop()
        if "Sanitizer" in text or "runtime error" in text:
            raise AssertionError(text)

    @classmethod
    def bare(cls, method, target, body=None, headers={}):
        connection = http.client.HTTPConnection("127.0.0.1", cls.daemon.port, timeout=60)
        try:
            connection.request(method, target, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read(), answer.headers
        finally:
            connection.close()

    def ask(self, method, target, body=None, **headers):
        headers = {"X-Access-Token": TOKEN, **{k.replace("_", "-"): v for k, v in headers.items()}}
        return self.bare(method, target, body, headers)

    def unary(self, name, request, **headers):
        status, body, _ = self.ask("POST", "/" + name, json.dumps(request), Content_Type="application/json", **headers)
        return status, json.loads(body)

    def fine(self, name, request):
        status, body = self.unary(name, request)
        self.assertEqual(status, 200, body)
        return body

    def stream(self, name, request, **headers):
        return Stream(self.daemon.port, name, request, headers)

    def start(self, script, **more):
        headers = more.pop("headers", {})
        return self.stream("process.Process/Start", {"process": {"cmd": "/bin/sh", "args": ["-c", script]}, **more}, **headers)

    def run_script(self, script, **more):
        return self.start(script, **more).result()


class Stream:
    """One streaming RPC; events are read as they are asked for."""

    def __init__(self, port, name, request, headers={}, waits=True):
        message = json.dumps(request).encode()
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self.connection.request("POST", "/" + name, envelope(message), {
            "X-Access-Token": TOKEN, "Content-Type": "application/connect+json", "Connect-Protocol-Version": "1",
            **{k.replace("_", "-"): v for k, v in headers.items()}})
        self.trailer = None
        if waits:
            self.begin()

    def begin(self):
        self.answer = self.connection.getresponse()
        self.status = self.answer.status
        return self

    def next(self):
        """The next event, or None at the end of the stream."""
        if self.trailer is not None:
            return None
        flags, length = struct.unpack(">BI", self.answer.read(5))
        message = json.loads(self.answer.read(length))
        if flags & 2:
            self.trailer = message
            return None
        return message["event"]

    def pid(self):
        return self.next()["start"]["pid"]

    def result(self):
        out = {"stdout": b"", "stderr": b"", "pty": b"", "end": None, "offsets": []}
        while (event := self.next()) is not None:
            for name, value in event.get("data", {}).items():
                if name == "offset":
                    out["offsets"].append(value)
                else:
                    out[name] += base64.b64decode(value)
            out["end"] = event.get("end", out["end"])
        out["error"] = self.trailer.get("error")
        self.leave()
        return out

    def read_until(self, text):
        seen = b""
        while text not in seen:
            event = self.next()
            if event is None:
                raise AssertionError(f"ended with {seen!r}")
            for name in ("stdout", "stderr", "pty"):
                seen += base64.b64decode(event.get("data", {}).get(name, ""))
        return seen

    def leave(self):
        self.answer.close()
        self.connection.close()


def envelope(message, flags=0):
    return struct.pack(">BI", flags, len(message)) + message


def is_dead(pid):
    try:
        with open(f"/proc/{pid}/stat") as f:
            return f.read().rsplit(")", 1)[1].split()[0] in "ZX"  # perhaps not yet collected by pid 1
    except (FileNotFoundError, ProcessLookupError):
        return True


def children(pid):
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as f:
                if int(f.read().rsplit(")", 1)[1].split()[1]) == pid:
                    found.append(int(name))
        except (FileNotFoundError, ProcessLookupError):
            pass
    return found


def written_bytes(pid):
    try:
        with open(f"/proc/{pid}/io") as f:
            return int(dict(line.split(": ") for line in f)["wchar"])
    except (FileNotFoundError, ProcessLookupError):
        return 0


def b64(data):
    return base64.b64encode(data).decode()


class Doors(Case):
    def test_only_health_answers_before_the_host_has_set_it_up(self):
        self.assertEqual(self.early, (503, 204))
        self.assertEqual(self.set_up_answer, b"\x40")

    def test_guestlink_refuses_what_it_does_not_know_and_goes_on(self):
        self.assertEqual(self.daemon.tell(packed(b"\x63"))[0], 65)
        self.assertEqual(self.daemon.tell(packed(b"\x02")), b"\x40")

    def test_a_new_socket_for_handovers_takes_the_place_of_the_old_one(self):
        keeper = self.daemon.keeper
        path = keeper.path + ".new"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK) as listener:
            listener.bind(path)
            listener.listen(8)
            keeper.give(LISTENER, listener.fileno())
        old, keeper.path = keeper.path, path
        self.daemon.link.close()
        self.daemon.link = keeper.link()
        self.assertEqual(self.daemon.tell(packed(b"\x02")), b"\x40")
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as giver:
            self.assertRaises(ConnectionRefusedError, giver.connect, old)

    def test_prepare_answers_with_the_environment_of_the_setup_alone(self):
        given = b"".join(packed(name) + packed(value) for name, value in self.envs)
        self.assertEqual(self.daemon.tell(packed(b"\x06")), b"\x43" + struct.pack(">I", len(self.envs)) + given)
        self.assertEqual(self.daemon.tell(packed(b"\x07")), b"\x40")

    def test_a_second_setup_ends_the_first_one_s_token_at_once(self):
        self.assertEqual(self.daemon.tell(packed(b"\x06"))[0], 67)
        self.assertEqual(self.daemon.tell(setup_message(token="tok-2")), b"\x40")
        try:
            self.assertEqual(self.ask("GET", "/envs")[0], 401)
            self.assertEqual(self.ask("GET", "/envs", X_Access_Token="tok-2")[0], 200)
        finally:
            self.assertEqual(self.daemon.tell(setup_message(envs=self.envs)), b"\x40")
        self.assertEqual(self.ask("GET", "/envs")[0], 200)

    def take_logs(self, until):
        """Takes what guestd tells, from a new link on, until that text is in it."""
        self.daemon.link.close()
        self.daemon.link = self.daemon.keeper.link()
        self.assertEqual(self.daemon.tell(packed(b"\x03")), b"\x40")
        told = b""
        while until not in told:
            told += self.daemon.hear()
            self.daemon.link.sendall(packed(b"\x04"))
        return told

    def test_a_link_is_told_what_ran_and_no_variable(self):
        self.run_script("echo four; exit 3", process={"cmd": "/bin/sh", "args": ["-c", "echo four; exit 3"],
                                                     "envs": {"SECRET": "hush"}})
        told = self.take_logs(b"exit status 3")
        self.assertEqual(told[0], 66)
        self.assertIn(packed(b"/bin/sh -c echo four; exit 3"), told)
        self.assertIn(struct.pack(">IQ", 3, 5) + packed(b"exit status 3"), told)  # code, bytes of output
        self.assertNotIn(b"hush", told)

    def test_a_new_link_replaces_the_old_and_goes_on_with_the_first_message_that_was_not_taken(self):
        self.take_logs(b"")
        self.run_script("exit 41")
        first = self.daemon.hear()  # and is not taken
        self.assertIn(b"exit 41", first)
        self.run_script("exit 42")
        old, self.daemon.link = self.daemon.link, self.daemon.keeper.link()
        self.assertEqual(old.recv(1), b"")  # it came to its end when the new one was there
        old.close()
        self.run_script("exit 43")  # with a link on which nobody listens yet
        told = self.take_logs(b"exit 43")
        self.assertTrue(told.startswith(first))
        self.assertEqual([told.count(b"exit 4%d" % n) for n in (1, 2, 3)], [1, 1, 1])

    def test_a_link_that_is_shut_in_the_middle_of_a_message_does_no_harm(self):
        for message in (b"", b"\x00", packed(b"\x03")[:4], packed(b"\x03")):
            link = self.daemon.keeper.link()
            link.sendall(message)
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            link.close()
        self.daemon.keeper.give(99, self.daemon.link.fileno())  # a kind from a later version
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
            silent.connect(self.daemon.keeper.path)
        self.run_script("exit 44")
        self.assertIn(b"exit 44", self.take_logs(b"exit 44"))

    def test_a_wrong_token_opens_nothing(self):
        for token in ("", "tok-2", TOKEN + "x"):
            status, body, _ = self.bare("POST", "/process.Process/List", "{}",
                                        {"Content-Type": "application/json", "X-Access-Token": token})
            self.assertEqual((status, json.loads(body)["code"]), (401, 401))
        self.assertEqual(self.bare("GET", "/health")[0], 204)

    def test_an_unknown_user_is_told_in_the_shape_of_the_call(self):
        basic = "Basic " + b64(b"nobody-here:")
        status, body = self.unary("filesystem.Filesystem/Stat", {"path": "/"}, Authorization=basic)
        self.assertEqual((status, body["code"]), (401, "unauthenticated"))
        stream = self.stream("process.Process/Start", {"process": {"cmd": "true"}}, Authorization=basic)
        self.assertEqual(stream.status, 200)
        self.assertEqual(stream.result()["error"]["code"], "unauthenticated")
        self.assertEqual(self.ask("GET", "/files?path=/etc/passwd", Authorization=basic)[0], 401)

    def test_methods_paths_and_types_that_do_not_fit_have_their_status(self):
        self.assertEqual(self.ask("GET", "/nowhere")[0], 404)
        status, _, headers = self.ask("GET", "/process.Process/List")
        self.assertEqual((status, headers["Allow"]), (405, "POST"))
        status, _, headers = self.ask("POST", "/process.Process/List", "x", Content_Type="application/proto")
        self.assertEqual((status, headers["Accept-Post"]), (415, "application/json"))
        self.assertEqual(self.unary("process.Process/List", {}, Connect_Protocol_Version="2")[0], 400)
        self.assertEqual(self.ask("POST", "/process.Process/List", "", Content_Type="application/json")[0], 400)
        self.assertEqual(self.unary("process.Process/List", {}, Connect_Timeout_Ms="x")[0], 400)

    def test_a_browser_may_ask_from_anywhere(self):
        status, _, headers = self.bare("OPTIONS", "/files", None, {
            "Origin": "http://x", "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "a,b"})
        self.assertEqual((status, headers["Access-Control-Allow-Headers"]), (204, "a,b"))
        self.assertEqual(self.ask("GET", "/health", Origin="http://x")[2]["Access-Control-Allow-Origin"], "*")

    def test_envs_and_metrics_answer(self):
        envs = json.loads(self.ask("GET", "/envs")[1])
        self.assertEqual((envs["GLOBAL"], envs["E2B_SANDBOX"]), ("yes", "true"))
        self.assertGreater(json.loads(self.ask("GET", "/metrics")[1])["mem_total"], 0)


class WithoutNetwork(Case):
    def test_a_guestd_outside_a_sandbox_leaves_the_machines_files_alone(self):
        with open("/etc/resolv.conf") as file:
            before = file.read()
        self.daemon.tell(setup_message(network=False))
        self.daemon.tell(setup_message())
        # This guestd is not pid 1: the files of a machine are not a sandbox's.
        with open("/etc/resolv.conf") as file:
            self.assertEqual(file.read(), before)


class Processes(Case):
    def test_output_exit_code_and_order_of_events(self):
        r = self.run_script("echo out; echo err >&2; exit 3", stdin=False)
        self.assertEqual((r["stdout"], r["stderr"]), (b"out\n", b"err\n"))
        self.assertEqual(r["end"], {"exitCode": 3, "exited": True, "status": "exit status 3", "error": "exit status 3"})
        self.assertIsNone(r["error"])

    def test_a_zero_exit_carries_no_error(self):
        self.assertEqual(self.run_script("true")["end"], {"exited": True, "status": "exit status 0"})

    def test_a_signal_is_named_as_go_names_it(self):
        self.assertEqual(self.run_script("kill -9 $$")["end"],
                         {"exitCode": -1, "status": "signal: killed", "error": "signal: killed"})

    def test_variables_have_their_order_and_nothing_else_is_inherited(self):
        r = self.run_script("env", process={"cmd": "env", "envs": {"GLOBAL": "mine", "A": "b c"}})
        env = dict(line.split("=", 1) for line in r["stdout"].decode().splitlines())
        self.assertEqual(set(env), {"PATH", "HOME", "USER", "LOGNAME", "GLOBAL", "A", "E2B_SANDBOX", "E2B_SANDBOX_ID",
                                    "E2B_TEMPLATE_ID"})
        self.assertEqual((env["GLOBAL"], env["A"], env["E2B_SANDBOX"], env["HOME"]), ("mine", "b c", "true", "/root"))

    def test_a_child_is_in_the_cgroup_and_has_no_descriptor_of_ours(self):
        r = self.run_script("ls /proc/self/fd; cat /proc/self/oom_score_adj; grep SigIgn /proc/self/status")
        # ls itself holds the directory open as 3
        self.assertEqual(r["stdout"].split()[:4], [b"0", b"1", b"2", b"3"])
        self.assertIn(b"100\n", r["stdout"])
        self.assertIn(b"SigIgn:\t0000000000000000", r["stdout"])
        self.assertGreater(self.moves(), 0)

    def moves(self):
        """How often a process has entered the cgroup: each writes one byte to what stands for cgroup.procs here."""
        return os.path.getsize(self.daemon.dir + "/cgroup.procs")

    def test_commands_are_forked_inside_the_cgroup_not_moved_there(self):
        self.run_script("true")
        before = self.moves()
        for _ in range(5):
            self.assertEqual(self.run_script("exit 3")["end"].get("exitCode"), 3)
        self.assertEqual(self.moves(), before)

    def test_a_spawner_that_is_killed_or_stopped_is_replaced(self):
        self.run_script("true")
        for number in (signal.SIGKILL, signal.SIGSTOP):
            (spawner,) = self.daemon.spawners()
            os.kill(spawner, number)
            while not is_dead(spawner):  # stopped, it is killed
                time.sleep(0.01)
            self.assertEqual(self.run_script("exit 4")["end"].get("exitCode"), 4)
            self.daemon.clock.turn(1.1)  # not sooner: a guest that kills it in a loop must not keep guestd busy
            self.assertEqual(self.run_script("exit 5")["end"].get("exitCode"), 5)
            self.assertEqual(self.run_script("exit 5")["end"].get("exitCode"), 5)
            self.assertEqual(len(self.daemon.spawners()), 1)

    def test_the_user_decides_who_runs_it(self):
        r = self.run_script("id -u; id -g; pwd", headers={"Authorization": "Basic " + b64(b"daemon:")},
                            process={"cmd": "/bin/sh", "args": ["-c", "id -un; id -G; pwd"], "cwd": "/tmp"})
        self.assertEqual(r["stdout"].split(), [b"daemon", b"1", b"/tmp"])

    def test_a_missing_program_is_an_exit_code_as_from_a_shell(self):
        for cmd, code, text in (("no-such-thing", 127, b"not found"), ("/etc/passwd", 126, b"Permission denied")):
            r = self.stream("process.Process/Start", {"process": {"cmd": cmd}}).result()
            self.assertEqual(r["end"]["exitCode"], code)
            self.assertIn(text, r["stderr"])

    def test_a_script_without_an_interpreter_line_runs(self):
        path = self.dir + "/script"
        with open(path, "w") as f:
            f.write("echo from script\n")
        os.chmod(path, 0o755)
        self.assertEqual(self.stream("process.Process/Start", {"process": {"cmd": path}}).result()["stdout"], b"from script\n")

    def test_a_missing_directory_is_refused_before_anything_starts(self):
        r = self.stream("process.Process/Start", {"process": {"cmd": "true", "cwd": "/no/where"}}).result()
        self.assertEqual(r["error"], {"code": "invalid_argument", "message": "cwd '/no/where' does not exist"})

    def test_a_path_that_cannot_be_entered_is_a_start_error(self):
        r = self.stream("process.Process/Start", {"process": {"cmd": "true", "cwd": "/etc/passwd"}}).result()
        self.assertEqual(r["error"]["code"], "invalid_argument")
        self.assertIn("error starting process 'true'", r["error"]["message"])

    def test_bad_requests_start_nothing(self):
        for request in ({}, {"process": 1}, {"process": {"cmd": 1}}, {"process": {"cmd": "x", "args": "y"}},
                        {"process": {"cmd": "x", "args": [1]}}, {"process": {"cmd": "x", "envs": {"a=b": "c"}}},
                        {"process": {"cmd": "x"}, "pty": {"size": {"cols": -1}}}):
            self.assertEqual(self.stream("process.Process/Start", request).result()["error"]["code"], "invalid_argument")

    def test_input_is_written_and_closed(self):
        s = self.start("cat; echo done")
        pid = s.pid()
        for text in (b"one ", b"", b"two\n"):
            self.fine("process.Process/SendInput", {"process": {"pid": pid}, "input": {"stdin": b64(text)}})
        self.fine("process.Process/CloseStdin", {"process": {"pid": pid}})
        self.assertEqual(s.result()["stdout"], b"one two\ndone\n")

    def test_input_can_be_closed_twice_and_takes_nothing_more(self):
        s = self.start("exec sleep 1000")
        selector = {"process": {"pid": s.pid()}}
        self.fine("process.Process/CloseStdin", selector)
        self.fine("process.Process/CloseStdin", selector)
        status, body = self.unary("process.Process/SendInput", {**selector, "input": {"stdin": "YQ=="}})
        self.assertEqual((status, body["code"]), (500, "internal"))
        self.fine("process.Process/SendSignal", {**selector, "signal": "SIGNAL_SIGKILL"})
        s.leave()

    def test_much_input_waits_for_the_pipe_and_arrives_whole(self):
        s = self.start("sleep 0.2; sha256sum")
        pid = s.pid()
        data = os.urandom(1 << 20)
        self.fine("process.Process/SendInput", {"process": {"pid": pid}, "input": {"stdin": b64(data)}})
        self.fine("process.Process/CloseStdin", {"process": {"pid": pid}})
        self.assertEqual(s.result()["stdout"].split()[0].decode(), hashlib.sha256(data).hexdigest())

    def test_a_request_that_is_too_large_is_invalid_and_says_what_fits(self):
        s = self.start("wc -c")
        selector = {"process": {"pid": s.pid()}}
        status, body = self.unary("process.Process/SendInput", {**selector, "input": {"stdin": b64(bytes(4 << 20))}})
        self.assertEqual((status, body["code"]), (400, "invalid_argument"))
        most = int(re.search(r"takes (\d+) bytes", body["message"])[1])
        self.fine("process.Process/SendInput", {**selector, "input": {"stdin": b64(bytes(most))}})
        self.fine("process.Process/CloseStdin", selector)
        self.assertEqual(s.result()["stdout"], b"%d\n" % most)
        for process in ({"cmd": "/bin/true", "args": ["x" * (2 << 20)]}, {"cmd": "/bin/true", "args": ["x"] * 5000},
                        {"cmd": "/bin/true", "args": ["x" * (5 << 20)]}, {"cmd": "x" * 5000},
                        {"cmd": "/bin/true", "envs": {"A": "x" * (2 << 20)}}):
            error = self.stream("process.Process/Start", {"process": process}).result()["error"]
            self.assertEqual(error["code"], "invalid_argument", error)

    def test_input_that_a_process_does_not_have_is_refused(self):
        s = self.start("exec sleep 1000", stdin=False)
        pid = s.pid()
        selector = {"process": {"pid": pid}}
        self.assertEqual(self.unary("process.Process/SendInput", {**selector, "input": {"stdin": "YQ=="}})[1]["code"], "internal")
        self.assertEqual(self.unary("process.Process/SendInput", {**selector, "input": {"pty": "YQ=="}})[1]["code"], "internal")
        self.assertEqual(self.unary("process.Process/SendInput", {**selector, "input": {}})[0], 501)
        self.assertEqual(self.unary("process.Process/SendInput", {**selector, "input": {"stdin": "*"}})[0], 400)
        self.assertEqual(self.unary("process.Process/Update", {**selector, "pty": {"size": {"cols": 1, "rows": 1}}})[0], 500)
        self.assertEqual(self.unary("process.Process/SendSignal", {**selector, "signal": "SIGNAL_SIGHUP"})[0], 501)
        self.assertEqual(self.unary("process.Process/SendSignal", {"signal": "SIGNAL_SIGKILL"})[0], 501)
        self.fine("process.Process/SendSignal", {**selector, "signal": "SIGNAL_SIGKILL"})
        self.assertEqual(self.unary("process.Process/SendSignal", {**selector, "signal": "SIGNAL_SIGKILL"})[0], 404)

    def test_setsid_runs_its_program_in_place(self):
        """A process group leader cannot make a session: setsid(1) would fork, and its parent would end with 0."""
        r = self.start("setsid sh -c 'exit 3'").result()
        self.assertEqual(r["end"].get("exitCode"), 3)

    def test_a_command_has_a_session_of_its_own_that_it_does_not_lead(self):
        r = self.start("ps -o pid=,pgid=,sid= -p $$").result()
        pid, group, session = map(int, r["stdout"].split())
        self.assertNotIn(pid, (group, session))
        self.assertEqual(group, session)
        self.assertNotEqual(session, os.getsid(self.daemon.process.pid))

    def test_killing_leaves_alone_what_has_detached_itself(self):
        for how in ("setsid", "nohup"):
            s = self.start(f"{how} sleep 1000 >/dev/null 2>&1 & echo $!; sleep 1000")
            leader, detached = s.pid(), int(s.read_until(b"\n"))
            while name_of(detached) != "sleep":
                time.sleep(0.01)
            family = [child for child in children(leader) if child != detached]
            self.fine("process.Process/SendSignal", {"process": {"pid": leader}, "signal": "SIGNAL_SIGKILL"})
            self.assertEqual(s.result()["end"]["status"], "signal: killed")
            for child in family:
                self.assertTrue(any(is_dead(child) or time.sleep(0.01) for _ in range(1000)))
            self.assertFalse(is_dead(detached), how)
            os.kill(detached, 9)

    def test_killing_a_command_that_is_wrapped_whole_reaches_its_children(self):
        for how in ("setsid", "nohup"):
            s = self.start(f"exec {how} sh -c 'sleep 1000 & echo $!; wait'")
            leader, child = s.pid(), int(s.read_until(b"\n"))
            self.fine("process.Process/SendSignal", {"process": {"pid": leader}, "signal": "SIGNAL_SIGKILL"})
            self.assertEqual(s.result()["end"]["status"], "signal: killed")
            self.assertTrue(any(is_dead(child) or time.sleep(0.01) for _ in range(1000)), how)

    def test_killing_reaches_the_whole_tree_and_is_done_when_it_answers(self):
        s = self.start("sleep 1000 & sh -c 'sleep 1000; true' & echo $!; wait")
        pid = s.pid()
        s.read_until(b"\n")
        for _ in range(1000):
            family = children(pid)
            if len(family) >= 2:
                break
            time.sleep(0.01)
        self.assertGreaterEqual(len(family), 2)
        self.fine("process.Process/SendSignal", {"process": {"pid": pid}, "signal": "SIGNAL_SIGKILL"})
        with self.assertRaises(ProcessLookupError):
            os.kill(pid, 0)
        self.assertEqual(s.result()["end"]["status"], "signal: killed")
        for child in family:
            # The leader is dead and collected by now. The others have their SIGKILL; a busy machine takes a moment over it.
            self.assertTrue(any(is_dead(child) or time.sleep(0.01) for _ in range(1000)))

    def test_a_terminated_process_does_not_wait_for_its_children(self):
        s = self.start("sleep 1000 & echo $!; wait")
        pid = s.pid()
        child = int(s.read_until(b"\n"))
        self.fine("process.Process/SendSignal", {"process": {"pid": pid}, "signal": 15})
        self.assertEqual(s.result()["end"]["status"], "signal: terminated")
        os.kill(child, 9)

    def test_a_child_that_holds_the_output_open_keeps_it_running(self):
        s = self.start("(sleep 0.3; echo late) & echo early")
        r = s.result()
        self.assertEqual(r["stdout"], b"early\nlate\n")

    def test_the_deadline_kills_and_says_so(self):
        s = self.start("sleep 1000 & echo $!; wait", headers={"Connect-Timeout-Ms": "3000"})
        pid = s.pid()
        child = int(s.read_until(b"\n"))
        r = s.result()
        self.assertEqual(r["error"]["code"], "deadline_exceeded")
        self.assertIsNone(r["end"])
        for dead in (pid, child):
            for _ in range(200):
                if not os.path.exists(f"/proc/{dead}") or ") Z" in open(f"/proc/{dead}/stat").read():
                    break
                time.sleep(0.01)
            else:
                self.fail("still there")

    def test_the_deadline_holds_for_clients_that_have_left(self):
        s = self.start("exec sleep 1000", headers={"Connect-Timeout-Ms": "400"})
        pid = s.pid()
        s.leave()
        r = self.stream("process.Process/Connect", {"process": {"pid": pid}}).result()
        self.assertEqual(r["end"]["status"], "signal: killed")

    def test_nothing_runs_on_whose_deadline_came_before_its_start(self):
        """Neither what the spawner starts, nor what guestd starts while there is none."""
        for has_spawner in (True, False):
            for i in range(60):
                if not has_spawner:
                    for spawner in self.daemon.spawners():
                        os.kill(spawner, signal.SIGKILL)
                self.start("sleep 76 & exec sleep 77", headers={"Connect-Timeout-Ms": str(1 + i % 3)}).result()
            look = ["pgrep", "-f", "^sleep 7[67]$"]
            self.assertTrue(any(subprocess.run(look, stdout=subprocess.DEVNULL, check=False).returncode or time.sleep(0.1)
                                for _ in range(100)))

    def test_list_echoes_what_was_sent(self):
        s = self.start("exec sleep 1000", tag="t1")
        pid = s.pid()
        listed = [p for p in self.fine("process.Process/List", {})["processes"] if p["pid"] == pid]
        self.assertEqual(listed, [{"config": {"cmd": "/bin/sh", "args": ["-c", "exec sleep 1000"]}, "pid": pid, "tag": "t1"}])
        self.fine("process.Process/SendSignal", {"process": {"tag": "t1"}, "signal": "SIGNAL_SIGKILL"})
        self.assertEqual(self.unary("process.Process/SendSignal", {"process": {"tag": "t1"}, "signal": 9})[1],
                         {"code": "not_found", "message": "process with tag t1 not found"})
        self.assertNotIn(pid, [p["pid"] for p in self.fine("process.Process/List", {}).get("processes", [])])

    def test_whoever_comes_while_others_watch_sees_what_is_new(self):
        s = self.start("echo old; read x; echo new $x")
        pid = s.pid()
        s.read_until(b"old\n")
        second = self.stream("process.Process/Connect", {"process": {"pid": pid}})
        self.assertEqual(second.pid(), pid)
        self.fine("process.Process/SendInput", {"process": {"pid": pid}, "input": {"stdin": b64(b"1\n")}})
        self.assertEqual(second.result()["stdout"], b"new 1\n")
        self.assertEqual(s.result()["stdout"], b"new 1\n")

    def test_whoever_comes_after_the_last_has_gone_gets_everything(self):
        s = self.start("echo old; read x; echo new $x; exit 5")
        pid = s.pid()
        s.read_until(b"old\n")
        s.leave()
        self.fine("process.Process/SendInput", {"process": {"pid": pid}, "input": {"stdin": b64(b"1\n")}})
        r = self.stream("process.Process/Connect", {"process": {"pid": pid}}).result()
        self.assertEqual((r["stdout"], r["end"]["exitCode"]), (b"old\nnew 1\n", 5))

    def test_whoever_meets_a_connection_that_is_about_to_break_gets_everything(self):
        s = self.start("echo old; read x; echo new $x; exit 5")
        pid = s.pid()
        s.read_until(b"old\n")
        next_one = self.stream("process.Process/Connect", {"process": {"pid": pid}})
        self.assertEqual(next_one.next(), {"start": {"pid": pid}})  # no offset: that is not known yet
        third = self.stream("process.Process/Connect", {"process": {"pid": pid}})
        self.assertEqual(third.pid(), pid)
        s.leave()
        self.assertEqual(next_one.read_until(b"old\n"), b"old\n")
        next_one.leave()
        self.fine("process.Process/SendInput", {"process": {"pid": pid}, "input": {"stdin": b64(b"1\n")}})
        r = third.result()
        self.assertEqual((r["stdout"], r["end"]["exitCode"]), (b"old\nnew 1\n", 5))

    def test_what_was_read_to_its_end_can_be_read_again(self):
        s = self.start("echo one; echo two >&2; exit 5")
        pid = s.pid()
        self.assertEqual(s.result()["end"]["exitCode"], 5)
        for offset, out, err in (({}, b"one\n", b"two\n"), ({"offset": 0}, b"one\n", b"two\n"), ({"offset": 8}, b"", b"")):
            r = self.stream("process.Process/Connect", {"process": {"pid": pid}, **offset}).result()
            self.assertEqual((r["stdout"], r["stderr"], r["end"]["exitCode"]), (out, err, 5))

    def test_a_newcomer_does_not_slow_down_those_who_read(self):
        s = self.start("read x; head -c 12000000 /dev/zero")
        pid = s.pid()
        second = self.stream("process.Process/Connect", {"process": {"pid": pid}})
        second.pid()
        self.fine("process.Process/SendInput", {"process": {"pid": pid}, "input": {"stdin": b64(b"1\n")}})
        thread = threading.Thread(target=lambda: self.assertEqual(len(s.result()["stdout"]), 12000000))
        thread.start()
        self.assertEqual(len(second.result()["stdout"]), 12000000)
        thread.join()

    def test_a_hundred_cut_connections_lose_nothing(self):
        s = self.start("i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i+1)); [ $((i % 100)) = 0 ] && sleep 0.01; done")
        pid, got, offset = s.pid(), b"", 0
        for cut in range(100):
            event = s.next()
            if event is None or "end" in event:
                break
            data = event.get("data", {})
            if "stdout" in data:
                self.assertEqual(data["offset"], offset)
                got += base64.b64decode(data["stdout"])
                offset = len(got)
            s.leave()
            s = self.stream("process.Process/Connect", {"process": {"pid": pid}, "offset": offset})
            s.next()
        else:
            got += s.result()["stdout"]
        self.assertEqual(got, b"".join(b"line %d\n" % i for i in range(3000)))

    def test_the_deadline_of_a_connect_ends_the_stream_only(self):
        s = self.start("echo old; read x; echo new")
        pid = s.pid()
        s.read_until(b"old\n")
        s.leave()
        r = self.stream("process.Process/Connect", {"process": {"pid": pid}}, Connect_Timeout_Ms="200").result()
        self.assertEqual((r["stdout"], r["error"]["code"]), (b"old\n", "deadline_exceeded"))
        self.fine("process.Process/SendInput", {"process": {"pid": pid}, "input": {"stdin": b64(b"1\n")}})
        self.assertEqual(self.stream("process.Process/Connect", {"process": {"pid": pid}}).result()["stdout"], b"old\nnew\n")

    def test_nobody_can_look_into_it(self):
        self.run_script("true")
        r = self.run_script("cat /proc/%d/environ; ls /proc/%d/fd" % ((self.daemon.process.pid,) * 2),
                            headers={"Authorization": "Basic " + b64(b"daemon:")})
        self.assertEqual(r["stdout"], b"")
        self.assertEqual(os.stat(f"/proc/{self.daemon.process.pid}/mem").st_uid, 0)

    def test_an_unknown_process_is_not_found(self):
        r = self.stream("process.Process/Connect", {"process": {"pid": 4000000}}).result()
        self.assertEqual(r["error"], {"code": "not_found", "message": "process with pid 4000000 not found"})

    def test_with_nobody_watching_output_is_dropped_and_never_blocks(self):
        s = self.start("head -c 20000000 /dev/zero; exit 7")
        pid = s.pid()
        s.leave()
        r = None
        for _ in range(600):
            if pid not in [p["pid"] for p in self.fine("process.Process/List", {}).get("processes", [])]:
                break
            time.sleep(0.05)
        r = self.stream("process.Process/Connect", {"process": {"pid": pid}}).result()
        self.assertEqual(r["end"]["exitCode"], 7)
        self.assertEqual(r["offsets"][0] + len(r["stdout"]), 20000000)
        self.assertGreater(len(r["stdout"]), 3 << 20)

    def test_a_slow_reader_loses_nothing(self):
        s = self.start("head -c 30000000 /dev/urandom | tee /dev/fd/2 2>/dev/null | cat", headers={})
        s.pid()
        time.sleep(0.5)
        r = s.result()
        self.assertEqual(len(r["stdout"]), 30000000)

    def turn(self, seconds):
        self.daemon.clock.turn(seconds)
        self.assertEqual(self.bare("GET", "/health")[0], 204)

    def wait_until_held_up(self, pid):
        """Until what the process has started writes no more, because nobody takes it from us."""
        written, same = -1, 0
        while same < 5:
            before, written = written, sum(written_bytes(child) for child in children(pid))
            same = same + 1 if written == before and written else 0
            time.sleep(0.1)

    def test_a_slow_reader_of_a_process_that_is_killed_loses_nothing(self):
        s = self.start("yes o & yes e >&2 & wait")
        pid, offset = s.pid(), 0
        self.wait_until_held_up(pid)
        self.fine("process.Process/SendSignal", {"process": {"pid": pid}, "signal": "SIGNAL_SIGKILL"})
        while (event := s.next()) is not None:
            data = event.get("data", {})
            for name in {"stdout", "stderr"} & set(data):
                self.assertEqual(data["offset"], offset)
                offset += len(base64.b64decode(data[name]))
        self.assertGreater(offset, 4 << 20)  # the queue was full
        s.leave()

    def test_whoever_catches_up_late_is_not_held_up_by_whoever_does_not(self):
        s = self.start("read x; yes & wait")
        pid = s.pid()
        second = self.stream("process.Process/Connect", {"process": {"pid": pid}, "offset": 0})
        second.pid()
        self.fine("process.Process/SendInput", {"process": {"pid": pid}, "input": {"stdin": b64(b"1\n")}})
        self.wait_until_held_up(pid)
        self.turn(1.1)  # both are slow when it is first asked who holds up whom
        seen = turned = 0
        while seen < 30 << 20:  # far more than is kept, so it waits for the other to be cut
            seen += len(base64.b64decode(second.next().get("data", {}).get("stdout", "")))
            if turned < seen >> 19 < 8:
                turned = seen >> 19
                self.turn(1.1)
        second.leave()
        self.assertEqual(s.result()["error"]["code"], "resource_exhausted")
        self.fine("process.Process/SendSignal", {"process": {"pid": pid}, "signal": "SIGNAL_SIGKILL"})

    def test_a_watcher_that_reads_nothing_holds_up_the_others_for_a_second(self):
        s = self.start("read x; yes & wait")
        pid = s.pid()
        second = self.stream("process.Process/Connect", {"process": {"pid": pid}, "offset": 0})
        second.pid()
        self.fine("process.Process/SendInput", {"process": {"pid": pid}, "input": {"stdin": b64(b"1\n")}})
        seen = offset = 0
        while seen < 30 << 20:  # far more than is kept: without the cut there is no more of it
            if (data := second.next()["data"]).get("stdout"):
                self.assertEqual(data["offset"], offset)  # it loses nothing
                seen = offset = offset + len(base64.b64decode(data["stdout"]))
        second.leave()
        error = s.result()["error"]
        self.assertEqual(error["code"], "resource_exhausted")
        self.assertIn(f"held up others that watch process {pid}; connect again from offset ", error["message"])
        self.fine("process.Process/SendSignal", {"process": {"pid": pid}, "signal": "SIGNAL_SIGKILL"})

    def test_a_terminal_echoes_resizes_and_ends(self):
        s = self.stream("process.Process/Start", {
            "process": {"cmd": "/bin/sh", "args": ["-c", "stty size; read x; stty size; echo got $x"]},
            "pty": {"size": {"cols": 80, "rows": 24}}})
        pid = s.pid()
        self.assertIn(b"24 80", s.read_until(b"\n"))
        self.fine("process.Process/Update", {"process": {"pid": pid}, "pty": {"size": {"cols": 100, "rows": 30}}})
        self.fine("process.Process/Update", {"process": {"pid": pid}})
        self.assertEqual(self.unary("process.Process/CloseStdin", {"process": {"pid": pid}})[1]["code"], "unknown")
        self.assertEqual(self.unary("process.Process/SendInput", {"process": {"pid": pid}, "input": {"stdin": "YQ=="}})[0], 500)
        self.fine("process.Process/SendInput", {"process": {"pid": pid}, "input": {"pty": b64(b"hey\n")}})
        r = s.result()
        self.assertIn(b"30 100", r["pty"])
        self.assertIn(b"got hey", r["pty"])
        self.assertEqual(r["end"]["status"], "exit status 0")

    def test_streamed_input_is_written_as_it_arrives(self):
        s = self.start("while read x; do echo got $x; done")
        pid = s.pid()
        c = http.client.HTTPConnection("127.0.0.1", self.daemon.port, timeout=60)
        c.putrequest("POST", "/process.Process/StreamInput")
        for name, value in {"X-Access-Token": TOKEN, "Content-Type": "application/connect+json", "Transfer-Encoding": "chunked"}.items():
            c.putheader(name, value)
        c.endheaders()

        def chunk(data):
            c.send(b"%x\r\n%s\r\n" % (len(data), data))
        message = envelope(json.dumps({"start": {"process": {"pid": pid}}}).encode())
        chunk(message[:3])
        chunk(message[3:])
        for i in range(3):
            chunk(envelope(json.dumps({"data": {"input": {"stdin": b64(b"%d\n" % i)}}}).encode()) + envelope(b'{"keepalive":{}}'))
            self.assertEqual(s.read_until(b"\n"), b"got %d\n" % i)
        c.send(b"0\r\n\r\n")
        answer = c.getresponse()
        self.assertEqual(answer.read(), envelope(b"{}") + envelope(b"{}", 2))
        self.fine("process.Process/CloseStdin", {"process": {"pid": pid}})
        self.assertEqual(s.result()["end"]["status"], "exit status 0")

    def test_streamed_input_fails_at_once(self):
        for messages, code in (([{"start": {"process": {"pid": 4000000}}}], "not_found"),
                               ([{"data": {"input": {"stdin": "YQ=="}}}], "invalid_argument"), ([{}], "unimplemented")):
            body = b"".join(envelope(json.dumps(m).encode()) for m in messages)
            status, answer, _ = self.ask("POST", "/process.Process/StreamInput", body, Content_Type="application/connect+json")
            self.assertEqual(status, 200)
            self.assertEqual(json.loads(answer[5:])["error"]["code"], code)

    def test_many_at_once_get_their_own_output(self):
        streams = [self.start(f"echo {i}; sleep 0.1; echo {i}") for i in range(40)]
        for i, s in enumerate(streams):
            self.assertEqual(s.result()["stdout"], b"%d\n%d\n" % (i, i))


class Files(Case):
    def put(self, path, data, query="", **headers):
        headers.setdefault("Content_Type", "application/octet-stream")
        return self.ask("POST", "/files?path=" + urllib.parse.quote(path) + query, data, **headers)

    def get(self, path, query="", **headers):
        return self.ask("GET", "/files?path=" + urllib.parse.quote(path) + query, None, **headers)

    def test_what_is_written_is_read_again(self):
        for size in (0, 1, 1023, 65535, 65536, 65537, 3000000):
            data = os.urandom(size)
            path = f"{self.dir}/a/b c/{size}.bin"
            status, body, _ = self.put(path, data)
            self.assertEqual((status, json.loads(body)), (200, [{"path": path, "name": f"{size}.bin", "type": "file"}]))
            status, body, headers = self.get(path)
            self.assertEqual((status, headers["Content-Length"]), (200, str(size)))
            self.assertTrue(body == data)

    def test_the_user_owns_what_is_made(self):
        path = self.dir + "/owned/deep/file"
        self.assertEqual(self.put(path, b"x", "&username=daemon")[0], 200)
        for p in (path, os.path.dirname(path)):
            self.assertEqual((os.stat(p).st_uid, os.stat(p).st_gid), (1, 1))
        self.assertEqual(os.stat(path).st_mode & 0o777, 0o644)
        self.assertEqual(os.stat(self.dir).st_uid, 0)
        self.assertEqual(self.put(path, b"x", "&username=no-such-user")[0], 401)

    def test_overwriting_truncates_keeps_the_mode_and_follows_links(self):
        path = self.dir + "/over"
        with open(path, "w") as f:
            f.write("long content")
        os.chmod(path, 0o600)
        os.symlink("over", self.dir + "/link")
        self.assertEqual(self.put(self.dir + "/link", b"short")[0], 200)
        with open(path) as f:
            self.assertEqual(f.read(), "short")
        self.assertEqual(os.stat(path).st_mode & 0o777, 0o600)
        self.assertTrue(os.path.islink(self.dir + "/link"))

    def test_an_upload_through_a_link_that_leads_to_no_file_makes_it(self):
        os.symlink(self.dir + "/later", self.dir + "/ahead")
        for data in (b"the first and longer", b"then a short one"):
            self.assertEqual(self.put(self.dir + "/ahead", data)[0], 200)
            with open(self.dir + "/later", "rb") as f:
                self.assertEqual(f.read(), data)
        self.assertTrue(os.path.islink(self.dir + "/ahead"))

    def multipart(self, parts, boundary="xYz"):
        body = b""
        for name, filename, data in parts:
            body += f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"'.encode()
            body += f'; filename="{filename}"'.encode() if filename is not None else b""
            body += b"\r\nContent-Type: application/octet-stream\r\n\r\n" + data + b"\r\n"
        return body + f"--{boundary}--\r\n".encode()

    def test_several_files_come_in_one_upload(self):
        data = [os.urandom(200000) + b"\r\n--xY", b"", b"\r\n"]
        body = self.multipart([("file", f"{self.dir}/m{i}", d) for i, d in enumerate(data)] + [("other", None, b"ignored")])
        status, answer, _ = self.ask("POST", "/files", body, Content_Type="multipart/form-data; boundary=xYz")
        self.assertEqual((status, [f["name"] for f in json.loads(answer)]), (200, ["m0", "m1", "m2"]))
        for i, d in enumerate(data):
            with open(f"{self.dir}/m{i}", "rb") as f:
                self.assertTrue(f.read() == d)

    def test_bad_uploads_have_their_status(self):
        form = "multipart/form-data; boundary=xYz"
        twice = self.multipart([("file", self.dir + "/same", b"1"), ("file", self.dir + "/same", b"2")])
        self.assertEqual(self.ask("POST", "/files", twice, Content_Type=form)[0], 400)
        self.assertEqual(self.ask("POST", "/files", b"x", Content_Type="application/octet-stream")[0], 400)
        self.assertEqual(self.put(self.dir + "/x", b"x", Content_Type="text/plain")[0], 400)
        self.assertEqual(self.put(self.dir + "/x", b"x", Content_Type="multipart/form-data")[0], 400)
        self.assertEqual(self.put(self.dir + "/x", b"x", Content_Encoding="br")[0], 400)
        self.assertEqual(self.put(self.dir, b"x")[0], 400)
        self.assertEqual(self.put("/etc/passwd/x", b"x")[0], 400)
        self.assertEqual(self.put(self.dir + "/" + "n" * 300, b"x")[0], 400)
        self.assertEqual(self.put("/" + "n/" * 3000, b"x")[0], 400)
        self.assertEqual(self.put("~other/x", b"x")[0], 400)
        self.assertEqual(self.ask("POST", "/files?path=%2Ftmp%2Fa%00b", b"x", Content_Type="application/octet-stream")[0], 400)
        self.assertEqual(self.put("/dev/full", b"x")[0], 400)

    def test_a_cut_multipart_leaves_no_new_file(self):
        whole = self.multipart([("file", self.dir + "/cut", b"x" * 100000)])
        status = self.ask("POST", "/files", whole[:-20], Content_Type="multipart/form-data; boundary=xYz")[0]
        self.assertEqual(status, 400)
        self.assertFalse(os.path.exists(self.dir + "/cut"))

    def test_a_client_that_vanishes_leaves_no_new_file(self):
        path = self.dir + "/vanished"
        c = self.cut_upload(path, b"x" * 200000)
        for _ in range(600):
            if os.path.exists(path):
                break
            time.sleep(0.01)
        self.assertTrue(os.path.exists(path))
        c.close()
        for _ in range(600):
            if not os.path.exists(path):
                break
            time.sleep(0.01)
        self.assertFalse(os.path.exists(path))

    def cut_upload(self, path, come):
        """All of an upload that will ever come, and then nobody."""
        c = socket.create_connection(("127.0.0.1", self.daemon.port))
        c.sendall(f"POST /files?path={path} HTTP/1.1\r\nHost: x\r\nX-Access-Token: {TOKEN}\r\nContent-Type: "
                  "application/octet-stream\r\nContent-Length: 1000000\r\n\r\n".encode() + come)
        return c

    def test_what_is_cut_off_is_not_filled_up_with_what_was_there(self):
        path = self.dir + "/cut-over"
        with open(path, "wb") as f:
            f.write(b"o" * 500000)
        c = self.cut_upload(path, b"n" * 200000)
        for _ in range(600):
            with open(path, "rb") as f:
                if f.read(1) == b"n":
                    break
            time.sleep(0.01)
        self.assertEqual(os.path.getsize(path), 500000)  # written over, not emptied first
        c.close()
        for _ in range(600):
            if os.path.getsize(path) < 500000:
                break
            time.sleep(0.01)
        with open(path, "rb") as f:
            self.assertEqual(set(f.read()), {ord("n")})

    def test_of_what_is_cut_off_early_nothing_is_lost(self):
        path = self.dir + "/kept"
        with open(path, "wb") as f:
            f.write(b"o" * 500)
        self.cut_upload(path, b"few").close()
        self.assertEqual(self.get(path)[1], b"o" * 500)
        self.assertEqual(self.put(path, b"")[0], 200)
        self.assertEqual(os.path.getsize(path), 0)

    def test_gzip_is_undone_on_the_way_in(self):
        data = os.urandom(300000) + b"z" * 3000000
        self.assertEqual(self.put(self.dir + "/gz", gzip.compress(data), Content_Encoding="gzip")[0], 200)
        self.assertTrue(self.get(self.dir + "/gz")[1] == data)
        form = self.multipart([("file", self.dir + "/gz2", data)])
        self.assertEqual(self.ask("POST", "/files", gzip.compress(form), Content_Type="multipart/form-data; boundary=xYz",
                                  Content_Encoding="gzip")[0], 200)
        self.assertTrue(self.get(self.dir + "/gz2")[1] == data)
        self.assertEqual(self.put(self.dir + "/gz3", gzip.compress(data)[:-9], Content_Encoding="gzip")[0], 400)
        self.assertEqual(self.put(self.dir + "/gz3", b"not gzip", Content_Encoding="gzip")[0], 400)
        self.assertFalse(os.path.exists(self.dir + "/gz3"))
        self.assertEqual(self.put(self.dir + "/gz4", gzip.compress(b""), Content_Encoding="gzip")[0], 200)
        self.assertEqual(os.path.getsize(self.dir + "/gz4"), 0)

    def test_downloads_are_plain_unless_that_is_refused(self):
        data = b"text " * 100000
        self.put(self.dir + "/t.txt", data)
        status, body, headers = self.get(self.dir + "/t.txt", Accept_Encoding="gzip, deflate")
        self.assertTrue(status == 200 and body == data and headers["Content-Encoding"] is None)
        status, body, headers = self.get(self.dir + "/t.txt", Accept_Encoding="gzip, identity;q=0")
        self.assertTrue(headers["Content-Encoding"] == "gzip" and gzip.decompress(body) == data)
        self.assertEqual(self.get(self.dir + "/t.txt", Accept_Encoding="br, *;q=0")[0], 406)

    def test_ranges_and_dates(self):
        self.put(self.dir + "/r", b"0123456789")
        status, body, headers = self.get(self.dir + "/r", Range="bytes=2-4")
        self.assertEqual((status, body, headers["Content-Range"]), (206, b"234", "bytes 2-4/10"))
        self.assertEqual(self.get(self.dir + "/r", Range="bytes=10-")[0], 416)
        self.put(self.dir + "/big", os.urandom(200000))
        with open(self.dir + "/big", "rb") as f:
            self.assertTrue(self.get(self.dir + "/big", Range="bytes=100-150099")[1] == f.read()[100:150100])
        modified = self.get(self.dir + "/r")[2]["Last-Modified"]
        self.assertEqual(self.get(self.dir + "/r", If_Modified_Since=modified)[0], 304)

    def test_files_without_a_size_are_read_to_their_end(self):
        status, body, _ = self.get("/proc/self/status")
        self.assertEqual(status, 200)
        self.assertIn(b"guestd", body)

    def test_what_is_no_file_is_refused_without_waiting(self):
        os.mkfifo(self.dir + "/fifo")
        self.assertEqual(self.get(self.dir + "/fifo")[0], 500)
        self.assertEqual(self.put(self.dir + "/fifo", b"x")[0], 400)
        self.assertEqual(self.get(self.dir)[0], 400)
        status, body, _ = self.get(self.dir + "/none")
        self.assertEqual((status, json.loads(body)["message"]), (404, f"path '{self.dir}/none' does not exist"))

    def test_metadata_is_kept_and_replaced(self):
        path = self.dir + "/meta"
        status, body, _ = self.put(path, b"x", X_Metadata_Foo="bar", X_Metadata_b="c d")
        self.assertEqual(json.loads(body)[0]["metadata"], {"foo": "bar", "b": "c d"})
        try:
            os.getxattr(path, "user.e2b.foo")
        except OSError:
            self.skipTest("this file system has no user attributes")
        self.assertEqual(self.fine("filesystem.Filesystem/Stat", {"path": path})["entry"]["metadata"], {"foo": "bar", "b": "c d"})
        self.put(path, b"x", X_Metadata_Foo="new")
        self.assertEqual(self.fine("filesystem.Filesystem/Stat", {"path": path})["entry"]["metadata"], {"foo": "new"})
        self.put(path, b"x")
        self.assertNotIn("metadata", self.fine("filesystem.Filesystem/Stat", {"path": path})["entry"])
        self.assertEqual(self.put(path, b"x", **{"X-Metadata-" + "k" * 247: "v"})[0], 400)
        self.assertEqual(self.put(path, b"x", X_Metadata_a="v" * 4096)[0], 400)

    def test_signed_links_open_what_they_name_and_nothing_else(self):
        path = self.dir + "/signed"
        self.put(path, b"secret")

        def sign(operation, expiration=None, file=path, user=""):
            raw = f"{file}:{operation}:{user}:{TOKEN}" + (f":{expiration}" if expiration is not None else "")
            return "v1_" + base64.b64encode(hashlib.sha256(raw.encode()).digest()).decode().rstrip("=")

        def fetch(signature, expiration=None, method="GET", **more):
            query = {"path": path, "signature": signature, **more}
            if expiration is not None:
                query["signature_expiration"] = expiration
            return self.bare(method, "/files?" + urllib.parse.urlencode(query), b"new" if method == "POST" else None,
                             {"Content-Type": "application/octet-stream"})
        later, earlier = int(time.time()) + 1000, int(time.time()) - 1000
        self.assertEqual(fetch(sign("read"))[1], b"secret")
        self.assertEqual(fetch(sign("read", later), later)[1], b"secret")
        self.assertEqual(json.loads(fetch(sign("read", earlier), earlier)[1]), {"code": 401, "message": "signature is already expired"})
        self.assertEqual(json.loads(fetch(sign("read", later), later + 1)[1]), {"code": 401, "message": "invalid signature"})
        self.assertEqual(fetch(sign("read"), method="POST")[0], 401)
        self.assertEqual(fetch(sign("read"), username="root")[0], 401)
        self.assertEqual(fetch(sign("write"), method="POST")[0], 200)
        self.assertEqual(fetch(sign("read"), "soon")[0], 400)
        self.assertEqual(self.bare("GET", "/files?path=" + path)[0], 401)
        self.assertEqual(self.bare("GET", "/files?path=" + path, None, {"X-Access-Token": "wrong"})[0], 401)


class Copying(Case):
    """POST /cloister/copy: the files of a COPY step."""

    def archive(self, *members, mode="w:gz"):
        """A member is a name and bytes, a tar type with its link, or None for a directory."""
        raw = io.BytesIO()
        with tarfile.open(fileobj=raw, mode=mode) as tar:
            for name, what in members:
                info = tarfile.TarInfo(name)
                info.uid = info.gid = 4242  # of the developer's machine
                info.mode, info.mtime = 0o640, 1000000000
                if what is None:
                    info.type, info.mode = tarfile.DIRTYPE, 0o750
                elif isinstance(what, tuple):
                    info.type, info.linkname = what
                else:
                    info.size = len(what)
                tar.addfile(info, io.BytesIO(what) if isinstance(what, bytes) else None)
        return raw.getvalue()

    def copy(self, archive, source, dest, **query):
        text = urllib.parse.urlencode({"source": source, "dest": dest, "user": "root", **query})
        status, body, _ = self.ask("POST", "/cloister/copy?" + text, archive)
        return status, json.loads(body)["message"] if body else ""

    def leaves_nothing(self):
        self.assertEqual([name for name in os.listdir("/") if name.startswith(".cloister-copy")], [])

    def test_needs_the_token(self):
        self.assertEqual(self.ask("POST", "/cloister/copy?source=a&dest=/b", b"", X_Access_Token="no")[0], 401)

    def test_a_file(self):
        for mode in ("w:gz", "w"):
            data = os.urandom(200000)
            tar = self.archive(("a.bin", data), mode=mode)
            for source, dest, place in (
                ("a.bin", f"{self.dir}/f1/b.bin", "f1/b.bin"),
                ("a.bin", f"{self.dir}/f2/", "f2/a.bin"),
                ("./a.bin", f"{self.dir}/f2", "f2/a.bin"),  # which is a directory by now
                ("*.bin", f"{self.dir}/f3", "f3/a.bin"),
            ):
                self.assertEqual(self.copy(tar, source, dest), (204, ""))
                path = pathlib.Path(self.dir, place)
                self.assertEqual(path.read_bytes(), data)
                self.assertEqual((path.stat().st_uid, path.stat().st_mode & 0o7777), (0, 0o640))
                self.assertEqual(path.stat().st_mtime, 1000000000)
                self.assertEqual(path.parent.stat().st_mode & 0o7777, 0o755)
        self.leaves_nothing()

    def test_owner_and_mode(self):
        tar = self.archive(("d", None), ("d/a", b"x"), ("d/l", (tarfile.SYMTYPE, "a")))
        self.assertEqual(self.copy(tar, "d", f"{self.dir}/own", owner="nobody:daemon", mode="0701"), (204, ""))
        nobody, daemon = pwd.getpwnam("nobody").pw_uid, grp.getgrnam("daemon").gr_gid
        for name, mode in (("a", 0o701), ("l", 0o777)):
            st = os.lstat(f"{self.dir}/own/{name}")
            self.assertEqual((st.st_uid, st.st_gid, st.st_mode & 0o7777), (nobody, daemon, mode))
        self.assertEqual(os.stat(f"{self.dir}/own").st_uid, 0)
        self.assertEqual(self.copy(tar, "d/a", f"{self.dir}/num", owner="7:8"), (204, ""))
        self.assertEqual((os.stat(f"{self.dir}/num").st_uid, os.stat(f"{self.dir}/num").st_gid), (7, 8))
        self.assertEqual(self.copy(tar, "d/a", f"{self.dir}/zero", mode="0000"), (204, ""))
        self.assertEqual(os.stat(f"{self.dir}/zero").st_mode & 0o7777, 0)
        for query in ({"owner": "nobodyatall"}, {"owner": "root:nogroupatall"}, {"mode": "9"}, {"mode": "77777"}, {"user": "nobodyatall"}):
            self.assertEqual(self.copy(tar, "d", f"{self.dir}/bad", **query)[0], 400, query)
        self.assertFalse(os.path.exists(f"{self.dir}/bad"))

    def test_directories_are_merged(self):
        there = pathlib.Path(self.dir, "there")
        (there / "sub").mkdir(parents=True)
        (there / "real").mkdir()
        os.chmod(there / "sub", 0o700)
        (there / "sub" / "old").write_text("old")
        (there / "sub" / "new").write_text("before")
        (there / "target").write_text("target")
        os.symlink("target", there / "file-link")
        os.symlink("real", there / "dir-link")
        tar = self.archive(
            ("d/sub", None), ("d/sub/new", b"after"), ("d/file-link", b"own"), ("d/dir-link/x", b"x"), ("d/.dot", b""),
            ("d/dangling", (tarfile.SYMTYPE, "/nowhere")), ("d/hard", (tarfile.LNKTYPE, "d/sub/new")),
        )  # fmt: skip
        self.assertEqual(self.copy(tar, "d/**/*", str(there)), (204, ""))
        self.assertEqual((there / "sub" / "old").read_text(), "old")
        self.assertEqual((there / "sub" / "new").read_text(), "after")
        self.assertEqual((there / "sub").stat().st_mode & 0o7777, 0o700)
        self.assertEqual((there / "target").read_text(), "target")
        self.assertFalse((there / "file-link").is_symlink())
        self.assertTrue((there / "dir-link").is_symlink())
        self.assertEqual((there / "real" / "x").read_text(), "x")
        self.assertEqual(os.readlink(there / "dangling"), "/nowhere")
        self.assertTrue((there / "hard").samefile(there / "sub" / "new"))
        self.assertTrue((there / ".dot").exists())

    def test_the_workdir_and_the_home_are_where_relative_paths_begin(self):
        tar = self.archive(("a", b"x"))
        self.assertEqual(self.copy(tar, "a", "rel/a", workdir=f"{self.dir}/wd"), (204, ""))
        self.assertTrue(os.path.exists(f"{self.dir}/wd/rel/a"))

    def test_to_another_file_system(self):
        target = tempfile.mkdtemp(dir="/dev/shm")
        tar = self.archive(("d/sub/a", b"x" * 70000), ("d/l", (tarfile.SYMTYPE, "sub/a")))
        try:
            self.assertEqual(self.copy(tar, "d", target), (204, ""))
            self.assertEqual(pathlib.Path(target, "l").read_bytes(), b"x" * 70000)
        finally:
            shutil.rmtree(target)

    def test_nothing_gets_out_of_the_archive(self):
        outside = pathlib.Path(self.dir, "outside")
        outside.mkdir()
        for members in (
            [("../x", b"x")],
            [("a/../../x", b"x")],
            [("l", (tarfile.SYMTYPE, str(outside))), ("l/x", b"x")],
            [("a", (tarfile.LNKTYPE, "../../etc/passwd"))],
            [("a", (tarfile.LNKTYPE, "etc/passwd"))],
        ):
            status, message = self.copy(self.archive(*members), ".", f"{self.dir}/out")
            self.assertEqual(status, 400, (members, message))
        self.assertEqual(os.listdir(outside), [])
        self.assertEqual(self.copy(self.archive(("/abs", b"x")), "abs", f"{self.dir}/out/"), (204, ""))
        self.assertFalse(os.path.exists("/abs"))
        self.leaves_nothing()

    def test_bad_archives(self):
        whole = self.archive(("a", os.urandom(300000)))
        plain = self.archive(("a", os.urandom(300000)), mode="w")
        for bad in (b"", b"no tar at all" * 100, whole[:-1000], plain[:100000], whole[:50] + b"x" + whole[51:]):
            self.assertEqual(self.copy(bad, "a", f"{self.dir}/bad-a")[0], 400 if bad else 404)
        self.assertEqual(self.copy(whole, "b", f"{self.dir}/bad-a"), (404, "source path does not exist: b"))
        os.mkdir(f"{self.dir}/bad-d")
        status, message = self.copy(self.archive(("x/bad-d", b"x")), "x", self.dir)
        self.assertEqual((status, message), (400, "'bad-d' is a directory, which a file cannot replace"))
        self.assertFalse(os.path.exists(f"{self.dir}/bad-a"))
        self.leaves_nothing()


class Filesystem(Case):
    def rpc(self, method, **request):
        return self.unary("filesystem.Filesystem/" + method, request)

    def test_stat_describes_files_directories_and_links(self):
        d = self.dir + "/stat"
        os.makedirs(d + "/sub")
        with open(d + "/f", "w") as f:
            f.write("12345")
        os.chmod(d + "/f", 0o640)
        os.symlink("f", d + "/l")
        os.symlink("nowhere", d + "/broken")
        e = self.rpc("Stat", path=d + "/f")[1]["entry"]
        self.assertEqual((e["name"], e["type"], e["size"], e["mode"], e["permissions"], e["owner"], e["group"]),
                         ("f", "FILE_TYPE_FILE", "5", 0o640, "-rw-r-----", "root", "root"))
        self.assertRegex(e["modifiedTime"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z$")
        e = self.rpc("Stat", path=d + "/l")[1]["entry"]
        self.assertEqual((e["type"], e["symlinkTarget"], e["permissions"], e["mode"]),
                         ("FILE_TYPE_FILE", os.path.realpath(d) + "/f", "Lrwxrwxrwx", 0o640))
        e = self.rpc("Stat", path=d + "/broken")[1]["entry"]
        self.assertEqual((e.get("type"), e["symlinkTarget"]), (None, d + "/broken"))
        self.assertEqual(self.rpc("Stat", path=d + "/none")[1]["code"], "not_found")
        self.assertEqual(self.rpc("Stat", path=d + "/f/x")[0], 500)
        self.assertEqual(self.rpc("Stat", path=1)[0], 400)

    def test_old_python_clients_get_three_fields(self):
        status, body, headers = self.ask("POST", "/filesystem.Filesystem/Stat", json.dumps({"path": "/tmp"}),
                                         Content_Type="application/json", User_Agent="connect-python")
        self.assertEqual(set(json.loads(body)["entry"]), {"name", "type", "path"})
        self.assertEqual(headers["X-E2B-Legacy-SDK"], "true")

    def test_listing_is_sorted_depth_first_and_does_not_enter_links(self):
        d = self.dir + "/list"
        for name in ("b/y/deep", "b/x", "a-dir"):
            os.makedirs(f"{d}/{name}")
        for name in ("a", "Z", "b/file", b"bad\xff"):
            open(os.path.join(os.fsencode(d), os.fsencode(name)), "w").close()
        os.symlink("b", d + "/c-link")
        os.symlink(d, self.dir + "/to-list")

        def names(path, depth=None):
            status, body = self.rpc("ListDir", path=path, **({"depth": depth} if depth is not None else {}))
            self.assertEqual(status, 200, body)
            return [e["path"][len(path) + 1:] for e in body.get("entries", [])]
        self.assertEqual(names(d), ["Z", "a", "a-dir", "b", "bad\ufffd", "c-link"])
        self.assertEqual(names(d, 0), names(d, 1))
        self.assertEqual(names(d, 2), ["Z", "a", "a-dir", "b", "b/file", "b/x", "b/y", "bad\ufffd", "c-link"])
        self.assertEqual(names(d, 9)[7:9], ["b/y/deep", "bad\ufffd"])
        self.assertEqual(names(self.dir + "/to-list", 1), names(d))
        self.assertEqual(self.rpc("ListDir", path=d + "/none")[1]["code"], "not_found")
        self.assertEqual(self.rpc("ListDir", path=d + "/a")[1]["code"], "invalid_argument")
        os.symlink("loop", d + "/loop")
        self.assertEqual(self.rpc("ListDir", path=d + "/loop")[1]["code"], "failed_precondition")

    def test_directories_are_made_with_parents_once(self):
        d = self.dir + "/made/x/y"
        self.assertEqual(self.rpc("MakeDir", path=d)[1]["entry"]["type"], "FILE_TYPE_DIRECTORY")
        self.assertEqual(self.rpc("MakeDir", path=d), (409, {"code": "already_exists", "message": "directory already exists: " + d}))
        self.assertEqual(self.rpc("MakeDir", path="/etc/passwd")[1]["code"], "invalid_argument")
        self.assertEqual(self.rpc("MakeDir", path="/etc/passwd/x")[1]["code"], "invalid_argument")

    def test_moving_makes_parents_and_replaces_files(self):
        d = self.dir + "/move"
        os.makedirs(d)
        for name in ("a", "b"):
            with open(f"{d}/{name}", "w") as f:
                f.write(name)
        self.assertEqual(self.rpc("Move", source=d + "/a", destination=d + "/new/b")[1]["entry"]["path"], d + "/new/b")
        self.assertEqual(self.rpc("Move", source=d + "/b", destination=d + "/new/b")[0], 200)
        self.assertEqual(self.rpc("Move", source=d + "/a", destination=d + "/c")[1]["code"], "not_found")
        self.assertEqual(self.rpc("Move", source=d + "/new", destination=d + "/new/sub")[0], 500)

    def test_removing_takes_all_below_and_follows_no_link(self):
        d = self.dir + "/remove"
        os.makedirs(d + "/many")
        os.makedirs(self.dir + "/kept")
        open(self.dir + "/kept/file", "w").close()
        os.symlink(self.dir + "/kept", d + "/link")
        for i in range(300):
            open(f"{d}/many/{i}", "w").close()
        fd = os.open(d, os.O_RDONLY)
        for _ in range(200):  # deeper than is held open at once
            os.mkdir("d", dir_fd=fd)
            below = os.open("d", os.O_RDONLY, dir_fd=fd)
            os.close(fd)
            fd = below
        os.close(fd)
        self.assertEqual(self.rpc("Remove", path=d), (200, {}))
        self.assertFalse(os.path.exists(d))
        self.assertTrue(os.path.exists(self.dir + "/kept/file"))
        self.assertEqual(self.rpc("Remove", path=d), (200, {}))
        os.symlink(self.dir + "/kept", d)
        self.assertEqual(self.rpc("Remove", path=d), (200, {}))
        self.assertTrue(os.path.exists(self.dir + "/kept/file"))

    def test_what_takes_the_disk_long_is_moved_and_removed_all_the_same(self):
        d = self.dir + "/large"
        os.mkdir(d)
        for name in "abc":
            with open(f"{d}/{name}", "w") as f:
                f.truncate(1 << 30)
        self.assertEqual(self.rpc("Move", source=d + "/a", destination=d + "/b")[1]["entry"]["size"], str(1 << 30))
        self.assertEqual(self.rpc("Move", source=d + "/a", destination=d + "/b")[1]["code"], "not_found")
        self.assertEqual(self.rpc("Move", source=d + "/b", destination=d)[0], 500)
        self.assertEqual(self.rpc("Remove", path=d + "/b"), (200, {}))
        self.assertEqual(os.listdir(d), ["c"])

    def test_a_directory_that_takes_long_is_listed_whole(self):
        d = self.dir + "/takes-long"
        os.mkdir(d)
        for i in range(600):
            os.mknod(f"{d}/{i}")
            os.symlink(str(i), f"{d}/to-{i}")
        self.assertEqual(len(self.rpc("ListDir", path=d)[1]["entries"]), 1200)

    def test_paths_that_no_call_would_take_are_refused(self):
        for path in ("/" + "x" * 300, "/" + "x/" * 4000, "~other"):
            for method in ("Stat", "MakeDir", "ListDir"):
                status, body = self.rpc(method, path=path)
                self.assertEqual((status, body["code"]), (400, "invalid_argument"), path[:20])
        status, body, _ = self.ask("POST", "/filesystem.Filesystem/Stat", b'{"path":"/a\\u0000b"}', Content_Type="application/json")
        self.assertEqual(status, 400)


class Watching(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        # As keeper does. Each watch has an instance, and the kernel's own limit is 128 for a user.
        limit = pathlib.Path("/proc/sys/fs/inotify/max_user_instances")
        if int(limit.read_text()) < 4096:
            limit.write_text("4096")

    def watcher(self, path, **more):
        return self.fine("filesystem.Filesystem/CreateWatcher", {"path": path, **more})["watcherId"]

    def events(self, watcher):
        found = self.fine("filesystem.Filesystem/GetWatcherEvents", {"watcherId": watcher}).get("events", [])
        return [(e["type"].replace("EVENT_TYPE_", ""), e["name"]) for e in found]

    def put(self, path, data=b"x"):
        status, body, _ = self.ask("POST", "/files?path=" + path, data, Content_Type="application/octet-stream")
        self.assertEqual(status, 200, body)

    def test_an_upload_is_three_events_and_seen_at_once(self):
        d = self.dir + "/w1"
        os.mkdir(d)
        w = self.watcher(d)
        self.assertRegex(w, "^w[a-z0-9]{20}$")
        self.put(d + "/file", b"x" * 100000)
        self.assertEqual(self.events(w), [("CREATE", "file"), ("CHMOD", "file"), ("WRITE", "file")])
        self.assertEqual(self.events(w), [])
        os.rename(d + "/file", d + "/moved")
        os.unlink(d + "/moved")
        self.assertEqual(self.events(w), [("RENAME", "file"), ("CREATE", "moved"), ("REMOVE", "moved")])
        self.fine("filesystem.Filesystem/RemoveWatcher", {"watcher_id": w})
        self.assertEqual(self.unary("filesystem.Filesystem/GetWatcherEvents", {"watcherId": w})[1]["code"], "not_found")

    def test_a_pause_drops_watches_and_the_end_of_it_takes_them_up(self):
        d = self.dir + "/w-pause"
        os.mkdir(d)
        w = self.watcher(d)
        ready = self.daemon.tell(packed(b"\x06"))
        self.assertEqual(ready[0], 67, ready)
        held = [line for fd in os.listdir(f"/proc/{self.daemon.process.pid}/fdinfo")
                for line in pathlib.Path(f"/proc/{self.daemon.process.pid}/fdinfo/{fd}").read_text().splitlines()
                if line.startswith("inotify wd")]
        self.assertEqual(held, [])
        self.assertEqual(self.daemon.tell(packed(b"\x07")), b"\x40")
        self.put(d + "/file")
        self.assertIn(("CREATE", "file"), self.events(w))
        self.assertEqual(self.daemon.tell(packed(b"\x07")), b"\x40")  # no pause: fine too

    def test_a_new_directory_is_watched_by_the_time_it_is_written_to(self):
        d = self.dir + "/w2"
        os.mkdir(d)
        w = self.watcher(d, recursive=True)
        self.fine("filesystem.Filesystem/MakeDir", {"path": d + "/n/m"})
        self.put(d + "/n/m/file")
        events = self.events(w)
        for want in (("CREATE", "n"), ("CREATE", "n/m"), ("CREATE", "n/m/file"), ("WRITE", "n/m/file")):
            self.assertEqual(events.count(want), 1, events)
        os.rename(d + "/n", d + "/k")
        self.events(w)
        self.put(d + "/k/m/file")
        self.assertIn(("WRITE", "k/m/file"), self.events(w))

    def test_what_is_not_recursive_sees_its_own_level_only(self):
        d = self.dir + "/w3"
        os.makedirs(d + "/sub")
        w = self.watcher(d)
        self.put(d + "/sub/file")
        self.assertNotIn("sub/file", [name for _, name in self.events(w)])

    def test_a_stream_starts_and_tells_with_entries(self):
        d = self.dir + "/w4"
        os.mkdir(d)
        s = RawStream(self.daemon.port, "filesystem.Filesystem/WatchDir", {"path": d, "includeEntry": True})
        self.assertEqual(s.next(), {"start": {}})
        self.put(d + "/file")
        first = s.next()["filesystem"]
        self.assertEqual((first["name"], first["type"], first["entry"]["path"]), ("file", "EVENT_TYPE_CREATE", d + "/file"))
        s.leave()

    def test_streams_leave_connections_to_others(self):
        d = self.dir + "/w5"
        os.mkdir(d)
        streams = []
        try:
            for _ in range(256):  # as many as guestd has connections
                s = RawStream(self.daemon.port, "filesystem.Filesystem/WatchDir", {"path": d})
                streams.append(s)
                first = s.next()
                if first != {"start": {}}:
                    break
            self.assertEqual(first["error"]["code"], "resource_exhausted")
            self.assertGreaterEqual(len(streams), 100)
            w = self.watcher(d)
            self.put(d + "/file")
            self.assertEqual(self.events(w)[0], ("CREATE", "file"))
            for s in streams[:-1]:
                self.assertEqual(s.next()["filesystem"]["name"], "file")
        finally:
            for s in streams:
                s.leave()

    def test_who_does_not_fetch_loses_what_all_have_too_much_of(self):
        d = self.dir + "/w6"
        os.makedirs(d + "/noisy")
        os.makedirs(d + "/quiet")
        noisy = [self.watcher(d + "/noisy") for _ in range(2)]
        quiet = self.watcher(d + "/quiet")
        self.put(d + "/quiet/file")
        name = d + "/noisy/" + "\1" * 250  # six times as long in JSON
        for _ in range(60):
            for _ in range(200):
                os.close(os.open(name, os.O_CREAT | os.O_WRONLY, 0o600))
                os.unlink(name)
            self.assertEqual(len(self.events(noisy[0])), 400)
        # The other had 24,000 of 1,500 bytes by then, and is told so each time.
        for _ in range(2):
            status, body = self.unary("filesystem.Filesystem/GetWatcherEvents", {"watcherId": noisy[1]})
            self.assertEqual((status, body["code"]), (429, "resource_exhausted"))
        self.assertEqual([e for e, _ in self.events(quiet)], ["CREATE", "CHMOD", "WRITE"])
        for w in (*noisy, quiet):
            self.fine("filesystem.Filesystem/RemoveWatcher", {"watcherId": w})

    def test_what_cannot_be_watched_is_said(self):
        for path, code in ((self.dir + "/none", "not_found"), ("/etc/passwd", "invalid_argument")):
            r = self.stream("filesystem.Filesystem/WatchDir", {"path": path}).result()
            self.assertEqual(r["error"]["code"], code)
            self.assertEqual(self.unary("filesystem.Filesystem/CreateWatcher", {"path": path})[1]["code"], code)


class Stuck(Case):
    """A child that does not get as far as its program: here the first thing it does waits for somebody to read a pipe."""

    @classmethod
    def make_daemon(cls):
        cls.gate, full = os.pipe()
        os.set_blocking(full, False)
        cls.fill = 0
        try:
            while True:
                cls.fill += os.write(full, b"x" * 4096)
        except BlockingIOError:
            pass
        os.set_blocking(full, True)
        return Daemon(os.fdopen(full, "wb", buffering=0))

    @classmethod
    def tearDownClass(cls):
        os.close(cls.gate)
        super().tearDownClass()

    def begin(self, tag, **headers):
        request = {"process": {"cmd": "/bin/echo", "args": ["through"]}, "tag": tag}
        return Stream(self.daemon.port, "process.Process/Start", request, headers, waits=False)

    def wait_for(self, tag):
        while tag not in self.tags():
            pass

    def tags(self):
        return [p.get("tag") for p in self.fine("process.Process/List", {}).get("processes", [])]

    def test_it_holds_up_nobody_and_can_be_killed(self):
        s = self.begin("killed")
        self.wait_for("killed")
        self.assertEqual(self.bare("GET", "/health")[0], 204)
        self.fine("process.Process/SendSignal", {"process": {"tag": "killed"}, "signal": "SIGNAL_SIGKILL"})
        r = s.begin().result()
        self.assertEqual(r["end"]["status"], "signal: killed")
        self.assertNotIn("killed", self.tags())
        self.assertEqual(self.daemon.commands(), [])

    def test_its_deadline_ends_it(self):
        r = self.begin("late", Connect_Timeout_Ms="200").begin().result()
        self.assertEqual(r["error"]["code"], "deadline_exceeded")
        while "late" in self.tags() or self.daemon.commands():
            pass

    def test_its_client_may_leave(self):
        s = self.begin("left")
        self.wait_for("left")
        s.connection.close()
        self.fine("process.Process/SendSignal", {"process": {"tag": "left"}, "signal": "SIGNAL_SIGKILL"})
        self.assertNotIn("left", self.tags())

    def test_others_may_watch_it_and_it_starts_when_it_can(self):
        first = self.begin("freed")
        self.wait_for("freed")
        second = Stream(self.daemon.port, "process.Process/Connect", {"process": {"tag": "freed"}}, waits=False)
        self.assertEqual(self.bare("GET", "/health")[0], 204)  # who came later was served: it watches by now
        os.read(self.gate, 8192)  # a page for the child and one for the spawner, which has waited for longer
        for s in (first.begin(), second.begin()):
            self.assertIn("start", s.next())
            self.assertEqual(s.result()["stdout"], b"through\n")


class Greedy(Case):
    def upload(self, path, data):
        return self.ask("POST", "/files?path=" + path, data, Content_Type="application/octet-stream")

    def test_an_upload_goes_to_no_file_that_has_no_path(self):
        fd = os.memfd_create("memory")
        self.assertEqual(self.upload(f"/proc/{os.getpid()}/fd/{fd}", b"x" * 1000)[0], 400)
        os.symlink(f"/proc/{os.getpid()}/fd/{fd}", self.dir + "/to-memory")
        self.assertEqual(self.upload(self.dir + "/to-memory", b"x" * 1000)[0], 400)
        self.assertEqual(os.fstat(fd).st_size, 0)
        os.close(fd)

    def test_an_upload_goes_to_no_file_of_the_kernel(self):
        for path in ("/proc/self/oom_score_adj", "/proc/self/mem", "/sys/kernel/mm/transparent_hugepage/enabled"):
            if os.path.exists(path):
                status, body, _ = self.upload(path, b"0")
                self.assertEqual((status, json.loads(body)["message"]), (400, "path is not a regular file: " + path))

    def test_a_file_of_the_kernel_can_still_be_read(self):
        self.assertIn(b"Name:", self.ask("GET", "/files?path=/proc/self/status")[1])
        self.assertGreaterEqual(self.ask("GET", "/files?path=/proc/self/exe")[0], 400)

    def test_a_file_system_in_memory_takes_little(self):
        where = self.dir + "/in-memory"
        os.mkdir(where)
        if subprocess.run(["mount", "-t", "tmpfs", "none", where], capture_output=True).returncode:
            self.skipTest("no mounts here")
        try:
            self.assertEqual(self.upload(where + "/small", b"x" * 1000)[0], 200)
            self.assertEqual(self.upload(where + "/large", b"x" * (40 << 20))[0], 507)
            self.assertEqual(os.listdir(where), ["small"])
            # What is there of the file itself is not in its way.
            with open(where + "/by-others", "wb") as file:
                file.write(b"x" * (40 << 20))
            self.assertEqual(self.upload(where + "/by-others", b"y" * 1000)[0], 200)
            self.assertEqual(self.ask("GET", f"/files?path={where}/by-others")[1], b"y" * 1000)
        finally:
            subprocess.run(["umount", "-l", where])

    def test_a_full_file_system_takes_nothing_and_keeps_what_it_has(self):
        where = self.dir + "/full"
        os.mkdir(where)
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", where], capture_output=True).returncode:
            self.skipTest("no mounts here")
        try:
            self.assertEqual(self.upload(where + "/kept", b"first")[0], 200)
            status, body, _ = self.upload(where + "/new", b"x" * (2 << 20))
            self.assertEqual((status, json.loads(body)["code"]), (507, 507))
            self.assertEqual(os.listdir(where), ["kept"])
            self.assertEqual(self.ask("GET", f"/files?path={where}/kept")[1], b"first")
            self.assertEqual(self.upload(where + "/small", b"x" * 1000)[0], 200)
        finally:
            subprocess.run(["umount", "-l", where])

    def test_connections_have_a_limit(self):
        open_ones = []
        for _ in range(400):
            connection = socket.create_connection(("127.0.0.1", self.daemon.port))
            open_ones.append(connection)
            try:
                connection.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\nX-A: " + b"a" * 60000)
            except OSError:
                pass  # turned away already
        self.bare("GET", "/health")  # all of the above has been looked at
        self.assertLess(len(os.listdir(f"/proc/{self.daemon.process.pid}/fd")), 256 + 40)
        for connection in open_ones:
            connection.close()
        while self.bare("GET", "/health")[0] != 204:
            pass


    def test_output_of_what_ended_first_goes_first(self):
        size = 4 << 20
        pids = []
        for _ in range(20):
            s = self.start(f"head -c {size} /dev/zero; echo end")
            pids.append(s.pid())
            s.leave()
            while pids[-1] in [p["pid"] for p in self.fine("process.Process/List", {}).get("processes", [])]:
                time.sleep(0.01)
        kept = [len(self.stream("process.Process/Connect", {"process": {"pid": pid}}).result()["stdout"])
                for pid in (pids[0], pids[-1])]
        self.assertEqual(kept[0], 0)
        self.assertGreater(kept[1], size // 2)

    def test_what_list_gives_back_has_a_limit(self):
        started = []
        for _ in range(40):
            s = self.stream("process.Process/Start", {"process": {
                "cmd": "/bin/sh", "args": ["-c", "sleep 1000"] + ["x" * 120000] * 8}})
            started.append(s)
            event = s.next()
            if event is None:
                break
        self.assertEqual(s.trailer["error"]["code"], "resource_exhausted")
        self.assertGreater(len(started), 10)
        for p in self.fine("process.Process/List", {})["processes"]:
            self.fine("process.Process/SendSignal", {"process": {"pid": p["pid"]}, "signal": "SIGNAL_SIGKILL"})
        self.assertEqual(self.run_script("echo again")["stdout"], b"again\n")

    def test_names_of_a_listing_have_a_limit(self):
        d = self.dir + "/long-names"
        os.mkdir(d)
        for i in range(40000):
            os.mknod(f"{d}/{i:0250}")
        status, body = self.unary("filesystem.Filesystem/ListDir", {"path": d})
        self.assertEqual((status, body["code"]), (429, "resource_exhausted"))
        self.fine("filesystem.Filesystem/Remove", {"path": d})

    def hold(self, head, most=32):
        """Clients that ask and then take nothing, until one of them is turned away: what that one is told."""
        held = []
        try:
            for _ in range(most):
                held.append(socket.socket())
                held[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                held[-1].connect(("127.0.0.1", self.daemon.port))
                held[-1].sendall(head)
                told = held[-1].recv(4096, socket.MSG_PEEK)
                if b"resource_exhausted" in told:
                    return told
            raise AssertionError(f"{most} were taken")
        finally:
            for one in held:
                one.close()

    def test_answers_that_nobody_takes_have_a_limit(self):
        d = self.dir + "/many"
        os.mkdir(d)
        for i in range(20000):
            os.mknod(f"{d}/{i:0200}")
        body = json.dumps({"path": d}).encode()
        head = (f"POST /filesystem.Filesystem/ListDir HTTP/1.1\r\nHost: a\r\nX-Access-Token: {TOKEN}\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n")
        self.assertIn(b"earlier answers", self.hold(head.encode() + body))
        while self.unary("filesystem.Filesystem/ListDir", {"path": d})[0] != 200:
            pass

    def test_input_that_nobody_takes_has_a_limit(self):
        part = struct.pack(">BI", 0, 4 << 20) + b"x" * (3 << 20)
        head = (f"POST /process.Process/StreamInput HTTP/1.1\r\nHost: a\r\nX-Access-Token: {TOKEN}\r\n"
                f"Content-Type: application/connect+json\r\nContent-Length: {8 << 20}\r\n\r\n").encode()
        held, told = [], []
        while not told and len(held) < 32:
            held.append(socket.create_connection(("127.0.0.1", self.daemon.port)))
            held[-1].sendall(head + part)
            told = select.select(held, [], [], 0.2)[0]
        self.assertIn(b"resource_exhausted", told[0].recv(4096))
        for one in held:
            one.close()


class Poor(Case):
    @classmethod
    def make_daemon(cls):
        return Daemon(descriptors=64)

    def test_root_of_the_sandbox_cannot_set_guestds_limits(self):
        without = ["setpriv", "--bounding-set", "-sys_resource", "--inh-caps", "-sys_resource"]
        who = self.daemon.process.pid
        mine = subprocess.Popen(["sleep", "1000"])
        try:  # what the same root may do to others
            subprocess.run([*without, "prlimit", "--pid", str(mine.pid), "--nofile=100:100"], check=True)
        finally:
            mine.kill()
            mine.wait()
        asked = subprocess.run([*without, "prlimit", "--pid", str(who), "--nofile=100:100"], capture_output=True)
        self.assertNotEqual(asked.returncode, 0)
        self.assertIn(b"not permitted", asked.stderr)

    def test_a_child_has_no_id_of_guestds(self):
        r = self.run_script("grep -E '^(Uid|Gid)' /proc/self/status")
        self.assertEqual(r["stdout"].split(), [b"Uid:"] + [b"0"] * 4 + [b"Gid:"] + [b"0"] * 4)

    def test_without_descriptors_commands_fail_in_words_and_guestd_goes_on(self):
        keeper = http.client.HTTPConnection("127.0.0.1", self.daemon.port, timeout=60)

        def ask(target, body, kind):
            keeper.request("POST" if body else "GET", target, body, {"X-Access-Token": TOKEN, "Content-Type": kind})
            answer = keeper.getresponse()
            return answer.status, answer.read()

        pid = self.daemon.process.pid
        self.run_script("true")
        ask("/health", None, "")
        crowd = []
        while len(os.listdir(f"/proc/{pid}/fd")) < 64:
            crowd.append(socket.create_connection(("127.0.0.1", self.daemon.port)))
            time.sleep(0.001)
            self.assertLess(len(crowd), 1000)
        for pty in ({}, {"pty": {"size": {"cols": 80, "rows": 24}}}):
            _, body = ask("/process.Process/Start", envelope(json.dumps({"process": {"cmd": "true"}, **pty}).encode()),
                          "application/connect+json")
            self.assertIn(b"resource_exhausted", body)
            self.assertIn(b"Too many open files", body)
        for name, request in (("filesystem.Filesystem/ListDir", {"path": "/etc"}),
                              ("filesystem.Filesystem/ListDir", {"path": "/etc", "depth": 3}),
                              ("filesystem.Filesystem/CreateWatcher", {"path": "/etc"})):
            status, body = ask("/" + name, json.dumps(request), "application/json")
            self.assertGreaterEqual(status, 400, body)
        self.assertGreaterEqual(ask("/files?path=/etc/passwd", None, "")[0], 400)
        self.assertGreaterEqual(ask(f"/files?path={self.dir}/x", b"x", "application/octet-stream")[0], 400)
        self.assertEqual(ask("/health", None, "")[0], 204)
        for connection in crowd:
            connection.close()
        self.assertEqual(self.run_script("echo back")["stdout"], b"back\n")
        keeper.close()


class RawStream(Stream):
    def next(self):
        flags, length = struct.unpack(">BI", self.answer.read(5))
        return json.loads(self.answer.read(length))


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("skipped: guestd becomes other users, which needs root")
        sys.exit(SKIPPED)
    GUESTD = os.path.abspath(sys.argv.pop(1))
    unittest.main(warnings="ignore")
