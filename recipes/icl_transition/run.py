"""From uniform to unigram to bigram to optimal: when does a model learn to count in its context?

    hmm-datasets icl-transition

Every row comes from a different Markov chain over three symbols, whose transition rows are drawn from a Dirichlet
distribution with concentration 0.3. So a model cannot learn the statistics of one chain; to predict well, it must
estimate them from the row itself. The optimum is known exactly: it predicts by the counts of what followed each symbol
in the row, plus 0.3. The weaker predictors are known too: the uniform distribution, and the unigram and the bigram of
the context. Such a model stays near the unigram for a while, until attention heads form that look up what followed the
current symbol before; see Edelman, Edelman, Goel, Malach and Tsilivis, "The Evolution of Statistical Induction Heads:
In-Context Learning Markov Chains", 2024.

The report in `outputs/icl_transition/evaluation` shows the divergence from each predictor during training, and the
steps at which the model is closest to a predictor and passes it. It takes some minutes on two cores; when started
again it continues where it stopped.
"""

import argparse
import sys

from hmm_datasets.hmm.families import RandomChains
from hmm_datasets.stages import run_stages

STAGES = (
    (
        "A Llama of two layers; every row from a different chain",
        "hmm-datasets pretrain --launch cpu2 --config icl_transition/pretrain.yaml",
    ),
    (
        "Which predictor was it like, and when?",
        "hmm-datasets evaluate outputs/icl_transition/pretrain --launch cpu2 --tasks optimum training "
        "--num_sequences 1024 --output_dir outputs/icl_transition/evaluation",
    ),
)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__.partition("\n")[0]).parse_args()
    RandomChains(num_states=3, alpha=0.3).save_pretrained("outputs/icl_transition/chains")
    sys.exit(run_stages(STAGES))
