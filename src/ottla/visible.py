"""Shows texts that somebody else chose in lines of ours: what they hold beside letters is shown, not carried out.

Names of groups, clients and members may hold anything. Printed as they are, a line end would forge a line of the log,
an escape sequence move the cursor, a right-to-left mark turn a sentence around.
"""

import re

UNSEEN = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters, line and paragraph separators, marks of writing direction, halves of surrogate pairs."""


def visible(text: str) -> str:
    """`text` on one line: a line end becomes \\n, an escape \\x1b, and so on as in a Python string."""
    return UNSEEN.sub(_escaped, text)


def visible_lines(text: str) -> str:
    """The same for a text that has lines of its own."""
    return "\n".join(map(visible, text.split("\n")))


def _escaped(found: re.Match[str]) -> str:
    return ascii(found[0])[1:-1]
