"""Reports lost records: an error or a warning, as `failOnDataLoss` says, with topic, partition and offsets."""

from __future__ import annotations

import logging

log = logging.getLogger("ottla.spark")

ADVICE = "set option 'failOnDataLoss' to 'false' to continue without it"
"""Advice for programs; a pipeline's command has an option of its own for it (`RunOptions.on_loss`)."""


ALLOW_LOSS = "--allow-loss continues without it"


class RecordsLostError(Exception):
    """Raised if records to read are gone and `failOnDataLoss` is true."""


def lose(fails: bool, sentence: str) -> None:
    """Raise RecordsLostError or warn. `sentence` has no full stop."""
    if fails:
        raise RecordsLostError(f"{sentence}; {ADVICE}.")
    log.warning("%s. Option 'failOnDataLoss' is false, so reading continues.", sentence)
