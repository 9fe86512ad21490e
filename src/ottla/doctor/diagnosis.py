"""Runs the checks on the evidence, and orders what they find."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ottla.doctor.checks import CHECKS
from ottla.doctor.finding import Check, Finding
from ottla.doctor.snapshot import Evidence


@dataclass(frozen=True, slots=True)
class Diagnosed:
    """A finding, and the check that made it."""

    check: Check
    finding: Finding


def diagnose(evidence: Evidence, only: Iterable[str] = ()) -> list[Diagnosed]:
    """Run the checks. Returns the worst findings first, and certain ones before likely ones. `only`: names of
    checks (default: all). Raises KeyError for an unknown name."""
    checks = [CHECKS[name] for name in only] or list(CHECKS.values())
    found = [Diagnosed(check, finding) for check in checks for finding in check.find(evidence)]
    return sorted(found, key=lambda each: (-each.finding.severity, each.finding.sure_with is not None))
