"""Fetch without sessions: every version, limits, waits, epochs, topic ids, isolation."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from ..batches import batch
from ..stage import Stage, fetch, produce


def filled(s: Stage, short: str = "t", batches: int = 5, **configs: str) -> str:
    """A topic of batches of two records each: offsets 0-1, 2-3, ..."""
    name = s.create(short, **configs)
    s.append(name, *(batch(f"{i}a", f"{i}b") for i in range(batches)))
    return name


def offsets(answer: dict[str, Any]) -> Any:
    """Per partition: the error and which batches came."""
    return [
        [
            [
                p.get("partition_index", 0),
                p["error_code"],
                [[b["base_offset"], b["last_offset"]] for b in p.get("records", [])],
            ]
            for p in topic["partitions"]
        ]
        for topic in answer.get("responses", [])
    ]


def shares(answer: dict[str, Any]) -> Any:
    """What came from how many partitions, without saying which: their order is the broker's own affair."""
    return sorted(batches for _, _, batches in offsets(answer)[0])


def versions(s: Stage) -> None:
    name = filled(s, batches=2)
    raw = s.topic_id(name)

    def by_id(offset: int) -> Callable[[int], dict[str, Any]]:
        return lambda v: fetch(name, offset, topic_id=raw if v >= 13 else None)

    s.ask("from the start", "Fetch", "all", make=by_id(0))
    s.ask("within a batch", "Fetch", "all", make=by_id(3))
    s.ask("at the end", "Fetch", "all", make=by_id(4))
    s.ask("past the end", "Fetch", "all", make=by_id(5))
    s.ask("far past the end", "Fetch", [4, 12], **fetch(name, 1 << 40))
    s.ask("below 0", "Fetch", [4, 12], **fetch(name, -1))
    s.ask("far below 0", "Fetch", [4, 12], **fetch(name, -1000))
    s.ask("read committed", "Fetch", "all", make=by_id(0), isolation_level=1)
    s.ask("read committed, past the end", "Fetch", "all", make=by_id(9), isolation_level=1)
    s.ask("unknown isolation level", "Fetch", [4, 12], **fetch(name), isolation_level=7)


def places(s: Stage) -> None:
    name = filled(s)
    raw = s.topic_id(name)
    s.ask("unknown topic", "Fetch", "4-12", **fetch(s.name("nope")))
    s.ask("unknown partition", "Fetch", "4-12", **fetch(name, 0, 9))
    s.ask("negative partition", "Fetch", [4, 12], **fetch(name, 0, -1))
    s.ask("illegal name", "Fetch", [4, 12], **fetch("a b"))
    s.ask("empty name", "Fetch", [4, 12], **fetch(""))
    s.ask("unknown topic, read committed", "Fetch", [4, 12], **fetch(s.name("nope")), isolation_level=1)
    s.ask("unknown id", "Fetch", "13-", **fetch("", topic_id=uuid.UUID(int=9).bytes))
    s.ask("zero id", "Fetch", "13-", **fetch("", topic_id=bytes(16)))
    s.ask("known id, unknown partition", "Fetch", "13-", **fetch("", 0, 9, topic_id=raw))
    known = fetch("", topic_id=raw)
    known["topics"] += fetch("", topic_id=uuid.UUID(int=9).bytes)["topics"]
    s.ask("a known and an unknown id", "Fetch", "13-", **known, keep=offsets)
    s.ask("nothing", "Fetch", [4, 12, 16], max_wait_ms=0, min_bytes=0, topics=[])
    s.ask("nothing, with a wait", "Fetch", [4, 12, 16], max_wait_ms=200, min_bytes=1, topics=[])
    s.ask("topic without partitions", "Fetch", [4, 12], max_wait_ms=0, topics=[{"topic": name, "partitions": []}])
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000}
    s.ask(
        "partition twice",
        "Fetch",
        [4, 12],
        max_wait_ms=0,
        topics=[{"topic": name, "partitions": [part, part | {"fetch_offset": 8}]}],
    )
    s.ask(
        "topic twice",
        "Fetch",
        [4, 12],
        max_wait_ms=0,
        topics=[{"topic": name, "partitions": [part]}, {"topic": name, "partitions": [part | {"fetch_offset": 8}]}],
    )


def limits(s: Stage) -> None:
    """At least one batch comes when the first partition with records has only a bigger one than the limit."""
    one = filled(s, "one")
    size = len(batch("0a", "0b"))
    for bytes_max in (0, 1, size - 1, size, size + 1, 2 * size - 1, 2 * size, -1):
        s.ask(
            f"partition limit {bytes_max - size:+d}",
            "Fetch",
            12,
            **fetch(one, partition_max_bytes=bytes_max),
            keep=offsets,
        )
        s.ask(f"limit {bytes_max - size:+d}", "Fetch", 12, **fetch(one) | {"max_bytes": bytes_max}, keep=offsets)
        s.ask(
            f"limit {bytes_max - size:+d}, within a batch",
            "Fetch",
            12,
            **fetch(one, 3) | {"max_bytes": bytes_max},
            keep=offsets,
        )
    two = s.create("two", 3)
    for partition in (0, 1, 2):
        s.append(two, *(batch(f"{i}a", f"{i}b") for i in range(3)), partition=partition)

    def both(order: tuple[int, ...], part_max: int, whole_max: int, start: int = 0) -> dict[str, Any]:
        parts = [{"partition": p, "fetch_offset": start, "partition_max_bytes": part_max} for p in order]
        return {"max_wait_ms": 0, "max_bytes": whole_max, "topics": [{"topic": two, "partitions": parts}]}

    s.ask("three partitions", "Fetch", 12, **both((0, 1, 2), 1000, 10000), keep=shares)
    s.ask("three partitions, room for one batch", "Fetch", 12, **both((0, 1, 2), 1000, size), keep=shares)
    s.ask("three partitions, room for four", "Fetch", 12, **both((0, 1, 2), 1000, 4 * size), keep=shares)
    s.ask("three partitions, room for less than one", "Fetch", 12, **both((2, 0, 1), 1000, 5), keep=shares)
    s.ask("three partitions, small partition limit", "Fetch", 12, **both((0, 1, 2), 5, 10000), keep=shares)
    s.ask(
        "three partitions, small partition limit, other order", "Fetch", 12, **both((2, 1, 0), size, 10000), keep=shares
    )
    s.ask("three partitions at their end", "Fetch", 12, **both((0, 1, 2), 1000, 10000, 6), keep=shares)


def waits(s: Stage) -> None:
    """A fetch waits for min_bytes; an append, an error or the time ends it."""
    name = s.create()
    size = len(batch("x"))
    waiting = {"max_wait_ms": 20000, "min_bytes": 1}
    held = s.post("Fetch", 12, on="b", **fetch(name) | waiting)
    s.append(name, batch("x"))
    s.take("an append ends the wait", held, keep=offsets)
    held = s.post("Fetch", 12, on="b", **fetch(name, 1) | waiting | {"min_bytes": 2 * size})
    s.append(name, batch("x"))
    s.append(name, batch("x"))
    s.take("two appends reach min_bytes", held, keep=offsets)
    s.ask("time ends the wait", "Fetch", 12, **fetch(name, 3) | {"max_wait_ms": 100, "min_bytes": 1}, keep=offsets)
    s.ask(
        "time ends the wait, little there",
        "Fetch",
        12,
        **fetch(name, 0) | {"max_wait_ms": 100, "min_bytes": 100000},
        keep=offsets,
    )
    s.ask("an error does not wait", "Fetch", 12, **fetch(name, 99) | waiting, keep=offsets)
    s.ask("an unknown topic does not wait", "Fetch", 12, **fetch(s.name("nope")) | waiting, keep=offsets)
    s.ask("min_bytes 0 does not wait", "Fetch", 12, **fetch(name, 3) | waiting | {"min_bytes": 0}, keep=offsets)
    s.ask("negative min_bytes does not wait", "Fetch", 12, **fetch(name, 3) | waiting | {"min_bytes": -1}, keep=offsets)
    s.ask("negative max_wait_ms", "Fetch", 12, **fetch(name, 3) | {"max_wait_ms": -1, "min_bytes": 1}, keep=offsets)
    held = s.post("Fetch", 12, on="b", **fetch(name, 3) | waiting)
    s.send("DeleteTopics", topics=[{"name": name}], timeout_ms=10000)
    s.take("deleting the topic ends the wait", held, keep=offsets)


def epochs(s: Stage) -> None:
    name = filled(s)
    for epoch in (-1, 0, 1, 7, -2):
        s.ask(
            f"current leader epoch {epoch}", "Fetch", [9, 12], **fetch(name, current_leader_epoch=epoch), keep=offsets
        )
    s.ask(
        "the leader stands in the answer",
        "Fetch",
        [12, 16],
        make=lambda v: fetch(name, current_leader_epoch=7, topic_id=s.topic_id(name) if v > 12 else None),
    )
    for epoch, offset in ((-1, 4), (0, 4), (0, 10), (1, 4), (5, 10)):
        s.ask(f"last fetched epoch {epoch} at {offset}", "Fetch", 12, **fetch(name, offset, last_fetched_epoch=epoch))


def replicas(s: Stage) -> None:
    name = filled(s)
    s.ask("replica -2, the debugger", "Fetch", [4, 12], **fetch(name), replica_id=-2, keep=offsets)
    s.ask("a replica nobody knows", "Fetch", [4, 12], **fetch(name), replica_id=99, keep=offsets)
    s.ask("rack", "Fetch", 12, **fetch(name), rack_id="r1", keep=offsets)
    s.ask("wrong cluster id", "Fetch", 12, **fetch(name), cluster_id="not-this-cluster", keep=offsets)


def segments(s: Stage) -> None:
    """An answer does not reach across a segment's end."""
    name = s.create("seg", segment_bytes="1048576", retention_ms="-1")  # its records are of 2023
    s.append(name, *(batch("x" * 400_000) for _ in range(6)))
    for offset in (0, 1, 2, 3, 5):
        s.ask(f"from {offset}", "Fetch", 12, **fetch(name, offset, partition_max_bytes=10 << 20), keep=offsets)


def after_produce_pipelined(s: Stage) -> None:
    """A fetch behind a produce on the same connection sees it."""
    name = s.create()
    put = s.post("Produce", 9, **produce(name, batch("x")))
    got = s.post("Fetch", 12, **fetch(name))
    s.take("put", put)
    s.take("got", got, keep=offsets)
