"""A log that is cut: no checkpoint from before says more than it holds, whatever was still to be written then."""

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from ottla.broker.effects import Store, Withdrawal
from ottla.broker.upkeep.checkpoints import RECOVERY_POINT
from ottla.log.checkpoints import read_offsets
from ottla.server.disk import NodeFiles
from tests.node_stage import DiskStage

CUT = 3


def checkpoint(stage: DiskStage) -> int:
    return (read_offsets(stage.disk, f"/data/{RECOVERY_POINT}") or {})["t", 0]


@pytest.mark.parametrize("heeds", [True, False], ids=["the shell", "a shell that does not heed what is withdrawn"])
def test_what_the_shell_has_yet_to_write_is_withdrawn(heeds: bool) -> None:
    stage = DiskStage()
    partition = stage.create("t").partitions[0]
    for _ in range(2 * CUT):
        stage.append("t")
    partition.log.flush()
    late: list[Store] = []
    carry_out, stage.replace_file = stage.replace_file, late.append  # type: ignore[method-assign]
    stage.run(60_000)
    assert {store.path for store in late} >= {f"/data/{RECOVERY_POINT}"}
    partition.log.truncate_to(CUT, now=stage.now)
    stage.node.upkeep.checkpoints.write_cut()
    assert checkpoint(stage) == CUT
    for store in late:
        if heeds:
            carry_out(store)
        else:
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
