"""Decides which line goes on with the record before it.

Knows: traces of Java and Python, lines that are indented. Does not know: files, records' sizes. A rule is asked about
every line of a file in order and may remember what it has seen.
"""

from __future__ import annotations

import re
from typing import Protocol

GOES_ON = re.compile(
    rb"[ \t]+\S|[ \t]+\r?$"
    rb"|at \S|Caused by\b|Suppressed: |\.\.\. \d+ (?:more|common)"
    rb"|[A-Za-z_$][\w$]*(?:\.[\w$]+)+(?:Exception|Error|Throwable)\b(?:[:;\s]|$)"
    rb"|(?P<traceback>Traceback \(most recent call last\))"
    rb"|(?P<chained>During handling of the above exception|The above exception was the direct cause)"
)
"""Indented lines, what Java prints of a Throwable, the head of a Python traceback and what joins two of them."""

RAISED = re.compile(rb"[A-Za-z_][\w.]*(?:[: (]|\r?$)")
"""The line that ends a traceback: the exception's name, perhaps with its message."""

BLANK = re.compile(rb"\r?$")


class Rule(Protocol):
    """Decides whether a line (without its line feed) goes on with the record before; asked once per line, in order."""

    def __call__(self, line: bytes) -> bool: ...


class Traces:
    """The rule of `--multiline auto`."""

    __slots__ = ("_in_traceback", "_traced")

    def __init__(self) -> None:
        self._in_traceback = False
        self._traced = False
        """A traceback is over and a blank line may lead to the next one of its chain."""

    def __call__(self, line: bytes) -> bool:
        found = GOES_ON.match(line)
        if found is not None:
            if found["traceback"] is not None:
                self._in_traceback, self._traced = True, False
            elif found["chained"] is not None:
                self._traced = True
            return True
        if self._in_traceback and RAISED.match(line):
            self._in_traceback, self._traced = False, True
            return True
        if self._traced and BLANK.match(line):
            return True
        self._in_traceback = self._traced = False
        return False


class Starts:
    """The rule of `--starts REGEX`: a line in which the pattern is found begins a record, any other goes on."""

    __slots__ = ("_pattern",)

    def __init__(self, pattern: bytes) -> None:
        self._pattern = re.compile(pattern)

    def __call__(self, line: bytes) -> bool:
        return self._pattern.search(line) is None
