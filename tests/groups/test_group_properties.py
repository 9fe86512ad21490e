"""Any sequence of requests, deadlines, restarts and transactions keeps the promises of a coordinator.

After every step: the invariants hold, and a replay of the log gives the same durable state. Beside it runs a dumb twin
of the offsets. At the end time passes, and nobody may be left waiting.
"""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from ottla.groups.offset_records import CommittedOffset, encode_offset
from ottla.groups.settings import GroupSettings
from ottla.groups.shard import TopicsDeleted
from ottla.machine import Decision
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from ottla.protocol.messages.delete_groups import DeleteGroupsRequest
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from ottla.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from ottla.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from ottla.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from ottla.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from ottla.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from tests.harness.groups.group_stage import Stage

HOUR_MS = 3_600_000
SETTINGS = GroupSettings(
    initial_rebalance_delay_ms=500,
    group_size_max=3,
    offsets_retention_ms=2 * HOUR_MS,
    offsets_retention_check_interval_ms=HOUR_MS,
    batch_size_max=900,
)

groups = st.sampled_from(["g", "h"])
topics = st.sampled_from(["t1", "t2"])
partitions = st.integers(0, 1)
clients = st.integers(0, 3)
producers = st.sampled_from([7, 8])


def subscription(topic: str) -> bytes:
    out = bytearray(b"\x00\x01")
    ConsumerProtocolSubscription(topics=[topic]).encode(out, 1)
    return bytes(out)


class Client:
    """What a client remembers of its membership, right or wrong."""

    def __init__(self) -> None:
        self.member_id = ""
        self.generation = -1
        self.members: list[str] = []


class Coordinator(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.stage = Stage(SETTINGS)
        self.clients: dict[tuple[str, int], Client] = {}
        self.joins: dict[int, tuple[str, int]] = {}
        self.syncs: dict[int, tuple[str, int, str]] = {}
        self.assigned: dict[tuple[str, int], dict[str, bytes]] = {}
        self.offsets: dict[tuple[str, str, int], tuple[int, int]] = {}
        self.pending: dict[int, dict[tuple[str, str, int], tuple[int, int]]] = {}
        self.seen = 0
        self.next_value = 0

    def client(self, group: str, number: int) -> Client:
        return self.clients.setdefault((group, number), Client())

    def ask(self, body: Any, version: int) -> int:
        ticket = self.stage.ask(body, version)
        self.learn()
        return ticket

    def learn(self) -> None:
        """Clients take in what they were answered."""
        for ticket, reply in list(self.stage.answers.items())[self.seen :]:
            self.seen += 1
            if isinstance(reply, JoinGroupResponse) and ticket in self.joins:
                client = self.client(*self.joins[ticket])
                client.member_id, client.generation = reply.member_id, reply.generation_id
                client.members = [member.member_id for member in reply.members]

    # ---- members ---------------------------------------------------------------------------------------------------

    @rule(
        group=groups,
        number=clients,
        version=st.sampled_from([0, 3, 4, 9]),
        fresh=st.booleans(),
        speaks=st.lists(st.sampled_from(["range", "sticky"]), min_size=1, max_size=2, unique=True),
        topic=topics,
    )
    def join(self, group: str, number: int, version: int, fresh: bool, speaks: list[str], topic: str) -> None:
        client = self.client(group, number)
        static = version >= 5 and number == 0
        body = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=20_000,
            member_id="" if fresh else client.member_id,
            group_instance_id="static" if static else None,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name, subscription(topic)) for name in speaks],
        )
        self.joins[self.stage.next_ticket] = (group, number)
        self.ask(body, version)

    @rule(group=groups, numbers=st.lists(clients, min_size=1, max_size=3, unique=True))
    def settle(self, group: str, numbers: list[int]) -> None:
        """Well-behaved clients bring a group to Stable, which random requests seldom do."""
        for number in numbers:
            for _ in range(2):
                client = self.client(group, number)
                self.join(group, number, 9, number == 0 or not client.member_id, ["range"], "t1")
                if number == 0 or client.member_id in client.members:
                    break
        self.wait(500)
        for number in numbers:
            self.sync(group, number, 1)

    @rule(group=groups, number=clients, size=st.sampled_from([1, 1, 1, 900]))
    def sync(self, group: str, number: int, size: int) -> None:
        client = self.client(group, number)
        body = SyncGroupRequest(
            group_id=group,
            generation_id=client.generation,
            member_id=client.member_id,
            assignments=[SyncGroupRequestAssignment(each, each.encode()[-4:] * size) for each in client.members],
        )
        self.syncs[self.stage.next_ticket] = (group, client.generation, client.member_id)
        self.ask(body, 3)

    @rule(group=groups, number=clients)
    def heartbeat(self, group: str, number: int) -> None:
        client = self.client(group, number)
        self.ask(HeartbeatRequest(group, client.generation, client.member_id), 3)

    @rule(group=groups, number=clients, by_instance=st.booleans())
    def leave(self, group: str, number: int, by_instance: bool) -> None:
        identity = MemberIdentity("", "static") if by_instance else MemberIdentity(self.client(group, number).member_id)
        self.ask(LeaveGroupRequest(group_id=group, members=[identity]), 5)

    # ---- offsets ---------------------------------------------------------------------------------------------------

    @rule(group=groups, number=st.integers(-1, 3), topic=topics, partition=partitions)
    def commit(self, group: str, number: int, topic: str, partition: int) -> None:
        client = self.client(group, number) if number >= 0 else Client()
        self.next_value += 1
        at = OffsetCommitRequestPartition(partition, self.next_value)
        body = OffsetCommitRequest(
            group_id=group,
            generation_id_or_member_epoch=client.generation,
            member_id=client.member_id,
            topics=[OffsetCommitRequestTopic(topic, partitions=[at])],
        )
        record_offset = self.stage.next_offset
        reply: Any = self.stage.answers[self.ask(body, 9)]
        if reply.topics[0].partitions[0].error_code == ErrorCode.NONE:
            self.offsets[group, topic, partition] = (self.next_value, record_offset)

    @rule(producer_id=producers, group=groups, topic=topics, partition=partitions)
    def commit_in_transaction(self, producer_id: int, group: str, topic: str, partition: int) -> None:
        self.next_value += 1
        record_offset = self.stage.next_offset
        committed = CommittedOffset(self.next_value, -1, "", self.stage.now)
        self.stage.transactional(producer_id, Decision((encode_offset(group, topic, partition, committed),)))
        self.pending.setdefault(producer_id, {})[group, topic, partition] = (self.next_value, record_offset)

    @rule(producer_id=producers, committed=st.booleans())
    def end_transaction(self, producer_id: int, committed: bool) -> None:
        self.stage.marker(producer_id, committed)
        ended = self.pending.pop(producer_id, {})
        for key, (value, record_offset) in ended.items() if committed else ():
            if key not in self.offsets or self.offsets[key][1] < record_offset:
                self.offsets[key] = (value, record_offset)

    def _drop(self, gone: Any) -> None:
        for known in (self.offsets, *self.pending.values()):
            for key in [key for key in known if gone(*key)]:
                del known[key]

    @rule(group=groups)
    def delete_group(self, group: str) -> None:
        reply: Any = self.stage.answers[self.ask(DeleteGroupsRequest([group]), 2)]
        if reply.results[0].error_code == ErrorCode.NONE:
            self._drop(lambda g, t, p: g == group)

    @rule(group=groups, topic=topics, partition=partitions)
    def delete_offset(self, group: str, topic: str, partition: int) -> None:
        at = OffsetDeleteRequestTopic(topic, [OffsetDeleteRequestPartition(partition)])
        reply: Any = self.stage.answers[self.ask(OffsetDeleteRequest(group, [at]), 0)]
        if reply.topics and reply.topics[0].partitions[0].error_code == ErrorCode.NONE:
            self._drop(lambda g, t, p: (g, t, p) == (group, topic, partition))

    @rule(topic=topics)
    def delete_topic(self, topic: str) -> None:
        self.stage.answers[self.ask(TopicsDeleted((topic,)), 0)] = None
        self.stage.tick(0)
        self._drop(lambda g, t, p: t == topic)

    # ---- time and loss ---------------------------------------------------------------------------------------------

    @rule(ms=st.sampled_from([0, 1, 500, 9_999, 20_000]))
    def wait(self, ms: int) -> None:
        self.stage.tick(ms)
        self.learn()

    @rule()
    def restart(self) -> None:
        self.stage.restart()
        self.learn()

    # ---- promises --------------------------------------------------------------------------------------------------

    @invariant()
    def durable_state_is_the_logs(self) -> None:
        self.stage.check()

    @invariant()
    def committed_offsets_are_the_twins(self) -> None:
        """But for those that expired: the twin knows no time, so only what is there must be the same."""
        for group in ("g", "h"):
            body = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group, topics=None)])
            reply: Any = self.stage.answers[self.ask(body, 8)]
            found = {
                (group, topic.name, each.partition_index): each.committed_offset
                for topic in reply.groups[0].topics
                for each in topic.partitions
            }
            known = {key: value for key, (value, _) in self.offsets.items() if key[0] == group}
            if self.stage.now < 1_000_000 + HOUR_MS:
                assert found == known
            else:
                assert found.items() <= known.items()
                self._drop(lambda g, t, p, group=group, found=found: g == group and (g, t, p) not in found)

    @invariant()
    def one_assignment_per_member_and_generation(self) -> None:
        """Whatever was answered of one generation of a group is part of one assignment. A group that went and came
        again counts its generations anew."""
        alive: Any = self.stage.shard.image()
        self.assigned = {key: value for key, value in self.assigned.items() if key[0] in alive[0]}
        for ticket, (group, generation, member_id) in list(self.syncs.items()):
            reply = self.stage.answers.get(ticket)
            if isinstance(reply, SyncGroupResponse):
                del self.syncs[ticket]
                if reply.error_code == ErrorCode.NONE:
                    of_generation = self.assigned.setdefault((group, generation), {})
                    assert of_generation.setdefault(member_id, reply.assignment) == reply.assignment

    def teardown(self) -> None:
        self.stage.tick(HOUR_MS)
        self.learn()
        assert not self.stage.waiting(), "someone waits for ever"
        self.stage.check()


TestCoordinator = Coordinator.TestCase
TestCoordinator.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
