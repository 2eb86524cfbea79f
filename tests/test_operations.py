"""docs/operations.md, docs/security.md and docs/quickstart.md name nothing that is not there."""

import ast
import re
from pathlib import Path

import kubernetes.client
import pytest
import yaml

from trainer_agent.commands.worker import PORT as SSHD
from trainer_agent.env import SECRET_NAME
from trainer_agent.initializers import cache_api
from trainer_agent.initializers.cache_settings import FLIGHT_PORT
from trainer_agent.topology import DEFAULT_PORT

ROOT = Path(__file__).parents[1]
OPERATIONS = (ROOT / "docs" / "operations.md").read_text()
SECURITY = (ROOT / "docs" / "security.md").read_text()
PAGES = {name: (ROOT / "docs" / f"{name}.md").read_text() for name in ("operations", "security", "quickstart")}
CODE = re.compile(r"`([a-z0-9]+(?:-[a-z0-9]+)+)`")
SOURCES = {
    path: path.read_text()
    for folder in ("trainer_agent", "preflight_checks", "images", "runtimes")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.is_file() and path.suffix != ".pyc"
}
MODELS = {
    kind: getattr(kubernetes.client, f"V1{kind}")
    for kind in ("Job", "NetworkPolicy", "Pod", "Role", "RoleBinding", "ServiceAccount")
}


def documents():
    """Return every manifest of operations.md."""
    blocks = re.findall(r"^```yaml\n(.*?)^```$", OPERATIONS, re.DOTALL | re.MULTILINE)
    return [document for block in blocks for document in yaml.safe_load_all(block)]


def manifests():
    """Return the first manifest of each kind."""
    return {document["kind"]: document for document in reversed(documents())}


def unknown(value, kind, path):
    """Yield the path of every key that the API's type of its place does not have."""
    if kind.startswith("list["):
        for index, element in enumerate(value):
            yield from unknown(element, kind[5:-1], f"{path}[{index}]")
    elif model := getattr(kubernetes.client, kind, None):
        types = {key: model.openapi_types[name] for name, key in model.attribute_map.items()}
        for key, element in value.items():
            yield from unknown(element, types[key], f"{path}.{key}") if key in types else [f"{path}.{key}"]


def table(title):
    """Return the rows of the first table after a line that begins so, as lists of cells."""
    after = OPERATIONS.split(f"\n{title}", 1)[1].splitlines()
    start = next(index for index, line in enumerate(after) if line.startswith("| "))
    rows = iter(after[start + 2 :])
    return [row.strip("| ").split(" | ") for row in iter(lambda: next(rows, ""), "")]


def test_the_manifests_are_what_the_api_takes():
    found = [(document["kind"], document) for document in documents()]

    assert MODELS.keys() == {kind for kind, _ in found}
    assert [] == [path for kind, document in found for path in unknown(document, f"V1{kind}", kind)]


def test_a_wrong_field_far_down_is_found():
    policy = manifests()["NetworkPolicy"]
    policy["spec"]["egress"][1]["ports"][0]["ports"] = 53

    assert ["NetworkPolicy.spec.egress[1].ports[0].ports"] == list(unknown(policy, "V1NetworkPolicy", "NetworkPolicy"))


def test_the_role_is_for_what_the_cache_asks_of_the_api():
    """Every kind of object with what is done to it, and the finalizers that the owner's reference takes."""
    rules = {
        (group, resource): set(rule["verbs"])
        for rule in manifests()["Role"]["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }

    assert {"update"} == rules.pop(("trainer.kubeflow.org", "trainjobs/finalizers"))
    assert asked() == rules


def asked():
    """Return {(group, plural): verbs} of the calls in the code of the cache; `_ensure` makes, adopts and deletes."""
    verbs = {"await_change": {"watch"}, "_ensure": {"create", "get", "delete"}, "get": {"get"}, "list": {"list"}}
    found = {}
    for path, text in SOURCES.items():
        for call in ast.walk(ast.parse(text)) if path.match("initializers/cache_*.py") else ():
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.args:
                kind = getattr(cache_api, getattr(call.args[0], "id", ""), None)
                if isinstance(kind, cache_api.Kind):
                    found.setdefault((kind.group, kind.plural), set()).update(verbs[call.func.attr])
    return found


def test_the_ports_are_those_of_the_code():
    ports = {row[0].split(" ")[0].strip(",") for row in table("## Ports")}
    policy = manifests()["NetworkPolicy"]["spec"]
    open_ports = {port["port"] for rule in policy["egress"] for port in rule.get("ports", [])}

    assert {str(port) for port in (DEFAULT_PORT, DEFAULT_PORT + 1, DEFAULT_PORT + 2, SSHD, FLIGHT_PORT)} <= ports
    assert {
        int(port) for port in ports if port.isdigit() and int(port) in {53, 80, 443, 10443, FLIGHT_PORT}
    } <= open_ports
    assert [{"podSelector": policy["podSelector"]}] == policy["ingress"][0]["from"] == policy["egress"][0]["to"]


def test_every_event_is_logged_with_these_fields():
    """An event of the table is the first argument of a call, which has the fields as keywords or passes more on."""
    calls = {}
    for path, text in SOURCES.items():
        for node in ast.walk(ast.parse(text)) if path.suffix == ".py" else ():
            if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
                calls.setdefault(node.args[0].value, []).append({keyword.arg for keyword in node.keywords})
    rows = {row[0].strip("`"): set(re.findall(r"`(\w+)`", row[2])) for row in table("**Logs**")}

    assert 12 == len(rows)
    for event, fields in rows.items():
        assert any(fields <= known or None in known for known in calls.get(event, [])), event


@pytest.mark.parametrize("page", PAGES)
def test_every_variable_is_one_that_is_read(page):
    words = set(re.findall(r"\b[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+\b", PAGES[page]))
    known = "\n".join(
        [*SOURCES.values(), (ROOT / "Makefile").read_text(), (ROOT / "docs" / "reference.md").read_text()]
    )

    assert {word for word in words if word not in known} <= {"MY_KEY", "DOCKER_DEFAULT_PLATFORM"}


def test_every_code_is_one_that_is_given():
    """In the table of what is seen, and wherever a page says that something is refused."""
    listed = (ROOT / "docs" / "errors.md").read_text() + (ROOT / "docs" / "checks.md").read_text()
    seen = [code for row in table("## What you see") for code in CODE.findall(row[0])]
    named = [*seen, *re.findall(r"\(`([a-z-]+)`\)", SECURITY), *re.findall(r"error `([a-z-]+)`", OPERATIONS)]

    assert 15 <= len(named)
    assert [] == [code for code in named if f"`{code}`" not in listed and code != "gpu-health"]


def test_the_names_of_secrets_are_those_that_are_masked():
    (line,) = [line for line in SECURITY.splitlines() if line.startswith("- A variable is secret when")]

    assert SECRET_NAME.pattern == f"({'|'.join(re.findall(r'`([A-Z_]+)`', line))})$"
