"""What tools that guess a broker's version from its ApiVersions make of this one: kminion, Redpanda Console.

The rule is that of franz-go's `kversion` (VersionGuess): only the highest versions count. A release fits when each of
its keys is there in exactly its version, and no other key is. Where something is lacking, the release before is tried;
where there is more than that one has, the broker stands between the two. Keys between brokers are not looked at. It
tries the releases with ZooKeeper as well, and says "at least 3.9" where the broker would
stand between two of these.
"""

import pytest

from ottla.protocol.messages.api_versions import ApiVersionsRequest
from tests.harness.node_stage import NodeStage

SKIPPED = {4, 5, 6, 7, 27, 56, 57, 58, 67, 71, 72}
"""LeaderAndIsr, StopReplica, UpdateMetadata, ControlledShutdown, WriteTxnMarkers, AlterPartition, UpdateFeatures,
Envelope, AllocateProducerIds; GetTelemetrySubscriptions and PushTelemetry, which Kafka advertises only with a plugin
for them."""

KAFKA_4_0 = dict(
    pair
    for row in (
        ((0, 12), (1, 17), (2, 10), (3, 13), (8, 9), (9, 9), (10, 6), (11, 9), (12, 4), (13, 5), (14, 5), (15, 6)),
        ((16, 5), (17, 1), (18, 4), (19, 7), (20, 6), (21, 2), (22, 5), (23, 4), (24, 5), (25, 4), (26, 5), (27, 1)),
        ((28, 5), (29, 3), (30, 3), (31, 3), (32, 4), (33, 2), (34, 2), (35, 4), (36, 2), (37, 3), (38, 3), (39, 2)),
        ((40, 2), (41, 3), (42, 2), (43, 2), (44, 1), (45, 0), (46, 0), (47, 0), (48, 1), (49, 1), (50, 0), (51, 0)),
        ((55, 2), (57, 2), (60, 2), (61, 0), (64, 0), (65, 0), (66, 1), (68, 1), (69, 1), (74, 0), (75, 0), (80, 0)),
        ((81, 0),),
    )
    for pair in row
)
"""Key and highest version of what a broker of Kafka 4.0 advertises to clients."""
KAFKA_4_1 = KAFKA_4_0 | {0: 13, 1: 18, 45: 1, 66: 2, 74: 1, 76: 1, 77: 1, 78: 1, 79: 1}
KAFKA_4_1 |= dict.fromkeys((83, 84, 85, 86, 87, 90, 91, 92), 0)
KAFKA_4_2 = KAFKA_4_1 | {2: 11, 8: 10, 9: 10, 27: 2, 78: 2, 79: 2, 80: 1, 85: 1, 87: 1, 88: 0, 89: 0, 90: 1}
RELEASES = {"4.2": KAFKA_4_2, "4.1": KAFKA_4_1, "4.0": KAFKA_4_0}
"""The newest first; `kversion` knows no newer one."""
KAFKA_4_3 = KAFKA_4_2 | {35: 5}
"""What Kafka 4.3.1 answered on a plain listener without an authorizer."""

WITHOUT_BEING_CONFIGURED = {17, 34, 36, 38, 39, 40, 41, 51, 80, 81, 88, 89}
"""Keys that Kafka advertises whether or not what they serve is there, and so does this broker."""


def guess(advertised: dict[int, int]) -> str:
    seen = {key: high for key, high in advertised.items() if key not in SKIPPED}
    newer = ""
    for name, keys in RELEASES.items():
        wanted = {key: high for key, high in keys.items() if key not in SKIPPED}
        under = any(seen.get(key, -1) < high for key, high in wanted.items())
        over = any(high > wanted.get(key, -1) for key, high in seen.items())
        if not under:
            if not over:
                return name
            return f"between {name} and {newer}" if newer else f"at least {name}"
        newer = name
    return f"not even {newer}"


@pytest.fixture
def advertised(stage: NodeStage) -> dict[int, int]:
    return {row.api_key: row.max_version for row in stage.ask(ApiVersionsRequest("kminion", "1")).api_keys}


def test_the_rule_knows_each_release() -> None:
    for name, keys in RELEASES.items():
        assert guess(keys) == name
    assert guess(KAFKA_4_3) == "at least 4.2"
    assert guess(KAFKA_4_0 | {76: 1}) == "between 4.0 and 4.1"


def test_every_key_of_4_0_is_there_in_its_version(advertised: dict[int, int]) -> None:
    lower = {key: high for key, high in KAFKA_4_0.items() if advertised.get(key, -1) < high}
    assert lower == {}


def test_a_tool_that_guesses_sees_what_it_sees_of_kafka_4_3(advertised: dict[int, int]) -> None:
    assert advertised == KAFKA_4_3
    assert guess(advertised) == "at least 4.2"


@pytest.mark.parametrize("key", sorted(WITHOUT_BEING_CONFIGURED))
def test_without_one_of_them_it_would_not(advertised: dict[int, int], key: int) -> None:
    del advertised[key]
    assert guess(advertised) == ("between 4.1 and 4.2" if key in {88, 89} else "not even 4.0")
