"""One server for all tests of a run, and what they share. Whatever a test leaves behind is ended here."""

import os
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import server as servers  # noqa: E402
from server import TEST_DATA, Server, prepare  # noqa: E402

# Servers that tests make for themselves have no pool, so that what there is, is what the test has made. test_pool.py is for the rest.
servers.POOL = "off"


@pytest.fixture(scope="session")
def server():
    if os.geteuid() != 0:
        pytest.skip("needs root: a server makes namespaces, mounts and cgroups")
    prepare(TEST_DATA)
    # All runs of an hour come from one address. Most tests take their sandboxes from the pool, as clients do.
    running = Server(options=["--mail-signups-per-hour", "1000", "--pool", "auto"])
    running.start_when_free()
    running.kill_all()  # what an earlier run was killed over
    for name in [name for name in os.environ if name.startswith("E2B_")]:
        del os.environ[name]
    os.environ.update(running.environment())
    try:
        yield running
    finally:
        try:
            running.kill_all()
        finally:
            running.stop()


def second_server(server, name, options=()):
    data = server.data.parent / f"{server.data.name}-{name}"
    prepare(data)
    mine = Server(data, options)
    mine.start()
    mine.kill_all()
    yield mine
    try:
        if mine.process is None or mine.process.poll() is not None:
            mine.start()
        mine.kill_all()
    finally:
        mine.stop()


@pytest.fixture
def own_server(server):
    """A second server, for tests that break it. That it runs beside the first is a test in itself."""
    yield from second_server(server, "faults", ["--mail-signups-per-hour", "1000"])


@pytest.fixture
def pool_server(server):
    yield from second_server(server, "pool", ["--pool", "6"])


@pytest.fixture
def made(server):
    """A list: the sandboxes whose ids a test puts there are ended after it. In any case all others are, too."""
    ids = []
    yield ids
    for sandbox_id in ids:
        server.api("DELETE", f"/sandboxes/{sandbox_id}")


@pytest.fixture
def sandbox(server):
    """A sandbox by the Python SDK, ended after the test."""
    from e2b import Sandbox

    box = Sandbox.create(timeout=120)
    yield box
    try:
        box.kill()
    except Exception as error:  # the test may have ended the server itself
        print(f"kill {box.sandbox_id}: {error}")


@pytest.fixture(scope="module")
def shared_sandbox(server):
    """One for tests that only look."""
    from e2b import Sandbox

    box = Sandbox.create(timeout=600)
    yield box
    box.kill()
