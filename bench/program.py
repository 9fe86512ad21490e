"""What the benchmark programs have in common: their options, what is picked, the run and what it tells.

A program measures one thing after the other, each in rounds, and prints a table and the verdicts of its floors behind
each; what could not be measured is told, and makes the program end with 1. A missed floor is told and is no error.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Protocol, TypeVar

from confluent_kafka import KafkaException

from bench.brokers import BenchFailedError, Nodes
from bench.figures import Rounds, number, table
from bench.machine import machine, machine_line
from ottla.client import ClientError


class Named(Protocol):
    """One thing that can be asked for by name."""

    @property
    def name(self) -> str: ...

    @property
    def says(self) -> str: ...


class Scale(Protocol):
    @property
    def rounds(self) -> int: ...

    @property
    def warmup(self) -> int: ...

    @property
    def seconds(self) -> float: ...


NamedT = TypeVar("NamedT", bound=Named)
ScaleT = TypeVar("ScaleT")


@dataclass(frozen=True, slots=True)
class Floor:
    """What the median of a figure of ours has to be: at least `least`, at most `most`."""

    measurement: str
    figure: str
    least: float | None = None
    most: float | None = None

    def values(self, rounds: Rounds) -> list[float]:
        return [figures[self.figure] for figures in rounds.get("ottla", []) if self.figure in figures]

    def what(self) -> str:
        return self.figure

    def verdict(self, rounds: Rounds) -> str | None:
        """A line for people; None where the figure was not measured."""
        values = self.values(rounds)
        if not values:
            return None
        value = statistics.median(values)
        met = (self.least is None or value >= self.least) and (self.most is None or value <= self.most)
        asked = f"at least {number(self.least)}" if self.least is not None else f"at most {number(self.most or 0)}"
        return f"floor {'met' if met else 'MISSED'}: {self.what()} {number(value)}, asked {asked}"


# ---- what is asked for ---------------------------------------------------------------------------------------------


def parser(program: str, text: str | None, full: Scale, *, seconds: str) -> argparse.ArgumentParser:
    """The options of every program that measures by name; `seconds` says what these are here."""
    made = argparse.ArgumentParser(
        prog=f"python -m {program}", description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = made.add_argument
    add("--only", metavar="PATTERN", nargs="+", default=["*"], help="measurements by name, or shell patterns of names")
    add("--list", action="store_true", help="the names and what they measure")
    add("--quick", action="store_true", help="does it run: one short round of everything; no figures to believe")
    add("--data", metavar="DIR", help="where the nodes' data is kept (/dev/shm, else a temporary directory)")
    add("--seconds", type=float, help=f"{seconds} ({full.seconds:g})")
    add("--rounds", type=int, help=f"rounds that count ({full.rounds})")
    add("--warmup", type=int, help=f"rounds before them ({full.warmup})")
    add("--json", metavar="FILE", help="also write every round's figures to this file")
    return made


def scaled(base: ScaleT, options: argparse.Namespace) -> ScaleT:
    """The scale with what the options say of it."""
    asked = {each.name: getattr(options, each.name, None) for each in fields(base)}  # type: ignore[arg-type]
    return replace(base, **{name: value for name, value in asked.items() if value is not None})  # type: ignore[type-var]


def picked(
    patterns: Sequence[str], every: Sequence[NamedT], find: Callable[[str], NamedT | None] = lambda _: None
) -> list[NamedT]:
    """What `--only` asks for, in the order of a whole run; then what `find` makes of names that a whole run lacks.

    Raises BenchFailedError for a name that means nothing.
    """
    made: list[NamedT] = []
    names: set[str] = set()
    for pattern in patterns:
        found = fnmatch.filter([each.name for each in every], pattern)
        other = None if found else find(pattern)
        if other is not None:
            made.append(other)
        elif not found:
            raise BenchFailedError(f"No measurement is called {pattern!r}; see --list.")
        names.update(found)
    return [*(each for each in every if each.name in names), *made]


# ---- the run -------------------------------------------------------------------------------------------------------


def main(
    options: argparse.Namespace,
    every: Sequence[NamedT],
    measuring: Callable[[Nodes], AbstractContextManager[Callable[[NamedT], Rounds]]],
    heading: str,
    *,
    find: Callable[[str], NamedT | None] = lambda _: None,
    durability: str = "page-cache",
    floors: Sequence[Floor] = (),
    lines: Callable[[Rounds], list[str]] = table,
) -> int:
    """Do what the options ask for: list, or measure what is picked, on nodes that go in the end. The exit code."""
    if options.list:
        width = max(len(each.name) for each in every)
        print("\n".join(f"{each.name:<{width}}  {each.says}" for each in every))
        return 0
    nodes = Nodes(options.data, durability)
    try:
        chosen = picked(options.only, every, find)
        with measuring(nodes) as measure:
            print(f"{machine_line()}\n{heading}\nmedian [lowest to highest] of the rounds that count", flush=True)
            return run(chosen, measure, floors, lines, options.json, durability)
    except BenchFailedError as failure:
        print(failure, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    finally:
        nodes.close()


def run(
    measurements: Sequence[NamedT],
    measure: Callable[[NamedT], Rounds],
    floors: Sequence[Floor],
    lines: Callable[[Rounds], list[str]],
    file: str | None,
    durability: str,
) -> int:
    """Measure and print; 1 where a measurement could not be made. `file` gets every round's figures."""
    results: dict[str, Rounds] = {}
    verdicts: dict[str, list[str]] = {}
    failures: dict[str, str] = {}
    for each in measurements:
        print(f"\n{each.name}: {each.says}", flush=True)
        try:
            rounds = results[each.name] = measure(each)
        except (BenchFailedError, ClientError, KafkaException) as failure:
            failures[each.name] = str(failure)
            print(f"  not measured: {failure}", flush=True)
            continue
        told = [floor.verdict(rounds) for floor in floors if floor.measurement == each.name]
        verdicts[each.name] = [verdict for verdict in told if verdict]
        print("\n".join([*lines(rounds), *(f"  {verdict}" for verdict in verdicts[each.name])]), flush=True)
    if file:
        document = {"machine": machine(), "durability": durability, "results": results, "floors": verdicts}
        document |= {"failures": failures}
        Path(file).write_text(json.dumps(document, indent=1) + "\n")
    return 1 if failures else 0


def in_words(scale: Scale) -> str:
    """How much is measured, for a heading."""
    return f"{scale.rounds} rounds of about {scale.seconds:g} s after {scale.warmup} that do not count"


def first_line(function: Callable[..., object]) -> str:
    """The first sentence of a docstring, on one line."""
    text = " ".join((function.__doc__ or "").split())
    return text.partition(". ")[0].partition("; ")[0].rstrip(".")
