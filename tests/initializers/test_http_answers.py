"""What headers and statuses say, and what may be shown of an address."""

import email.utils
import time

import pytest

from trainer_agent.initializers import TransientError
from trainer_agent.initializers.http import raise_transient, retry_after, shown


def http_date(seconds):
    return email.utils.formatdate(time.time() + seconds, usegmt=True)


@pytest.mark.parametrize(
    "text,seconds",
    [
        ("7", 7.0),
        (" 1.5 ", 1.5),
        ("0", 0.0),
        ("-3", 0.0),
        ("1e999", float("inf")),
        ("nan", 0.0),
        ("", None),
        ("soon", None),
        ("Thu, 99 Foo 2020 00:00:00 GMT", None),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
    ],
)
def test_retry_after(text, seconds):
    assert seconds == retry_after({"Retry-After": text})


def test_retry_after_as_a_date():
    assert retry_after({"Retry-After": http_date(60)}) == pytest.approx(60, abs=5)
    assert retry_after({}) is None


@pytest.mark.parametrize(
    "status,headers,detail,expected",
    [
        (503, {"Retry-After": "7"}, "SlowDown", ("https://h/x answers 503 (SlowDown)", True, 7.0)),
        (429, {}, "", ("https://h/x answers 429", True, None)),
        (500, {}, "", ("https://h/x answers 500", False, None)),
    ],
)
def test_a_status_that_may_pass(status, headers, detail, expected):
    with pytest.raises(TransientError) as caught:
        raise_transient("https://user:secret@h/x?X-Amz-Signature=secret", status, headers, detail=detail)

    error = caught.value
    assert expected == (error.message, error.busy, error.retry_after_s)
    assert ("source-unavailable", "the server is busy or broken; try again later") == (error.code, error.hint)


@pytest.mark.parametrize(
    "url,text",
    [
        ("https://h:1/a/b", "https://h:1/a/b"),
        ("https://user:password@h/a@b", "https://h/a@b"),
        ("https://us:er@na:me@h/a", "https://h/a"),
        ("https://h/a?X-Amz-Signature=s#token", "https://h/a"),
        ("https://h?X-Amz-Signature=s", "https://h"),
        ("https://h#user@/x", "https://h"),
        ("http://[::1", "http://[::1"),
        ("nonsense", "nonsense"),
    ],
)
def test_what_is_shown_holds_no_secret(url, text):
    assert text == shown(url)
