"""Tables and sentences of commands: one row a line, whatever names hold."""

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import ottla.cli
from ottla.cli.main import tell
from ottla.cli.output import (
    Format,
    Size,
    counted,
    ended,
    json_text,
    print_done,
    print_rows,
    ranges,
    say,
)
from ottla.cli.tree import command

PRINTING = {"print", "typer.echo", "typer.secho", "click.echo", "sys.stdout.write", "sys.stderr.write"}
MAY_PRINT = {
    "consume.py": {"write"},  # records, byte for byte as they came
    "consume_share.py": {"print_records", "ask"},  # records; the question about one
    "main.py": {"tell"},
    "metrics.py": {"alerts", "dashboard"},  # files, byte for byte
    "plans.py": {"confirm"},  # the question, whose answer stands on the same line
    "serve.py": {"main", "tell", "ready"},  # before and beside the log, which has a rule of its own
    "tree.py": {"show_version"},
}
"""Functions that print without `ottla.cli.output`."""


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


def test_a_name_forges_no_line_in_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    say("g\nottla: all is well", err=True)
    print_done("Deleted g\nh.", Format.TABLE)
    said = capsys.readouterr()
    assert (said.out, said.err) == ("Deleted g\\nh.\n", "g\\nottla: all is well\n")


def test_json_holds_names_exactly_and_moves_no_cursor() -> None:
    names = ["g\n\x1b[2J", "\x9b2J", "\u202efdp", "\ud800", "größe"]
    text = json_text(names)
    assert json.loads(text) == names
    assert "größe" in text
    assert text.replace("größe", "").isascii()
    assert text.isprintable()


def test_every_command_prints_by_way_of_output() -> None:
    """What clients named is printed by who shows control characters instead of carrying them out."""
    root = Path(ottla.cli.__path__[0])
    raw = {
        f"{path.relative_to(root)}: {function} prints by {called}"
        for path in root.rglob("*.py")
        if path.name != "output.py"
        for function, called in printing_in(ast.parse(path.read_text()))
        if function not in MAY_PRINT.get(path.name, ())
    }
    assert raw == set()


def printing_in(tree: ast.AST, function: str = "the module") -> Iterator[tuple[str, str]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in PRINTING:
            yield function, ast.unparse(node.func)
        yield from printing_in(node, node.name if isinstance(node, ast.FunctionDef) else function)


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        (0, "0B"),
        (999, "999B"),
        (1000, "1.0KB"),
        (999_949, "999.9KB"),
        (999_950, "1.0MB"),
        (71_947_681_792, "71.9GB"),
        (5 * 10**16, "50000.0TB"),
    ],
)
def test_a_size_is_short_for_people_and_exact_for_programs(size: int, shown: str) -> None:
    assert str(Size(size)) == shown
    assert json_text({"size": Size(size)}) == f'{{"size": {size}}}'


def test_words_agree_with_their_number() -> None:
    assert [counted(each, "record") for each in (0, 1, 2, 1000)] == [
        "0 records",
        "1 record",
        "2 records",
        "1,000 records",
    ]
    assert [ended(each) for each in ("a", "a.", "a..", "a?")] == ["a.", "a.", "a.", "a?"]
    assert ranges([8, 0, 1, 2, 4, 5]) == "0-2,4-5,8"
    assert ranges([]) == ""


def test_a_table_without_rows_is_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    print_rows(["GROUP", "STATE"], [], Format.TABLE)
    assert capsys.readouterr() == ("", "Nothing to show.\n")
    print_rows(["GROUP", "STATE"], [], Format.JSON)
    assert capsys.readouterr() == ("[]\n", "")


def test_every_command_has_a_panel() -> None:
    panels = {name: each.rich_help_panel for name, each in command().commands.items()}
    assert set(panels.values()) == {"Start", "Read and write", "Administer", "Queues and pipelines"}
