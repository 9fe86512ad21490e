"""A node on a simulated disk with a few partitions of groups, whose coordinators come at once."""

from typing import Any

from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from tests.harness.node_stage import DiskStage

FEW_SHARDS = {"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "3"}


class HostStage(DiskStage):
    """It has a topic `t` of two partitions."""

    def __init__(self, faults: list[str] | None = None, **settings: str) -> None:
        given = {name.replace("_", "."): value for name, value in settings.items()}
        super().__init__(faults=faults, **{**FEW_SHARDS, **given})
        self.create("t", 2, {})

    def coordinate(self, group: str = "g") -> Any:
        return self.ask(FindCoordinatorRequest(coordinator_keys=[group]), 4)
