"""From uniform to unigram to bigram to optimal: when does a model learn to count in its context?

    hmm-datasets icl-transition

Every row comes from a Markov chain of its own, over three symbols, whose transition rows are drawn from a Dirichlet
distribution of concentration 0.3. So nothing is to be learnt but the way: to predict well, a model must find the
statistics of the chain in the row itself. The optimum is known exactly (counts of what followed each symbol, plus
0.3), and so are the steps below it: the uniform distribution, and the unigram and the bigram of the context. Such a
model is stuck at the unigram for a while, until heads form that look up what followed the current symbol before; see
Edelman, Edelman, Goel, Malach and Tsilivis, "The Evolution of Statistical Induction Heads: In-Context Learning Markov
Chains", 2024.

The report in `outputs/icl_transition/evaluation` draws the divergence from each predictor along training, and names
the step at which the model is closest to it and that at which it leaves it behind. Some minutes on two cores; started
again it goes on where it stopped.
"""

import argparse
import sys

from hmm_datasets.hmm.families import RandomChains
from hmm_datasets.stages import run_stages

STAGES = (
    (
        "A Llama of two layers, each row from a chain of its own",
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
