"""Lists the APIs of this node by key: the specs of all handlers, and the handlers, imported at their first use.

A handler's module has `SPEC` (see `api_spec`) and one of two functions. `handle(node, request)` gets the decoded
message and returns a message, `Parked` or None. `receive(node, now, channel, version, correlation_id, frame)` reads the
frame itself and returns the parts of the answer. An API that only the controller serves also has `refused(request,
error, sentence)`: the answer when the controller is not reached. `tests/test_served.py` compares the specs with the
modules' docstrings and with SKIPPED.md: each key is in exactly one of the two.

Importing all modules would double the CPU time of a node's start. So their specs are collected beforehand, in
`api_table.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

from ottla.broker.api_spec import ApiSpec, Forwarding
from ottla.broker.api_table import API_TABLE
from ottla.protocol.apis import APIS
from ottla.protocol.errors import ErrorCode

SPECS: Final[dict[int, ApiSpec]] = {int(spec.key): spec for spec in API_TABLE.values()}
"""All that is served, by API key."""
ADVERTISED: Final[dict[int, ApiSpec]] = {key: spec for key, spec in SPECS.items() if spec.is_advertised}
"""The APIs that ApiVersions lists."""
PRIVATE: Final[dict[int, ApiSpec]] = {key: spec for key, spec in SPECS.items() if spec.is_private}
"""Ottla's own requests. DescribeConfigs lists them (`protocol/private_requests.py`)."""


class Served:
    """One API as the node calls it. The fields that its module defines are set at its first use."""

    __slots__ = (
        "_module",
        "before_authentication",
        "handle",
        "is_forwarded",
        "key",
        "max_version",
        "min_version",
        "name",
        "needs_lease",
        "receive",
        "spec",
    )

    receive: Callable[..., Any] | None
    handle: Callable[..., Any]

    def __init__(self, module: str, spec: ApiSpec) -> None:
        self.spec = spec
        self.key = int(spec.key)
        self.name = APIS[self.key].name
        self.min_version, self.max_version = spec.versions
        # Those that each request is asked for:
        self.needs_lease = spec.needs_lease
        self.before_authentication = spec.before_authentication
        self.is_forwarded = spec.forwarding is Forwarding.WHOLE
        self._module = module

    def __getattr__(self, name: str) -> Any:
        """Called for a slot that is still empty: import the module now."""
        if name not in ("receive", "handle"):
            raise AttributeError(name)
        module = self.module()
        self.receive = getattr(module, "receive", None)
        self.handle = getattr(module, "handle", None)  # type: ignore[assignment]
        return getattr(self, name)

    def module(self) -> Any:
        return import_module(f"ottla.broker.api.{self._module}")

    def refused(self, request: Any, error: ErrorCode, sentence: str) -> Any:
        """The answer to a request that only the controller serves, if none of it was done."""
        return self.module().refused(request, error, sentence)

    def decode(self, frame: memoryview, position: int, version: int) -> Any:
        """The request message. Raises MalformedFrameError."""
        message, _ = APIS[self.key].request.decode(frame, position, version)
        return message


def load(*, internal: bool = True) -> dict[int, Served]:
    """Every API that is served, by key; those that only nodes of a cluster ask each other for among them or not."""
    return {int(spec.key): Served(module, spec) for module, spec in API_TABLE.items() if internal or not spec.internal}
