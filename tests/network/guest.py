"""guest.py - what a program in a sandbox does to the network. Runs inside; also on the plain machine, to test the world.

    guest.py FUNCTION JSON-ARGUMENTS      prints the result as one line of JSON

A function returns {"ok": …}, or {"error": "the exception's name", "text": …, "seconds": …}.
"""

import json
import os
import socket
import ssl
import struct
import sys
import threading
import time

TIMEOUT_S = float(os.environ.get("PATIENCE_S", "20"))  # much more than a refusal takes; what runs into it has hung


def family_of(host):
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def connect(host, port, timeout=TIMEOUT_S):
    if host.replace(".", "").isdigit() or ":" in host:
        s = socket.socket(family_of(host), socket.SOCK_STREAM)
        s.settimeout(timeout)
        s.connect((host, port))
        return s
    return socket.create_connection((host, port), timeout)


def read_to_end(s, limit=1 << 20):
    data = b""
    while len(data) < limit and (piece := s.recv(65536)):
        data += piece
    return data


def read_answer(s):
    """One HTTP answer with a length; the rest is not waited for."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = s.recv(65536)
        if not piece:
            raise ConnectionResetError("ended before the end of the head")
        data += piece
    head, body = data.split(b"\r\n\r\n", 1)
    size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    while len(body) < size:
        piece = s.recv(65536)
        if not piece:
            raise ConnectionResetError("ended before the end of the body")
        body += piece
    return body


def tcp(host, port, send="", half_close=False):
    with connect(host, port) as s:
        if send:
            s.sendall(send.encode("latin-1"))
        if half_close:
            s.shutdown(socket.SHUT_WR)
        return read_to_end(s).decode("latin-1")


def is_open(host, port):
    """A connection that stays: one that egress accepts only to reset it is not open."""
    with connect(host, port) as s:
        s.settimeout(1)
        try:
            return s.recv(1) != b"" or "ended"
        except TimeoutError:
            return True


def request(host, port, name, path, extra):
    lines = [f"GET {path} HTTP/1.1", f"Host: {name}", "Connection: close", *(f"{k}: {v}" for k, v in (extra or {}).items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def http(address, name, port=80, path="/", extra=None):
    with connect(address, port) as s:
        s.sendall(request(address, port, name, path, extra))
        return json.loads(read_answer(s))


def tls_socket(address, port, sni, ca, timeout=TIMEOUT_S):
    context = ssl.create_default_context(cafile=ca)
    context.check_hostname = False
    s = connect(address, port, timeout)
    try:
        return context.wrap_socket(s, server_hostname=sni)
    except BaseException:
        s.close()
        raise


def https(address, sni, ca, name=None, port=443, path="/", extra=None):
    """`sni` None: a hello without a name. `name`: of the Host header, if it differs."""
    with tls_socket(address, port, sni, ca) as s:
        s.sendall(request(address, port, name or sni or address, path, extra))
        return json.loads(read_answer(s))


def hello(sni):
    """The bytes of a client hello."""
    context = ssl.create_default_context()
    inward, outward = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        context.wrap_bio(inward, outward, server_hostname=sni).do_handshake()
    except ssl.SSLWantReadError:
        pass
    return outward.read()


def split_hello(address, sni, pieces, records=False, port=443):
    """A hello in many small segments, or in many TLS records. The first bytes of the answer, in hex."""
    data = hello(sni)
    if records:
        body = data[5:]
        size = max(1, len(body) // pieces)
        cut = [body[i : i + size] for i in range(0, len(body), size)]
        parts = [data[:3] + struct.pack(">H", len(part)) + part for part in cut]
    else:
        size = max(1, len(data) // pieces)
        parts = [data[i : i + size] for i in range(0, len(data), size)]
    with connect(address, port) as s:
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for part in parts:
            s.sendall(part)
            time.sleep(0.005)
        return s.recv(16).hex()


def raw(address, port, sent_hex, wait=True):
    """Sends bytes, then reads what comes back, to the end."""
    with connect(address, port) as s:
        s.sendall(bytes.fromhex(sent_hex))
        return read_to_end(s).hex() if wait else ""


def claims_much(address, claim, really, port=443):
    """The head of a TLS record or hello that claims `claim` bytes, then `really` bytes."""
    head = b"\x16\x03\x01" + struct.pack(">H", min(claim + 4, 65535)) + b"\x01" + struct.pack(">I", claim)[1:]
    with connect(address, port) as s:
        s.sendall(head + b"\0" * really)
        return read_to_end(s).hex()


def question(name, kind, ident=0x1234, edns=False):
    encoded = b"".join(bytes([len(label)]) + label.encode("latin-1") for label in name.split(".") if label) + b"\0"
    extra = b"\0" + struct.pack(">HHIH", 41, 4096, 0, 0) if edns else b""
    return struct.pack(">HHHHHH", ident, 0x0100, 1, 0, 0, 1 if edns else 0) + encoded + struct.pack(">HH", kind, 1) + extra


def read_name(data, at, depth=0):
    labels = []
    while True:
        if depth > 20:
            raise ValueError("a name that does not end")
        size = data[at]
        if size == 0:
            return ".".join(labels), at + 1
        if size >= 0xC0:
            rest, _ = read_name(data, struct.unpack(">H", data[at : at + 2])[0] & 0x3FFF, depth + 1)
            return ".".join([*labels, rest]), at + 2
        labels.append(data[at + 1 : at + 1 + size].decode("latin-1"))
        at += 1 + size


def read_dns(data):
    ident, flags, asked, answered, _, _ = struct.unpack(">HHHHHH", data[:12])
    at = 12
    for _ in range(asked):
        at = read_name(data, at)[1] + 4
    rows = []
    for _ in range(answered):
        name, at = read_name(data, at)
        kind, _, ttl, size = struct.unpack(">HHIH", data[at : at + 10])
        value = data[at + 10 : at + 10 + size]
        if kind == 1:
            value = socket.inet_ntop(socket.AF_INET, value)
        elif kind == 28:
            value = socket.inet_ntop(socket.AF_INET6, value)
        elif kind == 16:
            value = value[1 : 1 + value[0]].decode("latin-1")
        elif kind == 5:
            value = read_name(data, at + 10)[0]
        else:
            value = value.hex()
        rows.append([name, kind, value, ttl])
        at += 10 + size
    return {"id": ident, "rcode": flags & 15, "truncated": bool(flags & 0x0200), "answers": rows, "size": len(data)}


def dns(name, kind=1, server="8.8.8.8", over_tcp=False, edns=False):
    query = question(name, kind, edns=edns)
    if over_tcp:
        with connect(server, 53) as s:
            s.sendall(struct.pack(">H", len(query)) + query)
            size = struct.unpack(">H", receive(s, 2))[0]
            return read_dns(receive(s, size))
    with socket.socket(family_of(server), socket.SOCK_DGRAM) as s:
        s.settimeout(TIMEOUT_S)
        s.connect((server, 53))
        s.send(query)
        return read_dns(s.recv(65535))


def dns_raw(sent_hex, server="8.8.8.8", timeout=3):
    with socket.socket(family_of(server), socket.SOCK_DGRAM) as s:
        s.settimeout(timeout)
        s.connect((server, 53))
        s.send(bytes.fromhex(sent_hex))
        return s.recv(65535).hex()


def dns_flood(count, suffix, kind=1, server="8.8.8.8"):
    """Many different names at once, as a tunnel asks them; how many answers of each code came."""
    codes, sent = {}, 0
    with socket.socket(family_of(server), socket.SOCK_DGRAM) as s:
        s.settimeout(2)
        s.connect((server, 53))
        for i in range(count):
            try:
                s.send(question(f"{i:06d}{'a' * 40}.{suffix}", kind, ident=i & 0xFFFF))
                sent += 1
            except OSError as error:
                codes[type(error).__name__] = codes.get(type(error).__name__, 0) + 1
        try:
            while sum(codes.values()) < sent:
                code = str(s.recv(65535)[3] & 15)
                codes[code] = codes.get(code, 0) + 1
        except TimeoutError:
            pass
    return codes


def receive(s, size):
    data = b""
    while len(data) < size:
        piece = s.recv(size - len(data))
        if not piece:
            raise ConnectionResetError(f"ended after {len(data)} of {size} bytes")
        data += piece
    return data


def resolve(name):
    """As programs do, through the C library."""
    return sorted({row[4][0] for row in socket.getaddrinfo(name, 80, type=socket.SOCK_STREAM)})


def udp(host, port, data="x"):
    with socket.socket(family_of(host), socket.SOCK_DGRAM) as s:
        s.settimeout(3)
        s.connect((host, port))
        s.send(data.encode())
        return s.recv(2048).decode("latin-1")


def ping(host):
    """By an unprivileged ICMP socket, or a raw one."""
    six = ":" in host
    family, protocol = (socket.AF_INET6, 58) if six else (socket.AF_INET, 1)
    try:
        s = socket.socket(family, socket.SOCK_DGRAM, protocol)
    except PermissionError:
        s = socket.socket(family, socket.SOCK_RAW, protocol)
    with s:
        s.settimeout(3)
        s.connect((host, 0))
        body = struct.pack(">BBHHH", 128 if six else 8, 0, 0, 1, 1) + b"ping"
        total = sum(struct.unpack(f">{len(body) // 2}H", body))
        total = (total >> 16) + (total & 0xFFFF)
        s.send(body[:2] + struct.pack(">H", ~(total + (total >> 16)) & 0xFFFF) + body[4:])
        return len(s.recv(1024))


def hold(host, port, count, seconds):
    """Opens many connections, sends a byte on each, and keeps them. How many there are at the end of that time."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    kept, errors = [], {}
    for _ in range(count):
        try:
            s = connect(host, port)
            s.sendall(b"x")
            kept.append(s)
        except OSError as error:
            name = error.strerror or type(error).__name__
            errors[name] = errors.get(name, 0) + 1
            if sum(errors.values()) >= 50:
                break
    alive, reset = 0, 0
    for s in kept:
        s.settimeout(5)
        try:
            alive += s.recv(1) == b"x"
        except OSError:
            reset += 1
    time.sleep(seconds)
    return {"opened": len(kept), "alive": alive, "reset": reset, "errors": errors}


def connect_storm(host, port, count, off):
    """Opens connections and leaves each at once, until so many were accepted or the file `off` is there. How many were."""
    accepted = 0
    while accepted < count and not os.path.exists(off):
        with socket.socket(family_of(host), socket.SOCK_STREAM) as s:
            s.settimeout(0.01)  # where the backlog is full, the next one
            try:
                s.connect((host, port))
                accepted += 1
            except OSError:
                pass
    return accepted


def download(host, port, name, size, mark=None):
    """Reads `size` bytes over HTTP; makes the file `mark` after the first of them. How many came, and how it ended."""
    got, how = 0, "end"
    with connect(host, port) as s:
        s.sendall(request(host, port, name, f"/bytes/{size}", None))
        try:
            while piece := s.recv(1 << 20):
                got += len(piece)
                if mark:
                    open(mark, "w").close()
                    mark = None
        except OSError as error:
            how = type(error).__name__
    return {"got": got, "how": how}


def keep_talking(host, port, seconds, mark):
    """
    An echo each tenth of a second, until that long or until it breaks; makes the file `mark` after the first. The byte is
    one that neither HTTP nor TLS begins with: egress has no reason to wait for more of it.
    """
    count, how = 0, "time"
    with connect(host, port) as s:
        s.settimeout(5)
        end = time.monotonic() + seconds
        try:
            while time.monotonic() < end:
                s.sendall(b"\0")
                if s.recv(1) != b"\0":
                    how = "end"
                    break
                count += 1
                if count == 1:
                    open(mark, "w").close()
                time.sleep(0.1)
        except OSError as error:
            how = type(error).__name__
    return {"count": count, "how": how}


def listeners():
    """Addresses and ports that listen in this network namespace, as /proc shows them."""
    found = []
    for path, six in (("/proc/net/tcp", False), ("/proc/net/tcp6", True)):
        for line in open(path).read().splitlines()[1:]:
            fields = line.split()
            if fields[3] != "0A":
                continue
            text, port = fields[1].split(":")
            words = [bytes.fromhex(text[i : i + 8])[::-1] for i in range(0, len(text), 8)]
            address = socket.inet_ntop(socket.AF_INET6 if six else socket.AF_INET, b"".join(words))
            found.append([address, int(port, 16)])
    return found


def serve_once(port, host="127.0.0.1"):
    """A server inside, asked from inside: loopback is the guest's own."""
    with socket.create_server((host, port), family=family_of(host)) as listener:
        thread = threading.Thread(target=lambda: listener.accept()[0].sendall(b"mine"), daemon=True)
        thread.start()
        with connect(host, port) as s:
            return receive(s, 4).decode()


def many(calls):
    """[[function, arguments], …] one after the other, in one process: starting Python takes longer than most of them."""
    return [outcome(name, arguments) for name, arguments in calls]


def outcome(name, arguments):
    begun = time.monotonic()
    try:
        return {"ok": globals()[name](*arguments)}
    except Exception as error:
        return {
            "error": type(error).__name__,
            "text": str(error),
            "errno": getattr(error, "errno", None),
            "seconds": time.monotonic() - begun,
        }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(outcome(sys.argv[1], json.loads(sys.argv[2]))) + "\n")
    sys.stdout.flush()
    os._exit(0)
