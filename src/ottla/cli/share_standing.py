"""Finds what keeps records from a share group: a pause, with its time and originator, or dead letters that are not
written yet.

It reads the group configs in which Ottla's broker stores a pause, and the share coordinator's state. Another Kafka has
no pauses, so nothing is found there.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from ottla.cli.configs import own_entries
from ottla.cli.output import CommandError
from ottla.cli.times import shown_time

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

    from ottla.client import Client

PAUSED = "share.delivery.paused"


class Pause(NamedTuple):
    """A paused group. `since` is an ISO time in UTC; None if the broker did not record it."""

    since: str | None
    by: str | None

    def sentence(self, group: str) -> str:
        since = f" since {self.since}" if self.since else ""
        by = f", by {self.by}" if self.by else ""
        return f"{group} is paused{since}{by}: `ottla share-groups resume {group}` resumes it."


def pauses(admin: AdminClient, groups: Iterable[str]) -> dict[str, Pause]:
    """The pauses of those groups that are paused."""
    try:
        configs = own_entries(admin, "group", groups)
    except CommandError:
        return {}  # a Kafka version without group configs
    found: dict[str, Pause] = {}
    for group, entries in configs.items():
        if entries.get(PAUSED) == "true":
            since_ms = entries.get(f"{PAUSED}.since.ms")
            since = shown_time(int(since_ms)) if since_ms else None
            found[group] = Pause(since, entries.get(f"{PAUSED}.by"))
    return found


def letters_waiting(asked: Client, group: str) -> int | None:
    """How many records of the group wait for their dead letter; None if the cluster does not say."""
    from ottla.client import ClientError
    from ottla.client.share_groups import records_archiving

    try:
        return records_archiving(asked, group)
    except ClientError:
        return None
