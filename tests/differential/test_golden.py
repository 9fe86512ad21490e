"""Ottla answers as Kafka answered: every scenario against a node, held against Kafka's golden transcript.

The transcripts are harvested with `make diff-peer ARGS=--update` from a Kafka peer; this test needs none. A difference
is repaired, or it stands in known_differences.toml with its reason; an entry there that explains nothing any more
fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from ottla.broker.served import ADVERTISED, PRIVATE
from ottla.client import Client
from ottla.protocol.apis import APIS
from ottla.protocol.messages.init_producer_id import InitProducerIdRequest
from ottla.testing import EmbeddedBroker, EmbeddedCluster

from . import transcript
from .node import CONFIG, OF_CLUSTERS, secured
from .principals import ASKED
from .stage import Doors, Hands
from .transcript import Difference

SCENARIOS = [(theme, name) for theme in transcript.themes() for name in transcript.scenarios_of(theme)]
OF_SECURED = [(theme, name) for theme, name in SCENARIOS if transcript.is_secured(theme)]
OF_ONE = [each for each in SCENARIOS if transcript.nodes_of(each[0]) == 1 and each not in OF_SECURED]
OF_THREE = [(theme, name) for theme, name in SCENARIOS if transcript.nodes_of(theme) == 3]
KNOWN = transcript.known_differences()


@pytest.fixture(scope="module")
def address() -> Iterator[tuple[str, int]]:
    """Its first producer id is taken: 0 is the default of several fields, and transcripts leave defaults out."""
    with EmbeddedBroker(settings=CONFIG) as broker:
        host, _, port = broker.bootstrap_servers.rpartition(":")
        with Client(broker.bootstrap_servers) as client:
            client.send(InitProducerIdRequest(None, 60_000))
        yield host, int(port)


@pytest.fixture(scope="module")
def three() -> Iterator[Callable[[str], EmbeddedCluster]]:
    """The cluster of a theme: each has one of its own, as Kafka's transcripts begin with fresh nodes too."""
    running: dict[str, EmbeddedCluster] = {}

    def of(theme: str) -> EmbeddedCluster:
        if theme not in running:
            stop_all()
            running[theme] = EmbeddedCluster(settings=CONFIG | OF_CLUSTERS)
            running[theme].start()
        return running[theme]

    def stop_all() -> None:
        while running:
            running.popitem()[1].stop()

    yield of
    stop_all()


@pytest.fixture(scope="module")
def guarded() -> Iterator[tuple[tuple[str, int], Doors]]:
    with secured() as found:
        yield found


@pytest.mark.parametrize(("theme", "name"), OF_ONE, ids=[f"{theme}-{name}" for theme, name in OF_ONE])
def test_as_kafka_answers(address: tuple[str, int], theme: str, name: str) -> None:
    hold(address, theme, name)


@pytest.mark.slow("tests/differential/test_golden.py::test_as_kafka_answers")
@pytest.mark.parametrize(("theme", "name"), OF_THREE, ids=[f"{theme}-{name}" for theme, name in OF_THREE])
def test_three_nodes_as_three_of_kafka_answer(three: Callable[[str], EmbeddedCluster], theme: str, name: str) -> None:
    cluster = three(theme)
    host, _, port = cluster.address_of(1).rpartition(":")
    hold((host, int(port)), theme, name, cluster)


@pytest.mark.parametrize(("theme", "name"), OF_SECURED, ids=[f"{theme}-{name}" for theme, name in OF_SECURED])
def test_what_each_principal_may_do_as_in_kafka(
    guarded: tuple[tuple[str, int], Doors], theme: str, name: str, update: bool
) -> None:
    where, doors = guarded
    if update and transcript.is_own(theme):
        played = transcript.play(transcript.scenarios_of(theme)[name], *where, theme, doors=doors)
        transcript.save(theme, transcript.load(theme) | {name: played})
    hold(where, theme, name, doors=doors)


def test_every_api_that_clients_may_use_is_asked_as_every_principal() -> None:
    """Ottla's own requests too, which ApiVersions does not list."""
    asked = {name for names in ASKED.values() for name in names.split()}
    clients = {APIS[key].name for key in (*ADVERTISED, *PRIVATE)}
    assert clients <= asked
    played = {entry["api"] for theme, name in OF_SECURED for entry in transcript.load(theme)[name]}
    assert played == asked


def hold(
    address: tuple[str, int], theme: str, name: str, hands: Hands | None = None, doors: Doors | None = None
) -> None:
    """Play a scenario, and hold it against Kafka's answers."""
    golden = transcript.load(theme).get(name)
    if not transcript.playable(theme, *address):
        pytest.skip("not served yet")
    assert golden is not None, f"{theme}/{name} has no golden transcript: make diff-peer ARGS=--update"
    played = transcript.play(transcript.scenarios_of(theme)[name], *address, theme, hands=hands, doors=doors)
    found = list(transcript.differences(theme, name, golden, played))
    known = [entry for entry in KNOWN if entry.scenario == f"{theme}/{name}"]
    new = [difference for difference in found if not any(entry.covers(difference) for entry in known)]
    stale = [entry for entry in known if not any(entry.covers(difference) for difference in found)]
    assert not new, "\n".join([f"{len(new)} differences", *map(str, new)])
    assert not stale, f"no longer differs: {stale}"


def test_every_golden_transcript_and_known_difference_has_its_scenario() -> None:
    for theme in transcript.themes():
        assert set(transcript.load(theme)) <= set(transcript.scenarios_of(theme)), theme
    assert {entry.scenario for entry in KNOWN} <= {f"{theme}/{name}" for theme, name in SCENARIOS}


def test_every_api_and_version_served_is_asked() -> None:
    asked: dict[str, set[int]] = {}
    for theme in transcript.themes():
        for played in transcript.load(theme).values():
            for entry in played:
                asked.setdefault(entry["api"], set()).update(transcript.versions_of(entry))
    for key, (lowest, highest) in ((key, spec.versions) for key, spec in (ADVERTISED | PRIVATE).items()):
        served = set(range(max(lowest, APIS[key].min_version), highest + 1))
        assert served <= asked.get(APIS[key].name, set()), APIS[key].name


def test_a_difference_is_seen() -> None:
    """The comparison itself: another value, a lost field, another grouping of versions, a lost step."""
    golden = [{"step": "a", "api": "X", "versions": "0-2", "answer": {"code": "NONE", "text": "~one", "rows": [1, 2]}}]

    def fields(played: transcript.Transcript) -> list[str]:
        return [d.field for d in transcript.differences("t", "s", golden, played)]

    def but(**changed: object) -> transcript.Transcript:
        return [golden[0] | {"answer": golden[0]["answer"] | changed}]

    assert fields(golden) == []
    assert fields(but(text="~two")) == []
    assert fields(but(code="BAD")) == ["code"]
    assert fields(but(rows=[1])) == ["rows"]
    assert fields([golden[0] | {"versions": "0-1"}]) == ["answer"]
    assert fields([]) == ["answer"]
    assert [d.golden for d in transcript.differences("t", "s", [], golden)] == [transcript.MISSING]


def test_known_differences_cover_what_they_name() -> None:
    difference = Difference("t", "s", "step v3", "topics[0].name", "a", "b")
    assert transcript.Known("t/s", "step v3", "topics[0].name", "r").covers(difference)
    assert transcript.Known("t/s", "step*", "topics*", "r").covers(difference)
    assert not transcript.Known("t/s", "step v4", "*", "r").covers(difference)
    assert not transcript.Known("t/other", "*", "*", "r").covers(difference)
