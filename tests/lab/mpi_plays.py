"""How MPI jobs begin, by plain mpirun and by the agent: one function for each play, with what the agent must do."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mpi_programs import HOSTFILE
from mpilab import MpiJob, hosts_of, make_key, ranks, script
from podlab import LAUNCHER

if TYPE_CHECKING:
    from collections.abc import Callable

    from mpi_programs import Implementation
    from podlab import Container, Lab

LATE_S = 5.0
WAITS_S = 5  # the agent's --rendezvous-timeout where somebody never comes
LIMIT_S = {"plain": 20.0, "agent": 200.0}
RUNS_S = 90.0
THREE = ["job1-node-0-0", "job1-node-0-1", "job1-node-0-2"]
FOUR = sorted([*THREE, LAUNCHER])
HANGS = -1
FAN_OUT = ("OMPI_MCA_routed_radix", "PRTE_MCA_rml_base_radix", "I_MPI_HYDRA_BRANCH_COUNT")  # of versions 4 and 5
OF_KUBERNETES = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_PORT": "tcp://10.96.0.1:443"}


@dataclass
class Play:
    """
    One job and what is done to it.

    Args:
        how: `plain` or `agent`, who starts the job.
        worker: `plain` or `agent`, who runs sshd.
        problems: what the agent should have done and did not.
        story: what the launcher said.
    """

    lab: Lab
    implementation: Implementation
    how: str
    worker: str
    problems: list[str] = field(default_factory=list)
    began: float = 0.0
    story: str = ""

    def job(self, **settings: Any) -> MpiJob:
        """Return the job; for plain mpirun with a key that ssh accepts and, for hydra, mpi-operator's names."""
        if self.how == "plain":
            settings = {"key_mode": 0o600, "searches": self.implementation.kind != "openmpi", **settings}
        return MpiJob(self.lab, self.implementation, **settings)

    def started(self, job: MpiJob, *command: str, options: tuple[str, ...] = (), env: Any = None) -> Container:
        """Start a command on all ranks, and the clock."""
        self.began = time.monotonic()
        if self.how == "plain":
            return job.sdk(*command, env=env)
        return job.launch(*options, "--", *command, env=env)

    def end(self, container: Container, *, since: float = 0.0) -> tuple[int, float]:
        """Return its exit code, or `HANGS`, and the seconds since the start or another moment."""
        try:
            code = container.wait(within=LIMIT_S[self.how])
        except AssertionError:
            code = HANGS
        seconds = time.monotonic() - (since or self.began)
        self.story = f"{container.story()}\n--- termination message\n{told(container)}"
        return code, seconds

    def wants(self, holds: object, problem: str) -> None:
        """Note a problem unless something holds."""
        if not holds:
            self.problems.append(problem)

    def wants_code(self, code: int, *wanted: int) -> None:
        """Note a problem unless the exit code is one of these."""
        self.wants(code in wanted, f"exit {code}, not {' or '.join(map(str, wanted))}")

    def ran(self, container: Container, *, hosts: list[str], size: int) -> str:
        """Judge a job of `mpi_who.py` that should have run on these hosts; return the cell."""
        code, seconds = self.end(container)
        found = ranks(container)
        self.wants_code(code, 0)
        self.wants(sorted(hosts_of(found)) == sorted(hosts), f"ran on {hosts_of(found)}")
        self.wants([each["mpi_rank"] for each in found] == list(range(size)), f"{len(found)} ranks, not {size}")
        self.wants({each["size"] for each in found} == {size}, f"sizes { ({each['size'] for each in found}) }")
        return f"{place(found)}, {ending(code, seconds)}"

    def refused(self, container: Container, *codes: int, names: str) -> str:
        """Judge a job that should not have started, with a message that names somebody; return the cell."""
        code, seconds = self.end(container)
        self.wants_code(code, *codes)
        if self.how == "agent":
            self.wants(names in told(container), f"{names!r} is not in the termination message: {told(container)}")
        return ending(code, seconds)


def place(found: list[dict[str, Any]]) -> str:
    """Return where ranks ran, in words."""
    hosts = hosts_of(found)
    if hosts == [LAUNCHER]:
        return "launcher only"
    return f"{len(found)} ranks on {len(hosts)} hosts" if found else "no rank"


def ending(code: int, seconds: float) -> str:
    """Return how it ended, in words."""
    return f"hangs (given up after {seconds:.0f} s)" if code == HANGS else f"exit {code} ({seconds:.1f} s)"


def told(container: Container) -> str:
    """Return the termination message as it is."""
    return (container.directory / "kubelet-file").read_text()


def who(play: Play, job: MpiJob, *, hosts: list[str], options: tuple[str, ...] = ()) -> str:
    """Ask all ranks who they are."""
    return play.ran(play.started(job, *script("who"), options=options), hosts=hosts, size=len(hosts) * job.slots)


def ready(play: Play, **settings: Any) -> MpiJob:
    """Return a job whose names are published and whose workers listen."""
    job = play.job(**settings)
    play.lab.publish()
    job.workers_ready(play.worker)
    return job


def three_workers(play: Play) -> str:
    """`mpirun COMMAND`, trusting in the injected variables."""
    job = ready(play)
    play.began = time.monotonic()
    container = (job.plain if play.how == "plain" else job.launch)(*script("who"))
    return play.ran(container, hosts=THREE, size=6)


def many_hosts(play: Play) -> str:
    """More hosts than the launcher calls by itself (64 or 128): daemons of workers then call others, here with two."""
    job = ready(play)
    container = play.started(job, *script("who"), env=dict.fromkeys(FAN_OUT, "1"))
    return play.ran(container, hosts=THREE, size=6)


def own_words(play: Play) -> str:
    """Open MPI is told in other ways, too, what ranks get and where they run."""
    job = ready(play)
    words = ("--map-by", "slot:PE=1") if job.implementation.kind == "openmpi" else ()
    env = {"OMPI_MCA_mca_base_env_list": "MINE=1;HOME"}
    play.began = time.monotonic()
    if play.how == "plain":
        container = job.sdk(*words, *script("who"), env=env)
    else:
        container = job.launch("mpirun", *words, *script("who"), env=env)
    return play.ran(container, hosts=THREE, size=6)


def sdk(play: Play) -> str:
    """What Kubeflow's SDK sends: `mpirun --hostfile /etc/mpi/hostfile bash -c …`."""
    job = ready(play)
    line = ("mpirun", "--hostfile", HOSTFILE, "bash", "-c", "exec " + " ".join(script("who")))
    play.began = time.monotonic()
    container = job.sdk(*line[3:]) if play.how == "plain" else job.launch(*line)
    return play.ran(container, hosts=THREE, size=6)


def all_reduce(play: Play) -> str:
    """The ranks add up by MPI itself."""
    job = ready(play)
    container = play.started(job, *script("allreduce", job.implementation.kind, job.implementation.loadable))
    cell = play.ran(container, hosts=THREE, size=6)
    sums = {each["sum"] for each in ranks(container)}
    play.wants(sums == {21}, f"sums {sums}")
    return cell


def launcher_takes_part(play: Play, *, published: bool = True) -> str:
    """The launcher is in the hostfile too, and has no sshd."""
    job = play.job()
    play.lab.publish(*(play.lab.pods.values() if published else job.workers))
    job.furnish(job.launcher, hostfile=job.hostfile(launcher=True))
    job.workers_ready(play.worker)
    return who(play, job, hosts=FOUR)


def bare_names_unknown(play: Play) -> str:
    """No pod's name resolves without its subdomain, as under Trainer."""
    return who(play, ready(play, searches=False), hosts=THREE)


def name_late(play: Play) -> str:
    """One worker's name is published late."""
    job = play.job()
    *early, late = job.workers
    play.lab.publish(*early, job.launcher)
    job.workers_ready(play.worker)
    container = play.started(job, *script("who"))
    container.outlives(LATE_S)
    play.lab.publish(late)
    return play.ran(container, hosts=THREE, size=6)


def sshd_late(play: Play) -> str:
    """One worker's sshd starts late."""
    job = play.job()
    play.lab.publish()
    *early, late = job.workers
    for pod in early:
        job.sshd(pod, play.worker)
    container = play.started(job, *script("who"))
    container.outlives(LATE_S)
    job.sshd(late, play.worker)
    return play.ran(container, hosts=THREE, size=6)


def sshd_never(play: Play) -> str:
    """One worker's sshd never starts."""
    job = play.job()
    play.lab.publish()
    *others, missing = job.workers
    for pod in others:
        job.sshd(pod, play.worker)
    container = play.started(job, *script("who"), options=("--rendezvous-timeout", str(WAITS_S)))
    cell = play.refused(container, 20, names=missing.name)
    play.wants(time.monotonic() - play.began < WAITS_S + 20, f"not within {WAITS_S + 20} s")
    return cell


def key_of_trainer(play: Play) -> str:
    """The key is mounted 0640, as Trainer does it, and everything runs as root."""
    return who(play, ready(play, key_mode=0o640), hosts=THREE)


def host_keys_of_the_image(play: Play) -> str:
    """Workers run sshd as today, with host keys that nobody knows."""
    job = play.job()
    job.host_key = make_key(job.files("image"))
    play.worker = "plain"
    play.lab.publish()
    job.workers_ready(play.worker)
    return who(play, job, hosts=THREE)


def wrong_key(play: Play) -> str:
    """The launcher has another key than the workers."""
    job = play.job()
    job.furnish(job.launcher, key=make_key(job.files("other-key")))
    play.lab.publish()
    job.workers_ready(play.worker)
    options = ("--rendezvous-timeout", str(WAITS_S))
    return play.refused(play.started(job, *script("who"), options=options), 20, 30, names="job1-node-0-")


def more_slots_than_cores(play: Play) -> str:
    """Four ranks on each host of two cores."""
    return who(play, ready(play, slots=4), hosts=THREE)


def uneven_slots(play: Play) -> str:
    """One rank on the first host, four on the second, three on the third."""
    slots = dict(zip(play.job().hosts, (1, 4, 3), strict=True))
    _, container = written(play, lambda job: job.implementation.hostfile(slots))
    cell = play.ran(container, hosts=THREE, size=8)
    counts = [sum(each["host"] == host for each in ranks(container)) for host in THREE]
    play.wants(counts == [1, 4, 3], f"{counts} ranks on the hosts, not [1, 4, 3]")
    return cell if counts == [1, 4, 3] else f"{cell}, {counts} instead of [1, 4, 3]"


def environment(play: Play) -> str:
    """Settings of libraries reach all ranks, what belongs to the launcher's pod does not."""
    job = ready(play)
    env = {"NCCL_DEBUG": "INFO", **OF_KUBERNETES}
    container = play.started(job, *script("who", "HOSTNAME", *env), env=env)
    cell = play.ran(container, hosts=THREE, size=6)
    found = ranks(container)
    debug = sum(each["env"]["NCCL_DEBUG"] == "INFO" for each in found)
    foreign = sorted({name for each in found for name in leaked(each)})
    play.wants(debug == 6, f"NCCL_DEBUG on {debug} of 6 ranks")
    play.wants(not foreign, f"ranks have the launcher's {foreign}")
    extra = f"; the launcher's {', '.join(foreign)}" if foreign else ""
    return f"NCCL_DEBUG on {debug} of {len(found)}{extra}" if found else cell


def leaked(rank: dict[str, Any]) -> list[str]:
    return [name for name in OF_KUBERNETES if rank["env"][name]] + (
        ["HOSTNAME"] if rank["env"]["HOSTNAME"] not in (None, rank["host"]) else []
    )


def all_cpus(play: Play) -> str:
    """A rank may use every core of its pod."""
    container = play.started(ready(play), *script("who"))
    cell = play.ran(container, hosts=THREE, size=6)
    bound = sum(len(each["cpus"]) == 1 for each in ranks(container))
    play.wants(not bound, f"{bound} ranks are bound to one core")
    return f"{bound} of {len(ranks(container))} ranks on one core" if ranks(container) else cell


def written(play: Play, text: Callable[[MpiJob], str]) -> tuple[MpiJob, Container]:
    """Start a job whose hostfile somebody has edited."""
    job = play.job()
    play.lab.publish()
    job.furnish(job.launcher, hostfile=text(job))
    job.workers_ready(play.worker)
    return job, play.started(job, *script("who"))


def of_windows(play: Play) -> str:
    """Comments, empty lines, and line ends of Windows."""
    text = "# the hosts\r\n\r\n{}"
    _, container = written(play, lambda job: text.format(job.hostfile().replace("\n", "   # a worker\r\n")))
    return play.ran(container, hosts=THREE, size=6)


def bad_line(play: Play) -> str:
    """The second line makes no sense."""

    def spoilt(job: MpiJob) -> str:
        lines = job.hostfile().splitlines(keepends=True)
        return "".join([lines[0], "job1-node-0-1.job1 slots=two\n", lines[2]])

    _, container = written(play, spoilt)
    return play.refused(container, 30, names=f"{HOSTFILE}, line 2")


def ordinary_user(play: Play) -> str:
    """Everything runs as user 1000, with the key as fsGroup makes it."""
    return who(play, ready(play, uid=1000, key_mode=0o640), hosts=THREE)


BEGINNINGS: dict[str, Callable[[Play], str]] = {
    "three workers": three_workers,
    "many hosts": many_hosts,
    "own words": own_words,
    "the SDK's command": sdk,
    "all-reduce": all_reduce,
    "launcher as node": launcher_takes_part,
    "launcher as node, its name unpublished": lambda play: launcher_takes_part(play, published=False),
    "bare names unknown": bare_names_unknown,
    "a name 5 s late": name_late,
    "sshd 5 s late": sshd_late,
    "sshd never": sshd_never,
    "key 0640 as root": key_of_trainer,
    "host keys of the image": host_keys_of_the_image,
    "wrong key": wrong_key,
    "more slots than cores": more_slots_than_cores,
    "uneven slots": uneven_slots,
    "environment": environment,
    "cores of a rank": all_cpus,
    "hostfile of Windows": of_windows,
    "hostfile with a bad line": bad_line,
    "ordinary user": ordinary_user,
}
