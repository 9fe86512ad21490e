"""Asks nodes several things at once: in one request to a node of Ottla (docs/private-requests.md), otherwise in as many
requests as there are questions, which are sent without waiting for the answers in between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from ottla.client.client import Client
from ottla.client.connection import Connection, Posted
from ottla.client.errors import BadResponseError, BrokerError, ClientError, UnsupportedVersionError
from ottla.client.private_requests import Written, ask_nodes
from ottla.protocol.apis import APIS, ApiKey
from ottla.protocol.errors import ErrorCode, MalformedFrameError
from ottla.protocol.messages.read_together import InnerAnswer, InnerRequest, ReadTogetherRequest, ReadTogetherResponse
from ottla.protocol.private_requests import PRIVATE_FROM
from ottla.protocol.wire import Message


@dataclass(frozen=True, slots=True)
class InVersions:
    """A request that means the same in these versions only."""

    message: Message
    lowest: int
    highest: int


Question: TypeAlias = Message | InVersions


def read_together(client: Client, asked: Mapping[int, Sequence[Question]]) -> dict[int, list[Any]]:
    """The answers of each node to its requests, in their order; a ClientError in the place of one that failed.

    Each request must be one of `READABLE`. The nodes work at the same time.
    """
    questions = {node_id: _Questions(each) for node_id, each in asked.items()}
    several = {
        node_id: Written(ApiKey.READ_TOGETHER, each.written)
        for node_id, each in questions.items()
        if len(each.messages) > 1
    }
    alone: dict[int, _Questions] = {}
    answers = ask_nodes(client, several)
    for node_id, each in questions.items():
        answer = answers.get(node_id)
        if answer is None or isinstance(answer, UnsupportedVersionError):
            alone[node_id] = each
        else:
            each.take(answer)
    for step in (_Questions.post_alone, _Questions.take_alone):
        for node_id, each in alone.items():
            step(each, client, node_id)
    return {node_id: each.answers for node_id, each in questions.items()}


class _Questions:
    """The questions to one node, and the answers so far: the answer or the error of each."""

    def __init__(self, asked: Sequence[Question]) -> None:
        self._asked = asked
        self.messages = [each.message if isinstance(each, InVersions) else each for each in asked]
        self.answers: list[Any] = [None for _ in asked]
        self._versions: list[int] = []
        self._posted: dict[int, Posted] = {}
        self._connection: Connection | None = None

    def written(self, connection: Connection) -> Message:
        """All of them in one request. Those in no version that the node serves are left out."""
        inner: list[InnerRequest] = []
        self._versions = []
        for place, message in enumerate(self.messages):
            try:
                version = version_of(connection, self._asked[place])
            except UnsupportedVersionError as error:
                self.answers[place] = error
                continue
            content = bytearray()
            message.encode(content, version)
            self._versions.append(version)
            inner.append(InnerRequest(message.API_KEY, version, bytes(content)))
        return ReadTogetherRequest(inner)

    def take(self, answer: ReadTogetherResponse | ClientError) -> None:
        """The answer to all of them."""
        if not isinstance(answer, ClientError) and answer.error_code:
            answer = BrokerError(answer.error_code, "ReadTogether", answer.error_message)
        rows = iter(() if isinstance(answer, ClientError) else zip(answer.answers, self._versions, strict=True))
        for place, message in enumerate(self.messages):
            if self.answers[place] is None:
                self.answers[place] = answer if isinstance(answer, ClientError) else _decoded(message, *next(rows))

    def post_alone(self, client: Client, node_id: int) -> None:
        """Send each in a request of its own."""
        for place, message in enumerate(self.messages):
            if message.API_KEY >= PRIVATE_FROM:  # first: it may cost the connection
                self.answers[place] = ask_nodes(client, {node_id: message})[node_id]
        for place, message in enumerate(self.messages):
            if self.answers[place] is None:
                try:
                    self._connection = client.broker(node_id)
                    version = version_of(self._connection, self._asked[place])
                    self._posted[place] = self._connection.post(message, version)
                except ClientError as error:
                    self.answers[place] = error

    def take_alone(self, client: Client, node_id: int) -> None:
        for place, posted in self._posted.items():
            assert self._connection is not None
            try:
                self.answers[place] = self._connection.take(posted)
            except ClientError as error:
                client.drop(self._connection)
                self.answers[place] = error


def version_of(connection: Connection, asked: Question) -> int:
    """The version in which the node gets this request. Raises UnsupportedVersionError."""
    message = asked.message if isinstance(asked, InVersions) else asked
    if message.API_KEY >= PRIVATE_FROM and connection.private is None:
        return APIS[message.API_KEY].max_version
    version = connection.version_of(message.API_KEY)
    if isinstance(asked, InVersions):
        version = min(version, asked.highest)
        if version < asked.lowest:
            name = APIS[message.API_KEY].name
            raise UnsupportedVersionError(
                f"The broker at {connection.address} does not serve {name} from version {asked.lowest} on."
            )
    return version


def _decoded(message: Message, answer: InnerAnswer, version: int) -> Any:
    """The answer to one question, or its error."""
    api = APIS[message.API_KEY]
    if answer.error_code == ErrorCode.UNSUPPORTED_VERSION:
        return UnsupportedVersionError(f"The node does not serve {api.name} in a known version.")
    if answer.error_code:
        return BrokerError(answer.error_code, api.name)
    try:
        return api.response.decode(answer.content, 0, version)[0]
    except MalformedFrameError as error:
        return BadResponseError(f"The answer to {api.name} v{version} can't be read: {error}.")
