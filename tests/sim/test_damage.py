"""Damaged coordinator logs in the simulated world: the others' promises hold, and everyone's once it is mended."""

from typing import Any

import pytest

from ottla.protocol.records.batch import HEADER_BYTES, iter_batches
from ottla.sim.kernel.clock import MS
from ottla.sim.workloads.checkers import node_of
from ottla.sim.workloads.run import Run
from ottla.sim.workloads.share_run import ShareRun

SEEDS = (4, pytest.param(7, marks=pytest.mark.long))


class Damage:
    """A clean stop, one byte of one coordinator's log flipped, some time, and the file from a backup."""

    def strike(self: Any, topic: str) -> None:
        world, host = self.world, self.host
        host.start()
        self.faults.calm()
        world.run(12_000 * MS)
        host.stop()
        path = max(
            (f"/data/{name}/{0:020d}.log" for name in host.disk.listdir("/data") if name.startswith(f"{topic}-")),
            key=host.disk.size,
        )
        content = host.disk._file(path).content
        backup = bytes(content)
        batches = [position for _, position in iter_batches(backup)]
        content[batches[-1] + HEADER_BYTES + 3] ^= 4
        world.run(world.clock.now_us + 8_000 * MS)
        assert host.up
        in_use = node_of(host.life).coordinators.in_use
        coordinator = {"__consumer_offsets": in_use.groups, "__share_group_state": in_use.share_state}[topic]
        assert coordinator is not None
        assert len(coordinator._damaged) == 1
        host.stop()
        content[: len(backup)] = backup
        self.faults.heal()
        world.run(world.clock.now_us + 2_000 * MS)
        self.workload.wind_down()
        self._live()
        self._check_at_rest()


class DamagedGroups(Damage, Run):
    def go(self) -> None:
        self.strike("__consumer_offsets")


class DamagedShares(Damage, ShareRun):
    def go(self) -> None:
        self.strike("__share_group_state")


@pytest.mark.parametrize("seed", SEEDS)
def test_a_damaged_coordinator_of_groups(seed: int) -> None:
    assert DamagedGroups(seed).outcome().failure is None


@pytest.mark.slow("tests/sim/test_damage.py::test_a_damaged_coordinator_of_groups")
@pytest.mark.parametrize("seed", SEEDS)
def test_a_damaged_coordinator_of_share_groups(seed: int) -> None:
    assert DamagedShares(seed).outcome().failure is None
