"""Ottla's own requests (keys from 10900 on), asked as every kind of principal (`principals`).

Kafka serves none of them, so their transcript has Ottla's answers: `pytest tests/differential/test_golden.py --update`
writes it.
"""

from __future__ import annotations

from typing import Any

from ottla.protocol.apis import ApiKey as K

from ..principals import Matrix
from ..stage import Stage
from . import consumer_groups as consumers
from . import share_groups as shares

SECURED = True
OWN = True


def own(s: Stage) -> None:
    m = Matrix(s, "own")
    topics = m.topics()
    for short in ("a.g", "z.g"):
        group = shares.share_group(s, short)
        shares.joined(s, group, *topics[:2])
        for epoch, topic in enumerate(topics[:2]):
            answer = s.send("ShareFetch", **shares.fetching(s, group, epoch, topic))
            assert answer.responses[0].partitions[0].acquired_records, answer
    partitions = [{"partition_index": 0}]
    named = [{"name": name, "partitions": partitions} for name in topics]
    for step, group in zip(("granted", "hidden", "missing", "hidden and missing"), m.four("g"), strict=True):
        for what, wanted in (("named", named), ("all", None)):
            m.ask(K.DESCRIBE_SHARE_PARTITIONS, f"{step}, {what}", keep=loaded)(group_id=group, topics=wanted)

    for short in ("a.c", "z.c"):
        group = consumers.consumer_group(s, short)
        answer = s.send(consumers.API, 0, **consumers.joining(group, topics[:1]))
        assert answer.error_code == 0, answer
    for step, group in zip(("granted", "hidden", "missing", "hidden and missing"), m.four("c"), strict=True):
        m.ask(K.DESCRIBE_OBSERVATIONS, step, keep=names)(group_id=group)
    m.ask(K.DESCRIBE_OBSERVATIONS, "everything", keep=names)(group_id=None)


def loaded(answer: dict[str, Any]) -> dict[str, Any]:
    """The topics, and how many runs each has: more of them is in the tests of this request."""
    for topic in answer.get("topics", []):
        topic["partitions"] = [
            {"error_code": each["error_code"], "runs": len(each.get("runs", []))} for each in topic["partitions"]
        ]
    return {name: answer[name] for name in ("error_code", "error_message", "topics") if name in answer}


def names(answer: dict[str, Any]) -> dict[str, Any]:
    """The groups, and whether anything is said of connections; which other lists there are depends on the time."""
    groups = sorted({each["group_id"] for each in answer.get("groups", [])} & {"a.c", "z.c"})
    return {"error_code": answer["error_code"], "groups": groups, "connections": bool(answer.get("connections"))}
