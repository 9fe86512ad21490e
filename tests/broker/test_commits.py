"""What a client is told of a commit of the metadata store that is slow, refused, overtaken by another, or lost."""

import ast
from collections.abc import Sequence
from pathlib import Path

import pytest

from ottla.broker.cluster import metadata
from ottla.broker.cluster.metadata import PLANS_MAX, RETRY_MS, Planned, RowBatch, RowChange, planned
from ottla.metadata.memory import MemoryStore
from ottla.metadata.row_kinds import encoded
from ottla.metadata.store import ABSENT, Changes, Put, StoreError, VersionGuard, Write
from ottla.metadata.topics import PartitionRecord, TopicRecord, key_of
from ottla.protocol.errors import ErrorCode as E
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.messages.metadata import MetadataRequest
from tests.harness.node_stage import Asked, Ended, NodeStage
from tests.test_tidy import TOP


class Store(MemoryStore):
    """`fails`: it can't be written; `blind`: it can't be read."""

    __slots__ = ("blind", "fails")

    def __init__(self) -> None:
        super().__init__()
        self.blind = self.fails = False

    def commit(self, writes: Sequence[Write], guards: Sequence[VersionGuard] = ()) -> int:
        if self.fails:
            raise StoreError("the disk is full")
        return super().commit(writes, guards)

    def changes_since(self, generation: int) -> Changes | None:
        if self.blind:
            raise StoreError("nobody is there")
        return super().changes_since(generation)


class Stage(NodeStage):
    """Commits end when the test says so."""

    store: Store

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, store=Store())
        self.hold_commits = True

    def settle_commits(self) -> None:
        """Let everything end that is under way, and everything behind it."""
        self.hold_commits = False
        self.run()
        self.hold_commits = True

    def overtake(self, name: str) -> None:
        """Another writer makes the topic, which this node is not told."""
        record = TopicRecord(bytes(15) + b"\x07", {}, (PartitionRecord((2,), (2,), 2),))
        self.store.commit([Put(key_of(name), encoded(record))])


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def creating(stage: Stage, *names: str, connection: int | None = None) -> Asked:
    asked = CreateTopicsRequest(topics=[CreatableTopic(name, 1, 1) for name in names])
    return stage.send(asked, connection=connection)


def codes(asked: Asked) -> list[int]:
    assert asked.answered
    return [topic.error_code for topic in asked.answer.topics]


# ---- slow ----------------------------------------------------------------------------------------------------------


def test_others_are_served_while_the_store_is_slow(stage: Stage) -> None:
    asked = creating(stage, "t")
    assert stage.ask(MetadataRequest(topics=None)).topics == []
    stage.run(50_000)
    assert not asked.answered
    stage.settle_commits()
    assert codes(asked) == [E.NONE]
    assert [topic.name for topic in stage.ask(MetadataRequest(topics=None)).topics] == ["t"]


def test_the_next_request_of_the_connection_waits(stage: Stage) -> None:
    connection = stage.connect()
    asked = creating(stage, "t", connection=connection)
    behind = stage.send(MetadataRequest(topics=None), connection=connection)
    assert not behind.answered
    stage.settle_commits()
    assert codes(asked) == [E.NONE]
    assert [topic.name for topic in behind.answer.topics] == ["t"]


def test_one_of_two_who_make_the_same_topic_at_once_is_told_that_it_is_there(stage: Stage) -> None:
    first, second = creating(stage, "t"), creating(stage, "t")
    assert len(stage.commits) == 1
    stage.settle_commits()
    assert (codes(first), codes(second)) == ([E.NONE], [E.TOPIC_ALREADY_EXISTS])


def test_a_change_whose_client_is_gone_is_made_all_the_same(stage: Stage) -> None:
    connection = stage.connect()
    creating(stage, "t", connection=connection)
    stage.hang_up(connection)
    stage.settle_commits()
    assert "t" in stage.node.image.topics
    assert not len(stage.node.parking)


def test_what_a_crash_cuts_short_is_there_or_not(stage: Stage) -> None:
    creating(stage, "done")
    stage.commit()
    creating(stage, "lost")
    stage.restart(clean=False)
    assert sorted(stage.node.image.topics) == ["done"]


def test_changes_that_are_too_many_fail(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "CHANGES_MAX", 2)
    asked = [creating(stage, f"t{number}") for number in range(4)]
    stage.run()
    assert codes(asked[3]) == [E.KAFKA_STORAGE_ERROR]
    stage.settle_commits()
    assert [codes(each) for each in asked[:3]] == [[E.NONE]] * 3


# ---- refused -------------------------------------------------------------------------------------------------------


def test_a_store_that_fails_is_told(stage: Stage) -> None:
    asked, behind = creating(stage, "t"), creating(stage, "later")
    stage.store.fails = True
    stage.commit()
    stage.store.fails = False
    stage.settle_commits()
    assert codes(asked) == [E.KAFKA_STORAGE_ERROR]
    assert asked.answer.topics[0].error_message == "the disk is full"
    assert codes(behind) == [E.NONE]
    assert sorted(stage.node.image.topics) == ["later"]


# ---- overtaken -----------------------------------------------------------------------------------------------------


def test_who_is_overtaken_is_told_what_another_writer_made(stage: Stage) -> None:
    asked = creating(stage, "t", "u")
    stage.overtake("t")
    stage.settle_commits()
    assert codes(asked) == [E.TOPIC_ALREADY_EXISTS, E.NONE]
    assert stage.node.image.topics["t"].partitions[0].leader == 2
    assert stage.node.replicas.get("t", 0) is None
    assert stage.node.image.generation == stage.store.generation


def test_what_others_committed_comes_with_a_commit_that_is_done(stage: Stage) -> None:
    asked = creating(stage, "t")
    stage.overtake("u")
    stage.settle_commits()
    assert codes(asked) == [E.NONE]
    assert sorted(stage.node.image.topics) == ["t", "u"]
    assert stage.node.image.generation == stage.store.generation


def test_who_is_overtaken_again_and_again_is_told_so(stage: Stage) -> None:
    topics = [f"t{number}" for number in range(PLANS_MAX + 1)]
    asked = creating(stage, *topics)
    for name in topics[:PLANS_MAX]:
        stage.overtake(name)
        stage.commit()
        stage.settle()
    stage.run()
    assert codes(asked) == [E.TOPIC_ALREADY_EXISTS] * (PLANS_MAX - 1) + [E.KAFKA_STORAGE_ERROR] * 2
    assert topics[-1] not in stage.node.image.topics


# ---- lost ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("done", [True, False])
def test_a_lost_answer_is_looked_up(stage: Stage, done: bool) -> None:
    first, second = creating(stage, "t"), creating(stage, "t")
    stage.lose_commit(done=done)
    stage.settle_commits()
    assert (codes(first), codes(second)) == ([E.NONE], [E.TOPIC_ALREADY_EXISTS])
    assert stage.node.image.generation == stage.store.generation


def test_a_lost_commit_that_was_not_done_is_not_taken_for_that_of_another_writer(stage: Stage) -> None:
    asked = creating(stage, "t")
    stage.overtake("t")
    stage.lose_commit(done=False)
    stage.settle_commits()
    assert codes(asked) == [E.TOPIC_ALREADY_EXISTS]


def test_a_lost_commit_that_was_done_counts_though_another_writer_came_behind_it(stage: Stage) -> None:
    asked = creating(stage, "t")
    stage.lose_commit(done=True)
    stage.overtake("t")
    stage.settle_commits()
    assert codes(asked) == [E.NONE]


def test_nobody_is_told_anything_before_a_lost_answer_is_looked_up(stage: Stage) -> None:
    asked = creating(stage, "t")
    stage.store.blind = True
    stage.lose_commit(done=True)
    stage.run(10 * RETRY_MS)
    assert not asked.answered
    stage.store.blind = False
    stage.run(RETRY_MS)
    assert codes(asked) == [E.NONE]


# ---- the loop ------------------------------------------------------------------------------------------------------

ON_THE_LOOP = {
    "cluster/metadata.py at_once": "commit",
    "cluster/store_memory.py begin": "commit",
    "cluster/store_work.py commit": "commit",  # called by the shells, beside their loops
    "upkeep/identity.py _cluster_id": "commit",
    "topics/topics.py load": "at_once",
    "topics/removal.py begun": "at_once",
    "topics/removal.py finish": "at_once",
    "upkeep/identity.py shared_row": "commit",
}
"""Who commits at once: a start before anybody is served, and a clean stop after that."""


def test_nothing_commits_on_the_loop_while_clients_are_served() -> None:
    """The stage holds the same for all that tests do: its node's store can't be touched while it serves."""
    broker = TOP / "src" / "ottla" / "broker"
    found: dict[str, str] = {}
    for path in sorted(broker.rglob("*.py")):
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef):
                for call in ast.walk(function):
                    if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
                        whose = ast.unparse(call.func.value)
                        if call.func.attr == "at_once" or (call.func.attr == "commit" and whose.endswith("store")):
                            found[f"{path.relative_to(broker)} {function.name}"] = call.func.attr
    assert found == ON_THE_LOOP


def test_the_stage_refuses_a_node_that_commits_on_the_loop(stage: Stage) -> None:
    with pytest.raises(AssertionError, match="asks the metadata store for commit"):
        stage.node.metadata.at_once(stage.now, planned(RowBatch(())))


def test_a_plan_may_let_others_go_first(tmp_path: Path) -> None:
    """The changes behind it wait for it; requests that change nothing do not."""
    stage, ended = NodeStage(tmp_path), Ended()

    def plan() -> Planned:
        yield None
        yield None
        record = TopicRecord(bytes(15) + b"\x07", {}, (PartitionRecord((1,), (1,), 1),))
        yield RowBatch([RowChange(key_of("t"), record, ABSENT)])
        return "made"

    stage.node.metadata.change(stage.now, lambda now: plan(), ended)
    behind = stage.send(CreateTopicsRequest(topics=[CreatableTopic("u", 1, 1)], timeout_ms=1_000))
    stage.node.tick(stage.now)
    assert stage.ask(MetadataRequest([]))
    assert "t" not in stage.node.image.topics
    stage.run()
    assert ended.result() == "made"
    assert behind.answer.topics[0].error_code == E.NONE
