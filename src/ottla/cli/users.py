"""`ottla users`: the users that authenticate by SASL, and their passwords (SCRAM credentials).

Passwords come from a file, the environment variable OTTLA_PASSWORD or a prompt, never from an argument: the list of
processes shows arguments to everyone on the machine. Works with any Kafka that has SCRAM (KIP-554).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ottla.cli.connection import HERE, Cluster, Output, client, named
from ottla.cli.options import with_shared_options
from ottla.cli.output import CommandError, Format, UsageError, print_done, print_rows
from ottla.cli.plans import Yes, confirm
from ottla.protocol.scram import MECHANISMS

if TYPE_CHECKING:
    from ottla.client import Client

app = typer.Typer(help="Show and change users and their passwords (SASL/SCRAM).", no_args_is_help=True)

VARIABLE = "OTTLA_PASSWORD"


Name = Annotated[str, typer.Argument(metavar="NAME", callback=named, help="Name of the user.")]
PasswordFile = Annotated[
    Path | None,
    typer.Option(
        "--password-file",
        metavar="FILE",
        help=f"File with the password in its first line (default: the variable {VARIABLE}, otherwise a prompt).",
    ),
]


def password_of(file: Path | None) -> str:
    """The password from the file, the environment, or the terminal; raises CommandError if there is none."""
    if file is not None:
        try:
            found = file.read_text().partition("\n")[0].rstrip("\r")
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or error
            raise CommandError(f"The password file {file} can't be read: {why}.") from None
    elif VARIABLE in os.environ:
        found = os.environ[VARIABLE]
    elif sys.stdin.isatty():
        from getpass import getpass

        found = getpass("Password: ")
        if getpass("Again: ") != found:
            raise CommandError("The two passwords differ: nothing was changed.")
    else:
        raise UsageError(f"There is no password: give --password-file FILE, or set {VARIABLE}.")
    if not found:
        raise CommandError("A password can't be empty.")
    return found


@app.command("list")
@with_shared_options
def list_(cluster: Cluster = HERE, format: Output = Format.TABLE) -> None:
    """List users, and the mechanisms by which they can authenticate."""
    with client(cluster) as connected:
        rows = [
            (name, mechanism, iterations)
            for name, known in users_of(connected).items()
            for mechanism, iterations in known.items()
        ]
    print_rows(("USER", "MECHANISM", "ITERATIONS"), sorted(rows), format)


@app.command(epilog="Example: ottla users add ada --password-file ada.secret")
@with_shared_options
def add(name: Name, password_file: PasswordFile = None, cluster: Cluster = HERE, format: Output = Format.TABLE) -> None:
    """Add a user, who can then authenticate by SCRAM-SHA-256, SCRAM-SHA-512, and PLAIN where that is enabled."""
    from ottla.client.credentials import set_password

    with client(cluster) as connected:
        if name in users_of(connected):
            raise CommandError(f"There is a user {name} already: `ottla users password {name}` changes the password.")
        set_password(connected, name, password_of(password_file))
    print_done(f"Added the user {name}.", format, added=name)


@app.command(epilog="Example: ottla users password ada")
@with_shared_options
def password(
    name: Name, password_file: PasswordFile = None, cluster: Cluster = HERE, format: Output = Format.TABLE
) -> None:
    """Change a user's password. Connections that are open stay open."""
    from ottla.client.credentials import set_password

    with client(cluster) as connected:
        if name not in users_of(connected):
            raise CommandError(f"There is no user {name}: `ottla users add {name}` adds one.")
        set_password(connected, name, password_of(password_file))
    print_done(f"Changed the password of {name}.", format, changed=name)


@app.command()
@with_shared_options
def remove(name: Name, yes: Yes = False, cluster: Cluster = HERE, format: Output = Format.TABLE) -> None:
    """Remove a user. Connections that are open stay open; ACLs for the user stay too."""
    from ottla.client.credentials import remove_passwords

    with client(cluster) as connected:
        known = users_of(connected).get(name)
        if known is None:
            raise CommandError(f"There is no user {name}: nothing was removed.")
        confirm(f"Remove the user {name}?", yes)
        remove_passwords(connected, name, known)
    print_done(f"Removed the user {name}.", format, removed=name)


def users_of(connected: Client) -> dict[str, dict[str, int]]:
    """Iterations by mechanism, of each user."""
    from ottla.client.errors import check
    from ottla.protocol.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest

    answer = connected.send(DescribeUserScramCredentialsRequest(None))
    check(answer.error_code, "the users", answer.error_message)
    return {
        result.user: {MECHANISMS.get(each.mechanism, "?"): each.iterations for each in result.credential_infos}
        for result in answer.results
    }
