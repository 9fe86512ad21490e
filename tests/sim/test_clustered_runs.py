"""Transactions, groups, share groups and administrators on simulated clusters, under every trouble there is: fresh
seeds, and those that failed once.

The longer slice is `make sim SEEDS=200 ARGS="--workload cluster-transactions"`.
"""

from contextlib import suppress

import pytest

from ottla.metadata.store import ABSENT, ConflictError, Put
from ottla.metadata.topics import TopicRecord, key_of, placed_on
from ottla.sim.__main__ import WORKLOADS
from ottla.sim.workloads.clustered_access import ClusteredAccessRun
from ottla.sim.workloads.clustered_admins import ClusteredAdminsRun
from ottla.sim.workloads.elected_cluster import ElectedCluster
from tests.sim.test_seeds import each_of, kept

FRESH = (1_002,)
EACH = each_of(FRESH, kept("cluster-transactions"), "cluster-transactions")
EACH += [each for name in ("cluster-groups", "cluster-share") for each in each_of((), kept(name), name)]
SPOILED = ("spoiled-transactions", "spoiled-share")
EACH += [pytest.param(workload, seed, marks=pytest.mark.long) for workload in SPOILED for seed in kept(workload)]


@pytest.mark.parametrize(("workload", "seed"), EACH)
def test_every_promise_holds(workload: str, seed: int) -> None:
    outcome = WORKLOADS[workload](seed).outcome()
    assert outcome.failure is None, "\n".join(
        [*list(outcome.lines)[-20:], f"again: python -m ottla.sim --workload {workload} --seed {seed}"]
    )
    assert outcome.acknowledged > 50
    assert outcome.seen > 50


@pytest.mark.parametrize("seed", each_of(FRESH, kept("cluster-admins")))
def test_administrators_are_told_what_is_so(seed: int) -> None:
    outcome = WORKLOADS["cluster-admins"](seed).outcome()
    assert outcome.failure is None, outcome.failure
    assert outcome.lives > 3


def test_the_audit_waits_for_the_answers_to_all_administrators() -> None:
    workload = ClusteredAdminsRun(1).workload
    workload.admin.created = True
    assert workload.missing({}) is None
    workload.racers[2].is_waiting = True
    assert workload.missing({}) == "racer-2 waits for an answer"


def test_another_writer_creates_a_topic_under_an_id_of_its_own() -> None:
    """The id of an attempt to create a topic shows its node whether the topic is its own."""
    cluster = ElectedCluster(1)
    wanted = TopicRecord(bytes(range(16)), {}, placed_on(1, 2))
    way = cluster.ways[1]
    way.rivals = 1.0
    with suppress(ConflictError):
        way.commit([Put(key_of("t"), wanted.encode(), ABSENT)])
    row = cluster.store.get(key_of("t"))
    assert row is not None
    made = TopicRecord.decode(row.value)
    assert (made.partitions, made.topic_id != wanted.topic_id) == (wanted.partitions, True)


@pytest.mark.parametrize("seed", each_of((), kept("cluster-access")))
def test_rights_and_passwords_are_those_of_the_store(seed: int) -> None:
    failure = WORKLOADS["cluster-access"](seed).outcome().failure
    assert failure is None, failure


def test_both_answers_about_rights_and_passwords_are_given_often() -> None:
    """Also while nodes die and are cut off."""
    run = ClusteredAccessRun(10)
    outcome = run.outcome()
    assert outcome.failure is None, outcome.failure
    checked = run.workload.rights.checked
    logins = {said: checked.pop(("logs in with", said)) for said in (True, False)}
    assert min(logins.values()) > 5
    assert len(checked) == 8, "denied, known, may write and may read: yes and no"
    assert min(checked.values()) > 10
