import pytest

from preflight_checks import CATALOGUE
from trainer_agent.catalogue import Listed, list_checks, merge
from trainer_agent.check import Outcome, check
from trainer_agent.errors import ExitCode, FatalError

CHECKS = """
import sys
from trainer_agent.check import Check, Outcome, check

@check("acme-good", rules=())
def good(context):
    "Is it good?"
    return Outcome("good")

other_name = Check("shm", "Is it ours?", (), lambda context: Outcome("fake"))
other_profile = Check("acme-profile", "When?", (), lambda context: Outcome("now"), profile="leisurely")
not_a_check = 42
"""


@pytest.fixture
def install(tmp_path, monkeypatch):
    """A function that installs a package with modules and an entry point, for as long as the test runs."""
    monkeypatch.syspath_prepend(tmp_path)

    def make(name, target, *, dist=None, **modules):
        dist = dist or name
        info = tmp_path / f"{dist}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[trainer_agent.checks]\n{name} = {target}\n")
        for module, text in modules.items():
            (tmp_path / f"{module}.py").write_text(text)

    return make


def names():
    return list(list_checks())


def test_ours_come_in_the_order_of_the_catalogue_and_load():
    found = list_checks()

    assert list(CATALOGUE) == list(found)
    assert {name: (target, "trainer-agent") for name, target in CATALOGUE.items()} == {
        name: (entry.target, entry.provider) for name, entry in found.items()
    }
    assert list(CATALOGUE) == [entry.load().name for entry in found.values()]


def test_every_check_of_ours_says_what_it_asks_and_what_to_do():
    """Each has a question, and each rule a code of its own, a condition and a hint."""
    for entry in list_checks().values():
        loaded = entry.load()
        codes = [rule.code for rule in loaded.rules]
        assert loaded.question.endswith("?"), loaded.name
        assert sorted(set(codes)) == sorted(codes), loaded.name
        assert [] == [r.code for r in loaded.rules if not (r.when and r.hint)]


def test_a_package_adds_checks_after_ours(install):
    install("acme", "acme_list:CATALOGUE", acme_list="CATALOGUE = {'acme-good': 'acme_good:good'}", acme_good=CHECKS)

    assert [*CATALOGUE, "acme-good"] == names()
    assert "Is it good?" == list_checks()["acme-good"].load().question


@pytest.mark.parametrize(
    "text",
    [
        "raise RuntimeError('broken package')",
        "import module_that_is_not_there",
        "import sys; sys.exit(3)",
        "CATALOGUE = 42",
        "",
    ],
)
def test_a_package_that_does_not_load_takes_nothing_from_the_others(install, capsys, text):
    install("acme", "acme_bad:CATALOGUE", acme_bad=text)

    assert list(CATALOGUE) == names()
    assert "a package of checks cannot be loaded" in "".join(capsys.readouterr())


@pytest.mark.parametrize("provider", ["acme", "aaa", "trainer-agent"])
def test_ours_cannot_be_replaced_whatever_the_package_calls_itself(install, provider, capsys):
    install(provider, "acme_list2:CATALOGUE", dist="acme", acme_list2="CATALOGUE = {'shm': 'acme_shm:shm'}")

    assert CATALOGUE["shm"] == list_checks()["shm"].target
    assert "a check with this name exists already" in "".join(capsys.readouterr())


def test_the_first_of_two_packages_keeps_a_name(capsys):
    found = merge([("one", {"a": "m:a"}), ("two", {"a": "n:a", "b": "n:b"})])

    assert {"a": Listed("a", "m:a", "one"), "b": Listed("b", "n:b", "two")} == found
    assert "two" in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    "name, target, reason",
    [
        ("acme-good", "acme_load:nothing", "AttributeError: module 'acme_load' has no attribute 'nothing'"),
        ("acme-good", "no_such_module:good", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("acme-good", "acme_exit:good", "SystemExit: 3"),
        ("acme-good", 42, "AttributeError: 'int' object has no attribute 'partition'"),
        ("acme-good", "acme_load:not_a_check", "it is a int, not a Check; decorate the function with @check"),
        ("acme-good", "acme_load:other_name", "it calls itself shm; both names must be the same"),
        ("acme-profile", "acme_load:other_profile", "its profile 'leisurely' is none of quick, standard, deep"),
    ],
)
def test_what_cannot_be_loaded_says_why_and_what_to_do(install, name, target, reason):
    install("acme", "acme_load:good", acme_load=CHECKS, acme_exit="import sys; sys.exit(3)")

    with pytest.raises(FatalError) as caught:
        Listed(name, target, "acme").load()

    assert f"check {name} ({target}) cannot be loaded: {reason}" == caught.value.message
    hint = f"reinstall or remove the package that provides 'acme', or run with --skip {name}"
    assert (hint, ExitCode.FATAL) == (caught.value.hint, caught.value.exit_code)


def test_the_question_is_the_first_line_of_the_docstring():
    @check("one", rules=())
    def documented(context):
        """
        Is it so?

        More about it.
        """
        return Outcome("so")

    @check("two", rules=())
    def silent(context):
        return Outcome("so")

    assert ("Is it so?", "") == (documented.question, silent.question)
