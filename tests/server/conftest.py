"""What tests of fairness share: the probe of their module's own `node`, and how long it waits when nobody else asks."""

from collections.abc import Iterator

import pytest

from tests.harness.server.fairness import NodeProcess, Probe, Waits


@pytest.fixture(scope="module")
def probe(node: NodeProcess) -> Iterator[Probe]:
    with Probe(node) as running:
        yield running


@pytest.fixture(scope="module")
def idle(probe: Probe) -> Waits:
    return probe.rest()
