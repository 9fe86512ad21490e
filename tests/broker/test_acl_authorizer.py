"""Decisions by ACLs are those of Kafka's rules, read as they are written."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.client_identity import GRANTED_MAX, Address, Identity, Principal
from ottla.broker.security.acls import DECISIONS_MAX, AclAuthorizer
from ottla.broker.security.authorizer import Access
from ottla.metadata.acls import ACLS, EMPTY, PREFIX, AclBinding, AclTable
from ottla.metadata.image import MetadataImage
from ottla.metadata.row_kinds import Row
from ottla.protocol.acls import Operation as Op
from ottla.protocol.acls import PatternType, PermissionType, ResourceType

TOPIC = ResourceType.TOPIC
OPERATIONS = st.sampled_from([Op.ALL, Op.READ, Op.WRITE, Op.DESCRIBE, Op.ALTER_CONFIGS, Op.DESCRIBE_CONFIGS])
ASKED = st.sampled_from([Op.READ, Op.WRITE, Op.DESCRIBE, Op.DESCRIBE_CONFIGS, Op.CREATE])
BINDINGS = st.builds(
    AclBinding,
    st.sampled_from([TOPIC, ResourceType.GROUP]),
    st.sampled_from(PatternType),
    st.sampled_from(["*", "a", "ab", "b"]),
    st.sampled_from(["User:ada", "User:*", "User:bob"]),
    st.sampled_from(["*", "10.0.0.1"]),
    OPERATIONS,
    st.sampled_from(PermissionType),
)
WHO = st.sampled_from([("User:ada", "10.0.0.1"), ("User:ada", "10.0.0.2"), ("User:root", "10.0.0.1")])


def table_of(*acls: AclBinding) -> AclTable:
    return ACLS.apply(EMPTY, {acl.key.removeprefix(PREFIX): Row(acl, 1) for acl in acls})


@dataclass
class Holder:
    """Holds an image with these ACLs."""

    acls: AclTable

    @property
    def image(self) -> MetadataImage:
        return MetadataImage.of(1, {ACLS: self.acls})


def client(principal: str, host: str) -> Identity:
    return Identity(Address(1, host), Principal.parse(principal))


def applying(acls: list[AclBinding], name: str) -> list[AclBinding]:
    """Of topics, by rule 2 without the operation."""
    return [
        acl
        for acl in acls
        if acl.resource_type is TOPIC
        and (name.startswith(acl.name) if acl.pattern_type is PatternType.PREFIXED else acl.name in (name, "*"))
    ]


def rule(acls: list[AclBinding], who: tuple[str, str], asked: Op, name: str, default: bool) -> bool:
    if who[0] == "User:root":
        return True
    on_resource = applying(acls, name)
    if not on_resource:
        return default
    mine = [acl for acl in on_resource if acl.principal in (who[0], "User:*") and acl.host in (who[1], "*")]
    if any(acl.permission is PermissionType.DENY and acl.operation in (asked, Op.ALL) for acl in mine):
        return False
    allowing = {asked, Op.ALL}
    if asked is Op.DESCRIBE:
        allowing |= {Op.READ, Op.WRITE, Op.DELETE, Op.ALTER}
    if asked is Op.DESCRIBE_CONFIGS:
        allowing |= {Op.ALTER_CONFIGS}
    return any(acl.permission is PermissionType.ALLOW and acl.operation in allowing for acl in mine)


@given(st.lists(BINDINGS, max_size=8), WHO, ASKED, st.sampled_from(["a", "ab", "abc", "c"]), st.booleans())
def test_a_decision_is_that_of_the_rules(
    acls: list[AclBinding], who: tuple[str, str], asked: Op, name: str, default: bool
) -> None:
    table = table_of(*acls)
    authorizer = AclAuthorizer(Holder(table), ["User:root"], default)
    wanted = rule(acls, who, asked, name, default)
    assert [authorizer.allows(client(*who), asked, TOPIC, name) for _ in range(2)] == [wanted, wanted]
    told = authorizer.rule(*who, asked, TOPIC, name)
    assert told.allowed is wanted
    assert told.acl is None or told.acl in acls
    assert (told.acl is None) is (told.why.startswith(("No ACL", "ACLs match", "It is a super user")))


@given(st.lists(BINDINGS, max_size=6), WHO, ASKED)
def test_a_type_of_resource_is_allowed_if_some_name_of_it_may_be(
    acls: list[AclBinding], who: tuple[str, str], asked: Op
) -> None:
    """Compared with names that no other pattern reaches; implied operations and several DENYs that only together cover
    an ALLOW do not count, as in Kafka."""
    table = table_of(*acls)
    authorizer = AclAuthorizer(Holder(table), ["User:root"], False)
    if asked in (Op.DESCRIBE, Op.DESCRIBE_CONFIGS):
        return
    names = ["a", "ab", "b", "hardcode", "a-new", "ab-new", "b-new"]
    possible = any(rule(acls, who, asked, name, False) for name in names)
    assert authorizer.allows_any(client(*who), asked, TOPIC) is possible


def test_a_change_of_acls_holds_from_the_next_request_on() -> None:
    read = AclBinding(TOPIC, PatternType.LITERAL, "t", "User:ada", "*", Op.READ, PermissionType.ALLOW)
    now = Holder(table_of(read))
    authorizer = AclAuthorizer(now, [], False)
    ada = client("User:ada", "10.0.0.1")
    assert authorizer.allows(ada, Op.READ, TOPIC, "t")
    now.acls = ACLS.apply(now.acls, {read.key.removeprefix(PREFIX): None})
    assert not authorizer.allows(ada, Op.READ, TOPIC, "t")


def access_of(authorizer: AclAuthorizer) -> Access:
    return Access(authorizer, lambda *_: False, authorizer._metadata)


def test_what_was_granted_is_forgotten_when_the_acls_change() -> None:
    """By name and by id, and for one connection as for another."""
    acls = [
        AclBinding(TOPIC, PatternType.LITERAL, "t", "User:ada", "*", op, PermissionType.ALLOW)
        for op in (Op.READ, Op.WRITE)
    ]
    now = Holder(table_of(*acls))
    access = access_of(AclAuthorizer(now, [], False))
    clients = [client("User:ada", "10.0.0.1") for _ in range(2)]
    bob = client("User:bob", "10.0.0.1")
    for _ in range(2):
        assert all(access.may_read(each, "t") and access.may_write(each, "t") for each in clients)
        assert not access.may_read(bob, "t")
    now.acls = ACLS.apply(now.acls, {acls[0].key.removeprefix(PREFIX): None})
    assert not any(access.may_read(each, "t") for each in clients)
    assert all(access.may_write(each, "t") for each in clients)


def test_a_client_that_asks_for_many_names_does_not_fill_the_memory() -> None:
    authorizer = AclAuthorizer(Holder(EMPTY), [], True)
    ada = client("User:ada", "10.0.0.1")
    for number in range(DECISIONS_MAX + 10):
        assert authorizer.allows(ada, Op.READ, TOPIC, str(number))
        access_of(authorizer).may_read(ada, str(number))
    assert sum(len(known) for _, known in authorizer._decisions.values()) <= DECISIONS_MAX
    assert len(ada.granted.read) <= GRANTED_MAX
