"""The probe of `fairness.py`, a program: NODE-PROCESS PORT FRAME-IN-HEX PACE-IN-SECONDS.

Sends the frame over and over between the words "on" and "off" on its standard input, and prints what it measured as
JSON. It imports nothing of ours, so that it starts in no time.
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import time


def probe(node: int, port: int, frame: bytes, pace_s: float) -> None:
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    _ask(sock, frame)
    print("ready", flush=True)
    with selectors.DefaultSelector() as selector:
        selector.register(sys.stdin, selectors.EVENT_READ)
        while sys.stdin.readline():  # "on"
            print("on", flush=True)
            print(json.dumps(_measure(sock, frame, pace_s, selector, node)), flush=True)


def _measure(
    sock: socket.socket, frame: bytes, pace_s: float, selector: selectors.BaseSelector, node: int
) -> list[float]:
    """Ask at each `pace_s` until "off" comes; how long each answer took, in milliseconds."""
    answers: list[float] = []
    due = time.perf_counter()
    while not selector.select(0):
        time.sleep(max(0.0, due - time.perf_counter()))
        began, waited = time.perf_counter(), _waited_s(node)
        if began - due < pace_s:
            due = began  # that much is the machine's: it woke us late
        _ask(sock, frame)
        ended, waited = time.perf_counter(), _waited_s(node) - waited
        while due <= began or due + pace_s <= ended:  # all that were due meanwhile have waited for this answer
            answers.append(1e3 * max(0.0, ended - due - waited))
            due += pace_s
    sys.stdin.readline()  # "off"
    return answers


def _waited_s(node: int) -> float:
    """How long this process and the node's event loop have waited for a processor so far."""
    waited_ns = 0
    for process in ("self", node):
        with open(f"/proc/{process}/schedstat") as file:
            waited_ns += int(file.read().split()[1])
    return waited_ns / 1e9


def _ask(sock: socket.socket, frame: bytes) -> None:
    sock.sendall(frame)
    left = 4 + int.from_bytes(_exactly(sock, 4), "big") - 4
    _exactly(sock, left)


def _exactly(sock: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        chunk = sock.recv(size - len(found))
        if not chunk:
            raise ConnectionError("the node closed the probe's connection")
        found += chunk
    return found


if __name__ == "__main__":
    probe(int(sys.argv[1]), int(sys.argv[2]), bytes.fromhex(sys.argv[3]), float(sys.argv[4]))
