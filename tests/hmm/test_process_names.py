"""Processes named as calls are those of the same calls in Python, and nothing else can be written."""

import re

import pytest
import yaml

from hmm_datasets import HMM, HMMMixture, InputError, PermutedSymbols, RandomChains, load_source, processes
from hmm_datasets.hmm.names import (
    CONSTRUCTORS,
    PREFIX,
    constructor_names,
    example_of,
    is_process_name,
    named_process,
    signature_of,
)
from hmm_datasets.hmm.process import Process
from hmm_datasets.hmm.process_storage import KINDS, kinds


@pytest.mark.parametrize(
    ("name", "process"),
    [
        ("mess3(x=0.05, a=0.85)", processes.mess3(x=0.05, a=0.85)),
        ("mess3(x=.05,a=.85)", processes.mess3(x=0.05, a=0.85)),
        ("mess3(0.05, 0.85)", processes.mess3(0.05, 0.85)),
        (" mess3 ", processes.mess3()),
        ("rrxor()", processes.rrxor()),
        ("even(1/3)", processes.even(1 / 3)),
        ("left_right(3, 4, stay=0.25, seed=2)", processes.left_right(3, 4, stay=0.25, seed=2)),
        ("permuted_symbols(mess3(x=0.1), group=4)", PermutedSymbols(processes.mess3(x=0.1), group=4)),
        (
            "hmm_mixture([golden_mean, even(p=0.2)], (0.25, 0.75))",
            HMMMixture((processes.golden_mean(), processes.even(0.2)), (0.25, 0.75)),
        ),
        (
            "random_chains(3, alpha=1e-1, start='stationary', zipf=None)",
            RandomChains(3, alpha=0.1, start="stationary", zipf=None),
        ),
        ("random_chains(3, alpha=1.0, doubly_stochastic=True)", RandomChains(3, alpha=1.0, doubly_stochastic=True)),
    ],
)
def test_a_name_is_the_process_of_the_same_call(name, process):
    assert load_source(PREFIX + name).fingerprint() == process.fingerprint()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mes3", "process:mes3: no process is called mes3; did you mean mess3? There are "),
        ("xyz(1)", "process:xyz(1): no process is called xyz; a string has quotes. There are "),
        ("permuted_symbols(mes3)", "no process is called mes3; did you mean mess3?"),
        ("mess3(y=1)", "mess3: got an unexpected keyword argument 'y'; expected mess3(x=0.05, a=0.85)"),
        (
            "left_right(2)",
            "missing a required argument: 'num_symbols'; expected left_right(num_states, num_symbols, *",
        ),
        ("mess3(x=2)", "process:mess3(x=2): x is 2; expected a number in [0, 0.5]"),
        ("mess3(x='a')", "; expected mess3(x=0.05, a=0.85)"),
        ("permuted_symbols(3)", "hmm is a int; expected an HMM"),
        ("mess3(x=", "cannot be read ('(' was never closed); expected process: and a call with numbers, such as"),
        ("", "cannot be read (invalid syntax)"),
        ("3", "is 3, not a process; expected process: and a call"),
        ("mess3(1/0)", "1 / 0 divides by zero"),
        ("mess3(True/2)", "True is not a number"),
        ("mess3(*[0.1])", "* and ** are not allowed; write out the arguments of mess3"),
        ("mess3(**{})", "* and ** are not allowed; write out the arguments of mess3"),
        ("mess3.__globals__", "mess3.__globals__ is not allowed"),
        ("__import__('os').getcwd()", "is not allowed"),
        ("__import__('os')", "no process is called __import__"),
        ("eval('1')", "no process is called eval"),
        ("(lambda: 1)()", "is not allowed"),
        ("mess3(x=0.1 if 1 else 0.2)", "is not allowed"),
        ("mess3(x=[i for i in (1,)])", "is not allowed"),
        ("mess3(x=9**9**9)", "is not allowed"),
        ("_probability(1, 2)", "no process is called _probability"),
        ("(" * 500, "cannot be read (too many nested parentheses)"),
        ("load('outputs/none')", "outputs/none"),
    ],
)
def test_what_cannot_be_a_process_is_answered_in_one_line(name, said):
    with pytest.raises(InputError) as caught:
        named_process(PREFIX + name)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_saved_process_is_part_of_another(tmp_path):
    processes.even().save_pretrained(tmp_path / "even")
    found = load_source(f"process:permuted_symbols(load('{tmp_path / 'even'}'))")
    assert found == PermutedSymbols(processes.even())


def test_a_name_in_yaml_needs_no_quotes():
    name = "process:mess3(x=0.05, a=0.85)"
    assert yaml.safe_load(f"hmm: {name}\ntargets:\n- {name}\n") == {"hmm": name, "targets": [name]}
    assert is_process_name(name)
    assert not is_process_name("outputs/process")


def test_every_constructor_has_a_call_that_makes_a_process():
    for name in set(constructor_names()) - {"load"}:
        assert named_process(PREFIX + (example_of(name) or "")).num_symbols > 1
    assert example_of("load") is None
    assert {"mess3", "bloch_walk", "noisy", "random"} <= set(constructor_names())
    assert CONSTRUCTORS.keys() <= set(constructor_names())
    assert signature_of("random", processes.random) == "random(num_states, num_symbols, *, alpha=1.0, seed=0)"


def test_a_call_alone_is_a_name_unless_a_folder_has_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert load_source("mess3(x=0.05)") == processes.mess3(x=0.05)
    processes.even().save_pretrained("mess3")
    assert load_source("mess3") == processes.even()
    assert load_source("process:mess3") == processes.mess3()
    assert load_source(load_source("mess3")) == processes.even()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mes3", "mes3: neither a folder nor a process that has a name; did you mean mess3? expected a folder, one"),
        ("a/b/c", "a/b/c: neither a folder nor a process that has a name; expected a folder, one of those"),
    ],
)
def test_what_is_no_name_says_which_names_there_are(name, message):
    with pytest.raises(InputError, match=re.escape(message)):
        load_source(name)


def test_an_hmm_by_name_is_an_hmm():
    assert isinstance(load_source("process:umbrella"), HMM)


def test_each_class_of_processes_is_listed_by_its_stored_name():
    """A class that is not could be saved by nobody, and one under another name not be loaded."""
    for kind, entry in kinds().items():
        assert entry.load().stored_name == kind
    classes = [Process]
    for each in classes:  # which grow
        classes += each.__subclasses__()
    own = {each for each in classes if each.__module__.startswith("hmm_datasets.") and "stored_name" in vars(each)}
    assert {each.stored_name for each in own} == KINDS.keys()
