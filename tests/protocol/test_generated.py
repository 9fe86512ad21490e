"""The generated modules are what the generator writes, and the first of them is quick to import."""

from __future__ import annotations

import subprocess
import sys

import kio_oracle  # noqa: F401  puts the generator on the path
from generate_messages import generate, stale


def test_the_checked_in_messages_are_up_to_date() -> None:
    assert stale(generate()) == []


def test_importing_the_framing_imports_no_message() -> None:
    code = (
        "import sys; import ottla.protocol.framing;"
        "print([m for m in sys.modules if m.startswith('ottla.protocol.messages.') and not m.endswith('._apis')])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "[]"
