"""Fixtures of the console's tests: one broker and one console for a worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ottla.console.settings import Settings
from ottla.testing import EmbeddedBroker
from tests.harness.console.browser import Browser, Opened, served, started
from tests.harness.console.browser import opened as open_page
from tests.harness.console.over_http import User, user


@pytest.fixture(scope="session")
def console_broker() -> Iterator[EmbeddedBroker]:
    """A broker that only the console's tests use. A file whose golden pages need known contents defines its own."""
    with EmbeddedBroker() as broker:
        broker.create_topic("clicks", partitions=3, configs={"retention.ms": 3_600_000})
        yield broker


@pytest.fixture(scope="module")
def visitor(console_broker: EmbeddedBroker) -> Iterator[User]:
    """A user of a console over that broker."""
    with user(console_broker.bootstrap_servers) as found:
        yield found


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    """One browser for a worker. It is closed before tests elsewhere: playwright keeps an event loop running in this
    thread, in which `asyncio.run` would refuse to run another."""
    with started() as found:
        yield found


@pytest.fixture(scope="module")
def console_address(console_broker: EmbeddedBroker) -> Iterator[str]:
    """A console over that broker, on a port of its own."""
    with served(Settings(console_broker.bootstrap_servers, frozenset())) as address:
        yield address


@pytest.fixture
def opened(browser: Browser, console_address: str) -> Iterator[Opened]:
    """A page of the console in the browser; the test fails if the browser reports an error."""
    with open_page(browser, console_address) as found:
        yield found
        assert not found.errors
