"""A query against a broker with TLS and a login: source and sink work on the workers, and Spark shows no secret."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from ottla.spark.platform.client_properties import client_properties
from ottla.testing import Acl, EmbeddedBroker

if TYPE_CHECKING:
    import pytest
    from pyspark.sql import SparkSession

ACLS = [
    Acl("ada", "read", topic="orders"),
    Acl("ada", "write", topic="copies"),
    Acl("ada", "describe", topic="copies"),
    Acl("ada", "write", transactional_id="*"),
    Acl("ada", "describe", transactional_id="*"),
    Acl("ada", "idempotent-write", cluster=True),
]


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
