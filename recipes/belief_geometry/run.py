"""Does a transformer that learns to predict an HMM's symbols come to hold the beliefs about its state?

    hmm-datasets belief-geometry [FOLDER]

The process is Mess3 with `x = 0.05` and `a = 0.85`, that of Shai, Marzen, Teixeira, Oldenziel and Riechers,
"Transformers represent belief state geometry in their residual stream", 2024: three states, three symbols, beliefs
that fill a fractal in the triangle. (With `x = 0.15` and `a = 0.6`, the other usual choice, the uniform distribution
is within 0.01 nats of the optimum, and to be near it would show nothing.) A Llama of three layers learns to predict
the sequences; a linear map from its hidden states to the exact beliefs is then fitted on half of the held-out
sequences and tested on the other half.

The controls in the table say what a probe finds anyway. The last symbol alone explains 0.81 of the variance of the
beliefs (layer 0, the embedding), and the random features of an untrained network more: it is what they leave
unexplained that training makes vanish. Shuffled beliefs are not found at all.

The report in `outputs/belief_geometry/evaluation` (or FOLDER's) draws the true simplex beside the probed one. Some
minutes on two cores; started again it goes on where it stopped.
"""

import argparse
import sys
from pathlib import Path

from hmm_datasets.hmm import processes
from hmm_datasets.stages import run_stages


def main(folder: str) -> int:
    """Write the HMM, train, measure; the exit code."""
    processes.mess3(x=0.05, a=0.85).save_pretrained(Path(folder) / "hmm")
    stages = (
        (
            "A Llama of three layers on sequences of Mess3",
            f"hmm-datasets pretrain --launch cpu2 --config belief_geometry/pretrain.yaml --hmm {folder}/hmm "
            f"--output_dir {folder}/pretrain",
        ),
        (
            "How far from the optimum, and are the beliefs there?",
            f"hmm-datasets evaluate {folder}/pretrain --launch cpu2 --tasks optimum beliefs training "
            f"--num_sequences 2048 --output_dir {folder}/evaluation",
        ),
    )
    return run_stages(stages)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", default="outputs/belief_geometry", help="where everything goes")
    sys.exit(main(parser.parse_args().folder))
