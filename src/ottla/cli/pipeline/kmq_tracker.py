"""`ottla pipeline kmq-tracker`: `ottla kmq tracker` on Spark.

It combines the options of both; ottla.spark.tracker does the work.
"""

from __future__ import annotations

from typing import Annotated

import typer

from ottla.cli import kmq
from ottla.cli.options import with_shared_options
from ottla.cli.output import CommandError, say_lines
from ottla.cli.pipeline.options import EVERY_SECOND, PipelineOptions, plain_failures


@with_shared_options
def kmq_tracker(
    queue: kmq.Queue,
    redelivery: kmq.RedeliveryOptions = kmq.BY_DEFAULT,
    metrics: kmq.Metrics = None,
    batch_markers: Annotated[
        int,
        typer.Option(
            "--batch-markers",
            min=1,
            metavar="COUNT",
            help="Approximate limit of markers in a micro-batch (default 500000).",
        ),
    ] = 500_000,
    running: PipelineOptions = EVERY_SECOND,
) -> None:
    """Redeliver messages that workers did not finish, on Spark: for more markers than one process can handle."""
    if running.checkpoint is None:
        raise CommandError("Say where the open messages are kept: --checkpoint DIR.")
    config = redelivery.config(queue)
    options = running.run_options()
    from ottla.spark.tracker.running import Progress, run

    progress = Progress(config)
    topics = config.queue, config.dead_letters
    with (
        running.reported(options, kmq.KIND, queue, reads=[config.markers], writes=topics) as (options, reporter),
        plain_failures(),
        kmq.serving(progress, metrics),
    ):
        reporter.measures.append(lambda: kmq.measured(progress))
        tracked = run(options, config, markers_per_batch=batch_markers, progress=progress)
        reporter.summary = str(tracked)
    say_lines(tracked)
