"""What a test reads of its own output is Ottla's, whoever else writes meanwhile."""

import os
from collections.abc import Callable

from confluent_kafka import Producer


def test_a_client_left_over_from_another_test_is_not_heard(printed: Callable[[], tuple[str, str]]) -> None:
    left_over = Producer({"bootstrap.servers": "127.0.0.1:1"})  # refuses at once; librdkafka says so on descriptor 2
    left_over.poll(0.5)
    os.write(1, b"out\n")
    os.write(2, b"err\n")
    assert printed() == ("out\n", "err\n")


def test_a_message_in_the_middle_of_a_line_is_cut_out_of_it(printed: Callable[[], tuple[str, str]]) -> None:
    os.write(2, b"half of %3|1795328531.024|FAIL|rdkafka#producer-51| [thrd:a]: refused (after 0ms)\na line\n")
    assert printed() == ("", "half of a line\n")
