"""Figures, measured in turns, and how they are told: medians, spread, ratios, a table, JSON.

A figure's name ends with its unit. Where the unit is per second (`.../s`) more is better, everywhere else less is.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from bench.brokers import Broker

Figures: TypeAlias = dict[str, float]
Rounds: TypeAlias = dict[str, list[Figures]]
"""Broker's name to the figures of its rounds."""


@dataclass(frozen=True, slots=True)
class Scale:
    """How much: everything that a measurement does is bounded by these.

    `seconds` is about the length of one measurement's window. `partitions` and `gigabytes` are for the measurements
    that are about them.
    """

    seconds: float
    rounds: int
    warmup: int
    partitions: int
    gigabytes: float


def cpu_figures(what: str, broker: Broker, before: tuple[float, float] | None, unit: str, amount: float) -> Figures:
    """What the broker's process has spent since `before`, all and user time only, by `amount` of the unit's divisor.

    `unit` says what of what: with `s/GB` the `amount` is in GB, with `us/request` in millions of requests.
    """
    after = broker.cpu_s()
    if before is None or after is None or not amount:
        return {}
    return {
        f"{what} cpu {unit}": (after[0] - before[0]) / amount,
        f"{what} user cpu {unit}": (after[1] - before[1]) / amount,
    }


def percentiles(name: str, spent_us: list[float], points: Sequence[float] = (50, 99, 99.9)) -> Figures:
    """{`name p50 us`: ...}; `spent_us` must not be empty."""
    ordered = sorted(spent_us)
    return {f"{name} p{p:g} us": ordered[min(len(ordered) - 1, int(len(ordered) * p / 100))] for p in points}


def measure_in_turns(sides: Mapping[str, Callable[[], Figures]], scale: Scale) -> Rounds:
    """A B, B A, A B ...: what disturbs the machine for a while hits both. The first `warmup` rounds don't count.
    `sides`: what measures each of them, by its name."""
    rounds: Rounds = {name: [] for name in sides}
    for turn in range(scale.warmup + scale.rounds):
        for name in sides if turn % 2 else reversed(sides):
            figures = sides[name]()
            if turn >= scale.warmup:
                rounds[name].append(figures)
    return rounds


def table(rounds: Rounds) -> list[str]:
    """One line per figure: median [lowest to highest] per broker; of two, the ratio first / second, pair by pair."""
    first, *others = rounds.values()
    names = dict.fromkeys(name for figures in first for name in figures)
    lines: list[str] = []
    for name in names:
        cells = [f"  {name:<34}"]
        for broker, several in rounds.items():
            values = [figures[name] for figures in several if name in figures]
            cells.append(f"{broker} {spread(values)}" if values else f"{broker} {'-':>12}")
        pairs = [
            (mine[name], theirs[name])
            for mine, theirs in zip(first, others[0] if others else [], strict=False)
            if name in mine and theirs.get(name)
        ]
        if pairs:
            ratios = [mine / theirs for mine, theirs in pairs]
            better = "more" if name.endswith("/s") else "less"
            lowest_to_highest = f" [{min(ratios):.2f} to {max(ratios):.2f}]" if len(ratios) > 1 else ""
            cells.append(f"ratio {statistics.median(ratios):.2f}{lowest_to_highest}, {better} is better")
        lines.append("  ".join(cells).rstrip())
    return lines


def spread(values: list[float]) -> str:
    text = f"{number(statistics.median(values)):>12}"
    if len(values) > 1:
        text += f" {'[' + number(min(values)) + ' to ' + number(max(values)) + ']':<24}"
    return text


def number(value: float) -> str:
    """Four significant digits, or all of an integer's."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}"
