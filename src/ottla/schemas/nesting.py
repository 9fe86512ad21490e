"""Finds values that are nested so deep that a program could fail to read or write them as JSON."""

from __future__ import annotations

from typing import Any, Final

DEPTH_MAX: Final = 200
"""Levels of lists and objects. Python's own limit depends on its version and on the calling functions."""


def is_too_deep(value: Any) -> bool:
    """Whether a value of JSON has more than DEPTH_MAX levels."""
    level = [value]
    for _ in range(DEPTH_MAX):
        level = [child for each in level for child in _children(each) if isinstance(child, (dict, list))]
        if not level:
            return False
    return True


def _children(value: Any) -> Any:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
