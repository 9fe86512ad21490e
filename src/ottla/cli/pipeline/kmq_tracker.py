"""`ottla pipeline kmq-tracker`: `ottla kmq tracker` on Spark.

Knows: the options of both. Does not know: how a tracker works (ottla.spark.tracker).
"""

from __future__ import annotations

from typing import Annotated

import typer

from ottla.cli import kmq
from ottla.cli.connection import HERE, Bootstrap, CommandConfig, Properties
from ottla.cli.output import Failure, say_lines
from ottla.cli.pipeline.options import Checkpoint, Conf, Master, Once, Quiet, Trigger, Wait, plain_failures, run_options


def kmq_tracker(
    queue: kmq.Queue,
    markers: kmq.Markers = "",
    dead_letters: kmq.DeadLetters = "",
    group: kmq.Group = "",
    tracker_group: kmq.TrackerGroup = "",
    max_redeliveries: kmq.MaxRedeliveries = 3,
    backoff_ms: kmq.BackoffMs = 0,
    backoff_multiplier: kmq.BackoffMultiplier = 2,
    backoff_max_ms: kmq.BackoffMaxMs = 300_000,
    use_now_after_ms: kmq.UseNowAfterMs = 1_000,
    count_header: kmq.CountHeader = "",
    metrics: kmq.Metrics = None,
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
    config = kmq.config_of(
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
        count_header=count_header,
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
    with plain_failures(), kmq.serving(progress, metrics):
        say_lines(run(options, config, markers_per_batch=batch_markers, progress=progress))
