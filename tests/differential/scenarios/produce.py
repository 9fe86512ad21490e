"""Produce: every version, compressions, acks, bad batches, limits, timestamps."""

from __future__ import annotations

import uuid
from typing import Any

from ..batches import CODECS, T0, batch, message_set, record
from ..stage import Stage, fetch, produce


def versions(s: Stage) -> None:
    """One good batch in each version; the offset counts on."""
    name = s.create()
    raw = s.topic_id(name)
    s.ask("acks all", "Produce", "3-12", **produce(name, batch("x", "y")))
    s.ask("acks all", "Produce", 13, **produce(name, batch("x", "y"), topic_id=raw))
    s.ask("acks 1", "Produce", [3, 9, 12], **produce(name, batch("x"), acks=1))
    s.silent("acks 0", "Produce", 3, **produce(name, batch("x"), acks=0))
    s.silent("acks 0", "Produce", 12, **produce(name, batch("x"), acks=0))
    s.ask("acks 2", "Produce", [3, 9, 12], **produce(name, batch("x"), acks=2))
    s.ask("acks -2", "Produce", [3, 9, 12], **produce(name, batch("x"), acks=-2))
    s.ask("what was kept", "Fetch", 12, **fetch(name))


def compressions(s: Stage) -> None:
    name = s.create()
    for codec in CODECS:
        s.ask(f"{codec}", "Produce", 9, **produce(name, batch("one " * 20, "two " * 20, codec=codec)))
    s.ask("zstd in version 6", "Produce", 6, **produce(name, batch("x", codec="zstd")))
    s.ask("what was kept", "Fetch", 12, **fetch(name))
    s.ask("what a version without zstd gets", "Fetch", 9, **fetch(name))
    for wanted in ("gzip", "uncompressed", "lz4", "producer"):
        name = s.create(f"to-{wanted}", compression_type=wanted)
        for codec in ("none", "gzip", "zstd"):
            s.ask(f"{codec} into {wanted}", "Produce", 9, **produce(name, batch("one " * 20, "two " * 20, codec=codec)))
        s.ask(f"attributes kept in {wanted}", "Fetch", 12, **fetch(name), keep=attributes)


def attributes(answer: dict[str, Any]) -> Any:
    """Only what each batch says of itself and how many records are in it."""
    (part,) = answer["responses"][0]["partitions"]
    return [
        [
            b["attributes"],
            b["base_offset"],
            b["last_offset"],
            b["records"] if isinstance(b["records"], str) else len(b["records"]),
        ]
        for b in part.get("records", [])
    ]


def unknown_places(s: Stage) -> None:
    name, good = s.create(), batch("x")
    s.ask("unknown topic", "Produce", "3-12", **produce(s.name("nope"), good))
    s.ask("unknown partition", "Produce", "3-12", **produce(name, good, 7))
    s.ask("negative partition", "Produce", [3, 12], **produce(name, good, -1))
    s.ask("illegal topic name", "Produce", [3, 12], **produce("a b", good))
    s.ask("empty topic name", "Produce", [3, 12], **produce("", good))
    s.ask("unknown topic id", "Produce", 13, **produce(name, good, topic_id=uuid.UUID(int=5).bytes))
    s.ask("zero topic id", "Produce", 13, **produce(name, good, topic_id=bytes(16)))
    s.ask("unknown partition by id", "Produce", 13, **produce(name, good, 7, topic_id=s.topic_id(name)))
    s.silent("unknown topic, acks 0", "Produce", 9, **produce(s.name("nope"), good, acks=0))
    s.silent("bad CRC, acks 0", "Produce", 9, **produce(name, batch("x", crc=1), acks=0))
    s.ask("no topics", "Produce", [3, 9, 13], acks=-1, timeout_ms=1000, topic_data=[])
    s.ask(
        "no partitions", "Produce", [3, 9], acks=-1, timeout_ms=1000, topic_data=[{"name": name, "partition_data": []}]
    )


def several_places(s: Stage) -> None:
    one, two = s.create("one"), s.create("two", 2)
    good, bad = batch("x"), batch("x", crc=5)

    def parts(*entries: tuple[str, int, bytes]) -> dict[str, Any]:
        topics: dict[str, list[Any]] = {}
        for name, index, data in entries:
            topics.setdefault(name, []).append({"index": index, "records": data})
        return {
            "acks": -1,
            "timeout_ms": 5000,
            "topic_data": [{"name": n, "partition_data": p} for n, p in topics.items()],
        }

    s.ask("three partitions", "Produce", [3, 9, 12], **parts((one, 0, good), (two, 0, good), (two, 1, good)))
    s.ask(
        "one good, one corrupt, one unknown",
        "Produce",
        [3, 9, 12],
        **parts((one, 0, good), (two, 0, bad), (s.name("no"), 1, good)),
    )
    s.ask(
        "the same partition twice in one topic",
        "Produce",
        [3, 9, 12],
        **parts((one, 0, good), (one, 0, batch("x", "y"))),
    )
    twice = {"name": one, "partition_data": [{"index": 0, "records": good}]}
    s.ask("the same topic twice", "Produce", [3, 9, 12], acks=-1, timeout_ms=5000, topic_data=[twice, twice])
    s.ask(
        "ends",
        "ListOffsets",
        7,
        replica_id=-1,
        topics=[{"name": n, "partitions": [{"partition_index": 0, "timestamp": -1}]} for n in (one, two)],
    )


def without_offset(answer: dict[str, Any]) -> Any:
    """Of one partition's answer everything but where an accepted batch went, which depends on the steps before."""
    (part,) = answer["responses"][0]["partition_responses"]
    if part["error_code"] == "NONE":
        part.pop("base_offset", None)
    return part


def bad_batches(s: Stage) -> None:
    name = s.create()
    good = batch("x", "y")

    def bad(what: str, data: bytes | None, *, versions: Any = (3, 8, 12)) -> None:
        s.ask(what, "Produce", versions, **produce(name, data), keep=without_offset)

    bad("empty records", b"")
    bad("bad CRC", batch("x", crc=1))
    bad("two batches", good + good)
    bad("a few bytes after a good batch", good + b"\x00\x01\x02")
    bad("20 zero bytes after a good batch", good + bytes(20))
    bad("half a batch after a good batch", good + good[:-3])
    bad("half a batch", good[:-3])
    bad("only the head", good[:12])
    bad("61 bytes of a longer batch", good[:61])
    bad("zeros", bytes(80))
    bad("garbage", b"garbage" * 12)
    bad("length too small", batch("x", length_off_by=-1))
    bad("length too large", batch("x", length_off_by=1))
    bad("length negative", batch("x", length_off_by=-1000))
    bad("magic 0", message_set("x", magic=0))
    bad("magic 1", message_set("x", "y", magic=1))
    bad("magic 3", batch("x", magic=3))
    bad("count too small", batch("x", "y", count=1))
    bad("count too large", batch("x", "y", count=3))
    bad("count zero", batch("x", "y", count=0))
    bad("count negative", batch("x", "y", count=-1))
    bad("no records at all", batch(records=[]))
    bad("last offset delta too small", batch("x", "y", last_offset_delta=0))
    bad("last offset delta too large", batch("x", "y", last_offset_delta=5))
    bad("last offset delta negative", batch("x", "y", last_offset_delta=-2))
    bad("last offset delta and count both too large", batch("x", "y", last_offset_delta=2, count=3))
    bad("unknown codec 5", batch("x", attributes=5))
    bad("unknown codec 7", batch("x", attributes=7))
    bad("unused attribute bits", batch("x", attributes=0x7F00))
    bad("control batch", batch(records=[record(0, b"\x00\x00\x00\x00\x00\x00", b"\x00\x00\x00\x01")], attributes=0x20))
    bad(
        "control batch of a producer",
        batch(records=[record(0, b"\x00" * 6, b"\x00\x00\x00\x01")], attributes=0x30, producer=(7, 0, -1)),
    )
    bad("transactional batch", batch("x", attributes=0x10, producer=(7, 0, 0)))
    bad("log append time bit set by the client", batch("x", attributes=0x08))
    bad("base offset not 0", batch("x", "y", base_offset=100))
    bad("leader epoch set by the client", batch("x", leader_epoch=9))
    bad("offsets of records not from 0", batch(records=[record(1, "x"), record(2, "y")]))
    bad("offsets of records not ascending", batch(records=[record(1, "x"), record(0, "y")]))
    bad("compressed, offsets of records not from 0", batch(records=[record(1, "x"), record(2, "y")], codec="gzip"))
    bad("compressed, count too large", batch("x", "y", codec="gzip", count=3, last_offset_delta=2))
    bad("compressed, count too small", batch("x", "y", codec="gzip", count=1, last_offset_delta=0))
    bad("broken gzip", batch("x", codec="gzip", payload=b"\x1f\x8bnot gzip at all"))
    bad("broken snappy", batch("x", codec="snappy", payload=b"\xff\xff\xff\xff"))
    bad("broken lz4", batch("x", codec="lz4", payload=b"not lz4"))
    bad("lz4 of linked blocks", batch("x" * 100, codec="lz4-linked"))
    bad("broken zstd", batch("x", codec="zstd", payload=b"not zstd"))
    bad("record longer than the batch", batch(records=[b"\xfe\x01abc"]))
    bad("sequence without producer id", batch("x", producer=(-1, -1, 5)))
    bad("producer id without sequence", batch("x", producer=(7, 0, -1)))
    bad("producer id with a negative epoch", batch("x", producer=(7, -1, 0)))


def timestamps(s: Stage) -> None:
    name = s.create()
    s.ask("before 1970", "Produce", 9, **produce(name, batch("x", timestamp=-5)))
    s.ask("timestamp -1", "Produce", 9, **produce(name, batch("x", timestamp=-1)))
    s.ask("far future", "Produce", 9, **produce(name, batch("x", timestamp=T0 * 10)))
    s.ask("max timestamp below base", "Produce", 9, **produce(name, batch("x", max_timestamp=T0 - 9)))
    s.ask("max timestamp above every record", "Produce", 9, **produce(name, batch("x", max_timestamp=T0 + 9)))
    s.ask("what was kept", "Fetch", 12, **fetch(name))
    name = s.create("append", message_timestamp_type="LogAppendTime")
    s.ask("log append time", "Produce", "3-12", **produce(name, batch("x", "y")))
    s.ask("log append time, compressed", "Produce", 12, **produce(name, batch("x", "y", codec="gzip")))
    s.ask("log append time, kept", "Fetch", 12, **fetch(name, partition_max_bytes=80))
    name = s.create("bounds", message_timestamp_before_max_ms="1000", message_timestamp_after_max_ms="1000")
    s.ask("too old", "Produce", [3, 8, 12], **produce(name, batch("x", "y")))
    s.ask("too new", "Produce", [3, 8, 12], **produce(name, batch("x", timestamp=T0 * 10)))
    s.ask("too old, compressed", "Produce", 12, **produce(name, batch("x", "y", codec="gzip")))
    mixed = [record(0, "old"), record(1, "x", timestamp_delta=5), record(2, "y", timestamp_delta=6)]
    s.ask("too old, three records", "Produce", 12, **produce(name, batch(records=mixed, max_timestamp=T0 + 6)))


def limits(s: Stage) -> None:
    name = s.create("small", max_message_bytes="200")
    good = batch("x" * (200 - len(batch(""))), key=b"k")
    s.note("size of the batch at the limit", len(good))
    s.ask("near the limit", "Produce", 9, **produce(name, good))
    s.ask("over the limit", "Produce", [3, 8, 12], **produce(name, batch("x" * 200)))
    s.ask("over before compression, under after", "Produce", 9, **produce(name, batch("x" * 2000, codec="gzip")))
    s.ask("three records, together over", "Produce", 12, **produce(name, batch("x" * 60, "x" * 60, "x" * 60)))


def compacted(s: Stage) -> None:
    name = s.create("c", cleanup_policy="compact")
    keyless = [record(0, "a", "k"), record(1, "b", None), record(2, "c", "k"), record(3, "d", None)]
    s.ask("with keys", "Produce", [3, 12], **produce(name, batch("x", "y")))
    s.ask("one without key", "Produce", [3, 8, 12], **produce(name, batch("x", key=None)))
    s.ask("two of four without key", "Produce", [3, 8, 12], **produce(name, batch(records=keyless)))
    s.ask("two of four without key, compressed", "Produce", 12, **produce(name, batch(records=keyless, codec="gzip")))
    s.ask("tombstone", "Produce", 12, **produce(name, batch(None)))
    s.ask("empty key", "Produce", 12, **produce(name, batch("x", key=b"")))
    s.ask("keyless after all that: end offset", "Fetch", 12, **fetch(name), keep=attributes)


def contents(s: Stage) -> None:
    """Headers, nulls, empty values, keys that are no text come back as they went in."""
    name = s.create()
    rows = [
        record(0, None, None),
        record(1, "", ""),
        record(2, b"\xff\x00", b"\xfe"),
        record(3, "v", "k", [("h", b"1"), ("h", b"2"), ("", None)], timestamp_delta=7),
        record(4, "ü", "é", timestamp_delta=-3),
    ]
    s.ask("odd records", "Produce", 12, **produce(name, batch(records=rows, max_timestamp=T0 + 7)))
    s.ask(
        "odd records, compressed",
        "Produce",
        12,
        **produce(name, batch(records=rows, max_timestamp=T0 + 7, codec="lz4")),
    )
    s.ask("what was kept", "Fetch", 12, **fetch(name))


def transactional_id(s: Stage) -> None:
    name = s.create()
    s.ask(
        "plain batch with a transactional id",
        "Produce",
        [3, 9, 12],
        transactional_id=s.name("tx"),
        **produce(name, batch("x")),
    )


def min_insync(s: Stage) -> None:
    name = s.create("two", min_insync_replicas="2")
    s.ask("acks all", "Produce", [3, 9, 12], **produce(name, batch("x")))
    s.ask("acks 1", "Produce", 12, **produce(name, batch("x"), acks=1))


def internal_topic(s: Stage) -> None:
    s.group()
    s.ask("into __consumer_offsets", "Produce", [3, 12], **produce("__consumer_offsets", batch("x")))
