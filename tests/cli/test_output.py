"""Tables and sentences of commands: one row a line, whatever names hold."""

import pytest

from ottla.cli.main import tell
from ottla.cli.output import Format, print_done, print_rows


def test_a_name_stays_in_its_cell(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(["GROUP", "STATE"], [["g\nforged  Stable\x1b[2J", "Empty"], ["h", None]], Format.TABLE)
    assert capsys.readouterr().out.split("\n") == [
        "GROUP                     STATE",
        r"g\nforged  Stable\x1b[2J  Empty",
        "h                         -",
        "",
    ]


def test_a_name_moves_no_cursor_in_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    print_done("g\x1b[2J is deleted.", Format.TABLE)
    tell("g\x1b[2J is not there.")
    said = capsys.readouterr()
    assert (said.out, said.err) == ("g\\x1b[2J is deleted.\n", "ottla: g\\x1b[2J is not there.\n")
