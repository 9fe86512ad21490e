"""Leaves a job queue stuck, for you to find out why in the console, to mend it, and to see it run.

The jobs are mails. The mail server is down, so the workers refuse the first mails, which become dead letters. The group
pauses itself when there are too many within a minute. Then the mail server is up again. The other mails wait until
you resume the group; the workers are still there. The refused mails succeed when they are sent back.
"""

from __future__ import annotations

import time
from typing import Final

from ottla.demo.jobs import Jobs
from ottla.demo.worker import SERVER_SAYS

MAILS, MAILERS = "mails", "mailers"
COUNT: Final = 207
NAMES: Final = ("ada", "bea", "cem", "dora", "emil")
LETTERS_A_MINUTE: Final = 3
"""One more dead letter within a minute pauses the group. The node counts by the clock's minute."""
WORKERS: Final = 2
STUCK_S: Final = 60.0
SHOWN: Final = 3
"""Refused mails that are in the excerpt of the log."""


def mail(number: int) -> dict[str, object]:
    """A mail to send."""
    return {"to": f"{NAMES[number % len(NAMES)]}@example.org", "subject": f"Your order {number + 1}"}


def stick(bootstrap: str) -> Jobs:
    """A queue that has paused itself, with its workers. Raises TimeoutError if it does not pause in time."""
    jobs = Jobs(bootstrap, MAILS, MAILERS)
    jobs.set_up(share_delivery_paused_above_dead_letters_per_minute=str(LETTERS_A_MINUTE))
    jobs.start_workers(WORKERS, "mailer", is_server_down=True)
    until = time.monotonic() + STUCK_S
    is_ready = jobs.work(STUCK_S, lambda: all(each.ready for each in jobs.workers))
    jobs.produce(map(mail, range(COUNT)))
    while not (is_ready and is_paused(bootstrap)):
        if time.monotonic() > until:
            jobs.stop()
            raise TimeoutError(f"The group {MAILERS} has not paused itself in {STUCK_S:.0f} s.")
        jobs.listen(0.1)
    jobs.server_up()
    return jobs


def is_paused(bootstrap: str) -> bool:
    """Whether the group is paused."""
    from ottla.client import Client
    from ottla.client.share_groups import pauses_of

    with Client(bootstrap) as client:
        return MAILERS in pauses_of(client, [MAILERS])


def log_of(jobs: Jobs) -> list[str]:
    """The end of the workers' log: the first mails that they refused, and that the mail server is up again."""
    jobs.listen()
    refused = sorted(jobs.rejected.items())
    more = ["..."] if len(refused) > SHOWN else []
    return [
        *(
            f"{worker}: refused mail {number} to {mail(number)['to']}: {SERVER_SAYS}"
            for number, worker in refused[:SHOWN]
        ),
        *more,
        "mailers: the mail server is up again",
    ]
