"""Nodes that leave requests alone while no majority of ZooKeepers is there are found, and those that lead on."""

import socket
from collections.abc import Callable

import pytest

from ottla.testing import EmbeddedBroker
from tools import outage
from tools.outage import Outage


def asked(address_of: Callable[[int], str], topic: str, monkeypatch: pytest.MonkeyPatch) -> Outage:
    """Node 1 was asked for a topic, and at the end who leads this one, when its lease was over."""
    monkeypatch.setattr(outage, "TIMEOUT_MS", 20)
    monkeypatch.setattr(outage, "GRACE_S", 0.2)
    watched = Outage(address_of, lambda: [1], 0.0)
    watched._ask_for_topic(1, "asked-for-1")
    watched.end(topic)
    return watched


def test_a_node_that_answers_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host, port = silent.getsockname()
        (failure,) = asked(lambda _: f"{host}:{port}", "any", monkeypatch).failures
    assert failure.startswith("node 1 left a CreateTopics of 20 ms unanswered")


def test_a_node_that_leads_on_is_told(ottla_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = ottla_broker.create_topic()
    watched = asked(lambda _: ottla_broker.bootstrap_servers, topic, monkeypatch)
    (failure,) = watched.failures
    assert failure.startswith(f"node 1 leads {topic}-0 still")
    assert watched.told == {"INVALID_REPLICATION_FACTOR": 1}
