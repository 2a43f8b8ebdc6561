"""Mail's tools by PyPI's `mcp`, unmodified: over HTTP and by `cloister mcp`, as agents have them."""

import asyncio
import contextlib
import json
import secrets
import time

import pytest

pytest.importorskip("mcp")

from mcp import ClientSession, StdioServerParameters  # noqa: E402
from mcp.client.stdio import stdio_client  # noqa: E402
from server import build_dir  # noqa: E402

try:
    from mcp.client.streamable_http import streamablehttp_client
except ImportError:  # since 2.0
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    @contextlib.asynccontextmanager
    async def streamablehttp_client(url, headers):
        async with httpx2.AsyncClient(headers=headers, timeout=60) as client:
            async with streamable_http_client(url, http_client=client) as streams:
                yield streams


HELD = "pending_send_approval"


class Operator:
    def __init__(self, server):
        self.server = server
        self.headers = {
            "X-Admin-Token": (server.data / "admin-token").read_text().strip(),
            "Content-Type": "application/json",
        }

    def call(self, method, path, body=None):
        answer = self.server.call(method, path, body, self.headers)
        assert answer.status < 300, answer
        return answer.json

    def inbox(self):
        return self.call("POST", "/mail/inboxes", {"name": f"c-{secrets.token_hex(6)}"})

    def approve(self, message):
        self.call("POST", f"/mail/messages/{message}/decide", {"action": "approve"})


@pytest.fixture(scope="module")
def operator(server):
    return Operator(server)


@contextlib.asynccontextmanager
async def by_http(server, key):
    headers = {"Authorization": f"Bearer {key}"}
    async with streamablehttp_client(f"{server.url}/mcp", headers=headers) as streams:
        async with ClientSession(*streams[:2]) as session:
            await session.initialize()
            yield session


@contextlib.asynccontextmanager
async def by_command(server, key):
    parameters = StdioServerParameters(
        command=str(build_dir() / "cloister"),
        args=["mcp", "--url", server.url],
        env={"MULTIMAIL_API_KEY": key},
    )
    async with stdio_client(parameters) as (read, write):
        async with ClientSession(read, write) as session:
            await session.initialize()
            yield session


@pytest.fixture(params=[by_http, by_command], ids=["http", "command"])
def connect(request):
    return request.param


def field(thing, new, old):
    return getattr(thing, new if hasattr(thing, new) else old)


async def use(session, name, **arguments):
    result = await session.call_tool(name, arguments)
    text = "".join(part.text for part in result.content if part.type == "text")
    return not field(result, "is_error", "isError"), text


async def ok(session, name, **arguments):
    fine, text = await use(session, name, **arguments)
    assert fine, text
    return json.loads(text)


def test_tools_have_schemas(server, operator, connect):
    async def run():
        async with connect(server, operator.inbox()["key"]) as session:
            return (await session.list_tools()).tools

    tools = asyncio.run(run())
    names = {tool.name for tool in tools}
    assert {"send_email", "check_inbox", "read_email", "reply_email", "wait_for_email", "cancel_message"} <= names
    assert all(tool.description and field(tool, "input_schema", "inputSchema")["type"] == "object" for tool in tools)
    assert not names & {"decide_email", "list_pending"}  # its key does not approve


def test_send_wait_read_and_reply(server, operator, connect):
    one, two = operator.inbox(), operator.inbox()

    async def run():
        async with connect(server, one["key"]) as first, connect(server, two["key"]) as second:
            sent = await ok(first, "send_email", to=[two["address"]], subject="By a tool", markdown="Words of *mine*")
            assert sent["status"] == HELD
            waiting = asyncio.create_task(ok(second, "wait_for_email", timeout_seconds=20))
            await asyncio.sleep(0.3)
            begun = time.monotonic()
            await asyncio.to_thread(operator.approve, sent["id"])
            found = await waiting
            assert found["found"] and found["emails"][0]["subject"] == "By a tool"
            assert time.monotonic() - begun < 5  # by an event, not at the end of the time
            message = found["emails"][0]["id"]
            fine, text = await use(second, "read_email", email_id=message)
            assert fine and "Words of" in text and "untrusted" in text.lower()
            reply = await ok(second, "reply_email", email_id=message, markdown="And mine")
            assert reply["status"] == HELD
            await ok(second, "cancel_message", email_id=reply["id"])
            nothing = await ok(second, "wait_for_email", timeout_seconds=1)
            assert not nothing["found"]

    asyncio.run(run())


def test_a_tool_cannot_do_what_its_key_cannot(server, operator, connect):
    one, two = operator.inbox(), operator.inbox()

    async def run():
        async with connect(server, one["key"]) as session:
            sent = await ok(session, "send_email", to=[two["address"]], subject="Held", markdown="x")
            for name, arguments in (
                ("decide_email", {"email_id": sent["id"], "action": "approve"}),
                ("list_pending", {}),
                ("check_inbox", {"mailbox_id": two["id"]}),
                ("send_email", {"mailbox_id": two["id"], "to": ["x@y.example"], "subject": "s", "markdown": "x"}),
                ("update_mailbox", {"oversight_mode": "autonomous"}),
            ):
                try:
                    fine, text = await use(session, name, **arguments)
                except Exception as error:  # an error of the protocol: there is no such tool for this key
                    fine, text = False, str(error)
                assert not fine, (name, text)
            assert (await ok(session, "check_inbox", direction="outbound"))["emails"][0]["status"] == HELD

    asyncio.run(run())


def test_a_wrong_key_gets_no_session(server, operator):
    async def run():
        async with by_http(server, "mm_live_" + "a" * 43):
            pass

    with pytest.raises(BaseException):  # noqa: B017, PT011 (a group of those of the library)
        asyncio.run(run())
