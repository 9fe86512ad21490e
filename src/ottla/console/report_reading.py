"""Reads the reports of pipelines for pages, each record once for all sessions.

They share one reader, which may hold 32 MB. Each request asks the cluster for records, as its own user, before it gets
any report.
"""

from __future__ import annotations

from ottla.client.reports import PIPELINES_MAX, TOPIC, ReportsReader
from ottla.console.page import Context
from ottla.escaping import visible


def reports_of(context: Context, unseen: list[str]) -> ReportsReader:
    """The reports that the user may read. Raises BrokerError without such a topic or the permission, and
    RecordsHiddenError with --no-records."""
    kept: ReportsReader = context.session.common.setdefault("reports", ReportsReader(context.settings.reports))
    if not kept.read(context.client):
        unseen.append("The newest reports: there are more than one page reads. The next update continues.")
    if kept.invalid:
        unseen.append(
            f"Records of {visible(kept.topic)} that are no reports of this version of Ottla: {kept.invalid:,}."
        )
    if kept.is_full:
        unseen.append(f"Pipelines beyond the {PIPELINES_MAX} that reported last.")
    return kept


def options_of(context: Context) -> tuple[str, ...]:
    """The options of `ottla pipeline` that name the topic."""
    topic = context.settings.reports
    return () if topic == TOPIC else ("--reports-from", topic)
