"""What an incremental fetch answer leaves out: only what the client has heard, and has not passed over."""

from ottla.broker.fetch.sessions import FetchPartition


def told(partition: FetchPartition, *, diverging: bool = False) -> bool:
    """Whether an answer with a high watermark of 106 and no records says something of this partition."""
    return partition.tell(0, has_records=False, high_watermark=106, log_start_offset=0, diverging=diverging)


def test_what_was_told_is_not_told_again() -> None:
    partition = FetchPartition("t", 0, 106, 1 << 20, current_leader_epoch=3)
    assert told(partition)
    assert not told(partition)
    partition.ask(FetchPartition("t", 0, 107, 1 << 20, current_leader_epoch=3))
    assert not told(partition)


def test_the_high_watermark_is_told_again_after_a_cut() -> None:
    """The follower passes over it where its log has to be cut first (seed 7 of the cluster workload)."""
    partition = FetchPartition("t", 0, 108, 1 << 20, current_leader_epoch=3)
    assert told(partition, diverging=True)
    partition.ask(FetchPartition("t", 0, 106, 1 << 20, current_leader_epoch=3))
    assert told(partition)


def test_the_high_watermark_is_told_again_in_a_new_epoch() -> None:
    """Of answers to the old one a follower that has heard of the new one believes nothing."""
    partition = FetchPartition("t", 0, 106, 1 << 20, current_leader_epoch=3)
    assert told(partition)
    partition.ask(FetchPartition("t", 0, 106, 1 << 20, current_leader_epoch=4))
    assert told(partition)
