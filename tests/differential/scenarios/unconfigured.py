"""What needs something that this broker does without: SASL, delegation tokens, passwords, voters, streams groups."""

from __future__ import annotations

from typing import Any

from ..stage import Stage

USER = {"principal_type": "User", "principal_name": "ada"}
SCRAM_SHA_256 = 1
UNSUPPORTED_VERSION = 35


def sasl(s: Stage) -> None:
    """On a listener that asks nobody who he is."""
    s.ask("handshake", "SaslHandshake", "all", mechanism="PLAIN")
    s.ask("handshake without a mechanism", "SaslHandshake", 1, mechanism="")
    s.ask("authenticate", "SaslAuthenticate", "all", auth_bytes=b"\0ada\0secret")
    s.ask("the connection lives on", "SaslHandshake", 1, mechanism="GSSAPI")


def delegation_tokens(s: Stage) -> None:
    create = "CreateDelegationToken"
    s.ask(
        "create", create, "all", renewers=[], max_lifetime_ms=-1, owner_principal_type=None, owner_principal_name=None
    )
    s.ask("create for another", create, 3, owner_principal_type="User", owner_principal_name="ada")
    s.ask("create without a name", create, 3, owner_principal_type="User", owner_principal_name="")
    s.ask("create for another kind", create, 3, owner_principal_type="Group", owner_principal_name="ada")
    s.ask("create with a renewer", create, 3, renewers=[USER | {"principal_type": "Group"}])
    s.ask("renew", "RenewDelegationToken", "all", hmac=b"0123", renew_period_ms=-1)
    s.ask("expire", "ExpireDelegationToken", "all", hmac=b"0123", expiry_time_period_ms=-1)
    s.ask("describe all", "DescribeDelegationToken", "all", owners=None)
    s.ask("describe none", "DescribeDelegationToken", "all", owners=[])
    s.ask("describe one", "DescribeDelegationToken", "all", owners=[USER])


def scram_credentials(s: Stage) -> None:
    api = "AlterUserScramCredentials"
    ada, bob = s.name("ada"), s.name("bob")

    def gone(name: str, mechanism: int = SCRAM_SHA_256) -> dict[str, Any]:
        return {"name": name, "mechanism": mechanism}

    def new(name: str, mechanism: int = SCRAM_SHA_256, iterations: int = 4096) -> dict[str, Any]:
        return gone(name, mechanism) | {"iterations": iterations, "salt": b"salt", "salted_password": b"x" * 32}

    s.ask("nothing", api, "all", deletions=[], upsertions=[])
    s.ask("remove what is not there", api, "all", deletions=[gone(ada)])
    s.ask("remove two", api, "all", deletions=[gone(ada), gone(bob, 2)], keep=by_user)
    s.ask("remove twice", api, "all", deletions=[gone(ada), gone(ada, 2)])
    s.ask("remove of an unknown mechanism", api, "all", deletions=[gone(ada, 7)])
    s.ask("remove without a name", api, "all", deletions=[gone("")])
    s.ask("set without a name", api, "all", upsertions=[new("")])
    s.ask("set of an unknown mechanism", api, "all", upsertions=[new(ada, 7)])
    s.ask("set with too few iterations", api, "all", upsertions=[new(ada, iterations=4095)])
    s.ask("set with too many iterations", api, "all", upsertions=[new(ada, iterations=16385)])
    s.ask("set twice", api, "all", upsertions=[new(ada), new(ada, 2)])
    s.ask("set and remove", api, "all", deletions=[gone(ada)], upsertions=[new(bob, iterations=1)], keep=by_user)
    s.ask("set", api, "all", upsertions=[new(bob)])
    s.ask("remove what was set", api, "all", deletions=[gone(bob)])


def by_user(answer: dict[str, Any]) -> dict[str, Any]:
    """Kafka's answer stands in the order of a hash map."""
    answer["results"].sort(key=lambda result: result["user"])
    return answer


def log_directories(s: Stage) -> None:
    api = "AlterReplicaLogDirs"
    name = s.create("t", 1)
    here = s.send("DescribeLogDirs", topics=[]).results[0].log_dir

    def to(path: str, topic: str = name, *indexes: int) -> list[dict[str, Any]]:
        return [{"path": path, "topics": [{"name": topic, "partitions": [*indexes]}]}]

    s.ask("to nowhere", api, "all", dirs=to("/no/such/directory", name, 0))
    s.ask("to a relative path", api, 2, dirs=to("data", name, 0))
    s.ask("to where it is", api, "all", dirs=to(here, name, 0))
    s.ask("an unknown partition", api, 2, dirs=to("/no/such/directory", name, 9))
    s.ask("an unknown topic", api, 2, dirs=to("/no/such/directory", s.name("nope"), 0))
    s.ask("an unknown partition to where the others are", api, 2, dirs=to(here, name, 9))
    s.ask("an unknown topic to where the others are", api, 2, dirs=to(here, s.name("nope"), 0))
    s.ask("twice", api, 2, dirs=to("/no/such/directory", name, 0) + to(here, name, 0))
    s.ask("no partitions", api, 2, dirs=to("/no/such/directory", name))
    s.ask("nothing", api, "all", dirs=[])


def brokers(s: Stage) -> None:
    s.ask("unregister an unknown one", "UnregisterBroker", "all", broker_id=99)
    s.ask("unregister a negative one", "UnregisterBroker", "all", broker_id=-1)


def voters(s: Stage) -> None:
    add, remove = "AddRaftVoter", "RemoveRaftVoter"
    listeners = [{"name": "CONTROLLER", "host": "127.0.0.1", "port": 9}]
    voter: dict[str, Any] = {"cluster_id": None, "voter_id": 99, "voter_directory_id": b"d" * 16}
    s.ask("add, of another cluster", add, "all", **(voter | {"cluster_id": "other"}), listeners=listeners)
    s.ask("add without a directory", add, "all", cluster_id=None, voter_id=99, listeners=listeners)
    s.ask("add a negative one", add, "all", **(voter | {"voter_id": -1}), listeners=listeners)
    s.ask("add without an address", add, "all", **voter, listeners=[])
    s.ask("add who is there", add, "all", **(voter | {"voter_id": s.node_id}), listeners=listeners)
    s.ask("remove, of another cluster", remove, "all", **(voter | {"cluster_id": "other"}))
    s.ask("remove without a directory", remove, "all", cluster_id=None, voter_id=99)
    s.ask("remove a negative one", remove, "all", **(voter | {"voter_id": -1}))
    s.ask("remove an unknown one", remove, "all", **voter)


def streams_groups(s: Stage) -> None:
    """With the feature streams.version at 0, which Kafka is asked for first."""
    heartbeat, asked = "StreamsGroupHeartbeat", {"group_id": s.name("g"), "member_id": "m"}
    if s.slow:
        set_streams_version(s, 0)
        s.until(lambda answer: answer.error_code == UNSUPPORTED_VERSION, heartbeat, **asked)
    s.ask("heartbeat", heartbeat, "all", **asked)
    s.ask("heartbeat without a group", heartbeat, "all", group_id="", member_id="m")
    s.ask("describe none", "StreamsGroupDescribe", "all", group_ids=[])
    s.ask("describe two", "StreamsGroupDescribe", "all", group_ids=[s.name("g"), s.name("h")])
    s.ask("describe one twice", "StreamsGroupDescribe", "all", group_ids=[s.name("g")] * 2)
    if s.slow:
        set_streams_version(s, 1)


def set_streams_version(s: Stage, level: int) -> None:
    change = {"feature": "streams.version", "max_version_level": level, "upgrade_type": 1 if level else 2}
    s.send("UpdateFeatures", 2, timeout_ms=5000, feature_updates=[change])
