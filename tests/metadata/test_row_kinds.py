"""A new kind of row is one declaration: the image, its deltas and the handling of damaged rows follow from it."""

import json
from typing import NamedTuple

import pytest

from ottla.metadata import image as images
from ottla.metadata.image import KINDS, MetadataDelta, MetadataImage, changed, delta_since, read_image
from ottla.metadata.memory import MemoryStore
from ottla.metadata.row_kinds import Registry, Row, encoded, single, table
from ottla.metadata.store import CHANGES_MAX, Delete, Put, StoreDamagedError
from ottla.metadata.topics import TopicRecord, key_of, placed_on


class Permit(NamedTuple):
    """A record that no version of Ottla has."""

    holder: str
    version: int = 0

    def encode(self) -> bytes:
        return json.dumps({"holder": self.holder}).encode()

    @staticmethod
    def decode(value: bytes) -> "Permit":
        return Permit(str(json.loads(value)["holder"]))


def _numbered(permit: Permit, version: int) -> tuple[str, int]:
    return permit.holder, version


PERMITS = table("permit/", Permit.decode, _numbered)
OFFICE = single("permits", Permit.decode)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    monkeypatch.setattr(images, "KINDS", Registry(*KINDS, PERMITS, OFFICE))
    return MemoryStore()


def test_rows_of_a_new_kind_are_read_changed_and_removed(store: MemoryStore) -> None:
    topic = TopicRecord(bytes(16), {}, placed_on(1, 1))
    first = store.commit(
        [
            Put("permit/fish", encoded(Permit("ada"))),
            Put("permit/hunt", encoded(Permit("bob"))),
            Put("permits", encoded(Permit("town"))),
            Put(key_of("t"), encoded(topic)),
        ]
    )
    image = read_image(store)
    assert image[PERMITS] == {"fish": ("ada", first), "hunt": ("bob", first)}
    assert image[OFFICE] == Permit("town", first)
    second = store.commit([Put("permit/fish", encoded(Permit("eve"))), Delete("permit/hunt")])
    delta = delta_since(store, image)
    assert (delta.names(PERMITS), delta.names(OFFICE)) == (["fish", "hunt"], [])
    later = changed(image, delta)
    assert later[PERMITS] == {"fish": ("eve", second)}
    assert later[OFFICE] is image[OFFICE]
    assert later.topics is image.topics
    store.commit([Delete("permits")])
    assert delta_since(store, later).names(OFFICE) == [""]
    assert changed(later, delta_since(store, later))[OFFICE] is None


def test_an_image_far_behind_learns_which_rows_of_a_new_kind_are_gone(store: MemoryStore) -> None:
    store.commit([Put("permit/fish", encoded(Permit("ada"))), Put("permits", encoded(Permit("town")))])
    behind = read_image(store)
    store.commit([Delete("permit/fish"), Delete("permits"), Put("permit/hunt", encoded(Permit("bob")))])
    for _ in range(CHANGES_MAX):
        store.commit([Put("other", b"")])
    assert store.changes_since(behind.generation) is None
    delta = delta_since(store, behind)
    assert {key: row is None for key, row in delta.rows.items()} == {
        "permit/fish": True,
        "permits": True,
        "permit/hunt": False,
    }
    assert changed(behind, delta) == read_image(store)


def test_a_damaged_row_of_a_new_kind_is_named(store: MemoryStore) -> None:
    image = read_image(store)
    store.commit([Put("permit/fish", b'{"owner": "ada"}')])
    for read in (lambda: read_image(store), lambda: delta_since(store, image)):
        with pytest.raises(StoreDamagedError, match=r"the value of permit/fish in the metadata store .* can't be read"):
            read()


def test_rows_of_unknown_kinds_are_ignored() -> None:
    """A newer version may write them, as may one whose kinds have keys that only begin like a single row's."""
    store = MemoryStore()
    store.commit([Put("permit/fish", b"?"), Put("permits", b"?"), Put("cluster/controllers", b"?")])
    image = read_image(store)
    assert image == MetadataImage(1)
    store.commit([Put("permit/fish", b"??"), Delete("permits")])
    assert delta_since(store, image) == MetadataDelta(2, {})
    assert changed(image, MetadataDelta(2, {"permit/fish": Row(Permit("ada"), 2)})) == MetadataImage(2)


def test_no_key_belongs_to_two_kinds() -> None:
    with pytest.raises(AssertionError, match="keys of permit"):
        Registry(PERMITS, table("permit/fish/", Permit.decode, _numbered))
