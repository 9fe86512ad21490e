"""Lists the nouns of the command line: each is a module of this package with commands of its own, its `app`."""

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
    "log",
    "metrics",
)
"""In the order in which they are shown."""
HELP: Final[dict[str, Any]] = {"help_option_names": ["-h", "--help"]}
"""What every command understands."""
