"""Turns options, client properties and variables of the environment into the settings of a schema registry.

Passwords and tokens come from a file, a profile or the environment. Command lines are in the list of processes, which
all users of the machine can read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ottla.cli.connection import Cluster, pairs
from ottla.cli.output import CommandError, UsageError
from ottla.cli.printing import Shown

if TYPE_CHECKING:
    from ottla.schemas.encoder import Chosen
    from ottla.schemas.registry import RegistrySettings

SchemaRegistry = Annotated[
    str | None,
    typer.Option(
        "--schema-registry",
        envvar="OTTLA_SCHEMA_REGISTRY",
        metavar="URL",
        help="Schema registry of Avro, Protobuf and JSON Schema (default: none).",
    ),
]
KeySchema = Annotated[
    str | None,
    typer.Option(
        "--key-schema", metavar="SUBJECT[:VERSION]", help="Schema that encodes keys given as JSON (default: none)."
    ),
]
ValueSchema = Annotated[
    str | None,
    typer.Option(
        "--value-schema",
        metavar="SUBJECT[:VERSION]",
        help="Schema that encodes values given as JSON; without VERSION the newest (default: none).",
    ),
]
URL: Final = "schema.registry.url"
LOGIN: Final = "schema.registry.basic.auth.user.info"
TOKEN: Final = "schema.registry.bearer.auth.token"
CA_FILE: Final = "schema.registry.ssl.ca.location"
VARIABLES: Final = {
    LOGIN: "OTTLA_SCHEMA_REGISTRY_LOGIN",
    TOKEN: "OTTLA_SCHEMA_REGISTRY_TOKEN",
    CA_FILE: "OTTLA_SCHEMA_REGISTRY_CA",
}
"""Variables of the environment that win over the properties."""
TOLD_MAX: Final = 100
"""Reasons that one command reports."""


def registry_of(cluster: Cluster, url: str | None) -> RegistrySettings | None:
    """The registry that the option, the environment or the client properties name; None without one. Raises
    CommandError for one that cannot be used."""
    given = cluster.registry_properties()
    url = url or given.get(URL)
    if url is None:
        return None
    from ottla.schemas.decoder import missing_library
    from ottla.schemas.registry import RegistrySettings, WrongRegistryError

    if (missing := missing_library()) is not None:
        raise CommandError(
            f"A schema registry needs the extra `schemas`: {missing} is missing. In a clone: pip install '.[schemas]'."
        )
    if unknown := sorted(given.keys() - {URL, *VARIABLES}):
        raise UsageError(f"Ottla does not support the client property {unknown[0]}.")
    if public := pairs(cluster.properties, "A property").keys() & {LOGIN, TOKEN}:
        secret = min(public)
        raise UsageError(
            f"{secret} would be in the list of processes: put it into a file of client properties, or into the "
            f"variable {VARIABLES[secret]}."
        )
    given |= {name: value for name, variable in VARIABLES.items() if (value := os.environ.get(variable))}
    user, _, password = given.get(LOGIN, "").partition(":")
    settings = RegistrySettings(url, (user, password) if user else None, given.get(TOKEN), given.get(CA_FILE))
    try:
        settings.require_usable()
    except WrongRegistryError as wrong:
        raise UsageError(str(wrong)) from None
    return settings


def decoding(registry: RegistrySettings, tell: Callable[[str], None], stack: ExitStack) -> Callable[[Shown], Shown]:
    """A function that adds the decoded key and value to a record. `tell` gets a sentence, once, about each reason why
    something is not decoded. The stack closes the decoder."""
    from ottla.schemas.decoder import Decoder
    from ottla.schemas.framing import framed
    from ottla.schemas.registry import Bounds

    decoder = Decoder(registry)
    stack.callback(decoder.close)
    told: set[str] = set()

    def decode(record: Shown) -> Shown:
        parts = [
            framed(data, record.headers, is_key=is_key) if isinstance(data, bytes) else None
            for data, is_key in ((record.key, True), (record.value, False))
        ]
        key, value = decoder.decoded(parts, Bounds())
        for each in (key, value):
            if each is not None and each.json is None:
                why = f"Not decoded, {each.schema}: {each.why}"
                if why not in told and len(told) < TOLD_MAX:
                    told.add(why)
                    tell(why)
        return record._replace(decoded_key=key, decoded_value=value)

    return decode


def encoding(
    cluster: Cluster, url: str | None, schemas: Mapping[str, str], stack: ExitStack
) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A function that encodes the key and value of a record, each if there is a SUBJECT[:VERSION] for it. It raises
    ValueError with the rest of a sentence. The stack closes the encoder. Raises UsageError and CommandError."""
    registry = registry_of(cluster, url)
    if registry is None:
        raise UsageError("A schema needs --schema-registry URL.")
    from ottla.schemas.decoder import Decoder
    from ottla.schemas.encoder import NotEncodedError
    from ottla.schemas.registry import Bounds, SchemaUnavailableError

    decoder = Decoder(registry)
    stack.callback(decoder.close)
    try:
        chosen = {part: chosen_of(text) for part, text in schemas.items()}
        versions = {part: decoder.encoder.version(each, Bounds()) for part, each in chosen.items()}
    except SchemaUnavailableError as unavailable:
        raise CommandError(str(unavailable)) from None

    def encode(record: dict[str, Any]) -> dict[str, Any]:
        found = dict(record)
        for part, each in chosen.items():
            text = record.get(part)
            if text is None:
                continue
            try:
                found[part] = decoder.encoder.encoded(each, text.decode(), Bounds(), versions[part]).data
            except UnicodeDecodeError:
                raise ValueError(f"cannot be sent, because its {part} is not text in UTF-8.") from None
            except NotEncodedError as refused:
                raise ValueError(f"cannot be sent because of its {part}. {refused}") from None
        return found

    return encode


def chosen_of(text: str) -> Chosen:
    """The schema that SUBJECT[:VERSION] names. Subjects may have colons."""
    from ottla.schemas.encoder import Chosen

    subject, colon, version = text.rpartition(":")
    if colon and subject and (version == "latest" or (version.isascii() and version.isdigit() and int(version[:10]))):
        return Chosen(subject, None if version == "latest" else int(version[:10]))
    return Chosen(text)
