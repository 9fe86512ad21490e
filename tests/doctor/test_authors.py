"""A finding that blames a config says who set it, if a node remembers that."""

from dataclasses import replace

import pytest

from ottla.doctor import Evidence, diagnose
from ottla.doctor.observed import ClientErrors, ConfigChange, ConnectionFigures, Observed
from ottla.doctor.snapshot import Committed, Group, Node, Partition, Snapshot, Topic
from ottla.protocol.config_resources import QUOTA, ConfigResourceType

NOW_MS = 1_700_000_000_000
HOUR_MS = 3_600_000
NODES = tuple(Node(number, "host", 9092) for number in (1, 2, 3))
THROTTLED = "throttled"


def change(
    name: str,
    new: str | None,
    *,
    resource: str = "orders",
    kind: int = ConfigResourceType.TOPIC,
    who: str = "ada",
    hours: int = 3,
) -> ConfigChange:
    return ConfigChange(
        kind, resource, name, NOW_MS - hours * HOUR_MS, None, new, f"User:{who}", "kafka-configs", "10.0.0.7"
    )


def evidence(*changes: ConfigChange, isr: tuple[int, ...] = (1,), start: int = 0, **configs: str) -> Evidence:
    """A topic with some configs of its own, a group at its first offset, and an error of a producer."""
    own = {key.replace("_", "."): value for key, value in configs.items()}
    parts = (
        Partition(0, 1, (1, 2, 3), isr, start=start, end=start + 200_000, oldest_ms=NOW_MS - 900 * HOUR_MS, size=1),
    )
    topic = Topic("orders", parts, False, {"cleanup.policy": "delete", **own}, frozenset(own))
    errors = (
        ClientErrors("loader", "User:bob", 0, 10, 1, NOW_MS, NOW_MS, "orders", "A batch of 9 bytes is too large."),
    )
    observed = Observed(1, NOW_MS, errors=errors, config_changes=changes)
    group = Group("billing", "classic", "Stable", (), {("orders", 0): Committed(0)})
    last = Snapshot(NOW_MS, "c", NODES, (topic,), (group,), observed=(observed,))
    return Evidence(last, last)


BY_ADA = "User:ada (kafka-configs at 10.0.0.7) set {} 3 h ago."


def said(check: str, given: Evidence) -> str:
    (found,) = diagnose(given, [check])
    return found.finding.sentence


@pytest.mark.parametrize(
    ("check", "config", "given"),
    [
        ("too-few-in-sync", "min.insync.replicas", {"min_insync_replicas": "2"}),
        ("one-failure-away", "min.insync.replicas", {"min_insync_replicas": "3", "isr": (1, 2, 3)}),
        ("unclean-election", "unclean.leader.election.enable", {"unclean_leader_election_enable": "true"}),
        ("retention-late", "retention.ms", {"retention_ms": "3600000", "segment_ms": "3600000"}),
        ("lost-unread", "retention.ms", {"retention_ms": "3600000", "start": 9}),
        ("too-large-batches", "max.message.bytes", {"max_message_bytes": "8"}),
        (
            "compaction-waits",
            "segment.bytes",
            {"cleanup_policy": "compact", "segment_bytes": "1000", "segment_ms": str(1_000 * HOUR_MS)},
        ),
    ],
)
def test_the_author_of_the_present_value_is_named(check: str, config: str, given: dict[str, str]) -> None:
    value = given[config.replace(".", "_")]
    without = evidence(**given)  # type: ignore[arg-type]
    assert "User:" not in said(check, without)
    set_by_ada = BY_ADA.format(f"{config}={value}")
    known = evidence(change(config, value), change(config, "1", who="bob", hours=9), **given)  # type: ignore[arg-type]
    assert said(check, known) == f"{said(check, without)} {set_by_ada}"
    newer = evidence(change(config, value), change(config, "77", who="bob", hours=1), **given)  # type: ignore[arg-type]
    assert "User:" not in said(check, newer), "nobody remembers who set the present value"
    gone = evidence(change(config, value), change(config, None, who="bob", hours=1), **given)  # type: ignore[arg-type]
    assert "User:" not in said(check, gone)


def test_a_default_has_no_author() -> None:
    given = evidence(change("min.insync.replicas", "2"), min_insync_replicas="2")
    topic = replace(given.last.topics[0], set_configs=frozenset[str]())
    last = replace(given.last, topics=(topic,))
    assert "User:" not in said("too-few-in-sync", Evidence(last, last))


def test_a_throttled_client_is_told_who_changed_its_quota() -> None:
    def throttled(*changes: ConfigChange) -> str:
        was, now = (
            replace(
                evidence(*changes).last,
                at_ms=at_ms,
                observed=(
                    Observed(
                        1,
                        at_ms,
                        connections=(ConnectionFigures(1, "loader", "User:bob", "10.0.0.1", throttled_ms=ms),),
                        config_changes=changes,
                    ),
                ),
            )
            for at_ms, ms in ((NOW_MS - 30_000, 0), (NOW_MS, 15_000))
        )
        return said(THROTTLED, Evidence(was, now))

    assert throttled().endswith("because of a quota.")
    other = change("producer_byte_rate", "5.0", kind=QUOTA, resource="user carol")
    assert throttled(other).endswith("because of a quota.")
    own = change("producer_byte_rate", "1000.0", kind=QUOTA, resource="client-id loader")
    assert throttled(own, other).endswith(BY_ADA.format("producer_byte_rate=1000.0 of client-id loader"))
