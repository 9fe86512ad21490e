"""Transactions: both versions of the protocol, every error of theirs, what readers see, and offsets of groups.

Markers have the clock's time and batches an old one, so topics here keep what is old."""

from __future__ import annotations

from typing import Any

from ..batches import batch
from ..stage import Stage, fetch, produce
from .groups import alone

TRANSACTIONAL = 0x10
COMPLETE = ("CompleteCommit", "CompleteAbort", "Empty")


class Producer:
    """A transactional producer of a scenario: what it does is not written down unless it is asked."""

    def __init__(self, s: Stage, short: str, timeout_ms: int = 60_000) -> None:
        self.s = s
        self.name = s.name(short)
        self.timeout_ms = timeout_ms
        asked = {"key_type": 1, "coordinator_keys": [self.name]}
        s.until(lambda a: a.coordinators[0].error_code == 0, "FindCoordinator", 4, **asked)
        self.begin_anew()
        self.begin_anew()  # so that there is a lower epoch than its own

    def begin_anew(self) -> None:
        answer = self.s.until(
            lambda a: a.error_code == 0,
            "InitProducerId",
            5,
            transactional_id=self.name,
            transaction_timeout_ms=self.timeout_ms,
        )
        self.id, self.epoch, self.sequence = answer.producer_id, answer.producer_epoch, 0

    def whose(self, **other: Any) -> dict[str, Any]:
        return {"transactional_id": self.name, "producer_id": self.id, "producer_epoch": self.epoch} | other

    def adding(self, topic: str, *indexes: int, **other: Any) -> dict[str, Any]:
        whose = {f"v3_and_below_{field}": value for field, value in self.whose(**other).items()}
        return whose | {"v3_and_below_topics": [{"name": topic, "partitions": list(indexes)}]}

    def add(self, topic: str, *indexes: int) -> None:
        def taken(answer: Any) -> bool:
            codes = {
                p.partition_error_code for t in answer.results_by_topic_v3_and_below for p in t.results_by_partition
            }
            return codes == {0}

        self.s.until(taken, "AddPartitionsToTxn", 3, **self.adding(topic, *indexes))

    def batch(self, *values: str, epoch: int | None = None, sequence: int | None = None) -> bytes:
        at = self.sequence if sequence is None else sequence
        if sequence is None:
            self.sequence += len(values)
        whose = (self.id, self.epoch if epoch is None else epoch, at)
        return batch(*values, producer=whose, attributes=TRANSACTIONAL)

    def write(self, topic: str, *values: str) -> None:
        answer = self.s.send("Produce", 9, **self.producing(topic, *values))
        assert answer.responses[0].partition_responses[0].error_code == 0, answer

    def producing(self, topic: str, *values: str, **how: Any) -> dict[str, Any]:
        return {"transactional_id": self.name, **produce(topic, self.batch(*values, **how))}

    def end(self, *, commit: bool = True) -> None:
        self.s.until(lambda a: a.error_code == 0, "EndTxn", 3, **self.whose(committed=commit))
        self.rest()

    def rest(self) -> None:
        """Wait until all markers are written."""
        self.s.until(
            lambda a: a.transaction_states[0].transaction_state in COMPLETE,
            "DescribeTransactions",
            0,
            transactional_ids=[self.name],
        )


def seen(shown: dict[str, Any]) -> Any:
    """What a reader learns, without the records' bytes."""
    (topic,) = shown["responses"]
    (part,) = topic["partitions"]
    return {
        key: part.get(key) for key in ("error_code", "high_watermark", "last_stable_offset", "aborted_transactions")
    }


def look(s: Stage, step: str, topic: str, offset: int = 0) -> None:
    for level in (0, 1):
        s.ask(f"{step}, fetch at level {level}", "Fetch", 12, keep=seen, **fetch(topic, offset, isolation_level=level))
        asked = [{"name": topic, "partitions": [{"partition_index": 0, "timestamp": -1}]}]
        s.ask(f"{step}, its end at level {level}", "ListOffsets", 7, replica_id=-1, isolation_level=level, topics=asked)


def init(s: Stage) -> None:
    p = Producer(s, "tx")
    api = "InitProducerId"
    whose: dict[str, Any] = {"transactional_id": p.name, "transaction_timeout_ms": 60_000}
    s.ask("again", api, "all", **whose)
    s.ask("timeout 0", api, "all", **{**whose, "transaction_timeout_ms": 0})
    s.ask("timeout too long", api, "all", **{**whose, "transaction_timeout_ms": 900_001})
    p.begin_anew()
    s.ask("its own id and epoch", api, 5, **whose, producer_id=p.id, producer_epoch=p.epoch)
    s.ask("the answer was lost", api, 5, **whose, producer_id=p.id, producer_epoch=p.epoch)
    s.ask("an old epoch", api, "3-", **whose, producer_id=p.id, producer_epoch=0)
    s.ask("another id", api, "3-", **whose, producer_id=p.id + 1_000_000, producer_epoch=p.epoch)
    s.ask("an id without an epoch", api, "3-", **whose, producer_id=p.id, producer_epoch=-1)
    s.ask("an epoch without an id", api, "3-", **whose, producer_id=-1, producer_epoch=3)
    s.ask("empty id", api, "all", transactional_id="", transaction_timeout_ms=60_000)


def init_in_an_open_one(s: Stage) -> None:
    """What is open is aborted in the next epoch, and who had it open goes on in that one (KIP-588)."""
    topic, p = s.create(retention_ms="-1"), Producer(s, "tx")
    api, whose = "InitProducerId", {"transactional_id": p.name, "transaction_timeout_ms": 60_000}
    p.add(topic, 0)
    p.write(topic, "left open")
    s.ask("its own epoch", api, 5, **whose, producer_id=p.id, producer_epoch=p.epoch)
    p.rest()
    s.ask("its own epoch again", api, "3-5", **whose, producer_id=p.id, producer_epoch=p.epoch)
    s.ask("the epoch before", api, "3-5", **whose, producer_id=p.id, producer_epoch=p.epoch - 1)
    s.ask("another life begins", api, 5, **whose)
    s.ask("its own epoch behind it", api, "3-5", **whose, producer_id=p.id, producer_epoch=p.epoch)


def find(s: Stage) -> None:
    Producer(s, "tx")
    for version in range(1, 7):
        name = s.name("tx")
        key: dict[str, Any] = {"coordinator_keys": [name]} if version >= 4 else {"key": name}
        s.ask("of a transactional id", "FindCoordinator", version, key_type=1, **key)


def adding(s: Stage) -> None:
    topic, p = s.create("t", 2, retention_ms="-1"), Producer(s, "tx")
    api = "AddPartitionsToTxn"
    s.ask("of an unknown id", api, "0-3", **p.adding(topic, 0, transactional_id=s.name("nobody")))
    s.ask("of an empty id", api, "0-3", **p.adding(topic, 0, transactional_id=""))
    s.ask("another producer", api, "0-3", **p.adding(topic, 0, producer_id=p.id + 1_000_000))
    s.ask("a low epoch", api, "0-3", **p.adding(topic, 0, producer_epoch=p.epoch - 1))
    s.ask("a high epoch", api, "0-3", **p.adding(topic, 0, producer_epoch=p.epoch + 1))
    s.ask("an unknown partition", api, "0-3", **p.adding(topic, 0, 7))
    s.ask("an unknown topic", api, "0-3", **p.adding(s.name("nothing"), 0))
    for internal in ("__consumer_offsets", "__transaction_state"):
        s.ask(f"of the broker's own {internal}", api, "0-3", **p.adding(internal, 0))
    s.ask("one", api, 0, **p.adding(topic, 0))
    s.ask("the same", api, "0-3", **p.adding(topic, 0))
    s.ask("the other", api, 3, **p.adding(topic, 0, 1))
    s.ask("describe", "DescribeTransactions", 0, transactional_ids=[p.name], keep=without_times)
    for version in (0, 1, 2):
        filters = {"state_filters": ["Ongoing"], "producer_id_filters": [p.id]}
        s.ask("list", "ListTransactions", version, **filters)
    s.ask("list what lasts for an hour", "ListTransactions", 2, duration_filter=3_600_000, producer_id_filters=[p.id])
    s.ask("list by a pattern", "ListTransactions", 2, transactional_id_pattern=".*tx", producer_id_filters=[p.id])
    s.ask("list by another", "ListTransactions", 2, transactional_id_pattern="tx", producer_id_filters=[p.id])
    p.end()


def without_times(shown: dict[str, Any]) -> Any:
    for state in shown["transaction_states"]:
        state.pop("transaction_start_time_ms", None)
        for topic in state.get("topics", ()):
            topic["partitions"].sort()  # a hash table's
    return shown


def verifying(s: Stage) -> None:
    """Between nodes."""
    topic, p = s.create("t", 2, retention_ms="-1"), Producer(s, "tx")

    def asking(index: int, *, verify: bool, **other: Any) -> dict[str, Any]:
        topics = [{"name": topic, "partitions": [index]}]
        return {"transactions": [p.whose(**other) | {"verify_only": verify, "topics": topics}]}

    api = "AddPartitionsToTxn"
    s.ask("verify before it began", api, "4-5", **asking(0, verify=True))
    s.ask("add", api, 4, **asking(0, verify=False))
    s.ask("verify what is in it", api, "4-5", **asking(0, verify=True))
    s.ask("verify what is not", api, "4-5", **asking(1, verify=True))
    s.ask("verify an unknown id", api, "4-5", **asking(0, verify=True, transactional_id=s.name("nobody")))
    s.ask("verify another epoch", api, "4-5", **asking(0, verify=True, producer_epoch=p.epoch + 1))
    s.ask("verify an unknown partition", api, "4-5", **asking(9, verify=True))
    s.ask("add to another epoch", api, "4-5", **asking(0, verify=False, producer_epoch=p.epoch + 1))
    s.ask("add the other", api, 5, **asking(1, verify=False))


def first_version(s: Stage) -> None:
    topic, p = s.create(retention_ms="-1"), Producer(s, "tx")
    p.add(topic, 0)
    s.ask("write", "Produce", 9, **p.producing(topic, "a", "b"))
    s.append(topic, batch("plain"))
    look(s, "open", topic)
    s.ask("commit", "EndTxn", 3, **p.whose(committed=True))
    p.rest()
    look(s, "committed", topic)
    s.ask("commit again", "EndTxn", "0-4", **p.whose(committed=True))
    s.ask("abort what is committed", "EndTxn", "0-4", **p.whose(committed=False))
    p.add(topic, 0)
    p.write(topic, "c")
    p.end(commit=False)
    look(s, "aborted", topic)
    look(s, "from behind the aborted one", topic, 5)
    s.ask("abort again", "EndTxn", "0-4", **p.whose(committed=False))
    s.ask("commit what is aborted", "EndTxn", "0-4", **p.whose(committed=True))


def ending_wrongly(s: Stage) -> None:
    p = Producer(s, "tx")
    api = "EndTxn"
    for commit in (True, False):
        word = "commit" if commit else "abort"
        s.ask(f"{word} nothing", api, "0-4", **p.whose(committed=commit))
        s.ask(f"{word} of an unknown id", api, "all", **p.whose(committed=commit, transactional_id=s.name("nobody")))
        s.ask(f"{word} of an empty id", api, "all", **p.whose(committed=commit, transactional_id=""))
        s.ask(f"{word} of another producer", api, "all", **p.whose(committed=commit, producer_id=p.id + 1_000_000))
        s.ask(f"{word} in a low epoch", api, "all", **p.whose(committed=commit, producer_epoch=p.epoch - 1))
        s.ask(f"{word} in a high epoch", api, "all", **p.whose(committed=commit, producer_epoch=p.epoch + 1))


def second_version(s: Stage) -> None:
    topic, p = s.create(retention_ms="-1"), Producer(s, "tx")
    s.ask("write", "Produce", 12, **p.producing(topic, "a"))
    look(s, "open", topic)
    s.ask("commit", "EndTxn", 5, **p.whose(committed=True))
    p.rest()
    look(s, "committed", topic)
    s.ask("commit again", "EndTxn", 5, **p.whose(committed=True))
    s.ask("abort what is committed", "EndTxn", 5, **p.whose(committed=False))
    p.epoch, p.sequence = p.epoch + 1, 0
    s.ask("commit in the next epoch", "EndTxn", 5, **p.whose(committed=True))
    s.ask("write in the old epoch", "Produce", 12, **p.producing(topic, "old", epoch=p.epoch - 1, sequence=1))
    s.ask("write in the next epoch", "Produce", 12, **p.producing(topic, "b"))
    s.ask("write on", "Produce", 12, **p.producing(topic, "c"))
    s.ask("abort", "EndTxn", 5, **p.whose(committed=False))
    p.rest()
    look(s, "aborted", topic)
    s.ask("abort again", "EndTxn", 5, **p.whose(committed=False))
    s.ask("commit what is aborted", "EndTxn", 5, **p.whose(committed=True))
    p.epoch, p.sequence = p.epoch + 1, 0
    s.ask("abort nothing", "EndTxn", 5, **p.whose(committed=False))
    p.rest()
    s.ask("abort nothing again", "EndTxn", 5, **p.whose(committed=False))


def guarded(s: Stage) -> None:
    """Batches that the coordinator knows nothing of (KIP-890)."""
    topic, p = s.create("t", 2, retention_ms="-1"), Producer(s, "tx")
    for version in (3, 9, 10, 11):
        s.ask("not added", "Produce", version, **p.producing(topic, "x", sequence=0))
    p.add(topic, 0)
    s.ask("added", "Produce", 9, **p.producing(topic, "a"))
    s.ask("in order", "Produce", 9, **p.producing(topic, "b"))
    s.ask("out of order", "Produce", 9, **p.producing(topic, "d", sequence=7))
    plain = batch("plain", producer=(p.id, p.epoch, p.sequence))
    s.ask("outside of its transaction", "Produce", 9, **produce(topic, plain))
    s.ask("a high epoch", "Produce", 9, **p.producing(topic, "e", epoch=p.epoch + 1, sequence=0))
    s.ask("a low epoch", "Produce", 9, **p.producing(topic, "e", epoch=p.epoch - 1, sequence=0))
    s.ask("without a transactional id", "Produce", [3, 9, 12], **produce(topic, p.batch("f", sequence=2)))
    p.end()
    s.ask("after the end", "Produce", [9, 11], **p.producing(topic, "g", sequence=2))
    s.ask("a double of what is committed", "Produce", 9, **p.producing(topic, "b", sequence=1))


def fenced(s: Stage) -> None:
    topic, p = s.create(retention_ms="-1"), Producer(s, "tx")
    p.add(topic, 0)
    p.write(topic, "left open")
    whose: dict[str, Any] = {"transactional_id": p.name, "transaction_timeout_ms": 60_000}
    s.ask("another life begins", "InitProducerId", 5, **whose)
    p.rest()
    look(s, "ended by it", topic)
    s.ask("the old one writes", "Produce", [9, 12], **p.producing(topic, "x", sequence=1))
    s.ask("the old one commits", "EndTxn", "0-5", **p.whose(committed=True))
    s.ask("the old one adds", "AddPartitionsToTxn", "0-3", **p.adding(topic, 0))
    s.ask("the other life begins", "InitProducerId", 5, **whose)


def offsets(s: Stage) -> None:
    topic, group, p = s.create(retention_ms="-1"), s.group(), Producer(s, "tx")
    asked: dict[str, Any] = {"groups": [{"group_id": group, "topics": [{"name": topic, "partition_indexes": [0]}]}]}
    adding = "AddOffsetsToTxn"
    s.ask("of an unknown id", adding, "all", **p.whose(group_id=group, transactional_id=s.name("nobody")))
    s.ask("of an empty id", adding, "all", **p.whose(group_id=group, transactional_id=""))
    s.ask("another producer", adding, "all", **p.whose(group_id=group, producer_id=p.id + 1_000_000))
    s.ask("another epoch", adding, "all", **p.whose(group_id=group, producer_epoch=p.epoch + 1))
    committing = "TxnOffsetCommit"

    def commit(offset: int = 5, **other: Any) -> dict[str, Any]:
        partitions = [{"partition_index": 0, "committed_offset": offset, "committed_metadata": "m"}]
        return p.whose(group_id=group, topics=[{"name": topic, "partitions": partitions}]) | other

    s.ask("commit before it was added", committing, "0-4", **commit())
    for version in s.versions(adding):
        s.ask("add", adding, version, **p.whose(group_id=group))
    for version in range(5):
        s.ask("commit", committing, version, **commit(version))
    s.ask("stable ones", "OffsetFetch", "7-9", make=lambda v: fetching(v, group, topic, stable=True))
    s.ask("any", "OffsetFetch", "7-9", make=lambda v: fetching(v, group, topic, stable=False))
    s.ask("delete the group", "DeleteGroups", 2, groups_names=[s.name("other")])
    nothing = [{"name": s.name("nothing"), "partitions": [{"partition_index": 0, "committed_offset": 1}]}]
    s.ask("of an unknown topic", committing, "0-4", **commit(topics=nothing))
    s.ask("of no group", committing, "all", **commit(group_id=""))
    s.ask("of no group and an unknown topic", committing, "all", **commit(group_id="", topics=nothing))
    beyond = [{"name": topic, "partitions": [{"partition_index": 4, "committed_offset": 1}]}]
    s.ask("of an unknown partition", committing, "0-4", **commit(topics=beyond))
    s.ask("in a low epoch", committing, "0-4", **commit(producer_epoch=p.epoch - 1))
    s.ask("in a high epoch", committing, "0-4", **commit(producer_epoch=p.epoch + 1))
    s.ask("as a member that is none", committing, "3-4", **commit(member_id="nobody", generation_id=1))
    s.ask("as an instance that is none", committing, "3-4", **commit(group_instance_id="nobody"))
    p.end()
    s.ask("after the commit", "OffsetFetch", 8, **asked, require_stable=True)
    s.ask("add by the commit", committing, 5, **commit(9))
    s.ask("abort", "EndTxn", 5, **p.whose(committed=False))
    p.rest()
    s.ask("after the abort", "OffsetFetch", 8, **asked, require_stable=True)


def offsets_of_members(s: Stage) -> None:
    """Consumers hand over who they are (KIP-447); a group keeps its offsets while some are pending."""
    topic, p = s.create(retention_ms="-1"), Producer(s, "tx")
    old, new = s.group("old"), s.group("new")
    member, generation = alone(s, old)
    beat = {"group_id": new, "member_id": "member-1", "rebalance_timeout_ms": 60_000, "topic_partitions": []}
    epoch = s.send("ConsumerGroupHeartbeat", 1, **beat, subscribed_topic_names=[topic]).member_epoch
    committing = "TxnOffsetCommit"

    def commit(group: str, member_id: str = "", generation_id: int = -1, **other: Any) -> dict[str, Any]:
        partitions = [{"partition_index": 0, "committed_offset": 5}]
        topics = [{"name": topic, "partitions": partitions}]
        return p.whose(group_id=group, topics=topics, member_id=member_id, generation_id=generation_id) | other

    for group, who, its in ((old, member, generation), (new, "member-1", epoch)):
        kind = "classic" if group is old else "new"
        s.until(lambda a: a.error_code == 0, "AddOffsetsToTxn", 3, **p.whose(group_id=group))
        for version in (3, 4):
            s.ask(f"{kind}: its member", committing, version, **commit(group, who, its))
            s.ask(f"{kind}: in a generation before", committing, version, **commit(group, who, its - 1))
            s.ask(f"{kind}: in one to come", committing, version, **commit(group, who, its + 1))
            s.ask(f"{kind}: a member that is none", committing, version, **commit(group, "nobody", its))
            s.ask(f"{kind}: no member", committing, version, **commit(group))
            s.ask(
                f"{kind}: an instance that is none",
                committing,
                version,
                **commit(group, who, its, group_instance_id="i"),
            )
    s.send("LeaveGroup", 5, group_id=old, members=[{"member_id": member}])
    s.send("ConsumerGroupHeartbeat", 1, group_id=new, member_id="member-1", member_epoch=-1)
    deleting = [{"name": topic, "partitions": [{"partition_index": 0}]}]
    for group in (old, new):
        kind = "classic" if group is old else "new"
        s.ask(f"{kind}: what is pending is deleted", "OffsetDelete", 0, group_id=group, topics=deleting)
        s.ask(f"{kind}: pending", "OffsetFetch", 7, **fetching(7, group, topic, stable=True))
        s.ask(f"{kind}: the group is deleted", "DeleteGroups", 2, groups_names=[group])
    p.end()
    for group in (old, new):
        kind = "classic" if group is old else "new"
        s.ask(f"{kind}: committed", "OffsetFetch", 7, **fetching(7, group, topic, stable=True))


def fetching(version: int, group: str, topic: str, *, stable: bool) -> dict[str, Any]:
    topics = [{"name": topic, "partition_indexes": [0]}]
    if version < 8:
        return {"group_id": group, "topics": topics, "require_stable": stable}
    return {"groups": [{"group_id": group, "topics": topics}], "require_stable": stable}


def markers(s: Stage) -> None:
    """As operators and coordinators write them."""
    topic, p = s.create(retention_ms="-1"), Producer(s, "tx")
    p.add(topic, 0)
    p.write(topic, "a")

    def marking(
        epoch: int, *, commit: bool = False, coordinator_epoch: int = 0, index: int = 0, whose: int = p.id
    ) -> dict[str, Any]:
        marker = {
            "producer_id": whose,
            "producer_epoch": epoch,
            "transaction_result": commit,
            "topics": [{"name": topic, "partition_indexes": [index]}],
            "coordinator_epoch": coordinator_epoch,
        }
        return {"markers": [marker]}

    api = "WriteTxnMarkers"
    s.ask("a low epoch", api, "1-2", **marking(p.epoch - 1))
    s.ask("an unknown partition", api, "1-2", **marking(p.epoch, index=9))
    for epoch in (-1, -2):
        s.ask(f"epoch {epoch}", api, "1-2", **marking(epoch))
        s.ask(f"epoch {epoch} of nobody known", api, "1-2", keep=marked, **marking(epoch, whose=p.id + 1_000_000))
    s.ask("no producer", api, "1-2", keep=marked, **marking(0, whose=-1))
    s.ask("none", api, "1-2", markers=[])
    look(s, "open still", topic)
    s.ask("abort", api, 1, **marking(p.epoch, coordinator_epoch=3))
    look(s, "aborted", topic)
    s.ask("of an older coordinator", api, "1-2", **marking(p.epoch, coordinator_epoch=2))
    s.ask("once more", api, 1, **marking(p.epoch, coordinator_epoch=3))


def marked(answer: dict[str, Any]) -> Any:
    return [part["error_code"] for marker in answer["markers"] for part in marker["topics"][0]["partitions"]]
