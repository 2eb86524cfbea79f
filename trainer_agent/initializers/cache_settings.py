"""What a data cache is made from, out of Kubeflow's variables."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainer_agent.env import whole_number
from trainer_agent.errors import ConfigurationError, Finding

if TYPE_CHECKING:
    from collections.abc import Mapping

FLIGHT_PORT = 50051
# The longest name made from the job's is that of its Service, a DNS label (RFC 1035) of at most 63 characters.
LONGEST_JOB_NAME = 63 - len("-cache-service")
JOB_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
TABLE = re.compile(r"([^/\s?#]+)/([^/\s?#]+)")
# https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
QUANTITY = re.compile(r"(?=[0-9.]*[1-9])([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+|[numkMGTPE]|[KMGTPE]i)?")
ENDPOINT = re.compile(r"(?:grpc://)?([^\s/:@]+|\[[0-9a-fA-F:.]+\]):([0-9]{1,5})")
ENDPOINT_VARIABLE = "TRAINER_AGENT_INIT_CACHE_ENDPOINT"


@dataclass(frozen=True, slots=True)
class Readiness:
    """When a pod of the cache counts as ready, in seconds and failures."""

    initial_delay: int
    period: int
    timeout: int
    failure_threshold: int


@dataclass(frozen=True, slots=True)
class Settings:
    """
    A cache as its variables describe it.

    Args:
        size: pods: a head and its workers.
        iam_role: what EKS lets the pods be; empty elsewhere.
        endpoint: host and port of the head's Flight service.
    """

    schema: str
    table: str
    job: str
    image: str
    metadata_location: str
    iam_role: str
    size: int
    head_cpu: str
    head_memory: str
    worker_cpu: str
    worker_memory: str
    readiness: Readiness
    endpoint: tuple[str, int]

    @property
    def name(self) -> str:
        """What the cache's objects are called."""
        return f"{self.job}-cache"


class _Variables:
    """Reads variables and gathers everything that is wrong with them; what is wrong reads as empty or 0."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ
        self.findings: list[Finding] = []

    def refuse(self, name: str, value: str, wanted: str) -> None:
        shown = f"{name}={value!r}" if value else f"{name} is not set"
        self.findings.append(
            Finding(
                "cache-setting-invalid",
                f"{shown}, wanted {wanted}",
                hint=f"set {name} in the runtime's dataset-initializer container",
                evidence={"variable": name, "value": value, "wanted": wanted},
            )
        )

    def text(self, name: str, default: str = "", *, pattern: str | re.Pattern[str], wanted: str) -> str:
        value = self.environ.get(name, "").strip() or default
        if re.fullmatch(pattern, value):
            return value
        self.refuse(name, value, wanted)
        return ""

    def number(self, name: str, default: int, *, least: int, why: str = "") -> int:
        value = self.environ.get(name, "").strip() or str(default)
        number = whole_number(value)
        # Kubernetes keeps these in 32 bits.
        if number is not None and least <= number < 1 << 31:
            return number
        self.refuse(name, value, f"a whole number of at least {least}{why}")
        return 0

    def quantity(self, name: str, default: str) -> str:
        return self.text(name, default, pattern=QUANTITY, wanted="a Kubernetes quantity above 0, such as 500m or 2Gi")


def read_settings(rest: str, environ: Mapping[str, str]) -> Settings:
    """
    Return the cache that `cache://rest` and the variables describe.

    Raises:
        ConfigurationError: states everything that is wrong with them.
    """
    variables = _Variables(environ)
    found = TABLE.fullmatch(rest)
    if not found:
        variables.refuse("STORAGE_URI", f"cache://{rest}", "cache://schema/table")
    job = _job(variables)
    settings = Settings(
        schema=found[1] if found else "",
        table=found[2] if found else "",
        job=job,
        image=variables.text("CACHE_IMAGE", pattern=r"\S+", wanted="the image of the cache's head and workers"),
        metadata_location=variables.text(
            "METADATA_LOC", pattern=r"\S+", wanted="where the Iceberg table's metadata.json is"
        ),
        iam_role=variables.text("IAM_ROLE", pattern=r"\S*", wanted="the ARN of a role, or nothing"),
        size=variables.number("CLUSTER_SIZE", 3, least=2, why=": a head and its workers"),
        head_cpu=variables.quantity("HEAD_CPU", "1"),
        head_memory=variables.quantity("HEAD_MEM", "1Gi"),
        worker_cpu=variables.quantity("WORKER_CPU", "2"),
        worker_memory=variables.quantity("WORKER_MEM", "2Gi"),
        readiness=_readiness(variables),
        endpoint=_endpoint(variables, job),
    )
    if variables.findings:
        raise ConfigurationError(variables.findings)
    return settings


def _job(variables: _Variables) -> str:
    job = variables.text(
        "TRAIN_JOB_NAME", pattern=JOB_NAME, wanted="the TrainJob's name: a-z, 0-9 and -, a letter first"
    )
    if len(job) > LONGEST_JOB_NAME:
        variables.refuse("TRAIN_JOB_NAME", job, f"at most {LONGEST_JOB_NAME} characters: Services have 63")
    return job


def _readiness(variables: _Variables) -> Readiness:
    return Readiness(
        initial_delay=variables.number("READINESS_INITIAL_DELAY_SECONDS", 5, least=0),
        period=variables.number("READINESS_PERIOD_SECONDS", 10, least=1),
        timeout=variables.number("READINESS_TIMEOUT_SECONDS", 5, least=1),
        failure_threshold=variables.number("READINESS_FAILURE_THRESHOLD", 3, least=1),
    )


def _endpoint(variables: _Variables, job: str) -> tuple[str, int]:
    default = f"{job or 'job'}-cache-service:{FLIGHT_PORT}"
    value = variables.text(ENDPOINT_VARIABLE, default, pattern=ENDPOINT, wanted="grpc://host:port")
    found = ENDPOINT.fullmatch(value)
    return (found[1], int(found[2])) if found else ("", 0)
