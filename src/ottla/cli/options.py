"""Lets commands share options: a parameter whose type is a dataclass becomes one option per field.

It works on signatures alone, which is all that typer reads. A name of a shared option that a command gives to an option
of its own is the command's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, TypeVar, cast, get_type_hints

Command = TypeVar("Command", bound=Callable[..., Any])


def with_shared_options(command: Command) -> Command:
    """The command with the signature for typer. The default of such a parameter supplies the defaults of its
    options."""
    hints = get_type_hints(command, include_extras=True)
    parameters = list(signature(command).parameters.values())

    @wraps(command)
    def called(**given: Any) -> Any:
        return command(**{each.name: value_of(each.name, hints[each.name], given) for each in parameters})

    own = {name for each in parameters if not is_dataclass(hints[each.name]) for name in names_of(hints[each.name])}
    flat = [
        option.replace(annotation=without(own, option.annotation)) if is_dataclass(hints[each.name]) else option
        for each in parameters
        for option in options_of(each.name, hints[each.name], each.default)
    ]
    told = cast(Any, called)
    told.__signature__ = Signature(flat)
    told.__annotations__ = {each.name: each.annotation for each in flat}
    return told


def names_of(kind: Any) -> tuple[str, ...]:
    """The names of the option that is annotated so, such as --format."""
    found: list[str] = []
    for each in getattr(kind, "__metadata__", ()):
        if isinstance(first := getattr(each, "default", None), str):  # typer's word for the first name
            found.append(first)
        found += getattr(each, "param_decls", None) or ()
    return tuple(found)


def without(taken: set[str], kind: Any) -> Any:
    """The annotation of an option without these names."""
    if taken.isdisjoint(names_of(kind)):
        return kind
    told = [copy(each) for each in kind.__metadata__]
    for each in told:
        each.param_decls = tuple(name for name in each.param_decls if name not in taken)
    return Annotated[kind.__origin__, *told]


def options_of(name: str, kind: Any, default: Any) -> Iterator[Parameter]:
    """The option of a parameter, or the options of its fields."""
    if not is_dataclass(kind):
        yield Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        return
    hints = get_type_hints(kind, include_extras=True)
    for field in fields(kind):
        yield from options_of(field.name, hints[field.name], getattr(default, field.name))


def value_of(name: str, kind: Any, given: dict[str, Any]) -> Any:
    """The value of a parameter, built from the values of its options."""
    if not is_dataclass(kind):
        return given[name]
    hints = get_type_hints(kind, include_extras=True)
    values = {field.name: value_of(field.name, hints[field.name], given) for field in fields(kind)}
    return cast(Callable[..., Any], kind)(**values)
