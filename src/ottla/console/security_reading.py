"""Reads users, ACLs and quotas of the cluster, and the properties of its authorizer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ottla.client.errors import ClientError, check
from ottla.console.acl_rules import Acl
from ottla.console.page import Context
from ottla.console.reading import configs
from ottla.protocol.acls import ANY, Operation, PatternType, PermissionType, ResourceType
from ottla.protocol.config_resources import ConfigResourceType
from ottla.protocol.messages.describe_acls import DescribeAclsRequest
from ottla.protocol.messages.describe_client_quotas import DescribeClientQuotasRequest
from ottla.protocol.messages.describe_user_scram_credentials import DescribeUserScramCredentialsRequest
from ottla.protocol.scram import MECHANISMS

SUPER_USERS, ALLOW_ALL = "super.users", "allow.everyone.if.no.acl.found"


def authorizer_settings(context: Context) -> dict[str, str]:
    """The properties of a node that decide beside the ACLs; empty if the user may not see them."""
    node = context.client.metadata([]).brokers[0].node_id
    try:
        return {each.name: each.value or "" for each in configs(context, ConfigResourceType.BROKER, str(node))}
    except ClientError:
        return {}


def super_users_in(settings: dict[str, str]) -> frozenset[str]:
    """The principals that may do everything."""
    return frozenset(each.strip() for each in settings.get(SUPER_USERS, "").split(";") if each.strip())


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


def users_of(context: Context) -> dict[str, tuple[str, ...]]:
    """The users with SCRAM credentials, and their mechanisms. Raises BrokerError."""
    answer = context.client.send(DescribeUserScramCredentialsRequest(None))
    check(answer.error_code, "the users", answer.error_message)
    return {
        each.user: tuple(MECHANISMS.get(info.mechanism, "?") for info in each.credential_infos)
        for each in answer.results
        if not each.error_code
    }


def quotas_of(context: Context) -> Iterable[Any]:
    """The entries of all quotas. Raises BrokerError."""
    answer = context.client.send(DescribeClientQuotasRequest([]))
    check(answer.error_code, "quotas", answer.error_message)
    return answer.entries or ()
