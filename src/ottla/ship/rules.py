"""Decides which lines continue the record before them.

The rules recognise stack traces of Java and Python, and indented lines. A rule is called for every line of a file in
order, and may keep state.
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
"""Indented lines, the lines of a Java Throwable, the head of a Python traceback, and the lines that join two
tracebacks."""

RAISED = re.compile(rb"[A-Za-z_][\w.]*(?:[: (]|\r?$)")
"""The last line of a traceback: the exception's name, optionally with its message."""

BLANK = re.compile(rb"\r?$")


class Rule(Protocol):
    """Decides whether a line (without its line feed) continues the record before; called once per line, in order."""

    def __call__(self, line: bytes) -> bool: ...


class Traces:
    """The rule of `--multiline auto`."""

    __slots__ = ("_in_traceback", "_traced")

    def __init__(self) -> None:
        self._in_traceback = False
        self._traced = False
        """Whether a traceback just ended, so that a blank line may precede the next one of its chain."""

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
    """The rule of `--starts REGEX`: a line that matches the pattern begins a record; other lines continue it."""

    __slots__ = ("_pattern",)

    def __init__(self, pattern: bytes) -> None:
        self._pattern = re.compile(pattern)

    def __call__(self, line: bytes) -> bool:
        return self._pattern.search(line) is None
