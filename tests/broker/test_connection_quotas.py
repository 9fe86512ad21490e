"""How many connections a node takes and how fast: which are served, when, and which are closed."""

import random
from typing import Any

import pytest

from ottla.broker import connection_quotas
from ottla.broker.config.values import BrokerSettings, ConfigRefusedError
from ottla.broker.connection_quotas import DELAY_MS_MAX, TOO_OFTEN, Admission, ConnectionQuotas
from ottla.metadata.quotas import CONNECTION_CREATION_RATE, PREFIX, key_of

SAMPLES, WINDOW_MS = 11, 1000
HERE, THERE = "127.0.0.1", "127.0.0.2"
SERVED = Admission()


def quotas(limits: dict[str | None, float] | None = None, **settings: Any) -> ConnectionQuotas:
    """`limits`: connections a second by address, None for all others."""
    made = ConnectionQuotas(BrokerSettings.load({name.replace("_", "."): str(v) for name, v in settings.items()}, {}))
    made.keep_to(
        {
            key_of({"ip": address}).removeprefix(PREFIX): {CONNECTION_CREATION_RATE: str(limit)}
            for address, limit in (limits or {}).items()
        }
    )
    return made


def refused(admission: Admission) -> bool:
    return admission.refused is not None and not admission.wait_ms


# ---- how many ------------------------------------------------------------------------------------------------------


def test_the_limit_of_an_address_comes_before_that_of_all() -> None:
    limited = quotas(max_connections_per_ip=1, max_connections_per_ip_overrides=f"{THERE}:3, ::1:0")
    assert [refused(limited.admit(0, host)) for host in (HERE, HERE, "::1")] == [False, True, True]
    assert [refused(limited.admit(0, THERE)) for _ in range(4)] == [False, False, False, True]
    limited.ended(THERE)
    limited.ended(HERE)
    assert [refused(limited.admit(0, host)) for host in (HERE, THERE, HERE, THERE)] == [False, False, True, True]


def test_an_address_is_the_same_by_either_protocol() -> None:
    limited = quotas(max_connections_per_ip_overrides=f"{HERE}:1")
    assert not refused(limited.admit(0, HERE))
    assert refused(limited.admit(0, "::ffff:127.0.0.1"))
    limited.ended("::ffff:127.0.0.1")
    assert not refused(limited.admit(0, HERE))


def test_a_process_that_can_open_no_more_says_so_whatever_is_set() -> None:
    limited = quotas(max_connections=3)
    limited.room = 2
    assert [refused(limited.admit(0, host)) for host in (HERE, THERE, HERE)] == [False, False, True]


@pytest.mark.parametrize("text", ["127.0.0.1", "127.0.0.1:x", "broker.example:3", "127.0.0.1:1;127.0.0.2:2"])
def test_limits_of_what_is_no_address_are_refused(text: str) -> None:
    with pytest.raises(ConfigRefusedError, match="is not an IP address and a number"):
        quotas(max_connections_per_ip_overrides=text)


def test_nobody_is_let_in_only_beside_somebody_who_is() -> None:
    with pytest.raises(ConfigRefusedError, match="can be set to zero only if"):
        quotas(max_connections_per_ip=0)
    assert refused(quotas(max_connections_per_ip=0, max_connections_per_ip_overrides="::1:1").admit(0, HERE))


# ---- how often from one address ------------------------------------------------------------------------------------


def test_who_connects_too_often_is_let_wait_and_closed_and_does_not_count() -> None:
    limited = quotas({HERE: 2.0})
    assert [limited.admit(0, HERE) for _ in range(20)] == [SERVED] * 20
    assert [limited.admit(0, HERE) for _ in range(5)] == [Admission(500, TOO_OFTEN)] * 5
    assert limited.admit(0, THERE) == SERVED
    for _ in range(5):
        limited.closed()
    assert limited.admit(SAMPLES * WINDOW_MS, HERE) == SERVED


def test_every_other_address_has_the_limit_by_default_for_itself() -> None:
    limited = quotas({None: 1.0, THERE: 100.0})
    for host, most in ((HERE, 10), ("::1", 10), (THERE, 1000)):
        assert [limited.admit(0, host).refused is None for _ in range(most + 1)] == [True] * most + [False]


def test_a_quota_that_is_gone_limits_nobody() -> None:
    limited = quotas({HERE: 1.0})
    assert [limited.admit(0, HERE).refused is None for _ in range(11)] == [True] * 10 + [False]
    limited.keep_to({})
    assert limited.admit(0, HERE) == SERVED


def test_connections_that_wait_to_be_closed_are_few_and_take_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_quotas, "CLOSING_MAX", 2)
    limited = quotas({HERE: 1.0}, max_connections=15)
    for _ in range(10):
        limited.admit(0, HERE)
    assert [limited.admit(0, HERE).wait_ms for _ in range(3)] == [1000, 1000, 0]
    assert [refused(limited.admit(0, THERE)) for _ in range(4)] == [False, False, False, True]
    limited.closed()
    assert not refused(limited.admit(0, THERE))


def test_addresses_that_were_away_longest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_quotas, "ADDRESSES_MAX", 3)
    limited = quotas({None: 1.0})
    for n in (1, 2, 3, 1, 4):
        for _ in range(10):
            limited.admit(0, f"10.0.0.{n}")
    assert [n for n in (1, 3, 4, 2) if limited.admit(0, f"10.0.0.{n}").refused] == [1, 3, 4]


@pytest.mark.parametrize("seed", range(20))
def test_no_address_gets_more_than_its_limit_however_it_tries(seed: int) -> None:
    """Over all windows but one: what the limit brings in all of them, and one connection."""
    chance = random.Random(seed)
    limit = chance.choice([1.0, 3.0, 20.0])
    limited = quotas({HERE: limit})
    now, came = 0, list[int]()
    for _ in range(3_000):
        now += chance.choice([0, 0, 1, 10, 300, 2_500])
        admission = limited.admit(now, HERE)
        if admission.refused is None:
            limited.ended(HERE)
            came = [moment for moment in came if moment > now - (SAMPLES - 1) * WINDOW_MS] + [now]
            assert len(came) <= limit * SAMPLES * WINDOW_MS / 1000 + 1
        else:
            limited.closed()
        assert limited.admit(now, THERE) == SERVED
        limited.ended(THERE)


# ---- how often in all ----------------------------------------------------------------------------------------------


def test_connections_are_served_as_fast_as_the_node_takes_them() -> None:
    limited = quotas(max_connection_creation_rate=2)
    delays = [limited.admit(0, f"10.0.0.{n}").wait_ms for n in range(25)]
    assert delays[:21] == [0] * 20 + [500]
    assert delays == sorted(delays)
    assert 2_000 <= delays[-1] <= 4_500, "about two a second"
    assert limited.admit(delays[-1], HERE).wait_ms > 0
    assert limited.admit(60_000, HERE) == SERVED


def test_who_would_wait_for_longer_than_anybody_does_is_closed() -> None:
    limited = quotas(max_connection_creation_rate=1)
    made = [limited.admit(0, HERE) for _ in range(60)]
    served = [admission.wait_ms for admission in made if admission.refused is None]
    assert served == sorted(served)
    assert DELAY_MS_MAX < served[-1] <= DELAY_MS_MAX + WINDOW_MS
    assert all(refused(admission) for admission in made[len(served) :])


def test_an_address_that_connects_too_often_delays_nobody() -> None:
    limited = quotas({HERE: 1.0}, max_connection_creation_rate=2)
    for _ in range(500):
        limited.admit(0, HERE)
    assert [limited.admit(0, THERE).wait_ms for _ in range(11)] == [0] * 10 + [500]
