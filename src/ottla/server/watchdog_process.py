"""Hangs up on the clients of a node that is stopped; a separate program, started by `ottla.server.watchdog`.

    python watchdog_process.py PID SILENCE_S    # beats of process PID come in by standard input, which ends with the
    process

After SILENCE_S seconds without a beat, and until the next one, every connection that PID has accepted is shut down.
Every new one is closed, because the kernel would accept it for a process that does not answer. The program gets the
sockets by pidfd_getfd(2), which the system permits if it permits ptrace(2). If it does not, nothing happens.

It imports nothing of Ottla, and it imports what it needs for a stopped node only then: every node has such a
process.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from socket import socket

PIDFD_GETFD = 438
"""The number of the system call, the same on all kinds of machines; Python has no function for it."""
SECOND_LOOK_S = 0.2
"""Seconds for the first beat of a process that was stopped together with this one."""


def main(process: int, silence_s: float) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # meant for the node, at whose end this one ends
    with contextlib.suppress(EOFError, ProcessLookupError, FileNotFoundError):  # the process has ended
        while True:
            if not beats(silence_s) and not beats(SECOND_LOOK_S):
                hang_up(process)


def beats(within_s: float | None, also: Sequence[socket] = ()) -> bool:
    """Whether the process gives a beat before the time is over, or before input arrives at one of `also`. Raises
    EOFError once the process has ended."""
    if 0 not in select.select([0, *also], [], [], within_s)[0]:
        return False
    if not os.read(0, 4096):
        raise EOFError
    return True


def hang_up(process: int) -> None:
    """Shut down the connections that the process has accepted, and close new ones, until its next beat."""
    from socket import SHUT_RDWR

    listening = list(sockets_of(process, listening=True))
    ports = {one.getsockname()[1] for one in listening}
    for one in sockets_of(process, listening=False):
        with one, contextlib.suppress(OSError):  # the client was quicker
            if one.getsockname()[1] in ports:
                one.shutdown(SHUT_RDWR)
    while not beats(None, listening):
        for one in listening:
            with contextlib.suppress(OSError):
                one.accept()[0].close()
    for one in listening:
        one.close()


def sockets_of(process: int, *, listening: bool) -> Iterator[socket]:
    """The TCP sockets of a process that listen, or those that do not. This process has each of them open too, until the
    caller closes it."""
    import ctypes
    from socket import AF_INET, AF_INET6, SO_ACCEPTCONN, SOCK_STREAM, SOL_SOCKET, socket

    system = ctypes.CDLL(None)
    held = os.pidfd_open(process)
    for name in os.listdir(f"/proc/{process}/fd"):
        own = system.syscall(PIDFD_GETFD, held, int(name), 0) if is_socket(process, name) else -1
        if own == -1:
            continue
        one = socket(fileno=own)
        is_tcp = one.family in (AF_INET, AF_INET6) and one.type == SOCK_STREAM
        if is_tcp and bool(one.getsockopt(SOL_SOCKET, SO_ACCEPTCONN)) is listening:
            yield one
        else:
            one.close()
    os.close(held)


def is_socket(process: int, name: str) -> bool:
    try:
        return os.readlink(f"/proc/{process}/fd/{name}").startswith("socket:")
    except OSError:  # it was closed just now
        return False


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
