"""The variants of the experiment on phases of in-context learning, without its training."""

import pytest
from experiments import load

from hmm_datasets.runtime.command_line import parse_settings
from hmm_datasets.runtime.shipped import EXPERIMENTS, shipped

FOLDER = shipped(EXPERIMENTS) / "icl_transition"
RECIPE = load("icl_transition")


def settings(*arguments: str):
    return parse_settings(RECIPE.ICLTransitionSettings, arguments=list(arguments))[0]


def test_without_settings_the_experiment_is_that_of_three_symbols():
    chosen = settings()
    family = RECIPE.chains(chosen)
    assert (family.num_symbols, family.alpha, family.start) == (3, 0.3, "uniform")
    (_, pretrain), (_, evaluate) = RECIPE.stages(chosen)
    assert "--hmm outputs/icl_transition/chains --length 96 --max_steps 600" in pretrain
    assert "evaluate outputs/icl_transition/pretrain" in evaluate


@pytest.mark.parametrize(
    ("name", "symbols", "exact"),
    [("fifty_symbols", 50, True), ("doubly_stochastic", 3, False), ("zipf", 8, False), ("stationary", 3, False)],
)
def test_variants_have_chains_and_a_folder_of_their_own(name, symbols, exact):
    chosen = settings("--config", str(FOLDER / f"{name}.yaml"))
    family = RECIPE.chains(chosen)
    assert (family.num_symbols, family.has_exact_distribution) == (symbols, exact)
    assert family.has_oracle
    assert chosen.output_dir == f"outputs/icl_transition_{name}"
    assert f"--output_dir {chosen.output_dir}/pretrain" in RECIPE.stages(chosen)[0][1]
