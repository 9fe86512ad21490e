"""The acts, in their order. Each takes the stage and leaves it to the next one; one that fails raises ActFailed."""

from __future__ import annotations

from collections.abc import Callable

from ottla.demo import events
from ottla.demo.group import Group, shown
from ottla.demo.producer import Stream
from ottla.demo.stage import Stage

RATE = 20_000.0
TOPICS = {events.PAGE_VIEWS: 6, events.ERRORS: 3}
TEAM, LONER = "dashboard", "archive"
MEMBERS = ("ada", "bea", "cleo")
JOIN_TIMEOUT_S = 20.0
DRAIN_TIMEOUT_S = 20.0


class ActFailed(Exception):
    """What did not come about, as a sentence."""


def a_node(stage: Stage) -> None:
    """A node starts on a free port, its data in a temporary directory."""
    stage.node.start()
    stage.say(
        f"A node serves Kafka clients at [bold]{stage.node.address}[/bold], {stage.node.start_ms} ms after its start."
    )
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": stage.node.address})
    for future in admin.create_topics([NewTopic(name, count) for name, count in TOPICS.items()]).values():
        future.result(JOIN_TIMEOUT_S)
    made = " and ".join(f"[bold]{name}[/bold] of {count} partitions" for name, count in TOPICS.items())
    stage.say(f"Topics: {made}.")


def two_groups(stage: Stage) -> None:
    """Web activity streams in; a group of three and a group of one read all of it, side by side."""
    source = events.made_up() if stage.source is None else events.replayed(stage.source)
    stage.stream = Stream(stage.node.address, source, RATE)
    team, loner = (Group(name, stage.node.address, list(TOPICS)) for name in (TEAM, LONER))
    stage.groups = [team, loner]
    for name in MEMBERS:
        team.join(name)
    loner.join("dora")
    stage.say(
        f"Two groups read everything: [bold]{TEAM}[/bold] of {len(MEMBERS)} members, [bold]{LONER}[/bold] of one."
    )
    stage.stream.start()
    stage.show()
    partitions = sum(TOPICS.values())
    if not stage.run(JOIN_TIMEOUT_S, lambda: len(team.owned()) == len(loner.owned()) == partitions):
        raise ActFailed("The groups did not share out all partitions in time.")
    if not stage.run(JOIN_TIMEOUT_S, lambda: all(member.owns for member in team.members)):
        raise ActFailed(f"Not every member of {TEAM} was given partitions in time.")
    stage.run(stage.seconds / 2)


def a_death(stage: Stage) -> None:
    """One of the three is killed; the two others are handed its partitions and go on where it had stopped."""
    team = stage.groups[0]
    victim = MEMBERS[1]
    orphaned = team.kill(victim)
    stage.say(f"[red]kill -9 {victim}[/red]: nobody reads {shown(orphaned)} until the group notices.")
    partitions = sum(TOPICS.values())
    if not stage.run(JOIN_TIMEOUT_S, lambda: len(team.owned()) == partitions):
        raise ActFailed(f"The partitions of {victim} were not handed over in time.")
    stage.say(f"Handed over: {team.members[0].name} and {team.members[1].name} own all {partitions} partitions.")
    stage.run(stage.seconds / 2)


def the_proof(stage: Stage) -> None:
    """The stream ends; when both groups have read everything, counts and checksums must be the same."""
    stream = stage.stream
    assert stream is not None
    stream.stop()
    if stream.failure is not None:
        raise ActFailed(stream.failure)
    produced = stream.tally
    stage.run(DRAIN_TIMEOUT_S, lambda: all(group.tally.records >= produced.records for group in stage.groups))
    stage.hide()
    print_proof(stage)
    for group in stage.groups:
        tally = group.tally
        if (tally.records, tally.checksum, tally.holes) != (produced.records, produced.checksum, []):
            raise ActFailed(f"{group.name} did not read what was produced.")
    again = sum(group.tally.repeated for group in stage.groups)
    stage.say("[green]Nothing was lost, nothing was duplicated, nothing was reordered.[/green]")
    if again:
        stage.say(
            f"(The killed member had not committed {again:,} records: they were read again, and known by offset.)"
        )


def print_proof(stage: Stage) -> None:
    from rich.table import Table

    assert stage.stream is not None
    table = Table(title="What went in and what came out")
    for heading in ("", "records", "partitions", "checksum", "read again after the kill"):
        table.add_column(heading, justify="left" if heading in ("", "checksum") else "right")
    for name, tally in [("acknowledged", stage.stream.tally), *((group.name, group.tally) for group in stage.groups)]:
        again = "" if name == "acknowledged" else f"{tally.repeated:,}"
        table.add_row(name, f"{tally.records:,}", str(len(tally.next_offsets)), f"{tally.checksum:016x}", again)
    stage.console.print(table)


ACTS: tuple[Callable[[Stage], None], ...] = (a_node, two_groups, a_death, the_proof)
