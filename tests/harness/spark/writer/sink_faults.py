"""Faults for the sink's tests: a fuse that burns down step by step, and connections that lose requests and answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ottla.client import Client, ConnectionClosedError
from ottla.client.client import GROUP
from ottla.protocol.messages.produce import ProduceRequest
from ottla.spark.platform import durable
from ottla.spark.writer import staging


class Crash(BaseException):
    """The driver is gone: nothing in the program catches this."""


class Fuse:
    """Each step counts one down; at zero the process dies."""

    def __init__(self, steps: int | None = None) -> None:
        self.left = steps
        self.taken: list[str] = []

    def step(self, name: str) -> None:
        self.taken.append(name)
        if self.left is None:
            return
        self.left -= 1
        if self.left < 0:
            raise Crash(name)

    def around(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self.step(f"before {name}")
            result = real(*args, **kwargs)
            self.step(f"after {name}")
            return result

        return wrapped

    def burn_files(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Every durable change of the staging directory is a step, before and after."""
        named = [(staging, "write_json"), (staging, "remove_file"), (staging, "sync_folder"), (durable, "sync_folder")]
        for module, name in named:
            monkeypatch.setattr(module, name, self.around(name, getattr(module, name)))


class FaultyConnection:
    """A connection whose Produce requests and answers pass by `fault`, which may raise."""

    def __init__(self, real: Any, fault: Callable[[str], None]) -> None:
        self._real = real
        self._fault = fault
        self._watched: set[int] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def post(self, message: Any, version: int | None = None, *, answered: bool = True) -> Any:
        if not isinstance(message, ProduceRequest):
            return self._real.post(message, version, answered=answered)
        self._fault("before post")
        posted = self._real.post(message, version, answered=answered)
        self._watched.add(posted.correlation_id)
        self._fault("after post")
        return posted

    def take(self, posted: Any) -> Any:
        if posted.correlation_id not in self._watched:
            return self._real.take(posted)
        self._fault("before take")
        answer = self._real.take(posted)
        self._fault("after take")
        return answer


class FaultyClient(Client):
    """A client whose leaders are reached through `FaultyConnection`s, and whose coordinators are asked in steps."""

    def __init__(self, bootstrap: str, fault: Callable[[str], None]) -> None:
        super().__init__(bootstrap, timeout_s=10)
        self._fault = fault
        self._wrapped: dict[int, FaultyConnection] = {}

    def leader(self, topic: str, partition: int) -> Any:
        real = super().leader(topic, partition)
        if id(real) not in self._wrapped:
            self._wrapped[id(real)] = FaultyConnection(real, self._fault)
        return self._wrapped[id(real)]

    def send_to_coordinator(self, key: str, message: Any, version: int | None = None, key_type: int = GROUP) -> Any:
        name = type(message).__name__.removesuffix("Request")
        self._fault(f"before {name}")
        answer = super().send_to_coordinator(key, message, version, key_type)
        self._fault(f"after {name}")
        return answer


class LostAnswers:
    """Breaks the connection at chosen steps, and lets all others pass."""

    def __init__(self, at: set[int]) -> None:
        self.at = at
        self.count = -1

    def __call__(self, name: str) -> None:
        self.count += 1
        if self.count in self.at:
            raise ConnectionClosedError(f"hung up {name}")
