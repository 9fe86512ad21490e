"""A slice of the conformance tests on three nodes; `make conform-cluster` runs all that does not speak of one node."""

import pytest

from tests.conform.test_consumer_protocol import group, members, test_members_come_and_go_and_every_record_is_read
from tests.conform.test_transactions import (
    test_offsets_and_records_of_a_transaction_are_seen_together,
    test_transactions_outlive_a_restart,
)
from tests.harness.conform.three_nodes import ThreeNodes

__all__ = [
    "group",
    "members",
    "test_members_come_and_go_and_every_record_is_read",
    "test_offsets_and_records_of_a_transaction_are_seen_together",
    "test_transactions_outlive_a_restart",
]


@pytest.fixture(scope="module")
def broker(three_nodes: ThreeNodes) -> ThreeNodes:
    return three_nodes
