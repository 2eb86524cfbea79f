"""An MPI job in our image: sshd without root on the worker, and a launcher that is a node."""

import re
from collections import Counter

import pytest
from manifests import runtime, trainjob
from podman_pod import mpi_volumes

pytestmark = pytest.mark.containers

RANK = 'echo "rank $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE on $(hostname)"'
# As the SDK starts a function: every rank writes it to MPI's home. Podman reads no text that begins with an empty line.
FUNCTION = """read -r -d '' SCRIPT << EOM

import os, socket
size, rank = os.environ["OMPI_COMM_WORLD_SIZE"], os.environ["OMPI_COMM_WORLD_RANK"]
print(f"rank {rank} of {size} on {socket.gethostname()}", flush=True)

EOM
printf "%s" "$SCRIPT" > "/home/mpiuser/train.py"
python "/home/mpiuser/train.py\""""
COMMANDS = {
    "shell": (["bash", "-c"], [f"mpirun bash -c '{RANK}'"]),
    "function": (["mpirun", "--hostfile", "/etc/mpi/hostfile", "bash", "-c", FUNCTION], None),
    "args": (None, ["mpirun", "bash", "-c", RANK]),
}


@pytest.mark.parametrize("way", COMMANDS)
def test_the_hosts_of_the_example_start_their_ranks(cluster, way):
    """A shell's `mpirun …`, a function of the SDK, and plain args: all go through the agent."""
    definition, wanted = runtime("mpi-distributed"), trainjob("mpi-distributed")
    command, args = COMMANDS[way]
    given = {"command": command, "args": args}
    wanted["spec"]["trainer"] |= {name: words for name, words in given.items() if words}
    if not args:
        wanted["spec"]["trainer"].pop("args", None)
    cluster.prepare(wanted)
    cluster.volumes |= mpi_volumes(definition, wanted, cluster.folder / "mpi")
    cluster.run(definition, wanted)

    *workers, launcher = cluster.pods
    assert [0, 0] == [cluster.state(pod, "preflight")["ExitCode"] for pod in workers]
    assert 0 == cluster.wait(launcher), cluster.logs(launcher).said
    said = cluster.logs(launcher)
    ranks = sorted(re.findall(r"^rank (\d) of 6 on (\S+)$", said.out, re.MULTILINE))
    assert list("012345") == [rank for rank, _ in ranks], said.said
    assert dict.fromkeys(cluster.pods, 2) == Counter(host for _, host in ranks)
