import json
import shutil

import numpy as np
import pytest

from hmm_datasets.errors import InputError
from hmm_datasets.hmm import processes
from hmm_datasets.hmm.families import HMMMixture, PermutedEmissions, PermutedSymbols, RandomChains, load_source
from hmm_datasets.hmm.model import HMM

FAMILIES = {
    "symbols": PermutedSymbols(processes.mess3(0.15, 0.6), group=3),
    "emissions": PermutedEmissions(processes.random(4, 6, seed=1)),
    "chains": RandomChains((2, 5), alpha=0.5, alphabet=9, group=2),
    "zipf": RandomChains(3, zipf=1.5, doubly_stochastic=True),
    "hidden": RandomChains(3, alpha=1.0, emission_alpha=0.3, alphabet=7, start="stationary"),
    "mixture": HMMMixture((processes.golden_mean(), processes.even()), (0.25, 0.75), group=4),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", FAMILIES)
def test_a_saved_family_comes_back_with_the_same_stream(name, tmp_path):
    family = FAMILIES[name]
    family.save_pretrained(tmp_path / "family")
    loaded = load_source(tmp_path / "family")
    assert type(loaded) is type(family)
    assert loaded.settings() == family.settings()
    assert loaded.fingerprint() == family.fingerprint()
    assert np.array_equal(loaded.sample(20, 12, seed=5), family.sample(20, 12, seed=5))


def test_an_hmm_comes_back_as_one(tmp_path):
    processes.mess3(0.15, 0.6).save_pretrained(tmp_path / "hmm")
    assert load_source(tmp_path / "hmm") == processes.mess3(0.15, 0.6)


def test_fingerprints_tell_families_apart():
    base = processes.random(4, 6, seed=1)
    others = [
        PermutedEmissions(base, group=2),
        PermutedSymbols(base),
        PermutedEmissions(processes.random(4, 6, seed=2)),
        RandomChains(3, alpha=0.5),
        RandomChains(3, alpha=1.0),
    ]
    found = {family.fingerprint() for family in [*others, *FAMILIES.values()]}
    assert len(found) == len(others) + len(FAMILIES)
    assert base.fingerprint() not in found


@pytest.mark.parametrize("name", FAMILIES)
def test_exact_distributions_exist_where_has_exact_distribution_is_true(name):
    family = FAMILIES[name]
    tokens = family.sample(2, 4, seed=1)
    if family.has_exact_distribution:
        assert np.allclose(family.next_token_probs(tokens).sum(-1), 1)
    else:
        with pytest.raises(InputError, match="oracle_next_token_probs"):
            family.next_token_probs(tokens)
    assert family.has_exact_distribution == (name not in ("zipf", "hidden"))
    assert not PermutedEmissions(processes.random(8, 3, seed=0)).has_exact_distribution
    assert not PermutedSymbols(processes.random(3, 8, seed=0)).has_exact_distribution


def test_a_folder_put_together_from_two_is_refused(tmp_path):
    FAMILIES["emissions"].save_pretrained(tmp_path / "a")
    PermutedEmissions(processes.random(4, 6, seed=9)).save_pretrained(tmp_path / "b")
    shutil.rmtree(tmp_path / "a" / "hmm-0")
    with pytest.raises(InputError, match=r"no such file|neither a folder"):
        load_source(tmp_path / "a")
    shutil.copytree(tmp_path / "b" / "hmm-0", tmp_path / "a" / "hmm-0")
    with pytest.raises(InputError, match=r"fingerprint .* copy all of them again"):
        load_source(tmp_path / "a")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"family": "Permuted"}, "expected one of HigherOrderChains, Mixture, PermutedEmissions"),
        ({"format_version": 99}, "format_version 1"),
        ({"settings": {"group": 0}}, "group is 0"),
        ({"settings": {"size": 1}}, "expected those of PermutedEmissions"),
    ],
)
def test_a_file_that_is_not_a_family_is_refused_in_one_line(change, said, tmp_path):
    FAMILIES["emissions"].save_pretrained(tmp_path)
    path = tmp_path / "family.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(InputError, match=said) as caught:
        load_source(tmp_path)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_the_hmms_of_a_family_keep_the_names_of_their_symbols(tmp_path):
    named = HMM(transition=[[0.5, 0.5], [0.5, 0.5]], emission=np.eye(2), vocabulary=["up", "down"])
    PermutedSymbols(named).save_pretrained(tmp_path)
    assert load_source(tmp_path).hmm.vocabulary == ("up", "down")


def test_a_mixture_keeps_the_name_and_fingerprint_it_has_in_files(tmp_path):
    FAMILIES["mixture"].save_pretrained(tmp_path)
    stored = json.loads((tmp_path / "family.json").read_text())
    assert (stored["family"], stored["fingerprint"]) == ("Mixture", "698f86532a71a96fb45cb5679ae3546c")
    assert load_source(tmp_path) == FAMILIES["mixture"]
