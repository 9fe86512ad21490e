"""Lists the nouns of the command line: each is a module of this package with an `app` of its own commands."""

from typing import Any, Final

NOUNS: Final = (
    "cluster",
    "nodes",
    "topics",
    "groups",
    "share-groups",
    "transactions",
    "features",
    "kmq",
    "pipeline",
    "records",
    "configs",
    "quotas",
    "security",
    "users",
    "acls",
    "log",
    "metrics",
)
"""In the order of the help text."""
HELP: Final[dict[str, Any]] = {"help_option_names": ["-h", "--help"]}
"""Options that every command accepts."""
