"""A follower's fetch loop: what it asks, what it makes of answers, when it rests."""

import pytest

from ottla.protocol.errors import ErrorCode as E
from ottla.protocol.messages.fetch import (
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from ottla.replica.divergence import EpochEnd
from ottla.replica.fetcher import NEW_MAX, Diverges, Fetcher, FetchLimits, OutOfRange, Position, Records

TOPIC = bytes(range(16))
A, B = (TOPIC, 0), (TOPIC, 1)
LIMITS = FetchLimits(500, 1, 10 << 20, 1 << 20, 1_000)
NOW = 50_000


def asked(request: FetchRequest | None) -> dict[int, tuple[int, int, int]]:
    """Epoch, offset and last epoch that a request names, by partition."""
    assert request is not None
    return {
        part.partition: (part.current_leader_epoch, part.fetch_offset, part.last_fetched_epoch)
        for topic in request.topics
        for part in topic.partitions
    }


def answer(*parts: PartitionData, session: int = 9, error: int = 0) -> FetchResponse:
    topics = [FetchableTopicResponse(topic_id=TOPIC, partitions=list(parts))] if parts else []
    return FetchResponse(error_code=error, session_id=session, responses=topics)


@pytest.fixture
def fetcher() -> Fetcher:
    made = Fetcher(2, LIMITS)
    made.follow(A, 4, Position(10, 3, 0))
    made.follow(B, 4, Position(0, -1, 0))
    return made


def test_a_session_names_what_is_new(fetcher: Fetcher) -> None:
    first = fetcher.request(NOW, 77)
    assert asked(first) == {0: (4, 10, 3), 1: (4, 0, -1)}
    assert first is not None
    assert (first.session_id, first.session_epoch) == (0, 0)
    assert first.replica_state is not None
    assert (first.replica_state.replica_id, first.replica_state.replica_epoch) == (2, 77)
    assert fetcher.request(NOW, 77) is None, "one at a time"
    news = fetcher.answered(NOW, answer(PartitionData(0, records=b"x" * 70, high_watermark=10, log_start_offset=0)))
    assert news == [Records(A, 4, 10, memoryview(b"x" * 70), 10, 0)]
    fetcher.at(A, 4, Position(12, 4, 0))
    second = fetcher.request(NOW, 77)
    assert second is not None
    assert (second.session_id, second.session_epoch) == (9, 1)
    assert asked(second) == {0: (4, 12, 4)}
    fetcher.drop(B)
    assert fetcher.answered(NOW, answer(PartitionData(1, high_watermark=1))) == []
    third = fetcher.request(NOW, 77)
    assert third is not None
    assert [topic.partitions for topic in third.forgotten_topics_data] == [[1]]
    fetcher.check()


def test_an_empty_answer_keeps_the_epoch(fetcher: Fetcher) -> None:
    """KAFKA-15510."""
    fetcher.request(NOW, 1)
    fetcher.answered(NOW, answer(PartitionData(0, high_watermark=3), PartitionData(1)))
    fetcher.at(A, 4, Position(10, 3, 0))
    fetcher.at(B, 4, Position(0, -1, 0))
    assert asked(fetcher.request(NOW, 1)) == {}


def test_an_answer_to_an_old_question_counts_for_nothing(fetcher: Fetcher) -> None:
    fetcher.request(NOW, 1)
    fetcher.follow(A, 5, Position(10, 3, 0))
    news = fetcher.answered(NOW, answer(PartitionData(0, records=b"x" * 70), PartitionData(1, E.OFFSET_OUT_OF_RANGE)))
    assert news == [OutOfRange(B, 4)]
    assert asked(fetcher.request(NOW, 1)) == {0: (5, 10, 3)}


def test_a_log_that_diverges_is_busy_until_it_is_cut(fetcher: Fetcher) -> None:
    fetcher.request(NOW, 1)
    news = fetcher.answered(NOW, answer(PartitionData(0, diverging_epoch=EpochEndOffset(2, 7))))
    assert news == [Diverges(A, EpochEnd(2, 7))]
    fetcher.request(NOW, 1)
    assert fetcher.answered(NOW, answer(PartitionData(0, diverging_epoch=EpochEndOffset(2, 7)))) == []
    fetcher.at(A, 3, Position(7, 2, 0))
    assert asked(fetcher.request(NOW, 1)) == {}, "that was another epoch's"
    fetcher.answered(NOW, answer())
    fetcher.at(A, 4, Position(7, 2, 0))
    assert asked(fetcher.request(NOW, 1)) == {0: (4, 7, 2)}


def test_a_leader_of_a_newer_epoch_is_left_alone_until_we_know_it(fetcher: Fetcher) -> None:
    fetcher.request(NOW, 1)
    fetcher.answered(NOW, answer(PartitionData(0, E.FENCED_LEADER_EPOCH)))
    later = NOW + 1_000_000
    assert asked(fetcher.request(later, 1)) == {}
    fetcher.answered(later, answer())
    fetcher.follow(A, 5, Position(10, 3, 0))
    assert asked(fetcher.request(later, 1)) == {0: (5, 10, 3)}


def test_rests_grow_to_the_longest_and_end_with_progress() -> None:
    fetcher = Fetcher(2, LIMITS)
    fetcher.follow(A, 4, Position(10, 3, 0))
    now, rests = NOW, []
    for _ in range(8):
        assert fetcher.request(now, 1) is not None
        fetcher.answered(now, answer(PartitionData(0, E.NOT_LEADER_OR_FOLLOWER)))
        due = fetcher.deadline()
        assert due is not None
        rests.append(due - now)
        assert fetcher.request(due - 1, 1) is None
        now = due
    assert rests == [20, 40, 80, 160, 320, 640, 1_000, 1_000]
    fetcher.request(now, 1)
    fetcher.answered(now, answer(PartitionData(0, records=b"x" * 70)))
    fetcher.at(A, 4, Position(11, 3, 0))
    assert fetcher.deadline() == 0
    fetcher.check()


@pytest.mark.parametrize("error", [E.FETCH_SESSION_ID_NOT_FOUND, E.INVALID_FETCH_SESSION_EPOCH])
def test_a_session_that_is_gone_begins_anew_at_once(fetcher: Fetcher, error: E) -> None:
    fetcher.request(NOW, 1)
    fetcher.answered(NOW, answer(session=9))
    fetcher.request(NOW, 1)
    fetcher.answered(NOW, answer(session=0, error=error))
    again = fetcher.request(NOW, 1)
    assert again is not None
    assert (again.session_id, again.session_epoch) == (0, 0)
    assert sorted(asked(again)) == [0, 1]


def test_a_leader_that_does_not_answer_is_left_alone(fetcher: Fetcher) -> None:
    fetcher.request(NOW, 1)
    fetcher.unanswered(NOW)
    assert fetcher.deadline() == NOW + 1_000
    assert fetcher.request(NOW + 999, 1) is None
    assert sorted(asked(fetcher.request(NOW + 1_000, 1))) == [0, 1]


def test_a_leader_without_room_for_sessions_is_told_everything_each_time(fetcher: Fetcher) -> None:
    for _ in range(2):
        assert sorted(asked(fetcher.request(NOW, 1))) == [0, 1]
        fetcher.answered(NOW, answer(session=0))


def test_nothing_is_fetched_while_records_are_on_their_way_to_the_disk(fetcher: Fetcher) -> None:
    """A fetch says that its log has all before its offset: where that must be on the disk, it waits for the fsync."""
    fetcher.request(NOW, 77)
    fetcher.answered(NOW, answer(PartitionData(0, records=b"x" * 70)))
    fetcher.at(A, 4, Position(12, 4, 0))
    fetcher.wait_for_sync(A)
    assert fetcher.deadline() is None
    assert fetcher.request(NOW, 77) is None, "nor what else there is: it would wait at the leader"
    fetcher.at(A, 4, Position(12, 4, 0))
    assert asked(fetcher.request(NOW, 77)) == {0: (4, 12, 4)}


def test_a_log_that_takes_nothing_is_left_out(fetcher: Fetcher) -> None:
    fetcher.stop(A)
    assert asked(fetcher.request(NOW, 77)) == {1: (4, 0, -1)}


def test_a_log_that_was_cut_is_confirmed_by_an_answer_to_its_new_end(fetcher: Fetcher) -> None:
    fetcher.request(NOW, 1)
    fetcher.cut(A)
    fetcher.at(A, 4, Position(7, 3, 0))
    fetcher.answered(NOW, answer(PartitionData(0, high_watermark=10), PartitionData(1)))
    assert fetcher.take_confirmed() == [], "that fetch named the old end"
    fetcher.request(NOW, 1)
    fetcher.answered(NOW, answer(PartitionData(0, E.NOT_LEADER_OR_FOLLOWER)))
    assert fetcher.take_confirmed() == [], "the leader does not count it yet"
    fetcher.request(NOW + 20, 1)
    fetcher.unanswered(NOW + 20)
    assert fetcher.take_confirmed() == []
    fetcher.request(NOW + 2_000, 1)
    fetcher.answered(NOW, answer())
    assert fetcher.take_confirmed() == [A], "the leader leaves out a partition without news"
    fetcher.check()
    fetcher.cut(A)
    fetcher.drop(A)
    fetcher.check()


def test_thousands_of_partitions_enter_the_session_some_at_a_time() -> None:
    fetcher = Fetcher(2, LIMITS)
    for index in range(2 * NEW_MAX + 1):
        fetcher.follow((TOPIC, index), 4, Position(0, -1, 0))
    named: list[int] = []
    for waits_ms in (0, 0, LIMITS.max_wait_ms):
        assert fetcher.deadline() == 0
        request = fetcher.request(NOW, 1)
        assert request is not None
        assert request.max_wait_ms == waits_ms
        assert not request.forgotten_topics_data
        assert len(asked(request)) <= NEW_MAX
        named += asked(request)
        fetcher.answered(NOW, answer())
    assert named == list(range(2 * NEW_MAX + 1))
    assert asked(fetcher.request(NOW, 1)) == {}


def test_a_leader_without_room_for_sessions_is_told_of_thousands_at_once() -> None:
    fetcher = Fetcher(2, LIMITS)
    for index in range(NEW_MAX + 1):
        fetcher.follow((TOPIC, index), 4, Position(0, -1, 0))
    fetcher.request(NOW, 1)
    fetcher.answered(NOW, answer(session=0))
    for _ in range(2):
        assert len(asked(fetcher.request(NOW, 1))) == NEW_MAX + 1
        fetcher.answered(NOW, answer(session=0))
