"""What the tests of the client have in common: a broker for each module."""

from collections.abc import Iterator

import pytest

from ottla.testing import EmbeddedBroker


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with EmbeddedBroker() as running:
        yield running
