"""Holds the steps of the demonstration, in order; a failed step raises StepFailedError. Their docstrings are
printed."""

from __future__ import annotations

import time
from collections.abc import Callable

from ottla.demo import events, pipelines
from ottla.demo.demonstration import Demonstration, StepFailedError
from ottla.demo.group import Group, shown
from ottla.demo.jobs import BROKEN, FLAKY, GOOD, Jobs, alone_s, picture
from ottla.demo.producer import Stream

RATE = 20_000.0
TOPICS = {events.PAGE_VIEWS: 6, events.ERRORS: 3}
TEAM, SINGLE = "dashboard", "archive"
MEMBERS = ("ada", "bea", "cleo")
WORKERS, KILLED, JOB_COUNT = 16, 3, 400
JOIN_TIMEOUT_S = 20.0
DRAIN_TIMEOUT_S = 20.0


def start_node(demo: Demonstration) -> None:
    """A node starts on a free port, its data in a temporary directory."""
    demo.node.start()
    demo.say(
        f"A node serves Kafka clients at [bold]{demo.node.address}[/bold], {demo.node.start_ms} ms after its start."
    )
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": demo.node.address, "log_level": 2})
    for future in admin.create_topics([NewTopic(name, count) for name, count in TOPICS.items()]).values():
        future.result(JOIN_TIMEOUT_S)
    made = " and ".join(f"[bold]{name}[/bold] of {count} partitions" for name, count in TOPICS.items())
    demo.say(f"Topics: {made}.")


def read_in_two_groups(demo: Demonstration) -> None:
    """Web activity streams in; a group of three and a group of one read all of it, side by side."""
    demo.stream = stream_of(demo)
    team, single = (Group(name, demo.node.address, list(TOPICS)) for name in (TEAM, SINGLE))
    demo.groups = [team, single]
    for name in MEMBERS:
        team.join(name)
    single.join("dora")
    demo.say(
        f"Two groups read everything: [bold]{TEAM}[/bold] of {len(MEMBERS)} members, [bold]{SINGLE}[/bold] of one."
    )
    partitions = sum(TOPICS.values())
    if not demo.run(JOIN_TIMEOUT_S, lambda: len(team.owned()) == len(single.owned()) == partitions):
        raise StepFailedError("The groups did not share out all partitions in time.")
    if not demo.run(JOIN_TIMEOUT_S, lambda: all(member.owns for member in team.members)):
        raise StepFailedError(f"Not every member of {TEAM} was given partitions in time.")
    demo.stream.start()  # now, so that half of a short log is left to read when a member is killed
    demo.show()
    demo.run(demo.seconds / 2)


def stream_of(demo: Demonstration) -> Stream:
    """Made-up events without end, or the lines of a log, each once, distributed over the duration of the
    demonstration."""
    if demo.source is None:
        return Stream(demo.node.address, events.made_up(), RATE)
    from rich.markup import escape

    log = demo.log = events.AccessLog(demo.source)
    log.lines, there = min(log.lines, int(RATE * demo.seconds)), log.lines
    part = (
        "once" if log.lines == there else f"the first {log.lines:,} of them, as many as fit into {demo.seconds:.0f} s"
    )
    demo.say(f"[bold]{escape(str(log.path))}[/bold] has {there:,} lines; they are replayed {part}.")
    return Stream(demo.node.address, iter(log), log.lines / demo.seconds)


def kill_a_member(demo: Demonstration) -> None:
    """One of the three is killed; the other two get its partitions and continue where it had stopped."""
    team = demo.groups[0]
    victim = MEMBERS[1]
    orphaned = team.kill(victim)
    demo.say(f"[red]kill -9 {victim}[/red]: no member reads {shown(orphaned)} until the group notices.")
    partitions = sum(TOPICS.values())
    if not demo.run(JOIN_TIMEOUT_S, lambda: len(team.owned()) == partitions):
        raise StepFailedError(f"The partitions of {victim} were not handed over in time.")
    demo.say(f"Handed over: {team.members[0].name} and {team.members[1].name} own all {partitions} partitions.")
    demo.run(demo.seconds / 2)


def compare_counts(demo: Demonstration) -> None:
    """The stream ends; when both groups have read everything, counts and checksums must be the same."""
    stream = demo.stream
    assert stream is not None
    if demo.log is not None:
        demo.run(DRAIN_TIMEOUT_S, lambda: stream.ended)
    stream.stop()
    if stream.failure is not None:
        raise StepFailedError(stream.failure)
    produced = stream.tally
    demo.run(DRAIN_TIMEOUT_S, lambda: all(group.tally.records >= produced.records for group in demo.groups))
    demo.hide()
    print_counts(demo)
    for group in demo.groups:
        tally = group.tally
        if (tally.records, tally.checksum, tally.holes) != (produced.records, produced.checksum, []):
            raise StepFailedError(f"{group.name} did not read what was produced.")
    if demo.log is not None and demo.log.unreadable:
        demo.say(f"({demo.log.unreadable:,} of the lines are none of an access log: they are in {events.ERRORS}.)")
    again = sum(group.tally.repeated for group in demo.groups)
    demo.say("[green]Nothing was lost, nothing was duplicated, nothing was reordered.[/green]")
    for group in demo.groups:
        group.stop()
    if again:
        demo.say(f"(The killed member had not committed {again:,} records: they were read again, and known by offset.)")


def print_counts(demo: Demonstration) -> None:
    from rich.table import Table

    assert demo.stream is not None
    table = Table(title="Records produced and read")
    for heading in ("", "records", "partitions", "checksum", "read again after the kill"):
        table.add_column(heading, justify="left" if heading in ("", "checksum") else "right")
    for name, tally in [("acknowledged", demo.stream.tally), *((group.name, group.tally) for group in demo.groups)]:
        again = "" if name == "acknowledged" else f"{tally.repeated:,}"
        table.add_row(name, f"{tally.records:,}", str(len(tally.next_offsets)), f"{tally.checksum:016x}", again)
    demo.console.print(table)


def work_a_queue(demo: Demonstration) -> None:
    """One partition as a job queue: sixteen workers share it, some are killed, some jobs are broken."""
    jobs = demo.jobs = Jobs(demo.node.address)
    jobs.set_up()
    jobs.start_workers(WORKERS)
    if not jobs.work(JOIN_TIMEOUT_S, lambda: all(worker.ready for worker in jobs.workers)):
        raise StepFailedError("Not every worker of the queue began in time.")
    kinds = [BROKEN if n % 50 == 25 else FLAKY if n % 20 == 10 else GOOD for n in range(JOB_COUNT)]
    began = time.monotonic()
    jobs.produce(picture(n, kind) for n, kind in enumerate(kinds))
    demo.say(f"{JOB_COUNT} jobs in one partition of [bold]jobs[/bold], {WORKERS} workers in one share group.")
    jobs.work(DRAIN_TIMEOUT_S, lambda: jobs.settled() >= JOB_COUNT // 4)
    demo.say(f"[red]kill -9 {', '.join(jobs.kill(KILLED))}[/red], each with a job in its hands.")
    if not jobs.work(DRAIN_TIMEOUT_S, lambda: jobs.settled() == JOB_COUNT):
        raise StepFailedError(f"Only {jobs.settled()} of {JOB_COUNT} jobs were finished in time.")
    took_s = time.monotonic() - began
    broken = {n for n, kind in enumerate(kinds) if kind == BROKEN}
    letters = jobs.dead_letters(len(broken))
    if not jobs.work(DRAIN_TIMEOUT_S, lambda: jobs.lag() == 0):
        raise StepFailedError("The node says that jobs are left.")
    if set(letters) != broken or jobs.done.keys() != set(range(JOB_COUNT)) - broken:
        raise StepFailedError("A job was lost, or one was set aside that was not broken.")
    print_jobs(demo, jobs, kinds, letters)
    jobs.stop()
    demo.say(f"[green]Every job was done or set aside, in {took_s:.1f} s.[/green]")
    demo.say(
        f"A consumer group gives a partition to one member: alone it would have needed {alone_s(JOB_COUNT):.1f} s."
    )


def print_jobs(demo: Demonstration, jobs: Jobs, kinds: list[str], letters: list[int]) -> None:
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
    table = Table(title="Results of the jobs", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, count in rows:
        table.add_row(name, f"{count:,}")
    demo.console.print(table)


def run_pipelines(demo: Demonstration) -> None:
    """The same stream through Spark: archived exactly once and verified, and the activity of the shop as a page."""
    if absent := pipelines.missing():
        demo.say(
            f'Left out: {", ".join(absent)} is not installed. `pip install ".\\[spark]"` in a clone of Ottla '
            "installs it."
        )
        return
    assert demo.stream is not None
    lake, produced = demo.directory / "lake", demo.stream.tally.records
    source = ["-b", demo.node.address, *(word for topic in TOPICS for word in ("--topic", topic))]
    archive, activity = ["--table", str(lake / "archive")], ["--table", str(lake / "activity")]
    try:
        pipelines.run(["pipeline", "archive", *source, *archive, "--once"], demo.say)
        pipelines.run(["pipeline", "archive", "verify", "-b", demo.node.address, *archive], demo.say)
        archived = pipelines.rows_of(lake / "archive")
        if archived != produced:
            raise StepFailedError(f"{produced:,} records were acknowledged and {archived:,} archived.")
        title = "The demonstration's shop" if demo.source is None else f"Website activity: {demo.source.name}"
        page = ["--report", str(demo.report), "--title", title]
        pipelines.run(["pipeline", "activity", *source, *activity, *page, "--once"], demo.say)
    except pipelines.CommandFailedError as failure:
        raise StepFailedError(str(failure)) from None
    demo.say(f"[green]All {produced:,} records are in the lake, each offset once.[/green]")
    demo.say(f"The activity of the shop: [bold]{demo.report}[/bold]")


STEPS: tuple[Callable[[Demonstration], None], ...] = (
    start_node,
    read_in_two_groups,
    kill_a_member,
    compare_counts,
    work_a_queue,
    run_pipelines,
)
