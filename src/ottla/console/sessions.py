"""Keeps the sessions of browsers: a random cookie, a token for forms, clients with the login of its user."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from ottla.client.errors import TimedOutError
from ottla.client.sasl import Login
from ottla.console.access import Clients
from ottla.console.letter_owners import LetterCounts
from ottla.console.settings import Settings

T = TypeVar("T")
SESSIONS_MAX: Final = 200
IDLE_S: Final = 12 * 3600.0
FORGET_S: Final = 120.0
"""Seconds without a request after which a session's memory is emptied: a list of all topics may be large."""
VIEWS_MAX: Final = 200
"""Views that the sessions of one login share."""
MESSAGES_MAX: Final = 5


class Kept:
    """A fact of the cluster that sessions with the same rights use together, for a short time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._value: Any = None
        self._at = 0.0
        self._times_forgotten = 0

    def get(self, at_most_s: float, read: Callable[[], T], wait_s: float) -> T:
        """The value, if it is no older than that; otherwise one thread reads it, and others wait for it. Raises
        TimedOutError."""
        if not self._lock.acquire(timeout=wait_s):
            raise TimedOutError("The cluster did not answer in time.")
        try:
            known, before = self._value, self._times_forgotten
            if known is None or time.monotonic() - self._at > at_most_s:
                known = read()
                if before == self._times_forgotten:
                    self._value, self._at = known, time.monotonic()
            return known
        finally:
            self._lock.release()

    def forget(self, older_than_s: float = 0.0) -> bool:
        """Drop the value if it is as old as that, also one that is being read now. Returns whether it was."""
        is_old = time.monotonic() - self._at >= older_than_s
        if is_old:
            self._times_forgotten += 1
            self._value = None
        return is_old


class Views:
    """The newest views of open pages, by address."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: dict[Hashable, Kept] = {}

    def at(self, address: Hashable) -> Kept:
        """The view at an address; those that were not asked for longest are dropped."""
        with self._lock:
            kept = self._kept.pop(address, None) or Kept()
            self._kept[address] = kept
            while len(self._kept) > VIEWS_MAX:
                del self._kept[next(iter(self._kept))]
            return kept

    def forget(self, older_than_s: float) -> None:
        with self._lock:
            for address, kept in list(self._kept.items()):
                if kept.forget(older_than_s):
                    del self._kept[address]


@dataclass(frozen=True, slots=True)
class Shared:
    """The facts that the sessions of one login share: the metadata of all topics, the doctor's newest snapshot, what
    open pages show, and the owners of dead letters."""

    metadata: Kept = field(default_factory=Kept)
    snapshot: Kept = field(default_factory=Kept)
    views: Views = field(default_factory=Views)
    letters: LetterCounts = field(default_factory=LetterCounts)

    def forget(self, older_than_s: float = 0.0) -> None:
        """Forget what is as old as that; without an age all, because the cluster was changed."""
        self.metadata.forget(older_than_s)
        self.snapshot.forget(older_than_s)
        self.views.forget(older_than_s)
        self.letters.forget(older_than_s)


@dataclass(slots=True)
class Session:
    """A browser that has shown the token of the printed address, or a login of the cluster.

    `memory` keeps what pages remember between requests, such as an earlier snapshot of the doctor; `common` is one
    memory of all sessions, for what each request checks that its user may see. `messages` are shown once.
    """

    user: str | None
    clients: Clients
    shared: Shared = field(default_factory=Shared, repr=False)
    id: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    memory: dict[str, Any] = field(default_factory=dict[str, Any], repr=False)
    common: dict[str, Any] = field(default_factory=dict[str, Any], repr=False)
    messages: list[str] = field(default_factory=list[str])
    used_at: float = field(default_factory=time.monotonic)

    def say(self, sentence: str) -> None:
        """Show a sentence on the next page."""
        self.messages = [*self.messages, sentence][-MESSAGES_MAX:]

    def taken_messages(self) -> list[str]:
        said, self.messages = self.messages, []
        return said


class Sessions:
    """The sessions of a console."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._sessions: dict[str, Session] = {}
        self._common: dict[str, Any] = {}
        where = "\0".join((settings.bootstrap, *sorted(settings.hosts)))
        suffix = hashlib.sha256(where.encode()).hexdigest()[:12]
        self.cookie = f"__Host-ottla-{suffix}"
        """A name per cluster and port: browsers send a cookie to every port of a host."""

    def begin(self, user: str | None = None, login: Login | None = None) -> Session:
        """A new session. Without a login of its own, it uses that of the settings."""
        settings = self._settings
        clients = Clients(
            settings.bootstrap,
            settings.tls,
            login or settings.login,
            deadline_s=settings.deadline_s,
            read_only=settings.read_only,
            no_records=settings.no_records,
        )
        self._drop_old()
        same = (each for each in self._sessions.values() if each.clients.login == clients.login)
        known = next(same, None)
        session = Session(user, clients, Shared() if known is None else known.shared, common=self._common)
        self._sessions[session.id] = session
        return session

    def find(self, id: str | None) -> Session | None:
        """The session with this cookie."""
        session = self._sessions.get(id or "")
        if session is not None:
            session.used_at = time.monotonic()
        return session

    def end(self, session: Session) -> None:
        self._sessions.pop(session.id, None)
        session.clients.close()

    def is_token(self, given: str) -> bool:
        """Whether this is the token of the printed address."""
        return hmac.compare_digest(given.encode(), self._settings.token.encode())

    def close_idle(self) -> None:
        """Close unused clients, forget old sessions, and what unused ones remember."""
        self._drop_old()
        now = time.monotonic()
        for session in list(self._sessions.values()):
            session.clients.close_idle(now)
            session.shared.forget(FORGET_S)
            if now - session.used_at > FORGET_S:
                session.memory.clear()
        if all(now - each.used_at > FORGET_S for each in self._sessions.values()):
            self._common.clear()

    def close(self) -> None:
        for session in list(self._sessions.values()):
            self.end(session)

    def _drop_old(self) -> None:
        now = time.monotonic()
        by_use = sorted(self._sessions.values(), key=lambda each: each.used_at)
        for place, session in enumerate(by_use):
            if now - session.used_at > IDLE_S or len(by_use) - place >= SESSIONS_MAX:
                self.end(session)
