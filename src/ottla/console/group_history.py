"""Reads what `__consumer_offsets` has of one group: its coordinator keeps all of that in one partition."""

from __future__ import annotations

from ottla.client.client import LATEST
from ottla.console.page import Context
from ottla.console.reading import offsets_at, with_leader
from ottla.doctor.history import History, windows
from ottla.protocol.coordinator_records import CONSUMER_OFFSETS_TOPIC, partition_of


def group_history(
    context: Context, group: str, since: int, kept: int, *, newest: int | None = None, unseen: list[str] | None = None
) -> History:
    """The newest commits of a group in each partition, at most `kept`, and its generations. `since`: from which time
    on, in milliseconds, or EARLIEST. `newest`: how many of the newest offsets are read. `unseen`: gets what could not
    be read. Raises ClientError, a BrokerError if the user may not read the topic."""
    by_partition = context.client.known_topic(CONSUMER_OFFSETS_TOPIC).leaders
    index = partition_of(group, len(by_partition))
    leaders = with_leader({(CONSUMER_OFFSETS_TOPIC, index): by_partition[index]})
    starts, ends = offsets_at(context, leaders, [since, LATEST], unseen)
    if newest is not None:
        starts = {place: max(start, ends.get(place, 0) - newest) for place, start in starts.items() if start >= 0}
    reached = {leader: context.client.broker(leader) for leader in leaders.values()}
    history = History(kept)
    history.read(context.client, reached, windows(starts, ends, leaders))
    return history
