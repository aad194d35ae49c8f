"""Reward against divergence: what can be had, what a wrong reward costs, and where trainers land.

    hmm-datasets experiment frontier --config frontier/small.yaml [--methods dpo rloo ...]

Sequences of a small HMM get a proxy reward, which is optimized, and a gold reward, which was meant. How much of both
the best policy of each divergence from the HMM has, and the best of `n` sequences, is computed exactly, with the point
from which more of the proxy is less of the gold. Then the trainers in `methods.py` optimize the proxy, each at eight
strengths, from the policy of the experiment `objectives`, which can be any distribution of sequences. So what a policy
comes to is exact too. `report.md` in the output folder has the share of the reward that could be had at its divergence
that each policy got, and `frontier.png` shows them all. When started again the experiment continues after the last
policy it trained.
"""

import sys
from dataclasses import MISSING, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hmm_datasets.errors import InputError
from hmm_datasets.runtime.program import run
from hmm_datasets.runtime.settings import setting

# The policy, the task and the trainers are those of the experiment beside this one.
sys.path.append(str(Path(__file__).resolve().parents[1] / "objectives"))

if TYPE_CHECKING:
    from methods import Method, Strength
    from rewards import Rewards

BATCH_SIZE = 512
"""Pairs or rollouts of each step."""


@dataclass
class FrontierSettings:
    """Settings of the experiment."""

    output_dir: str = setting(MISSING, "Output folder.")
    methods: list[str] = setting([], "Names in methods.py; all by default.")
    seeds: list[int] = setting([0, 1, 2], "Seeds of data, rollouts and trainers.")
    steps: int = setting(200, "Optimizer steps of each policy, where they are not what is varied.")
    learning_rates: list[float] = setting([0.02, 0.05, 0.1], "Peaks to choose from, for each method once.")

    def __post_init__(self):
        if not self.seeds or len(set(self.seeds)) < len(self.seeds) or min(self.seeds) < 0:
            raise InputError(f"seeds is {self.seeds}; expected different numbers, 0 or more")
        if not self.learning_rates:
            raise InputError("learning_rates is empty; expected a peak, or several to choose from")


def main(settings: FrontierSettings) -> None:
    """Compute what can be had, train the policies, report."""
    import datasets
    from methods import METHODS
    from plot import write_report
    from policy import TableForCausalLM
    from rewards import Rewards
    from transformers.utils.logging import disable_progress_bar

    unknown = sorted(set(settings.methods).difference(METHODS))
    if unknown:
        raise InputError(f"methods: {unknown[0]!r} is none; expected some of {', '.join(METHODS)}")
    missing = [name for name in METHODS if not METHODS[name].is_installed]
    needed = [name for name in missing if name in settings.methods]
    if needed:
        raise InputError(f"methods: {needed[0]!r} needs a package; methods.py has the command that installs it")
    datasets.disable_progress_bars()
    disable_progress_bar()
    folder, rewards = Path(settings.output_dir), Rewards.standard()
    TableForCausalLM.from_logits(rewards.task.reference.float(), rewards.task.length).save_pretrained(
        folder / "reference"
    )
    names = settings.methods or [name for name in METHODS if name not in missing]
    rows = landings(settings, folder, rewards, {name: METHODS[name] for name in names})
    write_report(folder, rewards, rows, vars(settings))


def landings(
    settings: FrontierSettings, folder: Path, rewards: "Rewards", methods: dict[str, "Method"]
) -> list[dict[str, Any]]:
    """What the policies of every method come to at every strength, by seed."""
    from hmm_datasets.runtime.progress import progress_bar

    searched = len(settings.learning_rates) if len(settings.learning_rates) > 1 else 0
    policies = sum(len(method.strengths) * len(settings.seeds) + searched for method in methods.values())
    rows = []
    with progress_bar(policies, " policies", desc="frontier") as bar:
        for name, method in methods.items():

            def outcome(strength: "Strength", rate: float, seed: int, name: str = name, method: Any = method) -> dict:
                bar.update(1)
                return landed(settings, folder, rewards, name, method, strength, rate, seed)

            rate = settings.learning_rates[0]
            if searched:
                # One search for each method, at a strength in the middle and with a seed of its own.
                middle, other = method.strengths[len(method.strengths) // 2], max(settings.seeds) + 1
                key = "objective" if middle.beta else "share"
                found = {rate: outcome(middle, rate, other)[key] for rate in settings.learning_rates}
                rate = max(found, key=found.__getitem__)
            for strength in method.strengths:
                results = [outcome(strength, rate, seed) for seed in settings.seeds]
                rows.append({"method": name, "strength": str(strength), "learning_rate": rate, "results": results})
            shares = [result["share"] for row in rows if row["method"] == name for result in row["results"]]
            bar.write(f"{name}: {min(shares):.1%} to {max(shares):.1%} of the reward at the same divergence")
    return rows


def landed(
    settings: FrontierSettings,
    folder: Path,
    rewards: "Rewards",
    name: str,
    method: "Method",
    strength: "Strength",
    rate: float,
    seed: int,
) -> dict[str, Any]:
    """What one policy comes to; from its file, if it was trained before."""
    import torch
    from rewards import share_of
    from trials import Budget, Desk, trained

    steps = strength.steps or settings.steps
    path = folder / "policies" / name.replace(" ", "_") / f"{strength.beta:g}-{steps}-{rate:g}-{seed}.json"
    desk = Desk(
        replace(rewards.task, beta=strength.beta),
        reference=folder / "reference",
        data=folder / "data" / f"{steps}x{BATCH_SIZE}",
        output_dir=folder / "trainer",
        budget=Budget(steps, BATCH_SIZE, rate, seed),
    )
    recorded = trained(path, method.make, desk)
    outcome = rewards.outcome(torch.tensor(recorded["logits"], dtype=torch.float64))
    return {
        "seed": seed,
        "seconds": recorded["seconds"],
        **outcome._asdict(),
        "share": share_of(rewards.totals, outcome),
        "objective": outcome.reward - strength.beta * outcome.divergence,
    }


if __name__ == "__main__":
    run(main)
