"""Finds the topics that exist at a start, from the metadata store and the partition directories together.

The store may lack a topic, or know less of it than the directories, or have lost commits about it. Such a topic is
adopted on hold, because it is unknown which of its records may be deleted. Directories of no known topic are renamed to
`-stray`, never deleted. No log is opened here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from ottla.broker.cluster.members import NOBODY
from ottla.broker.config.key import ConfigRefusedError
from ottla.broker.config.values import check_topic, held, is_held
from ottla.broker.environment import Environment
from ottla.broker.topics.adoption import Stranger, Told, moved_away, place_of, sort_directories, stray_path, unplaced
from ottla.broker.topics.new_topic import new_internal
from ottla.broker.topics.removal import Removals
from ottla.log.log import Log
from ottla.machine import Millis
from ottla.metadata.store import MetadataStore, decoded
from ottla.metadata.topic_names import INTERNAL_TOPICS
from ottla.metadata.topics import DELETED_PREFIX, DeletedTopic, PartitionRecord, TopicRecord, placed_on

NAMES_SHOWN: Final = 10
"""How many topics a sentence of the log names."""


class Survey(NamedTuple):
    """The topics that exist, and why a partition's directory is not opened for its topic. `others`: see `Sorted`;
    `unplaced`: see there."""

    records: dict[str, TopicRecord]
    unowned: dict[tuple[str, int], str]
    others: frozenset[tuple[str, int]]
    unplaced: Mapping[str, Told]


def survey(
    environment: Environment,
    store: MetadataStore,
    removals: Removals,
    now: Millis,
    stored: dict[str, TopicRecord],
    *,
    alone: bool,
    doubts_store: bool = False,
) -> Survey:
    """The topics of the store, with the additions from the directories.

    It removes the rest of earlier deletions, and replicas that were moved to other nodes meanwhile. `alone`: there are
    no other nodes; `doubts_store`: otherwise, whether the store may have lost topics.
    """
    deleted = [
        decoded(store, key, partial(DeletedTopic.decode, key), row.value) for key, row in store.list(DELETED_PREFIX)
    ]
    deleted = [topic for topic in deleted if topic.node_id in (None, environment.node_id)]
    found = sort_directories(environment.files, environment.directory, stored, {topic.topic_id for topic in deleted})
    moved = [] if alone else moved_away(environment.node_id, found, stored)
    paths = [f"{environment.directory}/{name}-{index}" for name, index in moved]
    if moved and store.lost:
        why = "has its replicas on other nodes by the metadata store, which is an older copy"
        owners = [stored[name].topic_id for name, _ in moved]
        found.strangers += [Stranger(path, owner, why) for path, owner in zip(paths, owners, strict=True)]
    elif moved:
        found.gone += paths
        environment.notes(f"{len(moved)} replicas here were moved to other nodes while this one was down: they go")
    unowned = {**found.unreadable, **found.left}
    removals.begin(now, found.gone, deleted, {name for name, _ in unowned})
    for stranger in found.strangers:
        why = put_aside(environment, stranger)
        place = place_of(stranger.path.rpartition("/")[2])
        if why is not None and place is not None:
            unowned[place] = why
    for sentence in found.left.values():
        environment.warn(sentence)
    records = dict(stored)
    if store.lost:
        records = {name: _doubted(name, record) for name, record in stored.items()}
        environment.warn(
            f"the metadata store {store.place} has lost its newest {store.lost} commits (it is damaged, "
            "or an older copy): topics that were deleted since may be back, empty; configs may be older ones"
        )
    if not alone:
        left = unplaced(environment.node_id, found, stored)
        left = {name: told for name, told in left.items() if doubts_store or name in stored}
        _leave_untaken(environment, found.told, stored, may_be_adopted=bool(store.lost))
        return Survey(records, unowned, frozenset(found.others), left)
    configs = _kafkas_configs(environment, found.told) if found.told and found.from_kafka else None
    for name, told in found.told.items():
        own = (configs or {}).get(name, {})
        records[name] = _taken_over(environment, name, told, stored.get(name), own, exact=found.from_kafka)
    if found.told:
        how = "without the configs they had" if configs is None else "with the configs in Kafka's metadata log"
        environment.warn(
            f"{environment.directory} holds {_listed(found.told)} of which the metadata store knows nothing, or less: "
            f"taken over from the directories, {how}"
        )
    on_hold = sorted(name for name, record in records.items() if is_held(environment.settings, record.configs))
    if on_hold:
        environment.warn(
            f"retention and compaction delete nothing of {_listed(on_hold)}: ottla.retention.hold is set, as it is "
            "where a topic's configs are not known. Set retention.ms, retention.bytes or cleanup.policy of a topic "
            "to end it there"
        )
    return Survey(records, unowned, frozenset(found.others), {})


def raised(name: str, record: TopicRecord, logs: Mapping[tuple[str, int], Log], node_id: int) -> TopicRecord:
    """The record with leader epochs above all in it and in the logs, if this node is the only replica (a store may be
    older than its logs). If there are other replicas, the controller elects."""
    return replace(
        record,
        partitions=tuple(
            replace(placed, leader_epoch=max(placed.leader_epoch, logs[name, index].latest_epoch)).led_anew(node_id)
            if placed.leader == node_id and len(placed.replicas) == 1
            else placed
            for index, placed in enumerate(record.partitions)
        ),
    )


def with_replicas_here(node_id: int, told: Told, record: TopicRecord | None) -> TopicRecord:
    """The record of a topic by which this node opens the logs that the store does not place here."""
    nowhere = PartitionRecord((), (), NOBODY)
    placed = () if record is None else record.partitions
    placed += (nowhere,) * (told.partitions - len(placed))
    partitions = tuple(
        replace(each, replicas=(*each.replicas, node_id)) if index in told.indexes else each
        for index, each in enumerate(placed)
    )
    return TopicRecord(told.topic_id, held({}) if record is None else record.configs, partitions)


def _leave_untaken(
    environment: Environment, told: Mapping[str, Told], stored: Mapping[str, TopicRecord], *, may_be_adopted: bool
) -> None:
    """A cluster node adopts no topic by itself: the controller does, if the store is an older copy. Otherwise the
    directories stay until a topic of the name needs the path; those of a topic with another id are moved away at
    once."""
    unknown = [name for name in told if name not in stored]
    for name in told.keys() & stored.keys():
        for index in range(told[name].partitions):
            path = f"{environment.directory}/{name}-{index}"
            if told[name].topic_id != stored[name].topic_id and environment.files.exists(path):
                put_aside(environment, Stranger(path, told[name].topic_id, "belongs to a topic with another id"))
    if unknown and may_be_adopted:
        environment.warn(
            f"{environment.directory} holds {_listed(unknown)} of which the metadata store knows nothing: it is an "
            "older copy, and the controller adopts them. `ottla cluster describe` shows which topics are on hold"
        )
    elif unknown:
        environment.warn(
            f"{environment.directory} holds {_listed(unknown)} of which the metadata store knows nothing: the "
            "directories stay as they are. A new topic of such a name has them renamed to -stray. To have the records "
            "back, restore a newer copy of the metadata store"
        )


def _doubted(name: str, record: TopicRecord) -> TopicRecord:
    """The record of a topic whose configs may have changed since."""
    return record if name in INTERNAL_TOPICS else replace(record, configs=held(record.configs))


def _kafkas_configs(environment: Environment, told: Mapping[str, Told]) -> dict[str, dict[str, str]] | None:
    """The configs of these topics in the metadata log of the Kafka broker that owned this directory, without those that
    have no meaning here; None if that log cannot be read."""
    from ottla.broker.topics.kraft_configs import KraftUnreadableError, topic_configs  # few nodes start so

    try:
        by_id = topic_configs(environment.files, environment.directory)
    except KraftUnreadableError as error:
        environment.warn(f"Kafka's metadata log cannot be read, so the configs of its topics are not known: {error}")
        return None
    found: dict[str, dict[str, str]] = {}
    for name, each in told.items():
        found[name] = {}
        for key, text in by_id.get(each.topic_id, {}).items():
            try:
                check_topic({**found[name], key: text}, environment.settings)
            except ConfigRefusedError as refused:
                environment.warn(f"config {key}={text} of topic {name} in Kafka's metadata log is ignored: {refused}")
            else:
                found[name][key] = text
    return found


def _taken_over(
    environment: Environment,
    name: str,
    told: Told,
    record: TopicRecord | None,
    own: Mapping[str, str],
    *,
    exact: bool,
) -> TopicRecord:
    """The record of a topic whose directories have more than the store. `own`: other knowledge of its configs."""
    placed = () if record is None else record.partitions
    count = max(told.partitions, len(placed))
    if name in INTERNAL_TOPICS:
        new = new_internal(environment.settings, name)
        configs = dict(new.overrides) if record is None else record.configs
        count = count if exact else max(count, new.partitions)
    else:
        configs = held(own if record is None else record.configs)
    return TopicRecord(told.topic_id, configs, placed + placed_on(environment.node_id, count - len(placed)))


def put_aside(environment: Environment, stranger: Stranger) -> str | None:
    """Rename this directory; why it is in the way if that can't be done."""
    path = stranger.path
    stray = stray_path(path, stranger.owner)
    if environment.files.exists(stray):
        stray = stray_path(path, stranger.owner, f".{environment.entropy.randbytes(4).hex()}")
    try:
        environment.files.rename(path, stray)
    except OSError as error:
        why = f"{path} {stranger.why}; it can't be renamed to {stray}: {error}"
        environment.warn(why)
        return why
    environment.warn(f"{path} {stranger.why}; it was renamed to {stray}")
    return None


def _listed(names: Collection[str]) -> str:
    """`topic a`, `topics a, b`, or how many more than these there are."""
    shown = sorted(names)[:NAMES_SHOWN]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return f"{'topic' if len(names) == 1 else 'topics'} {', '.join(shown)}{more}"
