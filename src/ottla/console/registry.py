"""Lists the pages. A new page is a module of `pages`, a template, and a line here."""

from __future__ import annotations

from typing import Final

from ottla.console.page import Page
from ottla.console.pages import (
    cluster,
    dead_letters,
    drain,
    group,
    groups,
    kmq_dead_letters,
    kmq_queue,
    kmq_queues,
    message,
    messages,
    overview,
    pipeline,
    pipelines,
    rebalance,
    search,
    security,
    share_group,
    share_groups,
    topic,
    topics,
    transaction,
    transactions,
)

PAGES: Final[tuple[Page, ...]] = (
    overview.PAGE,
    topics.PAGE,
    topic.PAGE,
    messages.PAGE,
    message.PAGE,
    groups.PAGE,
    group.PAGE,
    share_groups.PAGE,
    share_group.PAGE,
    dead_letters.PAGE,
    kmq_queues.PAGE,
    kmq_queue.PAGE,
    kmq_dead_letters.PAGE,
    pipelines.PAGE,
    pipeline.PAGE,
    transactions.PAGE,
    transaction.PAGE,
    cluster.PAGE,
    rebalance.PAGE,
    drain.PAGE,
    security.PAGE,
    search.PAGE,
)
"""In the order of the navigation."""
