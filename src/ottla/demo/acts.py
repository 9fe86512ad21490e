"""The acts, in their order. Each takes the stage and leaves it to the next one; one that fails raises ActFailed."""

from __future__ import annotations

import time
from collections.abc import Callable

from ottla.demo import events, pipelines
from ottla.demo.group import Group, shown
from ottla.demo.jobs import Jobs, alone_s
from ottla.demo.producer import Stream
from ottla.demo.stage import Stage

RATE, RATE_MIN = 20_000.0, 100.0
TOPICS = {events.PAGE_VIEWS: 6, events.ERRORS: 3}
TEAM, LONER = "dashboard", "archive"
MEMBERS = ("ada", "bea", "cleo")
WORKERS, KILLED, JOB_COUNT = 16, 3, 400
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
    stage.stream = stream_of(stage)
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


def stream_of(stage: Stage) -> Stream:
    """Made-up events without end; or the lines of a log, each once, spread over the time that the show takes."""
    if stage.source is None:
        return Stream(stage.node.address, events.made_up(), RATE)
    from rich.markup import escape

    log = stage.log = events.AccessLog(stage.source)
    log.lines, there = min(log.lines, int(RATE * stage.seconds)), log.lines
    part = (
        "once" if log.lines == there else f"the first {log.lines:,} of them, as many as fit into {stage.seconds:.0f} s"
    )
    stage.say(f"[bold]{escape(str(log.path))}[/bold] has {there:,} lines; they are replayed {part}.")
    return Stream(stage.node.address, iter(log), max(log.lines / stage.seconds, RATE_MIN))


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
    if stage.log is not None:
        stage.run(DRAIN_TIMEOUT_S, lambda: stream.ended)
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
    if stage.log is not None and stage.log.unreadable:
        stage.say(f"({stage.log.unreadable:,} of the lines are none of an access log: they are in {events.ERRORS}.)")
    again = sum(group.tally.repeated for group in stage.groups)
    stage.say("[green]Nothing was lost, nothing was duplicated, nothing was reordered.[/green]")
    for group in stage.groups:
        group.stop()
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


def a_queue(stage: Stage) -> None:
    """One partition as a job queue: sixteen workers share it, some are killed, some jobs are broken."""
    jobs = stage.jobs = Jobs(stage.node.address)
    jobs.set_up()
    jobs.hire(WORKERS)
    if not jobs.work(JOIN_TIMEOUT_S, lambda: all(worker.ready for worker in jobs.workers)):
        raise ActFailed("Not every worker of the queue began in time.")
    kinds = ["broken" if n % 50 == 25 else "flaky" if n % 20 == 10 else "good" for n in range(JOB_COUNT)]
    began = time.monotonic()
    jobs.post(kinds)
    stage.say(f"{JOB_COUNT} jobs in one partition of [bold]jobs[/bold], {WORKERS} workers in one share group.")
    jobs.work(DRAIN_TIMEOUT_S, lambda: jobs.settled() >= JOB_COUNT // 4)
    stage.say(f"[red]kill -9 {', '.join(jobs.kill(KILLED))}[/red], each with a job in its hands.")
    if not jobs.work(DRAIN_TIMEOUT_S, lambda: jobs.settled() == JOB_COUNT):
        raise ActFailed(f"Only {jobs.settled()} of {JOB_COUNT} jobs were finished in time.")
    took_s = time.monotonic() - began
    broken = {n for n, kind in enumerate(kinds) if kind == "broken"}
    letters = jobs.dead_letters(len(broken))
    if not jobs.work(DRAIN_TIMEOUT_S, lambda: jobs.lag() == 0):
        raise ActFailed("The node says that jobs are left.")
    if set(letters) != broken or jobs.done.keys() != set(range(JOB_COUNT)) - broken:
        raise ActFailed("A job was lost, or one was set aside that was not broken.")
    print_jobs(stage, jobs, kinds, letters)
    stage.say(f"[green]Every job was done or set aside, in {took_s:.1f} s.[/green]")
    stage.say(
        f"A consumer group gives a partition to one member: alone it would have needed {alone_s(JOB_COUNT):.1f} s."
    )


def print_jobs(stage: Stage, jobs: Jobs, kinds: list[str], letters: list[int]) -> None:
    from rich.table import Table

    again = [n for n, deliveries in jobs.delivered.items() if deliveries > 1]
    rows = (
        ("jobs posted", len(kinds)),
        ("done", len(jobs.done)),
        ("retried: released once, or in the hands of a killed worker", len(again)),
        ("done twice: a worker was killed before it could say so", sum(count > 1 for count in jobs.done.values())),
        ("broken, in the dead-letter topic", len(letters)),
        ("jobs of the busiest worker left", max(worker.jobs for worker in jobs.workers)),
        ("jobs of the idlest worker left", min(worker.jobs for worker in jobs.workers)),
    )
    table = Table(title="What became of the jobs", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, count in rows:
        table.add_row(name, f"{count:,}")
    stage.console.print(table)


def the_lake(stage: Stage) -> None:
    """The same stream through Spark: archived exactly once and verified, and the activity of the shop as a page."""
    if absent := pipelines.missing():
        stage.say(f'Left out: {", ".join(absent)} is not installed. pip install "ottla\\[spark]" brings it.')
        return
    assert stage.stream is not None
    lake, produced = stage.directory / "lake", stage.stream.tally.records
    source = ["-b", stage.node.address, *(word for topic in TOPICS for word in ("--topic", topic))]
    archive, activity = ["--table", str(lake / "archive")], ["--table", str(lake / "activity")]
    try:
        pipelines.run(["pipeline", "archive", *source, *archive, "--once"], stage.say)
        pipelines.run(["pipeline", "archive", "verify", "-b", stage.node.address, *archive], stage.say)
        archived = pipelines.rows_of(lake / "archive")
        if archived != produced:
            raise ActFailed(f"{produced:,} records were acknowledged and {archived:,} archived.")
        title = "The demonstration's shop" if stage.source is None else f"Website activity: {stage.source.name}"
        page = ["--report", str(stage.report), "--title", title]
        pipelines.run(["pipeline", "activity", *source, *activity, *page, "--once"], stage.say)
    except pipelines.CommandFailed as failure:
        raise ActFailed(str(failure)) from None
    stage.say(f"[green]All {produced:,} records stand in the lake, each offset once.[/green]")
    stage.say(f"The activity of the shop: [bold]{stage.report}[/bold]")


ACTS: tuple[Callable[[Stage], None], ...] = (a_node, two_groups, a_death, the_proof, a_queue, the_lake)
