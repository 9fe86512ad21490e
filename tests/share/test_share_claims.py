"""Batches that claim more records than their bytes can hold: stored ones cost a share group no walk and no letters."""

from pathlib import Path
from struct import Struct

import pytest

from ottla.broker.delivery.batch_parts import Slices
from ottla.broker.delivery.dead_letters import LETTERS_PER_STEP, DeadLetterRange
from ottla.log.answers import Origin
from ottla.protocol.records.errors import CorruptRecordsError
from tests.harness.lying_batches import claiming
from tests.harness.share.share_stage import REJECT, ShareStage

COUNT_MAX = 2**31 - 1
DEAD = {"errors_deadletterqueue_topic_name": "dlq.jobs"}
_int32 = Struct(">i").pack_into


BODIES = {
    "nothing": claiming(COUNT_MAX, b""),
    "records of negative length": claiming(COUNT_MAX, b"\x05" * 4_300),
    "a varint that never ends": claiming(COUNT_MAX, b"\xff" * 1_000_000),
    "little, compressed": claiming(1_000_000, b"\x05" * 4_300, codec=4),
    "a bomb": claiming(COUNT_MAX, bytes(4_000_000), codec=4),
}


@pytest.mark.parametrize("exactly", [False, True])
@pytest.mark.parametrize("batch", BODIES.values(), ids=BODIES)
def test_a_claim_that_can_not_be_true_is_passed_over(stage: ShareStage, batch: bytearray, exactly: bool) -> None:
    topic = stage.topic()
    stage.configure("g", share_auto_offset_reset="earliest")
    stage.produce(3)
    stage.put(batch, origin=Origin.REPLICATION)
    behind = stage.produce(2)
    member = stage.member(topic)
    got = [
        offset
        for _ in range(3)
        for first, last, _ in member.fetch(exactly=exactly, records=10)
        for offset in range(first, last + 1)
    ]
    assert got == [0, 1, 2, behind, behind + 1]
    assert sum("can't be read" in note for note in stage.notes) <= 1


@pytest.mark.parametrize("batch", BODIES.values(), ids=BODIES)
def test_parts_of_such_a_batch_are_not_looked_for(tmp_path: Path, batch: bytearray) -> None:
    """Whoever asks for a part of it is refused as soon as its bytes are through, and told the same the next time."""
    from ottla.log.files import DiskFiles

    notes: list[str] = []
    slices = Slices(notes.append)
    file = DiskFiles().open(str(tmp_path / "batch"), create=True)
    file.write(batch)
    for _ in range(3):
        with pytest.raises(CorruptRecordsError):
            slices.cut(file, 0, len(batch), 0, 10)
    assert len(notes) == 1


def test_a_varint_that_never_ends_is_refused(tmp_path: Path) -> None:
    from ottla.log.files import DiskFiles

    batch = claiming(10, b"\xff" * 100_000)
    file = DiskFiles().open(str(tmp_path / "batch"), create=True)
    file.write(batch)
    with pytest.raises(CorruptRecordsError, match="too long"):
        Slices(lambda note: None).cut(file, 0, len(batch), 0, 10)


def test_a_batch_that_can_not_be_read_gets_one_letter(stage: ShareStage) -> None:
    """Not one for each record that it claims."""
    stage.topic("dlq.jobs", 1, errors_deadletterqueue_group_enable="true")
    topic = stage.topic()
    stage.configure("g", share_auto_offset_reset="earliest", **DEAD)
    stage.produce(1)
    stage.put(claiming(150, b"\xff" * 1_050), origin=Origin.REPLICATION)
    stage.produce(1)
    member = stage.member(topic)
    asked = member.ask()
    part = member.part(asked)
    ranges = [(each.first_offset, each.last_offset) for each in part.acquired_records]
    assert (ranges[0][0], ranges[-1][1]) == (0, 151), "its claim is bounded by its bytes, so it is sent as it is"
    assert member.said((0, 151, [REJECT])) == 0
    stage.run()
    letters = [dict(letter.headers) for letter in stage.read("dlq.jobs")]
    assert [letter["__dlq.errors.offset"] for letter in letters] == [b"0", b"1", b"151"]
    assert letters[1]["__dlq.errors.last.offset"] == b"150"
    assert stage.node.coordinators.share.describe(stage.now)[0].start_offset == 152


def test_letters_that_an_older_version_owes_for_phantoms_are_few(stage: ShareStage) -> None:
    """It may have acquired the claim as it stood, and given it up."""
    stage.topic("dlq.jobs", 1, errors_deadletterqueue_group_enable="true")
    topic = stage.topic()
    stage.configure("g", share_auto_offset_reset="earliest", **DEAD)
    stage.produce(1)
    stage.put(claiming(COUNT_MAX, b""), origin=Origin.REPLICATION)
    stage.produce(1)
    stage.member(topic).fetch(records=1, exactly=True)
    hosted = stage.node.coordinators.share.known("g", (topic, 0))
    assert hosted is not None
    letters = stage.node.coordinators.share.letters
    parcel = DeadLetterRange(hosted, 1, COUNT_MAX + 2, 1, True)
    assert letters._part_end(parcel, LETTERS_PER_STEP) == COUNT_MAX + 1
    assert len(letters._records(parcel)) == 2
