"""What the conformance tests share: one broker and fresh topics.

With `--three-nodes` the broker is a cluster (`make conform-cluster`), whose `restart` kills one node after the other;
what speaks of a single node is left out then.
"""

import uuid
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from ottla.testing import EmbeddedBroker
from tests.conform.three_nodes import ThreeNodes

ONE_NODE = frozenset(
    [
        # replication factors, addresses, the controller, logs and producers of the only node
        *("test_confluent_topics", "test_confluent_cluster", "test_python_topics", "test_python_cluster"),
        *("test_kafka_python_asks_what_operators_ask", "test_python_offsets_records_and_producers", "test_aiokafka"),
        "test_idempotence",
    ]
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--three-nodes", action="store_true", help="run the conformance tests on a cluster")


def on_three_nodes(config: pytest.Config) -> bool:
    return bool(config.getoption("--three-nodes", default=False))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what speaks of one node."""
    for item in items:
        if on_three_nodes(config) and isinstance(item, pytest.Function) and item.originalname in ONE_NODE:
            item.add_marker(pytest.mark.skip(reason="it speaks of one node"))


@pytest.fixture(scope="session")
def three_nodes() -> Iterator[ThreeNodes]:
    with ThreeNodes() as running:
        yield running


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
