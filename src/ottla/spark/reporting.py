"""Lost data: an error or a warning, as `failOnDataLoss` says; one sentence names topic, partition and offsets."""

from __future__ import annotations

import logging

log = logging.getLogger("ottla.spark")

_ADVICE = "set option 'failOnDataLoss' to 'false' to go on without it"


class RecordsLost(Exception):
    """Records that were to be read are gone; `failOnDataLoss` is true."""


def lose(fails: bool, sentence: str) -> None:
    """Raise RecordsLost or warn. `sentence` has no full stop."""
    if fails:
        raise RecordsLost(f"{sentence}; {_ADVICE}.")
    log.warning("%s. Option 'failOnDataLoss' is false, so reading goes on.", sentence)
