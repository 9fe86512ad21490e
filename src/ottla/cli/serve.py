"""`ottla serve`: run a node until SIGTERM or SIGINT.

It parses the options and the properties file, and prints the start-up line. It uses argparse and imports nothing else
of the command line, because a node must start in a fraction of a second.
"""

from __future__ import annotations

import argparse
import sys
from itertools import pairwise
from typing import TYPE_CHECKING, NoReturn

from ottla import __version__
from ottla.cli.serve_security import add_options, first_user, secure
from ottla.cli.server_properties import NotServedError, take_listeners

if TYPE_CHECKING:
    from collections.abc import Iterable
    from logging import Logger

    from ottla.cli.console_process import ConsoleProcess
    from ottla.server.main import Server, ServerOptions

DEFAULT_DATA = "ottla-data"
DEFAULT_LISTEN = "127.0.0.1:9092"
CONSOLE = "127.0.0.1:9080"

EPILOG = """\
Settings have Kafka's own property names; an option overrides the file.

examples:
  ottla serve
  ottla serve --data /var/lib/ottla --listen 0.0.0.0:9092 --set ottla.allow.public.plaintext=true
  ottla serve --config server.properties --set log.retention.hours=24 --durability fsync
  ottla serve --tls-cert node.pem --tls-key node.key --sasl scram-sha-512 --add-user admin --listen 0.0.0.0:9092
  ottla serve --console
  ottla serve --log-format json --metrics 127.0.0.1:9100
"""


class Parser(argparse.ArgumentParser):
    """Reports invalid arguments in one sentence."""

    def error(self, message: str) -> NoReturn:
        raise NotServedError(f"{message[:1].upper()}{message[1:]}. See `ottla serve --help`.")


def parser() -> Parser:
    made = Parser(
        prog="ottla serve",
        add_help=False,
        description="Run a node that speaks the Apache Kafka protocol, until SIGTERM or SIGINT.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add("-h", "--help", action="store_true", help="show this help message and exit")
    add("--data", metavar="DIR", help=f"data directory (default: log.dirs of the file, otherwise ./{DEFAULT_DATA})")
    where = f"address to listen on; may be repeated (default: {DEFAULT_LISTEN})"
    add("--listen", metavar="[NAME://]HOST:PORT", action="append", help=where)
    add("--node-id", metavar="N", help="number of the node in its cluster (default: node.id of the file, otherwise 1)")
    add("--rack", metavar="NAME", help="rack of the node (default: broker.rack of the file)")
    add(
        "--metadata",
        metavar="STORE",
        help="store shared with other nodes: a SQLite file, or zookeeper://HOST:PORT,.../PATH (default: none)",
    )
    add("--config", metavar="FILE", help="properties file, as Kafka's server.properties (default: none)")
    add("--set", metavar="KEY=VALUE", action="append", default=[], help="one setting; may be repeated")
    add(
        "--durability",
        choices=("page-cache", "fsync"),
        help="what acks=all waits for: the page cache or an fsync (default: page-cache)",
    )
    add(
        "--log-format",
        choices=("text", "json"),
        default="text",
        help="format of the log on standard error (default: text)",
    )
    add("--metrics", metavar="HOST:PORT", help="address for Prometheus metrics at /metrics (default: none)")
    add(
        "--console",
        metavar="HOST:PORT",
        nargs="?",
        const=CONSOLE,
        help=f"show the node in the browser, at this address (default: no console; {CONSOLE} without an address)",
    )
    add_options(made.add_argument_group("security"))
    add("--version", action="store_true", help="show the version and exit")
    return made


SWITCH_S = 0.001
"""How long the event loop waits at most for another busy thread; Python's default of 5 ms adds up during a request."""
COLLECTIONS = (50_000, 5, 1000)
"""Thresholds of Python's garbage collector: new objects before a collection, and how rarely old generations are
examined.

With Python's defaults, an answer about 2,000 topics causes a full collection: a pause of 70 ms. The objects that a node
drops are rarely cyclic.
"""


def main(arguments: list[str]) -> int:
    """Run a node. Returns 0 after a clean stop, 1 if another start may succeed, 2 if the options, the settings or the
    data directory must change first."""
    log_format = "json" if asks_for_json(arguments) else "text"
    try:
        given = parser().parse_args(arguments)
        if given.help or given.version:  # argparse's own actions hide errors of the output
            print(parser().format_help() if given.help else f"ottla {__version__}", flush=True)
            return 0
        options, notes = options_of(given)
    except NotServedError as failure:
        tell(str(failure), log_format)
        return failure.code
    log = logger(log_format)
    for note in notes:
        log.info(note)
    return run(options, log_format, given.console)


def asks_for_json(arguments: list[str]) -> bool:
    """Whether to report failures as JSON, even if the arguments are invalid."""
    pairs = [*arguments, *map("=".join, pairwise(arguments))]
    return "--log-format=json" in pairs


def logger(log_format: str) -> Logger:
    """The server's log, written to standard error from now on."""
    import logging

    from ottla.server.logs import configure

    configure("json" if log_format == "json" else "text")
    return logging.getLogger("ottla.server")


def tell(sentence: str, log_format: str) -> None:
    """Report why the node does not start."""
    if log_format == "json":
        logger(log_format).error(sentence)
    else:
        print(f"ottla: {sentence}", file=sys.stderr)


def run(options: ServerOptions, log_format: str, console_at: str | None = None) -> int:
    """Serve on a new event loop, and print the start-up line. `console_at`: where a console listens."""
    import gc

    gc.disable()  # imported objects are never freed: collecting during imports costs a tenth of the start
    import uvloop

    from ottla.server.main import ServeRefusedError, SettingsRefusedError, serve

    serving = False
    beside: list[ConsoleProcess] = []

    def ready(server: Server) -> None:
        nonlocal serving
        serving = True
        gc.freeze()
        gc.set_threshold(*COLLECTIONS)
        sys.setswitchinterval(SWITCH_S)
        gc.enable()
        try:
            print(greeting(server, log_format), flush=True)
        except OSError as error:  # a closed pipe or a full disk: clients can still be served
            logger(log_format).warning("the start-up line could not be written: %s", error.strerror)
        if console_at is not None:
            beside.append(console_of(server, console_at, log_format))

    try:
        uvloop.run(serve(options, ready))
    except ServeRefusedError as refused:
        tell(str(refused), log_format)
        return 2 if isinstance(refused, SettingsRefusedError) else 1
    except Exception:
        if not serving:
            raise
        # The log gets the whole traceback, because the error may not occur again; the user gets a sentence.
        logger(log_format).exception("the node ended by a fault of its own")
        return 1
    finally:
        for each in beside:
            each.stop()
    return 0


def console_of(server: Server, listen: str, log_format: str) -> ConsoleProcess:
    """A console for the node, which reports to the node's log."""
    from ottla.cli.console_process import ConsoleProcess

    return ConsoleProcess(server.address, listen, logger(log_format).info)


def greeting(server: Server, log_format: str) -> str:
    """The start-up line: where clients connect, where the data is, and the version."""
    from ottla.server.listeners import join_address

    metrics = server.metrics.address if server.metrics is not None else None
    url = server.metrics.url if server.metrics is not None else ""
    addresses = {each.name: join_address(each.host, each.port) for each in reversed(server.listening)}
    if log_format == "json":
        import json

        fields = {"event": "started", "address": server.address, "data": server.options.directory, "metrics": metrics}
        return json.dumps({**fields, "listeners": addresses, "version": __version__})
    at = server.address
    if len(addresses) > 1:
        at = " and ".join(f"{name}://{address}" for name, address in reversed(addresses.items()))
    also = f", metrics at {url}/metrics" if url else ""
    return f"Ottla {__version__} serves Kafka clients at {at}, data in {server.options.directory}{also}"


def options_of(given: argparse.Namespace) -> tuple[ServerOptions, list[str]]:
    """The server's options, and sentences about properties that do not apply as written; raises NotServedError for an
    invalid option."""
    import os

    from ottla.broker.config.unserved import why_unserved

    settings = read_config(given.config) if given.config else {}
    settings |= settings_of(given.set)
    if (why := why_unserved(settings)) is not None:
        raise NotServedError(why)
    if given.durability is not None:
        settings["ottla.durability"] = given.durability
    if given.node_id is not None:
        settings["node.id"] = given.node_id
    if given.rack is not None:
        settings["broker.rack"] = given.rack
    directories = (settings.pop("log.dirs", None) or settings.pop("log.dir", None) or DEFAULT_DATA).split(",")
    if given.data is None and len(directories) > 1:
        raise NotServedError("A node has one data directory: log.dirs names several.")
    chosen = given.data if given.data is not None else directories[0].strip()
    if not chosen:
        raise NotServedError("The data directory has no name: choose one with --data DIR.")
    protocol = secure(given, settings)
    if given.listen:
        settings.pop("listeners", None)
    of_file, notes = take_listeners(settings)
    listen: list[str] = given.listen or of_file or [DEFAULT_LISTEN]
    if protocol is not None:
        listen = [text if "://" in text else f"{protocol}://{text}" for text in listen]
    from ottla.server.main import ServerOptions

    directory = os.path.abspath(chosen)
    options = ServerOptions(
        directory=directory,
        listen=tuple(listen),
        settings=settings,
        metrics=given.metrics,
        metadata=given.metadata,
        prepare=first_user(given, settings, listen),
    )
    return options, notes


def settings_of(texts: Iterable[str]) -> dict[str, str]:
    """The settings in texts of the form KEY=VALUE; raises NotServedError."""
    settings: dict[str, str] = {}
    for each in texts:
        key, equals, value = each.partition("=")
        if not equals or not key.strip():
            raise NotServedError(f"--set takes KEY=VALUE, not {each!r}.")
        settings[key.strip()] = value.strip()
    return settings


def read_config(path: str) -> dict[str, str]:
    """The settings of a properties file; raises NotServedError if it cannot be read."""
    from ottla.cli.properties import BadPropertiesError, read_properties

    try:
        return read_properties(path)
    except BadPropertiesError as error:
        raise NotServedError(str(error)) from None
