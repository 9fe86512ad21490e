"""ListOffsets, OffsetForLeaderEpoch, DeleteRecords."""

from __future__ import annotations

from typing import Any

from ..batches import T0, batch, record
from ..stage import Stage, fetch
from .fetch import filled

SPECIAL = {
    "latest": -1,
    "earliest": -2,
    "max timestamp": -3,
    "earliest local": -4,
    "latest tiered": -5,
    "earliest pending upload": -6,
    "-7": -7,
    "-8": -8,
}


def at(name: str, timestamp: int, partition: int = 0, **more: Any) -> dict[str, Any]:
    part = {"partition_index": partition, "timestamp": timestamp} | more
    return {"replica_id": -1, "topics": [{"name": name, "partitions": [part]}], "timeout_ms": 10000}


def special(s: Stage) -> None:
    empty, name = s.create("empty"), filled(s)
    for what, timestamp in SPECIAL.items():
        s.ask(f"{what}, empty", "ListOffsets", "all", **at(empty, timestamp))
        s.ask(what, "ListOffsets", "all", **at(name, timestamp))
    s.ask("latest, read committed", "ListOffsets", "2-", **at(name, -1), isolation_level=1)
    s.ask("unknown isolation level", "ListOffsets", [2, 11], **at(name, -1), isolation_level=9)


def by_time(s: Stage) -> None:
    name = s.create()
    rows = [[T0, T0 + 10, T0 + 5], [T0 + 2, T0 + 2, T0 + 30], [T0 + 20, T0 + 20, T0 + 20]]
    for i, stamps in enumerate(rows):
        made = [record(j, f"{i}{j}", timestamp_delta=t - stamps[0]) for j, t in enumerate(stamps)]
        s.append(
            name,
            batch(records=made, timestamp=stamps[0], max_timestamp=max(stamps), codec="gzip" if i == 1 else "none"),
        )
    for delta in (-1, 0, 1, 2, 5, 6, 10, 11, 20, 25, 30, 31):
        s.ask(f"at {delta}", "ListOffsets", [1, 4, 7, 11], **at(name, T0 + delta))
    s.ask("at 0 ms", "ListOffsets", [1, 11], **at(name, 0))
    s.ask("max timestamp", "ListOffsets", "7-", **at(name, -3))
    name = s.create("append", message_timestamp_type="LogAppendTime")
    s.append(name, batch("a", "b"), batch("c", "d"))
    s.ask("append time, at 0 ms", "ListOffsets", "1-", **at(name, 0))
    s.ask(
        "append time, max timestamp",
        "ListOffsets",
        "7-",
        **at(name, -3),
        keep=lambda a: sorted(a["topics"][0]["partitions"][0]),
    )


def places(s: Stage) -> None:
    name = filled(s)
    s.ask("unknown topic", "ListOffsets", "all", **at(s.name("nope"), -1))
    s.ask("unknown partition", "ListOffsets", "all", **at(name, -1, 9))
    s.ask("negative partition", "ListOffsets", [1, 11], **at(name, -1, -1))
    s.ask("illegal name", "ListOffsets", [1, 11], **at("a b", -1))
    twice = {"partition_index": 0, "timestamp": -1}
    s.ask(
        "partition twice",
        "ListOffsets",
        "all",
        replica_id=-1,
        topics=[{"name": name, "partitions": [twice, twice | {"timestamp": -2}]}],
    )
    s.ask(
        "topic twice",
        "ListOffsets",
        [1, 11],
        replica_id=-1,
        topics=[{"name": name, "partitions": [twice]}, {"name": name, "partitions": [twice | {"timestamp": -2}]}],
    )
    s.ask("nothing", "ListOffsets", "all", replica_id=-1, topics=[])
    s.ask("no partitions", "ListOffsets", [1, 11], replica_id=-1, topics=[{"name": name, "partitions": []}])
    s.ask("replica -2", "ListOffsets", [1, 11], **at(name, -1) | {"replica_id": -2})
    s.ask("unknown replica", "ListOffsets", [1, 11], **at(name, -1) | {"replica_id": 99})
    for epoch in (-1, 0, 1, 9, -2):
        s.ask(f"current leader epoch {epoch}", "ListOffsets", [4, 11], **at(name, -1, current_leader_epoch=epoch))


def leader_epochs(s: Stage) -> None:
    api = "OffsetForLeaderEpoch"
    empty, name = s.create("empty"), filled(s)

    def of(topic: str, epoch: int, current: int = -1, partition: int = 0) -> dict[str, Any]:
        part = {"partition": partition, "current_leader_epoch": current, "leader_epoch": epoch}
        return {"replica_id": -1, "topics": [{"topic": topic, "partitions": [part]}]}

    for epoch in (0, 1, 5, -1, -2):
        s.ask(f"epoch {epoch}", api, "all", **of(name, epoch))
        s.ask(f"epoch {epoch}, empty log", api, "all", **of(empty, epoch))
    for current in (0, 1, 9, -2):
        s.ask(f"current epoch {current}", api, "all", **of(name, 0, current))
    s.ask("unknown topic", api, "all", **of(s.name("nope"), 0))
    s.ask("unknown partition", api, "all", **of(name, 0, partition=9))
    part = {"partition": 0, "leader_epoch": 0}
    s.ask("partition twice", api, 4, replica_id=-1, topics=[{"topic": name, "partitions": [part, part]}])
    s.ask("nothing", api, "all", replica_id=-1, topics=[])
    s.ask("as the debugger", api, "3-", **of(name, 0) | {"replica_id": -2})


def delete_records(s: Stage) -> None:
    api = "DeleteRecords"

    def upto(topic: str, offset: int, partition: int = 0) -> dict[str, Any]:
        return {
            "topics": [{"name": topic, "partitions": [{"partition_index": partition, "offset": offset}]}],
            "timeout_ms": 10000,
        }

    for version in s.versions(api):
        name = filled(s, f"del.v{version}")
        s.ask("up to 3", api, version, **upto(name, 3))
        s.ask("up to 3 again", api, version, **upto(name, 3))
        s.ask("up to 1", api, version, **upto(name, 1))
        s.ask("earliest", "ListOffsets", 7, **at(name, -2))
        s.ask("a fetch below", "Fetch", 12, **fetch(name, 0))
        s.ask(
            "a fetch at the start",
            "Fetch",
            12,
            **fetch(name, 3),
            keep=lambda a: a["responses"][0]["partitions"][0]["records"][0],
        )
        s.ask("past the end", api, version, **upto(name, 11))
        s.ask("below -1", api, version, **upto(name, -2))
        s.ask("up to the high watermark", api, version, **upto(name, -1))
        s.ask("earliest is latest", "ListOffsets", 7, **at(name, -2))
        s.append(name, batch("more"))
        s.ask("by time after all", "ListOffsets", 7, **at(name, 0))
    s.ask("unknown topic", api, "all", **upto(s.name("nope"), 1))
    s.ask("unknown partition", api, "all", **upto(name, 1, 9))
    s.ask("illegal name", api, 2, **upto("a b", 1))
    s.ask("nothing", api, "all", topics=[], timeout_ms=1000)
    entry = {"partition_index": 0, "offset": 0}
    s.ask(
        "partition twice",
        api,
        2,
        topics=[{"name": name, "partitions": [entry, entry | {"offset": -1}]}],
        timeout_ms=1000,
    )
    s.ask("timeout 0", api, 2, **upto(name, -1) | {"timeout_ms": 0})
    compact = filled(s, "compact", 1, cleanup_policy="compact")
    s.ask("compacted topic", api, "all", **upto(compact, 1))
    both = filled(s, "both", 1, cleanup_policy="compact,delete")
    s.ask("compacted and deleted topic", api, "all", **upto(both, 1))
    s.group()
    s.ask("internal topic", api, 2, **upto("__consumer_offsets", 0))
