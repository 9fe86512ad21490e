"""What `--help` says: each argument and option has a text that stands alone."""

from collections.abc import Iterator
from typing import Any

from ottla.cli.tree import command

FRAGMENTS = ("And", "But", "Else", "Then", "Otherwise", "Or", "Of", "Again", "With", "Which")
"""Words that begin a text which continues another one."""


def parameters(at: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Each argument and option of each command."""
    for each in at.params:
        if not getattr(each, "hidden", False):
            yield f"{' '.join(path)} {each.opts[0]}", each
    for name, below in getattr(at, "commands", {}).items():
        yield from parameters(below, (*path, name))


EVERY = dict(parameters(command()))


def commands(at: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, str]]:
    """Each command, with the first paragraph of its help: lists of commands show that, line by line."""
    yield " ".join(path), (at.help or "").split("\n\n")[0]
    for name, below in getattr(at, "commands", {}).items():
        yield from commands(below, (*path, name))


def test_each_command_is_introduced_in_one_line() -> None:
    assert not [(name, said) for name, said in commands(command()) if "\n" in said or len(said) > 110]


def test_each_text_stands_alone() -> None:
    odd = [
        f"{name}: {each.help}"
        for name, each in EVERY.items()
        if len((each.help or "").split()) < 2
        or each.help.split()[0] in FRAGMENTS
        or not (each.help[0].isupper() or name.startswith("serve "))
    ]
    assert not odd


def test_each_default_is_said() -> None:
    unsaid = [
        f"{name}: {each.help}"
        for name, each in EVERY.items()
        if each.param_type_name == "option" and each.default not in (None, False, "") and "default" not in each.help
    ]
    assert not unsaid
