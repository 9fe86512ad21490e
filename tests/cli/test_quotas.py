"""`ottla quotas` against a real node."""

from collections.abc import Callable
from typing import Any

from ottla.testing import EmbeddedBroker


def test_limits_are_set_listed_kept_to_and_removed(ottla: Callable[..., Any]) -> None:
    with EmbeddedBroker() as own:
        where = ("--bootstrap", own.bootstrap_servers)

        def listed(*words: str) -> list[tuple[str, ...]]:
            rows = ottla("quotas", "list", "--format", "json", *words, *where).json()
            return [(row["user"], row["client_id"], row["ip"], row["limit"], row["value"]) for row in rows]

        assert listed() == []
        ada = ("--user", "ada")
        done = ottla("quotas", "alter", *ada, "--set", "producer_byte_rate=1000", *where)
        assert "Altered the quota of user ada." in done.out
        assert "applies only to clients that authenticate as ada" in done.err
        both = ("--default-user", "--client-id", "app")
        ottla("quotas", "alter", *both, "--set", "request_percentage=12.5", *where)
        of_ada = ("ada", "", "", "producer_byte_rate", 1000.0)
        assert listed() == [("<default>", "app", "", "request_percentage", 12.5), of_ada]
        assert ottla("quotas", "alter", "--default-ip", "--set", "connection_creation_rate=1000", *where).err == ""
        for words in (
            ["--delete", "producer_byte_rate"],
            ["--set", "producer_byte_rate=1"],
            ["--delete", "producer_byte_rate"],
        ):
            assert ottla("quotas", "alter", "--user", "ANONYMOUS", *words, *where).err == ""
        assert listed("--default-ip") == [("", "", "<default>", "connection_creation_rate", 1000.0)]
        of_a_name = ("--ip", "broker.example", "--set", "connection_creation_rate=1")
        refused = ottla("quotas", "alter", *of_a_name, *where, code=1)
        assert "broker.example is not a valid IP" in refused.err
        assert listed(*ada) == [of_ada]
        assert listed("--user", "bob") == []
        own.restart()
        assert listed(*ada) == [of_ada]
        refused = ottla("quotas", "alter", *ada, "--set", "nonsense=1", *where, code=1)
        assert "Invalid configuration key nonsense" in refused.err
        refused = ottla("quotas", "alter", *ada, "--set", "producer_byte_rat=1", *where, code=2)
        assert "did you mean producer_byte_rate?" in refused.err
        assert ottla("quotas", "list", *ada, *where).rows() == [["ada", "-", "-", "producer_byte_rate", "1000"]]
        for words in ([], [*ada], [*ada, "--set", "producer_byte_rate=much"], [*ada, "--default-user", "--set", "x=1"]):
            ottla("quotas", "alter", *words, *where, code=2)
        ottla("quotas", "alter", *ada, "--delete", "producer_byte_rate", *where)
        assert listed(*ada) == []
