"""Lists Kafka's APIs: key, name, versions, and where the request and response classes are.

The versions are those of the codec, not those that a broker advertises. A module of `messages` is imported when its
class is first used; an API that Ottla does not use has none.

Source: the message definitions of Apache Kafka 4.3; ApiMessageType.java for the versions of the headers.
"""

from __future__ import annotations

from importlib import import_module

from ottla.protocol.messages._apis import API_TABLE, ApiKey
from ottla.protocol.wire import Message

__all__ = ["APIS", "Api", "ApiKey"]


class Api:
    """One API. `min_version` to `max_version` are Kafka's versions; the message classes, if any, support all of
    them."""

    __slots__ = ("_module", "_request", "_response", "flexible_since", "key", "max_version", "min_version", "name")

    def __init__(
        self, key: int, name: str, min_version: int, max_version: int, flexible_since: int, module: str | None
    ) -> None:
        self.key = ApiKey(key)
        self.name = name
        self.min_version = min_version
        self.max_version = max_version
        self.flexible_since = flexible_since
        self._module = module
        self._request: type[Message] | None = None
        self._response: type[Message] | None = None

    def has_messages(self, version: int) -> bool:
        """Whether the codec reads and writes this version."""
        return self._module is not None and self.min_version <= version <= self.max_version

    @property
    def request(self) -> type[Message]:
        if self._request is None:
            self._request = self._load("Request")
        return self._request

    @property
    def response(self) -> type[Message]:
        if self._response is None:
            self._response = self._load("Response")
        return self._response

    def _load(self, kind: str) -> type[Message]:
        assert self._module is not None, f"tools/generate_messages.py leaves {self.name} out"
        return getattr(import_module(f"ottla.protocol.messages.{self._module}"), self.name + kind)

    def __repr__(self) -> str:
        return f"Api({self.key:d}, {self.name}, {self.min_version}-{self.max_version})"


APIS: dict[int, Api] = {row[0]: Api(*row) for row in API_TABLE}
