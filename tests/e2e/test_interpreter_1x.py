"""The code interpreter's last 1.x release, unmodified. It knows no URL variables and sends no token with run_code.

It insists on https://api.DOMAIN and https://PORT-ID.DOMAIN, so a TLS proxy stands in front of the server, as SECURITY.md
advises, and the names of the domain lead to this machine.
"""

import contextlib
import os
import socket
import ssl
import threading

import pytest

if os.environ.get("CLOISTER_E2E_SDK") != "interpreter-1.5.2":
    pytest.skip("for the suite interpreter-1x", allow_module_level=True)

import trustme  # noqa: E402
from e2b_code_interpreter import Sandbox  # noqa: E402
from server import Server, share_template  # noqa: E402

DOMAIN = "cloister.test"


def pump(source, target):
    with contextlib.suppress(OSError, ValueError):
        while data := source.recv(65536):
            target.sendall(data)
    for side in (source, target):
        with contextlib.suppress(OSError):
            side.shutdown(socket.SHUT_RDWR)


def relay(listener, context, port):
    while True:
        try:
            raw, _ = listener.accept()
        except OSError:
            return  # closed: the end
        try:
            outer = context.wrap_socket(raw, server_side=True)
        except OSError:
            continue
        inner = socket.create_connection(("127.0.0.1", port))
        for pair in ((outer, inner), (inner, outer)):
            threading.Thread(target=pump, args=pair, daemon=True).start()


@pytest.fixture(scope="module")
def domain(server, tmp_path_factory):
    """A second server, because create tells clients the domain that the server was given."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(f"*.{DOMAIN}").configure_cert(context)
    trusted = tmp_path_factory.mktemp("ca") / "ca.pem"
    authority.cert_pem.write_to_path(str(trusted))
    listener = socket.create_server(("127.0.0.1", 0))
    name = f"{DOMAIN}:{listener.getsockname()[1]}"
    data = server.data.parent / f"{server.data.name}-1x"
    share_template(data)
    behind = Server(data, ["--domain", name])
    behind.start()
    threading.Thread(target=relay, args=(listener, context, behind.port), daemon=True).start()
    look_up = socket.getaddrinfo

    def look_up_here(host, *rest, **options):
        is_ours = (host.decode() if isinstance(host, bytes) else str(host)).endswith(DOMAIN)
        return look_up("127.0.0.1" if is_ours else host, *rest, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "getaddrinfo", look_up_here)
        patch.setenv("SSL_CERT_FILE", str(trusted))
        patch.setenv("E2B_DOMAIN", name)
        patch.setenv("E2B_API_KEY", behind.key)
        for variable in ("E2B_API_URL", "E2B_SANDBOX_URL"):
            patch.delenv(variable)
        try:
            yield
        finally:
            behind.kill_all()
            behind.stop()
    listener.close()


def test_code_files_and_commands_work(domain):
    box = Sandbox("base", timeout=120)
    try:
        box.run_code("x = 20")
        result = box.run_code("print('hi'); x + 22")
        assert result.text == "42" and result.logs.stdout == ["hi\n"], result
        context = box.create_code_context()
        assert box.run_code("1 + 1", context=context).text == "2"
        box.files.write("note", "written")
        assert box.files.read("note") == "written"
        assert box.commands.run("cat note").stdout == "written"
    finally:
        box.kill()


def test_a_secure_sandbox_still_wants_the_token(domain):
    """1.x offers the option, and sends no token with run_code for it either."""
    box = Sandbox("base", timeout=120, secure=True)
    try:
        assert box.commands.run("echo hi").stdout == "hi\n"
        with pytest.raises(Exception, match="401"):
            box.run_code("1")
    finally:
        box.kill()
