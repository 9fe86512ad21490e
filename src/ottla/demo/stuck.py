"""Leaves a job queue stuck, for whoever looks at it in the console: find out why, mend it, see it run.

A mail server has refused the first jobs. They become dead letters, and the group pauses itself when there are too many
within a minute. The good jobs behind them wait until somebody resumes the group; the workers are still there. The
refused jobs succeed when they are sent back.
"""

from __future__ import annotations

import time
from typing import Final

from ottla.demo.jobs import Jobs

MAILS, MAILERS = "mails", "mailers"
REFUSED, GOOD = 7, 200
LETTERS_A_MINUTE: Final = 3
"""One more dead letter within a minute pauses the group.

The node counts by the clock's minute. If two minutes share the refused jobs, one of them has at least four and the
other at most three, so that the group pauses exactly once.
"""
WORKERS: Final = 2
STUCK_S: Final = 60.0


def stick(bootstrap: str) -> Jobs:
    """A queue that has paused itself, with its workers. Raises TimeoutError if it does not pause in time."""
    jobs = Jobs(bootstrap, MAILS, MAILERS)
    jobs.set_up(share_delivery_paused_above_dead_letters_per_minute=str(LETTERS_A_MINUTE))
    jobs.produce(["refused"] * REFUSED + ["good"] * GOOD)
    jobs.start_workers(WORKERS)
    until = time.monotonic() + STUCK_S
    while not is_paused(bootstrap):
        if time.monotonic() > until:
            jobs.stop()
            raise TimeoutError(f"The group {MAILERS} has not paused itself in {STUCK_S:.0f} s.")
        jobs.listen(0.1)
    return jobs


def is_paused(bootstrap: str) -> bool:
    """Whether the group is paused."""
    from ottla.client import Client
    from ottla.client.share_groups import pauses_of

    with Client(bootstrap) as client:
        return MAILERS in pauses_of(client, [MAILERS])
