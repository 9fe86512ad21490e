"""Escapes texts from outside for output: control characters are shown, not executed.

Names of groups, clients and members may contain any characters. Printed unescaped, a line end could forge a line of the
log, an escape sequence could move the cursor, and a right-to-left mark could reverse a sentence.
"""

import re

UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, line and paragraph separators, marks of writing direction, halves of surrogate pairs."""


def visible(text: str) -> str:
    """`text` on one line: a line end becomes \\n, an escape \\x1b, and so on, as in a Python string."""
    return UNSEEN.sub(_escaped, text)


def visible_lines(text: str) -> str:
    """The same for a text of several lines."""
    return "\n".join(map(visible, text.split("\n")))


def _escaped(found: re.Match[str]) -> str:
    return ascii(found[0])[1:-1]
