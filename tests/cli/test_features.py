"""`ottla features` against a real node."""

from collections.abc import Callable
from typing import Any

from ottla.testing import EmbeddedBroker


def test_a_level_is_shown_tried_lowered_refused_and_raised(ottla: Callable[..., Any]) -> None:
    with EmbeddedBroker() as own:
        where = ("--bootstrap", own.bootstrap_servers)

        def level() -> int:
            rows = ottla("features", "list", "--format", "json", *where).json()
            return {row["feature"]: row["finalized_version_level"] for row in rows}["transaction.version"]

        assert level() == 2
        lower = ("features", "set", "transaction.version", "1", *where)
        assert "Would set transaction.version from 2 to 1" in ottla(*lower, "--dry-run").out
        assert level() == 2
        assert "Set transaction.version from 2 to 1" in ottla(*lower).out
        assert level() == 1
        refused = ottla("features", "set", "transaction.version", "3", *where, code=1)
        assert refused.err == "ottla: The cluster supports levels 0 to 2 of transaction.version, not 3.\n"
        refused = ottla("features", "set", "transaction.versio", "1", *where, code=1)
        assert "no feature transaction.versio: did you mean transaction.version?" in refused.err
        own.restart()
        assert level() == 1
        ottla("features", "set", "transaction.version", "2", *where)
        assert level() == 2
