"""Matches texts with regular expressions from clients, in RE2's syntax: whole names, or parts of values.

The names are those of topics and of transactional ids. Every package may import this module.

RE2 takes time in proportion to the name, whatever the expression is, and rejects an expression that would take more
than `_MEMORY_MAX` bytes. It is imported for the first expression; if it is missing, no expression is valid.

Source: Kafka's GroupMetadataManager.java (refreshRegularExpressions), which uses RE2/J; TransactionStateManager.scala;
KIP-848, KIP-1152.
"""

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any, Final

_MEMORY_MAX: Final = 1 << 20
_LENGTH_MAX: Final = 4_096
"""The maximum length of an expression, in characters."""


class InvalidExpressionError(Exception):
    """Says why an expression cannot be used."""


def matching(expression: str, names: Iterable[str]) -> tuple[str, ...]:
    """The names that match the expression, sorted. Raises InvalidExpressionError."""
    matches = _compiled(expression).Match
    return tuple(sorted(name for name in names if matches(name)))


def searching(expression: str) -> Callable[[str], bool]:
    """A function that says whether a text holds the expression. Raises InvalidExpressionError."""
    found = _compiled(expression, "SearchSet").Match
    return lambda text: bool(found(text))


def _compiled(expression: str, kind: str = "FullMatchSet") -> Any:
    if len(expression) > _LENGTH_MAX:
        raise InvalidExpressionError(f"longer than {_LENGTH_MAX} characters")
    try:
        re2: Any = import_module("re2")
    except ImportError as error:
        raise InvalidExpressionError(f"this node can't read any, {error}") from error
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MEMORY_MAX
    try:
        re2.compile(expression, options=options)
        # A set with one expression, because its match makes no object per name.
        compiled = getattr(re2.Set, kind)(options)
        compiled.Add(expression)
        compiled.Compile()
    except re2.error as error:
        why = error.args[0]
        raise InvalidExpressionError(why.decode(errors="replace") if isinstance(why, bytes) else str(why)) from error
    return compiled
