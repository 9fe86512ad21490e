"""`ottla quotas`: lists and sets what users and clients may use of each node, and how often addresses connect.

It knows the kinds of quota entities (KIP-546, KIP-612). The cluster decides which limits exist, and rejects unknown
ones. Works with any Kafka.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated

import typer

from ottla.cli.connection import HERE, Cluster, Output, client, named, pairs
from ottla.cli.options import with_shared_options
from ottla.cli.output import Format, UsageError, print_done, print_rows, say

app = typer.Typer(help="Show and change the limits of users, clients and addresses.", no_args_is_help=True)

USER, CLIENT_ID, IP = "user", "client-id", "ip"
ANONYMOUS = "ANONYMOUS"
DEFAULT = "<default>"
WITHOUT_EFFECT = (
    "This quota applies only to clients that authenticate as {user}, by SASL or by a TLS certificate. On a listener "
    "without either, every client is the user ANONYMOUS: use --client-id or --ip there."
)
LIMITS = (
    "producer_byte_rate",
    "consumer_byte_rate",
    "request_percentage",
    "controller_mutation_rate",
    "connection_creation_rate",
)
"""Kafka's limits; later versions may add some."""
COLUMNS = ("USER", "CLIENT-ID", "IP", "LIMIT", "VALUE")


@dataclass(frozen=True, slots=True)
class Whose:
    """The entity of a quota: a user, a client id, both together, or an address."""

    user: Annotated[
        str | None,
        typer.Option(
            "--user",
            metavar="NAME",
            callback=named,
            help="User of the quota, as clients authenticate. Every client is ANONYMOUS without SASL or TLS.",
        ),
    ] = None
    default_user: Annotated[
        bool, typer.Option("--default-user", help="Quota of every user without one of their own.")
    ] = False
    client_id: Annotated[
        str | None,
        typer.Option("--client-id", metavar="NAME", callback=named, help="Client id (client.id) of the quota."),
    ] = None
    default_client_id: Annotated[
        bool, typer.Option("--default-client-id", help="Quota of every client.id without one of its own.")
    ] = False
    ip: Annotated[
        str | None, typer.Option("--ip", metavar="ADDRESS", callback=named, help="IP address of the quota's clients.")
    ] = None
    default_ip: Annotated[bool, typer.Option("--default-ip", help="Quota of every address without one of its own.")] = (
        False
    )

    def entity(self) -> dict[str, str | None]:
        """Names by kind, None for the default of a kind."""
        found: dict[str, str | None] = {}
        for kind, name, by_default in (
            (USER, self.user, self.default_user),
            (CLIENT_ID, self.client_id, self.default_client_id),
            (IP, self.ip, self.default_ip),
        ):
            if name is not None and by_default:
                raise UsageError(f"Choose one of --{kind} and --default-{kind}.")
            if name is not None or by_default:
                found[kind] = name
        return found


ANYBODY = Whose()


@app.command("list", epilog="Example: ottla quotas list --client-id loader")
@with_shared_options
def list_(whose: Whose = ANYBODY, cluster: Cluster = HERE, format: Output = Format.TABLE) -> None:
    """List quotas: all, or those that name this user, client id or address."""
    from ottla.client.errors import check
    from ottla.protocol.messages.describe_client_quotas import ComponentData, DescribeClientQuotasRequest

    asked = [ComponentData(kind, 0 if name is not None else 1, name) for kind, name in whose.entity().items()]
    with client(cluster) as connected:
        answer = connected.send(DescribeClientQuotasRequest(asked))
        check(answer.error_code, "quotas", answer.error_message)
    rows: list[tuple[str, str, str, str, float | int]] = []
    for entry in answer.entries:
        names = {each.entity_type: DEFAULT if each.entity_name is None else each.entity_name for each in entry.entity}
        whose_it_is = names.get(USER, ""), names.get(CLIENT_ID, ""), names.get(IP, "")
        rows += [(*whose_it_is, each.key, plain_number(each.value)) for each in entry.values]
    print_rows(COLUMNS, sorted(rows), format)


@app.command(epilog="Example: ottla quotas alter --client-id loader --set producer_byte_rate=1048576")
@with_shared_options
def alter(
    whose: Whose = ANYBODY,
    set: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="LIMIT=NUMBER", help="Limit to set; may be repeated (default: none)."),
    ] = None,
    delete: Annotated[
        list[str] | None,
        typer.Option("--delete", metavar="LIMIT", help="Limit to remove; may be repeated (default: none)."),
    ] = None,
    cluster: Cluster = HERE,
    format: Output = Format.TABLE,
) -> None:
    """Set and remove limits of users, client ids and addresses.

    Users and client ids: producer_byte_rate, consumer_byte_rate, request_percentage, controller_mutation_rate.
    Addresses: connection_creation_rate.
    """
    from ottla.client.errors import check
    from ottla.protocol.messages.alter_client_quotas import (
        AlterClientQuotasRequest,
        OpData,
        RequestEntityData,
        RequestEntryData,
    )

    entity = whose.entity()
    if not entity:
        raise UsageError("Say whose quota: --user, --client-id, or both, or --ip, or their defaults.")
    changes = [OpData(key, number(value)) for key, value in pairs(set, "A limit").items()]
    changes += [OpData(key, remove=True) for key in delete or ()]
    if not changes:
        raise UsageError("Nothing to alter: name at least one limit with --set or --delete.")
    require_known(change.key for change in changes)
    entry = RequestEntryData([RequestEntityData(kind, name) for kind, name in entity.items()], changes)
    told = " and ".join(f"{kind} {DEFAULT if name is None else name}" for kind, name in entity.items())
    with client(cluster) as connected:
        (altered,) = connected.send(AlterClientQuotasRequest([entry])).entries
        check(altered.error_code, told, altered.error_message)
    print_done(f"Altered the quota of {told}.", format, altered=entity)
    if set and entity.get(USER) not in (None, ANONYMOUS):
        say(WITHOUT_EFFECT.format(user=entity[USER]), err=True)


def plain_number(value: float) -> float | int:
    """1048576 instead of 1048576.0."""
    return int(value) if value.is_integer() else value


def require_known(limits: Iterable[str]) -> None:
    """Raise UsageError for a probable misspelling of one of Kafka's limits; the cluster checks all others."""
    for name in limits:
        close = get_close_matches(name, LIMITS, 1, 0.8)
        if close and name not in LIMITS:
            raise UsageError(f"There is no limit {name!r}: did you mean {close[0]}?")


def number(text: str) -> float:
    """A limit as a number; raises CommandError if the text is not one."""
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"{text!r} is no limit: expected a number.") from None
