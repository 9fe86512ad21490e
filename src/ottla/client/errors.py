"""Names the failures between a client and a broker: one family, each with a plain sentence.

Invariant: this package raises nothing else, except ValueError and TypeError for a caller's mistake.
"""

from __future__ import annotations

from ottla.protocol.errors import ErrorCode


class ClientError(Exception):
    """Base class of everything that this package raises."""


class ConnectionClosedError(ClientError):
    """The broker closed the connection or cannot be reached, or the network failed."""


class TimedOutError(ClientError):
    """No answer arrived in time. The connection is closed, so that a late answer is not read as the answer to another
    request."""


class BadResponseError(ClientError):
    """The bytes that arrived are not an answer to the request."""


class UnsupportedVersionError(ClientError):
    """Client and broker share no version of this API."""


class BrokerError(ClientError):
    """The broker answered with an error code. `name` and `retriable` are Kafka's."""

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
    """Raise BrokerError unless `code` is NONE."""
    if code:
        raise BrokerError(code, what, sentence)
