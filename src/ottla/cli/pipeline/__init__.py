"""`ottla pipeline`: topics through Spark. One file per pipeline; each needs `pip install "ottla[spark]"`."""

from __future__ import annotations

import typer

from ottla.cli.pipeline import archive

app = typer.Typer(help="Pipelines on Spark: topics to tables, reports and back.", no_args_is_help=True)
app.add_typer(archive.app, name="archive")
