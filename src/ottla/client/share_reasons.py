"""Gives the reasons for which a worker of a share group releases or rejects records: ExplainShareRecords.

This is one of Ottla's own requests, because Kafka's acknowledgements have no field for a reason. It goes over a
connection of its own, so it works beside every share consumer. It uses the properties of the consumer:

    with ShareConsumer(settings) as worker, ShareReasons(settings) as reasons:
        ...
        except ValueError as error:
            reasons.give(message, error)
            worker.acknowledge(message, AcknowledgeType.REJECT)

A reason is an extra: if it can't be given, the acknowledgement is sent all the same. So `give` raises no error of the
cluster, waits about a second at most for each answer, and sends nothing for PAUSE_S after a failure.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from ottla.client.client import Client
from ottla.client.errors import BrokerError, ClientError, ConnectionClosedError, check
from ottla.client.private_requests import ask_node
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.explain_share_records import (
    ExplainShareRecordsRequest,
    RequestPartition,
    RequestRecord,
    RequestTopic,
)
from ottla.protocol.private_requests import REASON_BYTES_MAX

if TYPE_CHECKING:
    from ottla.client.sasl import Login

TIMEOUT_S: Final = 1.0
PAUSE_S: Final = 5.0
"""After a failure of the cluster, no reason is sent for this long."""
_MOVED: Final = (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


class _MovedError(BrokerError):
    """The node does not lead the partition."""


class DeliveredMessage(Protocol):
    """A record that a share consumer has delivered, as `confluent_kafka.Message`."""

    def topic(self) -> str | None: ...
    def partition(self) -> int | None: ...
    def offset(self) -> int | None: ...
    def delivery_count(self) -> int | None: ...


def _security_of(given: Mapping[str, Any]) -> tuple[ssl.SSLContext | None, Login | None]:
    """The TLS and the login in these properties. Raises ValueError."""
    protocol = str(given.get("security.protocol", "PLAINTEXT")).upper()
    if protocol == "PLAINTEXT":
        return None, None
    from ottla.client.sasl import login_of  # a client without security starts without it
    from ottla.client.set_up import tls_context

    login = login_of({name: value for name, value in given.items() if isinstance(value, str)})
    return tls_context(given) if protocol.endswith("SSL") else None, login


class ShareReasons:
    """Gives reasons for records of one share group. Its methods may be called from any thread.

    `properties`: those of the share consumer, with librdkafka's names; `bootstrap.servers`, `group.id`, and those about
    security are used. Raises ValueError if they name no server, no group, or no usable login or certificates.
    """

    def __init__(self, properties: Mapping[str, Any]) -> None:
        given = {name: value for name, value in properties.items() if value is not None}
        self._group = str(given.get("group.id", ""))
        if not self._group:
            raise ValueError("group.id is missing")
        tls, login = _security_of(given)
        self._client = Client(
            str(given.get("bootstrap.servers", "")),
            client_id=str(given.get("client.id", "ottla")),
            timeout_s=TIMEOUT_S,
            tls=tls,
            login=login,
        )
        self._lock = threading.Lock()
        self._paused_until = 0.0
        self.why_not: str | None = None
        """Why the last reason was not kept, None if it was."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            self._client.close()

    def give(self, message: DeliveredMessage, reason: str | BaseException) -> bool:
        """Say why a record is about to be released or rejected; call it before the acknowledgement is sent.

        An exception gives its name and text. A reason longer than 1,024 bytes is cut. Returns whether the leader keeps
        the reason; `why_not` says why it does not.
        """
        text = reason_text(reason)
        with self._lock:
            if time.monotonic() < self._paused_until:
                return False
            try:
                try:
                    self._explain(message, text)
                except (ConnectionClosedError, _MovedError):  # another node may lead the partition by now
                    self._client.forget_topics()
                    self._explain(message, text)
            except ClientError as error:
                self.why_not = str(error)
                if not isinstance(error, BrokerError):
                    self._client.forget_topics()
                    self._paused_until = time.monotonic() + PAUSE_S
                return False
            self.why_not = None
            return True

    def _explain(self, message: DeliveredMessage, text: str) -> None:
        """Send the reason to the leader. Raises ClientError."""
        topic, partition = message.topic() or "", message.partition() or 0
        record = RequestRecord(message.offset() or 0, message.delivery_count() or 1, text)
        request = ExplainShareRecordsRequest(
            self._group, topics=[RequestTopic(topic, [RequestPartition(partition, [record])])]
        )
        leaders = self._client.known_topic(topic).leaders
        if not 0 <= partition < len(leaders) or leaders[partition] < 0:
            raise _MovedError(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic}-{partition}")
        answer = ask_node(self._client, leaders[partition], request)
        check(answer.error_code, f"share group {self._group}", answer.error_message)
        part = answer.topics[0].partitions[0]
        if part.error_code in _MOVED:
            raise _MovedError(part.error_code, f"{topic}-{partition}", part.error_message)
        check(part.error_code, f"{topic}-{partition}", part.error_message)
        explained = part.records[0]
        check(explained.error_code, f"{topic}-{partition}, offset {record.offset}", explained.error_message)


def reason_text(reason: str | BaseException) -> str:
    """The text of a reason, cut to the bytes that a leader accepts. It is never empty."""
    if isinstance(reason, BaseException):
        said = str(reason)
        reason = f"{type(reason).__name__}: {said}" if said else type(reason).__name__
    whole = (reason.strip() or "no reason").encode("utf-8", "replace")
    return whole[:REASON_BYTES_MAX].decode("utf-8", "ignore")
