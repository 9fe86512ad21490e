"""The probe of `fairness.py`, a program: NODE-PROCESS PORT FRAME-IN-HEX PACE-IN-SECONDS.

Sends the frame over and over between the words "on" and "off" on its standard input, and prints what it measured as
JSON. It imports nothing of ours, so that it starts in no time.
"""

from __future__ import annotations

import contextlib
import json
import os
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
) -> tuple[list[tuple[float, float]], list[float]]:
    """Ask at each `pace_s` until "off" comes; for how long each answer was held up by what the node's loop worked, and
    by what was neither that nor the machine; and pieces of the same work in between, in milliseconds."""
    answers: list[tuple[float, float]] = []
    works: list[float] = []
    due = time.perf_counter()
    waited, used = _scheduled_s(node)
    while not selector.select(0):
        time.sleep(max(0.0, due - time.perf_counter()))
        began = time.perf_counter()
        if began - due < pace_s:
            due = began  # that much is the machine's: it woke us late
        _ask(sock, frame)
        ended, (waited_now, used_now) = time.perf_counter(), _scheduled_s(node)
        while due <= began or due + pace_s <= ended:  # all that were due meanwhile have waited for this answer
            worked = min(used_now - used, ended - max(due, began))
            answers.append((1e3 * worked, 1e3 * max(0.0, ended - due - (waited_now - waited) - worked)))
            due += pace_s
        works.append(_work_ms())
        waited, used = waited_now, used_now
    sys.stdin.readline()  # "off"
    return answers, works


def _work_ms() -> float:
    """What always the same work takes of a processor, which is more where others share its caches and units."""
    began = time.thread_time()
    for _ in range(1_000):
        pass
    return 1e3 * (time.thread_time() - began)


def _scheduled_s(node: int) -> tuple[float, float]:
    """How long this process and the node's threads have waited for a processor so far, and how long the node's event
    loop has had one.

    All of its threads: one that has the interpreter lock and no processor holds the loop up, which sleeps meanwhile. As
    two may wait at once, more may be found than the loop lost; the time that the loop itself has worked is never the
    machine's.
    """
    waited_ns, used_ns = 0, 0
    threads = [f"{node}/task/{thread}" for thread in os.listdir(f"/proc/{node}/task")]
    for process in ("self", *threads):
        with contextlib.suppress(FileNotFoundError), open(f"/proc/{process}/schedstat") as file:  # a thread may end
            used, waited = file.read().split()[:2]
            waited_ns += int(waited)
            if process == f"{node}/task/{node}":
                used_ns = int(used)
    return waited_ns / 1e9, used_ns / 1e9


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
