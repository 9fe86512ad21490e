"""`ottla pipeline kmq-tracker`: `ottla kmq tracker` on Spark.

Knows: the options of both. Does not know: how a tracker works (ottla.spark.tracker).
"""

from __future__ import annotations

from typing import Annotated

import typer

from ottla.cli.connection import HERE, Bootstrap, CommandConfig, Properties
from ottla.cli.kmq import DeadLetters, Group, Markers, Queue, TrackerGroup, config_of, serving
from ottla.cli.output import Failure
from ottla.cli.pipeline.options import Checkpoint, Conf, Master, Once, Quiet, Trigger, Wait, plain_failures, run_options


def kmq_tracker(
    queue: Queue,
    markers: Markers = "",
    dead_letters: DeadLetters = "",
    group: Group = "",
    tracker_group: TrackerGroup = "",
    max_redeliveries: Annotated[
        int, typer.Option("--max-redeliveries", min=0, help="Then a message becomes a dead letter.")
    ] = 3,
    backoff_ms: Annotated[int, typer.Option("--backoff-ms", min=0, help="Wait so long before the first one.")] = 0,
    backoff_multiplier: Annotated[float, typer.Option("--backoff-multiplier", min=1, help="And longer each time.")] = 2,
    backoff_max_ms: Annotated[int, typer.Option("--backoff-max-ms", min=0, help="But no longer than that.")] = 300_000,
    use_now_after_ms: Annotated[
        int, typer.Option("--use-now-after-ms", min=0, help="Trust the own clock when no marker came for so long.")
    ] = 1_000,
    count_header: Annotated[str, typer.Option("--count-header", help="Says how often a message came again.")] = "",
    metrics: Annotated[str | None, typer.Option("--metrics", metavar="HOST:PORT", help="Serve metrics there.")] = None,
    batch_markers: Annotated[
        int, typer.Option("--batch-markers", min=1, metavar="COUNT", help="At most about so many in a micro-batch.")
    ] = 500_000,
    checkpoint: Checkpoint = None,
    once: Once = False,
    trigger: Trigger = 1.0,
    master: Master = None,
    conf: Conf = None,
    bootstrap: Bootstrap = HERE,
    command_config: CommandConfig = None,
    properties: Properties = None,
    quiet: Quiet = False,
    wait: Wait = None,
) -> None:
    """Give messages again whose workers did not finish them, on Spark: for more markers than one process can follow."""
    if checkpoint is None:
        raise Failure("Say where the open messages are kept: --checkpoint DIR.")
    named = {"count_header": count_header} if count_header else {}
    config = config_of(
        queue,
        markers=markers,
        dead_letters=dead_letters,
        group_id=group,
        tracker_group_id=tracker_group,
        max_redeliveries=max_redeliveries,
        backoff_ms=backoff_ms,
        backoff_multiplier=backoff_multiplier,
        backoff_ms_max=backoff_max_ms,
        use_now_after_ms=use_now_after_ms,
        **named,
    )
    options = run_options(
        bootstrap,
        checkpoint=checkpoint,
        once=once,
        trigger=trigger,
        master=master,
        conf=conf,
        command_config=command_config,
        properties=properties,
        quiet=quiet,
        wait=wait,
    )
    from ottla.spark.tracker.running import Progress, run

    progress = Progress(config)
    with plain_failures(), serving(progress, metrics):
        print(run(options, config, markers_per_batch=batch_markers, progress=progress))
