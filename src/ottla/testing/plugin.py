"""Defines the pytest plugin that comes with Ottla: fixtures for a test suite that wants a real broker.

It is registered by entry point, so installing Ottla is enough. Every pytest run of the environment loads it, so it
imports nothing of Ottla until a test asks for a fixture.

- `ottla_broker` (session): one `EmbeddedBroker` for the whole run.
- `ottla_topic` (function): the name of a new topic of one partition on it, deleted afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ottla.testing import EmbeddedBroker


@pytest.fixture(scope="session")
def ottla_broker() -> Iterator[EmbeddedBroker]:
    """One broker for the whole run: a real node on a port of its own, its data in a temporary directory."""
    from ottla.testing import EmbeddedBroker

    with EmbeddedBroker() as broker:
        yield broker


@pytest.fixture
def ottla_topic(ottla_broker: EmbeddedBroker) -> Iterator[str]:
    """The name of a fresh topic of one partition."""
    name = ottla_broker.create_topic()
    yield name
    ottla_broker.delete_topic(name)
