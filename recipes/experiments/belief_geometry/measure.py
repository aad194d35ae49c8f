"""The beliefs that linear probes find in a trained model, position by position, for pictures.

[`probe_beliefs`][hmm_datasets.evaluation.beliefs.probe_beliefs] summarizes the same probes in figures.
"""

import os

import numpy as np
import torch
from plot import PROBES, ProbedBeliefs
from transformers import AutoModelForCausalLM

from hmm_datasets.data.sequences import TEST_FIRST
from hmm_datasets.evaluation.linear_probes import LinearProbe, split_sequences
from hmm_datasets.hmm.model import HMM
from hmm_datasets.training.pretrained import load_pretrained


def probed_beliefs(
    model: str | os.PathLike, hmm: str | os.PathLike, length: int, num_sequences: int, seed: int = 0
) -> ProbedBeliefs:
    """Probe a model's last layer and all its layers together on held-out sequences of an HMM.

    The probes are those of [`~hmm_datasets.evaluation.beliefs.probe_beliefs`]: fitted on half of the sequences, and
    tested on the other half, which is returned.

    Args:
        model (path): folder of a causal language model that begins rows with the token `E`.
        hmm (path): folder of the [`~hmm_datasets.HMM`].
        length (`int`): symbols per sequence.
        num_sequences (`int`): held-out sequences of the stream `seed`, 4 or more.
        seed (`int`, *optional*, defaults to 0): seed of the stream and of the split.
    """
    process = HMM.from_pretrained(hmm)
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else torch.device("cpu")
    network = load_pretrained(AutoModelForCausalLM, str(model)).to(device).eval()
    tokens = torch.from_numpy(process.sample(num_sequences, length, seed=seed, first=TEST_FIRST).astype(np.int64))
    beliefs, rows = process.beliefs(tokens), torch.nn.functional.pad(tokens, (1, 0), value=process.num_symbols)
    probes: dict[str, LinearProbe] = {}
    true, probed = [], {name: [] for name in PROBES}
    for half, held_out in zip(split_sequences(num_sequences, seed), (False, True), strict=True):
        for part in torch.from_numpy(half).split(256):
            with torch.inference_mode():
                hidden = network(input_ids=rows[part].to(device), use_cache=False, output_hidden_states=True)
            targets = {"belief": beliefs[part].flatten(0, 1).to(device)}
            features = dict(zip(PROBES, (hidden.hidden_states[-1], torch.cat(hidden.hidden_states, -1)), strict=True))
            for name, table in features.items():
                flat = table.flatten(0, 1)
                probe = probes.setdefault(name, LinearProbe([flat.shape[1]], {"belief": process.num_states}))
                if held_out:
                    probed[name].append(probe.test(flat, targets).cpu().numpy())
                else:
                    probe.fit(flat, targets)
            if held_out:
                true.append(targets["belief"].cpu().numpy())
    return ProbedBeliefs(np.concatenate(true), {name: np.concatenate(parts) for name, parts in probed.items()})
