"""Write docs/configuration.md and docs/cli.md from what they describe; `--check` fails where they are stale.

python -m tools.write_docs [--check]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from textwrap import fill
from typing import Any, get_args

from ottla.broker.config.broker_table import BROKER_CONFIGS
from ottla.broker.config.key import ConfigKey, Update, printed
from ottla.broker.config.topic_table import GROUP_CONFIGS, TOPIC_CONFIGS
from ottla.cli.connection import Output
from ottla.cli.serve import parser
from ottla.cli.tree import command as whole_tree

OUTPUT_HELP = get_args(Output)[1].help
DOCS = Path(__file__).resolve().parent.parent / "docs"

CONFIGURATION = """\
# Configuration

<!-- Written by tools/write_docs.py; do not edit. -->

Settings have the names, types, defaults and legal values of Apache Kafka 4.3. A node reads its settings from a
properties file (`ottla serve --config server.properties`) and from `--set name=value`. If the column "may change" has
an entry, you can alter the setting of a running node with `ottla configs alter`. Configs of topics and groups change
with `ottla topics alter` and `ottla configs alter group`. A node refuses an unknown name or an illegal value with a
message.

A `server.properties` written for Kafka starts a node. A log line at the start names the settings without effect, such
as the controller's listeners in a file of Kafka 4. A listener without a host is opened on loopback only, unless
`ottla.allow.public.plaintext` is true.

**A node does not start with a setting whose protection it cannot give.** It ends with exit code 2 and a message.
[Security](security.md) says which protection is served. These settings stop the start, also behind
`listener.name.NAME.`, unless they have Kafka's defaults:

- other authorizers than Kafka's own, and `principal.builder.class`
- `super.users` and `allow.everyone.if.no.acl.found=false` without an authorizer
- other mechanisms than the nodes' own in `sasl.mechanism.inter.broker.protocol`
- `delegation.token.*`, Kerberos and JAAS in `sasl.*`, and the `ssl.*` that the table lacks
- policies and quota callbacks (`*.policy.class.name`, `client.quota.callback.class`), because no Java class is loaded

No client can set one of them at run time. If an older version stored one, a warning at each start says how to remove
it.

Some defaults differ from Kafka's: a node listens on loopback only, and internal topics have one replica. The table
names the others.
"""

COMMANDS = """\
# The command line

<!-- Written by tools/write_docs.py; do not edit. -->

A command is a noun and a verb. Every command explains itself with `--help`, prints JSON with `--format json`, and
finds the cluster through `--bootstrap` (or `--bootstrap-server`, or `OTTLA_BOOTSTRAP` in the environment). A failure
prints one sentence to standard error; the exit code is then 1, or 2 if the command was not understood.
`ottla --install-completion` installs the completion of commands, topics and groups for your shell.

A command that names its target acts at once (`delete`, `alter`, `pause`). A command that selects its targets by a rule
(`reset-offsets`, `redrive`, `vacuum`) shows what it would do, and acts only with `--execute`. Give times as
ISO 8601 (UTC if they have no zone) or as milliseconds since 1970; output is ISO 8601 in UTC.
"""


def row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def config_table(configs: Mapping[str, ConfigKey], updates: bool) -> Iterator[str]:
    headings = ["name", "type", "default", "meaning"]
    if updates:
        headings.insert(3, "may change")
    yield row(headings)
    yield row("---" for _ in headings)
    for name, key in sorted(configs.items()):
        default = "" if key.default is None else f"`{printed(key.default)}`"
        legal = f" One of: {', '.join(key.choices)}." if key.choices else ""
        cells = [f"`{name}`", key.kind.name.lower(), default, key.doc + legal]
        if updates:
            cells.insert(3, "" if key.update is Update.READ_ONLY else key.update.value)
        yield row(cells)


def configuration() -> str:
    parts = [CONFIGURATION, "## Nodes\n", *config_table(BROKER_CONFIGS, True)]
    parts += ["\n## Topics\n", *config_table(TOPIC_CONFIGS, False)]
    parts += ["\n## Groups\n", *config_table(GROUP_CONFIGS, False), ""]
    return "\n".join(parts)


def is_shared(option: Any) -> bool:
    """Whether every command has it, with this meaning: the `--format` of a table is another than that of a command."""
    return option.name in ("bootstrap", "command_config", "properties", "help") or (
        option.name == "format" and option.help == OUTPUT_HELP
    )


def options(command: Any) -> Iterator[str]:
    """One row per option, but for those that every command has."""
    shown = [each for each in command.params if each.param_type_name == "option" and not is_shared(each)]
    if shown:
        yield row(("option", "meaning"))
        yield row(("---", "---"))
    for each in shown:
        names = ", ".join(f"`{name}`" for name in sorted((*each.opts, *each.secondary_opts), key=len, reverse=True))
        yield row((names, each.help or ""))


def described(name: str, command: Any) -> Iterator[str]:
    arguments = " ".join(
        each.metavar or each.name.upper() for each in command.params if each.param_type_name == "argument"
    )
    yield f"### ottla {name} {arguments}".rstrip() + "\n"
    for paragraph in command.help.split("\n\n"):
        yield f"{fill(paragraph, 119, break_on_hyphens=False, break_long_words=False)}\n"
    if command.epilog:
        yield f"    {command.epilog.removeprefix('Example: ')}\n"
    yield from options(command)
    yield ""


def branch(name: str, command: Any) -> Iterator[str]:
    """A command, or what is under a noun; a noun that does something by itself comes before what is under it."""
    below = getattr(command, "commands", {})
    if not below or command.invoke_without_command:
        yield from described(name, command)
    for verb, each in below.items():
        yield from branch(f"{name} {verb}", each)


def serve() -> Iterator[str]:
    """`ottla serve` has a parser of its own (see cli/serve.py)."""
    made = parser()
    yield f"## serve\n\n{made.description}\n"
    yield row(("option", "meaning"))
    yield row(("---", "---"))
    for each in made._actions:
        value = each.metavar or (f"{{{','.join(each.choices)}}}" if each.choices else "")
        yield row((f"`{each.option_strings[-1]} {value}`".replace(" `", "`"), each.help or ""))
    yield f"\n```text\n{(made.epilog or '').rstrip()}\n```\n"


def commands() -> str:
    parts = [COMMANDS, *serve()]
    for name, command in whole_tree().commands.items():
        if name != "serve":
            parts.append(f"## {name}\n")
            parts += branch(name, command)
    return "\n".join(parts).rstrip() + "\n"


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--check", action="store_true", help="write nothing; 1 where a file is stale")
    check = asked.parse_args().check
    stale = 0
    for name, text in (("configuration.md", configuration()), ("cli.md", commands())):
        path = DOCS / name
        if check and (not path.exists() or path.read_text() != text):
            print(f"{path.name} is stale: run `make docs`", file=sys.stderr)
            stale = 1
        elif not check:
            DOCS.mkdir(exist_ok=True)
            path.write_text(text)
    return stale


if __name__ == "__main__":
    sys.exit(main())
