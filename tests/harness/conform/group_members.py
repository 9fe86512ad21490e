"""Members of consumer groups from three client libraries, each in a thread or process of its own, seen alike.

A member reads until it is told to stop and keeps what it read and which partitions it owned when.
"""

import asyncio
import contextlib
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

SESSION_MS = 6_000
HEARTBEAT_MS = 300
METADATA_MS = 2_000
"""kafka-python 3.0.12 loses a race with its own refresh of metadata now and then: it is idle until the next one."""
LOST = ("ILLEGAL_GENERATION", "UNKNOWN_MEMBER_ID", "REBALANCE_IN_PROGRESS", "FENCED_INSTANCE_ID")
"""What a commit may say to a member whose partitions are not its own any more."""


class Member:
    """One consumer in a thread. `owned` is what it has now; `read` all it read and committed, as
    (partition, offset, value): what it could not commit any more is somebody else's."""

    def __init__(self, bootstrap: str, group: str, topic: str, **options: Any) -> None:
        self.bootstrap = bootstrap
        self.group = group
        self.topic = topic
        self.options = options
        self.owned: frozenset[int] = frozenset()
        self.history: list[frozenset[int]] = []
        self.read: list[tuple[int, int, bytes]] = []
        self.failure: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._main, daemon=True)
        self._thread.start()
        _tried.append(self)

    def tell_to_stop(self) -> None:
        """Let it leave, and do not wait for that."""
        self._stop.set()

    def stop(self) -> None:
        """Leave the group."""
        self._stop.set()
        self._thread.join(60)
        assert not self._thread.is_alive(), "the consumer does not close"
        if self.failure is not None:
            raise self.failure

    def own(self, partitions: Any) -> None:
        now = frozenset(partitions)
        if now != self.owned:
            self.owned = now
            self.history.append(now)

    def take(self, batches: Any) -> None:
        for at, records in batches.items():
            self.read += [(at.partition, record.offset, record.value) for record in records]

    def _main(self) -> None:
        try:
            self.consume()
        except BaseException as failure:
            self.failure = failure
        finally:
            self.owned = frozenset()

    def consume(self) -> None:
        raise NotImplementedError


class Librdkafka(Member):
    """`strategy`: range, roundrobin or cooperative-sticky."""

    def consume(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": self.group,
                "auto.offset.reset": "earliest",
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": HEARTBEAT_MS,
                "partition.assignment.strategy": self.options.get("strategy", "range"),
                "enable.auto.commit": False,
                "log_level": 0,
                **({"group.instance.id": self.options["instance"]} if "instance" in self.options else {}),
            }
        )
        cooperative = "cooperative" in self.options.get("strategy", "range")

        def assigned(_: Consumer, partitions: Any) -> None:
            got = {each.partition for each in partitions}
            if cooperative:
                consumer.incremental_assign(partitions)
                self.own(self.owned | got)
            else:
                consumer.assign(partitions)
                self.own(got)

        def revoked(_: Consumer, partitions: Any) -> None:
            gone = {each.partition for each in partitions}
            if cooperative:
                consumer.incremental_unassign(partitions)
                self.own(self.owned - gone)
            else:
                consumer.unassign()
                self.own(())

        consumer.subscribe([self.topic], on_assign=assigned, on_revoke=revoked, on_lost=revoked)
        while not self._stop.is_set():
            messages = consumer.consume(100, 0.1)
            for failed in (message.error() for message in messages if message.error() is not None):
                raise KafkaException(failed)
            got: list[Any] = [(message.partition(), message.offset(), message.value()) for message in messages]
            offsets = [
                TopicPartition(self.topic, partition, max(at for p, at, _ in got if p == partition) + 1)
                for partition in {partition for partition, _, _ in got}
            ]
            try:
                if offsets:
                    consumer.commit(offsets=offsets, asynchronous=False)
                self.read += got
            except KafkaException as lost:
                if lost.args[0].name() not in LOST:
                    raise
        consumer.close()


class KafkaPython(Member):
    def consume(self) -> None:
        import kafka
        from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
        from kafka.coordinator.assignors.range import RangePartitionAssignor
        from kafka.errors import CommitFailedError, KafkaConnectionError

        member = self

        class Listener(kafka.ConsumerRebalanceListener):
            def on_partitions_assigned(self, assigned: Any) -> None: ...

            def on_partitions_revoked(self, revoked: Any) -> None: ...

        cooperative = "cooperative" in self.options.get("strategy", "range")
        consumer = kafka.KafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=self.group,
            auto_offset_reset="earliest",
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            metadata_max_age_ms=METADATA_MS,
            enable_auto_commit=False,
            partition_assignment_strategy=[CooperativeStickyAssignor if cooperative else RangePartitionAssignor],
        )
        # Under load kafka-python 3.0.12 assigns before it has heard of the topic, and may then read nothing for ever.
        while not self._stop.wait(0.1):
            with contextlib.suppress(KafkaConnectionError):  # the node that it asks is away, and it asks no other one
                if consumer.partitions_for_topic(self.topic):
                    break
        consumer.subscribe([self.topic], listener=Listener())
        while not self._stop.is_set():
            batches = consumer.poll(100)
            member.own(each.partition for each in consumer.assignment())
            try:
                if batches:
                    consumer.commit()
                self.take(batches)
            except CommitFailedError:
                continue
        consumer.close()


class Aiokafka(Member):
    def consume(self) -> None:
        asyncio.run(self._consume())

    async def _consume(self) -> None:
        import aiokafka
        from aiokafka.coordinator.assignors.range import RangePartitionAssignor

        consumer = aiokafka.AIOKafkaConsumer(
            self.topic,
            bootstrap_servers=self.bootstrap,
            group_id=self.group,
            auto_offset_reset="earliest",
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            enable_auto_commit=False,
            partition_assignment_strategy=[RangePartitionAssignor],
        )
        await consumer.start()
        try:
            while not self._stop.is_set():
                batches = await consumer.getmany(timeout_ms=100)
                self.own(each.partition for each in consumer.assignment())
                try:
                    if batches:
                        await consumer.commit()
                    self.take(batches)
                except aiokafka.errors.CommitFailedError:
                    continue
        finally:
            # aiokafka 0.14 lets its own cancellation out, where it rests after a fetch that failed.
            with contextlib.suppress(asyncio.CancelledError):
                await consumer.stop()


class Apart(Member):
    """A member in a process of its own, which can be killed."""

    def __init__(self, client: type[Member], bootstrap: str, group: str, topic: str) -> None:
        command = [sys.executable, __file__, client.__name__, bootstrap, group, topic]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        super().__init__(bootstrap, group, topic)

    def kill(self) -> None:
        """Vanish without leaving: the coordinator has to notice."""
        self._process.kill()
        self.stop()

    def stop(self) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        super().stop()
        self._process.wait()

    def consume(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            what, *words = line.split()
            if what == "owns":
                self.own(map(int, words))
            else:
                self.read.append((int(words[0]), int(words[1]), words[2].encode()))


def _in_a_process() -> None:
    """Say on standard output what this member owns and reads, until standard input ends."""
    name, bootstrap, group, topic = sys.argv[1:]
    member: Member = globals()[name](bootstrap, group, topic)
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    said = 0
    owned: frozenset[int] = frozenset()
    while not ended.wait(0.02) and member.failure is None:
        if member.owned != owned:
            owned = member.owned
            print("owns", *sorted(owned), flush=True)
        for partition, offset, value in member.read[said:]:
            said += 1
            print("read", partition, offset, value.decode(), flush=True)
    member.stop()


def create(bootstrap: str, topic: str, partitions: int) -> None:
    from tests.harness.conform.three_nodes import (
        wait_until_known,  # this module runs as a script too, which finds no tests
    )

    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
        future.result()
    wait_until_known(bootstrap, topic)


def produce(bootstrap: str, topic: str, partitions: int, values: Any) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for value in values:
        producer.produce(topic, str(value).encode(), partition=value % partitions)
    assert producer.flush(30) == 0


_tried: list[Member] = []
_patience_s = 60.0


@contextlib.contextmanager
def trying_for(seconds: float) -> Iterator[list[Member]]:
    """Have `until` wait no longer than this; the members that were made meanwhile."""
    global _patience_s
    before, _patience_s = _patience_s, seconds
    _tried.clear()
    try:
        yield _tried
    finally:
        _patience_s = before


def until(what: Callable[[], bool], members: Any = ()) -> None:
    """Wait for it; a member that failed ends the wait."""
    waited = threading.Event()
    for _ in range(int(_patience_s * 20)):
        for member in members:
            if member.failure is not None:
                raise member.failure
        if what():
            return
        waited.wait(0.05)
    raise AssertionError(f"it did not come true: {[(type(m).__name__, sorted(m.owned)) for m in members]}")


if __name__ == "__main__":
    _in_a_process()
