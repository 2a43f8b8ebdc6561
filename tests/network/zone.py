"""zone.py - the names of the world, and a DNS server for them that can also misbehave.

Questions are read and answers are made by hand, because most of what is tested here no library would send.
"""

import asyncio
import socket
import struct

from world import HOSTS, MACHINE, NOBODY

A, CNAME, TXT, AAAA, OPT = 1, 5, 16, 28, 41
TYPES = {"A": A, "CNAME": CNAME, "TXT": TXT, "AAAA": AAAA, "MX": 15, "NULL": 10, "SRV": 33, "HTTPS": 65, "ANY": 255}
NOERROR, SERVFAIL, NXDOMAIN, REFUSED = 0, 2, 3, 5
BIG_STRINGS = 250  # of 250 bytes: an answer of nearly 64 KiB
MANY = 100

# The public names of the package servers are real ones: programs inside need no configuration but our authority.
PACKAGE_NAMES = (
    "pypi.org",
    "files.pythonhosted.org",
    "registry.npmjs.org",
    "github.com",
    "deb.debian.org",
    "security.debian.org",
)
TLS_NAMES = (
    "one.test",
    "two.test",
    "*.wild.test",
    "wild.test",
    "chain.test",
    "rebind.test",
    "private.test",
    "denied.test",
    "socks.test",
    "many.test",
    "spread.test",
    "moving.test",
    *PACKAGE_NAMES,
)

RECORDS = {
    "one.test": {"A": [HOSTS["one"]], "AAAA": [HOSTS["one_six"]]},
    "two.test": {"A": [HOSTS["two"]], "AAAA": [HOSTS["two_six"]]},
    "four.test": {"A": [HOSTS["one"]]},
    "six.test": {"AAAA": [HOSTS["one_six"]]},
    "spread.test": {"A": [NOBODY, HOSTS["one"]]},
    "gone.test": {"A": [NOBODY]},
    "wild.test": {"A": [HOSTS["one"]]},
    "*.wild.test": {"A": [HOSTS["one"]]},
    "denied.test": {"A": [HOSTS["denied"]], "AAAA": [HOSTS["denied_six"]]},
    "chain.test": {"CNAME": "c1.chain.test"},
    "c1.chain.test": {"CNAME": "c2.chain.test"},
    "c2.chain.test": {"CNAME": "one.test"},
    "loop.test": {"CNAME": "loop2.test"},
    "loop2.test": {"CNAME": "loop.test"},
    "text.test": {"TXT": ["hello from TXT"], "A": [HOSTS["one"]]},
    "many.test": {"A": [f"203.0.113.{i + 100}" for i in range(MANY)]},
    "private.test": {"A": [HOSTS["ten"]]},
    "metadata.test": {"A": [HOSTS["metadata"]]},
    "mapped.test": {"AAAA": [f"::ffff:{HOSTS['ten']}"]},
    "nat64.test": {"AAAA": [HOSTS["nat64_ten"]]},
    "machine.test": {"A": [MACHINE["public"]], "AAAA": [MACHINE["six"]]},
    "loopback.test": {"A": ["127.0.0.1"], "AAAA": ["::1"]},
    "mail.test": {"A": [HOSTS["mail"]]},
    "hostile.test": {"A": [HOSTS["hostile"]]},
    "socks.test": {"A": [HOSTS["socks"]]},
    "ptr.test": {"A": [HOSTS["one"]]},
    **{name: {"A": [HOSTS["packages"]]} for name in PACKAGE_NAMES},
}


def encode_name(name):
    return b"".join(bytes([len(label)]) + label.encode() for label in name.split(".") if label) + b"\0"


def decode_name(data, at):
    """Of a question, which has no reason to be compressed."""
    labels = []
    while data[at]:
        if data[at] > 63:
            raise ValueError("compressed question")
        labels.append(data[at + 1 : at + 1 + data[at]].decode("latin-1"))
        at += 1 + data[at]
    return ".".join(labels), at + 1


def record(name, kind, data, ttl):
    return encode_name(name) + struct.pack(">HHIH", kind, 1, ttl, len(data)) + data


def address_data(text):
    return socket.inet_pton(socket.AF_INET6 if ":" in text else socket.AF_INET, text)


def text_data(strings):
    return b"".join(bytes([len(text)]) + text for text in strings)


class Lie(bytes):
    """To be sent from an address that the question did not go to."""


class Zone:
    def __init__(self, notice):
        self.records = {name: dict(what) for name, what in RECORDS.items()}
        self.notice = notice
        self.turns = {}  # how often each name was asked for, for those that alternate

    def find(self, name):
        if name in self.records:
            return self.records[name]
        labels = name.split(".")
        for i in range(1, len(labels)):
            if (found := self.records.get(".".join(["*", *labels[i:]]))) is not None:
                return found
        return None

    def answers(self, name, kind):
        """(rcode, answer records)"""
        made, seen = [], set()
        while True:
            what = self.find(name)
            if what is None:
                return (NOERROR if made else NXDOMAIN), made
            if "CNAME" in what and kind != CNAME and what["CNAME"] not in seen:
                seen.add(what["CNAME"])
                made.append(record(name, CNAME, encode_name(what["CNAME"]), 60))
                name = what["CNAME"]
                continue
            break
        ttl = what.get("ttl", 60)
        if kind == A:
            made += [record(name, A, address_data(text), ttl) for text in what.get("A", [])]
        elif kind == AAAA:
            made += [record(name, AAAA, address_data(text), ttl) for text in what.get("AAAA", [])]
        elif kind == TXT:
            made += [record(name, TXT, text_data([text.encode()]), ttl) for text in what.get("TXT", [])]
        elif kind == CNAME and "CNAME" in what:
            made.append(record(name, CNAME, encode_name(what["CNAME"]), ttl))
        return NOERROR, made

    def alternate(self, name):
        """Public, then private, then public…: what a rebinding attack does."""
        self.turns[name] = self.turns.get(name, 0) + 1
        return HOSTS["one"] if self.turns[name] % 2 else HOSTS["ten"]

    def reply(self, query, over_tcp):
        """A list of messages to send: most often one; none for `silent.test`."""
        name, at = decode_name(query, 12)
        kind = struct.unpack(">H", query[at : at + 2])[0]
        question = query[12 : at + 4]
        lower = name.lower()
        self.notice("dns", name=lower, type=kind, tcp=over_tcp, size=len(query))
        ident = query[:2]

        def message(rcode, records, flags=0x8180, ident=ident, counted=None):
            count = len(records) if counted is None else counted
            return ident + struct.pack(">HHHHH", flags | rcode, 1, count, 0, 0) + question + b"".join(records)

        if lower == "silent.test":
            return []
        if lower == "servfail.test":
            return [message(SERVFAIL, [])]
        if lower == "refused.test":
            return [message(REFUSED, [])]
        if lower == "rebind.test" and kind == A:
            return [message(NOERROR, [record(name, A, address_data(self.alternate(lower)), 0)])]
        if lower == "big.test":
            if not over_tcp:
                return [message(NOERROR, [], flags=0x8380)]  # truncated: ask again over TCP
            pieces = [record(name, TXT, text_data([b"x" * 250]), 60) for _ in range(BIG_STRINGS - 30)]
            return [message(NOERROR, [record(name, A, address_data(HOSTS["one"]), 60), *pieces])]
        if lower == "bomb.test":  # a name that points at itself, and one that claims to be very long
            pointer = struct.pack(">H", 0xC000 | (12 + len(question)))
            loop = pointer + struct.pack(">HHIH", CNAME, 1, 60, 2) + pointer
            return [message(NOERROR, [loop, b"\xc0\x0c" + struct.pack(">HHIH", A, 1, 60, 65535) + b"\1\2\3\4"])]
        if lower == "short.test":  # says that it has 5 answers, and ends after half of one
            return [message(NOERROR, [record(name, A, address_data(HOSTS["one"]), 60)[:-3]], counted=5)]
        if lower == "wrongid.test":
            lie = [record(name, A, address_data(HOSTS["denied"]), 60)]
            wrong = message(NOERROR, lie, ident=bytes([ident[0] ^ 1, ident[1]]))
            truth = [record(name, A, address_data(HOSTS["one"]), 60)]
            return [wrong, message(NOERROR, truth)] if kind == A else [message(NOERROR, [])]
        if lower == "wrongaddr.test" and kind == A:  # first from an address that was not asked
            wrong = message(NOERROR, [record(name, A, address_data(HOSTS["denied"]), 60)])
            return [Lie(wrong), message(NOERROR, [record(name, A, address_data(HOSTS["one"]), 60)])]
        if lower == "wrongname.test" and kind == A:  # an answer about another name
            return [message(NOERROR, [record("two.test", A, address_data(HOSTS["denied"]), 60)])]
        return [message(*self.answers(lower, kind))]


class Udp(asyncio.DatagramProtocol):
    def __init__(self, zone, silent=False, liar=None):
        self.zone, self.silent, self.liar = zone, silent, liar

    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, peer):
        try:
            if self.silent:
                self.zone.notice("dns", name=decode_name(data, 12)[0].lower(), tcp=False, silent=True)
                return
            for answer in self.zone.reply(data, False):
                (self.liar if isinstance(answer, Lie) else self.transport).sendto(answer[:4096], peer)
        except (IndexError, ValueError, struct.error):
            self.zone.notice("dns", name=None, size=len(data))


def tcp_server(zone):
    async def serve(reader, writer):
        try:
            while True:
                size = struct.unpack(">H", await reader.readexactly(2))[0]
                for answer in zone.reply(await reader.readexactly(size), True):
                    writer.write(struct.pack(">H", len(answer)) + answer)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, IndexError, ValueError, struct.error):
            pass
        finally:
            writer.close()

    return serve
