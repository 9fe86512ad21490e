"""Remembers who changed configs and quotas, when, and from which value to which.

A node remembers the changes that it has made: the controller those of topics, groups and quotas, and each node those of
the broker configs that it was asked to change. A forwarded request has the identity of its client.

Invariants: a config has at most `KEPT` changes, and a node at most `CHANGES_MAX`. The config that has not changed for
the longest time is dropped first. No name is longer than `NAME_MAX` characters, no value longer than
`CONFIG_VALUE_MAX`, and no other text longer than `TEXT_MAX`. The value of a sensitive config is never kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

from ottla.broker.requests import Request
from ottla.machine import WallMillis
from ottla.protocol.private_requests import CONFIG_VALUE_MAX

KEPT: Final = 5
CHANGES_MAX: Final = 2_000
TEXT_MAX: Final = 100
NAME_MAX: Final = 256
"""A resource with a longer name is not remembered: a client may configure a group with a name of 32 KiB."""
HIDDEN: Final = "[hidden]"
"""In the place of a sensitive value."""


class Resource(NamedTuple):
    """A resource that has configs. `type`: that of the wire (`ConfigResourceType`), or QUOTA."""

    type: int
    name: str


class ConfigChange(NamedTuple):
    """A change of a config, and its author. A value of None: the config was not set, or is no longer."""

    at_ms: WallMillis
    old: str | None
    new: str | None
    principal: str
    client_id: str
    host: str


class ConfigChanges:
    """The changes of all configs that a node has made."""

    __slots__ = ("_configs", "_size")

    def __init__(self) -> None:
        self._configs: dict[tuple[Resource, str], deque[ConfigChange]] = {}
        """The config that changed last is the last one."""
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def note(
        self,
        at_ms: WallMillis,
        request: Request,
        resource: Resource,
        before: Mapping[str, str],
        after: Mapping[str, str],
        is_sensitive: Callable[[str], bool] = lambda name: False,
    ) -> None:
        """The configs of a resource, by name, are now these."""
        if len(resource.name) > NAME_MAX:
            return
        who = str(request.identity.principal)[:TEXT_MAX], request.client_id[:TEXT_MAX]
        host = request.identity.address.client_host[:TEXT_MAX]
        for name in sorted(before.keys() | after.keys()):
            old, new = before.get(name), after.get(name)
            if old != new and len(name) <= NAME_MAX:
                hidden = is_sensitive(name)
                change = ConfigChange(at_ms, _kept(old, hidden=hidden), _kept(new, hidden=hidden), *who, host)
                self._add((resource, name), change)

    def _add(self, config: tuple[Resource, str], change: ConfigChange) -> None:
        ring = self._configs.pop(config, None)
        if ring is None:
            ring = deque[ConfigChange](maxlen=KEPT)
        self._configs[config] = ring
        self._size -= len(ring)
        ring.append(change)
        self._size += len(ring)
        while self._size > CHANGES_MAX:
            self._size -= len(self._configs.pop(next(iter(self._configs))))

    def changes(self) -> Iterator[tuple[Resource, str, ConfigChange]]:
        """Each change with its resource and the name of the config. Those of one config are in order, oldest first."""
        return ((*config, change) for config, ring in self._configs.items() for change in ring)


def _kept(value: str | None, *, hidden: bool) -> str | None:
    if value is None:
        return None
    return HIDDEN if hidden else value[:CONFIG_VALUE_MAX]
