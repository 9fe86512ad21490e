"""What the conformance tests share: one broker and fresh topics.

With `--three-nodes` the broker is a cluster (`make conform-cluster`), whose `restart` kills one node after the other;
what speaks of a single node is left out then. With `--kill-every SECONDS` its nodes are killed and started again all
the time (`make conform-cluster-kills`), and what can't bear that is left out for the reason in `DELICATE`.
"""

import uuid
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from ottla.testing import EmbeddedBroker
from tests.harness.conform import three_clients
from tests.harness.conform.three_nodes import Killer, ThreeNodes

ONE_NODE = frozenset(
    [
        # replication factors, addresses, the controller, logs and producers of the only node
        *("test_confluent_topics", "test_confluent_cluster", "test_python_topics", "test_python_cluster"),
        *("test_kafka_python_asks_what_operators_ask", "test_python_offsets_records_and_producers", "test_aiokafka"),
        "test_idempotence",
    ]
)

DELICATE = {
    **{
        f"test_acks[{client.name}-{acks}]": "a record that was acknowledged by its leader alone may die with it"
        for client in three_clients.CLIENTS
        for acks in (0, 1)
    },
}
"""Tests that a kill breaks by their nature, and why; a name with parameters stands for those alone."""
KILLS = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--three-nodes", action="store_true", help="run the conformance tests on a cluster")
    parser.addoption("--kill-every", type=float, metavar="SECONDS", help="with --three-nodes: kill a node so often")


def on_three_nodes(config: pytest.Config) -> bool:
    return bool(config.getoption("--three-nodes", default=False))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what speaks of one node."""
    for item in items:
        if on_three_nodes(config) and isinstance(item, pytest.Function) and item.originalname in ONE_NODE:
            item.add_marker(pytest.mark.skip(reason="it speaks of one node"))
        why = DELICATE.get(item.name) or DELICATE.get(getattr(item, "originalname", ""))
        if why is not None and config.getoption("--kill-every", default=None):
            item.add_marker(pytest.mark.skip(reason=f"a kill breaks it: {why}"))


@pytest.fixture(scope="session")
def three_nodes(request: pytest.FixtureRequest) -> Iterator[ThreeNodes]:
    with ThreeNodes() as running:
        every_s = request.config.getoption("--kill-every", default=None)
        if every_s is None:
            yield running
            return
        three_clients.IDEMPOTENT = True
        killer = Killer(running, every_s)
        killer.start()
        yield running
        killer.stop()
        request.config.stash[KILLS] = killer.kills


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if KILLS in config.stash:
        terminalreporter.write_line(f"{config.stash[KILLS]} times a node was killed and came back in sync")


@pytest.fixture(scope="module")
def broker(request: pytest.FixtureRequest) -> Iterator[EmbeddedBroker]:
    if on_three_nodes(request.config):
        yield cast(EmbeddedBroker, request.getfixturevalue("three_nodes"))
        return
    with EmbeddedBroker() as running:
        yield running


@pytest.fixture
def make_topic(broker: Any) -> Callable[..., str]:
    """`make_topic(partitions, **{"config.name": value})` gives the name of a new topic."""

    def make(partitions: int = 1, **configs: object) -> str:
        return broker.create_topic(f"t-{uuid.uuid4().hex[:10]}", partitions=partitions, configs=configs)

    return make


@pytest.fixture
def deaths(broker: Any) -> Callable[[], int]:
    """How many nodes were killed until now: what is true while nobody fails may be otherwise after one more."""
    return lambda: getattr(broker, "deaths", 0)
