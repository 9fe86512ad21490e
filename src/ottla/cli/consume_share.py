"""`ottla consume --share`: a member of a share group at the keyboard.

Each printed record is accepted (done), released (delivered again), rejected (not delivered again), or acknowledged as
the user answers. If no records arrive, the command reports why.

A record is acknowledged after it was printed, and the command fetches only records that it will print, because each
fetch counts as a delivery. Records to be released are kept until the end. Otherwise the same records would return at
once, until they reach the delivery limit.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from ottla.cli.connection import matching, own_clients, plain_failures
from ottla.cli.output import CommandError, counted, say
from ottla.cli.printing import Shown, of_delivered
from ottla.cli.share_standing import pauses

if TYPE_CHECKING:
    from ottla.client import Client
    from ottla.client.share_groups import ShareOffset
    from ottla.client.share_member import Delivered, ShareMember

RECORDS_AT_ONCE = 1000
POLL_MS = 250
SILENT_S = 1.5
"""After this long without a record the command reports why there may be none."""
AGAIN_S = 0.5


class Acknowledging(StrEnum):
    """How printed records are acknowledged."""

    ACCEPT = "accept"
    RELEASE = "release"
    REJECT = "reject"
    ASK = "ask"


ANSWERS = {
    "a": Acknowledging.ACCEPT,
    "": Acknowledging.ACCEPT,
    "r": Acknowledging.RELEASE,
    "x": Acknowledging.REJECT,
    "q": None,
}


@dataclass(frozen=True, slots=True)
class ShareReading:
    """The options of reading as a member of a share group."""

    group: str
    topics: list[str]
    ack: Acknowledging
    from_beginning: bool
    shown: Callable[[Shown], str]
    most: int | None
    timeout_s: float | None


def consume_share(given: dict[str, Any], reading: ShareReading) -> int:
    """Print records as a member of the share group and acknowledge each; returns how many."""
    from ottla.client import BrokerError
    from ottla.client.share_member import ShareMember

    connect = own_clients(given)
    with plain_failures(), connect() as asked:
        reading = replace(reading, topics=existing(asked, reading.topics))
        is_new = not any(each.start_offset >= 0 for each in standing(asked, reading))
        if reading.from_beginning:
            begin_at_the_beginning(given, reading.group, is_new)
        try:
            member = ShareMember(connect, reading.group, reading.topics)
        except BrokerError as error:
            if error.name in ("GROUP_ID_NOT_FOUND", "INCONSISTENT_GROUP_PROTOCOL"):
                raise CommandError(
                    f"{reading.group} is a consumer group, not a share group: join it with --group, "
                    "or choose another name."
                ) from None
            raise
        with member:
            hint = Hint(given, reading, asked, is_new and not reading.from_beginning)
            return print_records(member, reading, hint)


def existing(asked: Client, topics: list[str]) -> list[str]:
    """The named topics, and those that match a regular expression now. Raises CommandError for a missing one."""
    found: dict[str, None] = {}
    for name in topics:
        if name.startswith("^"):
            matched = matching(name, (topic.name for topic in asked.topics()))
            if not matched:
                raise CommandError(f"No topic matches {name}.")
            found |= dict.fromkeys(matched)
        else:
            found[name] = None
    absent = [topic.name for topic in asked.metadata(found).topics if topic.error_code]
    if absent:
        raise CommandError(f"There is no topic {', '.join(absent)}.")
    return list(found)


def standing(asked: Client, reading: ShareReading) -> list[ShareOffset]:
    """The group's positions in these topics; an empty list if there is no such group."""
    from ottla.client import BrokerError
    from ottla.client.share_groups import share_group_offsets

    try:
        return [each for each in share_group_offsets(asked, reading.group) if each.topic in reading.topics]
    except BrokerError:
        return []


def begin_at_the_beginning(given: dict[str, Any], group: str, is_new: bool) -> None:
    """Let a new share group begin at the first record. This is a config of the group: it stays set, and has no effect
    on a group that already has positions. The function reports both."""
    from confluent_kafka.admin import AdminClient

    from ottla.cli.configs import alter_entries, own_entries

    admin = AdminClient(given)
    if not is_new:
        tell(
            f"{group} stands somewhere already, so --from-beginning changes nothing. To go over everything again: "
            f"`ottla share-groups reset-offsets {group} --to-earliest --execute`."
        )
    elif own_entries(admin, "group", [group])[group].get(RESET) != "earliest":
        alter_entries(admin, "group", group, set=[f"{RESET}=earliest"])
        tell(f"{RESET}=earliest is set for the group {group} from now on.")


RESET = "share.auto.offset.reset"


@dataclass(slots=True)
class Hint:
    """Reports once why no record arrives, if the reason can be found."""

    given: dict[str, Any]
    reading: ShareReading
    asked: Client
    is_new: bool
    ask_at: float = 0.0

    def tell(self) -> None:
        from ottla.client import ClientError

        if time.monotonic() < self.ask_at:
            return
        self.ask_at = time.monotonic() + SILENT_S
        with suppress(ClientError, CommandError):  # the poller reports that no broker answers
            why = self.why()
            if why is not None:
                tell(why)
                self.ask_at = math.inf

    def why(self) -> str | None:
        from confluent_kafka.admin import AdminClient

        from ottla.cli.configs import own_entries

        group, topics = self.reading.group, ", ".join(self.reading.topics)
        admin = AdminClient(self.given)
        pause = pauses(admin, [group]).get(group)
        if pause is not None:
            return pause.sentence(group)
        if self.is_new and own_entries(admin, "group", [group])[group].get(RESET, "latest") == "latest":
            return (
                f"{group} is new and waits at the end of {topics} for what is produced from now on. "
                "With --from-beginning a new group begins at the first record."
            )
        lags = [each.lag for each in standing(self.asked, self.reading)]
        if not lags or min(lags) < 0:
            return None  # no member has an assignment yet
        lag = sum(lags)
        if lag:
            return f"{counted(lag, 'record')} of {topics} not done: held by members of {group}, or held back."
        return (
            f"{group} has done all of {topics} and waits for more. To go over it again: "
            f"`ottla share-groups reset-offsets {group} --to-earliest --execute`."
        )


def print_records(member: ShareMember, reading: ShareReading, hint: Hint) -> int:
    """Print and acknowledge records until it is time to stop; returns how many were printed."""
    count, last, kept = 0, time.monotonic(), list["Delivered"]()
    poller = Poller(member)
    try:
        while reading.most is None or count < reading.most:
            left = RECORDS_AT_ONCE if reading.most is None else min(reading.most - count, RECORDS_AT_ONCE)
            got = poller.poll(1 if reading.ack is Acknowledging.ASK else left)
            for each in got:
                sys.stdout.write(reading.shown(of_delivered(each)))
            sys.stdout.flush()
            count += len(got)
            if got:
                last = time.monotonic()
                ack = ask(got[0]) if reading.ack is Acknowledging.ASK else reading.ack
                if ack is None or ack is Acknowledging.RELEASE:
                    kept += got
                else:
                    acknowledge(member, got, ack)
                if ack is None:
                    break
            elif reading.timeout_s is not None and time.monotonic() - last >= reading.timeout_s:
                break
            elif time.monotonic() - last >= SILENT_S and not kept:
                hint.tell()
    finally:
        acknowledge(member, kept, Acknowledging.RELEASE)
        if kept:
            tell(f"{len(kept)} of them went back to the group.")
    return count


class Poller:
    """Polls for records; if no broker answers, it reports that once and retries."""

    def __init__(self, member: ShareMember) -> None:
        self._member = member
        self._is_away = False

    def poll(self, most: int) -> list[Delivered]:
        """The next records; an empty list if none arrived in time. Raises ClientError if a retry cannot help."""
        from ottla.client import BadResponseError, BrokerError, ClientError

        try:
            got = self._member.poll(most, POLL_MS)
        except ClientError as failure:
            if isinstance(failure, BadResponseError) or (isinstance(failure, BrokerError) and not failure.retriable):
                raise
            if not self._is_away:
                self._is_away = True
                tell(f"{str(failure).rstrip('.')}; trying on since {time.strftime('%H:%M:%S')}.")
            time.sleep(AGAIN_S)
            return []
        if self._is_away:
            self._is_away = False
            tell("The broker answers again.")
        return got


def acknowledge(member: ShareMember, records: list[Delivered], ack: Acknowledging) -> None:
    from ottla.client import share_member as kinds

    if not records:
        return
    kind = {"accept": kinds.ACCEPT, "release": kinds.RELEASE, "reject": kinds.REJECT}[ack.value]
    for each, error in member.acknowledge(records, kind):
        where = f"{each.topic}-{each.place[1]} offset {each.record.offset}"
        tell(f"{where} was not acknowledged ({error.name}): it will be delivered again.")


def ask(each: Delivered) -> Acknowledging | None:
    """The user's answer; None for "quit": q, or the end of the input."""
    tries = each.delivery_count
    often = f", delivered {tries} times" if tries > 1 else ""
    where = f"{each.topic}-{each.place[1]} offset {each.record.offset}"
    prompt = f"{where}{often}: [a]ccept (Enter), [r]elease, [x] reject or [q]uit? "
    while True:
        print(prompt, end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line or not sys.stdin.isatty():
            say("", err=True)  # the prompt's line has no line end yet
        if not line:
            return None
        answer = line.strip().lower()[:1]
        if answer in ANSWERS:
            return ANSWERS[answer]


def tell(sentence: str) -> None:
    """Print a sentence on standard error, apart from the records."""
    say(f"ottla: {sentence}", err=True)
