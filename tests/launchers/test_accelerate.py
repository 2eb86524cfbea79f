"""accelerate: flags instead of PET_* variables, which `accelerate launch` ignores."""

import pytest

from trainer_agent.errors import FatalError
from trainer_agent.launchers import Command, Job, accelerate
from trainer_agent.nproc import Decision
from trainer_agent.topology import read_topology

TORCH = {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_MASTER_ADDR": "j-0.j", "PET_MASTER_PORT": "29511"}
MODULE = "accelerate.commands.launch"
LAUNCH = ("accelerate", "launch", "--num_processes", "1", "train.py")


def job(environ, *script, nproc=4):
    topology = read_topology(environ, hostname="box")
    decision = Decision(nproc, "", omp_threads=2)
    words = (script or LAUNCH, environ, "python", ("torchrun",), 900.0)
    return Job(topology, decision, *words)


def argv(environ, *script, **settings):
    environ = {"HF_HOME": "/nowhere", **environ}  # whatever `accelerate config` has left on this machine
    return accelerate.command(job(environ, "accelerate", "launch", *script, **settings)).argv


@pytest.mark.parametrize(
    "environ, script, suits",
    [
        (TORCH, LAUNCH, True),
        (TORCH, ("/opt/bin/accelerate", "launch", "t.py"), True),
        (TORCH, ("accelerate-launch", "t.py"), True),
        (TORCH, ("/opt/bin/accelerate-launch", "t.py"), True),
        (TORCH, ("python3", "-m", "accelerate.commands.launch", "t.py"), True),
        (TORCH, ("/opt/bin/python", "-u", "-m", "accelerate.commands.launch", "t.py"), True),
        (TORCH, ("-m", "accelerate.commands.launch", "t.py"), True),
        (TORCH, ("python", "-m", "accelerate.commands.config"), False),
        (TORCH, ("bash", "-m", "accelerate.commands.launch"), False),
        (TORCH, ("accelerate", "config"), False),
        (TORCH, ("accelerate",), False),
        (TORCH, ("train.py", "launch"), False),
        ({}, LAUNCH, False),
    ],
)
def test_what_it_suits(environ, script, suits):
    """`accelerate launch`, under any path and name, in a job with PET_* variables."""
    assert suits == accelerate.suits(job(environ, *script))


@pytest.mark.parametrize(
    "script, start",
    [
        (("/opt/bin/accelerate-launch",), ("/opt/bin/accelerate-launch",)),
        (("python3", "-u", "-m", MODULE), ("python3", "-u", "-m", MODULE)),
        (("-m", MODULE), ("python", "-m", MODULE)),
    ],
)
def test_other_names_of_accelerate_launch(script, start):
    """The flags stand behind all words that start it, and the user's own, which count, behind them."""
    environ = {**TORCH, "PET_NNODES": "1", "PET_NODE_RANK": "0"}
    flags = ("--num_machines", "1", "--num_processes", "4", "--machine_rank", "0")
    assert (*start, *flags, "--cpu", "t.py") == accelerate.command(job(environ, *script, "--cpu", "t.py")).argv


def test_several_nodes():
    """Processes are those of the whole job; the user's own flags win: one process with --multi_gpu is refused."""
    flags = (
        *("--num_machines", "2", "--num_processes", "8", "--machine_rank", "1"),
        *("--main_process_ip", "j-0.j", "--main_process_port", "29511"),
    )
    expected = ("accelerate", "launch", *flags, "--num_processes", "1", "train.py")
    assert Command(expected, {"OMP_NUM_THREADS": "2"}, elastic_agent=True) == accelerate.command(job(TORCH))


def test_a_script_alone():
    """As `--launcher accelerate -- train.py` gives it."""
    command = accelerate.command(job({**TORCH, "HF_HOME": "/nowhere"}, "train.py"))
    assert (("accelerate", "launch"), "train.py") == (command.argv[:2], command.argv[-1])


STANDARD = ("--deepspeed_multinode_launcher", "standard")


@pytest.mark.parametrize(
    "script, nnodes, expected",
    [
        (("--use_deepspeed", "t.py"), "2", STANDARD),
        (("--config_file=ds.yaml", "t.py"), "2", STANDARD),
        (("--use_deepspeed", "--deepspeed-multinode-launcher", "nossh", "t.py"), "2", ()),
        (("--use_fsdp", "t.py", "--use_deepspeed"), "2", ()),
        (("--use_deepspeed", "t.py"), "1", ()),
    ],
)
def test_deepspeed_starts_through_torchrun(script, nnodes, expected):
    """By default accelerate runs `deepspeed --launcher pdsh --hostfile None`: every node trains alone and exits 0."""
    words = argv({**TORCH, "PET_NNODES": nnodes, "PET_NODE_RANK": "0"}, *script)

    ours = words[2 : len(words) - len(script)]
    assert expected == ours[ours.index(STANDARD[0]) :] if expected else STANDARD[0] not in ours


def test_a_file_of_accelerate_may_have_chosen_deepspeed(tmp_path):
    """It is read by accelerate alone."""
    (tmp_path / "accelerate").mkdir()
    (tmp_path / "accelerate" / "default_config.yaml").write_text("distributed_type: DEEPSPEED")

    assert (*STANDARD, "t.py") == argv({**TORCH, "HF_HOME": str(tmp_path)}, "t.py")[-3:]


@pytest.mark.parametrize("nproc, more", [(1, ()), (4, ("--multi_gpu",))])
def test_one_node(nproc, more):
    """One node needs no place to meet, and one process is not many GPUs."""
    flags = ("--num_machines", "1", "--num_processes", str(nproc), "--machine_rank", "0", *more)
    environ = {"PET_NNODES": "1"}
    assert ("accelerate", "launch", *flags, "t.py") == argv(environ, "t.py", nproc=nproc)


@pytest.mark.parametrize(
    "words, added",
    [
        (("t.py",), True),
        (("--mixed_precision", "bf16", "t.py"), True),
        (("--num_processes", "8", "t.py"), True),
        (("--num-processes=2", "t.py"), True),
        (("--num-processes=1", "t.py"), False),
        (("--num_processes", "x", "t.py"), False),
        (("--multi_gpu", "t.py"), False),
        (("--multi-gpu", "t.py"), False),
        (("--cpu", "t.py"), False),
        (("--tpu", "t.py"), False),
        (("--use_deepspeed", "--zero_stage", "3", "t.py"), False),
        (("--use-fsdp", "t.py"), False),
        (("--use_megatron_lm", "t.py"), False),
        (("--config_file", "fsdp.yaml", "t.py"), False),
        (("--config-file=fsdp.yaml", "t.py"), False),
        (("t.py", "--cpu", "--num_processes", "1"), True),
        (("-m", "pkg.train", "--use_fsdp"), True),
        (("--module", "--use_fsdp", "pkg.train"), False),
    ],
)
def test_many_gpus_only_where_nobody_has_chosen(words, added):
    """accelerate refuses --multi_gpu beside --use_fsdp and its like, and skips the type of a config file for it."""
    assert added == ("--multi_gpu" in argv(TORCH, *words)[: -len(words)])


def test_the_file_of_accelerate_config(tmp_path):
    """Its distributed_type counts only where the command says none."""
    (tmp_path / "accelerate").mkdir()
    (tmp_path / "accelerate" / "default_config.yaml").touch()
    assert "--multi_gpu" not in argv({**TORCH, "HF_HOME": str(tmp_path)}, "t.py")


@pytest.mark.parametrize(
    "environ, path",
    [
        ({"HOME": "/home/me"}, "/home/me/.cache/huggingface/accelerate/default_config.yaml"),
        ({}, "/root/.cache/huggingface/accelerate/default_config.yaml"),
        ({"XDG_CACHE_HOME": "/cache"}, "/cache/huggingface/accelerate/default_config.yaml"),
        ({"HF_HOME": "/hf", "XDG_CACHE_HOME": "/cache"}, "/hf/accelerate/default_config.yaml"),
        ({"HF_HOME": "~/hf", "HOME": "/home/me"}, "/home/me/hf/accelerate/default_config.yaml"),
    ],
)
def test_where_the_file_lies(environ, path):
    """As accelerate looks for it."""
    assert path == accelerate.config_file(environ)


def test_the_options_of_torchrun():
    """accelerate's own defaults win over variables of the options that it has; the others reach its torchrun."""
    own = {"PET_MAX_RESTARTS": "3", "PET_TEE": "3", "PET_LOG_DIR": "/logs", "PET_NO_PYTHON": "true"}
    others = {"PET_REDIRECTS": "1", "PET_SHUTDOWN_TIMEOUT": "9", "PET_RUN_PATH": "1", "HF_HOME": "/nowhere"}
    empty = {"PET_LOCAL_ADDR": "", "PET_VIRTUAL_LOCAL_RANK": "0", "PET_RDZV_CONF": "timeout=60"}
    found = accelerate.command(job({"PET_NNODES": "1", **own, **others, **empty}, "accelerate", "launch", "t.py"))
    flags = ("--num_machines", "1", "--num_processes", "4", "--machine_rank", "0", "--multi_gpu")
    more = ("--max_restarts", "3", "--log_dir", "/logs", "--tee", "3", "--no_python", "--rdzv_conf", "timeout=60")
    assert ("accelerate", "launch", *flags, *more, "t.py") == found.argv
    assert {**others, "OMP_NUM_THREADS": "2"} == found.env


@pytest.mark.parametrize("name, value", [("PET_MAX_RESTARTS", "x"), ("PET_RUN_PATH", "maybe"), ("PET_RDZV_CONF", "60")])
def test_an_option_that_torchrun_does_not_understand(name, value):
    """It is told before accelerate starts, whichever way the value would reach torchrun."""
    with pytest.raises(FatalError, match=name):
        argv({"PET_NNODES": "1", name: value}, "t.py")


def test_a_number_that_only_torch_knows():
    """Without a number nothing can be said to accelerate, so it is left to itself."""
    note = "the number of processes is left to accelerate"
    expected = Command(LAUNCH, {"OMP_NUM_THREADS": "2"}, elastic_agent=True, note=note)
    assert expected == accelerate.command(job(TORCH, nproc="auto"))
