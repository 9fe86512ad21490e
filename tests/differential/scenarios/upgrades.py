"""Levels of features other than the newest (KIP-584, KIP-1022): how they are set, and what they turn off.

Each scenario leaves them as it found them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..stage import Stage
from .share_groups import fetching as share_fetching
from .share_groups import joining as share_joining
from .share_groups import member
from .transactions import Producer

GROUP, SHARE, TRANSACTION = "group.version", "share.version", "transaction.version"
HIGHEST = {GROUP: 1, SHARE: 1, TRANSACTION: 2}
UP, DOWN, UNSAFE_DOWN = 1, 2, 3
UPDATE = "UpdateFeatures"


def to(feature: str, level: int, kind: int = UP) -> dict[str, Any]:
    return {"feature": feature, "max_version_level": level, "upgrade_type": kind}


def in_force(answer: Any) -> dict[str, int]:
    """The levels of the features that both brokers have."""
    levels = {each.name: each.max_version_level for each in answer.finalized_features}
    return {name: levels.get(name, 0) for name in HIGHEST}


def note_levels(s: Stage, step: str) -> None:
    s.settle()
    answer = s.send("ApiVersions", 4, client_software_name="c", client_software_version="1")
    supported = {each.name: f"{each.min_version}-{each.max_version}" for each in answer.supported_features}
    s.note(step, {"in force": in_force(answer), "supported": {name: supported.get(name) for name in HIGHEST}})


@contextmanager
def at(s: Stage, feature: str, level: int) -> Iterator[None]:
    """The feature is at this level meanwhile, as every broker knows."""
    for there, kind in ((level, DOWN), (HIGHEST[feature], UP)):
        answer = s.send(UPDATE, 2, timeout_ms=5000, feature_updates=[to(feature, there, kind)])
        assert answer.error_code == 0, answer
        s.until(
            lambda answer: in_force(answer)[feature] == there,  # noqa: B023
            "ApiVersions",
            4,
            client_software_name="c",
            client_software_version="1",
        )
        s.settle()
        if kind == DOWN:
            try:
                yield
            except BaseException:
                s.send(UPDATE, 2, timeout_ms=5000, feature_updates=[to(feature, HIGHEST[feature])])
                raise


def levels(s: Stage) -> None:
    note_levels(s, "at first")
    for feature, highest in HIGHEST.items():
        for level in range(highest - 1, -1, -1):
            s.ask(f"{feature} to {level} by an upgrade", UPDATE, "all", feature_updates=[to(feature, level)])
            lower = to(feature, level, DOWN)
            s.ask(f"{feature} to {level}, tried", UPDATE, "1-", feature_updates=[lower], validate_only=True)
            s.ask(f"{feature} to {level}", UPDATE, "1-", feature_updates=[lower])
            note_levels(s, f"{feature} at {level}")
        s.ask(f"{feature} up by a downgrade", UPDATE, "1-", feature_updates=[to(feature, highest, DOWN)])
        s.ask(f"{feature} up by an unsafe one", UPDATE, 2, feature_updates=[to(feature, highest, UNSAFE_DOWN)])
        s.ask(f"{feature} above all", UPDATE, "all", feature_updates=[to(feature, highest + 7)])
        s.ask(f"{feature} below all", UPDATE, "1-", feature_updates=[to(feature, -1, DOWN)])
        s.ask(f"{feature} up", UPDATE, "all", feature_updates=[to(feature, highest)])
        note_levels(s, f"{feature} at {highest}")
    lower = [to(GROUP, 0, UNSAFE_DOWN), to(SHARE, 0, DOWN)]
    s.ask("two, and one at fault", UPDATE, "1-", feature_updates=[*lower, to(TRANSACTION, 3)])
    note_levels(s, "nothing has changed")
    s.ask("two", UPDATE, "1", feature_updates=lower)
    note_levels(s, "both have")
    s.ask("both up", UPDATE, "0", feature_updates=[to(GROUP, 1), to(SHARE, 1)])
    s.ask("one twice", UPDATE, 2, feature_updates=[to(SHARE, 1), to(SHARE, 1)])
    note_levels(s, "at last")


def groups_at_0(s: Stage) -> None:
    topic, group = s.create(), s.group()
    joining = {
        "group_id": group,
        "member_id": "member-1",
        "rebalance_timeout_ms": 60_000,
        "topic_partitions": [],
        "subscribed_topic_names": [topic],
    }
    joined = s.send("ConsumerGroupHeartbeat", 1, **joining)
    assert joined.error_code == 0, joined
    with at(s, GROUP, 0):
        s.ask("join", "ConsumerGroupHeartbeat", "all", **joining | {"member_id": "member-2"})
        s.ask(
            "go on", "ConsumerGroupHeartbeat", 1, group_id=group, member_id="member-1", member_epoch=joined.member_epoch
        )
        s.ask("leave", "ConsumerGroupHeartbeat", 1, group_id=group, member_id="member-1", member_epoch=-1)
        s.ask("described", "ConsumerGroupDescribe", "all", group_ids=[group, s.name("other")])
        s.ask("none described", "ConsumerGroupDescribe", 1, group_ids=[])
        s.ask("described as a classic one", "DescribeGroups", 6, groups=[group])
        s.ask("listed", "ListGroups", 5, ours=True, types_filter=["consumer"])
    s.ask("leave at 1", "ConsumerGroupHeartbeat", 1, group_id=group, member_id="member-1", member_epoch=-1)


def share_groups_at_0(s: Stage) -> None:
    topic, group = s.create(), s.group()
    partitions = [{"topic_name": topic, "partitions": [0]}]
    with at(s, SHARE, 0):
        s.ask("join", "ShareGroupHeartbeat", 1, **share_joining(group, [topic]))
        s.ask("described", "ShareGroupDescribe", 1, group_ids=[group, s.name("other")])
        s.ask("fetch", "ShareFetch", "all", **share_fetching(s, group, 0, topic))
        s.ask("fetch without a member", "ShareFetch", 2, group_id=None, member_id=None)
        s.ask(
            "acknowledge",
            "ShareAcknowledge",
            "all",
            group_id=group,
            member_id=member(),
            share_session_epoch=1,
            topics=[],
        )
        s.ask("offsets", "DescribeShareGroupOffsets", "all", groups=[{"group_id": group, "topics": partitions}])
        s.ask("all offsets", "DescribeShareGroupOffsets", "all", groups=[{"group_id": group, "topics": None}])
        altered = [{"topic_name": topic, "partitions": [{"partition_index": 0, "start_offset": 0}]}]
        s.ask("alter offsets", "AlterShareGroupOffsets", 0, group_id=group, topics=altered)
        s.ask("delete offsets", "DeleteShareGroupOffsets", 0, group_id=group, topics=[{"topic_name": topic}])
    s.ask("described at 1", "ShareGroupDescribe", 1, group_ids=[group])


def transactions_at_0(s: Stage) -> None:
    """In the first version only: who speaks the second one here hears CONCURRENT_TRANSACTIONS of Kafka for ever."""
    with at(s, TRANSACTION, 0):
        topic, p = s.create(retention_ms="-1"), Producer(s, "tx")
        _in_the_first_version(s, topic, p)
        _beginning_anew(s, topic, p, "3-4")


def transactions_at_1(s: Stage) -> None:
    """Requests say which version of the protocol their client speaks, whatever the level is."""
    with at(s, TRANSACTION, 1):
        topic, group, p = s.create(retention_ms="-1"), s.group(), Producer(s, "tx")
        _in_the_first_version(s, topic, p)
        s.ask("second version: write", "Produce", 12, **p.producing(topic, "b"))
        offsets = [{"name": topic, "partitions": [{"partition_index": 0, "committed_offset": 5}]}]
        s.ask("second version: commit an offset", "TxnOffsetCommit", 5, **p.whose(group_id=group, topics=offsets))
        s.ask("second version: commit", "EndTxn", 5, **p.whose(committed=True))
        p.rest()
        s.ask("second version: commit again", "EndTxn", 5, **p.whose(committed=True))
        _beginning_anew(s, topic, p, "3-5")


def _in_the_first_version(s: Stage, topic: str, p: Producer) -> None:
    p.add(topic, 0)
    p.write(topic, "a")
    s.ask("first version: commit", "EndTxn", 4, **p.whose(committed=True))
    p.rest()
    s.ask("write what was not added", "Produce", 11, **p.producing(topic, "b"))
    p.sequence -= 1


def _beginning_anew(s: Stage, topic: str, p: Producer, versions: str) -> None:
    whose: dict[str, Any] = {"transactional_id": p.name, "transaction_timeout_ms": 60_000}
    s.ask("begin anew", "InitProducerId", 5, **whose)
    p.begin_anew()
    p.add(topic, 0)
    p.write(topic, "c")
    s.ask("begin anew in an open one", "InitProducerId", 5, **whose)
    p.rest()
    s.ask("the old life aborts", "EndTxn", versions, **p.whose(committed=False))
    s.ask("begin anew behind it", "InitProducerId", 5, **whose)
