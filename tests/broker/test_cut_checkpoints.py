"""A log that is cut: no checkpoint from before says more than it holds, whatever was still to be written then."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.effects import Effect, Store, Withdrawal
from ottla.broker.upkeep.checkpoints import RECOVERY_POINT
from ottla.log.checkpoints import read_offsets
from ottla.server.disk import NodeFiles
from tests.harness.node_stage import DiskStage

CUT = 3


def checkpoint(stage: DiskStage) -> int:
    return (read_offsets(stage.disk, f"/data/{RECOVERY_POINT}") or {})["t", 0]


class Stage(DiskStage):
    """Its shell writes no checkpoints; they are in `late`."""

    def __init__(self) -> None:
        self.late: list[Store] = []
        super().__init__()

    def _carry_out(self, effect: Effect) -> None:
        if isinstance(effect, Store):
            self.late.append(effect)
        else:
            super()._carry_out(effect)


@pytest.mark.parametrize("heeds", [True, False], ids=["the shell", "a shell that does not heed what is withdrawn"])
def test_what_the_shell_has_yet_to_write_is_withdrawn(heeds: bool) -> None:
    stage = Stage()
    partition = stage.create("t").partitions[0]
    for _ in range(2 * CUT):
        stage.append("t")
    partition.log.flush()
    stage.run(60_000)
    assert {store.path for store in stage.late} >= {f"/data/{RECOVERY_POINT}"}
    partition.log.truncate_to(CUT, now=stage.now)
    stage.node.upkeep.checkpoints.write_cut()
    assert checkpoint(stage) == CUT
    for store in stage.late:
        if not (heeds and store.withdrawal.is_made):
            stage.disk.write_atomically(store.path, store.content)
    for _ in range(CUT):
        stage.append("t", value=b"of another leader")
    stage.restart(clean=False, power_cut=True)
    assert (checkpoint(stage) == CUT) == heeds, "else a start would take for whole what never was on the disk"


def test_both_threads_replace_a_file_one_behind_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk thread is in the middle of a checkpoint, and has another one to write, when the loop cuts a log."""
    files, path = NodeFiles(8), str(tmp_path / RECOVERY_POINT)
    begun, goes_on = threading.Event(), threading.Event()
    slow: Any = os.fsync

    def fsync(fd: int) -> None:
        if threading.current_thread() is beside:
            begun.set()
            goes_on.wait(10)
        slow(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    withdrawal = Withdrawal()
    old = [Store(path, content, withdrawal) for content in (b"old", b"older than the cut")]
    beside = threading.Thread(target=lambda: [files.carry_out(store) for store in old])
    beside.start()
    begun.wait(10)
    withdrawal.is_made = True
    threading.Timer(0.05, goes_on.set).start()
    files.write_atomically(path, b"new")
    beside.join()
    assert Path(path).read_bytes() == b"new"
