"""Shows the state of the cluster: the doctor's findings first, then nodes, leaders, replicas and disks."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ottla.client.errors import ClientError, check
from ottla.console.finding_links import Links, links_in, reaching
from ottla.console.letter_counts import NotSentBack, not_sent_back
from ottla.console.page import Context, Page, Part, View
from ottla.console.reading import leaders_of, metadata_of_all, offsets
from ottla.doctor import Evidence, Snapshot, diagnose, gather
from ottla.protocol.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest

WINDOW_S: Final = (5.0, 600.0)
"""How far apart the doctor's snapshots are, at least and at most."""
SHARED_S: Final = 5.0
"""Seconds for which a snapshot is used again, by all sessions of a login: it is the dearest thing that pages read."""
SEVERITIES: Final = ("note", "warning", "data at risk")
FINDINGS_MAX: Final = 50
MEASURED_S: Final = (2.0, 120.0)
"""How far apart two readings of the traffic are, at least and at most."""
BUSIEST_MAX: Final = 5
"""Topics whose traffic is shown."""
LETTERS_MAX: Final = 10
"""Share groups with dead letters that are listed."""
AUTOMATIC_PARTITIONS_MAX: Final = 5_000
"""On a larger cluster the doctor runs when asked to, and traffic is not read."""


@dataclass(frozen=True, slots=True)
class NodeRow:
    """A node: what it leads and hosts by the metadata, and its address as clients see it."""

    id: int
    host: str
    port: int
    rack: str | None
    is_controller: bool
    leads: int
    hosts: int
    behind: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview(View):
    """The cluster in numbers, from one metadata request."""

    cluster_id: str
    nodes: tuple[NodeRow, ...]
    topics: int
    internal_topics: int
    partitions: int
    under_replicated: int
    without_leader: int


def load(context: Context) -> Overview:
    """The cluster's nodes and counts."""
    answer = metadata_of_all(context)
    return overview_of(answer, context.command("cluster", "describe"))


def overview_of(answer: Any, command: str) -> Overview:
    """The view of a metadata answer."""
    topics = [topic for topic in answer.topics if not topic.error_code]
    parts = [part for topic in topics for part in topic.partitions]
    leads, hosts, behind = dict[int, int](), dict[int, int](), dict[int, int]()
    for part in parts:
        leads[part.leader_id] = leads.get(part.leader_id, 0) + 1
        for node_id in part.replica_nodes:
            hosts[node_id] = hosts.get(node_id, 0) + 1
            if node_id not in part.isr_nodes:
                behind[node_id] = behind.get(node_id, 0) + 1
    nodes = [
        NodeRow(
            each.node_id,
            each.host,
            each.port,
            each.rack,
            each.node_id == answer.controller_id,
            leads.get(each.node_id, 0),
            hosts.get(each.node_id, 0),
            behind.get(each.node_id, 0),
        )
        for each in sorted(answer.brokers, key=lambda each: each.node_id)
    ]
    return Overview(
        title="Overview",
        command=command,
        cluster_id=answer.cluster_id or "",
        nodes=tuple(nodes),
        topics=sum(not topic.is_internal for topic in topics),
        internal_topics=sum(bool(topic.is_internal) for topic in topics),
        partitions=len(parts),
        under_replicated=sum(len(part.isr_nodes) < len(part.replica_nodes) for part in parts),
        without_leader=sum(part.leader_id < 0 for part in parts),
    )


# ---- findings of the doctor ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FindingRow:
    """A finding. `sure_with` is None for a certain one. `page`: the address of its subject's page, or "".
    `links`: titles and addresses of the pages that do what the advice's commands do.
    """

    severity: str
    subject: str
    sentence: str
    advice: str
    check: str
    sure_with: str | None
    page: str
    links: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings(View):
    """The worst findings, and the share groups with dead letters that were not sent back. `window_s` is 0 where there
    is one snapshot only: checks of what moves need two."""

    findings: tuple[FindingRow, ...]
    letters: tuple[NotSentBack, ...]
    more_letters: int
    more: int
    unseen: tuple[str, ...]
    window_s: float
    took_s: float
    is_waiting: bool


def load_findings(context: Context) -> Findings:
    """The doctor's findings, between the last snapshot of this session and a new one."""
    metadata = metadata_of_all(context)
    partitions = sum(len(topic.partitions) for topic in metadata.topics)
    if partitions > AUTOMATIC_PARTITIONS_MAX and "run" not in context.query:
        return findings_of(None, 0.0, context)
    began = time.monotonic()
    left_s = context.lease.limits.left_s()
    last: Snapshot = context.session.shared.snapshot.get(
        SHARED_S,
        lambda: gather(context.client, metadata=metadata, with_reasons=not context.settings.no_records),
        left_s,
    )
    first: Snapshot | None = context.session.memory.get("snapshot")
    age_s = 0.0 if first is None else (last.at_ms - first.at_ms) / 1000
    if first is None or age_s > WINDOW_S[1]:
        context.session.memory["snapshot"] = first = last
    elif age_s > WINDOW_S[0]:
        context.session.memory["snapshot"] = last
    return findings_of(Evidence(first, last), time.monotonic() - began, context)


def findings_of(evidence: Evidence | None, took_s: float, context: Context) -> Findings:
    """The view of the evidence; without any, of a doctor that waits to be asked."""
    found = [] if evidence is None else diagnose(evidence)
    letters = () if evidence is None else not_sent_back(evidence.last)
    links = Links(Snapshot(0) if evidence is None else evidence.last)
    rows = [
        FindingRow(
            SEVERITIES[each.finding.severity],
            each.finding.subject,
            each.finding.sentence,
            reaching(each.finding.advice, context.settings.arguments),
            each.check.name,
            each.finding.sure_with,
            links.of(each.check, each.finding.subject),
            links_in(each.finding, is_read_only=context.settings.read_only),
        )
        for each in found[:FINDINGS_MAX]
    ]
    return Findings(
        title="What needs attention",
        command=context.command("doctor"),
        findings=tuple(rows),
        letters=letters[:LETTERS_MAX],
        more_letters=max(0, len(letters) - LETTERS_MAX),
        more=max(0, len(found) - FINDINGS_MAX),
        unseen=() if evidence is None else evidence.last.unseen[:10],
        window_s=0.0 if evidence is None else evidence.window_s,
        took_s=took_s,
        is_waiting=evidence is None,
    )


# ---- traffic -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TopicTraffic:
    """A topic, and how many records a second producers wrote to it."""

    name: str
    rate: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic(View):
    """Records a second since the reading before, `window_s` ago: all, by the node that leads their partition, and of
    the busiest topics. `window_s` is 0 after the first reading. `is_large`: the cluster is too large to read."""

    rate: float
    nodes: Mapping[int, float]
    busiest: tuple[TopicTraffic, ...]
    unseen: tuple[str, ...]
    window_s: float
    is_large: bool


def load_traffic(context: Context) -> Traffic:
    """The records that producers wrote between the last reading of this session and a new one."""
    leaders = leaders_of(each for each in metadata_of_all(context).topics if not each.is_internal)
    unseen = list[str]()
    is_large = len(leaders) > AUTOMATIC_PARTITIONS_MAX
    ends = {} if is_large else offsets(context, leaders, unseen=unseen)
    now_s = time.monotonic()
    before_s, before = context.session.memory.get("ends", (now_s, ends))
    window_s = now_s - before_s
    is_measured = MEASURED_S[0] <= window_s <= MEASURED_S[1]
    if before_s == now_s or window_s >= MEASURED_S[0]:
        context.session.memory["ends"] = now_s, ends
    nodes, by_topic = dict[int, float](), dict[str, float]()
    for place in ends.keys() & before.keys() if is_measured else ():
        rate = max(0, ends[place] - before[place]) / window_s
        nodes[leaders[place]] = nodes.get(leaders[place], 0) + rate
        by_topic[place[0]] = by_topic.get(place[0], 0) + rate
    busiest = sorted(by_topic.items(), key=lambda each: (-each[1], each[0]))[:BUSIEST_MAX]
    return Traffic(
        title="Traffic",
        command=context.command("topics", "list"),
        rate=sum(nodes.values()),
        nodes=dict(sorted(nodes.items())),
        busiest=tuple(TopicTraffic(name, rate) for name, rate in busiest if rate),
        unseen=tuple(unseen),
        window_s=window_s if is_measured else 0,
        is_large=is_large,
    )


# ---- disks ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DiskRow:
    """A directory of a node. Sizes are None where the node does not report them; `error` says why it has none."""

    node: int
    path: str
    total: int | None
    usable: int | None
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Disks(View):
    """The disks of all nodes, those with the least space first."""

    disks: tuple[DiskRow, ...]


def load_disks(context: Context) -> Disks:
    """The disks of every node: one request a node, which names a topic that no node has, so that answers are short."""
    rows: list[DiskRow] = []
    for broker in sorted(context.client.metadata([]).brokers, key=lambda each: each.node_id):
        try:
            nothing = DescribeLogDirsRequest([DescribableLogDirTopic("__", [])])
            answer = context.client.broker(broker.node_id).send(nothing)
            check(answer.error_code, "DescribeLogDirs")
        except ClientError as failure:
            rows.append(DiskRow(broker.node_id, "", None, None, str(failure)))
            continue
        for each in answer.results:
            total = each.total_bytes if each.total_bytes >= 0 else None
            usable = each.usable_bytes if each.usable_bytes >= 0 else None
            error = f"error {each.error_code}" if each.error_code else None
            rows.append(DiskRow(broker.node_id, each.log_dir, total, usable, error))
    rows.sort(key=free_share)
    return Disks(title="Disks", command=context.command("nodes", "list"), disks=tuple(rows))


def free_share(row: DiskRow) -> float:
    """The share of a disk that is free: -1 for one with an error, 1 for an unknown one."""
    if row.error is not None:
        return -1
    return row.usable / row.total if row.usable is not None and row.total else 1


PAGE: Final = Page(
    name="overview",
    path="/overview",
    load=load,
    label="Overview",
    key="o",
    parts=(
        Part("findings", "What needs attention", load_findings, refresh_s=20, is_first=True),
        Part("traffic", "Traffic", load_traffic, refresh_s=5),
        Part("disks", "Disks", load_disks, refresh_s=60),
    ),
)
