"""What importing the generated modules costs."""

from __future__ import annotations

import subprocess
import sys


def test_importing_the_framing_imports_no_message() -> None:
    code = (
        "import sys; import ottla.protocol.framing;"
        "print([m for m in sys.modules if m.startswith('ottla.protocol.messages.') and not m.endswith('._apis')])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "[]"
