"""Asks the nodes of a cluster, and notes what they do not report."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from ottla.client.client import Client
from ottla.client.errors import ClientError, check
from ottla.client.read_together import Question, read_together
from ottla.protocol.apis import APIS
from ottla.protocol.wire import Message

Questions = Mapping[int, Mapping[Hashable, Question]]
"""The questions to each node, by a name that finds the answer."""
Answers = Mapping[int, Mapping[Hashable, Any]]
"""An answer, or a ClientError, for each question."""


def ask(client: Client, questions: Questions) -> Answers:
    """The answer of each node to each question, or its error; the nodes work at the same time."""
    found = read_together(client, {node_id: list(each.values()) for node_id, each in questions.items()})
    return {node_id: dict(zip(questions[node_id], answers, strict=True)) for node_id, answers in found.items()}


def seen(answer: Any, what: str, unseen: dict[str, None]) -> Any:
    """The answer; None, with a note in `unseen`, if it is an error or holds one."""
    try:
        if isinstance(answer, ClientError):
            raise answer
        if isinstance(answer, Message):
            check(getattr(answer, "error_code", 0), APIS[answer.API_KEY].name, getattr(answer, "error_message", None))
    except ClientError as failure:
        unseen[f"{what}: {failure}"] = None
        return None
    return answer
