"""The playground in a real browser: every panel answers, by mouse and by keyboard, at a desk and on a phone."""

import shutil
import socket
import threading
import time

import pytest
from serve.test_http import models  # noqa: F401

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
if BROWSER is None:
    pytest.skip("needs Chromium", allow_module_level=True)
api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
http = pytest.importorskip("bertkit.serve.http", reason="needs the extra serve")
uvicorn = pytest.importorskip("uvicorn")

GIVEN = {
    "fill": {"text": "the [MASK] went to the house ."},
    "classify": {"text": "the cat went", "pair": ""},
    "tag": {"text": "the cat went to the house ."},
    "ask": {"question": "where did it go ?", "context": "the cat went to the house ."},
    "choose": {"prompt": "the animal went to", "options": "the house\nit"},
    "similarity": {"texts": "the cat went\nthe dog went\nit"},
    "attention": {"text": "the cat went to the house ."},
    "tokenize": {"text": "the cat went"},
}
SHOWN = {
    "fill": ".fact",
    "classify": ".fact",
    "tag": ".passage",
    "ask": ".passage",
    "choose": ".fact",
    "similarity": "table.heat td",
    "attention": "svg line",
    "tokenize": ".piece",
}


@pytest.fixture(scope="module")
def address(models):  # noqa: F811
    """A server in a thread; what it serves is found below another path, too."""
    door, app, inner = socket.create_server(("127.0.0.1", 0)), http.FastAPI(), http.create_app(models)
    app.mount("/below", inner)
    app.mount("", inner)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [door]})
    thread.start()
    while not server.started:
        time.sleep(0.05)
    yield f"http://127.0.0.1:{door.getsockname()[1]}"
    server.should_exit = True
    thread.join(10)
    door.close()


@pytest.fixture(scope="module")
def browser():
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.mark.parametrize("width", [1100, 390], ids=["desk", "phone"])
def test_every_panel_answers(address, browser, width, tmp_path):
    page = browser.new_page(viewport={"width": width, "height": 850})
    wrong = []
    page.on("console", lambda message: message.type == "error" and wrong.append(message.text))
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: request.url.startswith((address, "data:")) or wrong.append(request.url))
    page.goto(address)
    for name, given in GIVEN.items():
        page.click(f"nav button[data-name={name}]")
        for field, text in given.items():
            page.fill(f"form [name={field}]", text)
        page.click("button.go")
        page.wait_for_selector(f"#answer {SHOWN[name]}", state="attached", timeout=10_000)
        assert "ms" in page.inner_text("#time") and f"/v1/{name}" in page.inner_text("#curl")
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), f"{name} is wider than the page"
    assert not wrong
    page.close()


def test_it_asks_the_server_that_gave_the_page(address, browser):
    """Which may be found below another's path."""
    page = browser.new_page()
    page.goto(f"{address}/below/#tokenize")
    page.click("button.go")
    page.wait_for_selector("#answer .piece")
    assert f"{address}/below/v1/tokenize" in page.inner_text("#curl")
    page.close()


def test_by_keyboard_alone(address, browser):
    page = browser.new_page()
    page.goto(f"{address}/#tokenize")
    page.wait_for_selector("form [name=text]")
    page.fill("form [name=text]", "the dog")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("#answer .piece")
    page.focus("nav button[data-name=tokenize]")
    page.keyboard.press("ArrowLeft")
    assert page.get_attribute("nav button[data-name=attention]", "aria-selected") == "true"
    page.close()


def test_a_late_answer_stays_out_of_another_tab(address, browser):
    page = browser.new_page()
    held = []
    page.route("**/v1/tokenize", lambda route: held.append(route))
    page.goto(f"{address}/#tokenize")
    page.click("button.go")
    page.wait_for_selector("#answer[aria-busy]", state="attached")
    page.click("nav button[data-name=attention]")
    with page.expect_response("**/v1/tokenize"):
        held[0].continue_()
    page.wait_for_timeout(200)
    assert page.inner_text("#answer") == ""
    assert page.get_attribute("#answer", "aria-busy") is None
    page.close()


def test_a_wrong_key_is_told(address, browser):
    page = browser.new_page()
    page.on("dialog", lambda dialog: dialog.accept("wrong"))
    page.route("**/v1/models", lambda route: route.fulfill(status=401, json={"detail": "The key is missing or wrong."}))
    page.goto(address)
    page.wait_for_selector("#about:text-is('The key is missing or wrong.')")
    page.close()


def test_what_cannot_be_answered_is_said(address, browser):
    page = browser.new_page()
    page.goto(f"{address}/#fill")
    page.wait_for_selector("form [name=text]")
    page.fill("form [name=text]", "nothing is missing")
    page.click("button.go")
    page.wait_for_selector("#answer .error")
    assert "no [MASK]" in page.inner_text("#answer .error")
    page.close()
