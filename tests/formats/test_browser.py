"""The page in a real browser, which says what its policy refuses and what its parser makes of hostile texts."""

import os
import re
import shutil
import subprocess

import pytest

from trainer_agent.formats.html import write

pytestmark = pytest.mark.lab


@pytest.fixture
def rendered(tmp_path):
    """Render a page: the document that the browser made of it, and what its console says."""
    browser = shutil.which("chromium")
    if browser is None:
        missing = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        missing("rendering the page needs chromium")

    def render(page):
        (tmp_path / "report.html").write_text(page)
        argv = [
            *(browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
            *(f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr", "--dump-dom"),
            str(tmp_path / "report.html"),
        ]
        environ = {**os.environ, "HOME": str(tmp_path)}
        done = subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=100, check=True)
        return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]

    return render


def tags(document):
    return set(re.findall(r"<([a-z0-9]+)", document))


def test_the_policy_lets_the_page_be_as_it_is(data, rendered):
    """Its style has the hash that its policy allows; a browser says so when it has not."""
    document, console = rendered(write(data))

    assert [] == console
    assert 7 == document.count("<details")


def test_a_style_that_was_changed_is_refused(data, rendered):
    """So the test above would notice, and so would a reader of a page that somebody changed."""
    _, console = rendered(write(data).replace("</style>", " body { display: none }</style>"))

    assert 1 == len(console)
    assert "violates the following Content Security Policy directive" in console[0]


def test_hostile_texts_make_no_elements(data, hostile, rendered):
    """The browser's parser finds what it finds in the page of everybody, and nothing is asked for or run."""
    document, console = rendered(write(hostile))

    assert [] == console
    assert tags(rendered(write(data))[0]) == tags(document)
    assert {"script", "img"}.isdisjoint(tags(document))


def test_a_gang_needs_nothing_that_the_policy_refuses(data, gang, hostile_gang, rendered):
    """Its pictures are part of the page, and hostile names of peers make no elements."""
    document, console = rendered(write({**data, "gang": gang}))
    attacked, complaints = rendered(write({**data, "gang": hostile_gang}))

    assert ([], []) == (console, complaints)
    assert tags(document) == tags(attacked)
    assert {"svg", "pre"} <= tags(document)
    assert {"script", "img"}.isdisjoint(tags(attacked))
