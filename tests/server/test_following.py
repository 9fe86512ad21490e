"""What a node makes of its looks at the others: what it may trust, and what it says of a store that does not answer."""

import asyncio
import logging
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ottla.broker.node import Node
from ottla.metadata.store import StoreFailed
from ottla.server.following import AGAIN_S, LOOK_S, REST_S, Following
from ottla.server.store import StoreThread


class Stage:
    """A node at generation 5, and one other life that is there; the store has nothing new, or fails."""

    def __init__(self, *, is_told: bool = False) -> None:
        self.is_told = is_told
        self.confirmed: list[int] = []
        self.seen: list[dict[int, str]] = []
        self.store_looks = 0
        self.is_fresh = True
        self.failure: StoreFailed | None = None
        self.marked = 5
        self.image = SimpleNamespace(generation=5)
        self.looks = 0
        self.presence: Any = SimpleNamespace(
            renewed_at=100, generation=5, look=self._see, leave=lambda: None, listen=self._listen
        )
        membership = SimpleNamespace(
            present={1: "a"},
            confirmed=self.confirmed.append,
            seen=lambda now, present: self.seen.append(present),
            is_fresh=lambda now: self.is_fresh,
        )
        node = SimpleNamespace(image=self.image, membership=membership)
        store = SimpleNamespace(look=self._look)
        self.following = Following(
            cast(Node, node), cast(StoreThread, store), self.presence, lambda: self.marked, lambda: 0, lambda: None
        )

    def _listen(self, heard: Callable[[], None]) -> bool:
        self.tell = heard
        return self.is_told

    def _see(self) -> dict[int, str]:
        self.looks += 1
        return {1: "a", 2: "b"}

    def _look(self, image: Any, heard: Callable[[StoreFailed | None], None]) -> None:
        self.store_looks += 1
        heard(self.failure)


async def test_a_lease_counts_only_with_what_was_committed_until_then() -> None:
    stage = Stage()
    stage.presence.generation = 7  # others have committed before this node's place was renewed
    stage.following.look()
    assert stage.seen == [{1: "a", 2: "b"}]
    assert stage.confirmed == []
    stage.image.generation = stage.marked = 7
    stage.following.look()
    assert stage.confirmed == [100]
    stage.following.stop()


async def test_who_stood_still_beyond_its_lease_trusts_no_mark() -> None:
    """A process that was killed between its commit and the mark may have been the one that had others lead."""
    stage = Stage()
    stage.following.look()
    stage.following.look()
    assert stage.store_looks == 1, "the first finds others"
    stage.is_fresh = False
    stage.following.look()
    assert stage.store_looks == 2
    stage.is_fresh = True
    stage.following.look()
    assert stage.store_looks == 2
    stage.following.stop()


async def test_who_is_told_of_news_looks_rarely_and_when_it_is_told() -> None:
    told, restless = Stage(is_told=True), Stage()
    for stage in (told, restless):
        stage.following.look()
    await asyncio.sleep(5 * REST_S)
    assert told.looks < restless.looks / 2
    before = told.looks
    told.tell()
    await asyncio.sleep(2 * LOOK_S)
    assert told.looks > before
    for stage in (told, restless):
        stage.following.stop()


async def test_a_store_that_does_not_answer_is_told_of_once_and_left_alone_for_a_while(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = Stage()
    stage.marked, stage.failure = -1, StoreFailed("no server of it answers")
    begun = time.monotonic()
    with caplog.at_level(logging.WARNING):
        stage.following.look()
        while stage.store_looks < 3:
            await asyncio.sleep(0.01)
    assert time.monotonic() - begun > 1.9 * AGAIN_S
    assert caplog.text.count("the metadata store can't be looked at; it is tried again: no server of it answers") == 1
    assert stage.confirmed == []
    stage.failure = None
    while not stage.confirmed:
        await asyncio.sleep(0.01)
    stage.following.stop()
