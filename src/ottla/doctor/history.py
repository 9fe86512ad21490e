"""Reads what happened in the last minutes from the topic in which group coordinators keep their state.

`__consumer_offsets` holds each commit with its time, and each generation of a classic group with its members. Kafka has
no API for that. Reading needs the right to read the topic; nothing is committed.

Source: Kafka's GroupMetadataManager (the records), Burrow (the last ten commits of a partition).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from ottla.client.client import Client
from ottla.client.connection import Connection
from ottla.client.errors import ClientError
from ottla.client.fetching import FetchedPart, PartitionFetch, post_fetch
from ottla.doctor.snapshot import Commit, Generation, GroupMember, TopicPartition
from ottla.protocol.coordinator_records import CONSUMER_OFFSETS_TOPIC, decode_record
from ottla.protocol.errors import MalformedFrameError
from ottla.protocol.messages.group_metadata_record import GroupMetadataKey
from ottla.protocol.messages.offset_commit_record import OffsetCommitKey
from ottla.protocol.records.batch import iter_batches
from ottla.protocol.records.errors import CorruptRecordsError
from ottla.protocol.records.record import decode_records

KEPT: Final = 10
"""Commits of a partition, and generations of a group, that the doctor needs: the newest."""
PART_BYTES: Final = 1 << 18
"""Bytes to fetch of a partition at least, if it has as many."""
ROUND_BYTES: Final = 8 << 20
ROUNDS_MAX: Final = 8
"""Fetch requests to one node: more history than fits in these is left out."""


class History:
    """Commits by group and partition, and generations by group, oldest first: the newest `kept` of each.

    `is_whole`: nothing else was left out.
    """

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self.commits: dict[tuple[str, TopicPartition], list[Commit]] = {}
        self.generations: dict[str, list[Generation]] = {}
        self.is_whole = True

    def read(
        self, client: Client, leaders: Mapping[int, Connection], ranges: Mapping[int, tuple[int, int, int]]
    ) -> None:
        """Read partitions of the topic: partition to (leader, first offset, end). Raises ClientError."""
        by_leader: dict[int, dict[int, tuple[int, int]]] = {}
        for partition, (leader, start, end) in ranges.items():
            if start < end and leader in leaders:
                by_leader.setdefault(leader, {})[partition] = (start, end)
        for leader, left in by_leader.items():
            for _ in range(ROUNDS_MAX):
                size = max(PART_BYTES, ROUND_BYTES // len(left))
                wanted = [PartitionFetch(CONSUMER_OFFSETS_TOPIC, index, at, size) for index, (at, _) in left.items()]
                fetching = post_fetch(client, leaders[leader], wanted, max_bytes=ROUND_BYTES, max_wait_ms=0)
                for (_, partition), part in fetching.take().items():
                    at, end = left[partition]
                    after = self._take(part, at, end)
                    if after is None or after >= end:
                        del left[partition]
                    else:
                        left[partition] = (after, end)
                if not left:
                    break
            self.is_whole = self.is_whole and not left

    def _take(self, part: FetchedPart, at: int, end: int) -> int | None:
        """Take the records in a part of an answer; returns the offset after them, None if there are none."""
        if part.error_code:
            raise ClientError(f"{CONSUMER_OFFSETS_TOPIC} cannot be read: error {part.error_code}")
        after: int | None = None
        try:
            for header, position in iter_batches(part.records):
                after = header.next_offset
                if not header.is_control:
                    for record in decode_records(part.records, position):
                        if at <= record.offset < end and record.key is not None:
                            self._record(record.key, record.value, record.timestamp_ms)
        except CorruptRecordsError:
            self.is_whole = False
        return after

    def _record(self, key: bytes, value: bytes | None, at_ms: int) -> None:
        try:
            name, said = decode_record(CONSUMER_OFFSETS_TOPIC, key, value)
        except MalformedFrameError:
            return  # of a later version
        if said is None:
            return
        if isinstance(name, OffsetCommitKey):
            where = name.group, (name.topic, name.partition)
            self._keep(self.commits.setdefault(where, []), Commit(said.offset, said.commit_timestamp, said.metadata))
        elif isinstance(name, GroupMetadataKey):
            self._keep(self.generations.setdefault(name.group, []), _generation(said, at_ms))

    def _keep(self, rows: list[Any], row: Any) -> None:
        rows.append(row)
        del rows[: -self._kept]


def _generation(said: Any, at_ms: int) -> Generation:
    members = frozenset(
        GroupMember(each.client_id, each.client_host, max(each.rebalance_timeout, each.session_timeout))
        for each in said.members
    )
    return Generation(at_ms, said.generation, members)


def windows(
    offsets: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], leaders: Mapping[TopicPartition, int]
) -> dict[int, tuple[int, int, int]]:
    """The ranges for `History.read`: from the first offset of a time (-1: none that late) to the end."""
    return {
        where[1]: (leaders[where], offset, ends[where])
        for where, offset in offsets.items()
        if offset >= 0 and where in ends
    }


def frozen(rows: Mapping[Any, Iterable[Any]]) -> dict[Any, tuple[Any, ...]]:
    """Rows that no longer change."""
    return {key: tuple(each) for key, each in rows.items()}
