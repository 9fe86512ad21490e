"""Serves a change: its form, its preview with counts, the confirmation, and the audit line.

    GET form -> POST step=preview -> preview -> POST step=apply, with the name typed -> the change -> the next page

A change without fields begins with its preview. A password stays in the session between the steps: pages carry a random
handle instead.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from ottla.client.errors import ClientError
from ottla.console.page import Change, Context, Done, Field, InputError, Preview
from ottla.console.rendering import plain
from ottla.console.sessions import Session
from ottla.escaping import visible

AUDIT: Final = logging.getLogger("ottla.console.audit")
ASKED: Final = "asked"
"""The hidden field that carries the form through the preview: JSON, which survives what browsers do to line ends."""
PASSWORD: Final = "password"
KEPT_MAX: Final = 10
KEPT_S: Final = 600.0
"""How many passwords a session keeps between form and confirmation, and for how long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeView:
    """A step of a change. `preview` is None while the form is shown."""

    title: str
    command: str
    fields: tuple[Field, ...] = ()
    preview: Preview | None = None
    asked: str = "{}"
    digest: str = ""
    error: str = ""
    is_destructive: bool = True
    is_primary: bool = False


def given_in(form: Mapping[str, str]) -> dict[str, str]:
    """The values of the change's own fields. Raises InputError."""
    if ASKED not in form:
        return {name: value for name, value in form.items() if name not in ("step", "typed", "digest")}
    try:
        given = json.loads(form[ASKED])
    except ValueError:
        given = None
    if not isinstance(given, dict) or not all(isinstance(each, str) for each in given.values()):
        raise InputError("This form cannot be read.")
    return given


def shown(change: Change, context: Context) -> ChangeView:
    """The first step: the form, or the preview of a change that has none."""
    fields = tuple(change.fields(context))
    if fields:
        return view_of(change, fields)
    return previewed(change, context)


def view_of(change: Change, fields: tuple[Field, ...]) -> ChangeView:
    """A step of this change with these fields."""
    return ChangeView(
        title=change.title,
        command="",
        fields=fields,
        is_destructive=change.is_destructive,
        is_primary=change.is_primary,
    )


def previewed(change: Change, context: Context, error: str = "") -> ChangeView:
    """The step before the change. A value that cannot be used shows the form again."""
    given = given_in(context.form)
    fields = tuple(change.fields(replace(context, form=given)))
    hidden = [each.name for each in fields if each.kind == PASSWORD]
    if ASKED not in context.form:
        given = {**given, **kept(context.session, {name: given[name] for name in hidden if name in given})}
    fields = tuple(
        replace(each, value="" if each.name in hidden else given.get(each.name, each.value)) for each in fields
    )
    view = view_of(change, fields)
    try:
        preview = change.preview(replace(context, form=revealed(context.session, given, hidden)))
    except InputError as wrong:
        return replace(view, error=str(wrong))
    asked = json.dumps(given)
    return replace(
        view, preview=preview, command=preview.command, asked=asked, digest=digest_of(preview, asked), error=error
    )


def digest_of(preview: Preview, asked: str) -> str:
    """Changes if what the user has seen is no longer so."""
    return hashlib.sha256(
        f"{preview.subject}\0{preview.facts!r}\0{asked}".encode("utf-8", "backslashreplace")
    ).hexdigest()


def refusal(change: Change, context: Context) -> ChangeView | None:
    """The step to show again, with its error, if the confirmation is wrong; None if the change may be applied."""
    view = previewed(change, context)
    if view.preview is None:
        return view
    if context.form.get("digest") != view.digest:
        return replace(view, error="The cluster has changed since the preview. Check it again.")
    if change.is_destructive and context.form.get("typed", "").strip() != visible(view.preview.subject).strip():
        return replace(view, error=f"Type the name to confirm: {view.preview.subject}")
    return None


def applied(change: Change, context: Context) -> Done:
    """Apply the change. Raises ClientError and InputError."""
    given = given_in(context.form)
    hidden = [each.name for each in change.fields(replace(context, form=given)) if each.kind == PASSWORD]
    done = change.apply(replace(context, form=revealed(context.session, given, hidden)))
    for name in hidden:
        passwords_of(context.session).pop(given.get(name, ""), None)
    return done


# ---- passwords -----------------------------------------------------------------------------------------------------


def passwords_of(session: Session) -> dict[str, tuple[float, str]]:
    """The passwords that the session keeps for confirmations, by handle, with the time at which each was typed."""
    found: dict[str, tuple[float, str]] = session.memory.setdefault("passwords", {})
    return found


def kept(session: Session, typed: Mapping[str, str]) -> dict[str, str]:
    """Keep passwords in the session; returns a handle for each."""
    passwords, now = passwords_of(session), time.monotonic()
    handles = {name: secrets.token_urlsafe(16) for name in typed}
    for handle in [each for each, (at, _) in passwords.items() if now - at > KEPT_S] if typed else ():
        passwords.pop(handle, None)
    for name, handle in handles.items():
        passwords[handle] = now, typed[name]
    while len(passwords) > KEPT_MAX:
        passwords.pop(next(iter(passwords)))
    return handles


def revealed(session: Session, given: Mapping[str, str], hidden: Iterable[str]) -> dict[str, str]:
    """A form with the passwords instead of their handles; raises InputError if the session has forgotten one."""
    found, passwords = dict(given), passwords_of(session)
    for name in hidden:
        at, text = passwords.get(given.get(name, ""), (0.0, ""))
        if not at or time.monotonic() - at > KEPT_S:
            raise InputError("Type the password again.")
        found[name] = text
    return found


def audit(session: Session, change: str, query: Mapping[str, str], outcome: str, details: object = None) -> None:
    """Write one line, JSON, for a change that was applied or that failed."""
    AUDIT.info(
        json.dumps(
            {
                "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
                "user": session.user or "",
                "change": change,
                "subject": dict(query),
                "outcome": outcome,
                "details": plain(details),
            }
        )
    )


def sentence_of(failure: Exception) -> str:
    """A sentence for people about a failure that pages expect."""
    text = str(failure) or type(failure).__name__
    return text if isinstance(failure, (ClientError, InputError)) else f"{type(failure).__name__}: {text}"
