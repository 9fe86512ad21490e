"""Decides what the audit log records: who did what, from where, and whether it was allowed.

    Access, Sasl, the host's TLS --note--> Audit --Audited effects--> the host's file

`Access` notes each denied operation, and each allowed one that changes something. `Sasl`, and the host for clients with
certificates, note logins. The notes of one turn become records when the host takes the node's effects: then their time
is known. A request that is allowed to change something has one record, however many names it has.

A principal may cause a limited number of records per second of each kind; failed logins are counted by address.
Records beyond that are counted, and the count is in the next record of the same origin, or in one of its own after
`SUMMARY_MS`.

Records have names, never values of properties, passwords or records. The user of a failed login is recorded only if it
exists, because people type passwords in the wrong place.

Sources: Kafka's Authorizer.java (Action.logIfAllowed, logIfDenied), kafka.authorizer.logger.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

from ottla.broker.client_identity import ANONYMOUS, Identity
from ottla.broker.effects import Audited, Outbox
from ottla.broker.requests import Request
from ottla.broker.schedule import Schedule, Timed, Timer
from ottla.broker.security.audit_details import details_of
from ottla.machine import Millis, WallClock
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.apis import APIS

DENIED: Final = "denied"
CHANGES: Final = "changes"
LOGINS: Final = "logins"
ALLOWED: Final = "allowed"
BURST_S: Final = 10
"""A principal that was quiet may cause the records of this many seconds at once."""
ORIGINS_MAX: Final = 1_000
"""How many origins have limits of their own; others share one."""
NOTES_MAX: Final = 1_000
"""How many notes of one turn can become records; the others are counted."""
TEXT_MAX: Final = 500
"""Longer names are cut."""
SUMMARY_MS: Final = 10_000

_O = Operation
_CHANGING: Final = 1 << _O.CREATE | 1 << _O.DELETE | 1 << _O.ALTER | 1 << _O.ALTER_CONFIGS
_OTHERS: Final = ("", "")


class Rule(Protocol):
    @property
    def why(self) -> str: ...


class Rules(Protocol):
    """Explains decisions: `acls.AclAuthorizer`."""

    def rule(
        self, principal: str, host: str, operation: Operation, resource_type: ResourceType, name: str, /
    ) -> Rule: ...


class Note(NamedTuple):
    """One decision of the authorizer."""

    identity: Identity
    operation: Operation
    resource_type: ResourceType
    name: str
    allowed: bool
    request: Request | None


class Login(NamedTuple):
    """A client has authenticated, or failed to. `user`: whom a failed login is about, empty if that is unknown. `why`:
    why it failed, None if it did not."""

    identity: Identity
    mechanism: str
    user: str
    why: str | None


@dataclass(slots=True)
class _Origin:
    """The limit of one principal or address, for one kind of records."""

    left: float
    at: Millis
    left_out: int = 0


@dataclass(slots=True)
class Audit:
    """The audit log of a node, as far as it is decided here.

    - `kinds`: what is recorded.
    - `per_second`: how many records of each kind an origin may cause.
    - `authorizer`: says by which rule an operation is allowed or denied; None if everything is allowed.
    """

    kinds: Collection[str]
    node_id: int
    per_second: int
    authorizer: Rules | None
    outbox: Outbox
    schedule: Schedule
    wall: WallClock
    notes: list[Note | Login] = field(default_factory=list["Note | Login"])
    _origins: dict[tuple[str, str], _Origin] = field(default_factory=dict[tuple[str, str], _Origin])
    _left_out: int = 0
    """Notes that were too many for one turn."""
    _last: Request | None = None
    """The last request with a record of its own."""
    _summary: Timer = field(init=False)
    noted: int = field(init=False)
    """A bit for each operation that is recorded when it is allowed."""

    def __post_init__(self) -> None:
        self.noted = -1 if ALLOWED in self.kinds else _CHANGING if CHANGES in self.kinds else 0
        self._summary = Timer(self.schedule, Timed.AUDIT, self._summarize)

    # ---- what is noted ---------------------------------------------------------------------------------------------

    def decided(
        self,
        identity: Identity,
        operation: Operation,
        resource_type: ResourceType,
        name: str,
        allowed: bool,
        request: Request | None,
    ) -> None:
        """The authorizer has decided about an operation that a client has asked for."""
        if not self.noted if allowed else DENIED not in self.kinds:
            return
        if allowed and request is not None and ALLOWED not in self.kinds:
            if request is self._last:
                return
            self._last = request
        self._note(Note(identity, operation, resource_type, name, allowed, request))

    def logged_in(self, identity: Identity, mechanism: str, user: str = "", why: str | None = None) -> None:
        """A client has authenticated by this mechanism, or has failed to."""
        if LOGINS in self.kinds:
            self._note(Login(identity, mechanism, user, why))

    def _note(self, note: Note | Login) -> None:
        if len(self.notes) < NOTES_MAX:
            self.notes.append(note)
        else:
            self._left_out += 1

    @property
    def has_notes(self) -> bool:
        return bool(self.notes)

    # ---- records ---------------------------------------------------------------------------------------------------

    def settle(self, now: Millis) -> None:
        """Make records of what was noted since."""
        noted, self.notes = self.notes, []
        for note in noted:
            kind = LOGINS if isinstance(note, Login) else CHANGES if note.allowed else DENIED
            origin = self._origin(now, kind, _from(note))
            if origin.left < 1:
                self._leave_out(now, origin, 1)
                continue
            origin.left -= 1
            record = self._login(note) if isinstance(note, Login) else self._decision(note)
            if origin.left_out:
                record["left_out"], origin.left_out = origin.left_out, 0
            self._record(now, record)
        if self._left_out:
            self._leave_out(now, self._origin(now, *_OTHERS), self._left_out)
            self._left_out = 0

    def _leave_out(self, now: Millis, origin: _Origin, count: int) -> None:
        origin.left_out += count
        if self._summary.at is None:
            self._summary.set(now + SUMMARY_MS)

    def _origin(self, now: Millis, kind: str, who: str) -> _Origin:
        """The limit that holds, as of now."""
        burst = float(self.per_second * BURST_S)
        found = self._origins.get((kind, who))
        if found is None:
            if len(self._origins) >= ORIGINS_MAX:
                self._forget(now, burst)
            key = (kind, who) if len(self._origins) < ORIGINS_MAX else _OTHERS
            found = self._origins.setdefault(key, _Origin(burst, now))
        found.left = min(burst, found.left + (now - found.at) * self.per_second / 1000)
        found.at = now
        return found

    def _forget(self, now: Millis, burst: float) -> None:
        """Forget the origins that are at no limit any more."""
        for key, each in list(self._origins.items()):
            if not each.left_out and each.left + (now - each.at) * self.per_second / 1000 >= burst:
                del self._origins[key]

    def _summarize(self, now: Millis) -> None:
        """Record what was left out, and had no further record since."""
        for (kind, who), origin in self._origins.items():
            if origin.left_out:
                self._record(now, {"event": "left out", "kind": kind, "from": who, "left_out": origin.left_out})
                origin.left_out = 0

    def finish(self, now: Millis) -> None:
        """The node stops: record what is still to be recorded."""
        self.settle(now)
        self._summarize(now)

    def _record(self, now: Millis, record: dict[str, object]) -> None:
        self.outbox.add(Audited({"time": self.wall.at(now), "node": self.node_id, **record}))

    def _decision(self, note: Note) -> dict[str, object]:
        record: dict[str, object] = {"event": "allowed" if note.allowed else "denied", **_whose(note.identity)}
        request = note.request
        if request is not None:
            record["client_id"] = _cut(request.client_id)
            record["api"] = APIS[request.api_key].name
        record |= {
            "operation": note.operation.name,
            "resource": note.resource_type.name,
            "name": _cut(note.name),
            "why": self._why(note),
        }
        if note.allowed and request is not None:
            # A piece of a long request has a body of its own, and the operation's name says what it is about.
            is_whole = isinstance(request.body, APIS[request.api_key].request)
            details = details_of(request.api_key, request.body) if is_whole else []
            if details:
                record["details"] = [_cut(each) for each in details]
            if getattr(request.body, "validate_only", False):
                record["validate_only"] = True
        return record

    def _why(self, note: Note) -> str:
        if self.authorizer is None:
            return "There is no authorizer."
        identity = note.identity
        asked = (note.operation, note.resource_type, note.name)
        return self.authorizer.rule(str(identity.principal), identity.address.client_host, *asked).why

    def _login(self, login: Login) -> dict[str, object]:
        record: dict[str, object] = {"event": "login" if login.why is None else "login failed"}
        record |= _whose(login.identity)
        record["mechanism"] = login.mechanism
        if login.why is not None:
            del record["principal"]
            if login.user:
                record["user"] = _cut(login.user)
            record["why"] = _cut(login.why)
        return record


def _from(note: Note | Login) -> str:
    """The origin whose limit counts: the principal, or the address if it has none."""
    identity = note.identity
    failed = isinstance(note, Login) and note.why is not None
    return identity.address.client_host if failed or identity.principal == ANONYMOUS else str(identity.principal)


def _whose(identity: Identity) -> dict[str, object]:
    address = identity.address
    record: dict[str, object] = {"principal": _cut(str(identity.principal))}
    if identity.mechanism:
        record["mechanism"] = identity.mechanism
    host = address.client_host
    record["address"] = f"[{host}]:{address.client_port}" if ":" in host else f"{host}:{address.client_port}"
    record["listener"] = address.listener
    return record


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}... ({len(text)} characters)"
