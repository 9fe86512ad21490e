"""Plays transcripts of a group coordinator: one request or event a line, its records and answers as lines.

    settings initial_rebalance_delay_ms=3000        a new shard with these settings
    join a v9 group=g protocols=range:t1|rr:t1      the client `a` asks; `member=` `instance=` `session=` `rebalance=`
    sync a v5 group=g member=m1 gen=1 assign=m1:x   heartbeat, leave, commit, fetch, describe, list, delete, odelete
    tick 3000                                       time passes
    restart                                         the shard comes back from its log
    txn 7 group=g topics=t1:0:5                     offsets of a transaction; `marker 7 commit|abort` ends it
    topic-deleted t1
    event heartbeat a v4 gen=1 member=m1            something to try later
    given Stable                                    what follows brings a new shard into this state ...
    try-all                                         ... and each event happens to a copy: its answer, the state after

Answers stand as `a: what`, records as `log: what`, in the order in which they came. Member ids are random, so they are
named m1, m2 ... in the order in which they were made; a name in a request stands for the id.
"""

import re
from typing import Any

from ottla.groups.classic.records import GroupRecord
from ottla.groups.offset_records import CommittedOffset, OffsetRecord, encode_offset
from ottla.groups.records import decode
from ottla.groups.settings import GroupSettings
from ottla.groups.shard import TopicsDeleted
from ottla.machine import AppliedBatch, Decision
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages import (
    delete_groups,
    describe_groups,
    heartbeat,
    join_group,
    leave_group,
    list_groups,
    offset_commit,
    offset_delete,
    offset_fetch,
    sync_group,
)
from ottla.protocol.messages.consumer_protocol_subscription import ConsumerProtocolSubscription
from tests.harness.groups.group_stage import Marker, Stage

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Player:
    def __init__(self) -> None:
        self.events: list[str] = []
        self.lines: list[str] = []
        self.begin(GroupSettings(initial_rebalance_delay_ms=0))

    def begin(self, settings: GroupSettings) -> None:
        self.stage = Stage(settings)
        self.names: dict[str, str] = {}
        self.clients: dict[int, str] = {}
        self.seen_batches = 0
        self.seen_answers = 0

    # ---- lines -----------------------------------------------------------------------------------------------------

    def play(self, line: str) -> list[str]:
        verb, _, rest = line.partition(" ")
        if verb == "event":
            self.events.append(rest)
            return []
        if verb == "given":
            self.begin(GroupSettings(initial_rebalance_delay_ms=0))
            self.lines.clear()
            return []
        if verb == "try-all":
            return [self._tried(event) for event in self.events]
        self.lines.append(line)
        self._do(line)
        return self._news()

    def _tried(self, event: str) -> str:
        copy = Player()
        for earlier in self.lines:
            copy.play(earlier)
        return f"{event} | {'; '.join(copy.play(event)) or 'nothing'} -> {copy.state()}"

    def state(self) -> str:
        """The state of group g."""
        ticket = self.stage.ask(describe_groups.DescribeGroupsRequest(groups=["g"]), 5)
        reply: Any = self.stage.answers[ticket]
        return reply.groups[0].group_state

    def _do(self, line: str) -> None:
        verb, *words = line.split()
        options = dict(word.split("=", 1) for word in words if "=" in word)
        plain = [word for word in words if "=" not in word]
        match verb:
            case "settings":
                values = {name: int(value) for name, value in options.items()}
                self.begin(GroupSettings(**{"initial_rebalance_delay_ms": 0, **values}))
            case "tick":
                self.stage.tick(int(plain[0]))
            case "restart":
                self.stage.restart()
            case "marker":
                self.stage.marker(int(plain[0]), plain[1] == "commit")
            case "txn":
                self._transaction(int(plain[0]), options)
            case "topic-deleted":
                ticket = self.stage.ask(TopicsDeleted(tuple(plain)), 0)
                self.stage.answers[ticket] = None
                self.clients[ticket] = ""
                self.stage.tick(0)
            case _:
                body = getattr(self, f"_{verb.replace('-', '_')}")(options, int(plain[1][1:]))
                client = plain[0]
                self.clients[self.stage.next_ticket] = client
                self.stage.ask(body, int(plain[1][1:]), client_id=options.get("client", client))
        self.stage.check()

    def _news(self) -> list[str]:
        lines: list[str] = []
        for batch in self.stage.log[self.seen_batches :]:
            if isinstance(batch, AppliedBatch):
                lines += [f"log: {self._record(each)}" for each in batch.records]
            else:
                assert isinstance(batch, Marker)
                lines.append(f"log: marker {batch.producer_id} {'commit' if batch.committed else 'abort'}")
        self.seen_batches = len(self.stage.log)
        answered = list(self.stage.answers.items())
        for ticket, reply in answered[self.seen_answers :]:
            if reply is not None:
                lines.append(f"{self.clients[ticket]}: {self._reply(reply)}")
        self.seen_answers = len(answered)
        lines += [f"note: {note}" for note in self.stage.notes]
        self.stage.notes.clear()
        return [self._named(line) for line in lines]

    # ---- member ids ------------------------------------------------------------------------------------------------

    def _named(self, line: str) -> str:
        def name(match: re.Match[str]) -> str:
            found = self.names.get(match[0])
            if found is None:
                found = self.names[match[0]] = f"m{len(self.names) + 1}"
            return found

        return re.sub(rf"[A-Za-z0-9_.]*-?{_UUID.pattern}", name, line)

    def _id(self, name: str) -> str:
        return next((member_id for member_id, known in self.names.items() if known == name), name)

    # ---- requests --------------------------------------------------------------------------------------------------

    def _join(self, options: dict[str, str], version: int) -> Any:
        protocols: list[join_group.JoinGroupRequestProtocol] = []
        for each in options.get("protocols", "range:t1").split("|"):
            name, _, topics = each.partition(":")
            if name:
                protocols.append(join_group.JoinGroupRequestProtocol(name, _subscription(topics)))
        return join_group.JoinGroupRequest(
            group_id=options.get("group", "g"),
            session_timeout_ms=int(options.get("session", 10_000)),
            rebalance_timeout_ms=int(options.get("rebalance", 60_000)),
            member_id=self._id(options.get("member", "")),
            group_instance_id=options.get("instance"),
            protocol_type=options.get("type", "consumer"),
            protocols=protocols,
        )

    def _sync(self, options: dict[str, str], version: int) -> Any:
        assignments = [each.partition(":") for each in options.get("assign", "").split("|") if each]
        return sync_group.SyncGroupRequest(
            group_id=options.get("group", "g"),
            generation_id=int(options["gen"]),
            member_id=self._id(options.get("member", "")),
            group_instance_id=options.get("instance"),
            protocol_type=options.get("type", "consumer") or None,
            protocol_name=options.get("protocol", "range") or None,
            assignments=[
                sync_group.SyncGroupRequestAssignment(self._id(name), what.encode()) for name, _, what in assignments
            ],
        )

    def _heartbeat(self, options: dict[str, str], version: int) -> Any:
        return heartbeat.HeartbeatRequest(
            options.get("group", "g"),
            int(options.get("gen", 1)),
            self._id(options.get("member", "")),
            options.get("instance"),
        )

    def _leave(self, options: dict[str, str], version: int) -> Any:
        """`members=m1,m2@instance,@instance`."""
        members = [each.partition("@") for each in options.get("members", "").split(",")]
        return leave_group.LeaveGroupRequest(
            group_id=options.get("group", "g"),
            member_id=self._id(members[0][0]),
            members=[leave_group.MemberIdentity(self._id(name), instance or None) for name, _, instance in members],
        )

    def _commit(self, options: dict[str, str], version: int) -> Any:
        """`topics=t1:0:5,t1:1:6` are topic, partition and offset."""
        topics: dict[str, list[offset_commit.OffsetCommitRequestPartition]] = {}
        for each in options.get("topics", "t1:0:5").split(","):
            topic, partition, offset = each.split(":")
            topics.setdefault(topic, []).append(
                offset_commit.OffsetCommitRequestPartition(
                    int(partition),
                    int(offset),
                    int(options.get("epoch", -1)),
                    options.get("metadata", "") * int(options.get("times", 1)),
                )
            )
        return offset_commit.OffsetCommitRequest(
            group_id=options.get("group", "g"),
            generation_id_or_member_epoch=int(options.get("gen", -1)),
            member_id=self._id(options.get("member", "")),
            retention_time_ms=int(options.get("retention", -1)),
            group_instance_id=options.get("instance"),
            topics=[offset_commit.OffsetCommitRequestTopic(name, partitions=at) for name, at in topics.items()],
        )

    def _fetch(self, options: dict[str, str], version: int) -> Any:
        """`topics=t1:0,t1:1`; without topics all of them. `stable=1`."""
        topics: dict[str, list[int]] = {}
        for each in filter(None, options.get("topics", "").split(",")):
            topic, _, partition = each.partition(":")
            topics.setdefault(topic, []).append(int(partition))
        asked = [
            offset_fetch.OffsetFetchRequestTopics(name, partition_indexes=indexes) for name, indexes in topics.items()
        ]
        groups = [
            offset_fetch.OffsetFetchRequestGroup(group, topics=asked if "topics" in options else None)
            for group in options.get("group", "g").split(",")
        ]
        return offset_fetch.OffsetFetchRequest(groups=groups, require_stable=options.get("stable") == "1")

    def _describe(self, options: dict[str, str], version: int) -> Any:
        return describe_groups.DescribeGroupsRequest(groups=options.get("group", "g").split(","))

    def _list(self, options: dict[str, str], version: int) -> Any:
        return list_groups.ListGroupsRequest(
            states_filter=[each for each in options.get("states", "").split(",") if each],
            types_filter=[each for each in options.get("types", "").split(",") if each],
        )

    def _delete(self, options: dict[str, str], version: int) -> Any:
        return delete_groups.DeleteGroupsRequest(options.get("group", "g").split(","))

    def _odelete(self, options: dict[str, str], version: int) -> Any:
        topics: dict[str, list[offset_delete.OffsetDeleteRequestPartition]] = {}
        for each in options.get("topics", "t1:0").split(","):
            topic, _, partition = each.partition(":")
            topics.setdefault(topic, []).append(offset_delete.OffsetDeleteRequestPartition(int(partition)))
        return offset_delete.OffsetDeleteRequest(
            options.get("group", "g"), [offset_delete.OffsetDeleteRequestTopic(n, p) for n, p in topics.items()]
        )

    def _transaction(self, producer_id: int, options: dict[str, str]) -> None:
        records = []
        for each in options["topics"].split(","):
            topic, partition, offset = each.split(":")
            committed = CommittedOffset(int(offset), -1, "", self.stage.now)
            records.append(encode_offset(options.get("group", "g"), topic, int(partition), committed))
        self.stage.transactional(producer_id, Decision(tuple(records)))

    # ---- what came of it -------------------------------------------------------------------------------------------

    def _record(self, each: Any) -> str:
        record = decode(each.key, each.value, each.offset)
        match record:
            case OffsetRecord(group, topic, partition, None):
                return f"offset {group} {topic}-{partition} deleted"
            case OffsetRecord(group, topic, partition, committed):
                assert committed is not None
                expires = committed.expire_timestamp_ms
                return f"offset {group} {topic}-{partition} {committed.offset}" + (
                    f" expires in {expires - self.stage.now} ms" if expires >= 0 else ""
                )
            case GroupRecord(group, None):
                return f"group {group} deleted"
            case GroupRecord(group, stored):
                assert stored is not None
                members = " ".join(
                    f"{member.member_id}{'@' + member.group_instance_id if member.group_instance_id else ''}"
                    f"={member.assignment.decode()}"
                    for member in stored.members
                )
                return (
                    f"group {group} gen={stored.generation} {stored.protocol_type or '-'}/{stored.protocol or '-'}"
                    f" leader={stored.leader or '-'} [{members}]"
                )
            case _:
                return str(record)

    def _reply(self, reply: Any) -> str:
        match reply:
            case join_group.JoinGroupResponse():
                if reply.error_code:
                    return f"{_error(reply)} member={reply.member_id or '-'}"
                members = " ".join(member.member_id for member in reply.members)
                return (
                    f"joined gen={reply.generation_id} {reply.protocol_type}/{reply.protocol_name}"
                    f" member={reply.member_id} leader={reply.leader}"
                    + (f" [{members}]" if members else "")
                    + (" skip_assignment" if reply.skip_assignment else "")
                )
            case sync_group.SyncGroupResponse():
                if reply.error_code:
                    return _error(reply)
                return f"assigned {reply.protocol_type}/{reply.protocol_name} {reply.assignment.decode() or '-'}"
            case leave_group.LeaveGroupResponse():
                members = " ".join(
                    f"{member.member_id or '-'}{'@' + member.group_instance_id if member.group_instance_id else ''}"
                    f"={ErrorCode(member.error_code).name}"
                    for member in reply.members
                )
                return f"left {_error(reply)} {members}".rstrip()
            case offset_commit.OffsetCommitResponse() | offset_delete.OffsetDeleteResponse():
                top = getattr(reply, "error_code", 0)
                return (ErrorCode(top).name if top else "") + " ".join(
                    f"{topic.name}-{each.partition_index}={ErrorCode(each.error_code).name}"
                    for topic in reply.topics
                    for each in topic.partitions
                )
            case offset_fetch.OffsetFetchResponse():
                return " ".join(self._fetched(group) for group in reply.groups)
            case describe_groups.DescribeGroupsResponse():
                return " ".join(self._described(group) for group in reply.groups)
            case list_groups.ListGroupsResponse():
                groups = " ".join(
                    f"{group.group_id}/{group.protocol_type or '-'}/{group.group_state}/{group.group_type}"
                    for group in reply.groups
                )
                return groups or "no groups"
            case delete_groups.DeleteGroupsResponse():
                return " ".join(f"{each.group_id}={ErrorCode(each.error_code).name}" for each in reply.results)
            case _:
                return _error(reply)

    def _fetched(self, group: offset_fetch.OffsetFetchResponseGroup) -> str:
        if group.error_code:
            return f"{group.group_id}: {ErrorCode(group.error_code).name}"
        offsets = " ".join(
            f"{topic.name}-{each.partition_index}="
            + (ErrorCode(each.error_code).name if each.error_code else str(each.committed_offset))
            for topic in group.topics
            for each in topic.partitions
        )
        return f"{group.group_id}: {offsets or 'nothing'}"

    def _described(self, group: describe_groups.DescribedGroup) -> str:
        error = f" {ErrorCode(group.error_code).name} ({group.error_message})" if group.error_code else ""
        members = " ".join(
            f"{member.member_id}@{member.client_id}{member.client_host}={member.member_assignment.decode() or '-'}"
            + (" with metadata" if member.member_metadata else "")
            for member in group.members
        )
        return (
            f"{group.group_id} {group.group_state}{error} {group.protocol_type or '-'}/{group.protocol_data or '-'}"
            f" [{members}]"
        )


def _error(reply: Any) -> str:
    return ErrorCode(reply.error_code).name


def _subscription(topics: str) -> bytes:
    """`t1,t2`, or `!` for what is no subscription."""
    if topics == "!":
        return b"?"
    out = bytearray(b"\x00\x00")
    ConsumerProtocolSubscription(topics=[topic for topic in topics.split(",") if topic]).encode(out, 0)
    return bytes(out)
