"""`ottla metrics`: print files for monitoring a cluster, a dashboard for Grafana and alert rules for Prometheus.

Both are files of the package, made for the names in docs/operations.md. The commands ask no broker.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import typer

app = typer.Typer(help="Print a dashboard and alert rules for a node's metrics.", no_args_is_help=True)

FILES: Final = Path(__file__).with_name("monitoring")


@app.command("dashboard", epilog="Example: ottla metrics dashboard > ottla.json")
def dashboard() -> None:
    """Print a dashboard for Grafana, as JSON to import."""
    sys.stdout.write((FILES / "dashboard.json").read_text())


@app.command("alerts", epilog="Example: ottla metrics alerts > /etc/prometheus/rules/ottla.yml")
def alerts() -> None:
    """Print alert rules for Prometheus, as a file for rule_files."""
    sys.stdout.write((FILES / "alerts.yml").read_text())
