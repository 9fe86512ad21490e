"""`ottla console`: show a cluster in the browser.

The pages are in `ottla.console`, which needs the extra of that name; this module turns the options into its settings.
"""

from __future__ import annotations

import logging
import ssl
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ottla.cli.connection import HERE, LOCAL, Cluster, address, client_properties, own_login, tls_of
from ottla.cli.console_process import DEFAULT, end_with_parent
from ottla.cli.options import with_shared_options
from ottla.cli.output import CommandError, UsageError, say
from ottla.cli.reporting import TOPIC, ReportsFrom
from ottla.cli.schemas import SchemaRegistry, registry_of

if TYPE_CHECKING:
    from ottla.console.settings import Settings
    from ottla.schemas.registry import RegistrySettings

EPILOG = "Example: ottla console --bootstrap localhost:9092 --listen 127.0.0.1:9080"

Listen = Annotated[
    str,
    typer.Option(
        "--listen",
        metavar="HOST:PORT",
        help="Address of the console; port 0 lets the system choose (default 127.0.0.1:9080).",
    ),
]
ReadOnly = Annotated[bool, typer.Option("--read-only", help="Refuse every change, whatever the user may do.")]
NoRecords = Annotated[
    bool,
    typer.Option("--no-records", help="Never show keys, values and headers of records, whatever the user may read."),
]
Certificate = Annotated[
    Path | None,
    typer.Option("--tls-cert", metavar="FILE", help="PEM file with the certificate of the console (default: no TLS)."),
]
Key = Annotated[
    Path | None,
    typer.Option("--tls-key", metavar="FILE", help="PEM file with its key (default: in the file of the certificate)."),
]
Names = Annotated[
    list[str] | None,
    typer.Option(
        "--host-name",
        metavar="NAME",
        help="Further name by which browsers reach the console; may be repeated (default: the host of --listen).",
    ),
]


@with_shared_options
def console(
    listen: Listen = DEFAULT,
    read_only: ReadOnly = False,
    no_records: NoRecords = False,
    tls_cert: Certificate = None,
    tls_key: Key = None,
    host_name: Names = None,
    schema_registry: SchemaRegistry = None,
    reports_from: ReportsFrom = TOPIC,
    cluster: Cluster = HERE,
) -> None:
    """Show a cluster in the browser; works on any Kafka.

    On a loopback address, the printed address contains a token that opens the console. Any other address needs TLS
    and the logins of the cluster: if the client properties have sasl.mechanism and no user, each user logs in, and the
    cluster's ACLs decide what that user sees and may change.
    """
    try:
        from ottla.console import serving
    except ModuleNotFoundError as missing:
        raise CommandError(
            f"The console needs the extra `console`: {missing.name} is missing. In a clone: pip install '.[console]'."
        ) from None
    if tls_cert == "":
        raise UsageError("--tls-cert is empty: give it the path of a PEM file, or leave the option out.")
    if tls_key is not None and tls_cert is None:
        raise UsageError("--tls-key needs --tls-cert.")
    host, port = address(listen)
    registry = registry_of(cluster, schema_registry)
    settings = settings_of(
        cluster, read_only=read_only, no_records=no_records, is_https=tls_cert is not None, registry=registry
    )
    settings = replace(settings, reports=reports_from)
    try:
        serving.require_safe(host, is_https=settings.is_https, mechanism=settings.mechanism)
        listener = serving.bound(host, port)
    except serving.UnsafeListenerError as unsafe:
        raise UsageError(str(unsafe)) from None
    except OSError as error:
        raise CommandError(f"The console cannot listen at {listen}: {error.strerror or error}.") from None
    with listener:
        settings = serving.with_hosts(settings, listener, tuple(host_name or ()))
        try:
            server = serving.server(settings, None if tls_cert is None else (tls_cert, tls_key))
        except (OSError, ssl.SSLError) as error:
            raise CommandError(f"The certificate of --tls-cert cannot be used: {error}.") from None
        logging.basicConfig(format="%(message)s", level=logging.INFO)
        logging.getLogger("uvicorn").setLevel(logging.WARNING)
        say(f"The console is at {serving.address_of(settings, listener)}")
        sys.stdout.flush()
        say("Ctrl-C ends it.", err=True)
        end_with_parent(lambda: setattr(server, "should_exit", True))
        server.run(sockets=[listener])


def settings_of(
    cluster: Cluster,
    *,
    read_only: bool,
    is_https: bool,
    no_records: bool = False,
    registry: RegistrySettings | None = None,
) -> Settings:
    """The console's settings for a cluster; raises CommandError if it cannot be reached."""
    from ottla.console.settings import Settings

    given = cluster.given_properties()
    is_sasl = given.get("security.protocol", "").upper().startswith("SASL")
    has_user = any(given.get(name) for name in ("sasl.username", "sasl.jaas.config"))
    mechanism = str(given.get("sasl.mechanism") or given.get("sasl.mechanisms") or "").upper()
    properties: dict[str, Any] = client_properties(cluster)
    asks = is_sasl and not has_user and mechanism != "OAUTHBEARER"
    return Settings(
        bootstrap=properties["bootstrap.servers"],
        hosts=frozenset(),
        tls=tls_of(properties) if str(properties.get("security.protocol", "")).upper().endswith("SSL") else None,
        login=None if asks else own_login(properties),
        mechanism=(mechanism or "SCRAM-SHA-256") if asks else None,
        read_only=read_only,
        no_records=no_records,
        registry=registry,
        is_https=is_https,
        arguments=arguments_of(cluster),
    )


def arguments_of(cluster: Cluster) -> tuple[str, ...]:
    """The options with which a printed command reaches the cluster; without properties, which may be secret."""
    found: list[str] = []
    if cluster.bootstrap != LOCAL:
        found += ["--bootstrap", cluster.bootstrap]
    if cluster.profile:
        found += ["--profile", cluster.profile]
    if cluster.command_config:
        found += ["--command-config", str(cluster.command_config)]
    return tuple(found)
