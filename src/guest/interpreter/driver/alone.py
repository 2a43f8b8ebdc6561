"""The fallback: a python3 inside the sandbox that is one interpreter and shares nothing with any other.

guestd starts it when the zygote cannot be used, with this program and then one message of three descriptors on its stdin.
"""
import socket

from .interpreter import become_interpreter
from .warmth import make_shell


def run_alone(stdin):
    data, fds, flags, address = socket.recv_fds(stdin, 16, 3)
    stdin.detach()  # become_interpreter() puts /dev/null in its place
    if len(fds) == 3:
        make_shell()
        become_interpreter(fds)
