"""Holds one classic group: its members, their protocols, and the state of its rebalance.

It holds members, generations, votes and parked requests. `rebalance` keeps the deadlines, and `requests` has the rules
of requests.

The states, and what ends each:

    Empty                no members; a join begins a rebalance
    PreparingRebalance   gathers the members of generation + 1: all have joined, or a deadline
    CompletingRebalance  the leader has the members' metadata; its SyncGroup brings the assignments
    Stable               every member has its assignment; a join, a leave, a dead member begins a rebalance
    Dead                 there is no such group (the state is never entered, only reported)

Empty and Stable are durable: replay of a record restores them. The two states between are soft, like `pending_members`,
`joins` and `syncs`. They are lost with the shard, and the group then has the state of its last record.

Invariants (see `check`): the leader is a member; a static member's instance id maps to that member only; only members
have parked requests; in Empty and Stable the group is equal to its record.

Source: Kafka's ClassicGroup.java, KIP-345.
"""

from enum import Enum

from ottla.groups.classic.records import StoredGroup, StoredMember
from ottla.machine import Ticket, WallMillis
from ottla.protocol.errors import ErrorCode, MalformedFrameError
from ottla.protocol.messages.consumer_protocol_subscription import ConsumerProtocolSubscription

CONSUMER_PROTOCOL_TYPE = "consumer"

Protocols = tuple[tuple[str, bytes], ...]
"""(name, metadata) of each protocol a member speaks, in its order of preference."""


class GroupState(Enum):
    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class Member:
    """One member. `is_new`: its first JoinGroup has not been answered, so it has no member id for heartbeats yet."""

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "group_instance_id",
        "is_new",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
    )

    def __init__(
        self,
        member_id: str,
        group_instance_id: str | None,
        client_id: str,
        client_host: str,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocols: Protocols,
        assignment: bytes = b"",
    ) -> None:
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocols = protocols
        self.assignment = assignment
        self.is_new = False

    def metadata(self, protocol: str) -> bytes:
        """The member's metadata for one of its protocols."""
        return next(metadata for name, metadata in self.protocols if name == protocol)

    def is_stored_as(self, stored: StoredMember, protocol: str) -> bool:
        """Whether `stored` equals this member, apart from the assignment."""
        return any(name == protocol for name, _ in self.protocols) and stored == self.stored(
            protocol, stored.assignment
        )

    def stored(self, protocol: str, assignment: bytes) -> StoredMember:
        return StoredMember(
            self.member_id,
            self.group_instance_id,
            self.client_id,
            self.client_host,
            self.rebalance_timeout_ms,
            self.session_timeout_ms,
            self.metadata(protocol),
            assignment,
        )


def _elect(members: list[Member]) -> str:
    spoken = [{name for name, _ in member.protocols} for member in members]
    candidates = set[str].intersection(*spoken)
    votes: dict[str, int] = {}
    for member in members:
        vote = next(name for name, _ in member.protocols if name in candidates)
        votes[vote] = votes.get(vote, 0) + 1
    return max(votes, key=votes.__getitem__)


class Group:
    """A classic group. `protocol_type` None: it never had a member and only commits offsets ("simple" group).

    `joins` holds the parked JoinGroup of each member with the version it came in, `syncs` the parked SyncGroup.
    `arriving` is the successor of a static member, until the record that names it is applied.
    """

    __slots__ = (
        "_speakers",
        "_subscribed",
        "_subscribed_known",
        "arriving",
        "generation",
        "group_id",
        "initial_delay_ms",
        "initial_remaining_ms",
        "is_initial_rebalance",
        "joins",
        "leader",
        "members",
        "new_member_added",
        "pending_members",
        "pending_syncs",
        "protocol_name",
        "protocol_type",
        "state",
        "state_timestamp_ms",
        "static_members",
        "stored",
        "syncs",
    )

    def __init__(self, group_id: str, state_timestamp_ms: WallMillis) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.state_timestamp_ms = state_timestamp_ms
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.static_members: dict[str, str] = {}
        self.stored: StoredGroup | None = None

        self.pending_members: dict[str, None] = {}
        self.pending_syncs: dict[str, None] = {}
        self.joins: dict[str, tuple[Ticket, int]] = {}
        self.syncs: dict[str, Ticket] = {}
        self.arriving: Member | None = None
        self.is_initial_rebalance = False
        self.new_member_added = False
        self.initial_delay_ms = 0
        self.initial_remaining_ms = 0

        self._speakers: dict[str, int] = {}
        self._subscribed: frozenset[str] | None = None
        self._subscribed_known = True

    # ---- members ---------------------------------------------------------------------------------------------------

    def add(self, member: Member) -> None:
        assert member.member_id not in self.members, member.member_id
        if member.group_instance_id is not None:
            assert member.group_instance_id not in self.static_members, member.group_instance_id
            self.static_members[member.group_instance_id] = member.member_id
        self.members[member.member_id] = member
        self._count(member, 1)
        if self.leader is None:
            self.leader = member.member_id
        self.pending_members.pop(member.member_id, None)

    def remove(self, member_id: str) -> Member | None:
        """Remove a member (or a pending one). Its parked requests must have been answered before."""
        assert member_id not in self.joins, member_id
        assert member_id not in self.syncs, member_id
        self.pending_members.pop(member_id, None)
        self.pending_syncs.pop(member_id, None)
        member = self.members.pop(member_id, None)
        if member is not None:
            self._count(member, -1)
            if member.group_instance_id is not None:
                del self.static_members[member.group_instance_id]
        if self.leader == member_id:
            self.leader = next(iter(self.members), None)
        return member

    def replace(self, old: Member, new: Member) -> None:
        """Replace a static member that came back under another member id, also as the leader."""
        assert old.group_instance_id is not None
        assert old.group_instance_id == new.group_instance_id
        led = self.leader == old.member_id
        self.remove(old.member_id)
        self.add(new)
        if led:
            self.leader = new.member_id

    def speak(self, member: Member, protocols: Protocols) -> None:
        """Replace the member's protocols and metadata."""
        self._count(member, -1)
        member.protocols = protocols
        self._count(member, 1)

    def _count(self, member: Member, change: int) -> None:
        for name in dict(member.protocols):
            self._speakers[name] = self._speakers.get(name, 0) + change

    def static_member(self, group_instance_id: str | None) -> Member | None:
        member_id = None if group_instance_id is None else self.static_members.get(group_instance_id)
        return None if member_id is None else self.members[member_id]

    def validate_member(self, member_id: str, group_instance_id: str | None) -> ErrorCode:
        """NONE, UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID if another member id now has the instance id."""
        if group_instance_id is not None:
            holder = self.static_members.get(group_instance_id)
            if holder is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if holder != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    # ---- what the members agree on ---------------------------------------------------------------------------------

    def supports(self, protocol_type: str, protocols: Protocols) -> bool:
        """Whether a member that offers these may join: it must share one protocol with all others."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and bool(protocols)
        size = len(self.members)
        return self.protocol_type == protocol_type and any(self._speakers.get(name, 0) == size for name, _ in protocols)

    def speaks_one_protocol(self) -> bool:
        """Whether all members share a protocol."""
        return any(count == len(self.members) for count in self._speakers.values())

    def select_protocol(self) -> str:
        """Each member votes for the first of its protocols that all speak; the first vote breaks a tie."""
        return _elect(list(self.members.values()))

    def protocol_with(self, successor: Member) -> str:
        """The protocol that would be selected if `successor` replaced its static member."""
        instance_id = successor.group_instance_id
        stay = [member for member in self.members.values() if member.group_instance_id != instance_id]
        return _elect([*stay, successor])

    def elect_joined_leader(self) -> bool:
        """Make sure that the leader is a member that has joined; False if no member has joined."""
        if self.leader is None:
            return False
        if self.leader not in self.joins:
            joined = next((member_id for member_id in self.members if member_id in self.joins), None)
            if joined is None:
                return False
            self.leader = joined
        return True

    def all_joined(self) -> bool:
        return len(self.joins) == len(self.members) and not self.pending_members

    def can_rebalance(self) -> bool:
        return self.state is not GroupState.PREPARING_REBALANCE

    def rebalance_timeout_ms(self) -> int:
        """The longest rebalance time-out of any member."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def begin_generation(self, wall_ms: WallMillis) -> None:
        """Begin the next generation, because all members have joined. Its leader now assigns."""
        self.generation += 1
        self.protocol_name = self.select_protocol()
        self._subscribed, self._subscribed_known = self._read_subscriptions(), True
        self.pending_syncs.clear()
        self.is_initial_rebalance = False
        self.enter(GroupState.COMPLETING_REBALANCE, wall_ms)

    def enter(self, state: GroupState, wall_ms: WallMillis) -> None:
        self.state = state
        self.state_timestamp_ms = wall_ms

    # ---- subscriptions ---------------------------------------------------------------------------------------------

    @property
    def is_consumer_group(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    def subscribed_topics(self) -> frozenset[str] | None:
        """The subscribed topics of the last generation's members; None if their metadata can't be read."""
        if not self._subscribed_known:
            self._subscribed, self._subscribed_known = self._read_subscriptions(), True
        return self._subscribed

    def is_subscribed_to(self, topic: str) -> bool:
        """Unreadable metadata of consumers counts as a subscription to everything."""
        topics = self.subscribed_topics()
        return self.is_consumer_group if topics is None else topic in topics

    def _read_subscriptions(self) -> frozenset[str] | None:
        if not self.is_consumer_group:
            return None
        if not self.members:
            return frozenset()
        if self.protocol_name is None:
            return None
        topics: set[str] = set()
        try:
            for member in self.members.values():
                # Version 0 is a prefix of all later ones. The two bytes of the version precede it.
                subscription, _ = ConsumerProtocolSubscription.decode(member.metadata(self.protocol_name), 2, 0)
                topics.update(subscription.topics)
        except MalformedFrameError:
            return None
        return frozenset(topics)

    # ---- the record ------------------------------------------------------------------------------------------------

    def image(self, assignments: dict[str, bytes]) -> StoredGroup:
        """This generation with these assignments (none is empty), in the form of its record."""
        assert self.protocol_name is not None
        name = self.protocol_name
        return StoredGroup(
            self.protocol_type or "",
            self.generation,
            name,
            self.leader,
            self.state_timestamp_ms,
            tuple(member.stored(name, assignments.get(member.member_id, b"")) for member in self.members.values()),
        )

    def image_with(self, successor: Member) -> StoredGroup:
        """The Stable group in which `successor` replaces the static member whose instance id it has."""
        assert self.protocol_name is not None
        assert successor.group_instance_id is not None
        name, replaced = self.protocol_name, self.static_members[successor.group_instance_id]
        members = [member for member in self.members.values() if member.member_id != replaced] + [successor]
        return StoredGroup(
            self.protocol_type or "",
            self.generation,
            name,
            successor.member_id if self.leader == replaced else self.leader,
            self.state_timestamp_ms,
            tuple(member.stored(name, member.assignment) for member in members),
        )

    def empty_image(self, generation: int, wall_ms: WallMillis) -> StoredGroup:
        """A generation without members."""
        return StoredGroup(self.protocol_type or "", generation, None, None, wall_ms, ())

    def adopt(self, stored: StoredGroup) -> None:
        """Apply a group's record, and keep its members' fields that the record does not contain.

        A rebalance that gathers generation + 1 continues. Only a record of that generation, or a group that was never
        created, ends it.
        """
        self.stored = stored
        if self.state is GroupState.PREPARING_REBALANCE and stored.generation <= self.generation:
            return
        self.state = GroupState.STABLE if stored.members else GroupState.EMPTY
        self.state_timestamp_ms = stored.state_timestamp_ms
        self.generation = stored.generation
        self.protocol_type = stored.protocol_type or None
        self.protocol_name = stored.protocol
        known, arriving = self.members, self.arriving
        self.members, self.static_members, self._speakers, self.arriving = {}, {}, {}, None
        for each in stored.members:
            member = known.get(each.member_id)
            if member is None and arriving is not None and arriving.member_id == each.member_id:
                member = arriving
            if member is None or not member.is_stored_as(each, stored.protocol or ""):
                member = self._restore(each, stored.protocol or "")
            member.assignment = each.assignment
            self.add(member)
        # A static member may have been replaced before it sent its SyncGroup.
        self.pending_syncs = {member_id: None for member_id in self.pending_syncs if member_id in self.members}
        self.leader = stored.leader
        self.is_initial_rebalance = False
        self._subscribed_known = False

    @staticmethod
    def _restore(stored: StoredMember, protocol: str) -> Member:
        return Member(
            stored.member_id,
            stored.group_instance_id,
            stored.client_id,
            stored.client_host,
            stored.rebalance_timeout_ms,
            stored.session_timeout_ms,
            ((protocol, stored.subscription),),
            stored.assignment,
        )

    # ---- invariants ------------------------------------------------------------------------------------------------

    def check(self) -> None:
        where = f"group {self.group_id} in {self.state.value}"
        assert self.state is not GroupState.DEAD, where
        assert (self.leader is None) == (not self.members), f"{where}: leader {self.leader}"
        assert self.leader is None or self.leader in self.members, f"{where}: leader {self.leader} is no member"
        statics = {m.group_instance_id: m.member_id for m in self.members.values() if m.group_instance_id is not None}
        assert statics == self.static_members, f"{where}: static members"
        assert all(member_id in self.members for member_id in (*self.joins, *self.syncs, *self.pending_syncs)), where
        assert not any(member_id in self.members for member_id in self.pending_members), f"{where}: pending members"
        speakers: dict[str, int] = {}
        for member in self.members.values():
            for name in dict(member.protocols):
                speakers[name] = speakers.get(name, 0) + 1
        assert speakers == {name: count for name, count in self._speakers.items() if count}, f"{where}: speakers"
        assert not self.joins or self.state is GroupState.PREPARING_REBALANCE, f"{where}: parked joins"
        assert not self.syncs or self.state is GroupState.COMPLETING_REBALANCE, f"{where}: parked syncs"
        if self.state is GroupState.EMPTY:
            assert not self.members, where
            assert self.stored is None or self.stored == self.empty_image(self.generation, self.state_timestamp_ms), (
                where
            )
        elif self.state is GroupState.STABLE:
            assert self.members, where
            assert self.stored == self.image({m.member_id: m.assignment for m in self.members.values()}), where
        elif self.state is GroupState.COMPLETING_REBALANCE:
            assert self.members, where
            assert self.leader not in self.syncs, f"{where}: the leader's assignment was not stored"
            assert all(m.member_id in self.syncs or m.member_id in self.pending_syncs for m in self.members.values())
