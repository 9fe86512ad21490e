"""Finds the page that shows the subject of a doctor's finding, where a user can act on it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from shlex import quote
from typing import Final

from ottla.console.page import url
from ottla.doctor.checks import groups, nodes, past, shares, topics
from ottla.doctor.finding import Check, Finding
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


# ---- advice --------------------------------------------------------------------------------------------------------

PAGES_OF_COMMANDS: Final = {
    "transactions find-hanging": ("Transactions", "/transactions"),
    "transactions abort": ("Transactions", "/transactions"),
    "cluster rebalance": ("Rebalance", "/rebalance"),
    "cluster describe": ("Cluster", "/cluster"),
    "quotas list": ("Security", "/security"),
}
PAGES_OF_NAMES: Final = {
    "share-groups redrive": ("Dead letters", "/dead-letters"),
    "share-groups resume": ("Resume", "/share-group/resume"),
    "share-groups delete": ("Delete the group", "/share-group/delete"),
    "groups reset-offsets": ("Reset offsets", "/group/reset"),
    "groups delete-offsets": ("Delete offsets", "/group/forget"),
    "topics delete": ("Delete the topic", "/topic/delete"),
    "transactions describe": ("Transaction", "/transaction"),
}
"""Titles and addresses of the pages that do what commands do; with PAGES_OF_NAMES the command names the subject."""
COMMAND: Final = re.compile(r"`(ottla [^`]*)`|^(ottla [^`]*)$")


def commands_in(advice: str) -> Iterator[str]:
    """The commands of an advice: all of it, or those between backticks."""
    for found in COMMAND.finditer(advice):
        yield found[1] or found[2]


def links_in(finding: Finding, *, is_read_only: bool) -> tuple[tuple[str, str], ...]:
    """Titles and addresses of the pages that do what the commands of an advice do. A read-only console has no pages of
    changes."""
    found: dict[tuple[str, str], None] = {}
    for command in commands_in(finding.advice):
        verb = " ".join(command.split()[1:3])
        title, path = PAGES_OF_COMMANDS.get(verb, ("", ""))
        if not path and f"{command} ".startswith(f"ottla {verb} {finding.subject} "):
            title, path = PAGES_OF_NAMES.get(verb, ("", ""))
            is_change = path.count("/") > 1
            path = "" if not path or (is_change and is_read_only) else url(path, name=finding.subject)
        if path:
            found[title, path] = None
    return tuple(found)


def reaching(advice: str, arguments: Sequence[str]) -> str:
    """An advice whose commands end with these arguments, which name the cluster."""
    return COMMAND.sub(lambda found: f"`{' '.join([found[1] or found[2], *map(quote, arguments)])}`", advice)
