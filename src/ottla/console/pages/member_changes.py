"""Shows why a group's members or partitions changed, as Ottla's nodes remember it: a part of the pages of groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ottla.client.errors import BrokerError, ClientError, UnsupportedVersionError
from ottla.client.observations import observations
from ottla.console.group_reading import group_of
from ottla.console.page import Context, View
from ottla.doctor.observed import REBALANCE_TIMEOUT
from ottla.doctor.words import duration, names
from ottla.protocol.messages.describe_observations import Change

SHOWN_MAX: Final = 50
CAUSES: Final = {
    1: "a member joined",
    2: "a member left, or was removed",
    3: "a member's session ended",
    4: "a member exceeded its rebalance timeout",
    5: "a member changed its subscription",
    6: "a topic has other partitions",
    7: "the leader joined again",
    8: "a static member returned",
    9: "a member's connection was lost",
    10: "a member's connection is back",
}
"""The causes of docs/private-requests.md."""


@dataclass(frozen=True, slots=True)
class ChangeRow:
    """A change of a group: its cause, the member that caused it, and what that client said. `generation`: the one that
    the change ended; a group epoch in newer protocols."""

    at_ms: int
    generation: int
    cause: str
    member: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberChanges(View):
    """The last changes of a group, newest first. `missing`: a sentence about changes that are not shown."""

    changes: tuple[ChangeRow, ...]
    missing: str


def load(context: Context) -> MemberChanges:
    """The changes of the group that the address names. Raises MissingError, and BrokerError if the user may not
    describe it."""
    name = group_of(context, context.need("name"))[0].name
    found: list[ChangeRow] = []
    silent: list[int] = []
    answers = observations(context.client, context.client.broker_ids(), name)
    for node_id, answer in answers.items():
        if isinstance(answer, BrokerError):
            raise answer
        if isinstance(answer, ClientError):
            silent.append(node_id)
        else:
            found += [row_of(each) for group in answer.groups for each in group.changes]
    missing = ""
    if all(isinstance(each, UnsupportedVersionError) for each in answers.values()):
        missing = "Only Ottla's nodes remember why a group changed: this cluster does not say it."
    elif silent:
        missing = f"Missing: what {names(f'node {each}' for each in sorted(silent))} saw."
    return MemberChanges(
        title="Why the group changed",
        command=context.command("doctor", "--past", "60"),
        changes=tuple(sorted(found, key=lambda each: each.at_ms, reverse=True)[:SHOWN_MAX]),
        missing=missing,
    )


def row_of(change: Change) -> ChangeRow:
    """The row of a change, as a node reports it."""
    cause = CAUSES.get(change.cause, f"cause {change.cause}")
    if change.cause == REBALANCE_TIMEOUT and change.rebalance_timeout_ms >= 0:
        cause += f" of {duration(change.rebalance_timeout_ms / 1000)}"
    member = f"{change.client_id} {change.client_host}".strip()
    return ChangeRow(change.at_ms, change.generation, cause, member, change.reason)
