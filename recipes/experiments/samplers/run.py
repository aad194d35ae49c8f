"""What samplers do to a distribution that is known.

    hmm-datasets experiment samplers --config samplers/small.yaml [--parts decoding beams ...]

*decoding*: the exact distribution of what `generate` emits with temperature, top-k, top-p and others, with watermarks
too, and how far it is from the process. *beams*: how often beam search finds the most likely sequence. *assisted*:
whether assisted generation has the target's distribution, and how many proposals it takes. *unmasking*: how wrong a
masked diffusion model is that fills in several tokens at once, with an exact denoiser and a trained one.
*calibration*: what the calibration error that is reported says about the true one. `report.md` in the output folder
has the tables, `samplers.png` the picture. When started again the experiment continues after the last result.
"""

from collections.abc import Callable
from dataclasses import MISSING, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hmm_datasets.errors import InputError
from hmm_datasets.runtime.program import run
from hmm_datasets.runtime.settings import setting

PARTS = ("decoding", "beams", "assisted", "unmasking", "calibration")
DECODED = {"num_states": 4, "num_symbols": 8, "alpha": 0.3}
"""The random HMMs that are decoded, sequences of five tokens: there are 32,768 of them."""
DECODED_LENGTH, ASSISTED_LENGTH, UNMASKED_LENGTH = 5, 4, 8
NUM_HMMS = 50
"""HMMs of each seed whose most likely sequence is searched."""
WIDTHS = (1, 2, 4, 8)
"""Beams."""
ASSISTED: dict[str, tuple[str, str | None, dict[str, Any]]] = {
    "another HMM": ("hmm", "other", {}),
    "another HMM, temperature 0.7": ("hmm", "other", {"temperature": 0.7}),
    "another HMM, top-k 2": ("hmm", "other", {"top_k": 2}),
    "another HMM, top-p 0.8": ("hmm", "other", {"top_p": 0.8}),
    "a Llama": ("hmm", "llama", {"suppress_tokens": [3]}),  # the beginning token, which a trained model may say
    "an HMM, for a Llama": ("llama", "hmm", {"suppress_tokens": [3]}),
    "none, prompt lookup": ("hmm", None, {}),
}
"""Draft, target and settings of each trial of assisted generation, by what is said of the draft."""
CALIBRATED = {"exact": {}, "temperature 0.7": {"temperature": 0.7}, "temperature 1.3": {"temperature": 1.3}}
BINS, PREDICTIONS = 10, (100, 1000, 10_000)


@dataclass
class SamplersSettings:
    """Settings of the experiment."""

    output_dir: str = setting(MISSING, "Output folder.")
    parts: list[str] = setting([], f"Some of {', '.join(PARTS)}; all by default.")
    seeds: list[int] = setting([0, 1, 2], "Seeds of processes, models and draws.")
    draws: int = setting(2000, "Sequences of each trial of assisted generation.")
    steps: int = setting(2000, "Optimizer steps of each model.")

    def __post_init__(self):
        if not self.seeds or len(set(self.seeds)) < len(self.seeds) or min(self.seeds) < 0:
            raise InputError(f"seeds is {self.seeds}; expected different numbers, 0 or more")
        unknown = sorted(set(self.parts).difference(PARTS))
        if unknown:
            raise InputError(f"parts: {unknown[0]!r} is none; expected some of {', '.join(PARTS)}")


def main(settings: SamplersSettings) -> None:
    """Measure each part for each seed, report."""
    from plot import write_report
    from transformers.utils.logging import disable_progress_bar

    from hmm_datasets.files import read_json, write_json

    disable_progress_bar()
    folder, results = Path(settings.output_dir), {}
    measured: dict[str, Callable[[int], Any]] = {
        "decoding": decoding,
        "beams": beams_of,
        "assisted": partial(assisted_of, settings.draws, settings.steps, folder),
        "unmasking": partial(unmasking_of, settings.steps, folder),
        "calibration": calibration,
    }
    budget = {"num_hmms": NUM_HMMS, "draws": settings.draws, "steps": settings.steps, "measures": 2}
    for part in settings.parts or PARTS:
        found = []
        for seed in settings.seeds:
            path = folder / "results" / f"{part}-{seed}.json"
            recorded = read_json(path) if path.exists() else {}
            if recorded.get("budget") != budget:
                recorded = {"budget": budget, "rows": measured[part](seed)}
                write_json(path, recorded)
            found.append(recorded["rows"])
        results[part] = found
    write_report(folder, results, vars(settings))


def _decoded_model(seed: int) -> Any:
    from hmm_datasets import processes
    from hmm_datasets.hmm.causal_lm import HMMForCausalLM

    hmm = processes.random(seed=seed, **DECODED)
    return HMMForCausalLM.from_hmm(hmm, bos_token_id=hmm.num_symbols)


def decoding(seed: int) -> list[dict[str, Any]]:
    """A row for each of [`decoding.SETTINGS`] and [`watermarks.SYNTHID`]."""
    from decoding import SETTINGS, distance, log_probs_of_all, next_log_probs
    from watermarks import SYNTHID, best_detection, detection, green_tokens, synthid, synthid_config

    model, symbols = _decoded_model(seed), DECODED["num_symbols"]
    tables = next_log_probs(model, symbols, DECODED_LENGTH)
    exact = log_probs_of_all(tables)
    green, rows = green_tokens(symbols, DECODED_LENGTH, model.config.bos_token_id), []
    for name, settings in SETTINGS.items():
        found = log_probs_of_all(next_log_probs(model, symbols, DECODED_LENGTH, **settings))
        row = {"name": name, **distance(exact, found, DECODED_LENGTH)}
        if "watermarking_config" in settings:
            row |= {"detected": detection(exact, found, green), "green": float(found.exp().numpy() @ green)}
            row["best"] = best_detection(exact, found)
        rows.append(row)
    for name, settings in SYNTHID.items():
        found, scores = synthid(tables, synthid_config(seed=seed, **settings), model.config.bos_token_id)
        row = {"name": name, **distance(exact, found, DECODED_LENGTH), "detected": detection(exact, found, scores)}
        row["best"] = best_detection(exact, found)
        rows.append(row)
    return rows


def beams_of(seed: int) -> list[dict[str, Any]]:
    """A row for each width: how often the most likely sequence was found, and how far below it beams end."""
    from decoding import beams

    gaps = beams(NUM_HMMS, DECODED["num_states"], 5, 6, list(WIDTHS), first_seed=seed * NUM_HMMS)
    return [
        {"width": width, "found": float((found < 1e-9).mean()), "gap": float(found.mean()), "most": float(found.max())}
        for width, found in gaps.items()
    ]


def assisted_of(draws: int, steps: int, folder: Path, seed: int) -> list[dict[str, Any]]:
    """A row for each of [`ASSISTED`]."""
    from dataclasses import asdict

    from models import causal_model
    from speculative import assisted

    from hmm_datasets import processes
    from hmm_datasets.hmm.process_causal_lm import ProcessForCausalLM

    hmm, other = (processes.random(3, 3, alpha=0.5, seed=one) for one in (1, 2))
    llama = causal_model(hmm, ASSISTED_LENGTH, steps, seed, folder / "trainer")
    rows = []
    for name, (target, draft, settings) in ASSISTED.items():
        # New ones for each trial, since the settings of a draft stay with it.
        made = {
            None: None,
            "hmm": ProcessForCausalLM.from_process(hmm, bos_token_id=3),
            "other": ProcessForCausalLM.from_process(other, bos_token_id=3),
            "llama": llama,
        }
        found = assisted(made[target], made[draft], 3, ASSISTED_LENGTH, draws, seed, **settings)
        rows.append({"name": name, **asdict(found)})
    return rows


def unmasking_of(steps: int, folder: Path, seed: int) -> list[dict[str, Any]]:
    """A row for each denoiser, order and number of tokens at a step."""
    import numpy as np
    import torch
    from decoding import all_rows, distance
    from models import denoiser, marginals_of
    from unmasking import ORDERS, exact_marginals, written

    from hmm_datasets import processes

    hmm, length = processes.mess3(0.05, 0.85), UNMASKED_LENGTH
    log_p = torch.from_numpy(hmm.log_likelihood(all_rows(3, length)))
    trained = marginals_of(denoiser(hmm, length, steps, seed, folder / "trainer"), 3, length)
    rows = []
    for name, marginals in (("exact", exact_marginals(log_p.exp().numpy(), 3, length)), ("trained", trained)):
        for order in ORDERS:
            for per_step in (1, 2, 4, 8):
                probs = written(marginals, 3, length, per_step, order)
                with np.errstate(divide="ignore"):
                    found = distance(log_p, torch.from_numpy(np.log(probs)), length)
                rows.append({"denoiser": name, "order": order, "steps": length // per_step, **found})
    return rows


def calibration(seed: int) -> list[dict[str, Any]]:
    """A row for each predictor: its calibration error as harnesses estimate it, and the true one."""
    import numpy as np
    import torch
    from decoding import distance, expected_calibration_error, log_probs_of_all, next_log_probs

    model, symbols = _decoded_model(seed), DECODED["num_symbols"]
    true = next_log_probs(model, symbols, DECODED_LENGTH)
    exact = log_probs_of_all(true)
    # Contexts of every length, each length as often.
    begins = [log_probs_of_all(true[:t]).exp().numpy() for t in range(DECODED_LENGTH)]
    weights = np.concatenate(begins) / DECODED_LENGTH
    generator, rows = np.random.default_rng(seed), []
    for name, settings in CALIBRATED.items():
        tables = next_log_probs(model, symbols, DECODED_LENGTH, **settings)
        log_q, said = log_probs_of_all(tables), torch.cat(tables).exp().numpy()
        best = said.argmax(1)
        confidence, accuracy = said.max(1), torch.cat(true).exp().numpy()[np.arange(len(best)), best]
        row = {
            "name": name,
            "divergence": distance(exact, log_q, DECODED_LENGTH)["divergence"],
            "true": float(weights @ np.abs(confidence - accuracy)),
            "binned": expected_calibration_error(confidence, accuracy, weights, BINS),
        }
        for count in PREDICTIONS:
            estimates = []
            for _ in range(100):
                drawn = generator.choice(len(weights), count, p=weights / weights.sum())
                right = generator.random(count) < accuracy[drawn]
                ones = np.ones(count)
                estimates.append(expected_calibration_error(confidence[drawn], right.astype(float), ones, BINS))
            row[f"of {count}"] = float(np.mean(estimates))
        rows.append(row)
    return rows


if __name__ == "__main__":
    run(main)
