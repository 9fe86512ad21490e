"""`ottla pipeline`: topics through Spark, and what pipelines report. One file per pipeline, which needs the extra
`spark`."""

from __future__ import annotations

import typer

from ottla.cli.pipeline import archive, logs, reports
from ottla.cli.pipeline.activity import activity
from ottla.cli.pipeline.kmq_tracker import kmq_tracker
from ottla.cli.pipeline.replay import EPILOG as REPLAY_EPILOG
from ottla.cli.pipeline.replay import replay

app = typer.Typer(help="Pipelines on Spark: topics to tables, reports and back.", no_args_is_help=True)
app.add_typer(archive.app, name="archive")
app.add_typer(logs.app, name="logs")
app.command("kmq-tracker", epilog="Example: ottla pipeline kmq-tracker jobs --checkpoint ./jobs-tracker")(kmq_tracker)
app.command("replay", epilog=REPLAY_EPILOG)(replay)
ACTIVITY = "Example: ottla pipeline activity -t views --table ./site --once --report site.html"
app.command("activity", epilog=ACTIVITY)(activity)
app.command("list", epilog=reports.LIST_EPILOG)(reports.list_pipelines)
app.command("describe", epilog=reports.DESCRIBE_EPILOG)(reports.describe)
