"""Rebalancing and draining in the console: plans, what cannot move, and both on three nodes, with one killed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

import pytest

from ottla.client import Client
from ottla.client.placement.balance import Move, Replicas
from ottla.client.placement.moving import Layout
from ottla.client.placement.plan import crowded, shares_of
from ottla.console import planning
from ottla.console.pages.drain import cannot_leave
from ottla.protocol.messages.create_topics import CreatableReplicaAssignment, CreatableTopic, CreateTopicsRequest
from ottla.protocol.records import Record, build_batch
from ottla.testing import EmbeddedCluster
from ottla.testing.security import Acl
from tests.harness.console.over_http import User, anonymous, hidden_in, settings
from tests.harness.waiting import soon

RACKS: dict[int, str | None] = {1: "a", 2: "b", 3: None}
PLACES = [Replicas(("t", 0), (1, 2), 10), Replicas(("t", 1), (2, 1), 30), Replicas(("u", 0), (2,), 5)]
MOVES = [Move(("t", 0), (1, 2), (3, 2), 10), Move(("t", 1), (2, 1), (1, 2), 30)]


# ---- plans ---------------------------------------------------------------------------------------------------------


def test_the_leader_sends_and_new_replicas_receive() -> None:
    one, two, three = shares_of(RACKS, PLACES, MOVES, {("t", 0): 2, ("t", 1): 2})
    assert (one.replicas, one.bytes, one.leaders, one.sends, one.receives) == ((2, 1), (40, 30), (1, 1), 0, 0)
    assert (two.rack, two.leaders, two.sends) == ("b", (2, 1), 10)
    assert (three.replicas, three.bytes, three.receives) == ((0, 1), (0, 10), 10)


def test_replicas_in_one_rack_count_if_another_rack_has_none() -> None:
    racks: dict[int, str | None] = {1: "a", 2: "a", 3: "b"}
    rows = [
        Replicas(("t", 0), (1, 2)),
        Replicas(("t", 1), (1, 3)),
        Replicas(("t", 2), (1,)),
        Replicas(("t", 3), (1, 9)),
    ]
    assert crowded(racks, rows) == 2
    assert crowded({1: "a", 2: "a"}, rows[:1]) == 0


def layout(places: list[Replicas], in_sync: dict[tuple[str, int], tuple[int, ...]] | None = None) -> Layout:
    leaders = {each.place: each.nodes[0] for each in places}
    return Layout(dict(RACKS), places, {}, leaders, in_sync or {each.place: each.nodes for each in places})


def test_what_cannot_leave_a_node() -> None:
    of_two = [
        Replicas(("t", 0), (2, 1)),
        Replicas(("u", 0), (2,)),
        Replicas(("t", 1), (1, 2)),
        Replicas(("w", 0), (2, 3)),
    ]
    found = cannot_leave(layout(of_two, {("t", 0): (2, 1), ("u", 0): (2,), ("w", 0): (2,)}), 2, replicas=False)
    assert found == {("u", 0): "has no other replica", ("w", 0): "no other replica is in sync"}
    of_three = [Replicas(("t", 0), (1, 2, 3)), Replicas(("u", 0), (2,))]
    assert cannot_leave(layout(of_three), 2, replicas=True) == {("t", 0): "has 3 replicas, and 2 nodes would be left"}


def test_the_plan_that_was_shown_is_carried_out_while_it_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes grow all the time: another plan would be better with each second."""
    now = layout(PLACES)
    monkeypatch.setattr(planning, "layout_of", lambda _: now)
    context: Any = SimpleNamespace(client=None, session=SimpleNamespace(memory={}))
    made: list[list[Move]] = []

    def make(_: Layout) -> list[Move]:
        made.append(MOVES[: 1 + len(made) % 2])
        return made[-1]

    seen = planning.planned(context, "a", make).facts
    now = layout([each._replace(bytes=each.bytes + 1) for each in PLACES])
    assert planning.planned(context, "a", make).facts == seen
    assert planning.planned(context, "b", make).facts != seen
    seen = planning.planned(context, "a", make, is_new=True).facts
    now = layout([PLACES[0]._replace(nodes=(1, 3)), *PLACES[1:]])
    assert planning.planned(context, "a", make).facts != seen
    assert len(made) == 4
    assert planning.planned(context, "a", lambda _: [], is_new=True).facts == []
    assert planning.planned(context, "a", make).facts != [], "a plan without moves was kept"


# ---- one node ------------------------------------------------------------------------------------------------------


def test_one_node_has_nowhere_to_move_anything(visitor: User) -> None:
    view = visitor.json("/rebalance")
    assert (view["moves"], view["bytes"], len(view["nodes"])) == ([], 0, 1)
    assert "are balanced already" in visitor.post("/rebalance/start", {"step": "preview"}).text
    view = visitor.json("/drain", node=1)
    assert {each["why"] for each in view["cannot"]} == {"has no other replica"}
    assert "Nothing on node 1 has to be moved." in visitor.get("/drain/start", 400, node=1)
    assert {each["why"] for each in visitor.json("/drain", node=1, replicas="yes")["cannot"]} == {
        "has 1 replica, and 0 nodes would be left"
    }
    assert "cannot be emptied" in visitor.post("/drain/start", {"step": "preview"}, {"node": 1, "replicas": "yes"}).text
    assert "Node 1 is up: stop it" in visitor.get("/drain/remove", 400, node=1)
    assert "The cluster has no node 7: it has 1." in visitor.get("/drain", 404, node=7)
    assert "must be a number" in visitor.get("/drain", 400, node="one")
    assert visitor.json("/cluster/part/throttle")["nodes"] == []
    assert "No throttle of moves is left." in visitor.get("/cluster/finish-moves", 400)
    assert "No partition is being moved." in visitor.get("/cluster/cancel-moves", 400)


@pytest.mark.parametrize("throttle", ["0", "-1", "fast", "9" * 19, "1e3"])
def test_a_throttle_is_a_number_of_bytes(visitor: User, throttle: str) -> None:
    answer = visitor.post("/rebalance/start", {"step": "preview", "throttle": throttle})
    assert (answer.status_code, "Give a number of bytes" in answer.text) == (400, True)


# ---- three nodes ---------------------------------------------------------------------------------------------------

LOOKER = "looker"
REPLICAS = {("t", index): [1, 2] for index in range(4)} | {("single", 0): [1]}


@pytest.fixture(scope="module")
def three() -> Iterator[EmbeddedCluster]:
    """Three nodes in three racks, the third one empty. `looker` may describe everything, and change nothing."""
    acls = [Acl(LOOKER, "describe", cluster=True), Acl(LOOKER, "describe", topic="*")]
    with EmbeddedCluster(
        sasl="SCRAM-SHA-256",
        users={LOOKER: "secret-looker"},
        acls=acls,
        racks={1: "a", 2: "b", 3: "c"},
        settings={"replica.fetch.max.bytes": 20_000},
    ) as cluster:
        with Client(cluster.bootstrap_servers, login=cluster._client(None).login) as client:
            topics: dict[str, list[CreatableReplicaAssignment]] = {}
            for (name, index), nodes in REPLICAS.items():
                topics.setdefault(name, []).append(CreatableReplicaAssignment(index, nodes))
            rows = [CreatableTopic(name, -1, -1, assignments=placed) for name, placed in topics.items()]
            for answer in client.send(CreateTopicsRequest(topics=rows, timeout_ms=30_000)).topics:
                assert not answer.error_code, answer.error_message
            batch = bytes(build_batch([Record(0, 1_700_000_000_000, None, bytes(9_000))]))
            for name, index in REPLICAS:
                for _ in range(10):
                    client.produce_raw(name, index, batch)
        cluster.wait_in_sync()
        yield cluster


@pytest.fixture(scope="module")
def users(three: EmbeddedCluster) -> Iterator[dict[str, User]]:
    """The admin and the looker, each logged in to a console."""
    login = three._client(None).login
    assert login is not None
    with ExitStack() as stack:
        found: dict[str, User] = {}
        for name, password in ((LOOKER, "secret-looker"), (login.user, login.password)):
            used = settings(three.bootstrap_servers, mechanism="SCRAM-SHA-256", deadline_s=30.0)
            found[name] = User(stack.enter_context(anonymous(used)), (name, password))
        yield {LOOKER: found.pop(LOOKER), "admin": found.popitem()[1]}


def counts(user: User) -> tuple[list[int], list[int]]:
    """How many partitions each node leads, and how many it hosts."""
    nodes = user.json("/cluster")["nodes"]
    return [each["leads"] for each in nodes], [each["hosts"] for each in nodes]


def moved(user: User) -> list[Any]:
    found: list[Any] = user.json("/cluster/part/moves")["moves"]
    return found


def preferred_lead(user: User) -> bool:
    """Make preferred replicas lead, if they do not; returns whether they did."""
    elsewhere = user.json("/cluster")["elsewhere"]
    if elsewhere:
        shown = user.post("/cluster/elect", {"step": "preview"})
        user.post("/cluster/elect", {"step": "apply", **hidden_in(shown.text)})
    return not elsewhere


def settled(user: User, hosts: list[int]) -> None:
    """Wait until moves have ended, and nodes host so many partitions."""
    soon(lambda: not moved(user), lambda: moved(user))
    soon(lambda: counts(user)[1] == hosts, lambda: counts(user))


def test_a_proposal_without_permission_moves_nothing(users: dict[str, User]) -> None:
    looker = users[LOOKER]
    proposal = looker.json("/rebalance")
    assert [each["rack"] for each in proposal["nodes"]] == ["a", "b", "c"]
    assert [each["replicas"] for each in proposal["nodes"]] == [[5, 3], [4, 3], [0, 3]]
    received = [each["receives"] for each in proposal["nodes"]]
    assert received[:2] == [0, 0]
    assert received[2] == proposal["bytes"] == sum(each["sends"] for each in proposal["nodes"]) > 0
    refused = looker.change("/rebalance/start")
    assert (refused.status_code, "Cluster authorization failed" in refused.text) == (403, True), refused.text
    assert looker.change("/drain/start", node=1).status_code == 403
    assert moved(users["admin"]) == []
    assert counts(users["admin"]) == ([5, 0, 0], [5, 4, 0])


@pytest.mark.slow("tests/console/test_plan_pages.py::test_a_rebalance_and_drains_are_done")
def test_a_node_is_killed_while_it_gets_replicas(users: dict[str, User], three: EmbeddedCluster) -> None:
    """The page says for which node the moves wait; cancelled moves leave everything as it was, without a throttle."""
    admin = users["admin"]
    started = admin.change("/rebalance/start", form={"throttle": "1"})
    assert (started.status_code, started.headers["location"]) == (303, "/cluster")
    assert "finish them here" in admin.get("/cluster")
    assert {each["rate"] for each in admin.json("/cluster/part/throttle")["nodes"]} == {1}
    assert {tuple(each["adding"]) for each in moved(admin)} == {(3,)}
    assert "have not ended: wait" in admin.post("/rebalance/start", {"step": "preview"}).text
    assert "have not ended: wait" in admin.get("/cluster/finish-moves", 400)
    view = admin.json("/drain", node=1, replicas="yes")
    assert (view["leaving"], view["hosts"], view["under_way"]) == (2, 3, 3)
    three.kill(3)
    soon(lambda: any(each["down"] == [3] for each in moved(admin)))
    assert "waits for node 3, which is down" in admin.get("/cluster/part/moves")
    three.start_node(3)
    soon(lambda: all(each["down"] == [] for each in moved(admin)))
    assert admin.change("/cluster/cancel-moves", "cluster").status_code == 303
    settled(admin, [5, 4, 0])
    assert admin.json("/cluster/part/throttle")["nodes"] == []


def test_a_rebalance_and_drains_are_done(users: dict[str, User], three: EmbeddedCluster) -> None:
    admin = users["admin"]
    assert admin.change("/rebalance/start", form={"throttle": "1000000000"}).status_code == 303
    settled(admin, [3, 3, 3])
    three.wait_in_sync()
    assert admin.change("/cluster/finish-moves").status_code == 303
    assert admin.json("/cluster/part/throttle")["nodes"] == []
    soon(lambda: preferred_lead(admin))
    assert sorted(counts(admin)[0]) == [1, 2, 2]
    assert admin.json("/rebalance")["moves"] == []
    ((single,),) = [each["replicas"] for each in admin.json("/topic", name="single")["partitions"]]
    node = next(each for each in (1, 2, 3) if each != single and counts(admin)[0][each - 1])
    done = admin.change("/drain/start", node=node)
    assert done.status_code == 303, done.text
    assert f"Node {node} leads nothing any more." in admin.get("/cluster")
    soon(lambda: counts(admin)[0][node - 1] == 0)
    assert admin.json("/rebalance")["reorders"] > 0, "a rebalance gives the node its leaders back"
    assert admin.change("/drain/start", node=node, replicas="yes").status_code == 303
    soon(lambda: not moved(admin))
    soon(lambda: counts(admin)[1][node - 1] == 0)
    three.stop_node(node)
    soon(lambda: admin.json("/drain", node=node)["is_down"])
    wrong = admin.change("/drain/remove", str(node), node=node)
    assert (wrong.status_code, f"Type the name to confirm: node {node}" in wrong.text) == (400, True)
    assert admin.change("/drain/remove", f"node {node}", node=node).status_code == 303
    others = [each for each in (1, 2, 3) if each != node]
    soon(lambda: [each["id"] for each in admin.json("/cluster")["nodes"]] == others)
    view = admin.json("/drain", node=others[0], replicas="yes")
    assert (view["cannot_in_all"], view["cannot"][0]["why"]) == (4, "has 2 replicas, and 1 node would be left")
