"""The rules of one connection, against a plain twin and one by one."""

from collections import deque
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ottla.broker.channel import REQUESTS_IN_FLIGHT_MAX, Owed
from ottla.broker.effects import Parked
from tests.harness.node_stage import channel_of

PRODUCE, FETCH = 0, 1


def frame(api_key: int) -> bytes:
    return api_key.to_bytes(2, "big") + bytes(6)


def sent(leaving: object) -> list[bytes]:
    assert isinstance(leaving, list | tuple)
    return [bytes(part) for owed in leaving for part in owed.parts]


def test_one_request_at_a_time_but_produce_behind_produce() -> None:
    channel = channel_of(1)
    assert channel.may_serve(frame(FETCH))
    channel.served(FETCH, Parked(1))
    assert not channel.may_serve(frame(FETCH))
    assert not channel.may_serve(frame(PRODUCE))
    assert sent(channel.answered(1, [b"one"])) == [b"one"]
    channel.served(PRODUCE, Parked(2))
    assert channel.may_serve(frame(PRODUCE))
    assert not channel.may_serve(frame(FETCH))
    channel.check()


def test_nothing_is_served_behind_a_produce_that_goes_on() -> None:
    channel = channel_of(1)
    channel.served(PRODUCE, Parked(1))
    channel.served(PRODUCE, Parked(2, goes_on=True))
    assert not channel.may_serve(frame(PRODUCE))
    channel.answered(1, [b"one"])
    assert not channel.may_serve(frame(PRODUCE))
    channel.answered(2, [b"two"])
    assert channel.may_serve(frame(PRODUCE))
    channel.check()


def test_a_request_that_is_answered_at_once_waits_for_those_before_it() -> None:
    channel = channel_of(1)
    channel.served(PRODUCE, Parked(1))
    assert sent(channel.served(PRODUCE, [b"two"])) == []
    assert sent(channel.served(PRODUCE, Parked(3))) == []
    assert sent(channel.answered(3, [b"three"])) == []
    assert sent(channel.answered(1, [b"o", b"ne"])) == [b"o", b"ne", b"two", b"three"]
    assert not channel.waits


def test_a_request_without_an_answer_owes_none() -> None:
    channel = channel_of(1)
    assert sent(channel.served(PRODUCE, None)) == []
    assert not channel.waits
    channel.served(PRODUCE, Parked(1))
    assert sent(channel.answered(1, [])) == []
    assert not channel.waits


def test_an_answer_that_nobody_waits_for_is_known_for_one() -> None:
    channel = channel_of(1)
    channel.served(PRODUCE, Parked(1))
    channel.served(PRODUCE, Parked(2))
    assert channel.answered(3, [b"what?"]) is None
    assert channel.answered(2, [b"two"]) == []
    assert channel.answered(2, [b"again"]) is None
    channel.close()
    assert channel.answered(1, [b"too late"]) is None


def test_no_more_are_in_flight_than_may_be() -> None:
    channel = channel_of(1)
    for ticket in range(REQUESTS_IN_FLIGHT_MAX):
        assert channel.may_serve(frame(PRODUCE))
        channel.served(PRODUCE, Parked(ticket))
    assert not channel.may_serve(frame(PRODUCE))
    channel.answered(0, [])
    assert channel.may_serve(frame(PRODUCE))


@pytest.mark.parametrize("answer", [None, Parked(7), [b"found"]], ids=["nothing", "later", "at once"])
def test_a_request_that_is_read_beside_the_loop_holds_the_others_up(answer: Parked | list[bytes] | None) -> None:
    channel = channel_of(1)
    beside = channel.owe(FETCH)
    assert not channel.may_serve(frame(PRODUCE))
    leaving = channel.read(beside, answer)
    assert sent(leaving) == (answer if isinstance(answer, list) else [])
    assert channel.waits is isinstance(answer, Parked)
    channel.check()


def test_nothing_is_served_to_a_client_that_does_not_read_nor_while_muted_nor_at_the_end() -> None:
    channel = channel_of(1)
    for halt, go_on in (
        (lambda: channel.note_unsent(True), lambda: channel.note_unsent(False)),
        (lambda: channel.mute(True), lambda: channel.mute(False)),
        (channel.close, None),
    ):
        halt()
        channel.check()
        assert channel.waits
        assert not channel.may_serve(frame(PRODUCE))
        if go_on is not None:
            go_on()
            assert channel.may_serve(frame(PRODUCE))
            assert not channel.waits


@dataclass
class Twin:
    """What was asked and answered, as plain lists."""

    order: list[int] = field(default_factory=list)
    answers: dict[int, bytes] = field(default_factory=dict)
    left: list[bytes] = field(default_factory=list)

    def due(self) -> list[bytes]:
        """Every answer that must have left by now."""
        due: list[bytes] = []
        for number in self.order:
            if number not in self.answers:
                break
            due.append(self.answers[number])
        return due


class ChannelAgainstTwin(RuleBasedStateMachine):
    """Requests are answered at once, later, in any order, or not at all; some are read beside the loop."""

    def __init__(self) -> None:
        super().__init__()
        self.channel = channel_of(1)
        self.twin = Twin()
        self.waiting: list[int] = []
        self.beside: deque[tuple[int, Owed]] = deque()
        self.asked = 0

    def _sent(self, leaving: object) -> None:
        self.twin.left += sent(leaving)

    @rule(key=st.sampled_from((PRODUCE, PRODUCE, FETCH)), how=st.sampled_from(("now", "later", "never", "beside")))
    def ask(self, key: int, how: str) -> None:
        owed = self.channel.owed
        wanted = not owed or (key == PRODUCE and owed[-1].api_key == PRODUCE and len(owed) < REQUESTS_IN_FLIGHT_MAX)
        assert self.channel.may_serve(frame(key)) == (wanted and not self.channel.halted)
        if not self.channel.may_serve(frame(key)):
            return
        self.asked += 1
        number = self.asked
        if how == "never":
            self._sent(self.channel.served(key, None))
            return
        self.twin.order.append(number)
        if how == "beside":
            self.beside.append((number, self.channel.owe(key)))
        elif how == "later":
            self.waiting.append(number)
            self._sent(self.channel.served(key, Parked(number)))
        else:
            self.twin.answers[number] = b"%d" % number
            self._sent(self.channel.served(key, [b"%d" % number]))

    @precondition(lambda self: self.waiting)
    @rule(which=st.integers(0, 10))
    def answer(self, which: int) -> None:
        number = self.waiting.pop(which % len(self.waiting))
        self.twin.answers[number] = b"%d" % number
        self._sent(self.channel.answered(number, [b"%d" % number]))

    @precondition(lambda self: self.beside)
    @rule(parks=st.booleans())
    def read(self, parks: bool) -> None:
        number, owed = self.beside.popleft()
        if parks:
            self.waiting.append(number)
            self._sent(self.channel.read(owed, Parked(number)))
        else:
            self.twin.answers[number] = b"%d" % number
            self._sent(self.channel.read(owed, [b"%d" % number]))

    @rule(unsent=st.booleans())
    def take(self, unsent: bool) -> None:
        self.channel.note_unsent(unsent)

    @rule(muted=st.booleans())
    def mute(self, muted: bool) -> None:
        self.channel.mute(muted)

    @invariant()
    def every_answer_leaves_in_its_turn(self) -> None:
        self.channel.check()
        assert self.twin.left == self.twin.due()


ChannelAgainstTwin.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestChannelAgainstTwin = ChannelAgainstTwin.TestCase
