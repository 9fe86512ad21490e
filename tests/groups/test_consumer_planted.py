"""The checkers of `test_consumer_twin` see what they are there for: each bug planted here makes them fail."""

from collections.abc import Callable
from typing import Any

import pytest
import test_consumer_groups
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from test_consumer_twin import Groups

from ottla.groups.consumer import membership, reconciliation, records
from ottla.groups.consumer.group import ConsumerGroup, ConsumerMember
from ottla.groups.consumer.membership import ConsumerMembership

QUICKLY = settings(
    max_examples=300,
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def everything_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ConsumerGroup, "owner_of", lambda self, place: None)


def revocations_are_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciliation, "_still_owns", lambda revoking, owned: False)


def what_is_being_revoked_has_no_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    """KAFKA-16147's kind of bookkeeping."""
    put: Callable[..., Any] = ConsumerGroup.put_current

    def forgets(self: ConsumerGroup, current: ConsumerMember) -> None:
        put(self, current)
        for place in current.revoking:
            self._owners.pop(place, None)

    monkeypatch.setattr(ConsumerGroup, "put_current", forgets)


def assignment_epochs_are_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        records,
        "_with_epochs",
        lambda owned: [
            records.current.TopicPartitions(topic_id, indexes, None)
            for topic_id, indexes in records.by_topic(owned).items()
        ],
    )


def the_group_epoch_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "topics_hash", lambda topics: 0)


def a_deadline_makes_no_assignment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ConsumerMembership, "assignment_deadline", lambda self, now, group_id, decision: None)


def own_revocations_are_held_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """KAFKA-19449."""
    owner_of: Callable[..., Any] = ConsumerGroup.owner_of

    def somebody(self: ConsumerGroup, place: tuple[bytes, int]) -> str | None:
        return None if owner_of(self, place) is None else "somebody else"

    monkeypatch.setattr(ConsumerGroup, "owner_of", somebody)


@pytest.mark.parametrize(
    "bug",
    [
        everything_is_free,
        revocations_are_not_waited_for,
        what_is_being_revoked_has_no_owner,
        assignment_epochs_are_not_written,
        the_group_epoch_stays,
        a_deadline_makes_no_assignment,
    ],
    ids=lambda bug: bug.__name__,
)
def test_a_planted_bug_is_found(bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    bug(monkeypatch)
    with pytest.raises(AssertionError):
        run_state_machine_as_test(Groups, settings=QUICKLY)


def test_what_is_ones_own_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    own_revocations_are_held_by_another(monkeypatch)
    with pytest.raises(AssertionError):
        test_consumer_groups.test_19449_what_a_member_has_not_let_go_of_is_not_held_by_another()


def test_without_a_bug_nothing_is_found() -> None:
    run_state_machine_as_test(Groups, settings=settings(QUICKLY, max_examples=50))
