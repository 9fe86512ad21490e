"""A node whose metadata file is replaced while it runs ends, and says why."""

import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from ottla.client import Client, ClientError
from ottla.protocol.messages.api_versions import ApiVersionsRequest
from tests.harness.waiting import soon
from tests.server.test_metadata_store import create
from tools.node_process import held_port


@pytest.mark.parametrize("is_shared", [True, False])
def test_a_node_whose_metadata_is_replaced_ends_with_a_sentence(tmp_path: Path, is_shared: bool) -> None:
    store = tmp_path / "metadata.sqlite" if is_shared else tmp_path / "node" / "metadata.sqlite"
    with held_port() as port:
        address = f"127.0.0.1:{port.getsockname()[1]}"
        command = [sys.executable, "-m", "ottla", "serve", "--data", str(tmp_path / "node"), "--listen", address]
        command += ["--metadata", str(store)] if is_shared else []
        node = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert node.stdout is not None
        try:
            assert "serves Kafka clients" in node.stdout.readline()
            with Client(address) as client:
                create_soon(client)
                shutil.copy(store, tmp_path / "older")
                (tmp_path / "older").rename(store)
                ask_until_refused(client)
            _, said = node.communicate(timeout=60)
        finally:
            node.kill()
    assert node.returncode == 1
    assert said.splitlines()[-1].startswith(f"ottla: {store} was replaced while nodes ran. ")
    assert "Traceback" not in said


def ask_until_refused(client: Client) -> None:
    with suppress(ClientError):
        while True:
            client.send(ApiVersionsRequest("probe", "1"))
            time.sleep(0.01)


def create_soon(client: Client) -> None:
    soon(lambda: create(client, "t")[0] == 0)
