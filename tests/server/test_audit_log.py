"""The file of the audit log: private, rotated by size, and no reason for a node to end."""

import asyncio
import json
import logging
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.config.unserved import AUTHORIZERS
from ottla.client import Client
from ottla.server.audit_log import WAITING_MAX, AuditLog
from ottla.server.refusals import SettingsRefusedError
from tests.harness.waiting import soon, soon_in_loop
from tests.server.test_security import running

MOMENT = 1_764_190_800_123


def record(**more: object) -> Mapping[str, object]:
    return {"time": MOMENT, "event": "denied", **more}


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_each_record_is_a_line_that_only_the_owner_can_read(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    audit = AuditLog(str(path), 1 << 20, 3)
    audit.write(record(name="a\nb\u2028c"))
    audit.write(record(name="ä"))
    audit.stop()
    assert path.read_text().count("\n") == 2
    assert [each["name"] for each in lines(path)] == ["a\nb\u2028c", "ä"]
    assert lines(path)[0]["time"] == "2025-11-26T21:00:00.123Z"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


async def test_full_files_are_kept_up_to_a_number(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    audit = AuditLog(str(path), 4096, 3)
    for number in range(20):
        audit.write(record(number=number, text="x" * 1000))
        await asyncio.sleep(0)
        await soon_in_loop(lambda: not audit._is_writing)
    audit.stop()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["audit.log", "audit.log.1", "audit.log.2"]
    kept = [each["number"] for name in ("audit.log.2", "audit.log.1", "audit.log") for each in lines(tmp_path / name)]
    assert kept == list(range(20 - len(kept), 20))
    assert all(
        each.stat().st_size <= 4096 and stat.S_IMODE(each.stat().st_mode) == 0o600 for each in tmp_path.iterdir()
    )


async def test_a_file_that_was_moved_away_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    audit = AuditLog(str(path), 4096, 3)
    path.rename(tmp_path / "moved")
    audit.write(record(number=1))
    audit.stop()
    assert [each["number"] for each in lines(path)] == [1]


async def test_a_full_disk_is_reported_once_and_the_lost_records_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "ottla.audit")
    path = tmp_path / "audit.log"
    audit = AuditLog(str(path), 1 << 20, 3)
    audit.write(record(number=0))
    await soon_in_loop(lambda: not audit._is_writing)
    write = os.write
    is_full = [True]

    def full(file: int, octets: bytes) -> int:
        if not is_full[0]:
            return write(file, octets)
        if len(octets) > 10:
            return write(file, octets[:10])  # half of a line fits
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ottla.server.audit_log.os.write", full)
    for number in range(1, 4):
        audit.write(record(number=number))
        await soon_in_loop(lambda: not audit._is_writing)
    is_full[0] = False
    audit.write(record(number=4))
    await soon_in_loop(lambda: not audit._is_writing)
    audit.stop()
    assert [(each["number"], each.get("lost")) for each in lines(path)] == [(0, None), (4, 3)]
    said = [each.getMessage() for each in caplog.records]
    assert len(said) == 2
    assert "No space left on device. The node continues without it." in said[0]
    assert "can be written again" in said[1]


async def test_records_that_wait_for_a_slow_disk_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    audit = AuditLog(str(path), 1 << 30, 3)
    audit._is_writing = True  # as if the thread were busy
    for number in range(WAITING_MAX + 5):
        audit.write(record(number=number))
    audit.stop()
    assert len(lines(path)) == WAITING_MAX
    assert lines(path)[0]["lost"] == 5


def test_a_place_that_can_not_be_written_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(SettingsRefusedError, match="No such file or directory"):
        AuditLog(str(tmp_path / "none" / "audit.log"), 4096, 3)
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(SettingsRefusedError, match="can't be opened"):
        AuditLog(str(tmp_path / "link"), 4096, 3)


def test_a_node_writes_it_into_its_data_directory(tmp_path: Path) -> None:
    settings = {"authorizer.class.name": AUTHORIZERS[0]}
    for _ in range(2):  # the second start finds the file
        with running(tmp_path, ["PLAINTEXT"], **settings) as node, Client(node["PLAINTEXT"]) as client:
            client.metadata(["t"])
            path = tmp_path / "audit.log"
            soon(lambda path=path: path.read_text() != "")
    assert [(each["principal"], each["name"]) for each in lines(path)] == [("User:ANONYMOUS", "t")] * 2
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
