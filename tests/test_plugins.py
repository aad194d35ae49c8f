"""A distribution from outside adds a process, a metric, a component and a corpus, all known by name."""

import json
import os
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from hmm_datasets import InputError, plugins
from hmm_datasets.hmm.names import constructor_names
from hmm_datasets.hmm.process_storage import kinds

PACKAGE = Path(__file__).parent / "outside_package"

USE = """
    import importlib.util, json, shutil, sys
    from pathlib import Path
    from hmm_datasets import load_corpus, load_source
    from hmm_datasets.cli import main

    folder = Path(sys.argv[1])
    run = str(folder / "run")
    data = ["--hmm", "dice(weights=[1, 2, 5])", "--length", "8", "--model", "1m", "--logging_steps", "1"]
    sizes = ["--max_steps", "2", "--global_batch_size", "4", "--per_device_train_batch_size", "2"]
    measured = ["--targets", "dice", "--length", "8", "--num_sequences", "16", "--tasks", "optimum"]
    for words in (
        ["describe", "loaded_dice(six=0.9)", "dice"],
        ["sample", "dice", "--num_sequences", "3", "--output", str(folder / "rows.npy")],
        [importlib.util.find_spec("outside_dice.roll").origin, "--throws", "4"],
        ["pretrain", *data, *sizes, "--components", "count_steps", "--output_dir", run],
        ["evaluate", run, *measured, "--metrics", "worst_token", "bayes_gap"],
        ["push", str(folder / "run" / "process"), "tester/dice"],
    ):
        assert main(words) == 0, words
    shutil.copytree(folder / "run" / "process", folder / "process")
    print(json.dumps({
        "loaded": [load_source(name).fingerprint() for name in ("tester/dice", str(folder / "process"), "dice")],
        "corpus": [row["text"] for row in load_corpus("dice-stories", split="test")],
    }))
"""

REFUSED = """
    import json, sys
    from hmm_datasets import InputError, load_source
    from hmm_datasets.cli import main

    try:
        load_source(sys.argv[1])
    except InputError as error:
        print(json.dumps(str(error)))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """A folder with the package, installed from its wheel."""
    folder = tmp_path_factory.mktemp("outside")
    pip = [sys.executable, "-m", "pip", "-q"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(PACKAGE)]
    subprocess.run(build, check=True, cwd=folder)
    (wheel,) = folder.glob("*.whl")
    install = [*pip, "install", "--no-deps", "--no-index", "--target", str(folder / "site"), str(wheel)]
    subprocess.run(install, check=True, env=os.environ | {"PYTHONPATH": ""})
    return folder / "site"


@pytest.mark.thorough
@pytest.mark.outside(
    "https://github.com/EleutherAI/lm-evaluation-harness/issues/3282",
    "extend the program by an installed package, without changing its source tree",
    "entry points of an installed distribution add processes, metrics, components and corpora",
)
def test_what_an_installed_distribution_registers_is_found_by_name(site, local_hub, tmp_path):
    path = os.pathsep.join([str(site), local_hub.environment(tmp_path)["PYTHONPATH"]])
    used = local_hub.child(USE, tmp_path / "home", tmp_path, python=sys.executable, PYTHONPATH=path)
    assert len(set(used["loaded"])) == 1
    assert used["corpus"] == [f"The die showed {n % 6 + 1}, throw {n}." for n in (0, 5, 10, 15)]
    rows = [json.loads(line) for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines()]
    assert [row["steps_seen"] for row in rows if "loss" in row] == [1, 2]
    metrics = json.loads((tmp_path / "run" / "evaluation" / "report.json").read_text())["optimum"]["metrics"]
    assert metrics["worst_token"]["worst"] > metrics["bayes_gap"]["model"] > 0
    refused = local_hub.child(REFUSED, tmp_path / "home", tmp_path / "process", python=sys.executable)
    assert "process 'dice' is of the distribution outside-dice 0.3.0, which is not installed" in refused
    assert "install it with pip if you trust its author" in refused


class Distribution:
    name, version = "other-package", "1.0"


@pytest.fixture
def register(monkeypatch):
    """Makes entry points those of an installed distribution."""

    def register(group: str, **values: str) -> None:
        entries = [EntryPoint(name, value, group)._for(Distribution()) for name, value in values.items()]
        monkeypatch.setattr(plugins, "_installed", lambda asked: entries if asked == group else ())

    return register


@pytest.mark.outside(
    "https://github.com/openai/gym/issues/2345",
    "let other packages register environments by entry points, without collisions of names",
    "a name that this package or another distribution has is refused, with both of them named",
)
def test_a_name_that_is_taken_is_refused(register):
    register("hmm_datasets.processes", mess3="os:path")
    with pytest.raises(InputError, match=r"other-package 1\.0 registers the process mess3, a name that this package"):
        constructor_names()
    register("hmm_datasets.processes", factored="os:path")
    with pytest.raises(InputError, match="registers the process factored, a name that this package has; uninstall"):
        kinds()


def test_a_distribution_that_cannot_be_imported_is_in_the_way_of_nothing_else(register):
    from hmm_datasets import load_source

    register("hmm_datasets.processes", broken="no_such_module:Broken", wrong="os.path:join")
    assert load_source("mess3").num_symbols == 3
    with pytest.raises(
        InputError, match=r"other-package 1\.0, which has the process broken, cannot be imported \(Mod"
    ):
        load_source("broken")
    with pytest.raises(InputError, match="is '1/2', not a process"):
        load_source("wrong('1', '2')")


def test_parts_of_another_type_are_refused_by_their_names(register):
    from hmm_datasets.evaluation.metrics import metric_path
    from hmm_datasets.text.corpora.presets import named_corpus
    from hmm_datasets.training.step.component import named_components

    register("hmm_datasets.corpora", stories="os:path")
    with pytest.raises(InputError, match="expected a Corpus with this name"):
        named_corpus("stories")
    register("hmm_datasets.components", counter="os:path")
    with pytest.raises(InputError, match=r"expected a subclass of hmm_datasets\.training\.step\.component\.Component"):
        named_components(["counter"])
    with pytest.raises(InputError, match="components has 'count'; expected some of: counter"):
        named_components(["count"])
    register("hmm_datasets.metrics", worst="no_such_module")
    with pytest.raises(InputError, match="has the metric worst, cannot be imported"):
        metric_path("worst")


FAMILY = """
from dataclasses import dataclass
from typing import ClassVar

from hmm_datasets import processes
from hmm_datasets.hmm.families import Family


@dataclass(frozen=True)
class BiasedCoins(Family):
    stored_name: ClassVar[str] = "BiasedCoins"
    sides: int
    group: int = 1
    num_symbols = max_states = 2
    has_exact_distribution = False

    def hmm_at(self, seed, index):
        return processes.coin((1 + index % self.sides) / (1 + self.sides))
"""


def test_a_family_from_outside_is_named_drawn_saved_and_loaded(register, tmp_path, monkeypatch):
    from hmm_datasets import load_source

    (tmp_path / "biased_coins.py").write_text(FAMILY)
    monkeypatch.syspath_prepend(tmp_path)
    register("hmm_datasets.processes", BiasedCoins="biased_coins:BiasedCoins")
    family = load_source("BiasedCoins(3, group=2)")
    family.save_pretrained(tmp_path / "family")
    assert json.loads((tmp_path / "family" / "family.json").read_text())["distribution"] == "other-package 1.0"
    again = load_source(tmp_path / "family")
    assert again == family
    assert again.sample(4, 9).tolist() == family.sample(4, 9).tolist()
    assert again.oracle_next_token_probs(family.sample(1, 1))[0, 0].tolist() == [0.25, 0.75]
