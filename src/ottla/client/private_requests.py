"""Sends Ottla's own requests to nodes, to all of them at once, after asking each whether it serves them.

A broker closes the connection at a request that it does not know. So a node is asked for its configs first: one entry
lists the requests (`ottla.protocol.private_requests`). A user who may not see a node's configs gets no list. Then the
request is sent anyway, in its newest version first. A closed connection means that the node lacks this version; the
node is not asked for it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ottla.client.client import Client
from ottla.client.connection import Connection, Posted
from ottla.client.errors import ClientError, ConnectionClosedError, UnsupportedVersionError
from ottla.protocol.apis import APIS
from ottla.protocol.private_requests import PRIVATE_REQUESTS, parsed
from ottla.protocol.wire import Message


@dataclass(frozen=True, slots=True)
class Written:
    """A request that is written for a connection, once it is known what its node serves."""

    API_KEY: int
    write: Callable[[Connection], Message]


def ask_node(client: Client, node_id: int, message: Message, least: int = 0) -> Any:
    """A node's answer to one of Ottla's own requests. Raises ClientError: UnsupportedVersionError if the node does not
    serve the request. `least`: the lowest version that has all that the message says."""
    answer = ask_nodes(client, {node_id: message}, least)[node_id]
    if isinstance(answer, ClientError):
        raise answer
    return answer


def ask_nodes(client: Client, messages: Mapping[int, Message | Written], least: int = 0) -> dict[int, Any]:
    """Each node's answer to its request, or the ClientError that it got instead; the nodes work at the same time.
    `least`: as in `ask_node`."""
    asked = {node_id: _Asked(client, node_id, message, least) for node_id, message in messages.items()}
    for step in (_Asked.connect, _Asked.take_list, _Asked.send, _Asked.take):
        for each in asked.values():
            each.do(step)
    return {node_id: each.answer for node_id, each in asked.items()}


class _Asked:
    """A request to one node. `answer`: the answer, or the error that ended it."""

    def __init__(self, client: Client, node_id: int, message: Message | Written, least: int) -> None:
        self._client = client
        self._node_id = node_id
        self._message = message
        self._versions = range(least, APIS[message.API_KEY].max_version + 1)
        self._tried = -1
        self._connection: Connection | None = None
        self._posted: Posted | None = None
        self.answer: Any = None

    def do(self, step: Callable[[_Asked, Connection], None]) -> None:
        """Take this step, unless an earlier one failed."""
        if self.answer is not None:
            return
        try:
            if self._connection is None:
                self._connection = self._client.broker(self._node_id)
            step(self, self._connection)
        except UnsupportedVersionError as error:
            self.answer = error
        except ClientError as error:
            if self._connection is not None:
                self._client.drop(self._connection)
            if self._was_refused(error):
                for step in (_Asked.send, _Asked.take):
                    self.do(step)  # in the version before
            else:
                self.answer = error

    def connect(self, connection: Connection) -> None:
        """Ask for the list, unless this connection has it."""
        self._newest_untried()
        if connection.private is None and not connection.hides_private:
            from ottla.protocol.config_resources import ConfigResourceType
            from ottla.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource

            resource = DescribeConfigsResource(ConfigResourceType.BROKER, str(self._node_id), [PRIVATE_REQUESTS])
            self._posted = connection.post(DescribeConfigsRequest([resource]))

    def take_list(self, connection: Connection) -> None:
        if self._posted is None:
            return
        (result,) = connection.take(self._posted).results
        self._posted = None
        if result.error_code:
            connection.hides_private = True
        else:
            text = next((each.value for each in result.configs if each.name == PRIVATE_REQUESTS), None)
            connection.private = parsed(text or "")

    def send(self, connection: Connection) -> None:
        if connection.private is None:
            self._tried = version = self._newest_untried()
        else:
            version = self._version_of(connection)
        message = self._message.write(connection) if isinstance(self._message, Written) else self._message
        self._posted = connection.post(message, version)

    def _version_of(self, connection: Connection) -> int:
        """The version by the node's list. Raises UnsupportedVersionError."""
        try:
            version = connection.version_of(self._message.API_KEY)
        except UnsupportedVersionError:
            raise self._unserved() from None
        if version not in self._versions:
            raise self._unserved()
        return version

    def take(self, connection: Connection) -> None:
        assert self._posted is not None
        self.answer = connection.take(self._posted)

    def _was_refused(self, error: ClientError) -> bool:
        """Whether the node closed the connection because it does not know this version of the request: it accepts
        another connection."""
        is_tried = self._posted is not None and self._posted.api_key == self._message.API_KEY
        is_listed = self._connection is not None and self._connection.private is not None
        if is_listed or not is_tried or not isinstance(error, ConnectionClosedError):
            return False
        try:
            self._connection = self._client.broker(self._node_id)
            _ = self._connection.ranges
        except ClientError:
            return False
        self._connection.hides_private = True
        self._client.refused_private.add((self._node_id, self._message.API_KEY, self._tried))
        self._posted = None
        return True

    def _newest_untried(self) -> int:
        """The newest version of the request that the node has not refused. Raises UnsupportedVersionError."""
        refused, key = self._client.refused_private, self._message.API_KEY
        for version in reversed(self._versions):
            if (self._node_id, key, version) not in refused:
                return version
        raise self._unserved()

    def _unserved(self) -> UnsupportedVersionError:
        name = APIS[self._message.API_KEY].name
        return UnsupportedVersionError(
            f"Node {self._node_id} does not serve {name}: it is no Ottla node, or one of an earlier version."
        )
