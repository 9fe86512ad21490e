"""Finds the page that shows the subject of a doctor's finding, where a user can act on it."""

from __future__ import annotations

from typing import Final

from ottla.console.page import url
from ottla.doctor.checks import groups, nodes, past, shares, topics
from ottla.doctor.finding import Check
from ottla.doctor.snapshot import SHARE, Snapshot

OF_TOPICS: Final = frozenset(each.name for each in topics.CHECKS) | {"too-large-batches", "small-batches"}
OF_GROUPS: Final = frozenset(each.name for module in (groups, past, shares) for each in module.CHECKS) | {
    "slow-polls",
    "refused-commits",
    "fenced-instances",
    "protocols-differ",
}
OF_NODES: Final = frozenset(each.name for each in nodes.CHECKS) | {"strangers", "clock-ahead", "slow-turns"}
OF_TRANSACTIONS: Final = frozenset({"readers-held-back", "fenced-producers"})


class Links:
    """The pages of what a snapshot holds."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._types = {each.name: each.type for each in snapshot.groups}
        self._topics = {each.name for each in snapshot.topics}
        self._transactions = {each.name for each in snapshot.transactions}

    def of(self, check: Check, subject: str) -> str:
        """The address of the page of a finding's subject; "" if there is none, such as for a client id. A topic and a
        group may have the same name, so the check decides."""
        if check.name in OF_TRANSACTIONS:
            is_open = subject in self._transactions
            return url("/transaction", name=subject) if is_open else "/transactions"
        if check.name in OF_TOPICS and subject in self._topics:
            return url("/topic", name=subject)
        if check.name in OF_GROUPS and subject in self._types:
            return url("/share-group" if self._types[subject] == SHARE else "/group", name=subject)
        if check.name in OF_NODES or (check.name in OF_TOPICS and subject.startswith("node ")):
            return "/cluster"
        return ""
