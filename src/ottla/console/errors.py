"""Names the failures that an address or a form causes."""

from __future__ import annotations


class MissingError(Exception):
    """The address names a thing that does not exist; the text is one sentence."""


class InputError(Exception):
    """The address or the form holds a value that cannot be used; the text is one sentence."""
