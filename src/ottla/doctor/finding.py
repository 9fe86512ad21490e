"""Defines what a check is, and what it reports.

A check is a pure function of the evidence: it sends no request and reads no clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import IntEnum

from ottla.doctor.snapshot import Evidence


class Severity(IntEnum):
    """How bad a finding is. The values order findings, and are the exit codes of `ottla doctor`."""

    NOTE = 0
    """Worth knowing; nothing is wrong."""
    WARNING = 1
    """Something does not work, or soon will not."""
    DATA_AT_RISK = 2
    """Records are unavailable, unread records were deleted, or one more failure loses some."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem, with its numbers and a remedy.

    `subject` is the topic, group or node in question. `advice` is a command, or a sentence. `sure_with` is None for a
    certain finding; otherwise it says what would make it certain.
    """

    severity: Severity
    subject: str
    sentence: str
    advice: str
    sure_with: str | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """A named check. `title` says what it finds."""

    name: str
    title: str
    find: Callable[[Evidence], Iterator[Finding]]
