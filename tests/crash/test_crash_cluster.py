"""A slice of `make crash-cluster`: a leader is killed and a node cut off under every kind of client."""

from pathlib import Path

import pytest

from tools import crash_cluster
from tools.cluster_faults import LEASE_S, Fault

PLAN = [Fault("kill", "leader", 1.0, 0.5), Fault("cut off", "controller", 1.5, 1.3 * LEASE_S)]


@pytest.mark.slow("tests/server/test_cluster_coordinators.py::test_what_a_share_group_has_accepted_never_comes_again")
def test_nothing_that_was_said_is_taken_back(tmp_path: Path) -> None:
    said: list[str] = []
    failures = crash_cluster.run([PLAN], 1, str(tmp_path), say=said.append)
    assert not failures, "\n".join([*failures, *said])
