"""Checks transactions: those that block readers of committed records."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ottla.doctor.finding import Check, Finding, Severity
from ottla.doctor.snapshot import Evidence, OpenTransaction
from ottla.doctor.words import count, duration, place

GRACE_MS: Final = 5 * 60_000
"""How long after its timeout a transaction may still be open."""
TIMEOUT_MAX_MS: Final = 900_000
"""transaction.max.timeout.ms: a transaction without a coordinator's entry may be that young."""
OPEN_MIN_MS: Final = 60_000
"""A shorter transaction is no finding."""


def readers_held_back(evidence: Evidence) -> Iterator[Finding]:
    """Old transactions that block readers, and those that no coordinator will end."""
    now, held = evidence.last.at_ms, evidence.last.places()
    before = evidence.first.places()
    found: dict[str, list[OpenTransaction]] = {}
    for each in evidence.last.transactions:
        partition, earlier = held.get(each.place), before.get(each.place)
        if partition is None or partition.stable is None or earlier is None or earlier.stable != partition.stable:
            continue  # it is gone, or readers moved on
        if each.name is None:
            if now - each.last_ms > TIMEOUT_MAX_MS + GRACE_MS:
                yield _hanging(evidence, each)
        elif each.started_ms is not None and now - each.started_ms > OPEN_MIN_MS:
            found.setdefault(each.name, []).append(each)
    for name, rows in sorted(found.items()):
        started, timeout = rows[0].started_ms or now, rows[0].timeout_ms or 0
        open_ms = now - started
        late = open_ms > timeout + GRACE_MS
        yield Finding(
            Severity.WARNING,
            name,
            f"The transaction of {name} has been open for {duration(open_ms / 1000)}, and blocks readers of committed "
            f"records in {place(rows[0].place)}"
            + (f" and {len(rows) - 1} more" if rows[1:] else "")
            + _by(rows, evidence)
            + (
                ": its coordinator should have aborted it."
                if late
                else f": its coordinator aborts it in {duration(max(0, timeout - open_ms) / 1000)}."
            ),
            f"`ottla transactions describe {name}`; `ottla transactions abort {name}`",
        )


def _hanging(evidence: Evidence, each: OpenTransaction) -> Finding:
    topic, index = each.place
    return Finding(
        Severity.WARNING,
        place(each.place),
        f"A transaction of producer {each.producer_id} hangs in {place(each.place)} since offset "
        f"{each.start_offset:,}, without a write for {duration((evidence.last.at_ms - each.last_ms) / 1000)}: no "
        f"coordinator knows it, so readers of committed records wait indefinitely{_by([each], evidence)}.",
        f"ottla transactions abort --topic {topic} --partition {index} --start-offset {each.start_offset} --execute",
    )


def _by(rows: list[OpenTransaction], evidence: Evidence) -> str:
    """How many groups have a position in these partitions."""
    places = {each.place for each in rows}
    groups = sum(1 for group in evidence.last.groups if places & group.committed.keys())
    return f" ({count(groups, 'group')} read there)" if groups else ""


CHECKS: Final = (Check("readers-held-back", "transactions that block readers", readers_held_back),)
