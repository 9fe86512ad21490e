"""What a node does that follows another one, where its own disk fails."""

from dataclasses import replace
from typing import NoReturn

import pytest

from ottla.log.answers import StorageError
from ottla.log.log import Log
from ottla.metadata.image import delta_since
from ottla.metadata.nodes import PREFIX as NODE_PREFIX
from ottla.metadata.nodes import NodeRecord
from ottla.metadata.row_kinds import encoded
from ottla.metadata.store import Put
from ottla.metadata.topics import key_of
from ottla.protocol.errors import ErrorCode as E
from ottla.protocol.framing import decode_request, encode_response
from ottla.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from ottla.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from ottla.protocol.wire import Message
from tests.harness.node_stage import DiskStage


def follow_node_2(stage: DiskStage, unclean_epoch: int = -1) -> None:
    """One change of the metadata has node 2 lead all of t."""
    record = stage.node.image.topics["t"].record
    partitions = tuple(
        replace(
            placed,
            leader=2,
            leader_epoch=9,
            partition_epoch=9,
            replicas=(1, 2),
            isr=(1, 2),
            unclean_epoch=unclean_epoch,
        )
        for placed in record.partitions
    )
    stage.store.commit([Put(f"{NODE_PREFIX}2", NodeRecord("host", 9).encode())])
    stage.store.commit([Put(key_of("t"), encoded(replace(record, partitions=partitions)))])
    stage.node.changed(stage.now, delta_since(stage.store, stage.node.image))
    stage.run(1_000)


def has_no_room(self: Log, offset: int, *, now: int) -> NoReturn:
    raise StorageError("no room for a new segment")


@pytest.mark.parametrize("stays_open", [False, True])
def test_a_log_that_cannot_be_cut_is_not_fetched_and_the_others_are(
    stays_open: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log without epochs is cut to its high watermark before it follows: nothing else says where it may be wrong."""
    stage = DiskStage()
    first, second = stage.create("t", 2).partitions.values()
    for partition in (first, second):
        stage.append("t", partition.index)
    first.log.epochs.clear()
    first.log.offsets.high_watermark = 0
    if stays_open:
        monkeypatch.setattr(Log, "truncate_to", has_no_room)
    else:
        stage.disk.sync_failures = 1.0
    follow_node_2(stage)
    assert bool(first.log.failed) != stays_open
    fetches = [decode_request(ask.frame[4:])[1] for ask in stage.asks]
    asked = [part.partition for fetch in fetches for topic in fetch.topics for part in topic.partitions]
    assert asked == [second.index]
    assert any(note.startswith("t-0") and "write" in note for note in stage.notes)


def answer(stage: DiskStage, message: Message) -> None:
    """Node 2 answers what this node asked it last."""
    ask = stage.asks.pop()
    header, _ = decode_request(ask.frame[4:])
    stage.node.answered(stage.now, ask.token, bytes(encode_response(header, message))[4:])
    stage.settle()


def answer_that_the_log_is_empty(stage: DiskStage) -> None:
    topic_id = stage.node.image.topics["t"].id
    out_of_range = PartitionData(0, E.OFFSET_OUT_OF_RANGE, -1)
    answer(stage, FetchResponse(responses=[FetchableTopicResponse(topic_id=topic_id, partitions=[out_of_range])]))
    ends = ListOffsetsPartitionResponse(partition_index=0, offset=0)
    answer(stage, ListOffsetsResponse(topics=[ListOffsetsTopicResponse("t", [ends])]))


@pytest.mark.parametrize("unclean_epoch", [-1, 0, 9])
def test_a_replica_keeps_what_is_committed_until_the_cluster_has_accepted_its_loss(unclean_epoch: int) -> None:
    """An unclean election before the records were written accepts nothing."""
    stage = DiskStage()
    partition = stage.create("t", 1).partitions[0]
    stage.append("t")
    follow_node_2(stage, unclean_epoch)
    answer_that_the_log_is_empty(stage)
    accepted = unclean_epoch == 9
    assert partition.log.log_end_offset == (0 if accepted else 1)
    assert partition.refused_epoch == (-1 if accepted else 9)
    assert any("It does not follow this leader" in note for note in stage.notes) != accepted


def test_a_log_that_cannot_be_cut_where_its_leader_ends_is_told_of() -> None:
    """Else the cluster counts on a replica that is shut."""
    stage = DiskStage()
    stage.create("t", 1)
    stage.append("t")
    follow_node_2(stage, unclean_epoch=9)
    stage.disk.sync_failures = 1.0
    answer_that_the_log_is_empty(stage)
    assert any(note.startswith("t-0 takes no more writes") for note in stage.notes)
