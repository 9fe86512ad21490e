"""Lists the API keys this node serves: a literal table, one module a key.

A module has either `handle(node, request)`, which gets the decoded message and returns a message, `Parked` or None,
or `receive(node, now, session, version, correlation_id, frame)`, which reads the frame itself and returns the parts of
the answer. What the controller alone serves has `refused(request, error, sentence)` too, the answer where that is not
reached. ApiVersions advertises exactly this table; `tests/test_served.py` holds it against the modules' docstrings,
and against SKIPPED.md: a key stands here or there.

A module is imported when its API is first asked for: importing all of them would cost a third of a node's start.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

from ottla.protocol.apis import APIS
from ottla.protocol.errors import ErrorCode

SERVED: Final[dict[int, tuple[str, int, int]]] = {
    0: ("k00_produce", 0, 13),
    1: ("k01_fetch", 4, 18),
    2: ("k02_list_offsets", 1, 11),
    3: ("k03_metadata", 0, 13),
    8: ("k08_offset_commit", 2, 10),
    9: ("k09_offset_fetch", 1, 10),
    10: ("k10_find_coordinator", 0, 6),
    11: ("k11_join_group", 0, 9),
    12: ("k12_heartbeat", 0, 4),
    13: ("k13_leave_group", 0, 5),
    14: ("k14_sync_group", 0, 5),
    15: ("k15_describe_groups", 0, 6),
    16: ("k16_list_groups", 0, 5),
    17: ("k17_sasl_handshake", 0, 1),
    18: ("k18_api_versions", 0, 4),
    19: ("k19_create_topics", 2, 7),
    20: ("k20_delete_topics", 1, 6),
    21: ("k21_delete_records", 0, 2),
    22: ("k22_init_producer_id", 0, 5),
    23: ("k23_offset_for_leader_epoch", 2, 4),
    24: ("k24_add_partitions_to_txn", 0, 5),
    25: ("k25_add_offsets_to_txn", 0, 4),
    26: ("k26_end_txn", 0, 5),
    27: ("k27_write_txn_markers", 1, 2),
    28: ("k28_txn_offset_commit", 0, 5),
    29: ("k29_describe_acls", 1, 3),
    30: ("k30_create_acls", 1, 3),
    31: ("k31_delete_acls", 1, 3),
    32: ("k32_describe_configs", 1, 4),
    33: ("k33_alter_configs", 0, 2),
    34: ("k34_alter_replica_log_dirs", 1, 2),
    35: ("k35_describe_log_dirs", 1, 5),
    36: ("k36_sasl_authenticate", 0, 2),
    37: ("k37_create_partitions", 0, 3),
    38: ("k38_create_delegation_token", 1, 3),
    39: ("k39_renew_delegation_token", 1, 2),
    40: ("k40_expire_delegation_token", 1, 2),
    41: ("k41_describe_delegation_token", 1, 3),
    42: ("k42_delete_groups", 0, 2),
    43: ("k43_elect_leaders", 0, 2),
    44: ("k44_incremental_alter_configs", 0, 1),
    45: ("k45_alter_partition_reassignments", 0, 1),
    46: ("k46_list_partition_reassignments", 0, 0),
    47: ("k47_offset_delete", 0, 0),
    48: ("k48_describe_client_quotas", 0, 1),
    49: ("k49_alter_client_quotas", 0, 1),
    50: ("k50_describe_user_scram_credentials", 0, 0),
    51: ("k51_alter_user_scram_credentials", 0, 0),
    55: ("k55_describe_quorum", 0, 2),
    57: ("k57_update_features", 0, 2),
    60: ("k60_describe_cluster", 0, 2),
    61: ("k61_describe_producers", 0, 0),
    64: ("k64_unregister_broker", 0, 0),
    65: ("k65_describe_transactions", 0, 0),
    66: ("k66_list_transactions", 0, 2),
    68: ("k68_consumer_group_heartbeat", 0, 1),
    69: ("k69_consumer_group_describe", 0, 1),
    74: ("k74_list_config_resources", 0, 1),
    75: ("k75_describe_topic_partitions", 0, 0),
    76: ("k76_share_group_heartbeat", 1, 1),
    77: ("k77_share_group_describe", 1, 1),
    78: ("k78_share_fetch", 1, 2),
    79: ("k79_share_acknowledge", 1, 2),
    80: ("k80_add_raft_voter", 0, 1),
    81: ("k81_remove_raft_voter", 0, 0),
    83: ("k83_initialize_share_group_state", 0, 0),
    84: ("k84_read_share_group_state", 0, 0),
    85: ("k85_write_share_group_state", 0, 1),
    86: ("k86_delete_share_group_state", 0, 0),
    87: ("k87_read_share_group_state_summary", 0, 1),
    88: ("k88_streams_group_heartbeat", 0, 0),
    89: ("k89_streams_group_describe", 0, 0),
    90: ("k90_describe_share_group_offsets", 0, 1),
    91: ("k91_alter_share_group_offsets", 0, 0),
    92: ("k92_delete_share_group_offsets", 0, 0),
}
"""API key: module, lowest and highest version."""


class Served:
    """One API as the node calls it. What its module defines is filled in at the first use."""

    __slots__ = ("_module", "answers_any_version", "handle", "key", "max_version", "min_version", "name", "receive")

    receive: Callable[..., Any] | None
    handle: Callable[..., Any]

    def __init__(self, key: int, module: str, min_version: int, max_version: int) -> None:
        self.key = key
        self.name = APIS[key].name
        self.min_version = min_version
        self.max_version = max_version
        self.answers_any_version = key == 18
        self._module = module

    def __getattr__(self, name: str) -> Any:
        """Called for a slot that is still empty: import the module now."""
        if name not in ("receive", "handle"):
            raise AttributeError(name)
        module = self.module()
        self.receive = getattr(module, "receive", None)
        self.handle = getattr(module, "handle", None)  # type: ignore[assignment]
        return getattr(self, name)

    def module(self) -> Any:
        return import_module(f"ottla.broker.api.{self._module}")

    def refused(self, request: Any, error: ErrorCode, sentence: str) -> Any:
        """The answer to a request of what only the controller serves, where nothing of it was done."""
        return self.module().refused(request, error, sentence)

    def decode(self, frame: memoryview, position: int, version: int) -> Any:
        """The request message. Raises MalformedFrame."""
        message, _ = APIS[self.key].request.decode(frame, position, version)
        return message


INTERNAL: Final = {56: ("k56_alter_partition", 2, 3), 58: ("k58_envelope", 0, 0)}
"""The same of what only nodes of a cluster ask each other: not advertised, and not known to a node that is alone."""


def load(*, internal: bool = True) -> dict[int, Served]:
    """Every API that is served, by key; those that are `internal` among them or not."""
    rows = {**SERVED, **INTERNAL} if internal else SERVED
    return {key: Served(key, *row) for key, row in rows.items()}
