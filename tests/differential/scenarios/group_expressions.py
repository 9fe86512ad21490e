"""Consumer groups that name their topics by a regular expression (KIP-848): RE2's syntax, matched by the broker.

Kafka matches a new expression aside, Ottla at once; so what is written down is what a member hears when it has."""

from __future__ import annotations

from typing import Any

from ..stage import Stage
from .consumer_groups import API, assigned, consumer_group, going_on, joining, owning, shown


def by_expression(group: str, expression: str | None, who: int = 1, **more: Any) -> dict[str, Any]:
    return joining(group, None, who, subscribed_topic_regex=expression) | more


def until_assigned(s: Stage, group: str, epoch: int, count: int, who: int = 1) -> int:
    """Send heartbeats until the member has so many partitions; its epoch then. What it had it lets go of at once."""
    while True:
        answer = s.until(
            lambda answer, epoch=epoch: answer.error_code != 0 or answer.assignment or answer.member_epoch > epoch,
            API,
            1,
            **going_on(group, epoch, who=who),
        )
        assert answer.error_code == 0, answer
        epoch = answer.member_epoch
        if answer.assignment is not None and len(assigned(answer)) == count:
            return epoch


def what_matches(s: Stage) -> None:
    one, two = s.create("one", 2), s.create("two", 1)
    s.create("three")
    group = consumer_group(s)
    s.ask("no expression", API, 1, keep=shown, **by_expression(group, "("))
    s.ask("a back-reference, which RE2 has not", API, 1, keep=shown, **by_expression(group, r"(a)\1"))
    s.ask("a look-ahead", API, 1, keep=shown, **by_expression(group, "a(?=b)"))
    s.ask("an expression in version 0", API, 0, keep=shown, **joining(group, None))
    s.ask("neither names nor expression", API, 1, keep=shown, **joining(group, None))
    joined = s.send(API, 1, **by_expression(group, f"{s.name('')}(one|two)".replace(".", "[.]")))
    epoch = joined.member_epoch
    if joined.assignment is None or len(assigned(joined)) < 3:
        epoch = until_assigned(s, group, epoch, 3)
    s.ask("what it has", API, 1, keep=lambda a: a["error_code"],
          **by_expression(group, None, member_epoch=epoch,
                          topic_partitions=[*owning(s, one, 0, 1), *owning(s, two, 0)]))  # fmt: skip
    s.ask("described", "ConsumerGroupDescribe", "all", keep=without_epochs, group_ids=[group])
    s.ask("an expression that is none", API, 1, keep=shown, **going_on(group, epoch, subscribed_topic_regex="["))


def without_epochs(answer: dict[str, Any]) -> Any:
    """Kafka takes one epoch more, as it matches aside."""
    for group in answer["groups"]:
        for field in ("group_epoch", "assignment_epoch"):
            group.pop(field, None)
        for member in group["members"]:
            member.pop("member_epoch", None)
            member["subscribed_topic_regex"] = bool(member.get("subscribed_topic_regex"))
            for which in ("assignment", "target_assignment"):
                member[which] = sorted(
                    [part["topic_name"], part["partitions"]] for part in member[which]["topic_partitions"]
                )
    return answer


def names_and_expressions(s: Stage) -> None:
    one, two = s.create("one", 1), s.create("two", 1)
    group = consumer_group(s)
    pattern = f"{s.name('')}two".replace(".", "[.]")
    joined = s.send(API, 1, **by_expression(group, pattern, subscribed_topic_names=[one]))
    epoch = joined.member_epoch
    if joined.assignment is None or len(assigned(joined)) < 2:
        epoch = until_assigned(s, group, epoch, 2)
    both = [*owning(s, one, 0), *owning(s, two, 0)]
    less = s.ask("the expression goes", API, 1, keep=without_epoch,
                 **going_on(group, epoch, both, subscribed_topic_regex=""))  # fmt: skip
    s.ask("it has let go", API, 1, keep=without_epoch, **going_on(group, less.member_epoch, owning(s, one, 0)))
    s.ask("described", "ConsumerGroupDescribe", 1, keep=without_epochs, group_ids=[group])


def without_epoch(answer: dict[str, Any]) -> Any:
    shown(answer).pop("member_epoch", None)
    return answer
