"""Shows who may do what: users, ACLs, quotas, and whether a user may do something, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ottla.client.errors import BrokerError
from ottla.console.acl_rules import Acl, decided
from ottla.console.page import Change, Context, InputError, Page, Part, View
from ottla.console.pages import acl_changes, user_changes
from ottla.console.security_reading import (
    ALLOW_ALL,
    SUPER_USERS,
    acls_of,
    authorizer_settings,
    quotas_of,
    super_users_in,
    users_of,
)
from ottla.protocol.acls import Operation, ResourceType
from ottla.protocol.errors import ErrorCode

ROWS_MAX: Final = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Security(View):
    """The question about a user, and its answer: `allowed` is None without a question."""

    search: str
    principal: str
    operation: str
    kind: str
    name: str
    host: str
    operations: tuple[str, ...]
    kinds: tuple[str, ...]
    allowed: bool | None
    why: str


def load(context: Context) -> Security:
    """The question of the address."""
    asked = {each: context.query.get(each, "") for each in ("principal", "operation", "kind", "resource", "host")}
    allowed, why = None, ""
    command = context.command("acls", "list")
    if asked["principal"]:
        allowed, why = answer(context, asked)
        option = "--" + asked["kind"].lower().replace("_", "-")
        words = ("--principal", asked["principal"], "--operation", asked["operation"].lower().replace("_", "-"))
        name = [] if asked["kind"] == ResourceType.CLUSTER.name else [asked["resource"]]
        command = context.command("acls", "check", *words, option, *name)
    return Security(
        title="Security",
        command=command,
        search=context.query.get("q", ""),
        principal=asked["principal"],
        operation=asked["operation"],
        kind=asked["kind"],
        name=asked["resource"],
        host=asked["host"],
        operations=tuple(each.name for each in Operation if each is not Operation.ALL),
        kinds=tuple(each.name for each in ResourceType),
        allowed=allowed,
        why=why,
    )


def answer(context: Context, asked: dict[str, str]) -> tuple[bool, str]:
    """Whether the cluster allows what the address asks about, and why. Raises InputError."""
    if ":" not in asked["principal"]:
        raise InputError("A principal is TYPE:NAME, as in User:ada.")
    try:
        operation, kind = Operation[asked["operation"]], ResourceType[asked["kind"]]
    except KeyError:
        raise InputError("Choose an operation and a kind of resource.") from None
    settings = authorizer_settings(context)
    if asked["principal"] in super_users_in(settings):
        return True, f"{asked['principal']} is one of {SUPER_USERS}."
    name = "kafka-cluster" if kind is ResourceType.CLUSTER else asked["resource"]
    try:
        acls = [each for each in acls_of(context) if each.covers(kind, name)]
    except BrokerError as refused:
        if refused.code != ErrorCode.SECURITY_DISABLED:
            raise
        return True, "The cluster has no authorizer: every client may do everything."
    allowed, acl = decided(acls, asked["principal"], asked["host"], operation)
    if acl is not None:
        return bool(allowed), f"An ACL {acl}."
    if allowed is None:
        allowed = settings.get(ALLOW_ALL, "").lower() == "true"
        return allowed, f"No ACL names this resource, and {ALLOW_ALL} is {str(allowed).lower()}."
    return False, "ACLs name this resource, but none of them allows it."


# ---- ACLs ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Acls(View):
    """The ACLs that match the search; `more` counts those that are not shown. `is_off`: the cluster has no authorizer,
    so every client may do everything."""

    acls: tuple[Acl, ...]
    more: int
    is_off: bool


def load_acls(context: Context) -> Acls:
    """The ACLs whose principal or resource contains the search."""
    search, every, is_off = context.query.get("q", "").lower(), list[Acl](), False
    try:
        every = acls_of(context)
    except BrokerError as refused:
        if refused.code != ErrorCode.SECURITY_DISABLED:
            raise
        is_off = True
    found = [each for each in every if search in f"{each.principal}\n{each.name}".lower()]
    return Acls(
        title="ACLs",
        command=context.command("acls", "list"),
        acls=tuple(found[:ROWS_MAX]),
        more=max(0, len(found) - ROWS_MAX),
        is_off=is_off,
    )


# ---- users and quotas ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class UserRow:
    """A user with SCRAM credentials; no page shows a part of a password."""

    name: str
    mechanisms: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Users(View):
    """Users that log in by SCRAM, and how many more there are."""

    users: tuple[UserRow, ...]
    more: int


def load_users(context: Context) -> Users:
    """The users whose name contains the search."""
    search = context.query.get("q", "").lower()
    found = [UserRow(*each) for each in sorted(users_of(context).items()) if search in each[0].lower()]
    return Users(
        title="Users",
        command=context.command("users", "list"),
        users=tuple(found[:ROWS_MAX]),
        more=max(0, len(found) - ROWS_MAX),
    )


@dataclass(frozen=True, slots=True)
class QuotaRow:
    """A limit. `entity` names who it is for, <default> for those without a limit of their own; `names` are its names by
    kind."""

    entity: str
    limit: str
    value: float
    names: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotas(View):
    """The limits of users, clients and addresses."""

    quotas: tuple[QuotaRow, ...]
    more: int


def load_quotas(context: Context) -> Quotas:
    """The quotas whose entity contains the search."""
    search = context.query.get("q", "").lower()
    rows = [each for each in quota_rows(quotas_of(context)) if search in each.entity.lower()]
    return Quotas(
        title="Quotas",
        command=context.command("quotas", "list"),
        quotas=tuple(rows[:ROWS_MAX]),
        more=max(0, len(rows) - ROWS_MAX),
    )


def quota_rows(entries: Iterable[Any]) -> list[QuotaRow]:
    """The rows of an answer, by entity."""
    return sorted(
        (
            QuotaRow(
                ", ".join(f"{each.entity_type} {each.entity_name or '<default>'}" for each in entry.entity),
                each.key,
                each.value,
                {part.entity_type: part.entity_name or user_changes.DEFAULT for part in entry.entity},
            )
            for entry in entries
            for each in entry.values
        ),
        key=lambda row: (row.entity, row.limit),
    )


PAGE: Final = Page(
    name="security",
    path="/security",
    load=load,
    label="Security",
    key="u",
    refresh_s=0,
    parts=(
        Part("users", "Users", load_users, refresh_s=60),
        Part("acls", "ACLs", load_acls, refresh_s=60),
        Part("quotas", "Quotas", load_quotas, refresh_s=60),
    ),
    changes=(
        Change(
            "add-user",
            "Add a user",
            user_changes.add_preview,
            user_changes.add,
            user_changes.add_fields,
            is_destructive=False,
        ),
        Change(
            "password",
            "Change the password",
            user_changes.password_preview,
            user_changes.change_password,
            user_changes.password_fields,
        ),
        Change("remove-user", "Remove the user", user_changes.remove_preview, user_changes.remove),
        Change("add-acl", "Add an ACL", acl_changes.add_preview, acl_changes.add, acl_changes.add_fields),
        Change("remove-acl", "Remove the ACL", acl_changes.remove_preview, acl_changes.remove),
        Change("quota", "Set a quota", user_changes.quota_preview, user_changes.set_quota, user_changes.quota_fields),
    ),
)
