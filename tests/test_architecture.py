"""The shape of the program: who may import whom, and what may be imported at all before it is used."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# From the bottom up; a module may import from its own tier and from those below.
TIERS = [
    {"errors", "__version__"},
    {"env", "process", "isolation", "guarded", "host", "log", "shells", "wrappers"},
    {"nvml", "accelerators", "addresses", "bundle", "cgroup", "check", "hostfile", "topology"},
    {
        "nproc",
        "catalogue",
        "check_answer",
        "executable_checks",
        "policy",
        "report",
        "formats",
        "runner",
        "rendezvous",
        "status",
        "status_sender",
        "termination",
        "launchers",
        "mpi",
        "gang",
        "initializers",
    },
    {"commands", "testing"},
    {"cli"},
    {"__main__", "__init__"},
]
# At module level nothing else may be imported: each of these costs more time than the agent itself.
LIGHT = {"click", "structlog", "trainer_agent"}
HEAVY = (
    "torch",
    "boto3",
    "huggingface_hub",
    "kubernetes",
    "rich.console",
    "psutil",
    "pynvml",
    "asyncio.events",
)


def modules():
    """Return (file, tier name) of every module of the agent."""
    root = ROOT / "trainer_agent"
    paths = [p.relative_to(root) for p in sorted(root.rglob("*.py"))]
    return [pytest.param(root / p, p.parts[0].removesuffix(".py"), id=str(p)) for p in paths]


def imported(path, *, only_top=False):
    """Return the names of the modules that a file imports, without those for type checking."""
    tree = ast.parse(path.read_text())
    skipped = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
        for node in ast.walk(block)
    }
    nodes = tree.body if only_top else ast.walk(tree)
    found = set()
    for node in nodes:
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module)
            found |= {f"{node.module}.{alias.name}" for alias in node.names if node.module == "trainer_agent"}
    return found


def tier(name):
    """Return the height of a tier."""
    return next(height for height, names in enumerate(TIERS) if name in names)


@pytest.mark.parametrize("path,name", modules())
def test_imports_go_downwards(path, name):
    """A module imports from its own tier and below, never the checks, which come through entry points."""
    parts = [m.split(".") for m in imported(path) if m.startswith(("trainer_agent.", "preflight_checks"))]
    above = {".".join(p) for p in parts if p[0] == "preflight_checks" or tier(p[1]) > tier(name)}

    assert above == set()


@pytest.mark.parametrize("path,name", modules())
def test_module_level_imports_are_light(path, name):
    """Only the standard library, click and structlog."""
    top = {m.split(".")[0] for m in imported(path, only_top=True)} - set(sys.stdlib_module_names)

    assert top - LIGHT == set()


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["launch", "--dry-run", "--launcher", "python", "--", "-c", "pass"], ["--version"]],
    ids=["help", "launch", "version"],
)
def test_heavy_modules_stay_away(arguments):
    """What a start really imports, as Python itself counts it."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "trainer_agent", *arguments],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if "|" in line}

    assert loaded & set(HEAVY) == set()


@pytest.mark.parametrize("path", sorted((ROOT / "preflight_checks").glob("*.py")), ids=lambda p: p.name)
def test_checks_import_what_anybody_may(path):
    """Our checks use the door that other people's use: nothing of commands, runner or launchers."""
    private = {"commands", "runner", "launchers", "initializers", "cli", "policy", "report"}
    used = {m.split(".")[1] for m in imported(path) if m.startswith("trainer_agent.")}

    assert used & private == set()
