"""What every test may rely on: an environment without anything that the agent reads."""

import os
import re
import shutil
import signal

import pytest
from hypothesis import settings

# One example may take any time on a busy machine.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

READ = re.compile(
    r"(PET|JAX|DMLC|TRAINER_AGENT|TORCHELASTIC|NCCL|OMPI|TPU|HABANA|KUBERNETES|KUBEFLOW|AWS|HF|JOB_COMPLETION|OMP|CUDA_VISIBLE"
    r"|HIP_VISIBLE|ROCR_VISIBLE|NVIDIA_VISIBLE|ZE_AFFINITY)_.*"
    r"|STORAGE_URI|OUTPUT_PATH|IGNORE_PATTERNS|ACCESS_TOKEN|ENDPOINT|ACCESS_KEY_ID|SECRET_ACCESS_KEY|REGION|ROLE_ARN"
    r"|SESSION_TOKEN|EXTERNAL_ID|ROLE_SESSION_NAME|TRAIN_JOB_NAME|CACHE_IMAGE|METADATA_LOC|IAM_ROLE|KUBECONFIG"
    r"|(?i:(?:https?|no|all)_proxy)|HOSTNAME|NODE_NAME|MASTER_ADDR|MASTER_PORT|RANK|WORLD_SIZE|LOCAL_RANK"
)


@pytest.fixture(scope="session", autouse=True)
def _clean_signals():
    """Heed what a shell has its background jobs ignore, or nohup what it starts: all that tests start inherits it."""
    for signum in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(signum) is signal.SIG_IGN:
            signal.signal(signum, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch):
    """Take away whatever the developer's shell or pod has set, so that only the test decides."""
    for name in list(os.environ):
        if READ.fullmatch(name):
            monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def nvml_standin(tmp_path_factory):
    """Give tests NVIDIA machines to ask through the real nvidia-ml-py; it is compiled, which CI must be able to do."""
    from nvml_standin import Standin

    if shutil.which("gcc") is None:
        missing = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        missing("the stand-in for NVML needs gcc and libc6-dev")
    return Standin(tmp_path_factory.mktemp("nvml-standin"))
