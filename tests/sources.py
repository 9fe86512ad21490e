"""Reads the project's files once for all tests of their form, which run in one process for that (`FORM`)."""

import ast
import gc
from functools import cache
from pathlib import Path

import pytest

FORM = pytest.mark.xdist_group("form")


@cache
def text_of(path: Path) -> str:
    return path.read_text()


@cache
def tree_of(path: Path) -> ast.Module:
    """The file's syntax tree, which stays: the garbage collector does not look at it, which took three times as long as
    to make it."""
    gc.disable()
    try:
        return ast.parse(text_of(path))
    finally:
        gc.freeze()
        gc.enable()
