"""DescribeSharePartitions: what a leader tells of the records of a share group that are under way."""

from pathlib import Path
from typing import Any

import pytest

from ottla.broker.api import k10900_describe_share_partitions as handler
from ottla.broker.delivery import describing
from ottla.broker.requests import RequestRefusedError
from ottla.broker.served import SPECS
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import ApiKey
from ottla.protocol.errors import ErrorCode as E
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from ottla.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.protocol.messages.describe_share_partitions import (
    DescribeSharePartitionsRequest,
    RequestPartition,
    RequestTopic,
)
from ottla.protocol.messages.find_coordinator import FindCoordinatorRequest
from ottla.protocol.messages.share_group_heartbeat import ShareGroupHeartbeatRequest
from ottla.protocol.private_requests import PRIVATE_REQUESTS, parsed
from ottla.share.partition import SharePartition
from ottla.share.settings import ShareSettings
from ottla.share.standing import State, StateBatch
from tests.harness.share.share_stage import ACCEPT, REJECT, RELEASE, RENEW, Member, ShareStage

BROKER = 4
LOCK_MS = 30_000


def told(stage: ShareStage, *wanted: tuple[str, int, int], group: str = "g", runs_max: int = 1000) -> Any:
    """The answer about (topic, partition, first offset); about all that is loaded without them."""
    topics = [RequestTopic(name, [RequestPartition(index, offset)]) for name, index, offset in wanted]
    return stage.ask(DescribeSharePartitionsRequest(group, topics or None, runs_max))


def only(answer: Any) -> Any:
    """The only partition of an answer."""
    assert answer.error_code == E.NONE, answer.error_message
    ((part,),) = (topic.partitions for topic in answer.topics)
    assert part.error_code == E.NONE, part.error_message
    return part


def runs_of(part: Any) -> list[tuple[int, int, State, int]]:
    return [(run.first_offset, run.last_offset, State(run.state), run.delivery_count) for run in part.runs]


def begun(stage: ShareStage, count: int = 10, **configs: str) -> tuple[bytes, Member]:
    topic = stage.topic()
    stage.configure("g", share_auto_offset_reset="earliest", **configs)
    stage.produce(count)
    return topic, stage.member(topic, name="m")


def joined(stage: ShareStage) -> None:
    """The group has a member, so its coordinator knows it."""
    stage.ask(FindCoordinatorRequest(key_type=0, coordinator_keys=["g"]), 4)
    assert stage.ask(ShareGroupHeartbeatRequest("g", "m", 0, None, ["jobs"])).error_code == E.NONE


# ---- the runs ------------------------------------------------------------------------------------------------------


def test_each_run_that_is_under_way_is_told_with_its_state(stage: ShareStage) -> None:
    stage.topic("dlq.jobs", errors_deadletterqueue_group_enable="true")
    configs = {"share_retry_backoff_ms": "5000", "errors_deadletterqueue_topic_name": "dlq.jobs"}
    _, member = begun(stage, share_renew_acknowledge_enable="true", **configs)
    member.fetch()
    stage.now += 1_000
    assert member.said((1, 1, [ACCEPT]), (2, 3, [RELEASE]), (5, 5, [REJECT])) == E.NONE
    assert member.said((9, 9, [RENEW]), renew=True) == E.NONE
    stage.now += 500
    part = only(told(stage))
    assert (part.partition_index, part.is_loaded, part.leader_epoch) == (0, True, 0)
    assert (part.start_offset, part.end_offset, part.readable_end_offset, part.lag) == (0, 10, 10, 9)
    assert (part.acquired_count, part.archiving_count, part.completed_count) == (6, 1, 1)
    counts = part.accepted_count, part.released_count, part.rejected_count, part.renewed_count, part.gap_count
    assert (*counts, part.lock_timeout_count, part.dead_letter_count) == (1, 2, 1, 1, 0, 0, 0)
    assert runs_of(part) == [
        (0, 0, State.ACQUIRED, 1),
        (2, 3, State.AVAILABLE, 1),
        (4, 4, State.ACQUIRED, 1),
        (5, 5, State.ARCHIVING, 1),
        (6, 8, State.ACQUIRED, 1),
        (9, 9, State.ACQUIRED, 1),
    ]
    first, back, _, letter, _, renewed = part.runs
    assert (first.member_id, first.client_id, first.client_host) == ("m", "stage", "/127.0.0.1")
    assert (first.held_ms, first.next_try_ms) == (1_500, -1)
    assert LOCK_MS - 1_500 <= first.lock_left_ms < LOCK_MS - 1_400
    assert LOCK_MS - 500 <= renewed.lock_left_ms < LOCK_MS - 400
    assert (back.member_id, back.client_id, back.held_ms, back.lock_left_ms) == (None, None, -1, -1)
    assert 4_500 <= back.next_try_ms < 4_600
    assert (letter.member_id, letter.is_rejected, letter.next_try_ms) == (None, True, -1)
    assert not any(run.is_being_written for run in part.runs)
    assert part.next_offset == -1


def test_what_may_be_delivered_again_now_is_told_and_what_is_new_or_done_is_not(stage: ShareStage) -> None:
    _, member = begun(stage, count=10)
    member.fetch(records=6, exactly=True)
    assert member.said((1, 5, [ACCEPT, RELEASE, ACCEPT, ACCEPT, ACCEPT])) == E.NONE
    part = only(told(stage))
    assert runs_of(part) == [(0, 0, State.ACQUIRED, 1), (2, 2, State.AVAILABLE, 1)]
    assert part.runs[1].next_try_ms == 0
    assert (part.end_offset, part.readable_end_offset) == (6, 10)


def test_the_groups_limits_and_its_pause_are_told(stage: ShareStage) -> None:
    begun(stage, share_partition_max_record_locks="300", share_delivery_count_limit="7")[1].fetch()
    answer = told(stage)
    assert (answer.record_locks_max, answer.delivery_count_limit, answer.lock_duration_ms) == (300, 7, LOCK_MS)
    assert (answer.paused, answer.paused_since_ms, answer.paused_by) == (False, -1, None)
    stage.configure("g", share_delivery_paused="true")
    answer = told(stage)
    assert (answer.paused, answer.paused_since_ms, answer.paused_by) == (True, stage.now, "the stage")


def test_a_members_name_is_told_as_long_as_it_has_a_session(stage: ShareStage) -> None:
    topic, member = begun(stage)
    member.fetch(records=1, exactly=True)
    other = stage.member(topic, name="n")
    other.fetch(records=1, exactly=True)
    member.vanish()
    (back, held) = only(told(stage)).runs
    assert (back.state, back.member_id) == (State.AVAILABLE, None), "its connection is lost: so are its locks"
    assert (held.member_id, held.client_host) == ("n", "/127.0.0.1")


# ---- pages and bounds ----------------------------------------------------------------------------------------------


def scattered(stage: ShareStage, count: int) -> Member:
    """Every second of these records is released, the others are acquired."""
    _, member = begun(stage, count)
    member.fetch(records=count, batch_size=count)
    types = [ACCEPT if at % 2 else RELEASE for at in range(count)]
    assert member.said((0, count - 1, types)) == E.NONE
    return member


def test_many_runs_are_told_in_pages(stage: ShareStage) -> None:
    scattered(stage, 20)
    found: list[int] = []
    offset, pages = 0, 0
    while offset != -1:
        part = only(told(stage, ("jobs", 0, offset), runs_max=3))
        assert len(part.runs) <= 3
        found += [run.first_offset for run in part.runs]
        offset = part.next_offset
        pages += 1
    assert found == list(range(0, 20, 2))
    assert pages == 4


def test_a_page_begins_at_its_offset_and_figures_alone_can_be_asked_for(stage: ShareStage) -> None:
    begun(stage)[1].fetch()
    part = only(told(stage, ("jobs", 0, 4)))
    assert runs_of(part) == [(4, 9, State.ACQUIRED, 1)]
    part = only(told(stage, ("jobs", 0, 0), runs_max=0))
    assert (part.runs, part.acquired_count, part.next_offset) == ([], 10, 0)
    part = only(told(stage, ("jobs", 0, 1 << 62), runs_max=-1))
    assert (part.runs, part.next_offset) == ([], -1)


def test_a_long_answer_is_built_in_slices(stage: ShareStage, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them examines or shows more than a few runs, and together they are the same as in one go."""
    member = scattered(stage, 400)
    whole = told(stage)
    assert len(only(whole).runs) == 200
    monkeypatch.setattr(describing, "RUNS_AT_ONCE", 7)
    monkeypatch.setattr(describing, "RUNS_EXAMINED_AT_ONCE", 10)
    asked = stage.send(DescribeSharePartitionsRequest("g", None))
    slices = 0
    while not asked.answered:
        stage.node.tick(stage.now)
        stage.settle()
        slices += 1
    assert asked.answer == whole
    assert slices >= 390 / 10
    member.fetch()


def test_an_answer_is_bounded_and_says_where_to_go_on(stage: ShareStage, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = stage.topic(partitions=3)
    stage.configure("g", share_auto_offset_reset="earliest")
    for index in range(3):
        stage.produce(6, index=index)
    member = stage.member(topic, partitions=3)
    for _ in range(3):
        member.ask()  # each brings the records of one partition
    for index in range(3):
        member.ask({(topic, index): [(0, 5, [ACCEPT, RELEASE] * 3)]}, records=0)
    monkeypatch.setattr(handler, "ANSWER_RUNS_MAX", 4)
    (described,) = told(stage).topics
    pages = [([run.first_offset for run in part.runs], part.next_offset) for part in described.partitions]
    assert pages == [([1, 3, 5], -1), ([1], 2), ([], 1)]
    monkeypatch.setattr(handler, "RUNS_MAX", 2)
    assert len(only(told(stage, ("jobs", 0, 0))).runs) == 2


def test_a_share_partition_that_is_dropped_meanwhile_ends_its_runs(
    stage: ShareStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = scattered(stage, 40).places[0][0]
    monkeypatch.setattr(describing, "RUNS_AT_ONCE", 3)
    asked = stage.send(DescribeSharePartitionsRequest("g", None))
    assert not asked.answered
    stage.node.coordinators.share.forget(stage.now, "g", topic)
    stage.run(100)
    assert len(only(asked.answer).runs) == 3


# ---- who answers, and who may ask ----------------------------------------------------------------------------------


def test_what_is_not_loaded_is_told_to_be_so_and_is_not_loaded_by_looking(stage: ShareStage) -> None:
    begun(stage)[1].fetch()
    joined(stage)
    stage.restart()
    for _ in range(2):
        part = only(told(stage, ("jobs", 0, 0)))
        assert (part.is_loaded, part.start_offset, part.runs, part.next_offset) == (False, -1, [], -1)
    assert told(stage).topics == []


def test_a_group_that_is_none_is_not_found(stage: ShareStage) -> None:
    assert told(stage, group="g").error_code == E.GROUP_ID_NOT_FOUND, "no group can exist yet"
    joined(stage)
    assert told(stage, group="g").error_code == E.NONE, "it exists, and has read nothing"
    for other in ("another", ""):
        answer = told(stage, group=other)
        assert (answer.error_code, answer.topics) == (E.GROUP_ID_NOT_FOUND, [])


def test_each_partition_that_is_not_led_here_has_its_error(stage: ShareStage) -> None:
    begun(stage)[1].fetch()
    answer = told(stage, ("jobs", 0, 0), ("jobs", 7, 0), ("nowhere", 0, 0))
    parts = [(topic.name, part.error_code) for topic in answer.topics for part in topic.partitions]
    unknown = E.UNKNOWN_TOPIC_OR_PARTITION
    assert parts == [("jobs", E.NONE), ("jobs", unknown), ("nowhere", unknown)]


class Rules:
    """Hides one topic."""

    def __init__(self, hidden: str) -> None:
        self._hidden = hidden

    def allows(self, identity: Any, operation: Operation, resource_type: ResourceType, name: str) -> bool:
        return name != self._hidden

    def allows_any(self, identity: Any, operation: Operation, resource_type: ResourceType) -> bool:
        return True

    def is_super(self, identity: Any) -> bool:
        return False


def test_a_topic_that_the_client_may_not_describe_is_left_out_whether_it_exists_or_not(stage: ShareStage) -> None:
    begun(stage)[1].fetch()
    for hidden in ("jobs", "nowhere"):
        stage.node.access.authorizer = Rules(hidden)
        answer = told(stage, (hidden, 0, 0))
        assert (answer.error_code, answer.topics) == (E.NONE, [])
    stage.node.access.authorizer = Rules("jobs")
    assert told(stage).topics == []
    stage.node.access.authorizer = Rules("g")
    answer = told(stage)
    assert (answer.error_code, answer.topics) == (E.GROUP_AUTHORIZATION_FAILED, [])


# ---- how clients find it -------------------------------------------------------------------------------------------


def test_it_is_listed_in_the_nodes_configs_and_not_in_its_api_versions(stage: ShareStage) -> None:
    keys = {each.api_key for each in stage.ask(ApiVersionsRequest("x", "1"), 4).api_keys}
    assert ApiKey.DESCRIBE_SHARE_PARTITIONS not in keys
    asked = DescribeConfigsResource(BROKER, "1", [PRIVATE_REQUESTS])
    (result,) = stage.ask(DescribeConfigsRequest([asked])).results
    (entry,) = result.configs
    key = ApiKey.DESCRIBE_SHARE_PARTITIONS
    assert parsed(entry.value)[key] == SPECS[key].versions
    assert (entry.read_only, entry.config_source) == (True, 5)


def test_a_node_without_it_refuses_it_as_any_unknown_key(stage: ShareStage, tmp_path: Path) -> None:
    del stage.node.served[ApiKey.DESCRIBE_SHARE_PARTITIONS]
    with pytest.raises(RequestRefusedError, match="API key 10900 is not served"):
        told(stage)


def test_no_slice_of_twenty_thousand_runs_is_longer_than_others() -> None:
    """Counted, not timed: a slice of runs costs some ten microseconds for each that it shows."""
    batches = [StateBatch(at * 2, at * 2, State.AVAILABLE, 1) for at in range(20_000)]
    done = [StateBatch(at * 2 + 1, at * 2 + 1, State.ACKNOWLEDGED, 1) for at in range(20_000)]
    machine = SharePartition(ShareSettings(), 0, batches + done)
    assert machine.runs.count >= 39_999
    offset: int | None = 0
    shown = pages = 0
    while offset is not None:
        page, offset = machine.in_flight_from(offset, describing.RUNS_AT_ONCE, describing.RUNS_EXAMINED_AT_ONCE)
        shown += len(page)
        pages += 1
        assert len(page) <= describing.RUNS_AT_ONCE
    assert (shown, pages) == (20_000, 101), "the last one finds that no more are there"
    assert machine.in_flight_from(0, 1_000_000, 30)[0][-1].first <= 30
