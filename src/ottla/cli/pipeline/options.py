"""What every pipeline takes on the command line."""

from __future__ import annotations

from typing import Annotated

import typer

Master = Annotated[
    str | None, typer.Option("--master", metavar="URL", help="Spark's master (spark-defaults' own, else local[*]).")
]
Checkpoint = Annotated[
    str | None, typer.Option("--checkpoint", metavar="DIR", help="Where the progress is kept (TABLE/_checkpoint).")
]
Once = Annotated[bool, typer.Option("--once", help="Work off what is there now, then end.")]
Trigger = Annotated[float, typer.Option("--trigger", min=0, metavar="SECONDS", help="How often to look for more.")]
Conf = Annotated[
    list[str] | None, typer.Option("--conf", metavar="KEY=VALUE", help="A setting of Spark; may be given again.")
]
