"""What the loops of the crash tools tell their clients (tools/crash_transactions.py)."""

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from tools.crash_transactions import begin_by_number


class Assigned:
    """A consumer that remembers from which offsets on it reads."""

    begins: tuple[int, ...] = ()

    def committed(self, partitions: list[Any], _: float) -> list[Any]:
        return partitions

    def assign(self, partitions: list[Any]) -> None:
        self.begins = tuple(each.offset for each in partitions)


def committed(offset: int, error: KafkaError | None = None) -> Any:
    return SimpleNamespace(offset=offset, error=error)


def test_a_loop_begins_by_number_where_nothing_is_committed() -> None:
    consumer: Any = Assigned()
    begin_by_number(consumer, [committed(-1001), committed(40)])
    assert consumer.begins == (0, 40)


def test_a_loop_begins_nowhere_where_nobody_can_say_what_is_committed() -> None:
    consumer: Any = Assigned()
    with pytest.raises(KafkaException):
        begin_by_number(consumer, [committed(-1001, KafkaError(KafkaError.NOT_COORDINATOR))])
    assert not consumer.begins
