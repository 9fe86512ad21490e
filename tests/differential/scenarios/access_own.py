"""Ottla's own requests (keys from 10900 on), asked as every kind of principal (`principals`).

Kafka serves none of them, so their transcript has Ottla's answers: `pytest tests/differential/test_golden.py --update`
writes it.
"""

from __future__ import annotations

from typing import Any

from ottla.protocol.apis import ApiKey as K
from ottla.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from ottla.protocol.messages.describe_observations import DescribeObservationsRequest
from ottla.protocol.wire import Message

from ..principals import Matrix
from ..stage import Stage
from . import consumer_groups as consumers
from . import share_groups as shares

SECURED = True
OWN = True
TOPIC, BROKER, GROUP = 2, 4, 32


def share_partitions(s: Stage) -> None:
    m = Matrix(s, "share_partitions")
    topics = m.topics()
    for short in ("a.g", "z.g"):
        group = shares.share_group(s, short)
        shares.joined(s, group, *topics[:2])
        for epoch, topic in enumerate(topics[:2]):
            answer = s.send("ShareFetch", **shares.fetching(s, group, epoch, topic))
            assert answer.responses[0].partitions[0].acquired_records, answer
        answer = s.send("ExplainShareRecords", group_id=group, topics=explained(topics[:2]))
        assert not any(topic.partitions[0].records[0].error_code for topic in answer.topics), answer
    partitions = [{"partition_index": 0}]
    named = [{"name": name, "partitions": partitions} for name in topics]
    for step, group in zip(("granted", "hidden", "missing", "hidden and missing"), m.four("g"), strict=True):
        for what, wanted in (("named", named), ("all", None)):
            asked = {"group_id": group, "topics": wanted}
            m.ask(K.DESCRIBE_SHARE_PARTITIONS, f"{step}, {what}", 0, keep=loaded)(**asked)
            m.ask(K.DESCRIBE_SHARE_PARTITIONS, f"{step}, {what}", keep=loaded)(**asked, with_reasons=True)
        m.ask(K.EXPLAIN_SHARE_RECORDS, step)(group_id=group, topics=explained(topics))


def explained(topics: list[str]) -> list[dict[str, Any]]:
    """A reason for the first record of each topic."""
    records = [{"offset": 0, "delivery_count": 1, "reason": "broken"}]
    return [{"name": name, "partitions": [{"partition_index": 0, "records": records}]} for name in topics]


def observations(s: Stage) -> None:
    """All versions: a later one has further lists."""
    m = Matrix(s, "observations")
    topics = m.topics()
    for short in ("a.c", "z.c"):
        group = consumers.consumer_group(s, short)
        answer = s.send(consumers.API, 0, **consumers.joining(group, topics[:1]))
        assert answer.error_code == 0, answer
    changes = [(TOPIC, topic, "flush.ms") for topic in topics[:2]]
    changes += [(GROUP, group, "consumer.session.timeout.ms") for group in m.four("c")[:2]]
    resources = [
        {"resource_type": kind, "resource_name": name, "configs": [{"name": config, "value": "45000"}]}
        for kind, name, config in changes
    ]
    answer = s.send("IncrementalAlterConfigs", 1, resources=resources)
    assert not any(each.error_code for each in answer.responses), answer
    first, last = m.specs[K.DESCRIBE_OBSERVATIONS].versions
    four = ("granted", "hidden", "missing", "hidden and missing")
    for version in range(first, last + 1):
        for step, group in zip(four, m.four("c"), strict=True):
            m.ask(K.DESCRIBE_OBSERVATIONS, step, version, keep=names)(group_id=group)
        m.ask(K.DESCRIBE_OBSERVATIONS, "everything", version, keep=names)(group_id=None)
    kinds = (("topic", TOPIC, m.four("t")), ("group", GROUP, m.four("c")), ("broker", BROKER, [str(s.node_id)]))
    for kind, code, asked in kinds:
        for step, name in zip(four, asked, strict=False):
            of = {"group_id": None, "resource_type": code, "resource_name": name}
            m.ask(K.DESCRIBE_OBSERVATIONS, f"configs of a {kind}, {step}", keep=names)(**of)


def together(s: Stage) -> None:
    m = Matrix(s, "together")
    for short in ("a.c", "z.c"):
        group = consumers.consumer_group(s, short)
        answer = s.send(consumers.API, 0, **consumers.joining(group, [s.name("a.t")]))
        assert answer.error_code == 0, answer
    asked = [DescribeObservationsRequest(None), ConsumerGroupDescribeRequest(m.four("c"))]
    m.ask(K.READ_TOGETHER, "everything, and groups", keep=refusals)(requests=list(map(inner, asked)))


def inner(message: Message) -> dict[str, Any]:
    content = bytearray()
    message.encode(content, message.MAX_VERSION)
    return {"api_key": message.API_KEY, "version": message.MAX_VERSION, "content": bytes(content)}


def refusals(answer: dict[str, Any]) -> dict[str, Any]:
    """What the inner answers, which are encoded, refuse; what a node remembers has sentences of its own."""
    everything, groups = (each["content"] for each in answer["answers"])
    return {
        "error_code": answer["error_code"],
        "everything is refused": "Cluster authorization failed." in everything[:40],
        "groups refused": groups.count("Group authorization failed."),
        "groups missing": groups.count("not found."),
    }


def loaded(answer: dict[str, Any]) -> dict[str, Any]:
    """The topics, and the reason of each run: more of them is in the tests of this request."""
    for topic in answer.get("topics", []):
        topic["partitions"] = [
            {"error_code": each["error_code"], "runs": [run.get("reason") for run in each.get("runs", [])]}
            for each in topic["partitions"]
        ]
    return {name: answer[name] for name in ("error_code", "error_message", "topics") if name in answer}


def names(answer: dict[str, Any]) -> dict[str, Any]:
    """The groups and resources, and whether anything is said of connections; more depends on the time."""
    ours = {"a.c", "z.c", "a.t", "z.t"}
    groups = {each["group_id"] for each in answer.get("groups", [])}
    configs = {each["resource_name"] for each in answer.get("config_changes", [])}
    shown = {"groups": sorted(groups & ours), "configs": sorted(configs & ours)}
    return {"error_code": answer["error_code"], **shown, "connections": bool(answer.get("connections"))}
