"""Reads the project's files once for all tests of their form, which run in one process for that (`FORM`)."""

import ast
from functools import cache
from pathlib import Path

import pytest

FORM = pytest.mark.xdist_group("form")


@cache
def text_of(path: Path) -> str:
    return path.read_text()


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(text_of(path))
