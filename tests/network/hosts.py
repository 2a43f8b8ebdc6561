"""hosts.py - everything outside the machine, in one process and one network namespace; world.py starts it.

Every address of the world listens on the same ports, so that a rule with a hole in it is seen. What arrives is noticed
as an event that tests ask for over the control socket (a line of JSON each way).
"""

import asyncio
import json
import pathlib
import resource
import socket
import ssl
import struct
import sys

import world
import zone

CHUNK = b"x" * 65536
DRIP_SECONDS = 0.5
EVENTS_MAX = 50_000


class Hosts:
    def __init__(self, work):
        self.work = pathlib.Path(work)
        self.events = []
        self.open = 0
        self.zone = zone.Zone(self.notice)
        self.context = None

    def notice(self, kind, **fields):
        if len(self.events) < EVENTS_MAX:
            self.events.append({"kind": kind, **fields})

    # ---- listening ----

    async def listen(self):
        for address in world.HOSTS.values():
            for port in world.WEB_PORTS:
                await self.serve(address, port, self.web)
            for port in world.TLS_PORTS:
                await self.serve(address, port, self.web, tls=True)
            for port in world.MAIL_PORTS:
                await self.serve(address, port, self.mail)
            for port, handler in (
                (world.ECHO_PORT, self.echo),
                (world.SINK_PORT, self.sink),
                (world.SOURCE_PORT, self.source),
                (world.COUNT_PORT, self.count),
            ):
                await self.serve(address, port, handler)
            for port in world.UDP_PORTS:
                await self.serve_udp(address, port)
        for port, handler in (
            (world.RESET_PORT, self.reset),
            (world.DRIP_PORT, self.drip),
            (world.HEADERS_PORT, self.endless_headers),
            (world.MUTE_PORT, self.mute),
            (world.EARLY_END_PORT, self.early_end),
            (world.HUGE_HELLO_PORT, self.huge_hello),
        ):
            await self.serve(world.HOSTS["hostile"], port, handler)
        await self.serve(world.HOSTS["socks"], world.SOCKS_PORT, self.socks)
        await self.serve(world.HOSTS["socks"], world.SOCKS_TLS_PORT, self.socks, tls=True)
        await self.listen_dns()
        self.listen_icmp()

    async def listen_dns(self):
        loop = asyncio.get_running_loop()
        liar, _ = await loop.create_datagram_endpoint(
            lambda: zone.Udp(self.zone, silent=True), local_addr=(world.HOSTS["lying_dns"], 53)
        )
        for name, silent in (("dns", False), ("silent_dns", True), ("google_dns", True)):
            await loop.create_datagram_endpoint(
                lambda silent=silent: zone.Udp(self.zone, silent, liar), local_addr=(world.HOSTS[name], 53)
            )
        await self.serve(world.HOSTS["dns"], 53, zone.tcp_server(self.zone))
        await self.serve(world.HOSTS["silent_dns"], 53, self.mute)
        await self.serve(world.HOSTS["google_dns"], 53, self.mute)

    def listen_icmp(self):
        for family, protocol, request in (
            (socket.AF_INET, socket.IPPROTO_ICMP, 8),
            (socket.AF_INET6, socket.IPPROTO_ICMPV6, 128),
        ):
            raw = socket.socket(family, socket.SOCK_RAW, protocol)
            raw.setblocking(False)
            asyncio.get_running_loop().add_reader(raw, self.icmp_arrived, raw, family, request)

    def icmp_arrived(self, raw, family, request):
        data = raw.recv(2048)
        head = (data[0] & 15) * 4 if family == socket.AF_INET else 0
        if len(data) > head and data[head] == request:
            self.notice("icmp", family=4 if family == socket.AF_INET else 6)

    async def serve(self, address, port, handler, tls=False):
        async def wrapped(reader, writer):
            peer = writer.get_extra_info("peername")
            self.open += 1
            self.notice("tcp", to=address, port=port, peer=peer[0] if peer else None)
            try:
                await handler(reader, writer)
            except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as error:
                self.notice("closed", to=address, port=port, why=type(error).__name__)
            else:
                self.notice("closed", to=address, port=port, why=None)
            finally:
                self.open -= 1
                writer.close()

        context = self.tls_context() if tls else None
        await asyncio.start_server(wrapped, address, port, ssl=context, backlog=4096, limit=1 << 20)

    def tls_context(self):
        if not self.context:
            self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.context.load_cert_chain(self.work / "host.pem", self.work / "host.key")
            self.context.sni_callback = self.remember_name
        return self.context

    def remember_name(self, connection, name, context):
        connection.world_name = name

    async def serve_udp(self, address, port):
        class Sink(asyncio.DatagramProtocol):
            def connection_made(self, transport):
                self.transport = transport

            def datagram_received(_, data, peer):
                self.notice("udp", to=address, port=port, size=len(data))
                _.transport.sendto(data, peer)

        await asyncio.get_running_loop().create_datagram_endpoint(Sink, local_addr=(address, port))

    # ---- web ----

    async def web(self, reader, writer):
        address, port = writer.get_extra_info("sockname")[:2]
        inner = writer.get_extra_info("ssl_object")
        name = getattr(inner, "world_name", None)
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            lines = head.decode("latin-1").split("\r\n")
            method, target, _ = lines[0].split(" ", 2)
            headers = [line.split(":", 1) for line in lines[1:] if ":" in line]
            headers = [[key, value.strip()] for key, value in headers]
            first = {key.lower(): value for key, value in headers}
            body = await reader.readexactly(int(first.get("content-length", 0)))
            said = {
                "method": method,
                "target": target,
                "headers": headers,
                "host": first.get("host"),
                "to": address,
                "port": port,
                "sni": name,
                "tls": inner is not None,
                "body": body.decode("latin-1"),
            }
            self.notice("request", **said)
            await self.answer(writer, method, target, first.get("host", ""), said)
            if first.get("connection", "").lower() == "close":
                return

    async def answer(self, writer, method, target, host, said):
        path = target.split("?")[0]
        status, kind, data = 200, "application/json", None
        if path.startswith("/bytes/"):
            await self.send_bytes(writer, int(path.split("/")[2]))
            return
        if host.split(":")[0] in zone.PACKAGE_NAMES:
            kind, data = self.file(host.split(":")[0], path)
            if data is None:
                status, kind, data = 404, "text/plain", b"not here\n"
        else:
            data = json.dumps(said).encode()
        head = f"HTTP/1.1 {status} .\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n\r\n"
        writer.write(head.encode() + (b"" if method == "HEAD" else data))
        await writer.drain()

    def file(self, host, path):
        base = (self.work / "web" / host).resolve()
        found = (base / path.strip("/")).resolve()
        if not found.is_relative_to(base):
            return None, None
        for candidate, kind in (
            (found, "application/octet-stream"),
            (found / "index.html", "text/html"),
            (found / "index.json", "application/json"),
        ):
            if candidate.is_file():
                return kind, candidate.read_bytes()
        return None, None

    async def send_bytes(self, writer, size):
        writer.write(f"HTTP/1.1 200 .\r\nContent-Type: application/octet-stream\r\nContent-Length: {size}\r\n\r\n".encode())
        while size:
            piece = CHUNK[: min(size, len(CHUNK))]
            writer.write(piece)
            size -= len(piece)
            await writer.drain()

    # ---- plain services ----

    async def mail(self, reader, writer):
        writer.write(b"220 mail.test ESMTP\r\n")
        await reader.read()

    async def echo(self, reader, writer):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()

    async def sink(self, reader, writer):
        while await reader.read(1 << 20):
            pass

    async def source(self, reader, writer):
        while True:
            writer.write(CHUNK)
            await writer.drain()

    async def count(self, reader, writer):
        """For half-closed connections: the answer comes after the peer's end."""
        total = 0
        while data := await reader.read(1 << 20):
            total += len(data)
        writer.write(f"{total}\n".encode())
        await writer.drain()

    # ---- hostile ----

    async def reset(self, reader, writer):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    async def drip(self, reader, writer):
        while True:
            writer.write(b".")
            await writer.drain()
            await asyncio.sleep(DRIP_SECONDS)

    async def endless_headers(self, reader, writer):
        writer.write(b"HTTP/1.1 200 OK\r\n")
        while True:
            writer.write(b"X-More: " + b"y" * 1000 + b"\r\n")
            await writer.drain()

    async def mute(self, reader, writer):
        await reader.read()

    async def early_end(self, reader, writer):
        """Ends its direction first, then counts what still comes and says it as an event."""
        writer.write(b"bye\n")
        writer.write_eof()
        total = 0
        while data := await reader.read(65536):
            total += len(data)
        self.notice("early_end", total=total)

    async def huge_hello(self, reader, writer):
        """A server hello that says it is 16 MB long."""
        await reader.read(1)
        writer.write(b"\x16\x03\x03\x40\x00" + b"\x02\xff\xff\xff" + b"z" * 16380)
        await reader.read()

    # ---- SOCKS5 ----

    async def socks(self, reader, writer):
        version, count = await reader.readexactly(2)
        methods = await reader.readexactly(count)
        user = None
        if version != 5:
            return
        if 2 in methods:
            writer.write(b"\5\2")
            _, size = await reader.readexactly(2)
            user = (await reader.readexactly(size)).decode("latin-1")
            password = (await reader.readexactly((await reader.readexactly(1))[0])).decode("latin-1")
            fine = (user, password) == (world.SOCKS_USER, world.SOCKS_PASSWORD)
            writer.write(b"\1" + (b"\0" if fine else b"\1"))
            if not fine:
                self.notice("socks", refused=True, user=user)
                return
        else:
            writer.write(b"\5\0")
        _, command, _, kind = await reader.readexactly(4)
        if kind == 1:
            target = socket.inet_ntop(socket.AF_INET, await reader.readexactly(4))
        elif kind == 4:
            target = socket.inet_ntop(socket.AF_INET6, await reader.readexactly(16))
        else:
            target = (await reader.readexactly((await reader.readexactly(1))[0])).decode("latin-1")
        port = struct.unpack(">H", await reader.readexactly(2))[0]
        tls = writer.get_extra_info("ssl_object") is not None
        self.notice("socks", target=target, port=port, user=user, tls=tls, command=command)
        found = self.zone.find(target) if kind == 3 else None
        address = found["A"][0] if found and found.get("A") else target
        try:
            far_reader, far_writer = await asyncio.open_connection(address, port)
        except OSError:
            writer.write(b"\5\5\0\1\0\0\0\0\0\0")
            return
        writer.write(b"\5\0\0\1\0\0\0\0\0\0")

        async def pump(source, sink):
            while data := await source.read(65536):
                sink.write(data)
                await sink.drain()
            if sink.can_write_eof():
                sink.write_eof()

        try:
            await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer))
        finally:
            far_writer.close()

    # ---- control ----

    async def obey(self, control):
        reader, writer = await asyncio.open_connection(sock=control)
        while line := await reader.readline():
            order = json.loads(line)
            reply = {}
            if order["do"] == "start":
                await self.listen()
            elif order["do"] == "events":
                reply["events"] = self.events
            elif order["do"] == "forget":
                self.events = []
            elif order["do"] == "name":
                self.zone.records[order["name"]] = order["records"]
            elif order["do"] == "open":
                reply["open"] = self.open
            writer.write(json.dumps(reply).encode() + b"\n")
            await writer.drain()


def main():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 65536)), hard))
    asyncio.run(Hosts(sys.argv[2]).obey(socket.socket(fileno=int(sys.argv[1]))))


if __name__ == "__main__":
    main()
