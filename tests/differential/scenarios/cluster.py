"""DescribeCluster, DescribeLogDirs, FindCoordinator."""

from __future__ import annotations

from typing import Any

from ..batches import batch
from ..stage import Stage


def describe_cluster(s: Stage) -> None:
    s.ask("plain", "DescribeCluster", "all")
    s.ask("authorized operations", "DescribeCluster", "all", include_cluster_authorized_operations=True)
    s.ask("fenced brokers too", "DescribeCluster", 2, include_fenced_brokers=True)
    s.ask("controllers, asked of a broker", "DescribeCluster", "1-", endpoint_type=2)
    s.ask("unknown endpoint type", "DescribeCluster", "1-", endpoint_type=7)


def log_dirs(s: Stage) -> None:
    api = "DescribeLogDirs"

    def brief(answer: dict[str, Any]) -> dict[str, Any]:
        for result in answer["results"]:
            for volatile in ("total_bytes", "usable_bytes"):
                if volatile in result:
                    result[volatile] = "above 0" if result[volatile] > 0 else result[volatile]
        return answer

    name = s.create("t", 2)
    s.append(name, batch("x"), batch("y"))
    s.ask("everything", api, "all", topics=None, ours=True, keep=brief)
    s.ask("one partition", api, "all", topics=[{"topic": name, "partitions": [0]}], keep=brief)
    s.ask("one unknown partition", api, "all", topics=[{"topic": name, "partitions": [0, 9]}], keep=brief)
    s.ask("unknown topic", api, "all", topics=[{"topic": s.name("nope"), "partitions": [0]}], keep=brief)
    s.ask("no partitions", api, "all", topics=[{"topic": name, "partitions": []}], keep=brief)
    s.ask("no topics", api, "all", topics=[], keep=brief)
    s.ask("partition twice", api, "all", topics=[{"topic": name, "partitions": [0, 0]}], keep=brief)


def find_coordinator(s: Stage) -> None:
    api = "FindCoordinator"
    group, other = s.group("g"), s.group("h")
    s.ask("a group", api, "0-3", key=group)
    s.ask("a group", api, "4-", coordinator_keys=[group])
    s.ask("two groups", api, "4-", coordinator_keys=[group, other])
    s.ask("group twice", api, "4-", coordinator_keys=[group, group])
    s.ask("nothing", api, "4-", coordinator_keys=[])
    s.ask("empty group", api, "0-3", key="")
    s.ask("empty group", api, "4-", coordinator_keys=[""])
    s.ask("unknown key type", api, "1-3", key=group, key_type=7)
    s.ask("unknown key type", api, "4-", coordinator_keys=[group], key_type=7)
    s.ask("negative key type", api, "1-3", key=group, key_type=-1)
    s.ask(
        "a share group's key, too old a version",
        api,
        "4-5",
        coordinator_keys=["g:AAAAAAAAAAAAAAAAAAAAAA:0"],
        key_type=2,
    )
    s.ask("a share group's key without its form", api, 6, coordinator_keys=[group], key_type=2)
