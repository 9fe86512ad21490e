"""What the shell is offered behind a command line that is not finished yet."""

from collections.abc import Callable

import pytest

from ottla.cli import serve
from ottla.cli.tree import command
from ottla.testing import EmbeddedBroker

Offered = Callable[[str], list[str]]


@pytest.fixture
def offered(
    ottla_broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Offered:
    """The words for the end of `ottla LINE`, as bash gets them."""
    monkeypatch.setenv("OTTLA_BOOTSTRAP", ottla_broker.bootstrap_servers)

    def ask(line: str) -> list[str]:
        words = ["ottla", *line.split(" ")]
        monkeypatch.setenv("COMP_WORDS", " ".join(words))
        monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
        monkeypatch.setenv("_OTTLA_COMPLETE", "complete_bash")
        capfd.readouterr()
        with pytest.raises(SystemExit):
            command()(args=[], prog_name="ottla")
        return capfd.readouterr().out.split()

    return ask


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("serve --dur", "--durability"),
        ("serve --durability f", "fsync"),
        ("serve --set log.retention.h", "log.retention.hours="),
        ("topics create x --config retention.m", "retention.ms="),
        ("topics alter x --delete retention.m", "retention.ms"),
        ("configs alter group g --set share.delivery.p", "share.delivery.paused="),
        ("configs alter broker 1 --delete log.retention.h", "log.retention.hours"),
        ("configs alter topic x --append cleanup.p", "cleanup.policy="),
    ],
)
def test_options_and_configs(offered: Offered, line: str, word: str) -> None:
    assert word in offered(line)


def test_the_clusters_own_topics_only_where_they_are_begun(
    offered: Offered, ottla_broker: EmbeddedBroker, ottla_topic: str
) -> None:
    if "__consumer_offsets" not in offered("topics describe __"):
        ottla_broker.create_topic("__mine")
    assert [name for name in offered("topics describe ") if name.startswith("__")] == []
    assert ottla_topic in offered("configs describe topic ")
    assert [name for name in offered("topics delete __") if not name.startswith("__")] == []
    assert offered("topics delete __") != []


def test_the_options_of_serve_are_those_of_its_parser() -> None:
    known = {name for each in command().commands["serve"].params for name in each.opts}
    assert known == {name for action in serve.parser()._actions for name in action.option_strings}


def test_help_is_a_command_too(capfd: pytest.CaptureFixture[str]) -> None:
    from ottla.cli.main import main

    for words, says in (
        ([], "share-groups"),
        (["topics", "create"], "--partitions"),
        (["serve"], "--durability"),
        (["pipeline"], "archive"),
    ):
        assert main(["help", *words]) == 0
        assert says in capfd.readouterr().out
    assert main(["help", "nosuch"]) == 2
    assert "No such command 'nosuch'" in capfd.readouterr().err
