"""An MPI job in our image: sshd without root on the worker, and a launcher that is a node."""

import re
from collections import Counter

import pytest
from manifests import runtime, trainjob
from podman_pod import mpi_volumes

pytestmark = pytest.mark.containers

RANK = 'echo "rank $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE on $(hostname)"'


@pytest.mark.parametrize("command", [["bash", "-c"], None], ids=["sdk", "args"])
def test_the_hosts_of_the_example_start_their_ranks(cluster, command):
    """The SDK's `bash -c "mpirun …"` and plain args: both go through the agent, and a read-only container has sshd."""
    definition, wanted = runtime("mpi-distributed"), trainjob("mpi-distributed")
    words = ["mpirun", "bash", "-c", RANK]
    args = [f"mpirun bash -c '{RANK}'"] if command else words
    wanted["spec"]["trainer"]["args"] = args
    if command:
        wanted["spec"]["trainer"]["command"] = command
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
