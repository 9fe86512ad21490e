"""Transcripts of the group coordinator."""

from pathlib import Path

import pytest

from tests.harness.groups.group_player import Player
from tests.harness.transcripts.datadriven import check, scripts


@pytest.mark.parametrize("path", scripts("groups"), ids=lambda path: path.stem)
def test_transcript(path: Path, update: bool) -> None:
    check(path, Player().play, update)
