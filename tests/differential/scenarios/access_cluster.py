"""The cluster, its ACLs, users and quotas, asked as every kind of principal (`principals`)."""

from __future__ import annotations

from typing import Any

from ottla.protocol.apis import ApiKey as K

from ..principals import Matrix
from ..stage import Stage

SECURED = True


def cluster(s: Stage) -> None:
    m = Matrix(s, "cluster")
    topics, here = m.topics()[:2], s.node_id
    where = [{"topic": name, "partitions": [0]} for name in topics]
    m.ask(K.DESCRIBE_CLUSTER, "operations", keep=without_brokers)(include_cluster_authorized_operations=True)
    m.ask(K.DESCRIBE_LOG_DIRS, "two topics", keep=topics_counted)(topics=where)
    moved = [{"path": "/no/such/directory", "topics": [{"name": name, "partitions": [0]} for name in topics]}]
    m.ask(K.ALTER_REPLICA_LOG_DIRS, "to nowhere")(dirs=moved)
    m.ask(K.ELECT_LEADERS, "two topics")(topic_partitions=where, timeout_ms=10_000)
    m.ask(K.DESCRIBE_QUORUM, "of the metadata", keep=error_only)(
        topics=[{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
    )
    rows = [{"name": name, "partitions": [{"partition_index": 0, "replicas": [here]}]} for name in topics]
    m.ask(K.ALTER_PARTITION_REASSIGNMENTS, "to where they are")(topics=rows, timeout_ms=10_000)
    asked = [{"name": name, "partition_indexes": [0]} for name in topics]
    m.ask(K.LIST_PARTITION_REASSIGNMENTS, "two topics")(topics=asked, timeout_ms=10_000)
    change = {"feature": "group.version", "max_version_level": 1, "upgrade_type": 1}
    m.ask(K.UPDATE_FEATURES, "validated")(feature_updates=[change], validate_only=True, timeout_ms=10_000)
    m.ask(K.UNREGISTER_BROKER, "an unknown one")(broker_id=99)
    voter = {"cluster_id": "other", "voter_id": 99, "voter_directory_id": b"d" * 16}
    m.ask(K.ADD_RAFT_VOTER, "of another cluster")(**voter, listeners=[{"name": "CONTROLLER", "host": "h", "port": 9}])
    m.ask(K.REMOVE_RAFT_VOTER, "of another cluster")(**voter)


def users(s: Stage) -> None:
    m = Matrix(s, "users")
    user, topic = s.name("unused"), m.hidden("unused")
    entry = {"resource_type": 2, "resource_name": topic, "principal": f"User:{user}", "host": "*"}
    rule = {"operation": 3, "permission_type": 3}
    m.ask(K.CREATE_ACLS, "one")(creations=[entry | rule | {"resource_pattern_type": 3}])
    of_user = {"resource_type_filter": 2, "resource_name_filter": topic, "pattern_type_filter": 1, **rule}
    of_user |= {"principal_filter": f"User:{user}", "host_filter": None}
    s.settle()
    m.ask(K.DESCRIBE_ACLS, "one")(**of_user)
    m.ask(K.DELETE_ACLS, "none")(filters=[of_user | {"operation": 4}])
    entity = [{"entity_type": "user", "entity_name": user}]
    m.ask(K.ALTER_CLIENT_QUOTAS, "validated")(
        entries=[{"entity": entity, "ops": [{"key": "producer_byte_rate", "value": 1024.0}]}], validate_only=True
    )
    m.ask(K.DESCRIBE_CLIENT_QUOTAS, "of a user")(components=[{"entity_type": "user", "match_type": 0, "match": user}])
    m.ask(K.DESCRIBE_USER_SCRAM_CREDENTIALS, "one")(users=[{"name": user}])
    m.ask(K.ALTER_USER_SCRAM_CREDENTIALS, "remove a missing one")(deletions=[{"name": user, "mechanism": 1}])
    m.ask(K.CREATE_DELEGATION_TOKEN, "of oneself")(renewers=[], owner_principal_type=None, owner_principal_name=None)
    m.ask(K.CREATE_DELEGATION_TOKEN, "of another")(owner_principal_type="User", owner_principal_name=user)
    m.ask(K.RENEW_DELEGATION_TOKEN, "an unknown one")(hmac=b"0123", renew_period_ms=-1)
    m.ask(K.EXPIRE_DELEGATION_TOKEN, "an unknown one")(hmac=b"0123", expiry_time_period_ms=-1)
    m.ask(K.DESCRIBE_DELEGATION_TOKEN, "all")(owners=None)


def anyone(s: Stage) -> None:
    """What needs no permission."""
    m = Matrix(s, "anyone")
    m.ask(K.API_VERSIONS, "versions", keep=error_only)(client_software_name="c", client_software_version="1")
    m.ask(K.SASL_HANDSHAKE, "a second one")(mechanism="PLAIN")
    m.ask(K.SASL_AUTHENTICATE, "a stray one")(auth_bytes=b"")


def without_brokers(answer: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in answer.items() if name not in ("brokers", "controller_id")}


def topics_counted(answer: dict[str, Any]) -> dict[str, Any]:
    results = [
        {"topics": len(each.get("topics", [])), "error": each["error_code"]} for each in answer.get("results", [])
    ]
    return {"error_code": answer["error_code"], "results": results}


def error_only(answer: dict[str, Any]) -> dict[str, Any]:
    return {"error_code": answer["error_code"]}
