"""Keeps the sessions of browsers: a random cookie, a token for forms, clients with the login of its user."""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from dataclasses import dataclass, field
from typing import Any, Final

from ottla.client.sasl import Login
from ottla.console.access import Clients
from ottla.console.settings import Settings

SESSIONS_MAX: Final = 200
IDLE_S: Final = 12 * 3600.0
FORGET_S: Final = 120.0
"""Seconds without a request after which a session's memory is emptied: a list of all topics may be large."""
MESSAGES_MAX: Final = 5


@dataclass(slots=True)
class Session:
    """A browser that has shown the token of the printed address, or a login of the cluster.

    `memory` keeps what pages remember between requests, such as the doctor's last snapshot. `messages` are shown once.
    """

    user: str | None
    clients: Clients
    id: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    token: str = field(default_factory=lambda: secrets.token_urlsafe(32), repr=False)
    memory: dict[str, Any] = field(default_factory=dict[str, Any], repr=False)
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
        session = Session(user, clients)
        self._drop_old()
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
            if now - session.used_at > FORGET_S:
                session.memory.clear()

    def close(self) -> None:
        for session in list(self._sessions.values()):
            self.end(session)

    def _drop_old(self) -> None:
        now = time.monotonic()
        by_use = sorted(self._sessions.values(), key=lambda each: each.used_at)
        for place, session in enumerate(by_use):
            if now - session.used_at > IDLE_S or len(by_use) - place >= SESSIONS_MAX:
                self.end(session)
