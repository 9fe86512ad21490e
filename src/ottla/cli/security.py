"""`ottla security`: makes the certificates, the administrator and the properties files of a secured node."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.connection import Output, named
from ottla.cli.output import CommandError, Format, print_done, say

if TYPE_CHECKING:
    import datetime

    from ottla.server.secure_cluster import ClusterSetUp
    from ottla.server.secure_setup import SetUp

app = typer.Typer(help="Set up a node with TLS, passwords and ACLs.", no_args_is_help=True)

LOCAL = "127.0.0.1:9092"
PUBLIC = "0.0.0.0:9092"
DEFAULT_DATA = Path("ottla-data")

Data = Annotated[
    Path, typer.Option("--data", metavar="DIR", help=f"Data directory of the node (default: ./{DEFAULT_DATA}).")
]
Host = Annotated[
    list[str] | None,
    typer.Option(
        "--host",
        metavar="NAME",
        callback=named,
        help="Name or address by which clients reach the node; may be repeated (default: localhost and 127.0.0.1).",
    ),
]


def plain_name(given: str) -> str:
    """The callback of --admin; raises typer.BadParameter for a name that properties files would have to escape."""
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,64}", given):
        raise typer.BadParameter("a name here has letters, digits, dots, hyphens and underscores")
    return given


@app.command(epilog="Example: ottla security init --data ./data --host ottla.example.org")
def init(
    data: Data = DEFAULT_DATA,
    host: Host = None,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            metavar="HOST:PORT",
            help=f"Address to listen on (default: {LOCAL}; with --host {PUBLIC}).",
        ),
    ] = None,
    admin: Annotated[
        str, typer.Option("--admin", metavar="NAME", callback=plain_name, help="Name of the admin (default: admin).")
    ] = "admin",
    format: Output = Format.TABLE,
) -> None:
    """Make the certificates, an admin with a random password, and properties files for the node and its clients.

    The node must not be running. A node that is set up already stays as it is.
    """
    from ottla.server.secure_setup import FOLDER, address_of, set_up

    if listen is None:
        listen = PUBLIC if host else LOCAL
    with plain_refusals(data):
        made = set_up(str(data), address_of(listen, host or ()), admin)
    if made is None:
        folder = data.absolute() / FOLDER
        print_done(f"{folder} has a set-up already: nothing was changed.", format, made=False, folder=str(folder))
    elif format is Format.JSON:
        until = {"authority_until": day(made.authority_until), "node_until": day(made.node_until)}
        print_done("", format, made=True, folder=made.folder, admin=admin, names=made.address.names, **until)
    else:
        tell(made, admin)


@app.command(
    epilog="Example: ottla security init-cluster --out ./security --metadata zookeeper://zk1:2181/ottla "
    "--node 1=ottla1:9092 --node 2=ottla2:9092 --node 3=ottla3:9092"
)
def init_cluster(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Directory for the files; it must not exist.")],
    metadata: Annotated[
        str,
        typer.Option(
            "--metadata", metavar="STORE", callback=named, help="Store that the nodes share, as for ottla serve."
        ),
    ],
    node: Annotated[
        list[str],
        typer.Option(
            "--node",
            metavar="N=HOST:PORT",
            help="Number of a node, and its address for clients; other nodes use the next port. Repeat for each node.",
        ),
    ],
    admin: Annotated[
        str, typer.Option("--admin", metavar="NAME", callback=plain_name, help="Name of the admin (default: admin).")
    ] = "admin",
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", metavar="FILE", help="Properties file with the nodes' settings for ZooKeeper (default: none)."
        ),
    ] = None,
    format: Output = Format.TABLE,
) -> None:
    """Make the certificates, an admin with a random password, and properties files for the nodes of a cluster.

    Clients use TLS with passwords. Nodes use TLS with certificates on both sides, and a common secret.
    """
    from ottla.cli.properties import read_properties
    from ottla.server.secure_cluster import set_up_cluster

    addresses, given = addresses_of(node), {} if config is None else read_properties(str(config))
    with plain_refusals(out):
        made = set_up_cluster(str(out), metadata, addresses, admin, given)
    if made is None:
        print_done(f"{out.absolute()} exists already: nothing was changed.", format, made=False, folder=str(out))
    elif format is Format.JSON:
        until = {"authority_until": day(made.authority_until), "nodes_until": day(made.nodes_until)}
        print_done("", format, made=True, folder=made.folder, admin=admin, nodes=sorted(made.nodes), **until)
    else:
        tell_cluster(made, metadata, admin)


def addresses_of(given: list[str]) -> dict[int, tuple[str, int]]:
    """The host and port of each node, by number. Raises typer.BadParameter, Failure."""
    from ottla.server.listeners import split_address

    found: dict[int, tuple[str, int]] = {}
    for text in given:
        number, equals, address = text.partition("=")
        if not (equals and number.isdecimal() and address):
            raise typer.BadParameter(f"{text!r} is not a node: write N=HOST:PORT, for example 1=ottla1:9092.")
        if int(number) in found:
            raise typer.BadParameter(f"node {number} is named twice.")
        with plain_refusals(Path()):
            found[int(number)] = split_address(address)
    return found


@app.command(epilog="Example: ottla security renew --data ./data")
def renew(
    data: Data = DEFAULT_DATA,
    host: Host = None,
    node: Annotated[
        int | None,
        typer.Option(
            "--node", metavar="N", min=0, help="Number of the node, if --data is the directory that init-cluster made."
        ),
    ] = None,
    format: Output = Format.TABLE,
) -> None:
    """Issue a new certificate for the node, with the same names and those of --host.

    A running node uses it within seconds. Clients continue to trust it, because the authority stays the same. The
    command refuses if the node uses a certificate of your own authority.
    """
    from ottla.server import secure_setup

    require_own_authority(data, node)
    with plain_refusals(data):
        made = secure_setup.renew(str(data), host or (), node)
    sentence = f"Wrote {made.path}: valid until {day(made.until)}, for {', '.join(made.names)}."
    print_done(sentence, format, path=made.path, names=made.names, until=day(made.until))


def require_own_authority(data: Path, node: int | None) -> None:
    """Raise CommandError if the node, or the cluster, uses another certificate than the one that `renew` writes."""
    from ottla.cli.cluster.plan import has_plan, read_plan
    from ottla.cli.properties import read_properties
    from ottla.server.secure_setup import FOLDER, NODE, NODE_CERTIFICATE

    folder, keystore = data.absolute() / (FOLDER if node is None else str(node)), "ssl.keystore.location"
    if node is None and has_plan(data) and (tls := read_plan(data).tls):
        certificate, key = tls["cert"], tls.get("key")
        where = f"`ottla cluster start --data {quote(str(data))} --tls-cert`"
    elif (folder / NODE).exists():
        settings = read_properties(str(folder / NODE))
        certificate, key = settings.get(keystore), settings.get("ottla.ssl.key.location")
        where = f"{keystore} in {folder / NODE}"
    else:
        return
    # A set-up may have been copied as a whole: only the end of its path is the same.
    if certificate is None or Path(certificate).parts[-2:] == (folder.name, NODE_CERTIFICATE):
        return
    also = "" if key is None else f", and its key in {key}"
    raise CommandError(
        f"Nothing was renewed: {where} names a certificate of your own, {certificate}, which only its authority can "
        f"renew. Put the new certificate there{also}: a running node uses it within seconds."
    )


@contextmanager
def plain_refusals(data: Path) -> Iterator[None]:
    """Turn the refusals of a server, and errors of the disk, into sentences."""
    from ottla.server.directory import unusable
    from ottla.server.refusals import ServeRefusedError

    try:
        yield
    except ServeRefusedError as refused:
        raise CommandError(str(refused)) from None
    except OSError as error:
        raise CommandError(unusable(str(data), error)) from None


def day(moment: datetime.datetime) -> str:
    return moment.date().isoformat()


def tell(made: SetUp, admin: str) -> None:
    """Print what was made, and the next commands."""
    from ottla.server.secure_setup import (
        AUTHORITY,
        AUTHORITY_KEY,
        CLIENT,
        JAVA_CLIENT,
        NODE,
        NODE_CERTIFICATE,
    )

    names = ", ".join(made.address.names)
    files = {
        AUTHORITY: f"certificate of the authority, for clients; valid until {day(made.authority_until)}",
        AUTHORITY_KEY: "private key of the authority; keep it elsewhere, you need it to renew the node's certificate",
        NODE_CERTIFICATE: f"key and certificate of the node; valid until {day(made.node_until)}, for {names}",
        NODE: "settings of the node",
        CLIENT: f"login of {admin} for librdkafka and for ottla commands, with the password",
        JAVA_CLIENT: f"login of {admin} for Java, with the password",
    }
    say(f"Made {made.folder}:")
    for name, about in files.items():
        say(f"  {name:22}  {about}")
    config = f"--command-config {quote(made.path(CLIENT))}"
    say(f"Added the user {admin}, who may do everything. Next:")
    for line in (
        f"ottla serve --config {quote(made.path(NODE))}",
        f"ottla topics create orders {config}",
        f"ottla users add ada {config}",
        f"ottla acls add --principal User:ada --producer --consumer --topic orders --group orders {config}",
    ):
        say(f"  {line}")


def tell_cluster(made: ClusterSetUp, metadata: str, admin: str) -> None:
    """Print what was made for a cluster, and the next commands."""
    from ottla.server.secure_setup import AUTHORITY, AUTHORITY_KEY, CLIENT, JAVA_CLIENT, NODE

    files = {
        AUTHORITY: f"certificate of the authority, for clients; valid until {day(made.authority_until)}",
        AUTHORITY_KEY: "private key of the authority; keep it elsewhere, you need it to renew the nodes' certificates",
        "N/": f"certificate and settings of node N, with the nodes' secret; valid until {day(made.nodes_until)}",
        CLIENT: f"login of {admin} for librdkafka and for ottla commands, with the password",
        JAVA_CLIENT: f"login of {admin} for Java, with the password",
    }
    say(f"Made {made.folder}:")
    for name, about in files.items():
        say(f"  {name:22}  {about}")
    say(f"Added the user {admin}, who may do everything.")
    say("Copy each node's directory to the same path on its machine, readable by the node's user only. Next:")
    for node_id in made.nodes:
        config = quote(made.path(str(node_id), NODE))
        say(f"  ottla serve --config {config} --metadata {quote(metadata)} --data ./{node_id}")
    say(f"  ottla topics create orders --command-config {quote(made.path(CLIENT))}")
