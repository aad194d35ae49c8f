"""Process folders may come from anyone: whatever their JSON says, it is read, or refused in one line with its name."""

import copy
import json
import random
import shutil

import pytest

from hmm_datasets import InputError, load_source
from hmm_datasets.files import read_json, write_json
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.families import HMMMixture, PermutedEmissions, PermutedSymbols, RandomAutomata, RandomChains
from hmm_datasets.hmm.names import example_of, named_process
from hmm_datasets.hmm.process_storage import KINDS
from hmm_datasets.hmm.tilted import TiltedHMM

CHANGES = 25
"""Changes of each file, drawn with a fixed seed; `every_change` has them all."""

ODD = [
    None,
    True,
    0,
    -1,
    2,
    10**12,
    10**400,
    0.5,
    -0.0,
    float("nan"),
    float("inf"),
    "",
    "x",
    "\ud800\n\x1b",
    "9" * 200,
]
ODD += [[], [1], ["a", "a"], [[]], [None], {}, {"a": 1}, {"": [{}]}]


SOURCES = {
    "mixture": lambda: HMMMixture([processes.mess3(0.15, 0.6), processes.mess3(0.1, 0.8)], weights=(0.25, 0.75)),
    "permuted symbols": lambda: PermutedSymbols(processes.mess3(0.15, 0.6)),
    "permuted emissions": lambda: PermutedEmissions(processes.weather()),
    "automata": lambda: RandomAutomata(8, 18),
    "chains": lambda: RandomChains((3, 5), alpha=1.0),
    "HMM": processes.weather,
    "tilted": lambda: TiltedHMM(processes.mess3(0.15, 0.6), [0.0, 0.5, 1.0], 2.0, 4),
}
CALLS = {"generalized": "bloch_walk", "process_mixture": "mixture", "pcfg": "grammar"}
SOURCES |= {
    kind: lambda kind=kind: named_process(f"process:{example_of(CALLS.get(kind, kind))}")
    for kind in KINDS
    if kind.islower()
}


def places(value, path=()):
    """The paths of all values in a value."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in items:
        yield from places(part, (*path, key))


def changed(content, path, value):
    """A copy with another value at a path, or none there if the value is `KeyError`."""
    if not path:
        return None if value is KeyError else value
    found = copy.deepcopy(content)
    inner = found
    for key in path[:-1]:
        inner = inner[key]
    if value is KeyError:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return found


def every_change(content):
    """All changed contents of a JSON file."""
    for path in places(content):
        for value in [KeyError, *ODD]:
            yield path, value


@pytest.mark.thorough
@pytest.mark.parametrize("name", SOURCES)
def test_settings_of_any_type_are_read_or_refused_by_file_and_field(name, tmp_path):
    source, folder = SOURCES[name](), tmp_path / "process"
    source.save_pretrained(folder)
    load = TiltedHMM.from_pretrained if isinstance(source, TiltedHMM) else load_source
    draw = random.Random(name)
    for file in (one for one in ("process.json", "family.json", "config.json") if (folder / one).exists()):
        content = read_json(folder / file)
        changes = list(every_change(content))
        for path, value in draw.sample(changes, min(CHANGES, len(changes))):
            copied = tmp_path / "copied"
            shutil.copytree(folder, copied)
            text = json.dumps(changed(content, path, value))
            (copied / file).write_text(text, encoding="utf-8")
            try:
                load(copied)
            except InputError as error:
                message = str(error)
                assert message.startswith(str(copied)), (path, value, message)
                assert len(message) < 1000, (path, message)
                if len(path) == 2 and path[0] == "settings" and "digest" not in message:
                    assert str(path[1]) in message or "fingerprint" in message, (path, value, message)
            shutil.rmtree(copied)


def test_a_wrong_type_is_named_with_what_was_expected(tmp_path):
    RandomChains(3, alpha=1.0).save_pretrained(tmp_path)
    content = read_json(tmp_path / "family.json")
    write_json(tmp_path / "family.json", changed(content, ("settings", "alpha"), "much"))
    with pytest.raises(InputError, match=r"family.json: settings: alpha is 'much'; expected float \| None"):
        load_source(tmp_path)
    write_json(tmp_path / "family.json", changed(content, ("num_hmms",), KeyError))
    with pytest.raises(InputError, match=r"family.json: has no num_hmms; copy"):
        load_source(tmp_path)
