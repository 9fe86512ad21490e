"""What the crash tools tell their clients (tools/recorded_clients.py, tools/crash_transactions.py)."""

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from ottla.testing import EmbeddedBroker
from tests.harness.topics import every_record
from tools import crash_transactions, recorded_clients
from tools.crash_transactions import SOURCE, TARGET, Loop, new_producer
from tools.history import History
from tools.recorded_clients import Member, NoStartOffsetError, begin_by_number


class Assigned:
    """A consumer that remembers from which offsets on it reads."""

    begins: tuple[int, ...] = ()

    def committed(self, partitions: list[Any], _: float) -> list[Any]:
        return partitions

    def assign(self, partitions: list[Any]) -> None:
        self.begins = tuple(each.offset for each in partitions)

    def incremental_assign(self, partitions: list[Any]) -> None:
        self.begins += tuple(each.offset for each in partitions)


class Told(Assigned):
    """A consumer that is given a partition at its first poll, and ends its member's work at the second."""

    closed = False

    def __init__(self, member: Member, code: int) -> None:
        self.member, self.error = member, KafkaError(code) if code else None

    def subscribe(self, _: list[str], *, on_assign: Any, **__: Any) -> None:
        self.on_assign = on_assign

    def committed(self, partitions: list[Any], _: float) -> list[Any]:
        return [committed(-1001, self.error) for _ in partitions]

    def poll(self, _: float) -> None:
        if self.begins:
            self.member.done.set()
        else:
            self.on_assign(self, [TopicPartition("t", 0)])

    def close(self) -> None:
        self.closed = True


def committed(offset: int, error: KafkaError | None = None) -> Any:
    return SimpleNamespace(offset=offset, error=error)


def test_a_loop_begins_by_number_where_nothing_is_committed() -> None:
    consumer: Any = Assigned()
    begin_by_number(consumer, [committed(-1001), committed(40)])
    assert consumer.begins == (0, 40)
    begin_by_number(consumer, [committed(-1001)], incremental=True)
    assert consumer.begins == (0, 40, 0)


def test_a_loop_begins_nowhere_where_nobody_can_say_what_is_committed() -> None:
    consumer: Any = Assigned()
    with pytest.raises(NoStartOffsetError):
        begin_by_number(consumer, [committed(-1001, KafkaError(KafkaError.NOT_COORDINATOR))])
    assert not consumer.begins


def test_a_member_that_nobody_could_tell_where_to_begin_is_followed_by_a_new_one() -> None:
    lives: list[Any] = []

    class Unlucky(Member):
        def consumer(self, group: str, **settings: Any) -> Any:
            lives.append(Told(self, KafkaError.NOT_COORDINATOR if not lives else KafkaError.NO_ERROR))
            return lives[-1]

    member = Unlucky("m", "", History(), "g", "consumer", "t")
    member.work()
    assert [(each.begins, each.closed) for each in lives] == [((), True), ((0,), True)]


def test_a_loop_asks_again_if_its_coordinator_does_not_report_where_to_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    with EmbeddedBroker() as broker:
        source = Producer({"bootstrap.servers": broker.bootstrap_servers})
        source.produce(SOURCE, b"7")
        source.flush()
        loop, producer = Loop(broker.bootstrap_servers, 0), new_producer(broker.bootstrap_servers, "loop-0")
        monkeypatch.setattr(recorded_clients, "SOON_S", 0.0)  # the answer comes too late
        loop.step(producer)
        while loop.consumer is not None:
            loop.step(producer)
        monkeypatch.undo()
        while not loop.registered:
            loop.step(producer)
        loop.close()
        assert [each.value() for each in every_record(broker.bootstrap_servers, TARGET, "read_committed")] == [b"7"]


def test_a_producer_asks_again_for_its_id_after_a_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [KafkaError(KafkaError._TIMED_OUT, retriable=True), KafkaError(KafkaError._FENCED)]

    class Late:
        def __init__(self, _: dict[str, Any]) -> None: ...

        def init_transactions(self, _: float) -> None:
            raise KafkaException(answers.pop(0))

    monkeypatch.setattr(crash_transactions, "Producer", Late)
    with pytest.raises(KafkaException, match="_FENCED"):
        new_producer("", "writer-0")
    assert not answers
