"""Where the Kubernetes API server is, as a pod is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainer_agent.check import Skip

if TYPE_CHECKING:
    from trainer_agent.check import Context

CA = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"
TRY_S = 2.0


def version_url(context: Context) -> str:
    """Return the address of the API server's version, which needs no permission."""
    host = context.environ.get("KUBERNETES_SERVICE_HOST", "").strip()
    if not host:
        raise Skip("KUBERNETES_SERVICE_HOST is not set: this is no pod of a cluster")
    port = context.environ.get("KUBERNETES_SERVICE_PORT", "").strip() or "443"
    return f"https://[{host}]:{port}/version" if ":" in host else f"https://{host}:{port}/version"
