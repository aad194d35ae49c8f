"""Do DPO and GRPO end where theory says they should? Post-training of a small Llama whose optimum is known exactly.

    hmm-datasets experiment known-optimum --config known_optimum/small.yaml [--trials dpo grpo ...]

A Llama is pretrained on sequences of Mess3, whose symbols then get rewards. The trainers of the recipes `dpo` and
`grpo` tune it for each trial of `trials.yaml` and each `beta`: DPO on pairs drawn from the HMM and labelled by the
reward, GRPO with the reward itself. Each trial is a run in a folder of its own, as those recipes write it.
The optimum is [`hmm_datasets.TiltedHMM`]. `report.md` in the output folder has the divergence of every policy from it,
in nats per token, and `frontier.png` the rewards and divergences from the HMM that the policies had along training,
below the frontier that no policy can exceed. When started again the experiment continues where it stopped.
"""

import shlex
from dataclasses import MISSING, dataclass
from pathlib import Path

from hmm_datasets.runtime.program import run
from hmm_datasets.runtime.settings import setting

LENGTH = 16
"""Symbols per sequence."""
REWARDS = [0.0, 0.3, -0.3]
"""Reward of each of the three symbols."""
STEPS = {"dpo": 450, "grpo": 200}
"""Optimizer steps."""
BATCH_SIZES = {"dpo": 256, "grpo": 512}
"""Pairs or rollouts per optimizer step."""
LEARNING_RATE = 1e-3
"""Peak learning rate."""
MEASUREMENTS = 5
"""Measurements of each policy along training."""


@dataclass
class KnownOptimumSettings:
    """Settings of the experiment."""

    output_dir: str = setting(MISSING, "Output folder.")
    betas: list[float] = setting([1.0], "Weights of the divergence from the reference.")
    trials: list[str] = setting([], "Names in trials.yaml; all by default.")
    pretrain_tokens: int = setting(4_000_000, "Tokens to pretrain on.")
    steps: int | None = setting(None, "Optimizer steps of each policy; by default 450 of DPO and 200 of GRPO.")
    num_sequences: int = setting(4096, "Sequences drawn from each policy at the end.")
    seed: int = setting(0, "Seed of pairs, rollouts and trainers.")


def main(settings: KnownOptimumSettings) -> None:
    """Pretrain, try, report."""
    from plot import write_known_optimum

    from hmm_datasets.hmm import processes
    from hmm_datasets.operations.stages import run_or_exit

    folder = Path(settings.output_dir)
    chosen = trials_of(settings)
    processes.mess3(x=0.05, a=0.85).save_pretrained(folder / "hmm")
    pretrain = (
        f"hmm-datasets pretrain --config known_optimum/pretrain.yaml --hmm {_quoted(folder / 'hmm')} "
        f"--length {LENGTH} --train_tokens {settings.pretrain_tokens} "
        f"--output_dir {_quoted(folder / 'pretrain')}"
    )
    run_or_exit((("A small Llama on sequences of Mess3", pretrain),))
    results = []
    for name, beta, trial in chosen:
        result = tried(settings, folder, name, beta, trial)
        if result is None:  # interrupted, with a checkpoint
            return
        results.append(result)
    write_known_optimum(folder, results)


def trials_of(settings: KnownOptimumSettings) -> list[tuple[str, float, dict]]:
    """Name, `beta` and description of every trial, in the order of `trials.yaml`."""
    from hmm_datasets.errors import InputError
    from hmm_datasets.files import read_yaml

    described = read_yaml(Path(__file__).with_name("trials.yaml"))
    unknown = sorted(set(settings.trials) - described.keys())
    if unknown:
        raise InputError(f"trials: {unknown[0]!r} is not in trials.yaml; expected some of {', '.join(described)}")
    names = [name for name in described if not settings.trials or name in settings.trials]
    return [(name, beta, described[name]) for name in names for beta in described[name].get("betas", settings.betas)]


def tried(settings: KnownOptimumSettings, folder: Path, name: str, beta: float, trial: dict) -> dict | None:
    """The result of a trial, from its folder if it has one; None if its run was interrupted."""
    import dataclasses

    from measure import MEASUREMENTS_NAME, Measurements, policy_tuner, preference_tuner
    from policy import measure_policy
    from transformers import AutoModelForCausalLM

    from hmm_datasets import TiltedHMM
    from hmm_datasets.files import read_json, read_log, write_json
    from hmm_datasets.hmm.model import HMM
    from hmm_datasets.training.pretrained import load_pretrained
    from hmm_datasets.training.run import train_and_save

    method, base = trial["method"], folder / "pretrain"
    optimum = TiltedHMM(HMM.from_pretrained(folder / "hmm"), REWARDS, beta, LENGTH)
    steps = STEPS[method] if settings.steps is None else settings.steps
    budget = {"steps": trial.get("steps", steps), "batch_size": BATCH_SIZES[method]}
    budget |= {"learning_rate": LEARNING_RATE, "seed": settings.seed}
    described = {"name": name, **trial, "beta": beta, "optimum": optimum.fingerprint(), **budget}
    run_folder = folder / "trials" / f"{name}-{beta:g}"
    path = run_folder / "result.json"
    recorded = read_json(path) if path.exists() else {}
    if {key: recorded.get(key) for key in described} == described:
        print(f"{path}: already done", flush=True)
        return recorded

    def measure(model, num_sequences: int = 1024, seed: int = 0) -> dict:
        return dataclasses.asdict(measure_policy(model, optimum, num_sequences, seed=seed)) | {
            "num_sequences": num_sequences
        }

    make = {"dpo": preference_tuner, "grpo": policy_tuner}[method]
    options = {key: trial[key] for key in ("reference", "divergence_in", "settings") if key in trial}
    trainer = make(base, optimum, output_dir=run_folder, **budget, **options)
    trainer.add_callback(Measurements(measure, MEASUREMENTS))
    summary = train_and_save(trainer, settings=dataclasses.asdict(settings), base=str(base), data=described)
    if "interrupted" in summary:
        return None
    final = measure(load_pretrained(AutoModelForCausalLM, str(run_folder)), settings.num_sequences, seed=1)
    print(f"{name}, beta {beta:g}: {final['divergence']:.5f} nats per token from the optimum (KL)", flush=True)
    points = {
        "expected_reward": optimum.expected_reward,
        "kl_to_reference": optimum.kl_to_reference,
        "length": optimum.length,
        "rewards": list(REWARDS),
    }
    along = read_log(run_folder / MEASUREMENTS_NAME)
    result = {**described, "seconds": summary["seconds"], "final": final, "along": along, "exact": points}
    write_json(path, result)
    return result


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))


if __name__ == "__main__":
    run(main)
