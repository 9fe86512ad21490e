"""Reports certificates that expire soon in the log: at the start, and then once a day.

After the end of the node's certificate, clients refuse new connections; open ones stay. So the log warns from 30 days
before, and reports an error from 7 days before.
"""

from __future__ import annotations

import datetime
import logging
import time
from collections.abc import Iterable
from typing import Final

from ottla.server.tls import Tls

SOON_DAYS: Final = 30
URGENT_DAYS: Final = 7
DAY_S: Final = 86_400

log = logging.getLogger("ottla.server")


def report(all_tls: Iterable[Tls]) -> None:
    """Log each certificate that expires soon."""
    for tls in all_tls:
        if tls.valid_until_ms is not None and (found := warning(tls.listener, tls.valid_until_ms, time.time())):
            log.log(*found)


def warning(listener: str, until_ms: int, now_s: float) -> tuple[int, str] | None:
    """The level and the sentence for a certificate that expires soon, or has expired; otherwise None."""
    until_s = until_ms / 1000
    days = int((until_s - now_s) // DAY_S)
    if days >= SOON_DAYS:
        return None
    at = datetime.datetime.fromtimestamp(until_s, datetime.UTC)
    advice = "Replace its file, for example by `ottla security renew`; the node needs no restart."
    if until_s <= now_s:
        said = f"The certificate of the listener {listener} expired at {at:%Y-%m-%d %H:%M} UTC: clients refuse it."
        return logging.ERROR, f"{said} {advice}"
    left = f"in {days} days" if days > 1 else "in less than 2 days"
    said = f"The certificate of the listener {listener} expires {left}, at {at:%Y-%m-%d %H:%M} UTC. {advice}"
    return logging.ERROR if days < URGENT_DAYS else logging.WARNING, said
