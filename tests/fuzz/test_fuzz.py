"""A slice of the fuzzing: mutated frames on a live node beside a well-behaved client (tools/fuzz_node.py)."""

import random
from pathlib import Path

import pytest

from ottla.protocol.framing import decode_request
from ottla.protocol.messages.heartbeat import HeartbeatRequest
from tools import fuzz_node

MORE = pytest.mark.slow("tests/fuzz/test_fuzz.py::test_mutated_frames_break_nothing")


@pytest.mark.parametrize("frames", [500, pytest.param(3_000, marks=MORE)])
def test_mutated_frames_break_nothing(tmp_path: Path, frames: int) -> None:
    said: list[str] = []
    failures = fuzz_node.run(frames, 7, 8, str(tmp_path), 64.0, said.append)
    assert not failures, "\n".join([*failures, *said])
    assert said[-2].startswith(f"{frames} frames")


def test_mutations_are_the_same_for_a_seed_and_reach_every_kind_of_value() -> None:
    frame = b"\x00\x0c\x00\x04\x00\x00\x00\x07\x00\x01c\x00\x02g\x00\x00\x00\x01\x02m\x00\x00"
    assert decode_request(memoryview(frame))[1] == HeartbeatRequest("g", 1, "m", None)
    corpus = fuzz_node.Corpus([frame])
    first, second = ([fuzz_node.mutate(random.Random(seed), corpus) for seed in range(300)] for _ in range(2))
    assert first == second
    assert len(set(first)) > 150
    assert any(len(made) < len(frame) for made in first)
    assert any(len(made) > len(frame) for made in first)
