"""The page in a real browser: no complaint, no request but its own, nothing that sticks out.

Without a browser these tests are left out, and the header of the run says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from reports import claims, fake_evidence
from reports.chromium import Chromium
from reports.render import page

pytestmark = pytest.mark.browser
PHONE, DESKTOP = 400, 1280
LONG_NAME = "a_name_that_has_no_end_" * 12
CLAIMS = claims.group_claims({"p1": fake_evidence.contract()}, {})
PAGES = {
    "green": fake_evidence.evidence(claims=CLAIMS),
    "red": fake_evidence.failing_evidence(),
    "hostile": fake_evidence.failing_evidence(fake_evidence.HOSTILE_TEXT),
    "long": fake_evidence.failing_evidence(LONG_NAME),
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with Chromium() as chromium:
        yield chromium


@pytest.mark.parametrize(("name", "width", "dark"), [
    ("green", PHONE, False), ("red", PHONE, True), ("hostile", PHONE, False),
    ("long", PHONE, False), ("red", DESKTOP, False), ("long", DESKTOP, True)])
def test_page_is_quiet_alone_and_fits(browser: Chromium, tmp_path: Path, name: str, width: int,
                                      dark: bool) -> None:
    file = tmp_path / "index.html"
    file.write_text(page(PAGES[name]), encoding="utf-8")
    seen = browser.open_page(file, width, dark)
    assert seen.errors == ()
    assert seen.requests == (file.as_uri(),)
    assert seen.outside == ()
    assert seen.height > 1000


BROKEN_PAGE = """<!doctype html><title>x</title><meta name="viewport" content="width=device-width">
<body>{}</body>"""


@pytest.mark.parametrize(("body", "what"), [
    ("<script>console.error('it broke')</script>", "errors"),
    ("<script>throw new Error('it broke')</script>", "errors"),
    ("<img src='http://127.0.0.1:9/x.png'>", "requests"),
    ("<link rel=stylesheet href='file:///nowhere.css'>", "requests"),
    ("<p style='width: 900px'>wide</p>", "outside"),
    ("<details><summary>x</summary><pre>" + "x" * 300 + "</pre></details>", "outside")])
def test_browser_sees_what_a_page_must_not_do(browser: Chromium, tmp_path: Path, body: str,
                                              what: str) -> None:
    file = tmp_path / "wrong.html"
    file.write_text(BROKEN_PAGE.format(body))
    seen = browser.open_page(file, PHONE)
    assert len(getattr(seen, what)) > (what == "requests")
