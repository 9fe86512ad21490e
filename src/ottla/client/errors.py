"""Names what can go wrong between a client and a broker: one family, each with a plain sentence.

Invariant: nothing else leaves this package, except ValueError and TypeError for a caller's own mistake.
"""

from __future__ import annotations

from ottla.protocol.errors import ErrorCode


class ClientFailure(Exception):
    """Everything this package raises."""


class ConnectionClosed(ClientFailure):
    """The broker hung up, was never there, or the network failed."""


class TimedOut(ClientFailure):
    """No answer came within the time allowed. The connection is closed: a late answer is not another's."""


class BadAnswer(ClientFailure):
    """The bytes that came are no answer to what was asked."""


class UnsupportedVersion(ClientFailure):
    """Client and broker share no version of this API."""


class ErrorAnswer(ClientFailure):
    """The broker answered with an error code. `name` is Kafka's name of it, `retriable` as Kafka says."""

    def __init__(self, code: int, what: str, sentence: str | None = None) -> None:
        try:
            known = ErrorCode(code)
        except ValueError:
            known = ErrorCode.UNKNOWN_SERVER_ERROR
        self.code = code
        self.name = known.name
        self.retriable = known.retriable
        super().__init__(f"{what}: {self.name}: {sentence or known.message}")


def check(code: int, what: str, sentence: str | None = None) -> None:
    """Raise ErrorAnswer unless `code` is NONE."""
    if code:
        raise ErrorAnswer(code, what, sentence)
