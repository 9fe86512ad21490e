"""Collects the checks."""

from __future__ import annotations

from typing import Final

from ottla.doctor.checks import clients, groups, nodes, past, shares, topics, transactions
from ottla.doctor.finding import Check

CHECKS: Final[dict[str, Check]] = {
    check.name: check
    for module in (nodes, topics, groups, past, shares, transactions, clients)
    for check in module.CHECKS
}
"""Every check by its name."""
