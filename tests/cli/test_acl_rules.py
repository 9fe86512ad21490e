"""`ottla acls check` decides as the nodes' authorizer does, on whatever ACLs there are."""

from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.api import k29_describe_acls
from ottla.broker.security.acls import AclAuthorizer
from ottla.cli.acls import Rules
from ottla.metadata.acls import AclBinding
from ottla.protocol.acls import Operation
from ottla.protocol.messages.describe_acls import DescribeAclsRequest
from tests.broker.test_acl_authorizer import ASKED, BINDINGS, TOPIC, WHO, Holder, client, table_of


class Cluster:
    """Answers what `ottla acls check` asks, from these ACLs."""

    def __init__(self, holder: Holder, *, allowed_without_acl: bool) -> None:
        access = SimpleNamespace(on_cluster=lambda *_: True, authorizer=self)
        self._node = cast("Any", SimpleNamespace(access=access, image=holder.image))
        self._configs = {"super.users": "User:root", "allow.everyone.if.no.acl.found": str(allowed_without_acl).lower()}

    def metadata(self, _: list[str]) -> Any:
        return SimpleNamespace(brokers=[SimpleNamespace(node_id=1)])

    def send(self, message: Any) -> Any:
        if isinstance(message, DescribeAclsRequest):
            return k29_describe_acls.handle(self._node, cast("Any", SimpleNamespace(body=message)))
        configs = [SimpleNamespace(name=name, value=value) for name, value in self._configs.items()]
        return SimpleNamespace(results=[SimpleNamespace(error_code=0, error_message=None, configs=configs)])


@given(st.lists(BINDINGS, max_size=8), WHO, ASKED, st.sampled_from(["a", "ab", "abc", "c"]), st.booleans())
def test_a_check_agrees_with_the_authorizer(
    acls: list[AclBinding], who: tuple[str, str], asked: Operation, name: str, default: bool
) -> None:
    holder = Holder(table_of(*acls))
    authorizer = AclAuthorizer(holder, ["User:root"], default)
    rules = Rules(cast("Any", Cluster(holder, allowed_without_acl=default)))
    allowed, why = rules.of(*who, asked, TOPIC, name)
    assert allowed is authorizer.allows(client(*who), asked, TOPIC, name)
    of_node = authorizer.rule(*who, asked, TOPIC, name)
    assert why == of_node.why or of_node.acl is not None, "of several ACLs, another one may be named"
