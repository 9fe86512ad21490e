"""Counts the errors that clients receive, by client id, principal, API and code.

Reading the error codes of an answer is cheap; only an answer with an error costs more.

Invariants: at most `KEPT` counters exist; the one that has not changed for the longest time is dropped first. No text
is longer than `TEXT_MAX` characters, and no message longer than `MESSAGE_MAX`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from ottla.broker.requests import Request
from ottla.machine import WallMillis
from ottla.protocol.apis import ApiKey

KEPT: Final = 1_000
TEXT_MAX: Final = 100
MESSAGE_MAX: Final = 150
NO_API: Final = -1
"""The API of what was no request of Kafka's protocol. Its client is counted by host, in the place of the principal."""

NESTED: Final[dict[int, tuple[str, ...]]] = {
    ApiKey.LIST_OFFSETS: ("topics", "partitions"),
    ApiKey.OFFSET_COMMIT: ("topics", "partitions"),
    ApiKey.FIND_COORDINATOR: ("coordinators",),
    ApiKey.LEAVE_GROUP: ("members",),
    ApiKey.CREATE_TOPICS: ("topics",),
    ApiKey.DELETE_TOPICS: ("responses",),
    ApiKey.DELETE_RECORDS: ("topics", "partitions"),
    ApiKey.TXN_OFFSET_COMMIT: ("topics", "partitions"),
    ApiKey.CREATE_ACLS: ("results",),
    ApiKey.ALTER_CONFIGS: ("responses",),
    ApiKey.CREATE_PARTITIONS: ("results",),
    ApiKey.DELETE_GROUPS: ("results",),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: ("responses",),
    ApiKey.OFFSET_DELETE: ("topics", "partitions"),
    ApiKey.SHARE_ACKNOWLEDGE: ("responses", "partitions"),
}
"""Lists in the answers of an API, from the outermost, whose innermost elements have error codes. Answers of other APIs
have one error code, or describe things that have errors of their own. Produce and Fetch note theirs themselves."""
_SUBJECTS: Final = ("transactional_id", "group_id")
"""Fields of a request that name what an error is about."""


class ErrorCount:
    """How often a client has received one error code from one API, and when first and last.

    `subject`: the topic, group or transactional id of the last one, if it named one. `message`: the text that the
    client received with it.
    """

    __slots__ = ("count", "first_ms", "last_ms", "message", "subject")

    def __init__(self, first_ms: WallMillis) -> None:
        self.count = 0
        self.first_ms = self.last_ms = first_ms
        self.subject = ""
        self.message = ""


Key = tuple[str, str, int, int]
"""(client id, principal, API key, error code)."""


class Errors:
    """The counters of a node."""

    __slots__ = ("_counts",)

    def __init__(self) -> None:
        self._counts: dict[Key, ErrorCount] = {}
        """The one that changed last is the last one."""

    def __len__(self) -> int:
        return len(self._counts)

    def note(
        self,
        at_ms: WallMillis,
        client_id: str,
        principal: str,
        api_key: int,
        code: int,
        subject: str = "",
        message: str | None = None,
    ) -> None:
        """A client receives an error."""
        key = (client_id[:TEXT_MAX], principal[:TEXT_MAX], api_key, int(code))
        counted = self._counts.pop(key, None) or ErrorCount(at_ms)
        self._counts[key] = counted
        counted.count += 1
        counted.last_ms = at_ms
        counted.subject = subject[:TEXT_MAX]
        counted.message = (message or "")[:MESSAGE_MAX]
        if len(self._counts) > KEPT:
            del self._counts[next(iter(self._counts))]

    def note_answer(self, at_ms: WallMillis, request: Request, message: Any) -> None:
        """A client receives this message, which may have errors. Each code counts once."""
        found = _errors_in(request.api_key, message)
        if not found:
            return
        body = request.body
        about = next((name for field in _SUBJECTS if (name := getattr(body, field, None))), "")
        for code, subject, text in found:
            self.note(
                at_ms, request.client_id, str(request.identity.principal), request.api_key, code, about or subject, text
            )

    def counts(self) -> Iterator[tuple[Key, ErrorCount]]:
        """Each counter; the one that changed last is the last one."""
        return iter(self._counts.items())


def _errors_in(api_key: int, message: Any) -> list[tuple[int, str, str | None]]:
    """The error codes of an answer, each once, with the topic and the text of the first element that has it."""
    code = getattr(message, "error_code", 0)
    if code:
        return [(code, "", getattr(message, "error_message", None))]
    path = NESTED.get(api_key)
    if path is None:
        return []
    found: dict[int, tuple[str, str | None]] = {}
    parts: Iterable[Any] = getattr(message, path[0], None) or ()
    if len(path) == 1:
        for each in parts:
            if (code := getattr(each, "error_code", 0)) and code not in found:
                found[code] = (_name_of(each), getattr(each, "error_message", None))
    else:
        for outer in parts:
            for each in getattr(outer, path[1], ()):
                if each.error_code and each.error_code not in found:
                    found[each.error_code] = (_name_of(outer), getattr(each, "error_message", None))
    return [(code, subject, text) for code, (subject, text) in found.items()]


def _name_of(element: Any) -> str:
    """The topic, group or resource that an element of an answer names."""
    for field in ("name", "topic", "group_id", "resource_name", "key"):
        if isinstance(named := getattr(element, field, None), str) and named:
            return named
    return ""
