"""Every request that a coordinator of transactions answers, while markers are outstanding: asked in the name of the
current producer, of one and two epochs before, of the next epoch, and of another producer id; then again once the
markers are written. Written down are tables: who asked, and the error by version.

Each transaction has a partition that needs all its replicas in sync, one of which is on a node that is dead, so its
markers stay outstanding until that node is back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any

from ottla.protocol.errors import ErrorCode

from ..batches import batch
from ..stage import Stage, produce
from .three_nodes import placed
from .transactions import COMPLETE, TRANSACTIONAL

NODES = 3
KILLS = True
DEAD = 3
WITHOUT_PRODUCER = range(3)
"""Versions of InitProducerId in which a client can't name its producer id and epoch."""


class Producer:
    """A transactional producer whose coordinator is on a node that stays. `second`: it ends transactions in the second
    version of the protocol."""

    def __init__(self, s: Stage, short: str, topic: str, *, second: bool) -> None:
        self.s, self.second, self.topic = s, second, topic
        self.name, self.on = coordinated(s, short)
        for _ in range(3):  # so that there are lower epochs than its own
            self.begin_anew()
        added = self.adding(self._whose(), 0, verify=False)
        self._until(lambda a: addition_of(a) == 0, "AddPartitionsToTxn", 4, **added)

    def begin_anew(self) -> None:
        begins = {"transactional_id": self.name, "transaction_timeout_ms": 600_000}
        answer = self._until(lambda a: a.error_code == 0, "InitProducerId", 5, **begins)
        self.id, self.epoch = answer.producer_id, answer.producer_epoch

    def _until(self, ready: Callable[[Any], bool], api: str, version: int | None = None, **fields: Any) -> Any:
        return self.s.until(ready, api, version, on=self.on, **fields)

    def _whose(self, behind: int = 0, other: int = 0) -> dict[str, Any]:
        epoch = self.epoch - behind
        return {"transactional_id": self.name, "producer_id": self.id + other, "producer_epoch": epoch}

    def adding(self, whose: dict[str, Any], index: int, *, verify: bool) -> dict[str, Any]:
        topics = [{"name": self.topic, "partitions": [index]}]
        return {"transactions": [whose | {"verify_only": verify, "topics": topics}]}

    def end(self, *, commit: bool) -> None:
        """Ask for the end; in the second version the next epoch is the current one then."""
        version = 5 if self.second else 4
        self._until(lambda a: a.error_code == 0, "EndTxn", version, **self._whose(), committed=commit)
        self.epoch += self.second

    def rest(self) -> None:
        """Wait until all markers are written."""
        over = lambda answer: answer.transaction_states[0].transaction_state in COMPLETE  # noqa: E731
        self._until(over, "DescribeTransactions", 0, transactional_ids=[self.name])

    def producers(self, but: Iterable[str] = ()) -> dict[str, dict[str, Any]]:
        every = {
            "current": self._whose(),
            "one epoch behind": self._whose(1),
            "two epochs behind": self._whose(2),
            "one epoch ahead": self._whose(-1),
            "another producer": self._whose(other=1_000_000),
        }
        return {who: whose for who, whose in every.items() if who not in but}

    # ---- what is written down --------------------------------------------------------------------------------------

    def state(self, when: str) -> None:
        self.s.ask(f"{when}: state", "DescribeTransactions", on=self.on, transactional_ids=[self.name], keep=states)

    def table(
        self,
        step: str,
        api: str,
        versions: Iterable[int],
        asked: dict[str, dict[str, Any]],
        error: Callable[[Any], int] = lambda answer: answer.error_code,
        on: str | None = None,
    ) -> None:
        """Ask in the name of each; write down which error came in which versions."""
        rows: dict[str, str] = {}
        for who, fields in asked.items():
            told = [(at, error(self.s.send(api, at, on=on or self.on, **fields))) for at in versions]
            runs = [(code, [at for at, _ in run]) for code, run in groupby(told, lambda each: each[1])]
            rows[who] = ", ".join(f"{run[0]}-{run[-1]} {ErrorCode(code).name}" for code, run in runs)
        self.s.note(f"{step}, {api}", rows)

    def end_again(self, when: str, *, but: Iterable[tuple[str, bool]] = ()) -> None:
        """`but`: what has another answer in the second version, or would end an empty transaction in it."""
        for commit in (True, False):
            left = {who for who, of in but if of is commit}
            asked = {who: whose | {"committed": commit} for who, whose in self.producers().items()}
            step = f"{when}: {'commit' if commit else 'abort'}"
            self.table(step, "EndTxn", range(5), asked)
            asked = {who: fields for who, fields in asked.items() if who not in left}
            self.table(f"{step} in the second version", "EndTxn", [5], asked)

    def add(self, when: str, *, group: str, but: Iterable[str] = ()) -> None:
        """`but`: what would begin a transaction."""
        api = "AddPartitionsToTxn"
        for index in (0, 1):
            step = f"{when}: partition {index}"
            asked = {who: self.adding(whose, index, verify=True) for who, whose in self.producers().items()}
            self.table(f"{step} verified", api, [4, 5], asked, addition_of)
            may_add = self.producers(but)
            asked = {who: self.adding(whose, index, verify=False) for who, whose in may_add.items()}
            self.table(f"{step} between nodes", api, [4, 5], asked, addition_of)
            topics = {"v3_and_below_topics": [{"name": self.topic, "partitions": [index]}]}
            of_clients = {
                who: {f"v3_and_below_{field}": value for field, value in whose.items()} | topics
                for who, whose in may_add.items()
            }
            self.table(step, api, range(4), of_clients, addition_of)
        asked = {who: whose | {"group_id": group} for who, whose in self.producers(but).items()}
        self.table(f"{when}: a group", "AddOffsetsToTxn", range(5), asked)

    def begin(self, when: str, *, but: Iterable[str] = ()) -> None:
        """`but`: what would give an epoch."""
        begins = {"transactional_id": self.name, "transaction_timeout_ms": 600_000}
        if not but:
            self.table(f"{when}: begin", "InitProducerId", range(6), {"nobody": begins})
        asked = {who: whose | begins for who, whose in self.producers(but).items()}
        self.table(f"{when}: begin again", "InitProducerId", range(len(WITHOUT_PRODUCER), 6), asked)

    def write(self, when: str, topic: str) -> None:
        """To a topic that takes records."""
        asked = {}
        for who, whose in self.producers(["another producer"]).items():
            data = batch("x", producer=(self.id, whose["producer_epoch"], 0), attributes=TRANSACTIONAL)
            asked[who] = {"transactional_id": self.name, **produce(topic, data)}
        part = lambda answer: answer.responses[0].partition_responses[0].error_code  # noqa: E731
        self.table(f"{when}: write", "Produce", range(9, 13), asked, part, on="node 1")

    def commit_offsets(self, when: str, group: str, on: str) -> None:
        topics = [{"name": self.topic, "partitions": [{"partition_index": 1, "committed_offset": 5}]}]
        asked = {who: whose | {"group_id": group, "topics": topics} for who, whose in self.producers().items()}
        part = lambda answer: answer.topics[0].partitions[0].error_code  # noqa: E731
        self.table(f"{when}: offsets", "TxnOffsetCommit", range(6), asked, part, on=on)


def states(answer: dict[str, Any]) -> Any:
    return [[each["transaction_state"], each.get("topics")] for each in answer["transaction_states"]]


def addition_of(answer: Any) -> int:
    """The error of the one partition of the one transaction that was asked for."""
    results = answer.results_by_topic_v3_and_below
    if not results:
        (transaction,) = answer.results_by_transaction
        results = transaction.topic_results
    return results[0].results_by_partition[0].partition_error_code


def part_of(answer: Any, index: int) -> Any:
    """A partition of the one topic that Metadata was asked for."""
    return next(part for part in answer.topics[0].partitions if part.partition_index == index)


def coordinated(s: Stage, short: str, key_type: int = 1) -> tuple[str, str]:
    """A transactional id or a group, and the node that coordinates it, which is one that stays."""
    for number in range(100):
        name = s.name(f"{short}-{number}")
        keys = {"key_type": key_type, "coordinator_keys": [name]}
        answer = s.until(lambda a: a.coordinators[0].error_code == 0, "FindCoordinator", 4, **keys)
        if answer.coordinators[0].node_id != DEAD:
            return name, f"node {answer.coordinators[0].node_id}"
    raise AssertionError("every coordinator is on one node")


def every_answer(s: Stage) -> None:
    topic = placed(s, "t", [1, 2, DEAD], [1, 2, DEAD], configs={"min_insync_replicas": "3"})
    other = placed(s, "other", [1, 2])
    group, of_group = coordinated(s, "g", 0)
    ended: dict[str, Producer] = {}
    for second in (True, False):
        for commit in (True, False):
            word = f"{'second' if second else 'first'} version, {'commit' if commit else 'abort'}"
            ended[word] = Producer(s, word.replace(", ", "-").replace(" ", "-"), topic, second=second)
    with s.without(DEAD):
        s.until(lambda a: sorted(part_of(a, 0).isr_nodes) == [1, 2], "Metadata", topics=[{"name": topic}])
        for word, it in ended.items():
            it.end(commit="commit" in word)
            it.state(word)
            it.end_again(word)
            it.add(word, group=group)
            it.begin(word)
            it.write(word, other)
            it.commit_offsets(word, group, of_group)
            it.state(f"{word}, still")
    for word, it in ended.items():
        it.rest()
        when = f"{word}, all markers written"
        it.state(when)
        behind = () if it.second else (("one epoch behind", True), ("one epoch behind", False))
        it.end_again(when, but=(("current", False), *behind))
        it.add(when, group=group, but=["current"])
        it.begin(when, but=["current", "one epoch behind"])
