"""markup: what is text stays text, wherever it stands."""

from hypothesis import given
from hypothesis import strategies as st

from trainer_agent.formats.markup import Markup, element, join, only_ascii


def test_elements():
    """Children are escaped unless they are elements; attributes are, always."""
    inner = element("b", "<i> & \"'\n\x00")

    assert "<b>&lt;i&gt; &amp; &quot;&#x27;\n\\x00</b>" == inner
    assert f'<p class="a&quot;&gt;\\n" aria-label="1" open>{inner}</p>' == element(
        "p", inner, class_='a">\n', aria_label=1, open=True, hidden=False, title=None
    )
    assert '<meta charset="utf-8">' == element("meta", charset="utf-8")
    assert "<b></b>&lt;" == join(Markup("<b></b>"), None, "<")


def test_only_ascii():
    """Standard output may be of any encoding."""
    assert "&#252;&#128512;" == only_ascii("ü😀")


@given(st.text())
def test_no_text_ends_its_element(text):
    inside = element("p", text, title=text).removeprefix('<p title="').removesuffix("</p>")

    assert (0, 1, 1) == (inside.count("<"), inside.count(">"), inside.count('"'))
