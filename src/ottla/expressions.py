"""Matches names with regular expressions that clients chose: RE2's syntax, whole names.

Knows expressions and names, of topics and of transactions. Knows nothing of the rooms, and all may use it.

RE2 takes time in proportion to the name, whatever the expression is, and refuses one that would take more than
`_MEMORY_MAX` bytes. It is imported when the first expression comes; where it is missing no expression is valid.

Source: Kafka's GroupMetadataManager.java (refreshRegularExpressions), which uses RE2/J;
TransactionStateManager.scala; KIP-848, KIP-1152.
"""

from collections.abc import Iterable
from importlib import import_module
from typing import Any, Final

_MEMORY_MAX: Final = 1 << 20
_LENGTH_MAX: Final = 4_096
"""Characters of an expression."""


class InvalidExpression(Exception):
    """Why an expression can't be used."""


def matching(expression: str, names: Iterable[str]) -> tuple[str, ...]:
    """Those of these names that the expression stands for, in order. Raises InvalidExpression."""
    matches = _compiled(expression).Match
    return tuple(sorted(name for name in names if matches(name)))


def _compiled(expression: str) -> Any:
    if len(expression) > _LENGTH_MAX:
        raise InvalidExpression(f"longer than {_LENGTH_MAX} characters")
    try:
        re2: Any = import_module("re2")
    except ImportError as error:
        raise InvalidExpression(f"this node can't read any, {error}") from error
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MEMORY_MAX
    try:
        re2.compile(expression, options=options)
        # A set of one, for its match makes no object for each name.
        compiled = re2.Set.FullMatchSet(options)
        compiled.Add(expression)
        compiled.Compile()
    except re2.error as error:
        why = error.args[0]
        raise InvalidExpression(why.decode(errors="replace") if isinstance(why, bytes) else str(why)) from error
    return compiled
