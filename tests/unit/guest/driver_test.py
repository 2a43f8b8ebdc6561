#!/usr/bin/env python3
"""The parts of the interpreter's driver, and the joiner, which refuses a change of meaning.

usage: driver_test.py
"""
import ast
import builtins
import contextlib
import importlib
import io
import json
import os
import pathlib
import signal
import socket
import struct
import symtable
import sys
import tempfile
import threading
import types
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
PARTS = ROOT / "src" / "guest" / "interpreter" / "driver"
FROM_BOOT = {"BOOT_SOCKET", "CHARTS_SOURCE"}  # ZYGOTE_BOOT in wire/zygote.h
sys.dont_write_bytecode = True
sys.path[:0] = [str(PARTS.parent), str(ROOT / "scripts")]

import join_python  # noqa: E402


def globals_read(table):
    for symbol in table.get_symbols():
        is_module = table.get_type() == "module"
        if symbol.is_referenced() and (is_module or symbol.is_global()):
            yield symbol.get_name()
    for inner in table.get_children():
        yield from globals_read(inner)


class Parts(unittest.TestCase):
    def test_each_imports_all_that_it_uses_and_nothing_else(self):
        for path in sorted(PARTS.glob("*.py")):
            table = symtable.symtable(path.read_text(), str(path), "exec")
            read = set(globals_read(table))
            made = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_assigned() or symbol.is_imported()}
            imported = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_imported()}
            unknown = read - made - set(vars(builtins))
            self.assertEqual(unknown, FROM_BOOT if path.name == "main.py" else set(), path.name)
            self.assertEqual(imported - read, set(), path.name)

    def test_each_can_be_imported_and_has_a_docstring(self):
        for path in sorted(PARTS.glob("*.py")):
            self.assertTrue(ast.get_docstring(ast.parse(path.read_text())), path.name)
            if path.name != "main.py":  # it runs when it is imported
                importlib.import_module(f"driver.{path.stem}")

    def test_a_result_that_json_cannot_carry_is_converted(self):
        result = importlib.import_module("driver.result")
        line, left_out = result.result_line({"text/plain": "'a'", "e2b/data": {1: float("nan")}, "x/y": object()}, True)
        self.assertEqual(line, '{"type": "result", "text": "a", "data": {"1": null}, "extra": {}, "is_main_result": true}')
        self.assertEqual(left_out, [])


class FakeLink:
    def __init__(self):
        self.said = []

    def count(self, number):
        pass

    def result(self, bundle, is_main):
        self.said.append(bundle["text/plain"])

    def error(self, name, value, trace):
        self.said.append(name)


class SmallShell(unittest.TestCase):
    def run_cells(self, *cells):
        here = importlib.import_module("driver.here").here
        shell = importlib.import_module("driver.small_shell").SmallShell()
        main, here.link = sys.modules["__main__"], FakeLink()
        try:
            for code in cells:
                shell.run(code)
            return here.link.said
        finally:
            sys.modules["__main__"], here.link = main, None

    def test_a_command_is_run_and_text_that_looks_like_one_is_text(self):
        with tempfile.TemporaryDirectory() as home:
            mark = f"{home}/mark"
            said = self.run_cells(f"if True:\n    !echo 'it (\"ran' > {mark}\ntext = '''\n![a](b.png)\n%pip x\n'''\n!true",
                                  "text", f"open({mark!r}).read()")
        self.assertEqual(said, [repr("\n![a](b.png)\n%pip x\n"), repr('it ("ran\n')])

    def test_invalid_python_is_an_error(self):
        self.assertEqual(self.run_cells("x = (", "!true\nif", "if True:\n!true"),
                         ["SyntaxError", "SyntaxError", "IndentationError"])


class Interpreter(unittest.TestCase):
    def test_where_no_directory_can_be_entered_it_works_in_the_root(self):
        interpreter = importlib.import_module("driver.interpreter")
        before, told = os.getcwd(), io.StringIO()
        try:
            with contextlib.redirect_stderr(told):
                interpreter.enter_directory("/no/such/place", "/no/such/home")
            self.assertEqual(os.getcwd(), "/")
        finally:
            os.chdir(before)
        self.assertIn("/no/such/place cannot be entered (No such file or directory): this context works in /.", told.getvalue())


class Link(unittest.TestCase):
    @contextlib.contextmanager
    def alarms(self):
        """Yields a function after which an alarm interrupts the next call by raising."""
        def ring(*args):
            raise TimeoutError("rung")

        before = signal.signal(signal.SIGALRM, ring)
        try:
            yield lambda: signal.setitimer(signal.ITIMER_REAL, 0.1)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def setUp(self):
        ours, self.theirs = socket.socketpair()
        self.made = importlib.import_module("driver.link").Link(ours.detach())

    def test_a_frame_that_an_alarm_cuts_in_two_is_sent_whole(self):
        made, theirs = self.made, self.theirs
        with self.alarms() as ring_soon:
            ring_soon()
            with self.assertRaises(TimeoutError):
                made.send("L", "a" * 5_000_000)  # more than fits into the socket
        sender = threading.Thread(target=lambda: (made.send("D", "1"), made.sock.close()))
        sender.start()
        with theirs.makefile("rb") as stream:
            self.assertEqual(stream.read(), struct.pack(">I", 5_000_001) + b"L" + b"a" * 5_000_000 + b"\0\0\0\2D1")
        sender.join()
        theirs.close()

    def test_a_message_that_an_alarm_cuts_in_two_is_read_whole(self):
        made, theirs = self.made, self.theirs
        message = json.dumps({"op": "run"}).encode()
        message = struct.pack(">I", len(message)) + message
        with self.alarms() as ring_soon:
            for piece in (message[:2], message[2:7]):
                theirs.sendall(piece)
                ring_soon()
                with self.assertRaises(TimeoutError):
                    made.receive()
        theirs.sendall(message[7:] + message)
        for _ in range(2):
            self.assertEqual(made.receive(), {"op": "run"})
            self.assertEqual(made.receive(), {"op": "run"})  # the same until it is done
            made.done()
        theirs.close()
        self.assertIsNone(made.receive())
        made.sock.close()


class Zygote(unittest.TestCase):
    def test_a_fork_that_cannot_become_an_interpreter_ends(self):
        """If it returned, it would be a second zygote on the same socket."""
        zygote = importlib.import_module("driver.zygote_outside").Zygote
        pid = os.fork()
        if pid == 0:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            fork = zygote.__new__(zygote)
            fork.control = socket.socket()
            fork.enter = types.SimpleNamespace(fds=[9999, 9999, 9999])
            try:
                fork.become_interpreter()
            finally:
                os._exit(42)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), 1)


class Joiner(unittest.TestCase):
    def join(self, *sources):
        with tempfile.TemporaryDirectory() as home:
            paths = [pathlib.Path(home, f"{name}.py") for name in "abc"[: len(sources)]]
            for path, source in zip(paths, sources):
                path.write_text(source)
            return join_python.join(paths)

    def test_the_joined_text_does_what_the_package_does(self):
        space = {}
        exec(self.join("import os\ndef one():\n    return 1\n", "import os\nfrom .a import (\n    one,\n)\nTWO = one() + 1\n"), space)
        self.assertEqual(space["TWO"], 2)

    def test_a_change_of_meaning_is_refused(self):
        for why, *sources in (
            ("a.py already defines x", "x = 1\n", "x = 2\n"),
            ("a.py already defines f", "def f(): pass\n", "class f: pass\n"),
            ("a.py already defines os", "import os\n", "import posix as os\n"),
            ("a.py already defines os", "import os\n", "def os(): pass\n"),
            ("a.py already defines y", "x, (y, z) = 1, (2, 3)\n", "for y in (): pass\n"),
            ("a.py already defines x", "x = 1\n", "from .a import x\nx = 2\n"),
            ("a.py already defines x", "x = 1\n", "if True:\n    def x(): pass\n"),
            ("`global` is not possible", "x = 1\n", "from .a import x\ndef f():\n    global x\n    x = 2\n"),
            ("no earlier file b.py defines x", "from .b import x\n", "x = 1\n"),
            ("no earlier file a.py defines x", "y = 1\n", "from .a import x\n"),
            ("x must keep its name", "x = 1\n", "from .a import x as y\n"),
            ("at the top of a file", "x = 1\n", "def f():\n    from .a import x\n"),
            ("from .file import name", "x = 1\n", "from . import a\n"),
            ("from .file import name", "x = 1\n", "from ..a import x\n"),
        ):
            with self.assertRaises(join_python.Refused, msg=sources) as refused:
                self.join(*sources)
            self.assertIn(why, str(refused.exception), sources)


if __name__ == "__main__":
    unittest.main(warnings="ignore")
