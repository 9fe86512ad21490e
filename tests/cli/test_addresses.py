"""How commands read addresses, and what they say where nobody answers."""

import pytest

from ottla.cli.connection import address, addresses
from ottla.cli.output import CommandError

from .conftest import Run


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("localhost", "localhost:9092"),
        ("localhost:1", "localhost:1"),
        ("::1", "[::1]:9092"),
        ("[::1]", "[::1]:9092"),
        ("[::1]:7", "[::1]:7"),
        ("a, b:2,::1", "a:9092,b:2,[::1]:9092"),
    ],
)
def test_addresses_are_read_as_people_write_them(given: str, meant: str) -> None:
    assert addresses(given) == meant


@pytest.mark.parametrize("given", ["a:b", ":9092", "a:70000", "", "[::1]:x", "a:"])
def test_what_is_no_address_is_refused(given: str) -> None:
    with pytest.raises(CommandError, match="is no address"):
        address(given, 9092)


@pytest.mark.parametrize("given", ["http://localhost:9092", "PLAINTEXT://localhost:9092", "http://localhost:9092/"])
def test_an_address_with_a_scheme_is_refused_with_the_one_without(given: str) -> None:
    with pytest.raises(CommandError, match=r"write localhost:9092, without (http|PLAINTEXT)://"):
        addresses(given)


def test_every_address_that_nobody_answers_at_is_named(ottla: Run) -> None:
    refused = ottla("topics", "list", "-b", "127.0.0.1:1,[::1]:1", code=1)
    assert "127.0.0.1:1: " in refused.err
    assert "[::1]:1: " in refused.err
