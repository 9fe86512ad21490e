"""What a client makes of the answers of leaders about a share group: pages, moved leaders, nodes that can't answer."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from ottla.cli.share_inspection import as_json, gaps, reasons, run_rows, summary
from ottla.client import BrokerError, ClientError, UnsupportedVersionError, share_partitions
from ottla.client.client import Client, Topic
from ottla.client.share_groups import ShareOffset
from ottla.client.share_partitions import (
    FrequentReason,
    RunState,
    ShareGroup,
    describe_share_partitions,
    frequent_reasons,
)
from ottla.protocol.errors import ErrorCode as E
from ottla.protocol.messages.describe_share_partitions import (
    DescribeSharePartitionsRequest,
    DescribeSharePartitionsResponse,
    Reason,
    ResponsePartition,
    ResponseTopic,
    Run,
)
from ottla.protocol.messages.share_group_describe import DescribedGroup, Member

Asked = list[tuple[int, list[tuple[int, int]]]]
"""The node, and (partition, first offset) of each request."""
Answer = Callable[[int, int, int], ResponsePartition]
"""Returns a node's answer about a partition from an offset on."""


class FakeClient:
    """Knows the leaders of topic `t`; each look at the metadata takes the next ones."""

    def __init__(self, *leaders: tuple[int, ...]) -> None:
        self._leaders = list(leaders)
        self._known: Topic | None = None

    def forget_topics(self) -> None:
        self._known = None

    def known_topic(self, name: str) -> Topic:
        if self._known is None:
            leaders = self._leaders.pop(0) if len(self._leaders) > 1 else self._leaders[0]
            self._known = Topic(name, bytes(16), leaders, False)
        return self._known


class World:
    """The cluster as `describe_share_partitions` sees it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: Asked = []
        self.errors: dict[int, Exception | E] = {}
        self.answer: Answer = lambda node, index, offset: loaded(index)
        self.waits: list[float] = []
        monkeypatch.setattr(share_partitions, "describe_share_group", self._group)
        monkeypatch.setattr(share_partitions, "share_group_offsets", self._offsets)
        monkeypatch.setattr(share_partitions, "ask_nodes", self._ask)
        monkeypatch.setattr(share_partitions.time, "sleep", self.waits.append)
        self.partitions = 2

    def describe(self, *leaders: tuple[int, ...], runs_max: int = 1000) -> ShareGroup:
        client: Any = FakeClient(*leaders)
        return describe_share_partitions(client, "g", runs_max=runs_max)

    def _group(self, client: Client, group: str) -> DescribedGroup:
        return DescribedGroup(group_id=group, group_state="Stable", members=[Member("m")])

    def _offsets(self, client: Client, group: str) -> list[ShareOffset]:
        return [ShareOffset("t", index, 5, 3) for index in range(self.partitions)]

    def _ask(self, client: Client, requests: Mapping[int, DescribeSharePartitionsRequest]) -> dict[int, Any]:
        answers: dict[int, Any] = {}
        for node, request in requests.items():
            (topic,) = request.topics or ()
            wanted = [(each.partition_index, each.from_offset) for each in topic.partitions]
            self.asked.append((node, wanted))
            error = self.errors.get(node)
            if isinstance(error, ClientError):
                answers[node] = error
            elif isinstance(error, E):
                answers[node] = DescribeSharePartitionsResponse(error_code=error, error_message=error.message)
            else:
                parts = [self.answer(node, *each) for each in wanted]
                answers[node] = DescribeSharePartitionsResponse(
                    paused=True,
                    paused_since_ms=1_700_000_000_000,
                    paused_by="ada",
                    record_locks_max=200,
                    delivery_count_limit=5,
                    lock_duration_ms=30_000,
                    topics=[ResponseTopic("t", bytes(16), parts)],
                )
        return answers


def loaded(index: int, *runs: Run, next_offset: int = -1) -> ResponsePartition:
    return ResponsePartition(
        index,
        is_loaded=True,
        start_offset=7,
        end_offset=20,
        readable_end_offset=30,
        lag=23,
        acquired_count=4,
        archiving_count=1,
        accepted_count=2,
        dead_letter_count=6,
        next_offset=next_offset,
        runs=list(runs),
    )


def held(first: int, last: int) -> Run:
    return Run(first, last, 1, 1, False, False, "m", "ann", "/10.0.0.1", 1_500, 28_500)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_each_leader_is_asked_once_about_all_that_it_leads(world: World) -> None:
    world.partitions = 3
    found = world.describe((1, 2, 1))
    assert world.asked == [(1, [(0, -1), (2, -1)]), (2, [(1, -1)])]
    assert [(part.partition, part.start_offset, part.lag) for part in found.partitions] == [
        (0, 7, 23),
        (1, 7, 23),
        (2, 7, 23),
    ]
    assert (found.is_paused, found.paused_since_ms, found.paused_by) == (True, 1_700_000_000_000, "ada")
    assert found.limits == {"record_locks": 200, "deliveries": 5, "lock_ms": 30_000}


def test_pages_are_joined_up_to_the_bound(world: World) -> None:
    world.partitions = 1

    def page(node: int, index: int, offset: int) -> ResponsePartition:
        first = max(offset, 7)
        more = first + 2 if first < 11 else -1
        return loaded(index, held(first, first), held(first + 1, first + 1), next_offset=more)

    world.answer = page
    (part,) = world.describe((1,)).partitions
    assert [run.first_offset for run in part.runs] == [7, 8, 9, 10, 11, 12]
    assert not part.has_more
    assert [offset for _, ((_, offset),) in world.asked] == [-1, 9, 11]
    (part,) = world.describe((1,), runs_max=3).partitions
    assert ([run.first_offset for run in part.runs], part.has_more) == ([7, 8, 9], True)


def test_a_partition_that_has_moved_is_asked_for_at_its_new_leader(world: World) -> None:
    """From its beginning, as its runs are others; what did not move is not asked for again."""

    def answer(node: int, index: int, offset: int) -> ResponsePartition:
        if (node, index) == (1, 1):
            return ResponsePartition(index, E.NOT_LEADER_OR_FOLLOWER)
        return loaded(index, held(node, node))

    world.answer = answer
    found = world.describe((1, 1), (1, 2))
    assert world.asked == [(1, [(0, -1), (1, -1)]), (2, [(1, -1)])]
    assert [part.runs[0].first_offset for part in found.partitions] == [1, 2]
    assert len(world.waits) == 1


def test_a_partition_without_a_leader_is_given_up_in_the_end(world: World) -> None:
    found = world.describe((1, -1))
    assert [part.why_unknown for part in found.partitions] == [None, "it has no leader"]
    assert (found.partitions[1].start_offset, found.partitions[1].lag) == (5, 3), "the coordinator knows this much"
    assert len(world.waits) == 3
    assert list(gaps(found)) == ["t-1 is missing: it has no leader."]


def test_a_node_that_fails_leaves_the_others_answers(world: World) -> None:
    world.errors[2] = ClientError("No broker can be reached at ::1:9.")
    found = world.describe((1, 2))
    assert [part.why_unknown for part in found.partitions] == [None, "No broker can be reached at ::1:9"]
    world.errors[2] = E.GROUP_AUTHORIZATION_FAILED
    assert "node 2: " in (world.describe((1, 2)).partitions[1].why_unknown or "")


def test_a_topic_that_is_left_out_and_a_group_that_is_gone(world: World) -> None:
    world.answer = lambda node, index, offset: loaded(index + 10)
    found = world.describe((1, 1))
    assert {part.why_unknown for part in found.partitions} == {"you may not describe its topic"}
    world.errors[1] = E.GROUP_ID_NOT_FOUND
    with pytest.raises(BrokerError, match="GROUP_ID_NOT_FOUND"):
        world.describe((1, 1))


def test_another_kafka_shows_what_its_coordinator_knows(world: World) -> None:
    world.errors[1] = UnsupportedVersionError("Node 1 does not serve it.")
    found = world.describe((1, 1))
    assert (found.unserved_by, found.limits, found.is_paused) == ((1,), None, None)
    assert [(part.start_offset, part.lag, part.runs) for part in found.partitions] == [(5, 3, ()), (5, 3, ())]
    assert summary(found) == "g: Stable, 1 member, lag 6."
    assert list(gaps(found)) == [
        "Which records are acquired, or wait for their next delivery, is not known: node 1 does not report it, because "
        "it is no Ottla node, or one of an earlier version."
    ]


def test_what_a_person_reads(world: World) -> None:
    """Every state of a run, as rows and as JSON."""
    runs = [
        held(7, 9),
        Run(10, 10, 0, 2, False, False, next_try_ms=4_500, reason="busy", reason_delivery_count=2),
        Run(11, 11, 0, 0, False, False, next_try_ms=9_000),
        Run(12, 12, 0, 1, False, False, next_try_ms=0),
        Run(13, 13, 3, 5, False, True),
    ]
    world.partitions = 1
    world.answer = lambda node, index, offset: loaded(index, *runs, next_offset=14)
    found = world.describe((1,), runs_max=5)
    (part,) = found.partitions
    assert [run.state for run in part.runs] == [
        RunState.ACQUIRED,
        RunState.BACKING_OFF,
        RunState.DELAYED,
        RunState.AVAILABLE,
        RunState.ARCHIVING,
    ]
    lines = [" ".join("-" if each is None else str(each) for each in row) for row in run_rows(part)]
    assert lines == [
        "t 0 7 9 acquired 1 - m ann /10.0.0.1 1500 28500 -",
        "t 0 10 10 backing off 2 4500 - - - - - busy",
        "t 0 11 11 delayed 0 9000 - - - - - -",
        "t 0 12 12 available 1 0 - - - - - -",
        "t 0 13 13 archiving 5 - - - - - - -",
    ]
    assert summary(found) == (
        "g: paused since 2023-11-14T22:13:20.000Z, by ada, Stable, 1 member, lag 23, 4 records acquired, "
        "6 dead letters written, 1 still to be written."
    )
    assert list(reasons(found)) == []
    assert list(gaps(found)) == ["t-0 has more than these 5 ranges: see --max-ranges."]
    shown = as_json(found)
    assert shown["limits"]["deliveries"] == 5
    assert shown["partitions"][0]["runs"][4]["is_rejected"]


def test_the_reasons_of_all_partitions_are_counted_together(world: World) -> None:
    def answer(node: int, index: int, offset: int) -> ResponsePartition:
        part = loaded(index)
        part.reasons = [Reason("busy", 3, 10), Reason("broken", 4 + index, 20 + index)]
        return part

    world.answer = answer
    found = world.describe((1, 2))
    assert frequent_reasons(found.partitions) == (FrequentReason("broken", 9, 21), FrequentReason("busy", 6, 10))
    assert list(reasons(found)) == [
        'Most common reasons of the latest failures: "broken" (9 failures), "busy" (6 failures).'
    ]
