"""Runs the controller: the one node that places partitions and elects their leaders.

Every node of a cluster has one of these. It is active while the claim in the metadata image names this incarnation of
the node. It checks for work when nodes join or leave, and when the image has news of them; `duties` defines the work.
Every batch is guarded by the claim's version. So a controller that others have taken for dead writes nothing
(KAFKA-6082), and learns of its successor by the conflict.

A claim, and each piece of work, is a metadata change like any other: planned from the newest image, and planned again
if another writer was faster.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from ottla.broker.cluster.adopting import AdoptedAs, adopted_topics, few_replicas
from ottla.broker.cluster.duties import (
    RulesOf,
    Turnover,
    claim,
    duties,
    is_concerned,
    missing_commits,
    returned,
    turnover,
)
from ottla.broker.cluster.elections import NodeStates, accepted, preferred, settled
from ottla.broker.cluster.members import NOBODY, Members
from ottla.broker.cluster.metadata import Change, Metadata, Planned, RowBatch, RowChange
from ottla.broker.schedule import Schedule, Timed, Timer
from ottla.machine import Millis
from ottla.metadata.nodes import TopicIdPartition
from ottla.metadata.store import StoreError
from ottla.metadata.topics import PREFIX as TOPIC_PREFIX
from ottla.metadata.topics import PartitionRecord, TopicImage

NAMES_SHOWN: Final = 10
"""How many topics a sentence of the log names."""
RETRY_MS: Final = 200
"""How long work rests that the store could not accept, in milliseconds."""


class Controller:
    """See the module's docstring. `rules_of`: a topic's rules for elections; `adopted`: how a topic is adopted whose
    configs are unknown; `return_every_ms`: how often leaderships
    return to the preferred replicas automatically, None for never."""

    def __init__(
        self,
        metadata: Metadata,
        members: Members,
        incarnation: str,
        rules_of: RulesOf,
        adopted: AdoptedAs,
        return_every_ms: Callable[[], Millis | None],
        notes: Callable[[str], None],
        schedule: Schedule,
    ) -> None:
        self.rules_of = rules_of
        self._adopted = adopted
        self._return_every_ms = return_every_ms
        self.present: Mapping[int, str] | None = None
        """The incarnations of the live nodes, by id, as far as this node knows; None before its first check."""
        self._metadata = metadata
        self._members = members
        self._incarnation = incarnation
        self._notes = notes
        self._is_looking = False
        self._look_again = False
        self._return = Timer(schedule, Timed.MEMBERSHIP, self._give_back)
        self._retry = Timer(schedule, Timed.MEMBERSHIP, self.look)
        self._balanced_at: Millis | None = None
        """When leaderships last went back, or this node became the controller; None while it is not."""

    def follow(self, now: Millis, names: Iterable[str]) -> None:
        """The image has news of these topics: one may have been placed on a node that has left."""
        topics = self._metadata.image.topics
        if self._members.is_controller and self.present is not None:
            turn = turnover(self._metadata.image, self.present)
            placed = (
                (each, turn.at((topics[name].id, index), each)[0])
                for name in names
                if name in topics
                for index, each in enumerate(topics[name].partitions)
            )
            if any(each.leader != NOBODY and is_concerned(each, nodes) for each, nodes in placed):
                self.look(now)

    def nodes_at(self, topic: TopicImage, index: int) -> NodeStates:
        """The state of the nodes for this partition, as far as this one knows."""
        return turnover(self._metadata.image, self.present or {}).at((topic.id, index), topic.partitions[index])[0]

    def moves_away(self, place: TopicIdPartition, nodes: NodeStates, *, once_proven: bool = False) -> bool:
        """Whether this node leads the partition, and an election with this state of the nodes would change that.

        `once_proven`: after all eligible replicas have caught up.
        """
        topic = self._metadata.image.topics_by_id.get(place[0])
        if topic is None or topic.partitions[place[1]].leader != self._members.node_id:
            return False
        placed = topic.partitions[place[1]]
        if once_proven and placed.unproven:
            placed = replace(placed, unproven=())
        return settled(placed, nodes, self.rules_of(topic)) is not placed

    def elected(self, topic: TopicImage, index: int, placed: PartitionRecord, *, unclean: bool) -> PartitionRecord:
        """The partition led by its preferred replica; the same object if nothing changes.

        `unclean`: if it has no leader, any live replica leads. If replicas refuse to follow its leader, the leader
        keeps leading in an epoch in which they give in.
        """
        nodes = self.nodes_at(topic, index)
        if not unclean:
            return preferred(placed, nodes)
        if placed.leader != NOBODY:
            return accepted(placed) if nodes.refusing else placed
        return settled(placed, nodes, replace(self.rules_of(topic), unclean=True))

    def look(self, now: Millis) -> None:
        """Become the controller if there is none, and do the work that is due."""
        if self._is_looking or self.present is None:
            self._look_again = True
            return
        if not self._members.is_controller:
            self._balanced_at = None
        elif self._balanced_at is None:
            self._balanced_at = now
        self._look_again = False
        self._retry.cancel()
        self._change(now, self._work)

    def _change(self, now: Millis, work: Change) -> None:
        """Submit this work. No other work begins before it has ended, see `_ended`."""
        self._is_looking = True
        self._return.cancel()
        self._metadata.change(now, work, self)

    def _ended(self) -> None:
        self._is_looking = False
        return_at = self._return_at
        if return_at is not None:
            self._return.set(return_at)

    @property
    def _return_at(self) -> Millis | None:
        every_ms = self._return_every_ms()
        return None if every_ms is None or self._balanced_at is None else self._balanced_at + every_ms

    def _returning(self, now: Millis) -> Planned:
        """The plan to have partitions led by their preferred replicas again."""
        if self._members.is_controller:
            image = self._metadata.image
            rows = yield from returned(image, turnover(image, self.present or {}))
            if rows:
                yield RowBatch(rows, (), self._members.guards(rows))
                self._notes(f"leaders of {len(rows)} topics are the preferred replicas again")

    def _work(self, now: Millis) -> Planned:
        assert self.present is not None
        mine = claim(self._metadata.image, self.present, self._members.node_id, self._incarnation)
        if mine is not None:
            yield RowBatch([mine])
            self._notes(f"node {self._members.node_id} is the controller now")
        if self._members.is_controller:
            turn = turnover(self._metadata.image, self.present)
            new = adopted_topics(self._metadata.image, turn.states, self._adopted)
            rows = yield from duties(self._metadata.image, turn, self.rules_of)
            rows += new
            if rows:
                self._note_lost_commits(turn)
                self._note_adopted(new)
                self._note_few_replicas(rows)
                yield RowBatch(rows, (), self._members.guards(rows))

    def _note_lost_commits(self, turn: Turnover) -> None:
        lost = missing_commits(self._metadata.image, turn.states)
        if lost:
            self._notes(
                f"the metadata store lacks its newest {lost} commits: it was restored from an older copy. The replica "
                "of each partition with the longest log leads, once all of its replicas are up; `ottla cluster "
                "describe` shows which partitions wait. To continue without a replica, run `ottla topics elect-leaders "
                "--unclean`"
            )

    def _note_adopted(self, rows: Collection[RowChange]) -> None:
        names = sorted(row.key.removeprefix(TOPIC_PREFIX) for row in rows)
        if names:
            more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
            self._notes(
                f"topics that the metadata store has lost are adopted: {', '.join(names[:NAMES_SHOWN])}{more}. They "
                "have no leader before all nodes have started. To continue without a node, run `ottla topics "
                "elect-leaders --unclean`. Their configs are lost, so nothing of them is deleted before you set "
                "retention.ms, retention.bytes or cleanup.policy"
            )

    def _note_few_replicas(self, rows: Collection[RowChange]) -> None:
        for name, (has, wanted) in sorted(few_replicas(self._metadata.image, rows, self._adopted).items()):
            self._notes(
                f"{name} was adopted with {has} of {wanted} replicas, because no other node has logs of it. To add the "
                f"missing ones, run `ottla topics reassign {name} --replication-factor {wanted} --execute`"
            )

    def change_ended(self, now: Millis, result: Any) -> None:
        self._ended()
        if self._look_again:
            self.look(now)

    def change_failed(self, now: Millis, error: Exception) -> None:
        self._ended()
        self._retry.set(now + RETRY_MS)
        if not isinstance(error, StoreError):
            raise error
        self._notes(f"the controller's work waits for the metadata store: {error}")

    def _give_back(self, now: Millis) -> None:
        """Return leaderships to the preferred replicas, unless the settings have changed since the timer was set."""
        return_at = self._return_at
        if return_at is not None and return_at <= now:
            self._balanced_at = now
            self._change(now, self._returning)
        elif return_at is not None:
            self._return.set(return_at)
