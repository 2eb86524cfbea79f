"""A data cache is started, awaited and probed, and cleaned up when that fails; what passes is tried again."""

import os
import subprocess
import sys
import time

import pytest
from data_cache import ALL, TRAIN_JOB, available, failure, serve
from flight import OUT_OF_RANGE, refusing_head, silent_head
from kube_api import DROP

from trainer_agent.errors import ConfigurationError, ExitCode, FatalError, RetryError
from trainer_agent.initializers import open_source

pytestmark = pytest.mark.lab

SERVE = """
import os, time
from trainer_agent.errors import Terminated
from trainer_agent.initializers import open_source
from trainer_agent.process import catch_termination

catch_termination()
try:
    open_source("cache://schema/table", os.environ).serve(deadline=time.monotonic() + 20)
except Terminated as error:
    print("terminated by", error.signum)
"""


@pytest.mark.parametrize("faults", [[(429, {"Retry-After": "0"}), DROP], [500, 503]], ids=["429-drop", "500-503"])
@pytest.mark.parametrize(
    "verb,plural",
    [("get", "trainjobs"), ("create", "leaderworkersets"), ("get", "leaderworkersets"), ("watch", "leaderworkersets")],
)
def test_what_passes_is_tried_again(cluster, cache, verb, plural, faults):
    cluster.faults[verb, plural] = list(faults)

    serve(cache(), *available(cluster, watches=len(faults) + 1 if verb == "watch" else 1))

    assert cluster.faults[verb, plural] == []
    assert cluster.names() == ALL


def test_termination_leaves_all_for_the_next_run(cluster, cache):
    """SIGTERM comes in the middle of the wait."""
    environ = os.environ | cache().environ
    with subprocess.Popen([sys.executable, "-c", SERVE], env=environ, stdout=subprocess.PIPE, text=True) as process:
        cluster.until("watch", "leaderworkersets")
        process.terminate()
        said = process.communicate(timeout=60)[0]

    assert said.splitlines()[-1] == "terminated by 15"
    assert cluster.names() == ALL


def test_time_that_is_up_is_told_and_cleaned_up(cluster, cache, tmp_path):
    """As `init` does it: the reason is the cache's own, and nothing of this run stays."""
    command = [sys.executable, "-m", "trainer_agent", "init", "dataset", "--timeout", "2"]
    environ = (
        os.environ | cache().environ | {"STORAGE_URI": "cache://schema/table", "OUTPUT_PATH": str(tmp_path / "to")}
    )
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == ExitCode.RETRY
    assert "cache-not-ready" in done.stderr.splitlines()[-1]
    assert cluster.names() == {TRAIN_JOB}


def test_cleaning_up_that_is_refused_hides_nothing(cluster, cache, capsys):
    """Kubeflow's own ClusterRole may delete ServiceAccounts only."""
    cluster.denied |= {("delete", "leaderworkersets"), ("delete", "services")}

    error = failure(RetryError, cache(), seconds=1)

    assert error.code == "cache-not-ready"
    assert cluster.names() == ALL - {("serviceaccounts", "job-cache")}
    said = "left LeaderWorkerSet job-cache behind: This pod's service account may not delete"
    assert said in capsys.readouterr().out


def test_an_empty_table_is_an_error(cluster, cache):
    """Kubeflow's head answers OUT_OF_RANGE, older ones with no endpoint."""
    with refusing_head(OUT_OF_RANGE) as port:
        source = cache(TRAINER_AGENT_INIT_CACHE_ENDPOINT=f"grpc://127.0.0.1:{port}")
        error = failure(FatalError, source, *available(cluster))

    assert (error.code, error.exit_code) == ("cache-empty", ExitCode.FATAL)
    assert cluster.names() == {TRAIN_JOB}


def test_a_head_that_never_answers_does_not_hang(cluster, cache):
    started = time.monotonic()
    with silent_head() as port:
        source = cache(TRAINER_AGENT_INIT_CACHE_ENDPOINT=f"127.0.0.1:{port}")
        error = failure(RetryError, source, *available(cluster), seconds=3)

    assert (error.code, error.exit_code) == ("cache-not-serving", ExitCode.RETRY)
    assert time.monotonic() - started < 20
    assert cluster.names() == {TRAIN_JOB}


def test_a_cache_holds_no_models():
    with pytest.raises(FatalError) as caught:
        open_source("cache://schema/table", {}, kind="model")

    assert caught.value.code == "cache-holds-datasets"


def test_settings_are_checked_before_anything_is_asked():
    with pytest.raises(ConfigurationError):
        open_source("cache://schema/table", {})


def test_importing_the_source_imports_neither_kubernetes_nor_pyarrow():
    code = (
        "import sys, trainer_agent.initializers.cache; print({'kubernetes', 'pyarrow', 'urllib3'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)

    assert done.stdout == "set()\n"
