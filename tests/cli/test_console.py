"""The console of a platform in a real browser: updates, rollbacks and canaries with its buttons while events go through the operator, and
the pages with data from the nodes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path

import pytest

from tests.cli.conftest import Shell
from tests.conftest import wait_until
from tests.node_manager.conftest import Lane
from tests.support.attempt import Attempt
from tests.support.browser import Browser, chromium
from tests.support.traffic import traffic
from udo_protocol.node.api import connect_node

pytestmark = pytest.mark.long
MANIFEST = 'name = "counts"\nversion = "1"\nentry = "op:Count"\nkey = "a"\n[input]\na = "int64"\n[output]\nb = "int64"\n'
COUNTS = """
from udo_runtime import Operator
class Count(Operator):
    def process(self, event, ctx):
        print("counted", event["a"])
        ctx.state["n"] = ctx.state.get("n", 0) + 1
        if event["a"] == 13: raise ValueError("unlucky")
        yield {"b": ctx.state["n"]}
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as made:
        yield made


@pytest.fixture
def console(platform: Shell, browser: Browser) -> Browser:
    """The browser, signed in as ada."""
    url = platform("console", "--json").json["url"]
    browser.open(f"{url}sign-in")
    browser.enter("input[name=token]", (platform.home / "registry" / "token").read_text().strip())
    browser.enter("input[name=name]", "ada")
    browser.click("Sign in")
    wait_until(lambda: "Deployments" in browser.text(), 20, "the first page")
    return browser


def await_state(console: Browser, state: str) -> None:
    """Wait until the update on the page is in this state; the page refreshes itself."""
    wait_until(lambda: console.there(f"main > p .state.{state}"), 60, f"the update to be {state}")


def begin_canary(console: Browser) -> None:
    """Begin a canary of the other version from the deployment's page; wait until all nodes have begun it."""
    console.click("With a canary first")
    for field, value in (("percent", "50"), ("for_s", "3600"), ("rollback_if", "errors>0, p99_ms>60000"), ("min_events", "1")):
        console.enter(f"input[name={field}]", value)
    console.click("Update")
    await_state(console, "canary")
    wait_until(lambda: "sharing" in console.text(), 60, "the canary to have its share")


def test_updates_canaries_and_rollbacks_by_clicks_lose_and_double_no_event(
    platform: Shell, operator: Callable[..., Path], console: Browser
) -> None:
    for version, plus in (("1", 1), ("2", 2)):
        platform("push", operator("clicked", version, plus=plus, body=f"version = {version}"))
    platform("deploy", "clicked@1")
    over, answers, lane = threading.Event(), list[int](), Lane(connect_node(platform.home / "node" / "node.sock"), "clicked")

    def ask() -> None:
        while not over.is_set():
            answers.append(lane.ask(1000 * len(answers)))

    def await_version(version: int) -> None:
        wait_until(lambda: answers and answers[-1] % 1000 == version, 20, f"answers of version {version}")

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        await_version(1)
        console.click("Deployments", "//header")
        console.click("clicked")
        console.click("Update")
        await_state(console, "done")
        await_version(2)
        console.click("Back to clicked")
        console.click("Roll back to 1")
        await_state(console, "done")
        await_version(1)
        console.click("Back to clicked")
        with traffic(platform, "clicked") as told:
            begin_canary(console)
            wait_until(lambda: {b % 1000 for _, b in told} == {1, 2}, 60, "answers of both versions to new clients")
            console.click("Promote now")
            await_state(console, "done")
            await_version(2)
            console.click("Back to clicked")
            begin_canary(console)
            console.click("Back to clicked")
            assert "A canary of 1 is under way" in console.text()
            console.click("Stop and roll back")
            await_state(console, "rolled_back")
            assert "ada asked for it" in console.text()
            console.click("Back to clicked")
            begin_canary(console)
            done = platform("update", "clicked", "--promote")
            assert "ada" not in done.err and "promoted the canary before its time" in done.err and "clicked@1 answers" in done.out
    finally:
        over.set()
        asking.join()
        lane.end.close()
        lane.conn.close()
    assert [answer // 1000 for answer in answers] == list(range(len(answers)))
    assert [version for version, _ in groupby(answer % 1000 for answer in answers)] == [1, 2, 1, 2, 1]
    assert "no canary under way" in platform("update", "clicked", "--promote", code=4).err
    trail = platform("registry", "audit", "--deployment", "clicked", "--json").json
    assert [row["action"] for row in trail if row["who"] == "ada" and "." not in row["action"]][::-1] == [
        *("update", "rollback", "update", "promote", "update", "rollback", "update")
    ]


@pytest.fixture(scope="module")
def counts(platform: Shell, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A keyed deployment with a session and two dead letters."""
    folder = tmp_path_factory.mktemp("counts")
    (folder / "operator.toml").write_text(MANIFEST)
    (folder / "op.py").write_text(COUNTS)
    platform("push", folder)
    platform("deploy", "counts", "--on-error", "dead-letter")
    Attempt.at_node(connect_node(platform.home / "node" / "node.sock"), "counts", "spring", 0, 1).run([1, 13, 13, 2])
    return "counts"


def test_what_nodes_know_is_shown_and_dead_letters_are_replayed(platform: Shell, console: Browser, counts: str) -> None:
    console.click("Deployments", "//header")
    console.click("counts")
    console.click("Slots")
    wait_until(lambda: "no figures yet" not in console.text() and "counts" in console.text(), 30, "figures")
    assert "owner" in console.text() and "Round trip ms" in console.text()
    console.click("State")
    assert "spring" in console.text() and "in use" in console.text()
    console.click("Logs")
    wait_until(lambda: "counted 13" in console.text(), 20, "what the operator wrote")
    console.click("Decisions")
    assert "No step was proposed yet" in console.text()
    console.click("Dead letters")
    assert console.text().count("ValueError: unlucky") == 2
    console.click("Replay all")
    wait_until(lambda: console.text().count("waiting") == 2, 20, "both to be replayed")
    first = console.script("return document.querySelector('main th a').href")
    console.open(first)
    assert '{"a": 13}' in console.text() and "op.py" in console.text()
    console.click("Drop")
    wait_until(lambda: console.text().count("ValueError: unlucky") == 1, 20, "one to be dropped")
    trail = platform("registry", "audit", "--deployment", "counts", "--json").json
    assert [(row["who"], row["action"]) for row in trail[:2]] == [("ada", "dead.drop"), ("ada", "dead.replay")]


def test_each_page_fits_a_phone_and_a_desk_in_light_and_dark_and_reads_without_scripts(
    platform: Shell, console: Browser, counts: str
) -> None:
    url = platform("console", "--json").json["url"]
    of = f"deployments/{counts}"
    pages = [
        "",
        "operators",
        "applications",
        "nodes",
        "audit",
        of,
        *(f"{of}/{p}" for p in ("slots", "dead-letters", "state", "logs", "decisions")),
    ]
    console.open(f"{url}{of}/dead-letters")
    pages.append(str(console.script("return document.querySelector('main th a').href")).removeprefix(url))
    pictures = Path(os.environ["UDO_PICTURES"]) if "UDO_PICTURES" in os.environ else None
    for page in pages:
        grounds = set()
        for width in (1280, 400):
            for dark in (False, True):
                console.show(width, dark=dark)
                if not grounds:
                    console.open(f"{url}{page}")
                wide = console.script("return [document.documentElement.scrollWidth, document.querySelector('h1').innerText]")
                assert wide[0] <= width and wide[1], (page, width, wide)
                grounds.add(console.script("return getComputedStyle(document.body).backgroundColor"))
                if pictures:
                    console.picture(pictures / f"{page.replace('/', '-') or 'overview'}-{width}-{'dark' if dark else 'light'}.png")
        assert len(grounds) == 2, page
    console.without_scripts()
    console.open(f"{url}{of}")
    assert "counts@1" in console.text()
    console.click("Sign out", "//header")
    wait_until(lambda: console.there("//header//a[text()='Sign in']"), 20, "to be signed out")
    console.open(f"{url}{of}")
    assert "counts@1" in console.text() and not console.there("main button") and not console.there("main form")
    console.open(f"{url}{of}/logs")
    assert "sign in first" in console.text()
