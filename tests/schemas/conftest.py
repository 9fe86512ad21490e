"""Fixtures of the tests of schemas: one small registry and one decoder for a file, with a process of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ottla.schemas.decoder import Decoder
from ottla.schemas.registry import RegistrySettings
from tests.harness.schemas.registry import SmallRegistry, small_registry


@pytest.fixture(scope="module")
def registry() -> Iterator[SmallRegistry]:
    with small_registry() as found:
        yield found


@pytest.fixture(scope="module")
def decoder(registry: SmallRegistry) -> Iterator[Decoder]:
    found = Decoder(RegistrySettings(registry.address))
    yield found
    found.close()
