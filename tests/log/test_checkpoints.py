"""Checkpoints of offsets, on which a bit has flipped or that another program wrote."""

import pytest

from ottla.log.checkpoints import CheckpointUnreadableError, encode_offsets, read_offsets
from tests.harness.log.support import disk

PATH = "/data/log-start-offset-checkpoint"
OFFSETS = {("t", 0): 16, ("t", 1): 100, ("u.v-2", 12): 0}


@pytest.mark.parametrize("offsets", [OFFSETS, {}], ids=["some", "none"])
def test_a_flipped_bit_in_a_checkpoint_changes_no_offset(offsets: dict[tuple[str, int], int]) -> None:
    """A larger log start would hide records, and one that moves to another partition hides some of its records."""
    files, whole = disk(), encode_offsets(offsets)
    for bit in range(8 * len(whole)):
        octets = bytearray(whole)
        octets[bit // 8] ^= 1 << bit % 8
        files.write_atomically(PATH, bytes(octets))
        try:
            found = read_offsets(files, PATH)
        except CheckpointUnreadableError:
            continue
        assert found is not None
        assert offsets.items() <= found.items(), bit
        assert len(found) <= len(offsets) + 1, "the checksum under another name"


def test_a_checkpoint_without_a_checksum_is_that_of_another_program() -> None:
    files = disk()
    files.write_atomically(PATH, b"0\n2\nt 0 16\nt 1 100\n")
    assert read_offsets(files, PATH) == {("t", 0): 16, ("t", 1): 100}
