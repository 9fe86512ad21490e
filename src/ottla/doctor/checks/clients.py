"""Checks what nodes remember of their clients: why members were dropped, errors, throttling, fetches, batches.

Nodes of other Kafkas remember nothing of this, so the checks of this module are silent there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from ottla.doctor.authors import quota_set_by, set_by
from ottla.doctor.finding import Check, Finding, Severity
from ottla.doctor.observed import (
    LEFT,
    NO_API,
    REBALANCE_TIMEOUT,
    ClientErrors,
    ConnectionFigures,
    GroupChange,
    LongTurn,
    Observed,
    TopicBatches,
)
from ottla.doctor.snapshot import Committed, Evidence, Partition
from ottla.doctor.words import count, duration
from ottla.protocol.apis import APIS, ApiKey
from ottla.protocol.errors import ErrorCode

RECENT_MS: Final = 10 * 60_000
"""Older events are no finding."""
DROPPED: Final = 2
"""So many recent drops of one client are a finding."""
REPEATED: Final = 3
"""So many errors of a client are a finding, if one of them may be an accident."""
POLL_REASON: Final = "poll timeout"
"""Part of the reason with which the Java client leaves after max.poll.interval.ms."""
ABOUT: Final = 0.1
"""A pause is as long as a timeout if it differs by at most this part."""
STILL_MS: Final = 2_000
"""A node's event loop that stood still for so long in recent turns of one kind is a finding."""
THROTTLED: Final = 0.1
"""The part of the window for which a client may be throttled."""
LAG_MIN: Final = 1_000
"""A group with less lag keeps up."""
QUEUE_BACKOFF_S: Final = (0.9, 1.1)
"""The pause of librdkafka before its next fetch while its queue is full (fetch.queue.backoff.ms, 1 s)."""
SMALL: Final = 2.0
"""Fewer records a batch are small batches."""
MANY_BATCHES: Final = 500
"""Batches a second to a topic from which on their size matters."""


# ---- why members were dropped --------------------------------------------------------------------------------------


def slow_polls(evidence: Evidence) -> Iterator[Finding]:
    """Members that a group drops because they take longer than max.poll.interval.ms between polls."""
    for group, changes in sorted(evidence.last.changes().items()):
        drops: dict[tuple[str, str], list[GroupChange]] = {}
        for each in changes:
            if evidence.last.at_ms - each.at_ms <= RECENT_MS and _is_slow_poll(evidence, group, each):
                drops.setdefault((each.client_id, each.host), []).append(each)
        if not drops:
            continue
        (client, host), rows = max(drops.items(), key=lambda each: (len(each[1]), each[0]))
        if len(rows) >= DROPPED:
            yield Finding(
                Severity.WARNING,
                group,
                f"{client} ({host}) of {group} took over {duration(rows[-1].timeout_ms / 1000)} for one poll, "
                f"{count(len(rows), 'time')} in {duration(RECENT_MS / 1000)}: the group drops it, rebalances, and "
                "reads its records again.",
                "fewer records a poll (max.poll.records), or more time (max.poll.interval.ms)",
            )


def _is_slow_poll(evidence: Evidence, group: str, change: GroupChange) -> bool:
    """Whether a member was dropped, or has left, because its poll took too long.

    A client that leaves without a reason does so if its last commit is as long ago as its rebalance timeout, which
    clients set to max.poll.interval.ms.
    """
    if change.cause == REBALANCE_TIMEOUT:
        return True
    if change.cause != LEFT or change.reason:
        return change.cause == LEFT and POLL_REASON in change.reason
    before = [
        commit.at_ms
        for (name, _), commits in evidence.last.commits.items()
        if name == group
        for commit in commits
        if commit.at_ms <= change.at_ms
    ]
    pause = change.at_ms - max(before, default=0)
    return abs(pause - change.timeout_ms) <= ABOUT * change.timeout_ms


# ---- errors --------------------------------------------------------------------------------------------------------


def refused_commits(evidence: Evidence) -> Iterator[Finding]:
    """Clients that commit after their group has dropped them."""
    codes = (ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID)
    for each in _errors(evidence, (ApiKey.OFFSET_COMMIT, ApiKey.TXN_OFFSET_COMMIT), codes, REPEATED):
        yield Finding(
            Severity.WARNING,
            each.subject,
            f"{each.client_id} of {each.subject} has committed {count(each.count, 'time')} after its group had dropped "
            f"it ({ErrorCode(each.code).name}): its records are read again.",
            "commit before the next rebalance; if slow-polls reports the group, mend that first",
        )


def fenced_instances(evidence: Evidence) -> Iterator[Finding]:
    """Two programs with the same group.instance.id."""
    codes = (ErrorCode.FENCED_INSTANCE_ID, ErrorCode.UNRELEASED_INSTANCE_ID)
    for each in _errors(evidence, None, codes, REPEATED):
        yield Finding(
            Severity.WARNING,
            each.subject,
            f"Two programs use one group.instance.id in {each.subject}: {each.client_id} was refused "
            f"{count(each.count, 'time')} ({ErrorCode(each.code).name}).",
            "give each program an id of its own",
        )


def protocols_differ(evidence: Evidence) -> Iterator[Finding]:
    """Clients that share no protocol with the members of their group."""
    for each in _errors(evidence, (ApiKey.JOIN_GROUP,), (ErrorCode.INCONSISTENT_GROUP_PROTOCOL,), 1):
        yield Finding(
            Severity.WARNING,
            each.subject,
            f"{each.client_id} can't join {each.subject}: it shares no assignment strategy with the members.",
            "use one partition.assignment.strategy for all members: eager and cooperative ones cannot share a group",
        )


def fenced_producers(evidence: Evidence) -> Iterator[Finding]:
    """Two programs with the same transactional.id."""
    codes = (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED)
    for each in _errors(evidence, None, codes, REPEATED):
        about = each.subject or "an unknown id"
        yield Finding(
            Severity.WARNING,
            about,
            f"{each.client_id} was fenced {count(each.count, 'time')} ({ErrorCode(each.code).name}, {about}): another "
            "program uses its transactional.id.",
            "give each producer an id of its own, and let old ones end before new ones start",
        )


def too_large_batches(evidence: Evidence) -> Iterator[Finding]:
    """Producers whose batches are larger than their topic accepts."""
    for each in _errors(evidence, (ApiKey.PRODUCE,), (ErrorCode.MESSAGE_TOO_LARGE,), 1):
        yield Finding(
            Severity.WARNING,
            each.subject,
            f"{each.subject} has refused {count(each.count, 'batch request')} of {each.client_id}: "
            f"{each.message or 'they exceed max.message.bytes.'}"
            + set_by(evidence, evidence.last.topic(each.subject), "max.message.bytes"),
            f"`ottla topics alter {each.subject or 'TOPIC'} --set max.message.bytes=...`; or smaller records, "
            "compression, a smaller batch.size (the limit counts a compressed batch)",
        )


def strangers(evidence: Evidence) -> Iterator[Finding]:
    """Clients that do not speak Kafka's protocol on a listener, such as TLS to a plain one."""
    for node in evidence.last.observed:
        for each in node.errors:
            if each.api == NO_API and _is_recent(evidence, each) and each.count >= REPEATED:
                yield Finding(
                    Severity.WARNING,
                    f"node {node.node}",
                    f"Node {node.node} has closed {count(each.count, 'connection')} from {each.subject}: "
                    f"{each.message}.",
                    "set security.protocol of that client to the listener's",
                )


def _errors(
    evidence: Evidence, apis: Iterable[int] | None, codes: Iterable[int], at_least: int
) -> Iterator[ClientErrors]:
    """The recent errors with these codes, of these APIs; the most frequent one of each subject and client.

    `at_least`: how many make a finding.
    """
    found: dict[tuple[str, str], ClientErrors] = {}
    for node in evidence.last.observed:
        for each in node.errors:
            fits = each.code in codes and each.api != NO_API and (apis is None or each.api in apis)
            if fits and each.count >= at_least and _is_recent(evidence, each):
                key = each.subject, each.client_id
                if key not in found or found[key].count < each.count:
                    found[key] = each
    return (found[key] for key in sorted(found))


def _is_recent(evidence: Evidence, errors: ClientErrors) -> bool:
    return evidence.last.at_ms - errors.last_ms <= RECENT_MS


# ---- connections ---------------------------------------------------------------------------------------------------


def throttled(evidence: Evidence) -> Iterator[Finding]:
    """Clients that a quota slows down."""
    if not evidence.shows_movement:
        return
    worst: dict[tuple[str, str], float] = {}
    for was, now in _connections(evidence):
        share = (now.throttled_ms - was.throttled_ms) / 1000 / evidence.window_s
        key = now.principal, now.client_id
        worst[key] = max(share, worst.get(key, 0))
    for (principal, client), share in sorted(worst.items()):
        if share >= THROTTLED:
            user = principal.removeprefix("User:")
            yield Finding(
                Severity.WARNING,
                client or user,
                f"{client or 'a client'} ({principal}) was throttled for {min(share, 1):.0%} of "
                f"{duration(evidence.window_s)}, because of a quota." + quota_set_by(evidence, principal, client),
                "`ottla quotas list` shows the limits; `ottla quotas alter` raises one",
            )


def full_fetch_queues(evidence: Evidence) -> Iterator[Finding]:
    """Readers that fetch once a second although records wait, because their queue is full."""
    if not evidence.shows_movement:
        return
    lags = _lags(evidence)
    shortest, longest = QUEUE_BACKOFF_S
    for was, now in _connections(evidence):
        fetches = now.fetches - was.fetches
        lag = lags.get((now.client_id, now.host), 0)
        if not fetches or now.waits != was.waits or lag < LAG_MIN or "rdkafka" not in now.software:
            continue
        if shortest <= evidence.window_s / fetches <= longest:
            yield Finding(
                Severity.WARNING,
                now.client_id,
                f"{now.client_id} ({now.host}) fetches once a second although {count(lag, 'record')} wait: its queue "
                "is full (queued.min.messages, queued.max.messages.kbytes).",
                "process records faster; or a shorter fetch.queue.backoff.ms",
            )


def _lags(evidence: Evidence) -> dict[tuple[str, str], int]:
    """The lag of the partitions that clients own, by client id and host."""
    places, found = evidence.last.places(), dict[tuple[str, str], int]()
    for group in evidence.last.groups:
        for member in group.members:
            lag = sum(_lag(places.get(where), group.committed.get(where)) for where in member.owned)
            key = member.client_id, member.host.removeprefix("/")
            found[key] = found.get(key, 0) + lag
    return found


def _lag(partition: Partition | None, committed: Committed | None) -> int:
    """The records that wait; 0 if that is unknown."""
    if partition is None or partition.end is None or committed is None:
        return 0
    return max(0, partition.end - committed.offset)


def waits_for_bytes(evidence: Evidence) -> Iterator[Finding]:
    """Readers whose records wait for fetch.min.bytes."""
    if not evidence.shows_movement:
        return
    for was, now in _connections(evidence):
        held, waits = now.held_back - was.held_back, now.waits - was.waits
        if held >= REPEATED and held * 2 >= waits:
            yield Finding(
                Severity.NOTE,
                now.client_id,
                f"{now.client_id} ({now.host}) gets its records {now.max_wait_ms:,} ms late: {held:,} of {waits:,} "
                f"waiting fetches had records, but fewer bytes than its fetch.min.bytes ({now.min_bytes:,}).",
                "fetch.min.bytes=1, or a shorter fetch.max.wait.ms, if the delay matters",
            )


def _connections(evidence: Evidence) -> Iterator[tuple[ConnectionFigures, ConnectionFigures]]:
    """The connections that both snapshots have, by their order on each node."""
    first = {(node.node, each.id): each for node in _same_nodes(evidence) for each in node.connections}
    for node in evidence.last.observed:
        for now in node.connections:
            if (was := first.get((node.node, now.id))) is not None and was.client_id == now.client_id:
                yield was, now


def _same_nodes(evidence: Evidence) -> Iterator[Observed]:
    """The first snapshot of each node that has not started again since."""
    last = {node.node: node.started_ms for node in evidence.last.observed}
    return (node for node in evidence.first.observed if last.get(node.node) == node.started_ms)


# ---- the event loop ------------------------------------------------------------------------------------------------


def slow_turns(evidence: Evidence) -> Iterator[Finding]:
    """Nodes whose event loop stands still, so that all clients wait."""
    for node in evidence.last.observed:
        turns: dict[int, list[LongTurn]] = {}
        for each in node.long_turns:
            if node.at_ms - each.at_ms <= RECENT_MS:
                turns.setdefault(each.api, []).append(each)
        for api, of_api in turns.items():
            total_ms = sum(each.took_ms for each in of_api)
            if total_ms < STILL_MS:
                continue
            longest = max(of_api, key=lambda each: each.took_ms)
            own = f"the timed work of {longest.timer}" if longest.timer else "its timed work"
            what = own if api == NO_API else f"{_api_name(api)} of {longest.client_id or longest.host}"
            yield Finding(
                Severity.WARNING,
                f"node {node.node}",
                f"Node {node.node}'s event loop was blocked for {longest.took_ms / 1000:.1f} s by {what}. All clients "
                f"waited. In 10 min there were {count(len(of_api), 'such turn')}, {total_ms / 1000:.1f} s together.",
                "more CPU or a faster disk for the node, if other things slow it down too"
                if api == NO_API
                else "fewer or smaller such requests of that client; more CPU or a faster disk if others are slow too",
            )


def _api_name(api: int) -> str:
    return APIS[api].name if api in APIS else f"API {api}"


# ---- batches -------------------------------------------------------------------------------------------------------


def small_batches(evidence: Evidence) -> Iterator[Finding]:
    """Topics that receive many batches of hardly more than one record."""
    if not evidence.shows_movement:
        return
    before = {(node.node, each.topic): each for node in _same_nodes(evidence) for each in node.batches}
    batches, records = dict[str, int](), dict[str, int]()
    for node in evidence.last.observed:
        for now in node.batches:
            was = before.get((node.node, now.topic)) or TopicBatches(now.topic, now.batches, now.records, now.bytes)
            batches[now.topic] = batches.get(now.topic, 0) + now.batches - was.batches
            records[now.topic] = records.get(now.topic, 0) + now.records - was.records
    for topic, number in sorted(batches.items()):
        rate = number / evidence.window_s
        if rate >= MANY_BATCHES and records[topic] < SMALL * number:
            yield Finding(
                Severity.NOTE,
                topic,
                f"{topic} receives {rate:,.0f} batches/s of {records[topic] / number:.1f} records: its producers spend "
                "most of their time on requests.",
                "linger.ms=5 (and a batch.size to match) makes larger batches",
            )


CHECKS: Final = (
    Check("slow-polls", "members that a group drops because their polls take too long", slow_polls),
    Check("refused-commits", "clients that commit after their group has dropped them", refused_commits),
    Check("fenced-instances", "programs that share a group.instance.id", fenced_instances),
    Check("protocols-differ", "clients that share no assignment strategy with their group", protocols_differ),
    Check("fenced-producers", "programs that share a transactional.id", fenced_producers),
    Check("too-large-batches", "batches that their topic refuses", too_large_batches),
    Check("throttled", "clients that a quota slows down", throttled),
    Check("full-fetch-queues", "readers that fetch once a second although records wait", full_fetch_queues),
    Check("waits-for-bytes", "readers whose records wait for fetch.min.bytes", waits_for_bytes),
    Check("strangers", "clients that speak another protocol, such as TLS to a plain listener", strangers),
    Check("slow-turns", "nodes whose event loop stands still while one request or timer runs", slow_turns),
    Check("small-batches", "topics that receive many batches of one record", small_batches),
)
