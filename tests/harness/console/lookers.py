"""Pages of the registry with the things that they show, for tests that look at all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ottla.console.page import Page, Part
from ottla.console.registry import PAGES


def subjects(topic: str, group: str, share: str, transactional_id: str) -> dict[str, dict[str, str]]:
    """The query of each page that shows one thing. A pipeline has the name of the group."""
    return {
        "topic": {"name": topic},
        "messages": {"topic": topic},
        "message": {"topic": topic, "partition": "0", "offset": "0"},
        "group": {"name": group},
        "share_group": {"name": share},
        "dead_letters": {"name": share},
        "kmq_queue": {"name": topic},
        "kmq_dead_letters": {"name": topic},
        "pipeline": {"name": group},
        "transaction": {"name": transactional_id},
        "drain": {"node": "1"},
    }


def places(of: Mapping[str, Mapping[str, str]]) -> Iterator[tuple[Page, Part | None, str, dict[str, str]]]:
    """Every page and every part of one, with its path and query."""
    for page in PAGES:
        query = dict(of.get(page.name, {}))
        yield page, None, page.path, query
        for part in page.parts:
            more = {"after": "0:0"} if (page.name, part.name) == ("messages", "tail") else {}
            yield page, part, f"{page.path}/part/{part.name}", {**query, **more}
