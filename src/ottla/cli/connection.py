"""Connects the commands to a cluster: the options they share, and confluent-kafka clients made from them.

It parses addresses and client properties, and turns errors of librdkafka into messages for people. Heavy modules are
imported when a command runs, never when its help is shown.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from ottla.cli.output import CommandError, Format, UsageError, ended
from ottla.cli.profiles import complete_profiles, read_profile
from ottla.cli.properties import read_properties
from ottla.escaping import visible

if TYPE_CHECKING:
    import ssl

    from confluent_kafka.admin import AdminClient

    from ottla.client import Client
    from ottla.client.sasl import Login

T = TypeVar("T")

REQUEST_TIMEOUT_S = 30.0
CONNECT_TIMEOUT_S = 5.0

Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap",
        "--bootstrap-server",
        "-b",
        envvar="OTTLA_BOOTSTRAP",
        help="Addresses of one or more nodes (default localhost:9092).",
        metavar="HOST:PORT,...",
    ),
]
CommandConfig = Annotated[
    Path | None,
    typer.Option(
        "--command-config",
        "--config",
        help="File of client properties, one KEY=VALUE a line (default: none).",
        metavar="FILE",
    ),
]
Profile = Annotated[
    str | None,
    typer.Option(
        "--profile",
        autocompletion=complete_profiles,
        help="Client properties by name: ~/.config/ottla/profiles/NAME.properties (default: none).",
        metavar="NAME",
    ),
]
Properties = Annotated[
    list[str] | None,
    typer.Option(
        "--command-property",
        "-X",
        help="Client property; may be repeated, and wins over the file (default: none).",
        metavar="KEY=VALUE",
    ),
]
Output = Annotated[Format, typer.Option("--format", help="Format of the output: table or json (default table).")]

LOCAL = "localhost:9092"
OF_REGISTRY = "schema.registry."


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster that a command connects to, and how: options of every command that connects."""

    bootstrap: Bootstrap = LOCAL
    command_config: CommandConfig = None
    properties: Properties = None
    profile: Profile = None

    def given_properties(self) -> dict[str, str]:
        """Client properties from the file or profile and the arguments, which override it; raises CommandError if they
        cannot be read. The file's bootstrap.servers replace the default address only, as in Kafka's tools."""
        return {name: value for name, value in self._properties().items() if not name.startswith(OF_REGISTRY)}

    def registry_properties(self) -> dict[str, str]:
        """The properties about a schema registry, which clients of Kafka do not know. Raises CommandError."""
        return {name: value for name, value in self._properties().items() if name.startswith(OF_REGISTRY)}

    def _properties(self) -> dict[str, str]:
        if self.command_config and self.profile:
            raise UsageError("--command-config and --profile both name client properties: use one of them.")
        read = read_properties(str(self.command_config)) if self.command_config else {}
        if self.profile:
            read = read_profile(self.profile)
        if self.bootstrap != LOCAL:
            read.pop("bootstrap.servers", None)
        return read | pairs(self.properties, "A property")


HERE = Cluster()
"""The default of every command."""


def named(given: T) -> T:
    """The callback of arguments that are names; raises typer.BadParameter for an empty name."""
    if given == "" or (isinstance(given, (list, tuple)) and "" in given):
        raise typer.BadParameter("a name cannot be empty")
    return given


def pairs(given: list[str] | None, what: str) -> dict[str, str]:
    """KEY=VALUE arguments as a dictionary; raises CommandError for one without an equals sign."""
    found: dict[str, str] = {}
    for each in given or ():
        key, equals, value = each.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"{what} must be KEY=VALUE, not {each!r}.")
        found[key.strip()] = value
    return found


def address(text: str, default_port: int | None = None) -> tuple[str, int]:
    """(host, port) of HOST:PORT or [IPV6]:PORT; raises CommandError for any other text."""
    scheme, found, rest = text.partition("://")
    if found:
        raise UsageError(f"{text!r} is no address: write {rest.rstrip('/') or 'HOST:PORT'}, without {scheme}://.")
    bare = text.removeprefix("[").removesuffix("]")
    if bare.count(":") > 1 and text in (bare, f"[{bare}]"):
        host, port = bare, ""  # an IPv6 address without a port
    else:
        host, _, port = text.rpartition(":") if ":" in text else (text, "", "")
        host = host.removeprefix("[").removesuffix("]")
    if host and not port and default_port is not None and not text.endswith(":"):
        return host, default_port
    if not host or not port.isdecimal() or int(port) > 65535:
        raise UsageError(f"{text!r} is no address: expected HOST:PORT, as in localhost:9092 or [::1]:9092.")
    return host, int(port)


def addresses(bootstrap: str) -> str:
    """HOST:PORT,... with explicit ports and IPv6 addresses in brackets, as clients expect it."""
    found = [address(each.strip(), 9092) for each in bootstrap.split(",")]
    return ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in found)


def require_listener(bootstrap: str, given: Mapping[str, Any] | None = None) -> None:
    """Raise CommandError if no address accepts a connection, because librdkafka would retry for a minute. Also raise it
    if the first address that does uses a security protocol other than that of the `given` properties."""
    from ottla.cli.listener_probe import mismatch

    whys: list[str] = []
    for each in addresses(bootstrap).split(","):

        def connect(place: tuple[str, int] = address(each)) -> socket.socket:
            return socket.create_connection(place, CONNECT_TIMEOUT_S)

        try:
            if given is None:
                connect().close()
            elif (why := mismatch(each, connect, given)) is not None:
                raise CommandError(why)
            return
        except OSError as error:
            whys.append(f"{each}: {error.strerror or error}")
    raise CommandError(f"No broker can be reached at {'; '.join(whys)}. Is one running? `ottla serve` starts one.")


def client_properties(cluster: Cluster) -> dict[str, Any]:
    """librdkafka's properties for this cluster; raises CommandError if it cannot be reached."""
    given = cluster.given_properties()
    bootstrap = given.pop("bootstrap.servers", cluster.bootstrap)
    require_listener(bootstrap, given)
    found: dict[str, Any] = {"bootstrap.servers": addresses(bootstrap), "client.id": "ottla", "log_level": 2, **given}
    if str(given.get("sasl.mechanism") or given.get("sasl.mechanisms") or "").upper() == "OAUTHBEARER":
        return with_tokens(found, given)
    return found


@dataclass(frozen=True, slots=True)
class TokensForLibrdkafka:
    """Gives librdkafka the tokens of Ottla's own client: it knows neither files nor Kafka's names."""

    login: Login

    def __call__(self, config: str) -> tuple[str, float]:
        from ottla.client.oauth import expiry_of

        assert self.login.tokens is not None
        token = self.login.tokens()
        return token, expiry_of(token)


def with_tokens(found: dict[str, Any], given: Mapping[str, str]) -> dict[str, Any]:
    """librdkafka's properties with a callback in place of those about tokens; raises CommandError if they can't be
    used."""
    from ottla.client.oauth import PROPERTIES
    from ottla.client.sasl import WrongLoginError, login_of

    try:
        login = login_of(given)
    except WrongLoginError as wrong:
        raise CommandError(str(wrong)) from None
    if login is None:
        return found
    kept = {name: value for name, value in found.items() if name not in (*PROPERTIES, "sasl.jaas.config")}
    return kept | {"oauth_cb": TokensForLibrdkafka(login)}


def own_clients(given: Mapping[str, Any], timeout_s: float = REQUEST_TIMEOUT_S) -> Callable[[], Client]:
    """A function that makes Ottla's own clients for the cluster of these client properties; raises CommandError for a
    login or certificates that can't be used."""
    from ottla.client import Client

    tls = tls_of(given) if str(given.get("security.protocol", "")).upper().endswith("SSL") else None
    login = own_login(given)
    return lambda: Client(
        given["bootstrap.servers"], client_id=given["client.id"], timeout_s=timeout_s, tls=tls, login=login
    )


def own_login(given: Mapping[str, Any]) -> Login | None:
    """The login of Ottla's own clients in these client properties; raises CommandError for one that can't be used."""
    from ottla.client.sasl import WrongLoginError, login_of

    by_token = given.get("oauth_cb")
    if isinstance(by_token, TokensForLibrdkafka):
        return by_token.login
    try:
        return login_of({name: str(value) for name, value in given.items()})
    except WrongLoginError as wrong:
        raise CommandError(str(wrong)) from None


@contextmanager
def plain_failures() -> Iterator[None]:
    """Turn the errors of Ottla's own client into sentences."""
    from ottla.client import ClientError

    try:
        yield
    except ClientError as failure:
        raise CommandError(ended(failure)) from None


def connect(cluster: Cluster) -> AdminClient:
    """An admin client for this cluster."""
    from confluent_kafka.admin import AdminClient

    with plain_errors():
        return AdminClient(client_properties(cluster))


@contextmanager
def client(cluster: Cluster) -> Iterator[Client]:
    """Ottla's own client for this cluster; its errors become sentences."""
    make = own_clients(client_properties(cluster))
    with plain_failures(), make() as made:
        yield made


def tls_of(given: Mapping[str, Any]) -> ssl.SSLContext:
    """The TLS context for librdkafka's properties; raises CommandError if their files cannot be read."""
    from ottla.client.set_up import WrongCertificatesError, tls_context

    try:
        return tls_context(given)
    except WrongCertificatesError as wrong:
        raise CommandError(str(wrong)) from None


@contextmanager
def plain_errors() -> Iterator[None]:
    """Turn Kafka's exceptions, and confluent-kafka's errors for arguments out of range, into sentences."""
    from confluent_kafka import KafkaException

    try:
        yield
    except KafkaException as error:
        raise CommandError(sentence(error.args[0])) from None
    except TimeoutError:
        raise CommandError("The cluster did not answer in time: is one of its brokers away?") from None
    except (ValueError, OverflowError) as error:
        raise CommandError(ended(error)) from None


def sentence(error: Any) -> str:
    """The text of a KafkaError, with Kafka's own name for it, as one sentence."""
    from ottla.protocol.errors import ErrorCode

    text = str(error.str()).strip().rstrip(".").removeprefix("Broker: ").removeprefix("Local: ")
    code = error.code()
    if code <= 0:
        return f"{text}."
    try:
        name = ErrorCode(code).name
    except ValueError:
        name = error.name()
    return f"{text} ({name})."


def with_done(failures: list[str], verb: str, done: Iterable[str]) -> str:
    """A message about what failed, and what succeeded nevertheless."""
    names = ", ".join(done)
    return "\n".join(map(visible, failures)) + (f" {verb} {visible(names)} all the same." if names else "")


BROKER = re.compile(r"^(?:\S*://)?([^/\s]+)/\S+?: (.*?)(?: \(after .*)?$", re.DOTALL)
"""HOST:PORT/NODE: the failure (after some time in some state)."""


def trouble(error: Any) -> str:
    """librdkafka's message about an unreachable broker, as one sentence that begins with its address."""
    text = sentence(error)
    found = BROKER.match(text)
    return text if found is None else f"{found[1]}: {found[2].rstrip('.')}."


def wait(futures: dict[Any, Future[T]], verb: str = "Done:") -> dict[str, T]:
    """The results of an admin call, by name; raises CommandError, naming each call that failed and those that
    succeeded."""
    from confluent_kafka import KafkaException

    results: dict[str, T] = {}
    failures: list[str] = []
    for key, future in futures.items():
        name = str(getattr(key, "name", key))
        try:
            results[name] = future.result(REQUEST_TIMEOUT_S)
        except KafkaException as error:
            failures.append(f"{name}: {sentence(error.args[0])}")
        except (TimeoutError, ValueError, TypeError) as error:
            failures.append(f"{name}: {error or 'no answer in time'}.")
    if failures:
        raise CommandError(with_done(failures, verb, results))
    return results


def matching(pattern: str, names: Iterable[str]) -> list[str]:
    """The topics that match a regular expression, which begins with ^; internal topics only if it begins with ^__.

    Raises UsageError.
    """
    try:
        found = re.compile(pattern)
    except re.error as error:
        raise UsageError(f"{pattern!r} is no regular expression: {error}.") from None
    internal = pattern.startswith("^__")
    return sorted(name for name in names if found.search(name) and (internal or not name.startswith("__")))


def complete_topics(incomplete: str) -> list[str]:
    """Names of topics for shell completion; internal ones only after an underscore. Nothing if no broker answers."""
    bootstrap = os.environ.get("OTTLA_BOOTSTRAP", LOCAL)
    try:
        topics = connect(Cluster(bootstrap)).list_topics(timeout=2).topics
    except Exception:
        return []
    hidden = () if incomplete.startswith("_") else ("__",)
    return sorted(name for name in topics if name.startswith(incomplete) and not name.startswith(hidden))


def complete_groups(incomplete: str) -> list[str]:
    """Names of consumer groups for shell completion; nothing if no broker answers."""
    bootstrap = os.environ.get("OTTLA_BOOTSTRAP", LOCAL)
    try:
        admin = connect(Cluster(bootstrap))  # keep the client alive until the answer arrives
        listed = admin.list_consumer_groups(request_timeout=2).result(2)
    except Exception:
        return []
    return sorted(each.group_id for each in listed.valid if each.group_id.startswith(incomplete))


def complete_share_groups(incomplete: str) -> list[str]:
    """Names of share groups for shell completion; nothing if no broker answers."""
    from ottla.client import Client
    from ottla.client.share_groups import list_share_groups

    try:
        with Client(os.environ.get("OTTLA_BOOTSTRAP", LOCAL), timeout_s=2) as client:
            names = [name for name, _ in list_share_groups(client)]
    except Exception:
        return []
    return [name for name in names if name.startswith(incomplete)]
