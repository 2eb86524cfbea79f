"""Who am I, how many are we, where is rank 0: read from the environment that the controller injected."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trainer_agent.env import Reader, Setting, whole_number
from trainer_agent.errors import Finding, Severity

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_PORT = 29500  # torchrun's default, and what Kubeflow's torch plugin injects
MAX_PORT = 65535
# Hostname of an indexed pod of a TrainJob: <job>-node-0-<index>; a pod's own name adds five random characters.
POD_NAME = re.compile(r"^(?P<job>.+)-node-[0-9]+-(?P<index>[0-9]{1,9})(-[a-z0-9]{5})?$")
# What the jax runtime of Trainer injects; JAX has many more variables, which users set in jobs of any kind.
JAX_NAMES = ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "JAX_COORDINATOR_ADDRESS")
# What the xgboost runtime of Trainer injects, without DMLC_NUM_WORKER, which jobs with parameter servers have too.
DMLC_NAMES = ("DMLC_TRACKER_URI", "DMLC_TRACKER_PORT", "DMLC_TASK_ID")
# Which variables say how many there are and where rank 0 listens; torch's own are the default.
COUNTS = {"JAX": "JAX_NUM_PROCESSES", "DMLC": "DMLC_NUM_WORKER"}
MASTERS = {"jax": "JAX_COORDINATOR_ADDRESS", "xgboost": "DMLC_TRACKER_URI"}
PORTS = {"PET_MASTER_ADDR": "PET_MASTER_PORT", "DMLC_TRACKER_URI": "DMLC_TRACKER_PORT"}
# The variables that torchrun 2.13 reads: who the nodes are, its other options with a value, and those without one.
# Others that begin so are nobody's word for it: a Service of Kubernetes named `pet` gives all pods PET_SERVICE_HOST.
PET_TOPOLOGY = (
    "PET_NNODES",
    "PET_NPROC_PER_NODE",
    "PET_NODE_RANK",
    "PET_MASTER_ADDR",
    "PET_MASTER_PORT",
    "PET_RDZV_BACKEND",
    "PET_RDZV_ENDPOINT",
    "PET_RDZV_ID",
    "PET_RDZV_CONF",
    "PET_STANDALONE",
)
PET_VALUES = (
    "PET_MAX_RESTARTS",
    "PET_MONITOR_INTERVAL",
    "PET_SHUTDOWN_TIMEOUT",
    "PET_START_METHOD",
    "PET_EVENT_LOG_HANDLER",
    "PET_ROLE",
    "PET_LOG_DIR",
    "PET_REDIRECTS",
    "PET_TEE",
    "PET_LOCAL_RANKS_FILTER",
    "PET_DUPLICATE_STDOUT_FILTERS",
    "PET_DUPLICATE_STDERR_FILTERS",
    "PET_LOCAL_ADDR",
    "PET_SIGNALS_TO_HANDLE",
)
PET_FLAGS = ("PET_MODULE", "PET_NO_PYTHON", "PET_RUN_PATH", "PET_VIRTUAL_LOCAL_RANK")
PET_NAMES = frozenset((*PET_TOPOLOGY, *PET_VALUES, *PET_FLAGS))
# What Trainer's MPI plugin sets in the launcher, and mpi-operator in all pods.
MPI_NAMES = (
    "OMPI_MCA_orte_default_hostfile",
    "PRTE_MCA_prte_default_hostfile",
    "I_MPI_HYDRA_HOST_FILE",
    "HYDRA_HOST_FILE",
    "K_MPI_JOB_ROLE",
)
# A PlainML runtime injects nothing: who chooses this launcher wants the command on each pod as it is.
LAUNCHER = "TRAINER_AGENT_LAUNCH_LAUNCHER"
NPROC_WORDS = ("auto", "cpu", "gpu", "xpu")  # the words that torchrun knows


@dataclass(frozen=True)
class Topology:
    """
    The shape of a job as one node sees it.

    Args:
        runtime: `torch`, `jax`, `xgboost`, `mpi`, or `plain` when nothing was injected.
        min_nodes, max_nodes: equal unless the job is elastic (`PET_NNODES=1:4`); for XGBoost the number of workers,
            as nothing says how many nodes there are when each has several GPUs.
        node_rank: this node's rank, 0..max_nodes-1.
        nproc: processes on this node as asked for: a number, one of `NPROC_WORDS`, or None when nobody asked.
        master_addr, master_port: where rank 0 listens; the address is empty on a single node.
        rdzv_backend: `static` or what `PET_RDZV_BACKEND` names.
        settings: every value that was read, with its origin.
        findings: contradictions; `ERROR` ones make the job impossible.
    """

    runtime: str
    min_nodes: int
    max_nodes: int
    node_rank: int
    nproc: int | str | None
    master_addr: str
    master_port: int
    rdzv_backend: str
    hostname: str
    settings: tuple[Setting, ...] = ()
    findings: tuple[Finding, ...] = ()

    @property
    def elastic(self) -> bool:
        """Whether the number of nodes may change while the job runs."""
        return self.min_nodes != self.max_nodes

    @property
    def single_node(self) -> bool:
        """Whether no other node takes part."""
        return self.max_nodes == 1

    @property
    def master_variable(self) -> str:
        """The variable that says where rank 0 listens."""
        if self.runtime in MASTERS:
            return MASTERS[self.runtime]
        endpoint = any(s.name == "PET_RDZV_ENDPOINT" and s.value for s in self.settings)
        return "PET_RDZV_ENDPOINT" if endpoint else "PET_MASTER_ADDR"

    @property
    def port_variable(self) -> str:
        """The variable that holds rank 0's port."""
        return PORTS.get(self.master_variable, self.master_variable)

    @property
    def rank_known(self) -> bool:
        """Whether somebody has said this node's rank; c10d gives out ranks itself, so there 0 may be all nodes'."""
        guessed = any(s.name == "PET_NODE_RANK" and s.origin == "default" for s in self.settings)
        return self.rdzv_backend == "static" or not guessed

    @property
    def errors(self) -> tuple[Finding, ...]:
        """The findings that make the job impossible."""
        return tuple(f for f in self.findings if f.severity is Severity.ERROR)


def read_topology(environ: Mapping[str, str], *, hostname: str) -> Topology:
    """Return the topology that `environ` describes; never raises, contradictions become findings."""
    reader = _TopologyReader(environ, environ.get("HOSTNAME", "").strip() or hostname)
    if any(name in environ for name in JAX_NAMES) and "PET_NNODES" not in environ:
        return reader.jax()
    if any(name in environ for name in DMLC_NAMES) and "PET_NNODES" not in environ:
        return reader.dmlc()
    if any(environ.get(name) for name in MPI_NAMES) and not PET_NAMES & environ.keys():
        return reader.mpi()
    return reader.torch()


class _TopologyReader:
    """Collect settings and findings while the values are parsed."""

    def __init__(self, environ: Mapping[str, str], hostname: str) -> None:
        self.environ = environ
        self.hostname = hostname
        self.reader = Reader(environ)
        self.findings: list[Finding] = []
        self.pod = POD_NAME.match(hostname)

    def torch(self) -> Topology:
        injected = bool(PET_NAMES & self.environ.keys())
        min_nodes, max_nodes = self._nnodes("PET_NNODES")
        nproc = self._nproc()
        name, rank = self._torch_rank()
        master, port = self._master(max_nodes)
        backend = self._backend(elastic=min_nodes != max_nodes)
        if not injected:
            self._missing()
        self._check_rank(name, rank, max_nodes)
        if injected:
            self._compare_with_pod(rank)
        return self._topology(
            "torch" if injected else "plain",
            (min_nodes, max_nodes),
            rank,
            nproc=nproc,
            master=master,
            port=port,
            backend=backend,
        )

    def jax(self) -> Topology:
        nodes = self._integer("JAX_NUM_PROCESSES", default=1, low=1, effect="number of nodes, one process each")
        rank = self._integer("JAX_PROCESS_ID", default=0, low=0, effect="this node's rank")
        address = self.reader.get("JAX_COORDINATOR_ADDRESS", effect="where process 0 listens") or ""
        host, _, port_text = address.rpartition(":")
        host = host.strip("[]")
        port = whole_number(port_text) or 0
        if nodes > 1 and not (host and 0 < port <= MAX_PORT):
            self._error(
                "master-addr-missing",
                f"JAX_COORDINATOR_ADDRESS={address!r} is not host:port, and JAX_NUM_PROCESSES={nodes}",
                "set JAX_COORDINATOR_ADDRESS to the first pod's name and a port, as the jax runtime of Trainer does",
            )
        self._check_rank("JAX_PROCESS_ID", rank, nodes)
        return self._topology("jax", (nodes, nodes), rank, nproc=1, master=host, port=port, backend="jax")

    def dmlc(self) -> Topology:
        effect = "workers of the whole job: one for each node, or for each GPU"
        workers = self._integer("DMLC_NUM_WORKER", default=1, low=1, effect=effect)
        rank = self._integer("DMLC_TASK_ID", default=0, low=0, effect="this node's rank")
        address = self.reader.get("DMLC_TRACKER_URI", effect="where worker 0 runs the tracker") or ""
        name, effect = "DMLC_TRACKER_PORT", "port of the tracker"
        port = self._integer(name, default=DEFAULT_PORT, low=1, high=MAX_PORT, effect=effect)
        address = address.strip("[]")
        if workers > 1 and not address:
            self._error(
                "master-addr-missing",
                f"DMLC_TRACKER_URI is empty although DMLC_NUM_WORKER={workers}",
                "set it to the name of the pod with task 0, as the xgboost runtime of Trainer does",
            )
        self._check_rank("DMLC_TASK_ID", rank, workers)
        nodes = (workers, workers)
        return self._topology("xgboost", nodes, rank, nproc=None, master=address, port=port, backend="static")

    def mpi(self) -> Topology:
        """Of an MPI job the environment says only that it is one; the launcher's hostfile says the rest."""
        return self._topology("mpi", (1, 1), 0, nproc=None, master="", port=0, backend="mpi")

    def _topology(
        self,
        runtime: str,
        nodes: tuple[int, int],
        rank: int,
        *,
        nproc: int | str | None,
        master: str,
        port: int,
        backend: str,
    ) -> Topology:
        return Topology(
            runtime=runtime,
            min_nodes=nodes[0],
            max_nodes=nodes[1],
            node_rank=rank,
            nproc=nproc,
            master_addr=master,
            master_port=port,
            rdzv_backend=backend,
            hostname=self.hostname,
            settings=tuple(self.reader.settings),
            findings=tuple(self.findings),
        )

    def _error(self, code: str, message: str, hint: str) -> None:
        self.findings.append(Finding(code, message, hint=hint))

    def _warn(self, code: str, message: str, hint: str) -> None:
        self.findings.append(Finding(code, message, Severity.WARNING, hint))

    def _integer(self, name: str, *, default: int, low: int, high: int | None = None, effect: str) -> int:
        text = self.reader.get(name, default=str(default), effect=effect) or ""
        digits = whole_number(text.removeprefix("-"))
        if digits is None:
            self._error(
                "not-an-integer", f"{name}={text!r} is not a whole number", f"set {name} to a number such as {default}"
            )
            return default
        value = -digits if text.startswith("-") else digits
        if value < low or (high is not None and value > high):
            wanted = f"{low} or more" if high is None else f"{low}..{high}"
            self._error("out-of-range", f"{name}={value} is outside {wanted}", f"set {name} to a number in {wanted}")
            return default
        return value

    def _nnodes(self, name: str) -> tuple[int, int]:
        text = self.reader.get(name, default="1", effect="number of nodes (MIN:MAX when elastic)") or ""
        first, colon, last = text.partition(":")
        low = whole_number(first) or 0
        high = (whole_number(last) or 0) if colon else low
        if not 1 <= low <= high:
            self._error(
                "nnodes-invalid",
                f"{name}={text!r} is neither a number of nodes (1 or more) nor a range MIN:MAX",
                f"set {name} to a number such as 2, or to a range such as 1:4 for an elastic job",
            )
            return 1, 1
        return low, high

    def _nproc(self) -> int | str | None:
        name = "PET_NPROC_PER_NODE"
        text = self.reader.get(name, effect="processes asked for on this node")
        if text is None:
            return None
        if text in NPROC_WORDS:
            return text
        if number := whole_number(text):
            return number
        self._error(
            "nproc-invalid",
            f"{name}={text!r} is neither auto, cpu, gpu nor a number of 1 or more",
            "set spec.trainer.numProcPerNode of the TrainJob to the number of GPUs in a pod, or leave it out",
        )
        return None

    def _torch_rank(self) -> tuple[str, int]:
        """Return the rank, and before it where it was read."""
        name, effect = "PET_NODE_RANK", "this node's rank"
        if name in self.environ:
            return name, self._integer(name, default=0, low=0, effect=effect)
        if "JOB_COMPLETION_INDEX" in self.environ:
            because = f"{effect}, as {name} is not set"
            return "JOB_COMPLETION_INDEX", self._integer("JOB_COMPLETION_INDEX", default=0, low=0, effect=because)
        if self.pod:
            self.reader.note(name, self.pod["index"], origin=f"pod name {self.hostname}", effect=effect)
            return f"{name} (from the pod name {self.hostname})", int(self.pod["index"])
        self.reader.note(name, "0", origin="default", effect=effect)
        return name, 0

    def _master(self, max_nodes: int) -> tuple[str, int]:
        address = self.reader.get("PET_MASTER_ADDR", effect="where rank 0 listens") or ""
        port = self._integer(
            "PET_MASTER_PORT",
            default=DEFAULT_PORT,
            low=1,
            high=MAX_PORT,
            effect="port of the rendezvous and of MASTER_PORT",
        )
        endpoint = self.reader.get("PET_RDZV_ENDPOINT", effect="overrides address and port of the rendezvous") or ""
        if endpoint:
            return self._endpoint(endpoint, port)
        address = address.strip("[]")
        if max_nodes > 1 and not address:
            self._error(
                "master-addr-missing",
                f"PET_MASTER_ADDR is empty although the job has {max_nodes} nodes",
                "set it to the name of the pod with rank 0, such as <job>-node-0-0.<job>; "
                "Trainer injects it when the TrainJob has a spec.trainer (an empty one is enough)",
            )
        return address, port

    def _endpoint(self, endpoint: str, port: int) -> tuple[str, int]:
        host, colon, port_text = endpoint.rpartition(":")
        if not colon or endpoint.endswith("]") or (":" in host and not host.startswith("[")):  # IPv6 without a port
            host, port_text = endpoint, str(port)
        number = whole_number(port_text) or 0
        if not host.strip("[]") or not 0 < number <= MAX_PORT:
            self._error(
                "endpoint-invalid",
                f"PET_RDZV_ENDPOINT={endpoint!r} has no {'valid port' if host.strip('[]') else 'host'}",
                f"write it as host:port, such as {host or '<job>-node-0-0.<job>'}:{DEFAULT_PORT}",
            )
            return host.strip("[]"), port
        return host.strip("[]"), number

    def _backend(self, *, elastic: bool) -> str:
        # A static rendezvous waits for MAX nodes and fails when fewer come, so an elastic job needs c10d.
        default = "c10d" if elastic else "static"
        backend = (
            self.reader.get("PET_RDZV_BACKEND", default=default, effect="how the nodes find each other") or default
        )
        if elastic and backend == "static":
            self._error(
                "elastic-needs-c10d",
                "PET_RDZV_BACKEND=static cannot serve an elastic job: it waits for the largest number of nodes",
                "set PET_RDZV_BACKEND=c10d, or leave it unset",
            )
        return backend

    def _check_rank(self, name: str, rank: int, max_nodes: int) -> None:
        if rank >= max_nodes and not any(f.code == "nnodes-invalid" for f in self.findings):
            self._rank_outside(name, rank, max_nodes)

    def _rank_outside(self, name: str, rank: int, max_nodes: int) -> None:
        if not {*PET_NAMES, *JAX_NAMES, *DMLC_NAMES} & self.environ.keys():
            return  # `pet-missing` says it better
        count = COUNTS.get(name.partition("_")[0], "PET_NNODES")
        wanted = f"0..{max_nodes - 1}" if max_nodes > 1 else "0"
        self._error(
            "rank-outside-nnodes",
            f"{name}={rank} is outside {wanted} ({count}={max_nodes})",
            f"set {count} to the number of pods, or {name} to one of {wanted}",
        )

    def _missing(self) -> None:
        """Say that nothing was injected although this is a pod of a TrainJob."""
        index = self.environ.get("JOB_COMPLETION_INDEX", "").strip() or (self.pod["index"] if self.pod else "")
        if not self.pod and not index:
            return
        message = f"no PET_* variable is set although this pod ({self.hostname}) has index {index} in its job"
        hint = (
            "give the TrainJob a spec.trainer (an empty one is enough); for an init container, "
            "list it in mlPolicy.torch.envInjection of the runtime; where the runtime is PlainML, "
            f"say that each pod runs the command by itself: {LAUNCHER}=python, or launch --launcher python"
        )
        if self.environ.get(LAUNCHER, "").strip() == "python":
            self._warn("pet-missing", f"{message}; the command runs by itself here, as --launcher python says", hint)
        elif whole_number(index):
            self._error("pet-missing", message, hint)
        else:
            self._warn("pet-missing", f"{message}; taken for a job of one node", hint)

    def _compare_with_pod(self, rank: int) -> None:
        if self.pod and "PET_NODE_RANK" in self.environ and int(self.pod["index"]) != rank:
            self._warn(
                "rank-differs-from-pod",
                f"PET_NODE_RANK={rank}, but this pod is {self.hostname}",
                "two pods with one rank cannot rendezvous: make sure that another pod does not have this rank too",
            )
