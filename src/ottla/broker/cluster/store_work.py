"""Carries out the effects `Commit` and `Reread` for an I/O host: calls the metadata store and reports the outcome.

Calls to one store are made from one thread at a time.
"""

from ottla.broker.effects import (
    Commit,
    CommitOutcome,
    Committed,
    Conflicted,
    NotCommitted,
    OutcomeUnknown,
    Reading,
    Reread,
    Unread,
)
from ottla.metadata.image import delta_since
from ottla.metadata.store import CommitUnknownError, ConflictError, MetadataStore, StoreError


def commit(store: MetadataStore, effect: Commit) -> CommitOutcome:
    """Carry out a Commit."""
    try:
        return Committed(store.commit(effect.writes, effect.guards))
    except ConflictError as conflict:
        return Conflicted(str(conflict))
    except StoreError as failed:
        return NotCommitted(str(failed))
    except CommitUnknownError as unknown:
        return OutcomeUnknown(str(unknown))


def reread(store: MetadataStore, effect: Reread) -> Reading | Unread:
    """Carry out a Reread."""
    try:
        delta = delta_since(store, effect.image)
        row = store.get(effect.key)
    except StoreError as failed:
        return Unread(str(failed))
    return Reading(delta, None if row is None else row.value)
