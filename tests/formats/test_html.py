"""html: one page that holds everything, asks nobody for anything, and can be read without seeing or clicking."""

import base64
import hashlib
import re
from html.parser import HTMLParser

import pytest

from trainer_agent.check import CheckResult, Status
from trainer_agent.errors import Action
from trainer_agent.formats.html import write
from trainer_agent.policy import Verdict
from trainer_agent.report import Report

VOID = {"meta"}


class Page(HTMLParser):
    """A page taken apart: its elements with their attributes, and its text; badly nested ones are refused."""

    def __init__(self, source):
        super().__init__()
        self.open, self.elements, self.words = [], [], []
        self.feed(source)
        self.close()
        assert [] == self.open
        self.text = " ".join("".join(self.words).split())

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self.words += [" "] * (tag == "div")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert tag == self.open.pop()
        self.words.append(" ")

    def handle_data(self, data):
        if self.open[-1:] != ["style"]:
            self.words.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture
def page(data):
    return Page(write(data))


def spaced(text):
    return " ".join(text.split())


def texts(data):
    """Return every text of a report that a reader must find."""
    for check in data["checks"]:
        yield from (check["name"], check["message"], *check["measurements"])
        for finding in check["findings"]:
            yield from (finding["code"], finding["message"], finding["hint"], *finding["evidence"])
    for suspect in data["suspects"]:
        yield from (suspect["kind"], suspect["id"], suspect["reason"])
    yield from (data["verdict"], data["action"], data["node"]["hostname"], data["started_at"], *data["versions"])


def test_everything_is_there(data, page):
    assert [] == [text for text in texts(data) if spaced(text) not in page.text]
    assert len(data["checks"]) == len(page.all("details"))


def test_verdict_culprit_and_what_to_do_stand_first(page):
    expected = (
        "✗ retry preflight Node 3 of 16, worker-3 · 2026-01-01T00:00:00.123+00:00, 6.5 s "
        "Do not train here now: the same pod again, or another node, may pass. Action: reschedule . "
        "Suspect: node worker-3 (node rank 3): GPU 5 has 3 uncorrectable memory errors since boot, wanted 0 "
        "Look at this first gpu-memory : GPU 5 has 3 uncorrectable memory errors since boot, wanted 0 "
        "drain node worker-3 and reset GPU 5: nvidia-smi --gpu-reset -i 5"
    )
    assert expected in page.text


def test_hundreds_of_suspects_are_counted(data):
    """A gang may have them; a node with all its devices has fewer than are shown."""
    data["suspects"] = [{**data["suspects"][0], "id": f"n{n}", "reason": "r"} for n in range(300)]

    text = Page(write(data)).text

    assert "Suspect: node n19 (node rank 3): r and 280 more suspects Look at this first" in text


def test_a_gang_stands_between_the_verdict_and_the_rest(data, gang):
    page = Page(write({**data, "gang": gang}))

    places = [page.text.index(words) for words in ("Look at this first", "Gang of 4", " GPUs ", "Checks: 1 fail")]
    assert sorted(places) == places
    assert ["h1", "h2", "h2", "h2", "h2"] == [tag for tag, _ in page.elements if tag in ("h1", "h2")]
    ids = [a["id"] for _, a in page.elements if "id" in a]
    assert len(set(ids)) == len(ids)


def test_the_grid_shows_which_gpu_and_which_check(page):
    """Each row starts with the GPU's names; each cell has a word, so that no colour has to be seen."""
    rows = re.findall(r"GPU (\d) (GPU-\S+) (\S+) ((?:(?:✓ pass|✗ fail|! warn|- skip|· not named) ?)+)", page.text)

    good = "✓ pass ✓ pass ✓ pass - skip"
    bad, slow = "✓ pass ✗ fail ✓ pass - skip", "✓ pass ✓ pass ! warn - skip"
    assert [good, good, slow, good, good, bad, good, good] == [cells.strip() for *_, cells in rows]
    assert [str(n) for n in range(8)] == [index for index, *_ in rows]
    assert "0000:37:00.0" == rows[2][2]
    heads = [a["scope"] for a in page.all("th") if "scope" in a]
    assert {"row", "col"} == set(heads)
    assert len(page.all("th")) == len(heads)


def test_cells_of_the_grid_lead_to_their_checks(data, page):
    """Eight rows of the four checks that look at GPUs, by their places in the report."""
    names = [data["checks"][int(a["href"].removeprefix("#check-"))]["name"] for a in page.all("a")]

    assert ["gpu-memory", *["gpu-count", "gpu-memory", "gpu-link", "gpu-clocks"] * 8] == names


def test_evidence_stands_under_its_finding(page):
    assert "Evidence gpu 5 uuid GPU-00000005-aaaa-bbbb-cccc-dddddddddddd errors 3" in page.text


def test_a_node_without_gpus_has_a_list_only(data):
    data["checks"] = data["checks"][:2]

    page = Page(write(data))

    assert (2, False) == (len(page.all("details")), "GPUs" in page.text)


def test_bars_say_in_words_what_they_show(page):
    assert "GPU 2 host_gbps 21.4 of 48 expected 45 %" in page.text
    assert "GPU 7 host_gbps 53.875 of 48 expected 112 %" in page.text
    assert {"true"} == {svg["aria-hidden"] for svg in page.all("svg")}
    assert [] == [r for r in page.all("rect") if not 0 <= float(r["width"]) <= 100]


def test_bars_that_fall_short_come_first(page):
    """A node of eight has two dozen of them."""
    assert "Measured against expected GPU 2 host_gbps 21.4 of 48 expected 45 % GPU 0 host_gbps 53" in page.text


def test_measurements_of_many_gpus_are_a_table(data):
    """A column for each name; what one of them lacks stays empty; what is deeper stays JSON."""
    data["checks"] = data["checks"][:1]
    data["checks"][0]["measurements"] = {"gpus": [{"index": 0, "links": 18}, {"index": 1, "fabric": {"mask": 0}}]}

    source = write(data)

    assert "gpus index links fabric 0 18 1 {&quot;mask&quot;: 0}".replace("&quot;", '"') in Page(source).text
    assert "<td></td><td><code>{&quot;mask&quot;: 0}</code></td>" in source


def test_faults_are_open_and_the_rest_is_a_key_away(data, page):
    """`details` needs no script; it opens with the keyboard. Links lead to places that exist, each name used once."""
    order = [("fail", True), ("error", True), ("warn", True), ("warn", True), ("pass", False), ("pass", False)]
    assert [*order, ("skip", False)] == [(d["class"].split()[1], "open" in d) for d in page.all("details")]
    ids = [a["id"] for _, a in page.elements if "id" in a]
    assert len(set(ids)) == len(ids)
    assert {a["href"] for a in page.all("a")} <= {f"#{name}" for name in ids}
    assert ["h1", "h2", "h2", "h2"] == [tag for tag, _ in page.elements if tag in ("h1", "h2")]
    assert [{"lang": "en"}] == page.all("html")


def test_links_lead_to_the_check_that_they_name(data):
    """Ids are places in the report, as names may hold anything."""
    source = write(data)

    for number, check in enumerate(data["checks"]):
        (inside,) = re.findall(f'id="check-{number}"[^>]*><summary>.*?<h3>(.*?)</h3>', source)
        assert check["name"] == inside


def test_no_request_can_leave_the_page(data, gang, hostile, hostile_gang):
    """Nothing refers to elsewhere, and the policy would refuse it: only the one style, by its hash."""
    for source in (
        write(data),
        write(hostile),
        write({**data, "gang": gang}),
        write({**hostile, "gang": hostile_gang}),
    ):
        page = Page(source)
        (policy,) = [m["content"] for m in page.all("meta") if m.get("http-equiv") == "Content-Security-Policy"]
        (style,) = re.findall(r"<style>(.*?)</style>", source, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
        assert f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'" == policy
        assert [] == re.findall(r"url\(|@import|//", style)
        names = {name for _, attributes in page.elements for name in attributes}
        assert {"src", "srcset", "data", "action", "style", "background"}.isdisjoint(names)
        assert [] == [name for name in names if name.startswith("on")]


def test_hostile_texts_stay_texts(data, hostile):
    """The page of the attacker has the elements of the page of everybody, and shows what was tried."""
    shown = r""""'</script><script>alert(1)</script><img src=//evil.example onerror=x>&amp;]]>\x00\x1b[2J\u202e\ud800"""

    source = write(hostile)

    assert shown in Page(source).text
    assert re.fullmatch(r"[\n\x20-\x7e]*", source)
    assert {tag for tag, _ in Page(write(data)).elements} == {tag for tag, _ in Page(source).elements}
    assert 7 == len(Page(source).all("details"))


def test_a_page_without_anything_wrong():
    """No cause, no suspects, no grid, no measurements."""
    checks = [CheckResult("clock", Status.PASS, "0.1 ms off")]
    report = Report(Verdict.PASS, Action.CONTINUE, "a", 0, 1, [], checks, "2026", 0.04)

    text = Page(write(report.as_dict())).text

    assert "✓ pass preflight Node 0 of 1, a · 2026, 0.0 s Go: nothing stands against training on this node." in text
    assert "Checks: 1 pass ✓ pass clock 0.1 ms off 0.00 s Nothing found, nothing measured." in text
    assert "Look at this first" not in text


def test_a_finding_that_names_no_gpu_has_a_row_of_its_own(data):
    """It may be any of them, so none is said to be well."""
    data["checks"][3]["findings"][0]["evidence"] = {}

    text = Page(write(data)).text

    assert "✓ pass · not named ✓ pass - skip" in text
    assert "no GPU named ✗ fail" in text
