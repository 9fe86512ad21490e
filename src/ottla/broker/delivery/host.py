"""Hosts share groups on this node: the share partitions of the partitions that it leads, and their sessions.

`loading` builds the machine of a share partition, `persisting` writes its changes, `state_calls` reaches the
coordinators of its state, and `dead_letters` copies the records that it gives up. This module keeps the table of share
partitions, hands them the node's events, and settles them: it carries out the effects of a machine that was stepped.

ShareFetch does not ask the group coordinator for membership (Kafka's does not either): a session is enough. A share
partition that was never initialized starts where `share.auto.offset.reset` says at the first fetch, so nothing has to
be initialized before members may fetch.

AlterShareGroupOffsets = initialize the coordinator's state with the next state epoch (`states.call`), then `forget`.
"""

from __future__ import annotations

from typing import TypeVar

from ottla.broker.cluster.metadata import Metadata
from ottla.broker.cluster.peers import Peers
from ottla.broker.config.live import Subscriber
from ottla.broker.config.share_groups import GroupConfigs
from ottla.broker.coordinators.shards import ShardHost
from ottla.broker.delivery.batch_parts import Slices
from ottla.broker.delivery.dead_letters import DeadLetters
from ottla.broker.delivery.describing import DescribedPartition, described, lag_of
from ottla.broker.delivery.loading import Loader
from ottla.broker.delivery.partitions import HostedShare, HostedState, ShareWaiter
from ottla.broker.delivery.persisting import Persister
from ottla.broker.delivery.reading import readable_end
from ottla.broker.delivery.sessions import ShareSession, ShareSessions, TopicIdPartition
from ottla.broker.delivery.state_calls import StateCalls
from ottla.broker.delivery.tick_count import TickCount
from ottla.broker.environment import Environment
from ottla.broker.forwarding import Forwarding
from ottla.broker.parking import Parking
from ottla.broker.partitions.leadership import Leadership
from ottla.broker.partitions.partition import Partition
from ottla.broker.partitions.replicas import LocalTopic
from ottla.broker.schedule import Backlog, KeyedTimers, Timed
from ottla.broker.upkeep.failures import Failures
from ottla.machine import Millis
from ottla.metadata.features import SHARE_VERSION
from ottla.metadata.topics import TopicImage
from ottla.protocol.coordinator_records import SHARE_GROUP_STATE_TOPIC
from ottla.protocol.errors import ErrorCode
from ottla.share.partition import RUNS_PER_STEP
from ottla.share.records import Key

KeyT = TypeVar("KeyT", str, bytes)


class ShareHost(Subscriber):
    """See the module's docstring."""

    def __init__(
        self,
        environment: Environment,
        metadata: Metadata,
        leadership: Leadership,
        forwarding: Forwarding,
        parking: Parking,
        peers: Peers,
        failures: Failures,
        states: ShardHost,
    ) -> None:
        self.environment = environment
        self.metadata = metadata
        self.leadership = leadership
        self.parking = parking
        self.failures = failures
        self.sessions = ShareSessions(environment.settings)
        self.configs = GroupConfigs(environment.settings, environment.settings.of_group)
        schedule = environment.schedule
        self._timers = KeyedTimers[Key](schedule, Timed.SHARE, self._expire)
        self.states = StateCalls(environment, metadata, forwarding, parking, states)
        self._loader = Loader(environment, forwarding, failures, self.states, self.settle, self._drop)
        self._persister = Persister(environment, self.states, self.settle, self._drop)
        self.letters = DeadLetters(
            environment, metadata, leadership, forwarding, parking, peers, self.settle, self.sessions.client_id_of
        )
        self.slices = Slices(environment.notes)
        self._hosted: dict[Key, HostedShare] = {}
        self._of_group: dict[str, dict[Key, HostedShare]] = {}
        self._of_topic: dict[bytes, dict[Key, HostedShare]] = {}
        self._numbers = 0
        self._examined = TickCount(schedule)
        """How many runs of share partitions were checked for expiring locks."""
        self._acknowledging = Backlog[ShareWaiter](schedule, Timed.SHARE, self._acknowledge_more)
        """Requests that acknowledge more than one slice processes."""
        environment.settings.subscribe("share groups", self)

    # ---- lifecycle and time ----------------------------------------------------------------------------------------

    def acknowledge_later(self, asked: ShareWaiter) -> None:
        """A later tick processes the next slice of this request's acknowledgements."""
        self._acknowledging.append(asked)

    def _acknowledge_more(self, now: Millis) -> None:
        asked = self._acknowledging.popleft()
        try:
            asked.acknowledge_more(now)
        except Exception as error:
            if asked.ticket is None:
                self.environment.fault("acknowledgements of a client that is gone failed", error)
            else:
                self.parking.give_up(asked.ticket, "a long acknowledgement", error)

    def _expire(self, now: Millis) -> None:
        while self._examined.count < RUNS_PER_STEP and (key := self._timers.pop(now)) is not None:
            hosted = self._hosted.get(key)
            if hosted is not None and hosted.machine is not None:
                try:
                    self._examined.add(1 + hosted.machine.expire(now, RUNS_PER_STEP - self._examined.count))
                    self.settle(now, hosted)
                except Exception as error:
                    self._drop_key(now, key)
                    self.environment.fault(
                        f"{hosted.partition.name} of share group {key.group_id} failed, starts over", error
                    )

    def disconnected(self, now: Millis, connection: int) -> None:
        """A connection has closed, and with it the sessions opened over it: release their members' records."""
        for session in self.sessions.of_connection(connection):
            self.close_session(now, session)

    def features_changed(self, now: Millis) -> None:
        """Feature levels changed: if share groups are disabled, close all sessions and drop the loaded state."""
        if not self.metadata.image.level_of(SHARE_VERSION):
            for key in list(self._hosted):
                self._drop_key(now, key)
            for session in self.sessions.every():
                self.close_session(now, session)

    def topic_deleted(self, now: Millis, topic: TopicImage) -> None:
        """Drop the topic's share partitions, and their coordinators' state."""
        if topic.name == SHARE_GROUP_STATE_TOPIC:
            for key in list(self._hosted):
                self._drop_key(now, key)
            return
        for key in list(self._of_topic.get(topic.id, ())):
            self._drop_key(now, key)
        self._loader.back_offs.forget_topic(topic.id)
        self.states.topic_deleted(now, topic.id)

    def leader_changed(self, now: Millis, topic: LocalTopic, partition: Partition) -> None:
        """Another node leads its share partitions, or the new epoch fences them: load them again."""
        for key in [key for key in self._of_topic.get(topic.id, ()) if key.partition == partition.index]:
            self._drop_key(now, key)
        self._loader.back_offs.forget_topic(topic.id, partition.index)

    def wall_clock_was_set(self, now: Millis, by_ms: int) -> None:
        """Delayed messages are due by the wall clock."""
        for hosted in list(self._hosted.values()):
            if hosted.machine is not None:
                hosted.machine.put_off(-by_ms)
                self.settle(now, hosted)

    def close_session(self, now: Millis, session: ShareSession) -> None:
        """Release the records that the member has acquired: of many, the rest with later ticks."""
        self.sessions.close(session)
        for hosted in list(self._of_group.get(session.group_id, {}).values()):
            machine = hosted.machine
            if machine is not None and session.member_id in machine.held:
                runs_max = max(RUNS_PER_STEP - self._examined.count, 0)
                self._examined.add(machine.release_member(now, session.member_id, runs_max))
                self.settle(now, hosted)

    # ---- share partitions ------------------------------------------------------------------------------------------

    def known(self, group_id: str, place: TopicIdPartition) -> HostedShare | None:
        return self._hosted.get(Key(group_id, *place))

    def get(self, now: Millis, group_id: str, place: TopicIdPartition) -> HostedShare | ErrorCode:
        """The share partition, loaded now if it is not; or why there is none."""
        key = Key(group_id, *place)
        hosted = self._hosted.get(key)
        if hosted is not None:
            return hosted
        partition = self.leadership.led(*place)
        if isinstance(partition, ErrorCode):
            return partition
        self._numbers += 1
        hosted = self._hosted[key] = HostedShare(
            key, self._numbers, partition, self.configs, self.parking, self.environment.completions
        )
        self._of_group.setdefault(group_id, {})[key] = hosted
        self._of_topic.setdefault(place[0], {})[key] = hosted
        self._loader.load(now, hosted)
        return hosted

    def forget(self, now: Millis, group_id: str, topic_id: bytes | None = None, partition: int | None = None) -> None:
        """The state of these share partitions was altered or deleted behind their back."""
        for key in list(self._of_group.get(group_id, {})):
            if topic_id in (None, key.topic_id) and partition in (None, key.partition):
                self._drop_key(now, key)
        self._loader.back_offs.forget_group(group_id)
        if topic_id is None:
            self.configs.forget(group_id)

    def first_member_comes(self, now: Millis, group_id: str) -> None:
        """This is the group's first session here. In a cluster another node may have altered the group's state since.

        So share partitions without acquired records are loaded again; back-offs continue. This is not done if the
        coordinator lacks the delivery counts: a record that no member can process would never reach its last
        delivery.
        """
        if not self.states.may_go_elsewhere:
            return
        for key, hosted in list(self._of_group.get(group_id, {}).items()):
            machine = hosted.machine
            if machine is not None and not (machine.held or machine.archiving or hosted.awaited or hosted.unsaved):
                self._loader.back_offs.keep(key, machine)
                self._drop_key(now, key)

    def settings_changed(self, now: Millis) -> None:
        self.configs.forget_all()

    def group_configured(self, group_id: str) -> None:
        """The group's configs changed: apply them at once, and retry the waiting fetches."""
        self.configs.forget(group_id)
        for hosted in self._of_group.get(group_id, {}).values():
            if hosted.machine is not None:
                hosted.machine.settings = hosted.config.settings
                hosted.wake()

    def _drop(self, now: Millis, hosted: HostedShare, error: ErrorCode = ErrorCode.NOT_LEADER_OR_FOLLOWER) -> None:
        """Remove this share partition, unless that has been done already; what waits for it gets the error."""
        if hosted.state is HostedState.DROPPED:
            return
        key = hosted.key
        del self._hosted[key]
        _remove(self._of_group, key.group_id, key)
        _remove(self._of_topic, key.topic_id, key)
        self._timers.cancel(key)
        self._loader.forget(hosted)
        self.letters.forget(hosted)
        hosted.drop(error)

    def _drop_key(self, now: Millis, key: Key) -> None:
        """The same, by its key."""
        hosted = self._hosted.get(key)
        if hosted is not None:
            self._drop(now, hosted)

    # ---- effects of a machine --------------------------------------------------------------------------------------

    def settle(self, now: Millis, hosted: HostedShare) -> None:
        """A machine was stepped: submit its writes, write its dead letters, set its timer, wake the waiting fetches."""
        machine = hosted.machine
        if machine is None:
            return
        if machine.writes:
            for each in machine.take_writes():
                self._persister.persist(now, hosted, each)
        if machine.letters:
            self.letters.take(now, hosted, machine.take_letters())
        key, deadline = hosted.key, machine.deadline()
        if deadline is None:
            self._timers.cancel(key)
        elif self._timers.at(key) != deadline:
            self._timers.set(key, deadline)
        if hosted.waiters and hosted.has_more(now):
            hosted.wake()

    # ---- inspection ------------------------------------------------------------------------------------------------

    def lag(self, topic_id: bytes, partition: int, start_offset: int, complete_count: int) -> int:
        """Records that a group still has to process: log end - start_offset - complete_count (KIP-1226); -1 if that is
        not known here."""
        led = self.leadership.led(topic_id, partition)
        return -1 if isinstance(led, ErrorCode) else lag_of(led.log.high_watermark, start_offset, complete_count)

    def hosted_of(self, group_id: str) -> list[HostedShare]:
        """The group's share partitions that are loaded or being loaded, in order."""
        return [hosted for _, hosted in sorted(self._of_group.get(group_id, {}).items())]

    def describe(self, now: Millis, group_id: str | None = None) -> list[DescribedPartition]:
        """Every loaded share partition, of one group or of all."""
        every = sorted(self._hosted.items()) if group_id is None else sorted(self._of_group.get(group_id, {}).items())
        found = (self.describe_one(hosted) for _, hosted in every)
        return [each for each in found if each is not None]

    def describe_one(self, hosted: HostedShare) -> DescribedPartition | None:
        """The figures of a share partition; None unless it is loaded."""
        machine, key = hosted.machine, hosted.key
        if machine is None:
            return None
        lag = self.lag(key.topic_id, key.partition, machine.start, machine.complete_count)
        end = readable_end(hosted.partition.log, hosted.config.isolation)
        return described(hosted, machine, lag, end, self.letters.written(key))

    def check(self) -> None:
        self.sessions.check()
        self._timers.check()
        self._loader.check()
        for key, hosted in self._hosted.items():
            assert hosted.key == key
            hosted.check()
            if hosted.machine is not None:
                hosted.machine.check()
                assert not hosted.machine.writes, key
                assert not hosted.machine.letters, key
                due, at = hosted.machine.deadline(), self._timers.at(key)
                assert due is None or (at is not None and at <= due), f"{key} is due at {due}, its timer at {at}"
            assert self._of_group[key.group_id][key] is self._of_topic[key.topic_id][key] is hosted, key
        for index in (self._of_group, self._of_topic):
            assert sum(map(len, index.values())) == len(self._hosted)


def _remove(index: dict[KeyT, dict[Key, HostedShare]], name: KeyT, key: Key) -> None:
    """Remove one share partition from those of a group or a topic."""
    of_name = index[name]
    del of_name[key]
    if not of_name:
        del index[name]
