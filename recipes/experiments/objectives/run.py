"""Where does every objective of post-training end, and does the library implement it?

    hmm-datasets experiment objectives --config objectives/small.yaml [--trials dpo grpo ...]

A policy of 93 numbers can be any distribution of the 63 sequences that a small HMM emits, and starts in the HMM's own.
For each objective of `theory.py` the distribution where it should end is computed, by summing over all sequences. Then
each trainer of TRL in `trials.py` gets the same policy, as much data and as many steps. Its learning rate is the best
of a short search that is the same for all. `report.md` in the output folder has the distance of every policy from its
own target and from the tilted distribution, which is the optimum of the reward minus `beta` times the divergence, all
exact, and `objectives.png` shows them. Faults from the history of trainers are put back too, one at a time, and the
trial must see them. When started again the experiment continues after the last policy it trained.
"""

from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hmm_datasets.errors import InputError
from hmm_datasets.runtime.program import run
from hmm_datasets.runtime.settings import setting

if TYPE_CHECKING:
    from theory import Task
    from torch import Tensor

BATCH_SIZE = 512
"""Pairs, sequences or rollouts of each step."""


@dataclass
class ObjectivesSettings:
    """Settings of the experiment."""

    output_dir: str = setting(MISSING, "Output folder.")
    trials: list[str] = setting([], "Names in trials.py, other_libraries.py and faults.py; all by default.")
    seeds: list[int] = setting([0, 1, 2], "Seeds of data, rollouts and trainers.")
    steps: int = setting(200, "Optimizer steps of each policy.")
    learning_rates: list[float] = setting(
        [0.02, 0.05, 0.1], "Peaks to choose from, in half as many steps with a seed of their own."
    )

    @property
    def search_steps(self) -> int:
        """Steps of each policy of the search."""
        return max(1, self.steps // 2)

    def __post_init__(self):
        if not self.seeds or len(set(self.seeds)) < len(self.seeds) or min(self.seeds) < 0:
            raise InputError(f"seeds is {self.seeds}; expected different numbers, 0 or more")
        if not self.learning_rates:
            raise InputError("learning_rates is empty; expected a peak, or several to choose from")


def main(settings: ObjectivesSettings) -> None:
    """Compute the targets, train the policies, report."""
    import datasets
    from faults import FAULTS
    from other_libraries import OTHER_LIBRARIES, is_installed
    from plot import write_report
    from policy import TableForCausalLM
    from theory import standard_task
    from transformers.utils.logging import disable_progress_bar
    from trials import TRIALS

    known = [*TRIALS, *OTHER_LIBRARIES, *FAULTS]
    unknown = sorted(set(settings.trials).difference(known))
    if unknown:
        raise InputError(f"trials: {unknown[0]!r} is none; expected some of {', '.join(known)}")
    missing = [name for name in OTHER_LIBRARIES if not is_installed(name)]
    needed = [name for name in missing if name in settings.trials]
    if needed:
        raise InputError(f"trials: {needed[0]!r} needs a package; other_libraries.py has the command that installs it")
    datasets.disable_progress_bars()
    disable_progress_bar()
    folder, task = Path(settings.output_dir), standard_task()
    TableForCausalLM.from_logits(task.reference.float(), task.length).save_pretrained(folder / "reference")
    names = settings.trials or [name for name in known if name not in missing]
    faulty = [name for name in names if name in FAULTS]
    # A fault is measured beside its trial.
    clean = list(dict.fromkeys(FAULTS[name].trial if name in FAULTS else name for name in names))
    bench = Bench(settings, folder, task, len(clean), len(faulty))
    rows = {name: bench.tried(name) for name in clean}
    faults = [{"name": name, **bench.with_fault(name, rows[FAULTS[name].trial])} for name in faulty]
    bench.close()
    write_report(folder, task, list(rows.values()), faults, {**vars(settings), "batch_size": BATCH_SIZE})


class Bench:
    """Trains policies, each from the reference, and remembers in files what they came to.

    Args:
        settings ([`ObjectivesSettings`]): the budget.
        folder (path): the output folder, with the reference.
        task ([`theory.Task`]): the task.
        num_trials, num_faults (`int`): how many are going to be tried, for the progress bar.
    """

    def __init__(self, settings: ObjectivesSettings, folder: Path, task: "Task", num_trials: int, num_faults: int):
        from hmm_datasets.runtime.progress import progress_bar

        self._settings, self._folder, self._task = settings, folder, task
        self._targets: dict[str, Tensor | None] = {}
        rates = len(settings.learning_rates)
        search = num_trials * rates * settings.search_steps if rates > 1 else 0
        steps = (num_trials + num_faults) * len(settings.seeds) * settings.steps + search
        self._bar = progress_bar(steps, " steps", desc="policies")

    def close(self) -> None:
        """End the progress bar."""
        self._bar.close()

    def _target(self, objective: str) -> "Tensor | None":
        from theory import target_of

        if objective not in self._targets:
            self._targets[objective] = target_of(self._task, objective)
        return self._targets[objective]

    def tried(self, name: str) -> dict[str, Any]:
        """A trial's target, learning rate, and the policies of all seeds."""
        from other_libraries import OTHER_LIBRARIES
        from trials import TRIALS

        settings = self._settings
        objective, make = OTHER_LIBRARIES[name] if name in OTHER_LIBRARIES else (name, TRIALS[name])
        reached = self._target(objective)
        rates, key = settings.learning_rates, "from_tilted" if reached is None else "from_own"
        rate, seed = rates[0], max(settings.seeds) + 1
        if len(rates) > 1:
            found = {
                rate: self._trained(name, make, reached, settings.search_steps, rate, seed)[key] for rate in rates
            }
            rate = min(found, key=found.__getitem__)
        results = [self._trained(name, make, reached, settings.steps, rate, seed) for seed in settings.seeds]
        distances = ", ".join(f"{result['from_own']:.5f}" for result in results if reached is not None)
        self._bar.write(f"{name}: {f'{distances} nats per token from its target' if distances else 'has no target'}")
        at = None if reached is None else described(self._task, reached)
        return {"name": name, "learning_rate": rate, "target": at, "results": results}

    def with_fault(self, name: str, clean: dict[str, Any]) -> dict[str, Any]:
        """The policies of all seeds with a fault, beside those of the trial without it."""
        from faults import FAULTS

        fault, settings, rate = FAULTS[name], self._settings, clean["learning_rate"]
        reached = self._target(fault.trial)
        results = [self._trained(name, fault.make, reached, settings.steps, rate, seed) for seed in settings.seeds]
        distances = ", ".join(f"{result['from_own']:.5f}" for result in results)
        self._bar.write(f"{name}: {distances} nats per token from the target of {fault.trial}")
        return {"trial": fault.trial, "thread": fault.thread, "clean": clean["results"], "results": results}

    def _trained(
        self, name: str, make: Any, reached: "Tensor | None", steps: int, rate: float, seed: int
    ) -> dict[str, Any]:
        """What a trainer's policy came to; from its file, if it was trained before."""
        import torch
        from trials import Budget, Desk, trained

        folder, size = self._folder, BATCH_SIZE
        path = folder / "trials" / name.replace(" ", "_") / f"{steps}-{rate:g}-{seed}.json"
        places = {"reference": folder / "reference", "data": folder / "data" / f"{steps}x{size}"}
        desk = Desk(self._task, **places, output_dir=folder / "trainer", budget=Budget(steps, size, rate, seed))
        recorded = trained(path, make, desk)
        self._bar.update(steps)
        logits = torch.tensor(recorded["logits"], dtype=torch.float64)
        result = {"seed": seed, "seconds": recorded["seconds"], **described(self._task, logits)}
        return result | ({} if reached is None else {"from_own": self._task.divergence(logits, reached)})


def described(task: "Task", logits: "Tensor") -> dict[str, float]:
    """Reward, divergence from the reference and distance from the tilted distribution, in nats per token."""
    return {
        "reward": task.expected_reward(logits),
        "from_reference": task.divergence(logits, task.reference),
        "from_tilted": task.divergence(logits, task.tilted()),
    }


if __name__ == "__main__":
    run(main)
