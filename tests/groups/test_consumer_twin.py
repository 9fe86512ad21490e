"""Consumer groups under any order of joins, heartbeats, lost answers, restarts and changes of topics.

The twins are the members themselves: each keeps what it was told, as a client does. What must hold at every step: two
members that the coordinator knows never both own a partition; epochs never fall; the log gives the same state again.
Once everybody goes on, every partition that somebody subscribes to has one owner.
"""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ottla.protocol.errors import ErrorCode
from tests.harness.groups.consumer_stage import ConsumerStage, Player

SUBSCRIPTIONS = st.sampled_from([("t",), ("u",), ("t", "u"), ("t", "later"), ()])
MEMBERS = [f"m{n}" for n in range(5)]


class Groups(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.stage = ConsumerStage(t=5, u=3)
        self.epochs = (0, 0)
        self.given: dict[tuple[tuple[bytes, int], str], int] = {}

    def players(self) -> dict[str, Player]:
        return self.stage.players

    # ---- what may happen -------------------------------------------------------------------------------------------

    @rule(member=st.sampled_from(MEMBERS), topics=SUBSCRIPTIONS)
    def joins(self, member: str, topics: tuple[str, ...]) -> None:
        if member not in self.players():
            self.stage.join(member, *(topics or ("t",)))

    @rule(data=st.data(), lets_go=st.booleans())
    @precondition(lambda self: self.players())
    def goes_on(self, data: st.DataObject, lets_go: bool) -> None:
        self.stage.beat(data.draw(st.sampled_from(sorted(self.players()))), lets_go=lets_go)

    @rule(data=st.data(), topics=SUBSCRIPTIONS)
    @precondition(lambda self: self.players())
    def subscribes_anew(self, data: st.DataObject, topics: tuple[str, ...]) -> None:
        player = self.players()[data.draw(st.sampled_from(sorted(self.players())))]
        player.topics, player.says_all = topics, True
        self.stage.beat(player.member_id)

    @rule(data=st.data())
    @precondition(lambda self: self.players())
    def does_not_hear_the_answer(self, data: st.DataObject) -> None:
        player = self.players()[data.draw(st.sampled_from(sorted(self.players())))]
        self.stage.reply(player.request("g"))
        player.says_all = True

    @rule(data=st.data())
    @precondition(lambda self: self.players())
    def leaves(self, data: st.DataObject) -> None:
        self.stage.leave(data.draw(st.sampled_from(sorted(self.players()))))

    @rule(data=st.data())
    @precondition(lambda self: self.players())
    def begins_again(self, data: st.DataObject) -> None:
        player = self.players()[data.draw(st.sampled_from(sorted(self.players())))]
        player.begin_again()

    @rule(ms=st.sampled_from([1, 1_000, 30_000, 61_000]))
    def time_passes(self, ms: int) -> None:
        self.stage.tick(ms)

    @rule(interval_ms=st.sampled_from([0, 1_000]))
    def assigns_every(self, interval_ms: int) -> None:
        self.stage.timing(assignment_interval_ms=interval_ms)

    @rule()
    def restarts(self) -> None:
        self.stage.restart()

    @rule(name=st.sampled_from(["t", "u", "later"]))
    def grows(self, name: str) -> None:
        _, partitions = self.stage.around.topics.get(name, (b"", 0))
        if partitions < 9:
            self.stage.topic(name, partitions + 1)

    @rule(name=st.sampled_from(["u", "later"]))
    def deletes(self, name: str) -> None:
        if name in self.stage.around.topics:
            self.stage.delete_topic(name)

    # ---- what must hold --------------------------------------------------------------------------------------------

    @invariant()
    def a_partition_has_one_owner(self) -> None:
        group = self.stage.shard.consumer.of("g")
        known = {} if group is None else group.members
        owners: dict[tuple[bytes, int], str] = {}
        for member, player in sorted(self.players().items()):
            if member not in known or player.epoch == 0:
                continue  # it is fenced at its next heartbeat, or owns nothing
            for place in player.owned:
                assert place not in owners, f"{place} is owned by {owners[place]} and {member}"
                owners[place] = member

    @invariant()
    def what_is_kept_keeps_its_epoch(self) -> None:
        """KIP-1251: as long as a member is to keep a partition, its assignment epoch is that of when it got it."""
        group = self.stage.shard.consumer.of("g")
        known = {} if group is None else group.members
        given = {} if group is None else {(place, member): epoch for place, member, epoch in group.ownership()}
        for kept in given.keys() & self.given.keys():
            assert given[kept] == self.given[kept], f"{kept} was given in {self.given[kept]}, now {given[kept]}"
        self.given = {kept: epoch for kept, epoch in given.items() if kept[0] in known[kept[1]].assigned}

    @invariant()
    def epochs_never_fall(self) -> None:
        group = self.stage.shard.consumer.of("g")
        if group is not None:
            epochs = (group.epoch, group.assignment_epoch)
            assert epochs[0] >= self.epochs[0], "the group's epoch fell"
            assert epochs[1] >= self.epochs[1], "the assignment's epoch fell"
            self.epochs = epochs

    @invariant()
    def the_log_gives_the_same_again(self) -> None:
        self.stage.check()

    def teardown(self) -> None:
        stage = self.stage
        stage.timing(assignment_interval_ms=0)
        for _ in range(10):  # whoever is gone is out
            for member in sorted(self.players()):
                stage.beat(member)
            stage.tick(5_000)
        stage.rest()
        self.a_partition_has_one_owner()
        names = {name for player in self.players().values() for name in player.topics}
        wanted = {
            (topic_id, index)
            for name, (topic_id, count) in stage.around.topics.items()
            if name in names
            for index in range(count)
        }
        owned = {place for player in self.players().values() for place in player.owned}
        assert owned == wanted, "not everything is read"
        if self.players():
            assert stage.described().group_state == "Stable"
        assert all(player.answer.error_code == ErrorCode.NONE for player in self.players().values())


TestGroups = Groups.TestCase
TestGroups.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
