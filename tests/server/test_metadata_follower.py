"""What a node makes of its looks at the others: what it may trust, and what it says of a store that does not answer."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ottla.broker.node import Node
from ottla.metadata.history import HISTORY, HISTORY_KEY, HistoryRecord
from ottla.metadata.image import MetadataDelta, MetadataImage
from ottla.metadata.row_kinds import Row
from ottla.metadata.store import MetadataStore, StoreError
from ottla.server.metadata_follower import AGAIN_S, LOOK_S, REST_S, Following
from ottla.server.store import StoreThread, Told
from tests.harness.waiting import in_virtual_time, soon_in_loop


class Stage:
    """A node at generation 5, and one other life that is there; the store has nothing new, or fails."""

    def __init__(self, *, after_news: int = 0) -> None:
        self.after_news = after_news
        self.confirmed: list[int] = []
        self.seen: list[dict[int, str]] = []
        self.store_looks = 0
        self.is_fresh = True
        self.failure: StoreError | None = None
        self.news: Told = None
        self.marked = 5
        self.ends: list[str] = []
        self.changes: list[Told] = []
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
        node = self.node = SimpleNamespace(membership=membership)
        node.image = MetadataImage.of(5, {HISTORY: HistoryRecord("a", version=2)})
        node.store = SimpleNamespace(place="in a test")
        node.changed = lambda now, told: self.changes.append(told)
        store = SimpleNamespace(look=self._look)
        self.following = Following(
            cast(Node, node),
            cast(StoreThread, store),
            self.presence,
            lambda: self.marked,
            lambda: 0,
            lambda: None,
            self.ends.append,
        )

    def _listen(self, heard: Callable[[], None]) -> int:
        self.tell = heard
        return self.after_news

    def _see(self) -> dict[int, str]:
        self.looks += 1
        return {1: "a", 2: "b"}

    def _look(self, image: Any, heard: Callable[[Told], None]) -> None:
        self.store_looks += 1
        heard(self.failure or self.news)


@in_virtual_time
async def test_a_lease_counts_only_with_what_was_committed_until_then() -> None:
    stage = Stage()
    stage.presence.generation = 7  # others have committed before this node's place was renewed
    stage.following.look()
    assert stage.seen == [{1: "a", 2: "b"}]
    assert stage.confirmed == []
    stage.node.image, stage.marked = replace(stage.node.image, generation=7), 7
    stage.following.look()
    assert stage.confirmed == [100]
    stage.following.stop()


@in_virtual_time
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


@in_virtual_time
async def test_who_is_told_of_news_looks_rarely_and_when_it_is_told() -> None:
    told, restless = Stage(after_news=1), Stage()
    for stage in (told, restless):
        stage.following.look()
    await asyncio.sleep(5 * REST_S)
    assert told.looks < restless.looks / 2
    before = told.looks
    told.tell()
    await soon_in_loop(lambda: told.looks > before)
    for stage in (told, restless):
        stage.following.stop()


@in_virtual_time
async def test_news_after_the_end_are_nobodys() -> None:
    stage = Stage(after_news=1)
    stage.following.look()
    stage.following.stop()
    before = stage.looks
    stage.tell()
    await asyncio.sleep(2 * LOOK_S)
    assert stage.looks == before


@in_virtual_time
async def test_a_store_that_does_not_answer_is_told_of_once_and_left_alone_for_a_while(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stage = Stage()
    stage.marked, stage.failure = -1, StoreError("no server of it answers")
    loop = asyncio.get_running_loop()
    begun = loop.time()
    with caplog.at_level(logging.WARNING):
        stage.following.look()
        await soon_in_loop(lambda: stage.store_looks == 3)
    assert loop.time() - begun > 1.9 * AGAIN_S
    assert caplog.text.count("the metadata store can't be read; will retry: no server of it answers") == 1
    assert stage.confirmed == []
    stage.failure = None
    await soon_in_loop(lambda: stage.confirmed)
    stage.following.stop()


@in_virtual_time
async def test_a_store_whose_look_fails_as_nobody_expected_is_looked_at_again() -> None:
    """A node that stopped looking would serve nothing, and be taken for one that is there."""

    class InvariantError:
        @property
        def generation(self) -> int:
            raise KeyError("a row that cannot be read")

    heard: asyncio.Future[Told] = asyncio.get_running_loop().create_future()
    thread = StoreThread(
        cast(MetadataStore, InvariantError()), asyncio.get_running_loop(), lambda *_: None, lambda *_: None
    )
    try:
        thread.look(MetadataImage(), heard.set_result)
        told = await asyncio.wait_for(heard, 20)
    finally:
        thread.stop()
    assert isinstance(told, StoreError)
    assert "a row that cannot be read" in str(told)


@in_virtual_time
async def test_a_change_that_the_node_fails_over_does_not_end_its_looks(caplog: pytest.LogCaptureFixture) -> None:
    stage = Stage()

    def fail(now: int, delta: Any) -> None:
        stage.node.image = replace(stage.node.image, generation=delta.generation)
        raise ZeroDivisionError("nobody expected it")

    stage.node.changed = fail
    stage.marked, stage.news = -1, MetadataDelta(6, {})
    with caplog.at_level(logging.ERROR):
        stage.following.look()
    assert "nobody expected it" in caplog.text
    looks = stage.looks
    await soon_in_loop(lambda: stage.looks >= looks + 2)
    assert stage.confirmed, "its lease is renewed again"
    stage.following.stop()


@pytest.mark.parametrize(("generation", "ends"), [(6, False), (4, True)])
@in_virtual_time
async def test_news_of_another_history_end_the_node(generation: int, ends: bool) -> None:
    """A node has started, at that generation: this node knows the store up to 5, and no start behind 2."""
    stage = Stage()
    later = HistoryRecord("a", version=2).followed_by("b")
    stage.news = MetadataDelta(9, {HISTORY_KEY: Row(later, generation)})
    stage.marked = 9
    stage.following.look()
    assert bool(stage.ends) == ends
    assert bool(stage.changes) != ends
    stage.following.stop()
