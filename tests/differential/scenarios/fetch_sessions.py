"""Incremental fetch sessions (KIP-227)."""

from __future__ import annotations

import uuid
from typing import Any

from ..batches import batch
from ..stage import Stage
from .fetch import filled


def ask(
    s: Stage,
    what: str,
    session: int,
    epoch: int,
    *parts: tuple[str, int, int],
    version: int = 12,
    on: str = "a",
    forget: tuple[tuple[str, list[int]], ...] = (),
    ids: bool = False,
    **more: Any,
) -> int:
    """Ask for (topic, partition, offset)s; the session id answered."""

    def where(name: str) -> dict[str, Any]:
        return {"topic": name} if version < 13 else {"topic_id": s.topic_id(name)}

    topics: dict[str, list[Any]] = {}
    for name, partition, offset in parts:
        topics.setdefault(name, []).append(
            {"partition": partition, "fetch_offset": offset, "partition_max_bytes": 100000}
        )
    answer = s.ask(
        what,
        "Fetch",
        version,
        on=on,
        max_wait_ms=0,
        min_bytes=0,
        session_id=session,
        session_epoch=epoch,
        topics=[where(n) | {"partitions": p} for n, p in topics.items()],
        forgotten_topics_data=[where(n) | {"partitions": p} for n, p in forget],
        keep=brief,
        **more,
    )
    return answer.session_id if answer else 0


def brief(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer with only the offsets of its batches."""
    for topic in answer.get("responses", []):
        for part in topic["partitions"]:
            part["records"] = [[b["base_offset"], b["last_offset"]] for b in part.get("records", [])]
    return answer


def whole_life(s: Stage) -> None:
    for version in (7, 12, 13, 16):
        name, idle = filled(s, f"busy.v{version}", 2), s.create(f"idle.v{version}", 2)
        v: dict[str, Any] = {"version": version}
        session = ask(s, "a full fetch opens a session", 0, 0, (name, 0, 0), (idle, 0, 0), (idle, 1, 0), **v)
        ask(s, "what has not moved comes again", session, 1, **v)
        ask(s, "moved to the end: nothing comes", session, 2, (name, 0, 4), **v)
        ask(s, "still nothing", session, 3, **v)
        s.append(idle, batch("x"), partition=1)
        ask(s, "only the one with news", session, 4, **v)
        ask(s, "moved, another one added", session, 5, (idle, 1, 1), (name, 0, 2), **v)
        ask(s, "forget one", session, 6, (name, 0, 4), forget=((idle, [0]),), **v)
        ask(s, "forget what is not there", session, 7, forget=((idle, [0, 7]),), **v)
        ask(s, "forget and add in one", session, 8, (idle, 1, 0), forget=((idle, [1]),), **v)
        ask(s, "close", session, -1, **v)
        ask(s, "it is gone", session, 9, **v)


def epochs(s: Stage) -> None:
    name = filled(s, batches=1)
    session = ask(s, "open", 0, 0, (name, 0, 2))
    ask(s, "epoch too high", session, 5)
    ask(s, "epoch again", session, 1)
    ask(s, "epoch of the past", session, 1)
    ask(s, "the right epoch goes on", session, 2)
    ask(s, "unknown session", session + 12345, 1)
    ask(s, "epoch 0 with the id opens another", session, 0, (name, 0, 0))
    ask(s, "the old one is gone", session, 3)
    ask(s, "no session, epoch -1: none is opened", 0, -1, (name, 0, 0))
    ask(s, "no session, epoch 1", 0, 1, (name, 0, 0))
    ask(s, "an unknown session, epoch -1", session + 777, -1, (name, 0, 0))
    ask(s, "an unknown session, epoch 0", session + 777, 0, (name, 0, 0))
    ask(s, "negative epoch", session, -2, (name, 0, 0))


def close_with_a_full_fetch(s: Stage) -> None:
    name = filled(s, batches=1)
    session = ask(s, "open", 0, 0, (name, 0, 0))
    ask(s, "close and read in one", session, -1, (name, 0, 0))
    ask(s, "gone", session, 1)


def errors_repeat(s: Stage) -> None:
    """A partition in error is in every answer."""
    name = filled(s, batches=1)
    session = ask(s, "open with errors", 0, 0, (name, 0, 2), (name, 5, 0), (s.name("nope"), 0, 0))
    ask(s, "again", session, 1)
    ask(s, "out of range comes", session, 2, (name, 0, 77))
    ask(s, "out of range again", session, 3)
    ask(s, "repaired", session, 4, (name, 0, 0))
    s.create("nope")
    ask(s, "the unknown topic exists now", session, 5)
    s.append(name, batch("z"))
    ask(s, "news beside errors", session, 6, (name, 0, 2))


def unknown_ids(s: Stage) -> None:
    name = filled(s, batches=1)
    unknown, known = uuid.UUID(int=31).bytes, s.topic_id(name)
    part = {"partition": 0, "fetch_offset": 2, "partition_max_bytes": 1000}

    def full(what: str, session: int, epoch: int, *ids: bytes) -> int:
        answer = s.ask(
            what,
            "Fetch",
            16,
            max_wait_ms=0,
            session_id=session,
            session_epoch=epoch,
            keep=brief,
            topics=[{"topic_id": i, "partitions": [part]} for i in ids],
        )
        return answer.session_id

    session = full("open with an unknown id", 0, 0, known, unknown)
    full("the unknown id again", session, 1)
    full("another unknown id added", session, 2, uuid.UUID(int=32).bytes)
    full("the zero id added", session, 3, bytes(16))
    s.send("DeleteTopics", topics=[{"name": name}], timeout_ms=10000)
    s.settle()
    full("the topic is deleted", session, 4)
    full("and once more", session, 5)


def across_connections(s: Stage) -> None:
    """A session belongs to nobody: another connection may go on with it."""
    name = filled(s, batches=1)
    session = ask(s, "open", 0, 0, (name, 0, 0), on="a")
    ask(s, "go on elsewhere", session, 1, on="b")
    s.hang_up("a")
    ask(s, "after the first hung up", session, 2, on="b")


def versions_change(s: Stage) -> None:
    name = filled(s, batches=1)
    session = ask(s, "open by name", 0, 0, (name, 0, 0), version=12)
    ask(s, "go on by id", session, 1, version=13)
    ask(s, "go on by name", session, 1, version=12)
    session = ask(s, "open by id", 0, 0, (name, 0, 0), version=13)
    ask(s, "go on by name", session, 1, version=12)
    ask(s, "close by name", session, -1, version=12)


def empty(s: Stage) -> None:
    session = ask(s, "an empty full fetch", 0, 0)
    if session:
        ask(s, "go on", session, 1)


def deleted_topic(s: Stage) -> None:
    name, other = filled(s, batches=1), filled(s, "other", 1)
    session = ask(s, "open", 0, 0, (name, 0, 0), (other, 0, 0))
    s.send("DeleteTopics", topics=[{"name": name}], timeout_ms=10000)
    s.settle()
    ask(s, "after one was deleted", session, 1, (other, 0, 2))
    ask(s, "again", session, 2)


def order_of_partitions(s: Stage) -> None:
    """With room for one batch the partitions take turns."""
    name = s.create("three", 3)
    for partition in range(3):
        s.append(name, batch("a"), batch("b"), partition=partition)
    session = ask(s, "open with little room", 0, 0, *((name, p, 0) for p in range(3)), max_bytes=1)
    for turn in range(1, 5):
        ask(s, f"turn {turn}", session, turn, max_bytes=1)
