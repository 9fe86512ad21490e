"""Each alert rule fires in a state that it is for, and none in a healthy one; the dashboard reads what exists."""

import json
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from prometheus_client.parser import text_string_to_metric_families

from ottla.broker.requests import Listening
from ottla.cli.main import main
from tests.harness.cli.promql import History, Query, Samples, seconds
from tests.harness.node_pair import NodePair
from tests.harness.share.share_stage import ACCEPT, REJECT, ShareStage
from tests.server.test_metrics_documented import FIRST, SECOND, commit, kill, place, text_of

TIMES = (0.0, 450.0, 900.0, 1350.0, 1800.0)
OF_GROUPS = ("kafka_consumergroup", "kafka_sharegroup", "kafka_server_share", "kafka_server_group", "ottla_share")
CERTIFICATE = "ottla_certificate_left_seconds"
NOT_OURS = {"up"}
"""What Prometheus makes by itself."""


class Rule(NamedTuple):
    """An alert rule: its expression, and for how long it must hold."""

    expression: str
    holds_s: float

    def fires(self, history: History) -> bool:
        last = history[-1][0]
        asked = [time for time, _ in history if time >= last - self.holds_s]
        query = Query(self.expression)
        found = [set(query.at(history, time)) for time in asked]
        return bool(set.intersection(*found))


def rules(text: str) -> dict[str, Rule]:
    """The rules of the file, by name. Each key stands on a line of its own."""
    found: dict[str, Rule] = {}
    for block in text.split("- alert: ")[1:]:
        name, *lines = block.splitlines()
        fields = dict(line.strip().split(": ", 1) for line in lines if ": " in line)
        assert {"expr", "labels", "annotations"} <= fields.keys() <= {"expr", "for", "labels", "annotations"}, name
        assert re.fullmatch(r"\{severity: (critical|warning|info)\}", fields["labels"]), name
        assert re.fullmatch(r'\{summary: "[^"]+"\}', fields["annotations"]), name
        found[name] = Rule(fields["expr"], seconds(fields.get("for", "0s")))
    return found


def samples(text: str) -> dict[Any, float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


class States(NamedTuple):
    """What was scraped of each instance: of two nodes and of one with groups, while all is well, and once the first
    node was killed."""

    healthy: dict[str, Samples]
    killed: dict[str, Samples]


def up(instances: dict[str, Samples], *down: str) -> dict[str, Samples]:
    """As Prometheus has it: with a metric that says who answered."""
    of_job = frozenset({("job", "ottla")})
    answering = {name: {**each, ("up", of_job): 1.0} for name, each in instances.items()}
    return {**answering, **{name: {("up", of_job): 0.0} for name in down}}


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> States:
    pair = NodePair(tmp_path_factory.mktemp("pair"))
    place(pair, "both", FIRST, SECOND, min_insync_replicas="2")
    place(pair, "alone", FIRST)
    pair.run(1_000)
    first = pair.stages[FIRST]
    first.node.listening = (Listening("SSL", "h", 9092, None, first.node.wall.at(first.now) + 365 * 86_400_000),)
    nodes: dict[str, Samples] = {str(node): samples(text_of(stage)) for node, stage in pair.stages.items()}
    busy = ShareStage(tmp_path_factory.mktemp("busy"))
    topic = busy.topic()
    busy.topic("dlq.jobs", errors_deadletterqueue_group_enable="true")
    busy.configure("g", share_auto_offset_reset="earliest", errors_deadletterqueue_topic_name="dlq.jobs")
    busy.produce(2_000)
    commit(busy, "readers", "jobs", 500)
    member = busy.member(topic)
    member.fetch()
    assert member.said((0, 3, [ACCEPT]), (4, 5, [REJECT])) == 0
    busy.run()
    of_groups = {key: value for key, value in samples(text_of(busy)).items() if key[0].startswith(OF_GROUPS)}
    kill(pair, FIRST)
    survivor = samples(text_of(pair.stages[SECOND]))
    return States(up({**nodes, "groups": of_groups}), up({str(SECOND): survivor, "groups": of_groups}, str(FIRST)))


@pytest.fixture
def alerts(capsys: pytest.CaptureFixture[str]) -> dict[str, Rule]:
    assert main(["metrics", "alerts"]) == 0
    return rules(capsys.readouterr().out)


def staying(instances: dict[str, Samples]) -> History:
    return [(time, instances) for time in TIMES]


def changing(name: str, *values: float, **labels: str) -> Callable[[States], History]:
    """All is well but for this metric, which has these values one after the other. It has to be there."""

    def history(states: States) -> History:
        found: list[tuple[float, dict[str, Samples]]] = []
        for time, value in zip(TIMES, values, strict=True):
            instances = {
                instance: {
                    key: value if key[0] == name and key[1] >= labels.items() else known for key, known in each.items()
                }
                for instance, each in states.healthy.items()
            }
            found.append((time, instances))
        assert any(key[0] == name for each in states.healthy.values() for key in each), f"there is no {name}"
        return found

    return history


def killed(states: States) -> History:
    return staying(states.killed)


def without_controller(states: States) -> History:
    """The controller is dead, and the other node has yet to notice."""
    return staying(up({str(SECOND): states.healthy[str(SECOND)]}, str(FIRST)))


FIRES: dict[str, Callable[[States], History]] = {
    "OttlaNodeDown": killed,
    "OttlaPartitionsOffline": killed,
    "OttlaUnderMinInSyncReplicas": killed,
    "OttlaUnderReplicated": killed,
    "OttlaNoSingleController": without_controller,
    "OttlaReplicasOffline": changing("kafka_server_replicamanager_offlinereplicacount", 0, 0, 1, 1, 1),
    "OttlaLagGrows": changing("kafka_consumergroup_lag", 1500, 1600, 1700, 1800, 1900),
    "OttlaTransactionHangs": changing("kafka_server_replicamanager_partitionswithlatetransactionscount", 0, 0, 1, 1, 1),
    "OttlaTransactionOpenForLong": changing("ottla_oldest_open_transaction_seconds", 0, 0, 400, 850, 1300),
    "OttlaDeadLettersCannotBeWritten": changing("ottla_share_group_archiving", 0, 0, 2, 2, 2),
    "OttlaDeadLetters": changing("kafka_server_sharegroupmetrics_deadletterqueuerecordcount_total", 2, 2, 2, 2, 3),
    "OttlaConnectionsRefused": changing("kafka_server_socket_server_metrics_connection_refused_total", 0, 0, 0, 1, 9),
    "OttlaProduceFails": changing("kafka_server_brokertopicmetrics_failedproducerequests_total", 0, 5, 9, 12, 20),
    "OttlaFewDescriptorsLeft": changing("process_max_fds", 1, 1, 1, 1, 1),
    "OttlaCertificateExpiresSoon": changing(CERTIFICATE, 3e6, 2.7e6, 2.5e6, 2.4e6, 2.3e6),
    "OttlaCertificateExpires": changing(CERTIFICATE, 3e6, 1e6, 7e5, 5e5, -1),
}
NEARLY: dict[str, Callable[[States], History]] = {
    "OttlaUnderReplicated": lambda states: [(0.0, states.healthy), (1700.0, states.killed), (1800.0, states.healthy)],
    "OttlaLagGrows": changing("kafka_consumergroup_lag", 1500, 9000, 7000, 4000, 1200),
    "OttlaProduceFails": changing("kafka_server_brokertopicmetrics_failedproducerequests_total", 0, 9, 9, 9, 9),
    "OttlaDeadLetters": changing("kafka_server_sharegroupmetrics_deadletterqueuerecordcount_total", 0, 9, 9, 9, 9),
    "OttlaConnectionsRefused": changing("kafka_server_socket_server_metrics_connection_refused_total", 0, 9, 9, 9, 9),
    "OttlaTransactionOpenForLong": changing("ottla_oldest_open_transaction_seconds", 0, 0, 450, 899, 0),
    "OttlaCertificateExpires": changing(CERTIFICATE, 9e5, 8e5, 7e5, 6e5, 3e7),
}
"""States in which something was wrong and is over, or is not enough."""


def test_every_rule_has_a_state_that_fires_it(alerts: dict[str, Rule], states: States) -> None:
    assert FIRES.keys() == alerts.keys() >= NEARLY.keys()
    assert [name for name, rule in alerts.items() if not rule.fires(FIRES[name](states))] == []


def test_no_rule_fires_while_all_is_well_or_well_again(alerts: dict[str, Rule], states: States) -> None:
    assert [name for name, rule in alerts.items() if rule.fires(staying(states.healthy))] == []
    assert [name for name, history in NEARLY.items() if alerts[name].fires(history(states))] == []


def test_the_dashboard_and_the_rules_read_what_exists(
    alerts: dict[str, Rule], states: States, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["metrics", "dashboard"]) == 0
    panels = json.loads(capsys.readouterr().out)["panels"]
    expressions = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    queries = [Query(each.replace("$__rate_interval", "15m")) for each in expressions]
    of_rules = [Query(rule.expression) for rule in alerts.values()]
    exist = {key[0] for instances in states for each in instances.values() for key in each} - NOT_OURS
    exist |= {"kafka_network_requestmetrics_requests_total", "kafka_network_requestmetrics_totaltimems"}  # the server's
    exist |= {"ottla_transactions"}  # no id is there at rest
    read = {name for query in (*queries, *of_rules) for name in query.names}
    assert read - NOT_OURS <= exist
    places = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels]
    assert len(set(places)) == len(places) == len({panel["id"] for panel in panels})


def test_the_rules_name_commands_that_exist(alerts: dict[str, Rule], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["metrics", "alerts"]) == 0
    named = re.findall(r"See ottla ([a-z -]+)\.", capsys.readouterr().out)
    assert named
    for command in named:
        assert main([*command.split(), "--help"]) == 0, command
