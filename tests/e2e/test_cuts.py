"""Connections break in the middle of a command's output, a hundred times; nothing of the output is lost.

A proxy between client and server drops each connection after a random number of bytes. An unmodified SDK reconnects by
commands.connect, and its last handle has the whole output, because a process keeps what it said. A client that knows
our `offset` resumes exactly where it was, and gets every byte once.
"""

import base64
import http.client
import json
import random
import socket
import struct
import threading

import pytest
from e2b import CommandExitException, Sandbox
from server import ENVD_PORT

CUTS = 100
# Slower than the cuts, so that they hit a command that still talks; each line tells its place.
LINES = 20000
COMMAND = (
    f"i=0; while [ $i -lt {LINES} ]; do echo line-$i; i=$((i+1)); "
    "[ $((i % 100)) = 0 ] && sleep 0.04; done; exit 7"
)
WHOLE = "".join(f"line-{i}\n" for i in range(LINES))


class CuttingProxy:
    """Passes bytes to the server and back; while `cutting`, drops each connection after so many bytes of answers."""

    def __init__(self, port, seed=1):
        self.port_of_server = port
        self.random = random.Random(seed)
        self.cutting = False
        self.cuts = 0
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return  # closed
            server = socket.create_connection(("127.0.0.1", self.port_of_server))
            threading.Thread(target=self.pump, args=(client, server, None), daemon=True).start()
            # Past the head of an answer and the first event, so that a client has a stream to lose.
            budget = self.random.randint(300, 1500) if self.cutting else None
            threading.Thread(target=self.pump, args=(server, client, budget), daemon=True).start()

    def pump(self, source, target, budget):
        try:
            while piece := source.recv(65536 if budget is None else min(budget, 65536)):
                target.sendall(piece)
                if budget is not None:
                    budget -= len(piece)
                    if budget <= 0:
                        self.cuts += 1
                        break
        except OSError:
            pass  # the other half was cut
        for end in (source, target):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self):
        self.listener.close()


@pytest.fixture
def proxy(server):
    made = CuttingProxy(server.port)
    yield made
    made.close()


class Events:
    """The events of a stream, until its end or until it breaks."""

    def __init__(self, port, box, method, message):
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        body = json.dumps(message).encode()
        headers = {
            "E2b-Sandbox-Id": box["sandboxID"],
            "E2b-Sandbox-Port": str(ENVD_PORT),
            "X-Access-Token": box["envdAccessToken"],
            "Content-Type": "application/connect+json",
            "Connect-Protocol-Version": "1",
        }
        self.request = (f"/process.Process/{method}", struct.pack(">BI", 0, len(body)) + body, headers)

    def __iter__(self):
        try:
            path, body, headers = self.request
            self.connection.request("POST", path, body, headers)
            answer = self.connection.getresponse()
            assert answer.status == 200
            while len(head := answer.read(5)) == 5:
                size = struct.unpack(">I", head[1:])[0]
                text = answer.read(size)
                if len(text) < size:
                    return  # cut within an event: it does not count
                event = json.loads(text).get("event")
                if event:
                    yield event
        except (OSError, http.client.HTTPException):
            return
        finally:
            self.connection.close()


def start(server, box, command):
    """The pid of a command whose first stream is cut at once."""
    request = {"process": {"cmd": "/bin/bash", "args": ["-c", command]}, "stdin": False}
    stream = iter(Events(server.port, box, "Start", request))
    pid = next(event["start"]["pid"] for event in stream if "start" in event)
    stream.close()
    return pid


def test_a_client_that_resumes_by_offset_gets_every_byte_once(server, proxy, made):
    box = server.create(timeout=120)
    made.append(box["sandboxID"])
    pid = start(server, box, COMMAND)  # the first cut; what came on this one is asked for again
    proxy.cutting = True
    got, offset, ended = b"", 0, None
    for _ in range(2 * CUTS):
        proxy.cutting = proxy.cuts < CUTS
        for event in Events(proxy.port, box, "Connect", {"process": {"pid": pid}, "offset": offset}):
            if "data" in event:
                piece = base64.b64decode(event["data"].get("stdout", ""))
                assert int(event["data"]["offset"]) == offset  # of its first byte
                got += piece
                offset += len(piece)
            ended = event.get("end", ended)
        if ended:
            break
    assert proxy.cuts >= CUTS
    assert got.decode() == WHOLE
    assert ended and ended.get("exitCode") == 7


def test_the_sdks_last_handle_has_the_whole_output(server, proxy):
    direct = Sandbox.create(timeout=120)
    try:
        handle = direct.commands.run(COMMAND, background=True)
        pid = handle.pid
        handle.disconnect()  # with another client still connected, a new one gets only later output (as upstream)
        proxy.cutting, broken = True, 0  # before the first connection, which may be kept
        cut = Sandbox.connect(direct.sandbox_id, sandbox_url=f"http://127.0.0.1:{proxy.port}")
        while broken < CUTS:
            try:
                cut.commands.connect(pid).wait()
            except CommandExitException:
                raise AssertionError("an answer came whole through a cut") from None
            except Exception:
                broken += 1
        with pytest.raises(CommandExitException) as caught:
            direct.commands.connect(pid).wait()  # past the proxy: the pool may keep a connection that is yet to be cut
        assert caught.value.stdout == WHOLE and caught.value.exit_code == 7
        assert proxy.cuts >= CUTS
    finally:
        direct.kill()


def cut(connection, how):
    """The client's side of a cut."""
    if how == "reset":
        connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def data_of(events):
    """(offset, bytes) of each data event."""
    for event in events:
        if "data" in event:
            yield int(event["data"]["offset"]), base64.b64decode(event["data"]["stdout"])


@pytest.mark.parametrize("how", ["orderly", "reset"])
def test_whoever_is_back_at_once_gets_everything(server, made, how):
    """No offset, no pause: each of a hundred streams is cut somewhere, and the next one is asked for at once."""
    box = server.create(timeout=120)
    made.append(box["sandboxID"])
    pid = start(server, box, COMMAND)
    chance = random.Random(2)
    for _ in range(CUTS):
        stream = Events(server.port, box, "Connect", {"process": {"pid": pid}})
        pieces = data_of(stream)  # held: without a holder it would be closed before it is cut
        got, want = b"", chance.randint(1, 1500)
        for offset, piece in pieces:
            assert offset == len(got)  # from the first byte on, and none left out
            got += piece
            if len(got) >= want:
                break
        assert WHOLE.startswith(got.decode())
        cut(stream.connection, how)
    last = list(Events(server.port, box, "Connect", {"process": {"pid": pid}}))
    assert b"".join(piece for _, piece in data_of(last)).decode() == WHOLE
    assert last[-1]["end"]["exitCode"] == 7


def test_whoever_is_back_before_the_cut_is_known_gets_everything(server, made):
    """The next stream is there before the last is cut, as when the news of a cut is slower than the client."""
    box = server.create(timeout=120)
    made.append(box["sandboxID"])
    pid = start(server, box, COMMAND)
    before = None
    for _ in range(CUTS):
        stream = Events(server.port, box, "Connect", {"process": {"pid": pid}})
        events = iter(stream)
        assert "start" in next(events)
        if before:
            before[0].connection.close()
        offset, piece = next(data_of(events))
        assert (offset, piece[:7]) == (0, b"line-0\n")
        before = (stream, events)  # both held, so that it stays open until the next one is there
    before[0].connection.close()
    last = list(Events(server.port, box, "Connect", {"process": {"pid": pid}}))
    assert b"".join(piece for _, piece in data_of(last)).decode() == WHOLE
    assert last[-1]["end"]["exitCode"] == 7
