"""The `simple` assignor: everyone has work, nobody has more than its part, and nothing moves without need."""

from hypothesis import given
from hypothesis import strategies as st

from ottla.groups.share.assignor import assign
from ottla.groups.share.group import Assignment


def topic_id(n: int) -> bytes:
    return n.to_bytes(16, "big")


def places(assignment: Assignment) -> set[tuple[bytes, int]]:
    return {(topic, index) for topic, indexes in assignment for index in indexes}


def spread(members: int, *partitions: int, before: dict[str, Assignment] | None = None) -> dict[str, Assignment]:
    """All members subscribe to all topics, which have so many partitions."""
    topics = {f"t{i}": (topic_id(i), count) for i, count in enumerate(partitions)}
    return assign({f"m{i}": list(topics) for i in range(members)}, topics, before or {})


def counts(result: dict[str, Assignment]) -> list[int]:
    return sorted(len(places(each)) for each in result.values())


def test_fewer_members_than_partitions_share_them_out() -> None:
    result = spread(3, 4, 4)
    assert counts(result) == [2, 3, 3]
    assert len(set.union(*map(places, result.values()))) == 8


def test_more_members_than_partitions_share_partitions() -> None:
    assert counts(spread(16, 1)) == [1] * 16
    assert counts(spread(3, 2)) == [1, 1, 2]
    assert counts(spread(5, 4)) == [1, 1, 2, 2, 2]


def test_nothing_to_read_and_nobody_to_read_it() -> None:
    assert assign({}, {"t": (topic_id(1), 3)}, {}) == {}
    assert assign({"m": ["nope"]}, {}, {"m": ((topic_id(1), (0,)),)}) == {"m": ()}


@given(members=st.integers(1, 12), partitions=st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_balance(members: int, partitions: list[int]) -> None:
    result = spread(members, *partitions)
    check_balance(result, members, sum(partitions))


def check_balance(result: dict[str, Assignment], members: int, partitions: int) -> None:
    sizes = counts(result)
    assert sizes[-1] - sizes[0] <= 1
    assert sizes[0] >= 1 or members < partitions
    readers: dict[tuple[bytes, int], int] = {}
    for each in result.values():
        for place in places(each):
            readers[place] = readers.get(place, 0) + 1
    assert set(readers.values()) == {-(-members // partitions)}
    assert len(readers) == partitions


@given(
    st.integers(1, 10), st.integers(1, 10), st.integers(1, 12), st.integers(1, 12),
    st.randoms(use_true_random=False),
)  # fmt: skip
def test_balance_comes_back_from_anything(members: int, later: int, partitions: int, more: int, random: object) -> None:
    """Members come or go, partitions are added, and what was before may be lopsided."""
    before = spread(members, partitions)
    for member_id in list(before)[: random.randrange(members)]:  # type: ignore[attr-defined]
        before[member_id] = ((topic_id(0), tuple(range(partitions))),)
    result = spread(later, max(partitions, more), before=before)
    check_balance(result, later, max(partitions, more))


@given(members=st.integers(1, 12), partitions=st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_what_is_balanced_stays(members: int, partitions: list[int]) -> None:
    result = spread(members, *partitions)
    assert spread(members, *partitions, before=result) == result


@given(st.integers(2, 12), st.integers(1, 30))
def test_a_newcomer_takes_no_more_than_its_part(members: int, partitions: int) -> None:
    before = spread(members - 1, partitions)
    after = spread(members, partitions, before=before)
    same_readers = -(-members // partitions) == -(-(members - 1) // partitions)
    lost = sum(len(places(before[each]) - places(after[each])) for each in before)
    if same_readers:
        assert lost <= len(places(after[f"m{members - 1}"]))


@given(
    st.dictionaries(
        st.sampled_from("abcdef"),
        st.lists(st.sampled_from(["t0", "t1", "t2", "gone"]), unique=True, max_size=4),
        min_size=1,
    ),
    st.lists(st.integers(1, 5), min_size=3, max_size=3),
)
def test_different_subscriptions(subscriptions: dict[str, list[str]], partitions: list[int]) -> None:
    topics = {f"t{i}": (topic_id(i), count) for i, count in enumerate(partitions)}
    result = assign(subscriptions, topics, {})
    for member_id, names in subscriptions.items():
        allowed = {topics[name][0] for name in names if name in topics}
        assert {topic for topic, _ in result[member_id]} <= allowed
    for name, (topic, count) in topics.items():
        if any(name in names for names in subscriptions.values()):
            read = {index for each in result.values() for t, index in places(each) if t == topic}
            assert read == set(range(count)), name
