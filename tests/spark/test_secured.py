"""A query against a broker with TLS and a login: source and sink work on the workers, and Spark shows no secret."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from ottla.broker.config.unserved import AUTHORIZERS
from ottla.client import Client
from ottla.client.sasl import Login
from ottla.metadata.store import Put
from ottla.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.server.standalone_metadata import open_own
from ottla.spark.platform.client_properties import client_properties
from ottla.testing import Acl, EmbeddedBroker
from tests.differential.batches import batch
from tests.harness.tokens import AUDIENCE, ISSUER, SECRET, Issuer, serving
from tests.server.test_security import running

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ACLS = [
    Acl("ada", "read", topic="orders"),
    Acl("ada", "write", topic="copies"),
    Acl("ada", "describe", topic="copies"),
    Acl("ada", "write", transactional_id="*"),
    Acl("ada", "describe", transactional_id="*"),
    Acl("ada", "idempotent-write", cluster=True),
]


@pytest.mark.slow("tests/server/test_oauth.py::test_spark_takes_the_same_properties")
def test_a_query_logs_in_and_shows_no_secret(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with EmbeddedBroker(tls=True, sasl="scram-sha-256", users=["ada"], acls=ACLS) as broker:
        broker.create_topic("orders", partitions=2)
        broker.create_topic("copies")
        admin = {f"kafka.{name}": value for name, value in broker.java_properties().items()}
        login = {f"kafka.{name}": value for name, value in broker.java_properties("ada").items()}
        rows = spark.range(20).selectExpr("cast(id AS string) AS value")
        rows.write.format("ottla").options(**admin).option("topic", "orders").mode("append").save()

        source = spark.read.format("ottla").options(**login).option("subscribe", "orders").load()
        assert source.count() == 20
        plans = [source._jdf.queryExecution().toString()]

        stream = spark.readStream.format("ottla").options(**login).option("subscribe", "orders")
        stream = stream.option("startingOffsets", "earliest").load().select("value")
        query = (
            stream.writeStream.format("ottla")
            .options(**login)
            .option("topic", "copies")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
        assert query.exception() is None
        plans += [
            query._jsq.explainInternal(True),
            json.dumps([each.json for each in query.recentProgress]),
            *(path.read_text(errors="replace") for path in (tmp_path / "checkpoint").rglob("*") if path.is_file()),
        ]
        copied = spark.read.format("ottla").options(**admin).option("subscribe", "copies").load()
        assert copied.count() == 20

        wrong = login | {
            "kafka.sasl.jaas.config": login["kafka.sasl.jaas.config"].replace('password="', 'password="no')
        }
        failing = spark.read.format("ottla").options(**wrong).option("subscribe", "orders")
        try:
            failing.load().count()
        except Exception as error:
            plans.append(str(error))
        assert "credentials" in plans[-1]

        of_ui = spark.sparkContext._jsc.sc().getConf().toDebugString()
        secret = broker.client_properties("ada")["sasl.password"]
        shown = "\n".join([*plans, of_ui, *capfd.readouterr(), repr(client_properties(login))])
        assert "orders" in shown
        assert secret not in shown


@pytest.mark.slow("tests/server/test_oauth.py::test_spark_takes_the_same_properties")
def test_a_query_logs_in_with_tokens_from_a_file_and_from_an_issuer(spark: SparkSession, tmp_path: Path) -> None:
    issuer, data, keys = Issuer(), tmp_path / "data", tmp_path / "keys.json"
    keys.write_bytes(issuer.key_set)
    data.mkdir()
    store = open_own(str(data))
    store.commit([Put(rule.key, rule.encode()) for acl in ACLS for rule in acl.bindings()])
    store.close()
    settings = {
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": f"file://{keys}",
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "authorizer.class.name": AUTHORIZERS[0],
        "super.users": "User:admin",
    }
    token = tmp_path / "token"
    token.write_text(issuer.token(sub="ada"))
    with running(data, ["SASL_PLAINTEXT"], **settings) as addresses, serving(issuer) as endpoints:
        address = addresses["SASL_PLAINTEXT"]
        with Client(address, login=Login("OAUTHBEARER", tokens=lambda: issuer.token(sub="admin"))) as admin:
            admin.send(CreateTopicsRequest([CreatableTopic("orders", 2, 1), CreatableTopic("copies", 1, 1)]))
            admin.metadata(["orders", "copies"])
            for _ in range(20):
                admin.produce_raw("orders", 0, batch("v"))
        login = {"kafka.bootstrap.servers": address, "kafka.security.protocol": "SASL_PLAINTEXT"}
        login |= {"kafka.sasl.mechanism": "OAUTHBEARER"}
        endpoint = "kafka.sasl.oauthbearer.token.endpoint.url"
        credentials = "kafka.sasl.oauthbearer.client.credentials.client"
        of_file = {**login, endpoint: f"file://{token}"}
        of_issuer = {**login, endpoint: f"{endpoints.url}/token"}
        of_issuer |= {f"{credentials}.id": "billing", f"{credentials}.secret": SECRET}
        stream = spark.readStream.format("ottla").options(**of_file).option("subscribe", "orders")
        query = (
            stream.option("startingOffsets", "earliest")
            .load()
            .select("value")
            .writeStream.format("ottla")
            .options(**of_issuer)
            .option("topic", "copies")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(120)
        assert query.exception() is None
        assert "/token" in endpoints.asked
        with Client(address, login=Login("OAUTHBEARER", tokens=lambda: issuer.token(sub="admin"))) as admin:
            assert admin.list_offsets("copies", [0])[0] >= 20
        plan = query._jsq.explainInternal(True)
        for secret in (SECRET, token.read_text()):
            assert secret not in plan
        denied = spark.read.format("ottla").options(**of_file).option("subscribe", "copies").load()
        with pytest.raises(Exception, match="TOPIC_AUTHORIZATION_FAILED"):
            denied.count()
