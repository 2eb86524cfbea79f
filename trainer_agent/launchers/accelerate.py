"""`accelerate launch` ignores PET_*: with two nodes it runs one process and exits 0, so it is told by flags."""

from __future__ import annotations

from trainer_agent.launchers import Command, Job
from trainer_agent.launchers.torchrun import elastic_env


def suits(job: Job) -> bool:
    """Whether the command is `accelerate launch …` in a job with PET_* variables."""
    return (
        job.topology.runtime == "torch"
        and job.script[0].rpartition("/")[2] == "accelerate"
        and job.script[1:2] == ("launch",)
    )


def command(job: Job) -> Command:
    """Return the command with machines, processes (of the whole job) and the meeting place; the user's flags win."""
    shape = job.topology
    if not isinstance(job.nproc.value, int):
        return Command(
            job.script, elastic_env(job), elastic_agent=True, note="the number of processes is left to accelerate"
        )
    processes = shape.max_nodes * job.nproc.value
    flags = [
        "--num_machines",
        str(shape.max_nodes),
        "--num_processes",
        str(processes),
        "--machine_rank",
        str(shape.node_rank),
    ]
    if processes > 1:
        flags.append("--multi_gpu")
    if not shape.single_node:
        flags += ["--main_process_ip", shape.master_addr, "--main_process_port", str(shape.master_port)]
    return Command((*job.script[:2], *flags, *job.script[2:]), elastic_env(job), elastic_agent=True)
