"""The parts of a log (offsets, segments, durability) are the only writers of their fields, and check themselves."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import ottla
from ottla.log.durability import UNREADABLE_MAX, Durability
from ottla.log.files import FileSlice
from ottla.log.log import Log
from ottla.log.offsets import LogOffsets
from ottla.log.segments import LogSegments
from ottla.log.state import Retention
from tests.harness.log.support import NOW, batch, disk, open_log

PACKAGE = Path(ottla.__file__).parent
FIELDS: dict[type, tuple[str, set[str]]] = {
    part: (name, {field.lstrip("_") for field in part.__slots__})
    for name, part in {
        "offsets": LogOffsets,
        "segments": LogSegments,
        "durability": Durability,
        "retention": Retention,
    }.items()
}
LOCAL_NAMES = {"upkeep": "retention"}
CHANGES = frozenset({"append", "clear", "extend", "insert", "pop", "popitem", "remove", "setdefault", "update"})


def written_in(tree: ast.Module) -> Iterator[ast.Attribute]:
    """The attributes that a module assigns to, or whose lists and dicts it changes in place."""
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign | ast.Delete):
            targets = node.targets
        elif isinstance(node, ast.AugAssign | ast.AnnAssign):
            targets = [node.target]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
            targets = [node.func.value]
        for target in targets:
            for each in target.elts if isinstance(target, ast.Tuple) else [target]:
                place = each.value if isinstance(each, ast.Subscript) else each
                if isinstance(place, ast.Attribute):
                    yield place


def part_of(place: ast.Attribute) -> str:
    """The part that an attribute seems to belong to, by the name of its owner."""
    owner = place.value
    name = owner.attr if isinstance(owner, ast.Attribute) else owner.id if isinstance(owner, ast.Name) else ""
    return LOCAL_NAMES.get(name, name)


def test_only_a_part_writes_its_fields() -> None:
    """Outside their classes, which write to `self`, no code changes them: neither through the log nor on it."""
    fields = dict(FIELDS.values())
    on_the_log = set().union(*fields.values()) - {"config", "directory", "files", "segments"}
    for path in [*(PACKAGE / "log").rglob("*.py"), *(PACKAGE / "broker").rglob("*.py")]:
        for place in written_in(ast.parse(path.read_text())):
            part, field = part_of(place), place.attr.lstrip("_")
            where = f"{path.name}:{place.lineno} writes {part}.{field}"
            assert field not in fields.get(part, ()), where
            assert part != "log" or field not in on_the_log, where


def break_start(log: Log) -> None:
    log.offsets.start_raised(log.log_end_offset + 1)


def break_stable(log: Log) -> None:
    log.offsets.first_unstable = log.log_end_offset + 1


def break_bases(log: Log) -> None:
    log.segments.bases.append(99)


def break_active(log: Log) -> None:
    log.segments.active = None


def break_cursors(log: Log) -> None:
    assert log.active is not None
    log.segments.remember(1, log.active, log.active.size + 1)


def break_recovery_point(log: Log) -> None:
    log.syncing.recovery_point = log.log_end_offset + 1


def break_snapshots(log: Log) -> None:
    log.durability.snapshots.append(log.log_end_offset + 1)


def break_doubt(log: Log) -> None:
    log.durability.in_doubt = True


@pytest.mark.parametrize(
    "damage",
    [
        break_start,
        break_stable,
        break_bases,
        break_active,
        break_cursors,
        break_recovery_point,
        break_snapshots,
        break_doubt,
    ],
)
def test_a_part_notices_what_is_wrong_with_it(damage: Callable[[Log], None]) -> None:
    log = open_log(disk())
    log.append_as_leader(batch(b"1", b"2"), now=NOW, leader_epoch=0)
    log.check()
    damage(log)
    with pytest.raises(AssertionError):
        log.check_parts()


def test_a_log_remembers_a_bounded_number_of_unreadable_places() -> None:
    log = open_log(disk())
    log.append_as_leader(batch(b"1", b"2"), now=NOW, leader_epoch=0)
    assert log.active is not None
    parts = [FileSlice(log.active.file, position, 1) for position in range(UNREADABLE_MAX + 3)]
    for part in [*parts, parts[-1]]:
        log.not_read(part)
    log.check()
    assert log.durability.unreadable == parts[3:]
