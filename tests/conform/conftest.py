"""What the conformance tests share: one broker and fresh topics."""

import uuid
from collections.abc import Callable, Iterator

import pytest

from ottla.testing import EmbeddedBroker


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running


@pytest.fixture
def make_topic(broker: EmbeddedBroker) -> Callable[..., str]:
    """`make_topic(partitions, **{"config.name": value})` gives the name of a new topic."""

    def make(partitions: int = 1, **configs: object) -> str:
        return broker.create_topic(f"t-{uuid.uuid4().hex[:10]}", partitions=partitions, configs=configs)

    return make
