"""Finds topics, groups and queues whose name contains a text. Each list shows its first names, and links to all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ottla.console.group_reading import coordinated
from ottla.console.kmq_reading import queue_names
from ottla.console.page import Context, Page, View, url
from ottla.console.pages.groups import matching as matching_groups
from ottla.console.pages.topics import matching as matching_topics
from ottla.console.reading import metadata_of_all
from ottla.doctor.snapshot import SHARE

SHOWN_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class Hits:
    """The things of one kind that match: how many there are, the first names, and the addresses of the pages of one
    thing and of the list."""

    kind: str
    total: int
    names: tuple[str, ...]
    page: str
    rest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Search(View):
    """The matches of every kind that has some."""

    search: str
    found: tuple[Hits, ...]
    unseen: tuple[str, ...]


def load(context: Context) -> Search:
    """The things that match, of those that the user may see: one request for the topics, and one to each node."""
    text = context.query.get("q", "").strip()
    unseen: list[str] = []
    topics = metadata_of_all(context).topics
    listed = matching_groups(coordinated(context, unseen), text)
    queues = queue_names(each.name for each in topics if each.name and not each.error_code)
    found = (
        hits("Topics", [each.name for each in matching_topics(topics, text)], "/topic", "/topics", text),
        hits("Consumer groups", [each.name for each in listed if each.type != SHARE], "/group", "/groups", text),
        hits(
            "Share groups", [each.name for each in listed if each.type == SHARE], "/share-group", "/share-groups", text
        ),
        hits(
            "KMQ queues", [each for each in queues if text.lower() in each.lower()], "/kmq-queue", "/kmq-queues", text
        ),
    )
    return Search(
        title="Search",
        command=context.command("topics", "list"),
        search=text,
        found=tuple(each for each in found if each.total),
        unseen=tuple(unseen),
    )


def hits(kind: str, names: list[str], page: str, pages: str, text: str) -> Hits:
    """The matches of one kind. `pages` is the path of its list."""
    return Hits(kind, len(names), tuple(names[:SHOWN_MAX]), page, url(pages, q=text))


PAGE: Final = Page(name="search", path="/search", load=load, refresh_s=0)
