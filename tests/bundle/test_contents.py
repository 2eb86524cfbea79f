"""What a bundle is made of."""

import json
import os
import sys

import pytest

from trainer_agent.bundle.contents import distributions, find_contents

pytestmark = pytest.mark.lab


@pytest.fixture
def site(tmp_path):
    """Make distributions that this process finds; gone after the test."""

    def make(name, *, requires=(), checks="", packages=()):
        metadata = tmp_path / f"{name.replace('-', '_')}-1.dist-info"
        metadata.mkdir()
        lines = ["Metadata-Version: 2.1", f"Name: {name}", "Version: 1", *(f"Requires-Dist: {r}" for r in requires)]
        (metadata / "METADATA").write_text("\n".join(lines))
        if checks:
            (metadata / "entry_points.txt").write_text(f"[trainer_agent.checks]\n{name} = {checks}\n")
        for package in packages:
            (tmp_path / package).mkdir()
            (tmp_path / package / "__init__.py").touch()
        return metadata

    sys.path.append(str(tmp_path))
    yield make
    sys.path.remove(str(tmp_path))


def test_ours_and_what_we_need(site):
    """Extras of ours that are installed; of others only what they need; torch never."""
    found = distributions()

    assert {"trainer-agent", "click", "awscrt", "urllib3", "rich", "pygments", "hf-xet", "kubernetes"} <= set(found)
    assert set() == {"torch", "pytest", "numpy", "ipywidgets"} & set(found)


def test_checks_of_others_come_too(site):
    """With what they need, but not what their extras need, nor torch."""
    site(
        "more", requires=["Need_ed>=1", "torch>=2", 'extra-one ; extra == "x"'], checks="more:CHECKS", packages=["more"]
    )
    for name in ("needed", "need-ed", "extra-one"):
        site(name)

    assert {"more", "need-ed"} == set(distributions()) & {"more", "need-ed", "needed", "extra-one", "torch"}


def test_a_distribution_without_a_record_is_found_by_its_packages(site, tmp_path):
    """Debian's have none."""
    metadata = site("more", checks="more_package:CHECKS", packages=["more_package"])
    (metadata / "top_level.txt").write_text("more_package\n")
    files = find_contents().files
    places = {place.split("/", 2)[2] for place, path in files.items() if path.is_relative_to(tmp_path)}

    assert {"more-1.dist-info/METADATA", "more-1.dist-info/entry_points.txt", "more-1.dist-info/top_level.txt"} == {
        place for place in places if "dist-info" in place
    }
    assert {"more_package/__init__.py"} == {place for place in places if "dist-info" not in place}


def test_its_name_says_the_version_and_changes_with_any_file(site):
    """The same files have the same name."""
    metadata = site("more", checks="more:CHECKS")
    names = [find_contents().name, find_contents().name]
    os.utime(metadata / "METADATA", (0, 0))
    names.append(find_contents().name)

    assert names[0] == names[1] != names[2]
    assert names[0].startswith("lib-0.")


def test_no_file_is_copied_twice():
    """Libraries that a package brings, such as Arrow's, stay where it looks for them."""
    files = [path for place, path in find_contents().files.items() if place.startswith("lib")]

    assert any("libarrow" in path.name for path in files)
    assert len(files) == len(set(files))


def test_of_a_bundle_it_is_the_bundle(bundle, agent):
    """Nothing is gathered: the mark says what there is."""
    mark = next(bundle.glob("lib-*/bundle.json"))
    facts = json.loads(mark.read_text())

    assert {"compiled", "interpreter", "loader", "name", "python", "version"} == set(facts)
    assert mark.parent.name == facts["name"]
