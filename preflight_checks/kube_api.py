"""The Kubernetes API server: jobs that report progress, start cache servers or read secrets need it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from preflight_checks._kube import CA, TRY_S, version_url
from trainer_agent.check import Context, Outcome, Rule, check
from trainer_agent.errors import Action, Severity
from trainer_agent.host import HttpsError

if TYPE_CHECKING:
    from trainer_agent.host import Reply

TRIES = 3
PAUSE_S = 0.5

UNREACHABLE = Rule(
    "kube-api-unreachable",
    when="the API server gave no HTTP answer in 3 tries of 2 s; an error with --require-kube-api",
    hint="look for a NetworkPolicy that forbids egress from this namespace, and at the node's kube-proxy or CNI",
    severity=Severity.WARNING,
    action=Action.RETRY,
    source="KEP-3416; every HTTP status counts as an answer, 401 and 403 too",
)
UNTRUSTED = Rule(
    "kube-api-untrusted",
    when="the API server's certificate is not signed by the service account's ca.crt; an error with --require-kube-api",
    hint="compare this node's clock and its kube-root-ca.crt with another node's; a proxy may be answering instead",
    severity=Severity.WARNING,
    action=Action.RETRY,
    source="TLS verification as every in-cluster client does it",
)


@check("kube-api", rules=(UNREACHABLE, UNTRUSTED), timeout_s=TRIES * (TRY_S + PAUSE_S) + 2)
def kube_api(context: Context) -> Outcome:
    """Does the Kubernetes API server answer, when this is a pod?"""
    url = version_url(context)
    ca = CA if context.host.exists(CA) else None
    started = context.host.monotonic()
    try:
        reply = _ask(context, url, ca)
    except HttpsError as error:
        rule = UNTRUSTED if error.untrusted else UNREACHABLE
        severity = Severity.ERROR if context.options.require_kube_api else Severity.WARNING
        message = f"{error.message}, wanted an HTTP answer (any status) within {TRIES} tries of {TRY_S:g} s"
        if error.untrusted:
            message = f"{error.message}, wanted a certificate signed by {CA}"
        return Outcome("no answer", (replace(rule, severity=severity).found(message, url=url),))
    milliseconds = round((context.host.monotonic() - started) * 1000, 1)
    unverified = "" if ca else "; its certificate was not verified, as no service account is mounted"
    return Outcome(f"{url} answers {reply.status}{unverified}", (), {"status": reply.status, "answer_ms": milliseconds})


def _ask(context: Context, url: str, ca: str | None) -> Reply:
    for _ in range(TRIES - 1):
        try:
            return context.host.https_get(url, ca=ca, timeout_s=TRY_S)
        except HttpsError as error:
            if error.untrusted:
                raise
            context.host.sleep(PAUSE_S)
    return context.host.https_get(url, ca=ca, timeout_s=TRY_S)
