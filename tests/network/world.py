"""world.py - an Internet of our own: network namespaces that no packet leaves.

The calling process moves into a new network namespace, which plays the machine that Cloister runs on ("the machine").
A child process in a second namespace plays everything else: public web servers, a private network, a metadata
service, DNS servers, a SOCKS proxy, hostile peers (hosts.py). A veth pair joins the two. So any address can be used,
the machine under the tests keeps its routes, and nothing is left behind when both processes end, even by SIGKILL.

    machine  192.0.2.10, 10.77.0.10, 2001:db8:0:1::10, loopback   ── veth ──   hosts: the addresses in HOSTS

Needs root, `ip` and `openssl`.
"""

import ctypes
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
CLONE_NEWNET = 0x40000000
PR_SET_PDEATHSIG = 1

MACHINE = {"public": "192.0.2.10", "private": "10.77.0.10", "six": "2001:db8:0:1::10"}
GATEWAY, GATEWAY_SIX, GATEWAY_PRIVATE = "192.0.2.1", "2001:db8:0:1::1", "10.77.0.1"

# What each address is for. All of them answer on the ports of hosts.py, so that a hole in a rule shows.
HOSTS = {
    "one": "198.51.100.10",  # a public web server
    "two": "198.51.100.11",  # another
    "packages": "198.51.100.20",  # PyPI, npm, git, apt
    "mail": "198.51.100.25",
    "dns": "198.51.100.53",  # the resolver that the server is told to use
    "silent_dns": "198.51.100.54",  # takes questions, never answers
    "lying_dns": "198.51.100.55",  # the address that wrong answers come from
    "hostile": "198.51.100.66",
    "socks": "198.51.100.80",
    "denied": "203.0.113.10",  # public, in a range that tests deny
    "google_dns": "8.8.8.8",  # answers to nobody: a question that arrives here has gone around egress
    "ten": "10.1.2.3",
    "private": "192.168.7.7",
    "seventeen": "172.16.5.5",
    "carrier": "100.64.1.1",
    "metadata": "169.254.169.254",
    "benchmark": "198.18.0.1",
    "reserved": "240.0.0.1",
    "one_six": "2001:db8:a::10",
    "two_six": "2001:db8:a::11",
    "denied_six": "2001:db8:bad::10",
    "unique_local": "fd00:77::7",
    "nat64_ten": "64:ff9b::a01:203",  # NAT64 of 10.1.2.3
    "sixtofour_ten": "2002:a01:203::1",  # 6to4 of 10.1.2.3
}
BLACK_HOLE = "203.0.113.99"  # packets vanish
NOBODY = "203.0.113.98"  # no such host: the gateway says so

# Ports that every address listens on. 25, 465 and 587 are there to show that nothing reaches them.
WEB_PORTS, TLS_PORTS, MAIL_PORTS = (80, 8080), (443, 8443), (25, 465, 587)
ECHO_PORT, SINK_PORT, SOURCE_PORT, COUNT_PORT = 7, 9, 19, 2007  # COUNT: reads to the end, then says how many bytes
RESET_PORT, DRIP_PORT, HEADERS_PORT, MUTE_PORT, EARLY_END_PORT, HUGE_HELLO_PORT = 9001, 9002, 9003, 9004, 9005, 9006
CLOSED_PORT = 4444  # of HOSTS["one"]
UDP_PORTS = (443, 9999, 123)
SOCKS_PORT, SOCKS_TLS_PORT = 1080, 1443
SOCKS_USER, SOCKS_PASSWORD = "wanderer", "open sesame"


def run(*command, **options):
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False, **options)
    if result.returncode:
        raise RuntimeError(f"{' '.join(command)}: {result.stderr.strip() or result.stdout.strip()}")
    return result.stdout


def libc_call(name, *arguments):
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), f"{name}: {os.strerror(ctypes.get_errno())}")


def enter_new_namespace():
    """Of this thread, and of the threads and processes that it makes from now on."""
    libc_call("unshare", CLONE_NEWNET)


def begin_as_host():
    libc_call("prctl", PR_SET_PDEATHSIG, signal.SIGKILL)
    enter_new_namespace()


class World:
    def __init__(self):
        self.work = pathlib.Path(tempfile.mkdtemp(prefix="cloister-world-"))
        self.process = None
        self.control = None
        self.lock = threading.Lock()

    @property
    def ca(self):
        """The certificate of the authority that signed those of the web servers, a file."""
        return self.work / "ca.pem"

    def start(self):
        """The calling process is in a namespace of its own afterwards. Call it before any thread starts."""
        import packages

        make_certificates(self.work)
        packages.make(self.work)
        enter_new_namespace()
        run("ip", "link", "set", "lo", "up")
        self.control, theirs = socket.socketpair()
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "hosts.py"), str(theirs.fileno()), str(self.work)],
            pass_fds=[theirs.fileno()],
            preexec_fn=begin_as_host,
        )
        theirs.close()
        self.join_namespaces()
        self.reader = self.control.makefile("r")
        self.ask("start")
        return self

    def join_namespaces(self):
        pid = str(self.process.pid)
        inside = ["nsenter", f"--net=/proc/{pid}/ns/net"]
        run("ip", "link", "add", "up0", "type", "veth", "peer", "name", "down0", "netns", pid)
        for address, prefix in ((MACHINE["public"], 24), (MACHINE["private"], 24), (MACHINE["six"], 64)):
            run("ip", "address", "add", f"{address}/{prefix}", "dev", "up0", *nodad(address))
        for address, prefix in ((GATEWAY, 24), (GATEWAY_PRIVATE, 24), (GATEWAY_SIX, 64)):
            run(*inside, "ip", "address", "add", f"{address}/{prefix}", "dev", "down0", *nodad(address))
        for address in HOSTS.values():
            run(*inside, "ip", "address", "add", f"{address}/{128 if ':' in address else 32}", "dev", "lo", *nodad(address))
        run(*inside, "ip", "link", "set", "lo", "up")
        run(*inside, "ip", "link", "set", "down0", "up")
        # An address that is none of HOSTS: the gateway answers "no route", except for the black hole.
        run(*inside, "ip", "route", "add", "blackhole", BLACK_HOLE)
        run(*inside, "sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward; echo 1 >/proc/sys/net/ipv6/conf/all/forwarding")
        run("ip", "link", "set", "up0", "up")
        run("ip", "route", "add", "default", "via", GATEWAY)
        run("ip", "-6", "route", "add", "default", "via", GATEWAY_SIX)
        # Without it an address in 240.0.0.0/4 or 169.254.0.0/16 would go out all the same; said here for readers.
        run("ip", "route", "get", HOSTS["metadata"])

    def ask(self, what, **fields):
        with self.lock:
            self.control.sendall(json.dumps({"do": what, **fields}).encode() + b"\n")
            line = self.reader.readline()
        if not line:
            raise RuntimeError("the hosts have ended: look at what they printed")
        return json.loads(line)

    def forget(self):
        """Events so far; `seen` returns later ones only."""
        self.ask("forget")

    def seen(self, kind=None, **fields):
        """What the hosts have noticed: dicts with `kind` tcp, request, dns, udp, icmp, socks, closed."""
        found = self.ask("events")["events"]
        wanted = {**({"kind": kind} if kind else {}), **fields}
        return [event for event in found if all(event.get(name) == value for name, value in wanted.items())]

    def wait_seen(self, kind, seconds=10, **fields):
        """The same, as soon as there is one."""
        end = time.monotonic() + seconds
        while True:
            found = self.seen(kind, **fields)
            if found or time.monotonic() > end:
                return found
            time.sleep(0.05)

    def set_name(self, name, **records):
        """Answers of the DNS server for this name from now on: A=[…], AAAA=[…], TXT=[…], CNAME="…"."""
        self.ask("name", name=name, records=records)

    def open_connections(self):
        return self.ask("open")["open"]

    def stop(self):
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None
            self.reader.close()
            self.control.close()
        shutil.rmtree(self.work, ignore_errors=True)


def nodad(address):
    return ["nodad"] if ":" in address else []


def make_certificates(work):
    """An authority, and one certificate for every name that hosts.py serves."""
    import zone

    names = ",".join([*(f"DNS:{name}" for name in zone.TLS_NAMES), *(f"IP:{address}" for address in HOSTS.values())])
    run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
        "-subj", "/CN=Authority of the tests", "-keyout", str(work / "ca.key"), "-out", str(work / "ca.pem"),
        "-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign")  # fmt: skip
    run("openssl", "req", "-new", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
        "-subj", "/CN=hosts of the tests", "-keyout", str(work / "host.key"), "-out", str(work / "host.csr"))  # fmt: skip
    (work / "host.ext").write_text(f"subjectAltName={names}\nbasicConstraints=CA:FALSE\n")
    run("openssl", "x509", "-req", "-in", str(work / "host.csr"), "-CA", str(work / "ca.pem"), "-CAkey",
        str(work / "ca.key"), "-CAcreateserial", "-days", "2", "-extfile", str(work / "host.ext"), "-out",
        str(work / "host.pem"))  # fmt: skip
