"""What the nodes of one machine hear of each other without looking: who committed, who came, who is gone."""

import asyncio
import os
import sys
from pathlib import Path

from ottla.server.presence import LockedPresence

HOLDS = "import os, sys, time; os.open(sys.argv[1], os.O_RDWR); print('held', flush=True); time.sleep(60)"


async def heard_within(news: asyncio.Event, seconds: float = 10) -> bool:
    try:
        await asyncio.wait_for(news.wait(), seconds)
    except TimeoutError:
        return False
    news.clear()
    return True


async def test_a_node_hears_of_commits_and_of_who_comes_and_dies(tmp_path: Path) -> None:
    mark, members = tmp_path / "mark", tmp_path / "members"
    mark.write_text("1")
    presence = LockedPresence(str(members), 1, "a", 1_000, str(mark))
    news = asyncio.Event()
    assert presence.listen(news.set)
    (members / "2").write_text("b")
    assert await heard_within(news)
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", HOLDS, str(members / "2"), stdout=asyncio.subprocess.PIPE
    )
    assert child.stdout is not None
    await child.stdout.readline()
    presence._renew()
    assert not await heard_within(news, 0.05), "leases are no news"
    child.kill()
    assert await heard_within(news)
    await child.wait()
    file = os.open(mark, os.O_WRONLY)
    os.pwrite(file, b"2", 0)
    assert await heard_within(news)
    os.close(file)
    presence.leave()


async def test_where_the_system_tells_of_nothing_a_node_does_without(tmp_path: Path) -> None:
    presence = LockedPresence(str(tmp_path / "members"), 1, "a", 1_000, str(tmp_path / "missing"))
    assert not presence.listen(lambda: None)
    presence.leave()
