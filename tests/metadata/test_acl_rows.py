"""The rows of ACLs, and which of them an image finds for a resource."""

from hypothesis import given
from hypothesis import strategies as st

from ottla.metadata.acls import ACLS, EMPTY, PREFIX, AclBinding, AclFilter, AclTable, binding_of
from ottla.metadata.row_kinds import Row
from ottla.protocol.acls import ANY, MATCH, Operation, PatternType, PermissionType, ResourceType

NAMES = st.sampled_from(["*", "a", "ab", "abc", "b", "ü-1"])
BINDINGS = st.builds(
    AclBinding,
    st.sampled_from([ResourceType.TOPIC, ResourceType.GROUP]),
    st.sampled_from(PatternType),
    NAMES,
    st.sampled_from(["User:ada", "User:*", 'User:"O=x, CN=\u00fc"']),
    st.sampled_from(["*", "10.0.0.1"]),
    st.sampled_from([Operation.READ, Operation.ALL]),
    st.sampled_from(PermissionType),
)


def with_rows(table: AclTable, acls: list[AclBinding], *, there: bool) -> AclTable:
    rows = {acl.key.removeprefix(PREFIX): Row(acl, 1) if there else None for acl in acls}
    return ACLS.apply(table, rows)


def applies(acl: AclBinding, kind: ResourceType, name: str) -> bool:
    if acl.resource_type is not kind:
        return False
    if acl.pattern_type is PatternType.PREFIXED:
        return name.startswith(acl.name)
    return acl.name in (name, "*")


@given(BINDINGS)
def test_the_key_of_a_row_is_the_acl(acl: AclBinding) -> None:
    assert binding_of(acl.key.removeprefix(PREFIX)) == acl
    assert ACLS.decode(acl.encode(), acl.key.removeprefix(PREFIX), EMPTY) == acl


@given(st.lists(BINDINGS), st.lists(BINDINGS), st.sampled_from([ResourceType.TOPIC, ResourceType.GROUP]), NAMES)
def test_an_image_finds_every_acl_that_applies(
    made: list[AclBinding], gone: list[AclBinding], kind: ResourceType, name: str
) -> None:
    before = with_rows(EMPTY, made, there=True)
    after = with_rows(before, gone, there=False)
    assert set(before) == set(made), "the old table has not changed"
    left = set(made) - set(gone)
    assert set(after) == left
    assert len(after) == len(left)
    found = list(after.on(kind, name))
    assert len(found) == len(set(found))
    assert set(found) == {acl for acl in left if applies(acl, kind, name)}


@given(st.lists(BINDINGS), NAMES)
def test_a_filter_by_match_finds_what_applies_to_the_name(acls: list[AclBinding], name: str) -> None:
    wanted = AclFilter(ResourceType.TOPIC, MATCH, name)
    assert {acl for acl in acls if wanted.matches(acl)} == {
        acl for acl in acls if applies(acl, ResourceType.TOPIC, name)
    }


def test_a_filter_matches_what_it_names_and_everything_else() -> None:
    acl = AclBinding(
        ResourceType.TOPIC, PatternType.PREFIXED, "a", "User:ada", "*", Operation.READ, PermissionType.ALLOW
    )
    assert AclFilter().matches(acl)
    assert AclFilter(*acl).matches(acl)
    others = (ResourceType.GROUP, PatternType.LITERAL, "ab", "User:*", "10.0.0.1", Operation.ALL, PermissionType.DENY)
    for at, other in enumerate(others):
        assert not AclFilter(*acl[:at], other, *acl[at + 1 :]).matches(acl)  # type: ignore[arg-type]
    assert not AclFilter(ANY, ANY, "abc").matches(acl), "only MATCH follows a prefix"
    assert not AclFilter(77).matches(acl), "a code that is not defined matches nothing"
