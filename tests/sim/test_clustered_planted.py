"""The checkers of clients on clusters can fail: each test breaks the nodes in one place, and a seed must notice.

The seeds are some that notice; any other would do, perhaps later. Most of these bugs are those of one node.
"""

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from ottla.broker import forwarding
from ottla.broker.channel import Channel
from ottla.broker.client_identity import GrantedTopics, Identity
from ottla.broker.coordinators.shards import Hosted
from ottla.broker.security.acls import AclAuthorizer
from ottla.broker.security.authorizer import Access
from ottla.broker.security.sasl import Sasl
from ottla.broker.security.scram import ScramExchange
from ottla.broker.topics.topics import Topics
from ottla.log.compaction import cleanable, compaction
from ottla.log.compaction.cleanable import Dirty
from ottla.log.compaction.filtering import BatchFilter
from ottla.log.offsets import LogOffsets
from ottla.log.recovery import state as recovered
from ottla.log.state import LogState
from ottla.sim.__main__ import WORKLOADS
from ottla.sim.kernel.spoiling import Spoiler
from ottla.txn.shard import TransactionShard
from ottla.txn.transaction import NO_ID
from tests.sim import test_groups_planted as groups
from tests.sim import test_transactions_planted as transactions

Patch = pytest.MonkeyPatch


def plant_coordinators_that_begin_empty(patch: Patch) -> None:
    """Whoever comes to lead believes to have read what its log says."""
    made = Hosted.__init__

    def empty(self: Hosted, *args: Any) -> None:
        made(self, *args)
        if self.partition.leader_epoch:
            self.replay.next_offset = self.partition.log.log_end_offset

    patch.setattr(Hosted, "__init__", empty)


def plant_ids_that_are_forgotten_and_not_written_down(patch: Patch) -> None:
    """A coordinator drops transactional ids of which its log still speaks."""
    expire = TransactionShard.expire

    def forgetful(self: TransactionShard, now: int) -> Any:
        decision = expire(self, now)
        for name in [name for name, known in self._known.items() if known.is_idle and name.startswith("loop")]:
            del self._known[name]
        return decision

    patch.setattr(TransactionShard, "expire", forgetful)


def plant_coordinators_that_forget_who_comes_next(patch: Patch) -> None:
    """Whoever comes to coordinate a transaction whose producer id is used up goes on with that id."""
    loaded = TransactionShard.loaded

    def forgetful(self: TransactionShard, now: int) -> Any:
        self._known.update({name: known._replace(next_producer_id=NO_ID) for name, known in self._known.items()})
        return loaded(self, now)

    patch.setattr(TransactionShard, "loaded", forgetful)


def plant_a_last_stable_offset_that_goes_back(patch: Patch) -> None:
    """While a transaction is open nothing counts as stable."""
    stable = LogOffsets.last_stable_offset.fget
    assert stable is not None

    def falling(self: LogOffsets) -> int:
        return stable(self) if self.first_unstable is None else self.log_start_offset

    patch.setattr(LogOffsets, "last_stable_offset", property(falling))


def plant_acknowledgements_that_are_not_remembered(patch: Patch) -> None:
    patch.setattr("ottla.share.partition._batches", lambda changes, start: [])


def plant_compaction_of_what_is_not_stable(patch: Patch) -> None:
    """What a replica holds and may have to give up, or what a transaction that is open wrote, counts as the newest."""
    dirty_part = cleanable.dirty_part

    def reckless(log: LogState, now: int) -> Dirty:
        dirty = dirty_part(log, now)
        return Dirty(dirty.first, log.segments[-1].base_offset) if log.segments else dirty

    patch.setattr(cleanable, "dirty_part", reckless)


def plant_compaction_that_drops_the_newest(patch: Patch) -> None:
    key_offsets = compaction.key_offsets

    def reckless(*args: Any) -> list[tuple[bytes, int]]:
        return [(key, offset + 1) for key, offset in key_offsets(*args)]

    patch.setattr(compaction, "key_offsets", reckless)


def plant_markers_that_go_before_their_data(patch: Patch) -> None:
    patch.setattr(compaction.Transactions, "_marker_is_settled", lambda *_: True)
    patch.setattr(BatchFilter, "_with_horizon", lambda self, header, batch, kept: self._emptied(header))


def plant_tries_that_have_no_names(patch: Patch) -> None:
    """A request that is handed on twice is two requests to the controller, as with Kafka's."""
    wrapped = forwarding.wrapped
    patch.setattr(forwarding, "wrapped", lambda request, _: wrapped(request))


def plant_topics_that_are_acknowledged_and_not_made(patch: Patch) -> None:
    """The controller drops every eighth creation."""
    creating, calls = Topics.creating, count(1)

    def forgetful(*args: Any) -> Any:
        return creating(*args) if next(calls) % 8 else iter(())

    patch.setattr(Topics, "creating", forgetful)


def plant_decisions_that_outlive_the_acls(patch: Patch) -> None:
    of = AclAuthorizer._of

    def stale(self: AclAuthorizer, identity: Identity) -> Any:
        if self._image is not None:
            self._image = self._metadata.image
        return of(self, identity)

    patch.setattr(AclAuthorizer, "_of", stale)


def plant_nodes_that_decide_without_their_cluster(patch: Patch) -> None:
    patch.setattr(Access, "depends_on_acls", lambda *_: False)


def plant_topics_that_are_granted_for_good(patch: Patch) -> None:
    """What a client was allowed once on its connection, it may do until the connection ends."""

    def hold(self: GrantedTopics, image: object, acls: object) -> None:
        self.image = image

    patch.setattr(GrantedTopics, "hold_until_change_of", hold)


def plant_logins_with_a_password_that_is_known_already(patch: Patch) -> None:
    """A node keeps the credential that it has read first."""
    of_exchange, known = Sasl._exchange, dict[tuple[int, str], Any]()

    def stale(self: Sasl, mechanism: str, listener: str) -> Any:
        exchange = of_exchange(self, mechanism, listener)
        if isinstance(exchange, ScramExchange):
            read = exchange._credential_of

            def first(user: str) -> Any:
                credential = read(user)
                return credential and known.setdefault((id(self), user), credential)

            exchange._credential_of = first
        return exchange

    patch.setattr(Sasl, "_exchange", stale)


def plant_sessions_without_an_end(patch: Patch) -> None:
    patch.setattr(Channel, "expire", lambda _: None)


def plant_indexes_of_aborted_transactions_that_are_trusted(patch: Patch) -> None:
    """A start does not compare them with the snapshot. Most damage hits them here."""
    any_file = Spoiler._any_file

    def any_index(self: Spoiler) -> str | None:
        found = [path for path in self._files() if path.endswith(".txnindex") and self._disk.size(path)]
        return self._rng.choice(found) if found else any_file(self)

    patch.setattr(Spoiler, "_any_file", any_index)
    patch.setattr(recovered, "_verify_transaction_indexes", lambda *_: 0)


PLANTED: list[tuple[Callable[[Patch], None], str, int, str]] = [
    (plant_coordinators_that_begin_empty, "cluster-transactions", 1, "nobody will end"),
    (plant_coordinators_that_begin_empty, "cluster-groups", 3, "and somebody was in 3 before"),
    (plant_ids_that_are_forgotten_and_not_written_down, "cluster-transactions", 0, "14: "),
    (plant_a_last_stable_offset_that_goes_back, "cluster-transactions", 0, "goes back"),
    (transactions.plant_a_beginning_that_is_answered_and_forgotten, "cluster-transactions", 3, "answers 48"),
    (transactions.plant_producer_ids_that_are_given_out_again, "cluster-transactions", 1, "belongs to"),
    (transactions.plant_offsets_that_an_abort_commits, "cluster-transactions", 3, "never committed"),
    (transactions.plant_epochs_without_an_end, "cluster-transactions", 23, "was given to another"),
    (
        transactions.plant_an_epoch_that_is_shut_out_while_markers_are_outstanding,
        "cluster-transactions",
        5,
        "no other client has asked",
    ),
    (plant_coordinators_that_forget_who_comes_next, "cluster-transactions", 103, "goes on; its coordinator has"),
    (groups.plant_everything_is_free, "cluster-groups", 5, "has and must not lose yet"),
    (plant_acknowledgements_that_are_not_remembered, "cluster-share", 3, "it was done as number"),
    (plant_acknowledgements_that_are_not_remembered, "spoiled-share", 4, "it was done as number"),
    (plant_indexes_of_aborted_transactions_that_are_trusted, "spoiled-transactions", 2, "nobody asked for that"),
    (plant_compaction_of_what_is_not_stable, "cluster-transactions", 2, "which is committed, while the newest"),
    (plant_compaction_that_drops_the_newest, "cluster-transactions", 0, "which is committed, while the newest"),
    (plant_markers_that_go_before_their_data, "cluster-transactions", 1, "without the marker"),
    (plant_tries_that_have_no_names, "cluster-admins", 131, "is there 1 times"),
    (plant_topics_that_are_acknowledged_and_not_made, "cluster-admins", 10, "is there 0 times"),
    (plant_decisions_that_outlive_the_acls, "cluster-access", 0, "denied: False, says a node"),
    (plant_nodes_that_decide_without_their_cluster, "cluster-access", 1, "says a node"),
    (plant_topics_that_are_granted_for_good, "cluster-access", 2, "may write: True, says a node"),
    (plant_logins_with_a_password_that_is_known_already, "cluster-access", 2, "logs in with: "),
    (plant_sessions_without_an_end, "cluster-access", 1, "after the lifetime of its session"),
]


@pytest.mark.slow("tests/sim/test_cluster_planted.py::test_a_planted_bug_is_found")
@pytest.mark.parametrize(
    ("plant", "workload", "seed", "words"), PLANTED, ids=lambda value: getattr(value, "__name__", None)
)
def test_a_planted_bug_is_found(
    monkeypatch: pytest.MonkeyPatch, plant: Callable[[Patch], None], workload: str, seed: int, words: str
) -> None:
    plant(monkeypatch)
    failure = WORKLOADS[workload](seed).outcome().failure
    assert failure is not None, f"seed {seed} of {workload} does not notice"
    assert words in failure
