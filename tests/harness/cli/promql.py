"""Evaluates the part of PromQL that Ottla's alert rules and dashboard use, over scrapes.

    history = [(0.0, {"node-1": samples}), (900.0, {"node-1": samples})]
    Query('sum by (topic) (rate(x_total[15m])) > 0').at(history, 900.0)   # {labels: value}

A result is a vector: a value for each set of labels. A comparison keeps what it is true of; `and` keeps what both sides
have. Rates take the first and last sample of the window.
"""

from __future__ import annotations

import operator
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

Labels = frozenset[tuple[str, str]]
Vector = dict[Labels, float]
Samples = Mapping[tuple[str, Labels], float]
History = Sequence[tuple[float, Mapping[str, Samples]]]
"""Times in seconds, and what each instance was scraped to say then, in order."""

TOKEN = re.compile(
    r'\s*(?:(\d+(?:\.\d+)?(?![\w:]))|([A-Za-z_:][\w:]*)|("[^"]*")|(==|!=|>=|<=|[(){}\[\],=<>/])|(\d+[smh]))'
)
COMPARED: Mapping[str, Callable[[float, float], bool]] = {
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
}
GATHERED: Mapping[str, Callable[[list[float]], float]] = {"sum": sum, "max": max}
OVER_TIME = ("rate", "increase", "delta")
SECONDS = {"s": 1, "m": 60, "h": 3600}
LOOK_BACK_S = 300.0


def seconds(text: str) -> float:
    return float(text[:-1]) * SECONDS[text[-1]]


class Query:
    """One expression. `names`: the metrics that it reads. Raises ValueError where it is not understood."""

    def __init__(self, expression: str) -> None:
        self._tokens: list[str] = []
        at = 0
        text = expression.rstrip()
        while at < len(text):
            found = TOKEN.match(text, at)
            if found is None:
                raise ValueError(f"{text[at:]!r} of {text!r}")
            self._tokens.append(found.group().strip())
            at = found.end()
        self.names: set[str] = set()
        self._next = 0
        self._history: History = ()
        self._now = 0.0
        self.at([], 0.0)

    def at(self, history: History, now: float) -> Vector:
        """What it gives at this moment."""
        self._history, self._now, self._next = history, now, 0
        found = self._both()
        if self._next != len(self._tokens):
            raise ValueError(f"{self._tokens[self._next :]} behind the end")
        return found

    # ---- the grammar -----------------------------------------------------------------------------------------------

    def _peek(self) -> str:
        return self._tokens[self._next] if self._next < len(self._tokens) else ""

    def _take(self, *wanted: str) -> str:
        token = self._peek()
        if not token or (wanted and token not in wanted):
            raise ValueError(f"{token!r}, not one of {wanted}")
        self._next += 1
        return token

    def _both(self) -> Vector:
        found = self._compared()
        while self._peek() == "and":
            self._take()
            other = self._compared()
            found = {labels: value for labels, value in found.items() if labels in other}
        return found

    def _compared(self) -> Vector:
        found = self._divided()
        if self._peek() in COMPARED:
            holds, bound = COMPARED[self._take()], float(self._take())
            found = {labels: value for labels, value in found.items() if holds(value, bound)}
        return found

    def _divided(self) -> Vector:
        found = self._one()
        if self._peek() == "/":
            self._take()
            by = self._one()
            found = {labels: value / by[labels] for labels, value in found.items() if labels in by}
        return found

    def _one(self) -> Vector:
        name = self._take()
        if name in GATHERED:
            return self._gathered(GATHERED[name])
        if name in OVER_TIME:
            self._take("(")
            selected = self._selected(self._take())
            self._take("[")
            window = seconds(self._take())
            self._take("]")
            self._take(")")
            return {labels: value for labels, series in selected.items() for value in self._over(name, series, window)}
        return {
            labels: [value for _, value in series][-1]
            for labels, series in self._selected(name).items()
            if series and series[-1][0] > self._now - LOOK_BACK_S
        }

    def _gathered(self, gather: Callable[[list[float]], float]) -> Vector:
        by: set[str] = set()
        if self._peek() == "by":
            self._take()
            self._take("(")
            by.add(self._take())
            while self._take(",", ")") == ",":
                by.add(self._take())
        self._take("(")
        inner = self._both()
        self._take(")")
        groups: defaultdict[Labels, list[float]] = defaultdict(list)
        for labels, value in inner.items():
            groups[frozenset(each for each in labels if each[0] in by)].append(value)
        return {labels: gather(values) for labels, values in groups.items()}

    def _selected(self, name: str) -> dict[Labels, list[tuple[float, float]]]:
        self.names.add(name)
        tests: list[tuple[str, str, str]] = []
        if self._peek() == "{":
            self._take()
            while self._peek() != "}":
                tests.append((self._take(), self._take("=", "!="), self._take().strip('"')))
                if self._peek() == ",":
                    self._take()
            self._take("}")
        series: defaultdict[Labels, list[tuple[float, float]]] = defaultdict(list)
        for time, instances in self._history:
            for instance, samples in instances.items() if time <= self._now else ():
                for (known, labels), value in samples.items():
                    given = dict(labels)
                    if known == name and all((given.get(key, "") == text) == (op == "=") for key, op, text in tests):
                        series[labels | {("instance", instance)}].append((time, value))
        return series

    def _over(self, how: str, series: list[tuple[float, float]], window: float) -> list[float]:
        inside = [each for each in series if each[0] >= self._now - window]
        if len(inside) < 2:
            return []
        values = [value for _, value in inside]
        if how == "delta":
            return [values[-1] - values[0]]
        grown = sum(after - before if after >= before else after for before, after in pairwise(values))
        return [grown / window if how == "rate" else grown]
