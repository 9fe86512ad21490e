"""Transcripts: text files of events and what came of them, checked by running them, written anew with `--update`.

A file is a run of blocks. A block is lines of input, a line `----`, and the lines of output up to an empty line:

    # Comments and empty lines between blocks stay as they are.
    join c1 group=g
    ----
    c1: MEMBER_ID_REQUIRED member=m1

Every line of input is given to `play`, whose output lines follow each other. So what is reviewed in a change of
behaviour is a difference of text. A room that wants transcripts writes a small player and a test of five lines:

    @pytest.mark.parametrize("path", scripts("groups"), ids=lambda path: path.stem)
    def test_transcript(path, update):
        check(path, Player().play, update)

Source: cockroachdb/datadriven, as etcd/raft uses it.
"""

from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parents[2] / "transcripts"
SEPARATOR = "----"


def scripts(room: str) -> list[Path]:
    """The transcripts of a room, in a stable order. There must be some."""
    found = sorted((HERE / room).glob("*.txt"))
    assert found, f"no transcripts for {room}"
    return found


def check(path: Path, play: Callable[[str], list[str]], update: bool) -> None:
    """Run the file through `play`, which takes one line of input and returns lines of output."""
    written = path.read_text()
    played = _run(written, play)
    if update:
        path.write_text(played)
    else:
        assert played == written, f"{path.name} says something else; look at it with --update and git diff"


def _run(text: str, play: Callable[[str], list[str]]) -> str:
    out: list[str] = []
    lines = iter(text.splitlines())
    block: list[str] = []
    for line in lines:
        if line == SEPARATOR:
            out.append(line)
            for each in block:
                out += play(each)
            block = []
            for old in lines:
                if not old:
                    break
            out.append("")
            continue
        out.append(line)
        if line and not line.startswith("#"):
            block.append(line)
    assert not block, f"input without {SEPARATOR} behind it: {block}"
    while out and not out[-1]:
        out.pop()
    return "\n".join(out) + "\n"
