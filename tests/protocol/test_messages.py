"""Every generated message in every version against kio: the same bytes for the same values, both ways."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.harness.protocol.kio_oracle import Case, cases, kio_bytes, kio_read, messages_of, schemas, to_ours

CASES = list(cases())
pytestmark = pytest.mark.xdist_group("kio")
"""One process reads all of kio's schemas; that takes as long as hundreds of these tests."""
OTHER_VERSIONS = pytest.mark.slow("tests/protocol/test_messages.py::test_same_bytes_as_kio_both_ways")


def test_every_message_that_kio_describes_is_a_case() -> None:
    described = [each for messages in schemas().values() for each in messages]
    versions = [(each.name, version) for each in described for version in range(each.versions[0], each.versions[1] + 1)]
    assert sorted((case.name, case.version) for case in CASES) == sorted(versions)


EXAMPLES = settings(
    max_examples=6,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),  # pyright: ignore[reportArgumentType]
)


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.id, marks=() if case.is_first_or_last else OTHER_VERSIONS) for case in CASES]
)
def test_same_bytes_as_kio_both_ways(case: Case) -> None:
    @EXAMPLES
    @given(st.data())
    def check(data: st.DataObject) -> None:
        theirs = data.draw(messages_of(case.kio))
        expected = kio_bytes(theirs)
        ours = to_ours(case, theirs)
        out = bytearray(b"before")
        ours.encode(out, case.version)
        assert bytes(out[6:]) == expected
        view = memoryview(b"ab" + expected + b"trailing")
        decoded, end = case.ours.decode(view, 2, case.version)
        assert decoded == ours
        assert end == 2 + len(expected)
        assert kio_read(case.kio, expected) == kio_read(case.kio, bytes(out[6:]))

    check()
