"""`ottla features`: list and set the levels of the cluster's features.

Shows what kafka-features.sh shows, under its column names. The cluster decides which features and levels exist, and
rejects unsupported ones. Works with any Kafka.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.connection import HERE, Cluster, Output, client, named
from ottla.cli.options import with_shared_options
from ottla.cli.output import CommandError, Format, print_done, print_rows

if TYPE_CHECKING:
    from ottla.client import Client

app = typer.Typer(help="Show and change the levels of the cluster's features.", no_args_is_help=True)

UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
COLUMNS = ("FEATURE", "SUPPORTED-MIN-VERSION", "SUPPORTED-MAX-VERSION", "FINALIZED-VERSION-LEVEL", "EPOCH")


@app.command("list", epilog="Example: ottla features list")
@with_shared_options
def list_(cluster: Cluster = HERE, format: Output = Format.TABLE) -> None:
    """List the features, their levels, and which levels the cluster supports."""
    with client(cluster) as asked:
        told = _told(asked)
    levels = _levels(told)
    rows = [
        (each.name, each.min_version, each.max_version, levels.get(each.name, 0), told.finalized_features_epoch)
        for each in sorted(told.supported_features, key=lambda each: each.name)
    ]
    print_rows(COLUMNS, rows, format)


@app.command("set", epilog="Example: ottla features set transaction.version 1 --dry-run")
@with_shared_options
def set_(
    name: Annotated[str, typer.Argument(metavar="FEATURE", callback=named, help="Name of the feature.")],
    level: Annotated[int, typer.Argument(metavar="LEVEL", min=0, max=32767, help="New level; 0 turns it off.")],
    unsafe: Annotated[
        bool, typer.Option("--unsafe", help="Lower the level even if the cluster may lose metadata.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Let the cluster check the request and change nothing.")
    ] = False,
    cluster: Cluster = HERE,
    format: Output = Format.TABLE,
) -> None:
    """Raise or lower the level of a feature; 0 turns it off. It takes effect when clients reconnect."""
    from ottla.client.errors import check
    from ottla.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest

    with client(cluster) as asked:
        told = _told(asked)
        require_supported(told, name, level)
        before = _levels(told).get(name, 0)
        down = UNSAFE_DOWNGRADE if unsafe else SAFE_DOWNGRADE
        change = FeatureUpdateKey(name, level, upgrade_type=down if level < before else UPGRADE)
        answer = asked.send(UpdateFeaturesRequest(feature_updates=[change], validate_only=dry_run))
        check(answer.error_code, name, answer.error_message)
    done = "Would set" if dry_run else "Set"
    print_done(
        f"{done} {name} from {before} to {level}.",
        format,
        feature=name,
        before=before,
        level=level,
        set=not dry_run,
    )


def require_supported(told: Any, name: str, level: int) -> None:
    """Raise CommandError if the cluster has no such feature, or does not support this level."""
    supported = {each.name: each for each in told.supported_features}
    if name not in supported:
        close = get_close_matches(name, supported, 1, 0.8)
        hint = f"did you mean {close[0]}?" if close else "`ottla features list` shows those it has."
        raise CommandError(f"The cluster has no feature {name}: {hint}")
    if not (each := supported[name]).min_version <= level <= each.max_version and level:
        raise CommandError(
            f"The cluster supports levels {each.min_version} to {each.max_version} of {name}, not {level}."
        )


def _told(asked: Client) -> Any:
    from ottla.protocol.messages.api_versions import ApiVersionsRequest

    return asked.send(ApiVersionsRequest("ottla", "1"))


def _levels(told: Any) -> dict[str, int]:
    return {each.name: each.max_version_level for each in told.finalized_features}
