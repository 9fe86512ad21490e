"""InitProducerId, sequences, duplicates, epochs, DescribeProducers."""

from __future__ import annotations

from ..batches import batch
from ..stage import Stage, fetch, produce


def init_producer_id(s: Stage) -> None:
    s.producer()
    api = "InitProducerId"
    s.ask("no transactional id", api, "all", transactional_id=None, transaction_timeout_ms=60000)
    s.ask("timeout 0", api, "all", transactional_id=None, transaction_timeout_ms=0)
    s.ask("timeout -1", api, "all", transactional_id=None, transaction_timeout_ms=-1)
    s.ask("empty transactional id", api, "all", transactional_id="", transaction_timeout_ms=60000)
    pid, epoch = s.producer()
    s.ask(
        "an id and an epoch given",
        api,
        "3-",
        transactional_id=None,
        transaction_timeout_ms=1,
        producer_id=pid,
        producer_epoch=epoch,
    )
    s.ask(
        "an id without an epoch",
        api,
        "3-",
        transactional_id=None,
        transaction_timeout_ms=1,
        producer_id=pid,
        producer_epoch=-1,
    )
    s.ask(
        "an epoch without an id",
        api,
        "3-",
        transactional_id=None,
        transaction_timeout_ms=1,
        producer_id=-1,
        producer_epoch=3,
    )


def sequences(s: Stage) -> None:
    name, (pid, epoch) = s.create(), s.producer()

    def send(what: str, sequence: int, *values: str, at: int = epoch, versions: object = (3, 12)) -> None:
        for version in versions:  # type: ignore[attr-defined]
            s.ask(what, "Produce", version, **produce(name, batch(*values or ("x",), producer=(pid, at, sequence))))

    one = (12,)
    send("first", 0, "a", "b", versions=one)
    send("next", 2, "c", versions=one)
    send("duplicate of the last", 2, "c")
    send("duplicate of the one before", 0, "a", "b")
    send("same sequence, more records", 2, "c", "d")
    send("a part of an old batch", 1, "b")
    send("gap", 4)
    send("far back", -2147483648)
    send("next of four", 3, versions=one)
    send("next", 4, versions=one)
    send("next", 5, versions=one)
    send("next", 6, versions=one)
    send("fifth-last again", 2, versions=one)
    send("sixth-last again", 0, "a", "b", versions=one)
    send("next epoch not from 0", 7, at=epoch + 1, versions=one)
    send("next epoch from 0", 0, at=epoch + 1, versions=one)
    send("old epoch", 7, versions=(3, 12))
    send("duplicate in the new epoch", 0, at=epoch + 1, versions=one)
    send("epoch jumps", 0, at=epoch + 9, versions=one)
    s.ask("what was kept", "Fetch", 12, **fetch(name))
    s.ask("producers", "DescribeProducers", topics=[{"name": name, "partition_indexes": [0]}])


def unknown_producer(s: Stage) -> None:
    name = s.create()
    s.names.learn_number("producer_id", 999_999)
    s.ask("starts anywhere", "Produce", 12, **produce(name, batch("x", producer=(999_999, 3, 70))))
    s.ask("goes on", "Produce", 12, **produce(name, batch("x", producer=(999_999, 3, 71))))
    s.ask("gap", "Produce", 12, **produce(name, batch("x", producer=(999_999, 3, 73))))
    s.ask("sequence wraps at its end", "Produce", 12, **produce(name, batch("x", producer=(999_998, 0, 2147483647))))
    s.ask("and goes on at 0", "Produce", 12, **produce(name, batch("x", producer=(999_998, 0, 0))))
    s.ask(
        "two records across the end", "Produce", 12, **produce(name, batch("x", "y", producer=(999_997, 0, 2147483647)))
    )
    s.ask("and goes on at 1", "Produce", 12, **produce(name, batch("x", producer=(999_997, 0, 1))))


def append_time_duplicates(s: Stage) -> None:
    """A duplicate's log_append_time is its batch's own, even on a topic with create time."""
    name, (pid, epoch) = s.create(), s.producer()
    s.ask("first", "Produce", "3-12", **produce(name, batch("x", producer=(pid, epoch, 0))))
    name = s.create("append", message_timestamp_type="LogAppendTime")
    s.ask("first, append time", "Produce", 9, **produce(name, batch("x", producer=(pid, epoch, 0))))
    s.ask("duplicate, append time", "Produce", 9, **produce(name, batch("x", producer=(pid, epoch, 0))))


def partitions_are_apart(s: Stage) -> None:
    name, (pid, epoch) = s.create("t", 2), s.producer()
    for partition in (0, 1):
        s.ask(f"first in {partition}", "Produce", 12, **produce(name, batch("x", producer=(pid, epoch, 0)), partition))
    s.ask("next in 0", "Produce", 12, **produce(name, batch("x", producer=(pid, epoch, 1)), 0))
    s.ask("gap in 1", "Produce", 12, **produce(name, batch("x", producer=(pid, epoch, 2)), 1))


def describe_producers(s: Stage) -> None:
    api = "DescribeProducers"
    name, (pid, epoch) = s.create("t", 2), s.producer()
    s.ask("nobody yet", api, topics=[{"name": name, "partition_indexes": [0, 1]}])
    s.append(name, batch("x", "y", producer=(pid, epoch, 0)))
    s.append(name, batch("plain"), partition=1)
    s.ask("one", api, topics=[{"name": name, "partition_indexes": [0, 1]}])
    s.ask("unknown partition", api, topics=[{"name": name, "partition_indexes": [0, 7, -1]}])
    s.ask("unknown topic", api, topics=[{"name": s.name("nope"), "partition_indexes": [0]}])
    s.ask("illegal topic", api, topics=[{"name": "a b", "partition_indexes": [0]}])
    s.ask("no partitions", api, topics=[{"name": name, "partition_indexes": []}])
    s.ask("partition twice", api, topics=[{"name": name, "partition_indexes": [0, 0]}])
    s.ask("no topics", api, topics=[])
