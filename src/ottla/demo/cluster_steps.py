"""Holds the steps on a cluster of three nodes, in order; a failed step raises StepFailedError. Their docstrings are
printed."""

from __future__ import annotations

import time
from collections.abc import Callable

from ottla.demo import events
from ottla.demo.cluster import ThreeNodes
from ottla.demo.demonstration import Demonstration, StepFailedError
from ottla.demo.group import Group
from ottla.demo.jobs import JOBS, Jobs, picture
from ottla.demo.money import LEDGER, TOTAL, Auditor, Teller
from ottla.demo.producer import Stream

RATE = 2_000.0
TOPICS = {events.PAGE_VIEWS: 6, events.ERRORS: 3}
PARTITIONS = sum(TOPICS.values())
READERS, WORKERS, JOB_COUNT = 2, 4, 200
WAIT_S = 30.0
SETTLE_S = 0.5
"""How long readers may take for the last transfers."""


def start_cluster(demo: Demonstration) -> None:
    """Three nodes make a cluster: each record has three copies, and acks=all waits for two of them at least."""
    demo.node.stop()
    demo.forget()
    cluster = demo.cluster = ThreeNodes(demo.directory)
    cluster.start()
    demo.say(f"Three nodes serve at [bold]{cluster.address}[/bold], {cluster.start_ms} ms after `ottla cluster start`.")
    cluster.create({**TOPICS, LEDGER: 1})


def kill_a_leader(demo: Demonstration) -> None:
    """A leader is killed under load: producer, group and job queue continue, and every record is accounted for."""
    cluster = demo.cluster
    assert cluster is not None
    stream = demo.stream = Stream(cluster.address, events.made_up(2), RATE)
    group = Group("readers", cluster.address, list(TOPICS))
    demo.groups = [group]
    for number in range(READERS):
        group.join(f"reader-{number + 1}")
    jobs = demo.jobs = Jobs(cluster.address)
    jobs.set_up()
    jobs.start_workers(WORKERS)
    stream.start()
    demo.show()
    await_(demo, "The group did not share out all partitions", lambda: len(group.owned()) == PARTITIONS)
    await_(demo, "Not every worker of the queue began", lambda: hear(jobs) and all(each.ready for each in jobs.workers))
    await_(demo, "The copies did not come in sync", lambda: cluster.is_in_sync((*TOPICS, LEDGER, JOBS)))
    jobs.produce(map(picture, range(JOB_COUNT)))
    await_(demo, "The queue did no job", lambda: hear(jobs) and jobs.settled() >= JOB_COUNT // 10)
    victim = cluster.partitions((JOBS,))[JOBS, 0].leader
    led = [place for place, part in cluster.partitions(tuple(TOPICS)).items() if part.leader == victim]
    ends = {place: stream.tally.next_offsets.get(place, 0) for place in led}
    cluster.kill(victim)
    killed_at = time.monotonic()
    demo.say(f"[red]kill -9 node {victim}[/red]: it led the jobs, and {len(led)} of the {PARTITIONS} other partitions.")

    def taken_over() -> bool:
        return all(stream.tally.next_offsets.get(place, 0) > end for place, end in ends.items())

    await_(demo, "The partitions of the killed node got no new leader", taken_over)
    demo.say(f"Others lead them: records are acknowledged again {time.monotonic() - killed_at:.1f} s after the kill.")
    await_(demo, "The queue stood still", lambda: hear(jobs) and jobs.settled() == JOB_COUNT)
    again = sum(count - 1 for count in jobs.done.values())
    twice = f", {again} of them twice: a worker could not say so before the kill" if again else ", each once"
    demo.say(f"All {JOB_COUNT} jobs are done{twice}.")
    bring_back(demo, victim, (*TOPICS, JOBS))
    account(demo, stream, group)
    await_(demo, "The nodes say that jobs are left", lambda: jobs.lag() == 0)
    jobs.stop()


def hear(jobs: Jobs) -> bool:
    """Receive the workers' reports. Returns True, so that a condition can follow with `and`."""
    jobs.listen()
    return True


def account(demo: Demonstration, stream: Stream, group: Group) -> None:
    """End the stream, and compare what the group has read with what was acknowledged."""
    stream.stop()
    if stream.failure is not None:
        raise StepFailedError(stream.failure)
    produced = stream.tally
    demo.run(WAIT_S, lambda: group.tally.records >= produced.records)
    demo.hide()
    read = group.tally
    if (read.records, read.checksum, read.holes) != (produced.records, produced.checksum, []):
        raise StepFailedError(
            f"{produced.records:,} records were acknowledged, {read.records:,} read: not the same ones."
        )
    demo.say(
        f"[green]{produced.records:,} records acknowledged, {read.records:,} read, the same checksum: "
        f"{read.checksum:016x}.[/green]"
    )
    group.stop()
    demo.forget()


def move_money(demo: Demonstration) -> None:
    """Money moves between accounts by transactions while a node is killed; each kind of reader adds up what it sees."""
    cluster = demo.cluster
    assert cluster is not None
    teller = Teller(cluster.address)
    committed, uncommitted = auditors = [
        Auditor(cluster.address, f"read_{each}") for each in ("committed", "uncommitted")
    ]
    for thread in (*auditors, teller):
        thread.start()
    try:
        await_(demo, "No money was moved", lambda: teller.made >= 10 or teller.failure is not None)
        victim = cluster.partitions((LEDGER,))[LEDGER, 0].leader
        before = teller.made
        cluster.kill(victim)
        demo.say(f"[red]kill -9 node {victim}[/red], which leads the ledger, in the middle of a transfer.")
        await_(demo, "No money was moved", lambda: teller.made >= before + 10 or teller.failure is not None)
        bring_back(demo, victim, (LEDGER,))
    finally:
        teller.stop()
    if teller.failure is not None:
        raise StepFailedError(teller.failure)
    demo.run(SETTLE_S)
    for thread in auditors:
        thread.stop()
    print_audit(demo, teller, auditors)
    if committed.wrong or committed.balance != TOTAL:
        raise StepFailedError(
            f"A read_committed reader saw {[*committed.wrong, committed.balance][0]} instead of {TOTAL}."
        )
    if not uncommitted.wrong:
        raise StepFailedError("A read_uncommitted reader saw nothing of what was half done or taken back.")
    demo.say(f"[green]read_committed found {TOTAL} at each of {committed.looks} looks.[/green]")


def print_audit(demo: Demonstration, teller: Teller, auditors: list[Auditor]) -> None:
    from rich.table import Table

    table = Table(
        title=f"{teller.made} transfers made, {teller.taken_back + teller.failed} taken back: what readers add up"
    )
    for heading in ("isolation.level", "looks", f"other than {TOTAL}", "in the end"):
        table.add_column(heading, justify="left" if heading == "isolation.level" else "right")
    for each in auditors:
        table.add_row(each.isolation, str(each.looks), str(len(each.wrong)), str(each.balance))
    demo.console.print(table)


def bring_back(demo: Demonstration, node: int, topics: tuple[str, ...]) -> None:
    """Start the killed node again, and wait until its replicas are in sync."""
    cluster = demo.cluster
    assert cluster is not None
    began = time.monotonic()
    cluster.bring_back(node)
    await_(demo, f"Node {node} did not come in sync again", lambda: cluster.is_in_sync(topics))
    demo.say(f"Node {node} is back, and in sync again after {time.monotonic() - began:.1f} s.")


def await_(demo: Demonstration, else_: str, holds: Callable[[], object]) -> None:
    """Run the demonstration until `holds` returns true. Raises StepFailedError."""
    if not demo.run(WAIT_S, lambda: bool(holds())):
        raise StepFailedError(f"{else_} in time.")


CLUSTER_STEPS: tuple[Callable[[Demonstration], None], ...] = (start_cluster, kill_a_leader, move_money)
