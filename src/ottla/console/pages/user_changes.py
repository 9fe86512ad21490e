"""Changes users and their passwords (SCRAM), and quotas.

A password is typed in the first form. Afterwards the session keeps it, so that no preview, address or log has it.
"""

from __future__ import annotations

import math
from typing import Final

from ottla.client.credentials import remove_passwords, set_password
from ottla.client.errors import BrokerError, check
from ottla.console.page import Context, Done, Field, InputError, Preview
from ottla.console.security_reading import acls_of, quotas_of, users_of
from ottla.doctor.words import count
from ottla.escaping import visible
from ottla.protocol.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    OpData,
    RequestEntityData,
    RequestEntryData,
)

PASSWORDS: Final = (
    Field("password", "Password", "password", required=True),
    Field("again", "The password again", "password", required=True),
)
DEFAULT: Final = "<default>"
KINDS: Final = {"user": "user", "client-id": "client", "ip": "ip"}
"""The kinds of entities of a quota, and their fields in the form."""
LIMITS: Final = (
    "producer_byte_rate",
    "consumer_byte_rate",
    "request_percentage",
    "controller_mutation_rate",
    "connection_creation_rate",
)


def named(context: Context) -> tuple[str, tuple[str, ...]]:
    """The user that the address names, and its mechanisms. Raises InputError."""
    name = context.need("name")
    known = users_of(context).get(name)
    if known is None:
        raise InputError(f"There is no user {visible(name)}.")
    return name, known


def password_in(context: Context) -> str:
    """The password of the form. Raises InputError."""
    password = context.form.get("password", "")
    if not password:
        raise InputError("A password can't be empty.")
    if password != context.form.get("again"):
        raise InputError("The two passwords differ. Type them again.")
    return password


def rules_for(context: Context, name: str) -> str:
    """How many ACLs name a user, in words."""
    try:
        own = sum(each.principal == f"User:{name}" for each in acls_of(context))
    except BrokerError:
        return ""
    return f"{count(own, 'ACL')} name{'s' if own == 1 else ''} User:{visible(name)}."


# ---- users ---------------------------------------------------------------------------------------------------------


def add_fields(_: Context) -> tuple[Field, ...]:
    return Field("name", "Name", required=True), *PASSWORDS


def new_name(context: Context) -> str:
    name = context.form.get("name", "").strip()
    if not name:
        raise InputError("A user needs a name.")
    if name in users_of(context):
        raise InputError(f"There is a user {visible(name)} already. Change the password there.")
    return name


def add_preview(context: Context) -> Preview:
    """Describes the new user, and the ACLs that it finds."""
    name = new_name(context)
    password_in(context)
    return Preview(
        name,
        (
            f"Adds the user {visible(name)}, who logs in by SCRAM, and by PLAIN where it is enabled.",
            rules_for(context, name),
        ),
        command=context.command("users", "add", name),
    )


def add(context: Context) -> Done:
    """Add the user."""
    name = new_name(context)
    set_password(context.client, name, password_in(context))
    return Done(f"Added the user {visible(name)}.", "/security", {"user": name})


def password_fields(context: Context) -> tuple[Field, ...]:
    named(context)
    return PASSWORDS


def password_preview(context: Context) -> Preview:
    """The effect of a new password."""
    name, known = named(context)
    password_in(context)
    return Preview(
        name,
        (f"Changes the password of {visible(name)}.",),
        ("Clients that log in with the old password are refused. Open connections stay open.",),
        facts=known,
        command=context.command("users", "password", name),
    )


def change_password(context: Context) -> Done:
    """Change the password."""
    name, _ = named(context)
    set_password(context.client, name, password_in(context))
    return Done(f"Changed the password of {visible(name)}.", "/security", {"user": name})


def remove_preview(context: Context) -> Preview:
    """Counts the ACLs that remain for the user."""
    name, known = named(context)
    return Preview(
        name,
        (f"Removes the user {visible(name)}, who logs in by {', '.join(known)}.", rules_for(context, name)),
        (
            "Its clients are refused when they connect again. Open connections stay open.",
            "ACLs and quotas of the user stay: a new user of this name gets them.",
        ),
        facts=known,
        command=context.command("users", "remove", name),
    )


def remove(context: Context) -> Done:
    """Remove the user's credentials."""
    name, known = named(context)
    remove_passwords(context.client, name, known)
    return Done(f"Removed the user {visible(name)}.", "/security", {"user": name})


# ---- quotas --------------------------------------------------------------------------------------------------------


def quota_fields(context: Context) -> tuple[Field, ...]:
    query = context.query
    return (
        Field("user", "User", value=query.get("user", ""), hint=f"{DEFAULT}: users without a limit of their own."),
        Field("client", "Client id", value=query.get("client-id", ""), hint="With a user: this client of this user."),
        Field("ip", "IP address", value=query.get("ip", ""), hint="Alone, for connection_creation_rate."),
        Field("limit", "Limit", "select", query.get("limit", LIMITS[0]), LIMITS),
        Field("value", "Value", value=query.get("value", ""), hint="A number; empty removes the limit."),
    )


def quota_in(context: Context) -> tuple[dict[str, str | None], str, float | None]:
    """The entity, the limit and its value, None to remove it. Raises InputError."""
    texts = {kind: context.form.get(field, "").strip() for kind, field in KINDS.items()}
    entity = {kind: None if text == DEFAULT else text for kind, text in texts.items() if text}
    if not entity:
        raise InputError("Name a user, a client id or an IP address.")
    limit, text = context.form.get("limit", ""), context.form.get("value", "").strip()
    if limit not in LIMITS:
        raise InputError("Choose a limit.")
    if not text:
        return entity, limit, None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or value <= 0:
        raise InputError("The value must be a number above 0.")
    return entity, limit, value


def quota_preview(context: Context) -> Preview:
    """The limit before and after. Raises InputError."""
    entity, limit, value = quota_in(context)
    before = next(
        (
            each.value
            for entry in quotas_of(context)
            if {part.entity_type: part.entity_name for part in entry.entity} == entity
            for each in entry.values
            if each.key == limit
        ),
        None,
    )
    if before == value:
        raise InputError("There is no such limit." if value is None else "The limit has this value already.")
    whose = words_of(entity)
    sentence = f"Sets {limit} of {whose} to {number(value)}." if value is not None else f"Removes {limit} of {whose}."
    options = [
        word
        for kind, name in entity.items()
        for word in ([f"--default-{kind}"] if name is None else [f"--{kind}", name])
    ]
    change = ["--delete", limit] if value is None else ["--set", f"{limit}={plain(value)}"]
    return Preview(
        whose,
        (sentence, "Clients above the limit of a node are throttled, from their next request on."),
        columns=("For", "Limit", "Before", "After"),
        rows=((whose, limit, number(before), number(value)),),
        facts=before,
        command=context.command("quotas", "alter", *options, *change),
    )


def plain(value: float) -> str:
    """1048576 instead of 1048576.0."""
    return str(int(value)) if value.is_integer() else str(value)


def number(value: float | None) -> str:
    return "none" if value is None else f"{int(value):,}" if value.is_integer() else f"{value:,}"


def words_of(entity: dict[str, str | None]) -> str:
    """The entity in words: "user ada, client-id <default>"."""
    return ", ".join(f"{kind} {DEFAULT if name is None else visible(name)}" for kind, name in entity.items())


def set_quota(context: Context) -> Done:
    """Set or remove the limit."""
    entity, limit, value = quota_in(context)
    change = OpData(limit, remove=True) if value is None else OpData(limit, value)
    entry = RequestEntryData([RequestEntityData(kind, name) for kind, name in entity.items()], [change])
    (altered,) = context.client.send(AlterClientQuotasRequest([entry])).entries
    whose = words_of(entity)
    check(altered.error_code, whose, altered.error_message)
    done = "Removed" if value is None else "Set"
    return Done(f"{done} {limit} of {whose}.", "/security", {"entity": whose, "limit": limit, "value": value})
