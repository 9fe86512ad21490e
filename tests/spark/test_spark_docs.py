"""docs/spark.md: its settings are the table's."""

from __future__ import annotations

import re
from pathlib import Path

from ottla.spark.platform.session import settings

DOCUMENT = Path(__file__).resolve().parent.parent.parent / "docs" / "spark.md"


def test_the_settings_are_those_of_the_table() -> None:
    rows = re.findall(r"^\| `(spark\.[\w.]+)`( \*)? \| `?([^|`]+)`? \| (.*) \|$", DOCUMENT.read_text(), re.MULTILINE)
    expected = [
        (each.key, " *" if each.only_local else "", "cores" if each.value == "16" else each.value, each.why)
        for each in settings("spark://anywhere:7077")
    ]
    assert [(key, star, value.strip(), why) for key, star, value, why in rows] == expected
