"""The console over real HTTP: pages without a script, login by a write token, forms that only the console's own pages can send."""

from __future__ import annotations

import html
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from registry.console.asking import Reach, clients
from tests.conftest import bound, wait_until
from tests.registry.conftest import FakeNode, Running, image
from tests.support.certificates import signed
from udo_protocol.errors import Unavailable
from udo_protocol.node.peers import NODE_HEADER, PEER_HEADER, peer_key
from udo_protocol.registry.api import Registry

PAGES = ("/console/", "/console/operators", "/console/nodes", "/console/sign-in")


@pytest.fixture
def browser(registry: Running) -> Iterator[httpx.Client]:
    """An HTTP client that keeps cookies and follows redirects, as a browser does."""
    with httpx.Client(base_url=registry.url, follow_redirects=True, timeout=bound(30)) as made:
        yield made


def sign_in(browser: httpx.Client, token: str, name: str = "grace") -> httpx.Response:
    return browser.post("/console/sign-in", data={"token": token, "name": name})


def form_value(page: httpx.Response) -> str:
    found = re.search(r'name="form" value="([^"]+)"', page.text)
    assert found, page.text
    return found[1]


def shown(page: httpx.Response) -> str:
    """The page's text without tags."""
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page.text)).split())


def test_everybody_reads_what_the_api_shows_and_nobody_without_a_token_more(deployed: tuple[Registry, str], browser: httpx.Client) -> None:
    client, name = deployed
    for path in (*PAGES, f"/console/deployments/{name}"):
        page = browser.get(path)
        assert page.status_code == 200 and page.headers["Content-Type"].startswith("text/html"), path
        assert "script" not in page.text.lower()
        policy = page.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy and page.headers["Cache-Control"] == "no-store"
    assert name in shown(browser.get("/console/"))
    assert "<button" not in browser.get(f"/console/deployments/{name}").text
    refused = browser.get("/console/audit")
    assert refused.status_code == 401 and "sign in first" in shown(refused)
    missing = browser.get("/console/deployments/nobody")
    assert missing.status_code == 404 and "nobody" in shown(missing) and missing.headers["Content-Type"].startswith("text/html")
    assert "prefers-color-scheme: dark" in browser.get("/console/static/console.css").text


def test_who_signs_in_gets_a_cookie_without_the_token_that_scripts_and_other_sites_cannot_use(
    registry: Running, browser: httpx.Client
) -> None:
    wrong = sign_in(browser, "guess")
    assert wrong.status_code == 401 and not browser.cookies
    (first,) = sign_in(browser, registry.token).history
    cookie = first.headers["Set-Cookie"]
    assert all(part in cookie for part in ("HttpOnly", "SameSite=Strict", "Path=/console")) and registry.token not in cookie
    page = browser.get("/console/audit")
    assert page.status_code == 200 and "grace" in shown(page)
    browser.post("/console/sign-out", data={"form": form_value(page)})
    assert browser.get("/console/audit").status_code == 401


def test_a_form_that_does_not_come_from_the_console_does_nothing(
    registry: Running, deployed: tuple[Registry, str], browser: httpx.Client
) -> None:
    client, name = deployed
    update = f"/console/deployments/{name}/update"
    assert browser.post(update, data={"version": "2"}).status_code == 401, "not signed in"
    value = form_value(sign_in(browser, registry.token))
    for data, headers in (
        ({"version": "2"}, {}),
        ({"version": "2", "form": "guess"}, {}),
        ({"version": "2", "form": value}, {"Origin": "https://elsewhere.example"}),
        ({"version": "2", "form": value}, {"Origin": "null"}),
    ):
        assert browser.post(update, data=data, headers=headers).status_code == 401
    header = {"Authorization": f"Bearer {registry.token}"}
    assert httpx.post(f"{registry.url}{update}", data={"version": "2"}, headers=header).status_code == 401, "only with a cookie"
    assert client.deployment(name)["version"] == "1" and client.deployment(name)["update"] is None
    assert [row["action"] for row in client.audit(name)] == ["deploy"]


def test_an_update_and_a_rollback_are_started_followed_and_in_the_audit_trail(
    registry: Running, deployed: tuple[Registry, str], browser: httpx.Client
) -> None:
    client, name = deployed
    sign_in(browser, registry.token)
    of = f"/console/deployments/{name}"
    with FakeNode(client, "a"):
        for action, data, version in (("update", {"version": "2"}, "2"), ("rollback", {}, "1")):
            page = browser.get(of)
            assert f'action="{of}/{action}"' in page.text
            following = browser.post(f"{of}/{action}", data={**data, "form": form_value(page)}, headers={"Origin": registry.url})
            assert following.url.path.startswith("/console/updates/") and "by grace: " in shown(following)
            wait_until(lambda at=following.url: 'class="state done"' in browser.get(at).text, 20, "the update to be done")
            done = browser.get(following.url)
            assert 'http-equiv="refresh"' not in done.text and "answering" in shown(done)
            assert client.deployment(name)["version"] == version
    rows = client.audit(name)
    assert {row["who"] for row in rows if row["action"].startswith(("update", "rollback"))} == {"grace"}
    trail = shown(browser.get("/console/audit", params={"deployment": name}))
    assert "grace" in trail and "rollback" in trail
    no_version = browser.post(f"{of}/update", data={"form": form_value(browser.get(of))})
    assert no_version.status_code == 400 and "expected the version to go to" in shown(no_version)
    for canary, why in (
        ({"rollback_if": "errors>0"}, "expected its share in %"),
        ({"percent": "5", "rollback_if": "error>0"}, "there is no measure"),
        ({"percent": "500"}, "percent: "),
    ):
        refused = browser.post(f"{of}/update", data={"version": "2", "form": form_value(browser.get(of)), **canary})
        assert refused.status_code == 400 and why in shown(refused), canary
    assert client.deployment(name)["version"] == "1" and client.deployment(name)["update"] is None


def test_what_others_named_is_text_on_a_page_and_no_markup(registry: Running, browser: httpx.Client, tmp_path: Path) -> None:
    client = registry.client(user="<b onclick=x>eve</b>")
    image("marked", "1").push(client, tmp_path)
    client.deploy("marked", "marked", "1")
    sign_in(browser, registry.token, name='"><script>alert(1)</script>')
    for path in ("/console/audit", "/console/operators", "/console/"):
        assert "<b onclick" not in browser.get(path).text and "<script" not in browser.get(path).text
    assert "<b onclick=x>eve</b>" in html.unescape(browser.get("/console/audit").text)


def test_a_token_that_is_removed_signs_out_whoever_used_it(start_registry: Callable[..., Running]) -> None:
    registry = start_registry()
    with httpx.Client(base_url=registry.url, follow_redirects=True, timeout=bound(30)) as browser:
        sign_in(browser, registry.token)
        assert browser.get("/console/audit").status_code == 200
        registry.stop()
        (registry.data / "token").write_text("another\n")
        again = start_registry(data=registry.data)
        cookies = dict(browser.cookies)
        with httpx.Client(base_url=again.url, cookies=cookies, timeout=bound(30)) as later:
            assert cookies and later.get("/console/audit").status_code == 401


OF_NODES = ("slots", "dead-letters", "dead-letters/a/0123", "state", "logs", "decisions")


def test_what_nodes_know_is_for_who_is_signed_in_and_a_node_that_cannot_be_asked_is_named(
    registry: Running, deployed: tuple[Registry, str], browser: httpx.Client
) -> None:
    client, name = deployed
    of = f"/console/deployments/{name}"
    for page in OF_NODES:
        refused = browser.get(f"{of}/{page}")
        assert refused.status_code == 401 and "sign in first" in shown(refused), page
    assert "Sign in for what nodes know" in shown(browser.get(of))
    for action in ("promote", "dead-letters/replay", "dead-letters/drop"):
        assert browser.post(f"{of}/{action}", data={"node": "a", "id": "0123"}).status_code == 401, action
    value = form_value(sign_in(browser, registry.token))
    for action in ("promote", "dead-letters/replay", "dead-letters/drop"):
        assert browser.post(f"{of}/{action}", data={"form": "guess"}).status_code == 401, action
    with FakeNode(client, "a"):  # its reported address is unix:a.sock, where nothing listens
        for page in OF_NODES:
            answer = browser.get(f"{of}/{page}")
            assert "it is on another host (unix) and does not listen for others" in shown(answer), page
            assert answer.status_code == (503 if "0123" in page else 200), page
        assert f'href="{of}/slots"' in browser.get(of).text
        refused = browser.post(f"{of}/dead-letters/replay", data={"form": value})
        assert refused.status_code == 503 and "Not on a: it is on another host" in shown(refused)
    one_of_two = browser.post(f"{of}/dead-letters/replay", data={"form": value, "node": "a"})
    assert one_of_two.status_code == 400 and "expected the node of a dead letter and its id" in shown(one_of_two)
    assert browser.post(f"{of}/dead-letters/drop", data={"form": value}).status_code == 400, "never all at once"
    assert browser.get("/console/deployments/nobody/slots").status_code == 404
    assert not [row for row in client.audit(name) if row["action"].startswith("dead")]


def test_a_node_is_asked_over_its_socket_on_this_host_or_as_a_node_manager_would_with_each_token(tmp_path: Path) -> None:
    tls = signed(tmp_path / "certs", "registry")
    there, here = str(tmp_path / "node.sock"), socket.gethostname()
    (tmp_path / "node.sock").touch()
    (own,) = clients(Reach("a", f"{here}:{there}", "10.0.0.2:7070", ""), ["t"], tls)
    assert own.path == there and own._shown == ((NODE_HEADER, "a"),), "whoever has that socket passes it on to a"
    for address in (f"elsewhere:{there}", f"{here}:{there}.gone"):
        others = clients(Reach("a", address, "10.0.0.2:7070", ""), ["t", "u"], tls)
        assert [c.path for c in others] == ["https://10.0.0.2:7070"] * 2
        assert [c._shown for c in others] == [((PEER_HEADER, peer_key(token, "a")),) for token in ("t", "u")]
    with pytest.raises(Unavailable, match="has no certificates"):
        clients(Reach("a", f"elsewhere:{there}", "10.0.0.2:7070", ""), ["t"], None)
