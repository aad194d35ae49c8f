from hmm_datasets.hmm.fitting.fit import fit_hmm
from hmm_datasets.hmm.fitting.initial import random_guess
from hmm_datasets.hmm.fitting.settings import FitSettings


def test_a_fit_starts_from_the_guess_of_its_seed():
    found = fit_hmm([[0, 3, 1, 2]], FitSettings(3, max_epochs=0, seed=1), show_progress=False).hmm
    assert found == random_guess(3, 4, seed=1) == random_guess(3, 4, seed=1) != random_guess(3, 4, seed=2)
