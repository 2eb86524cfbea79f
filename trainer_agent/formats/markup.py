"""Elements of HTML and XML, built so that text can never become markup."""

from __future__ import annotations

from html import escape

from trainer_agent.formats.reading import visible

VOID = {"meta"}


class Markup(str):
    """Text that is markup already; every other text is escaped."""

    __slots__ = ()


def element(tag: str, /, *children: str | None, **attributes: object) -> Markup:
    """
    Return one element.

    An attribute's trailing underscore is dropped and others become hyphens (`class_`, `aria_label`);
    True gives an attribute without a value, False and None give none.
    """
    shown = "".join(_attribute(n.rstrip("_").replace("_", "-"), value) for n, value in attributes.items())
    end = "" if tag in VOID else f"</{tag}>"
    return Markup(f"<{tag}{shown}>{join(*children)}{end}")


def join(*children: str | None) -> Markup:
    """Return the parts one after the other; None is none."""
    return Markup(
        "".join(c if isinstance(c, Markup) else escape(visible(c, keep="\n")) for c in children if c is not None)
    )


def only_ascii(document: str) -> str:
    """Return a document that every encoding of standard output can carry."""
    return document.encode("ascii", "xmlcharrefreplace").decode()


def _attribute(name: str, value: object) -> str:
    if value is None or value is False:
        return ""
    return f" {name}" if value is True else f' {name}="{escape(visible(value))}"'
