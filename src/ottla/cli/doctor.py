"""`ottla doctor`: say what is wrong with a cluster, or soon will be, and what helps.

Makes two snapshots, or reads them from a bundle, and prints what the checks of `ottla.doctor` find. The exit code is
the severity of the worst finding.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ottla import __version__, private
from ottla.cli.connection import HERE, Cluster, Output, client_properties, own_clients, plain_failures
from ottla.cli.options import with_shared_options
from ottla.cli.output import CommandError, Format, UsageError, counted, print_json, print_rows, say

if TYPE_CHECKING:
    from ottla.doctor import Diagnosed, Evidence, Snapshot

EPILOG = "Example: ottla doctor --window 30 --bootstrap localhost:9092"
SHOWN = 10
MARKS = ("note", "WARNING", "DATA AT RISK")


Window = Annotated[
    float,
    typer.Option(
        "--window",
        metavar="SECONDS",
        min=0,
        max=86_400,
        help="Seconds between two snapshots; checks that compare them need 5 (default 10; 0: one snapshot).",
    ),
]
Past = Annotated[
    float,
    typer.Option(
        "--past",
        metavar="SECONDS",
        min=0,
        max=86_400,
        help="Seconds of past commits and rebalances to read from __consumer_offsets (default 600; 0: none).",
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option("--only", metavar="CHECK", help="Run only this check; may be repeated (default: all)."),
]
ListChecks = Annotated[bool, typer.Option("--list-checks", help="List the checks, and run none.")]
Watch = Annotated[
    bool, typer.Option("--watch", help="Repeat until Ctrl-C; print each finding when it begins and when it is over.")
]
All = Annotated[bool, typer.Option("--all", help="Print every finding (default: the 10 worst).")]
WrittenBundle = Annotated[
    Path | None,
    typer.Option(
        "--bundle",
        metavar="FILE",
        help="Write the snapshots and findings to this file, without records and passwords (default: none).",
    ),
]
ReadBundle = Annotated[
    Path | None,
    typer.Option("--from", metavar="FILE", help="Read the snapshots from a bundle; ask no cluster (default: none)."),
]


@with_shared_options
def doctor(
    window: Window = 10.0,
    past: Past = 600.0,
    only: Only = None,
    list_checks: ListChecks = False,
    watch: Watch = False,
    all_: All = False,
    bundle: WrittenBundle = None,
    from_: ReadBundle = None,
    cluster: Cluster = HERE,
    format: Output = Format.TABLE,
) -> int:
    """Report problems of a cluster, present or soon to come, with remedies; works on any Kafka.

    It reads only: it joins no group, commits nothing, and creates no topic. The exit code is 0 if nothing is wrong, 1
    for warnings, and 2 if data is at risk.
    """
    from ottla.doctor import CHECKS, diagnose

    if list_checks:
        print_rows(("CHECK", "FINDS"), [(each.name, each.title) for each in CHECKS.values()], format)
        return 0
    for name in only or ():
        if name not in CHECKS:
            raise UsageError(f"There is no check {name}: `ottla doctor --list-checks` lists them.")
    if watch and (from_ is not None or bundle is not None or format is Format.JSON):
        raise UsageError("--watch cannot be combined with --from, --bundle or --format json.")
    if watch:
        return _watch(cluster, max(window, 1.0), past, only or [])
    evidence = _read(from_) if from_ is not None else next(_evidence(cluster, window, past))
    found = diagnose(evidence, only or [])
    if bundle is not None:
        _write(bundle, evidence, found)
    _print(evidence, found, format, most=None if all_ else SHOWN)
    return _exit_code(found)


def _evidence(cluster: Cluster, window: float, past: float) -> Iterator[Evidence]:
    """Evidence over windows that follow each other."""
    from ottla.doctor import Evidence, gather

    make = own_clients(client_properties(cluster))

    def snapshot(past: float = 0) -> Snapshot:
        with plain_failures(), make() as client:
            return gather(client, history_ms=int(past * 1000))

    first = snapshot(0 if window else past)
    while True:
        time.sleep(window)
        last = snapshot(past) if window else first
        yield Evidence(first, last)
        first = last


def _watch(cluster: Cluster, window: float, past: float, only: list[str]) -> int:
    """Print findings as they begin and end, until Ctrl-C."""
    from ottla.doctor import diagnose

    known: dict[tuple[str, str], Diagnosed] = {}
    for evidence in _evidence(cluster, window, past):
        found = diagnose(evidence, only)
        now = {(each.check.name, each.finding.subject): each for each in found}
        clock = time.strftime("%H:%M:%S")
        for key, each in now.items():
            if key not in known:
                say(f"{clock} {MARKS[each.finding.severity]} {_sentence(each)} -> {each.finding.advice}")
        for key, each in known.items():
            if key not in now:
                say(f"{clock} over: {each.check.name}, {each.finding.subject}")
        known = now
    return 0


def _exit_code(found: list[Diagnosed]) -> int:
    return max((int(each.finding.severity) for each in found), default=0)


def _print(evidence: Evidence, found: list[Diagnosed], format: Format, most: int | None) -> None:
    if format is Format.JSON:
        print_json({"findings": _rows(found), "unseen": list(evidence.last.unseen)})
        return
    for each in found[:most]:
        say(f"{MARKS[each.finding.severity]:12}  {_sentence(each)}")
        say(f"{'':12}  -> {each.finding.advice}  [{each.check.name}]")
    if most is not None and len(found) > most:
        say(f"{counted(len(found) - most, 'more finding')}: --all shows them.")
    for what in evidence.last.unseen[:most]:
        say(f"Not seen: {what}", err=True)
    last = evidence.last
    seen = ", ".join(
        (
            counted(len(last.nodes), "node"),
            counted(len(last.topics), "topic"),
            counted(len(last.groups), "group"),
        )
    )
    say(f"Examined {seen}, over {evidence.window_s:.0f} s: {counted(len(found), 'finding')}.", err=True)


def _sentence(each: Diagnosed) -> str:
    likely = each.finding.sure_with
    return each.finding.sentence if likely is None else f"{each.finding.sentence} Likely; confirm with {likely}."


def _rows(found: list[Diagnosed]) -> list[dict[str, object]]:
    return [
        {
            "check": each.check.name,
            "severity": each.finding.severity.name.lower(),
            "subject": each.finding.subject,
            "sentence": each.finding.sentence,
            "advice": each.finding.advice,
            "sure_with": each.finding.sure_with,
        }
        for each in found
    ]


def _write(path: Path, evidence: Evidence, found: list[Diagnosed]) -> None:
    from ottla.doctor.bundle import to_json

    made = to_json(evidence, version=__version__, findings=_rows(found))
    private.write(path, json.dumps(made, indent=1) + "\n")


def _read(path: Path) -> Evidence:
    from ottla.doctor.bundle import NoBundleError, from_json

    try:
        return from_json(json.loads(path.read_text()))
    except OSError as error:
        raise CommandError(f"{path} cannot be read: {error.strerror or error}.") from None
    except (json.JSONDecodeError, UnicodeDecodeError, NoBundleError) as error:
        raise CommandError(f"{path} is no bundle of `ottla doctor --bundle`: {error}.") from None
