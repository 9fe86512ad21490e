"""Shows who may do what: users, ACLs, quotas, and whether a user may do something, and why."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from ottla.client.errors import BrokerError, ClientError, check
from ottla.console.acl_rules import Acl, decided
from ottla.console.page import Context, InputError, Page, Part, View
from ottla.console.reading import BROKER, configs
from ottla.protocol.acls import ANY, Operation, PatternType, PermissionType, ResourceType
from ottla.protocol.errors import ErrorCode
from ottla.protocol.messages.describe_acls import DescribeAclsRequest
from ottla.protocol.messages.describe_client_quotas import DescribeClientQuotasRequest
from ottla.protocol.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest
from ottla.protocol.scram import MECHANISMS

ROWS_MAX: Final = 200
SUPER_USERS, ALLOW_ALL = "super.users", "allow.everyone.if.no.acl.found"


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
    if asked["principal"] in (each.strip() for each in settings.get(SUPER_USERS, "").split(";")):
        return True, f"{asked['principal']} is one of {SUPER_USERS}."
    name = "kafka-cluster" if kind is ResourceType.CLUSTER else asked["resource"]
    acls = [each for each in acls_of(context) if each.covers(kind, name)]
    allowed, acl = decided(acls, asked["principal"], asked["host"], operation)
    if acl is not None:
        return bool(allowed), f"An ACL {acl}."
    if allowed is None:
        allowed = settings.get(ALLOW_ALL, "").lower() == "true"
        return allowed, f"No ACL names this resource, and {ALLOW_ALL} is {str(allowed).lower()}."
    return False, "ACLs name this resource, but none of them allows it."


def authorizer_settings(context: Context) -> dict[str, str]:
    """The properties of a node that decide beside the ACLs; empty if the user may not see them."""
    node = context.client.metadata([]).brokers[0].node_id
    try:
        return {each.name: each.value or "" for each in configs(context, BROKER, str(node))}
    except ClientError:
        return {}


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


def acls_of(context: Context) -> list[Acl]:
    """Every ACL that the user may see. Raises BrokerError, also where the cluster has no authorizer."""
    answer = context.client.send(DescribeAclsRequest(ANY, None, ANY, None, None, ANY, ANY))
    check(answer.error_code, "the ACLs", answer.error_message)
    return sorted(acls_in(answer.resources))


def acls_in(resources: Iterable[Any]) -> list[Acl]:
    """The ACLs of an answer."""
    return [
        Acl(
            _name(ResourceType, found.resource_type),
            found.resource_name,
            _name(PatternType, found.pattern_type),
            each.principal,
            each.host,
            _name(Operation, each.operation),
            _name(PermissionType, each.permission_type),
        )
        for found in resources
        for each in found.acls
    ]


def _name(codes: Any, code: int) -> str:
    try:
        return codes(code).name
    except ValueError:
        return f"code {code}"


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
    answer = context.client.send(DescribeUserScramCredentialsRequest(None))
    check(answer.error_code, "the users", answer.error_message)
    search = context.query.get("q", "").lower()
    found = sorted(
        (
            UserRow(each.user, tuple(MECHANISMS.get(info.mechanism, "?") for info in each.credential_infos))
            for each in answer.results
            if not each.error_code and search in each.user.lower()
        ),
        key=lambda each: each.name,
    )
    return Users(
        title="Users",
        command=context.command("users", "list"),
        users=tuple(found[:ROWS_MAX]),
        more=max(0, len(found) - ROWS_MAX),
    )


@dataclass(frozen=True, slots=True)
class QuotaRow:
    """A limit. `entity` names who it is for, <default> for those without a limit of their own."""

    entity: str
    limit: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Quotas(View):
    """The limits of users, clients and addresses."""

    quotas: tuple[QuotaRow, ...]
    more: int


def load_quotas(context: Context) -> Quotas:
    """The quotas whose entity contains the search."""
    answer = context.client.send(DescribeClientQuotasRequest([]))
    check(answer.error_code, "quotas", answer.error_message)
    search = context.query.get("q", "").lower()
    rows = [each for each in quota_rows(answer.entries or ()) if search in each.entity.lower()]
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
)
