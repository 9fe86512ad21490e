"""The pages of share groups in a browser: their golden pages need a broker of which no other test has used a record."""

from __future__ import annotations

import pytest

from ottla.client import ShareReasons
from ottla.client.share_member import RELEASE
from ottla.testing import EmbeddedBroker
from tests.console.test_share_group_pages import Given, member, take
from tests.console.test_share_group_pages import console_broker as broker_of_tasks
from tests.harness.console.browser import Opened
from tests.harness.console.golden import check_golden

console_broker = broker_of_tasks


@pytest.mark.browser
@pytest.mark.xdist_group("browser")
def test_share_group_pages_are_as_recorded_and_accessible(
    opened: Opened, console_broker: EmbeddedBroker, update: bool
) -> None:
    servers = {"bootstrap.servers": console_broker.bootstrap_servers, "group.id": "jobs"}
    with member(console_broker, "jobs") as ada, ShareReasons(servers) as reasons:
        first, *_ = take(ada, 2)
        assert reasons.give(Given(first), "the printer has run out of paper"), reasons.why_not
        ada.acknowledge([first], RELEASE)
        opened.go("/share-groups?q=jobs")
        assert opened.accessibility() == []
        check_golden(opened, "share_groups", update)
        opened.go("/share-group?name=jobs")
        assert opened.accessibility() == []
        check_golden(opened, "share_group", update)
