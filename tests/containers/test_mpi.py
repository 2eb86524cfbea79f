"""An MPI job in our image: sshd without root on the worker, and a launcher that is a node."""

import pytest
from manifests import runtime, trainjob
from podman_pod import mpi_volumes

pytestmark = pytest.mark.containers

RANK = 'echo "rank $OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE on $(hostname)"'


@pytest.mark.parametrize("command", [["bash", "-c"], None], ids=["sdk", "args"])
def test_two_hosts_start_their_ranks(cluster, command):
    """The SDK's `bash -c "mpirun …"` and plain args: both go through the agent, and a read-only container has sshd."""
    definition, wanted = runtime("mpi-distributed"), trainjob("mpi-distributed")
    words = ["mpirun", "bash", "-c", RANK]
    args = [f"mpirun bash -c '{RANK}'"] if command else words
    wanted["spec"]["trainer"] = {"numNodes": 2, "numProcPerNode": 1, "args": args}
    if command:
        wanted["spec"]["trainer"]["command"] = command
    cluster.prepare(wanted)
    cluster.volumes |= mpi_volumes(definition, wanted, cluster.folder / "mpi")
    cluster.run(definition, wanted)

    worker, launcher = cluster.pods
    assert 0 == cluster.wait(launcher), cluster.logs(launcher).said
    said = cluster.logs(launcher)
    assert {f"rank 0 of 2 on {launcher}", f"rank 1 of 2 on {worker}"} <= set(said.out.splitlines()), said.said
