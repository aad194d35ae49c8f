"""The trainers that are put on trial, each with the policy, the data and the budget that all of them get.

A trial names an objective of [`theory.OBJECTIVES`], a trainer of TRL and the settings that make it that objective.
What it trains on are texts and labels such as anyone would give it: rows of preferences, of good and bad answers,
prompts and a reward function, or a teacher.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import numpy as np
from datasets import Dataset, load_from_disk
from policy import TableConfig, TableForCausalLM, TableForSequenceClassification
from theory import ALPHA, CENTERING, SIMPO_GAMMA, SMOOTHING, Task
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast, PrinterCallback, Trainer

from hmm_datasets.compat.trl import fit_buffers
from hmm_datasets.files import read_json, write_json


@dataclass(frozen=True)
class Budget:
    """What every trial gets: optimizer steps, sequences or pairs of each, and the peak learning rate."""

    steps: int
    batch_size: int
    learning_rate: float
    seed: int


def tokenizer_of(num_symbols: int) -> PreTrainedTokenizerBase:
    """Letters `a`, `b`, ..., the end `.`, and `^`, which stands before every text and pads."""
    vocabulary = {name: n for n, name in enumerate((*ascii_lowercase[: num_symbols - 1], ".", "^"))}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.post_processor = processors.TemplateProcessing(single="^ $A", special_tokens=[("^", num_symbols)])
    tokenizer.decoder = decoders.ByteLevel()
    named = {"bos_token": "^", "pad_token": "^", "eos_token": "."}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, padding_side="left", **named)


def drawn_pairs(task: Task, count: int, seed: int, flipped: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Indices of the chosen and the rejected sequences of so many pairs of the reference."""
    generator = np.random.default_rng([seed, 1])
    probs = task.reference_log_probs.exp().numpy()
    first, second = generator.choice(len(probs), (2, count), p=probs / probs.sum())
    reward = task.reward.numpy()
    wins = generator.random(count) < 1 / (1 + np.exp(reward[second] - reward[first]))
    wins ^= generator.random(count) < flipped
    return np.where(wins, first, second), np.where(wins, second, first)


def texts(task: Task) -> np.ndarray:
    """The letters of every sequence; trainers add the end."""
    return np.array(["".join(ascii_lowercase[x] for x in word[:-1]) for word in task.words], dtype=object)


def _rows(folder: Path, columns: Callable[[], dict[str, list]]) -> Dataset:
    """The rows in a folder, which are written there first; TRL keeps what it makes of them beside."""
    if not folder.exists():
        Dataset.from_dict(columns()).save_to_disk(folder)
    return load_from_disk(folder)


@dataclass(frozen=True)
class Desk:
    """What a trainer is made from: the task, a folder with the reference, the budget, and where to put what."""

    task: Task
    reference: Path
    data: Path
    output_dir: Path
    budget: Budget

    def policy(self) -> TableForCausalLM:
        """The policy at the reference."""
        return TableForCausalLM.from_pretrained(self.reference)

    def teacher(self) -> TableForCausalLM:
        """The tilted distribution as a model."""
        return TableForCausalLM.from_logits(self.task.tilted().float(), self.task.length)

    def parts(self, **others: Any) -> dict[str, Any]:
        """What every trainer takes."""
        return {"model": self.policy(), "processing_class": tokenizer_of(len(self.task.rewards)), **others}

    def arguments(self, settings: dict[str, Any]) -> dict[str, Any]:
        """The settings that every trainer has, and those of a trial."""
        budget = self.budget
        return {
            "output_dir": str(self.output_dir),
            "max_steps": budget.steps,
            "per_device_train_batch_size": budget.batch_size,
            "learning_rate": budget.learning_rate,
            "lr_scheduler_type": "cosine",
            "warmup_steps": 0,
            "weight_decay": 0.0,
            "seed": budget.seed,
            **{"bf16": False, "use_cpu": True, "gradient_checkpointing": False},
            **{"report_to": "none", "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True},
            **settings,
        }

    def preferences(self, flipped: float = 0.0) -> Dataset:
        """A row for every pair, with empty prompts."""

        def columns() -> dict[str, list]:
            chosen, rejected = self._pairs(flipped)
            written = texts(self.task)
            return {"prompt": [""] * len(chosen), "chosen": list(written[chosen]), "rejected": list(written[rejected])}

        return _rows(self.data / f"pairs-{flipped:g}-{self.budget.seed}", columns)

    def answers(self) -> Dataset:
        """Chosen and rejected sequences as rows of their own, half as many pairs."""

        def columns() -> dict[str, list]:
            pairs = np.stack(self._pairs(0.0), axis=1)[: len(self._pairs(0.0)[0]) // 2]
            labels = np.tile([True, False], len(pairs))
            return {
                "prompt": [""] * len(labels),
                "completion": list(texts(self.task)[pairs.flatten()]),
                "label": labels.tolist(),
            }

        return _rows(self.data / f"answers-{self.budget.seed}", columns)

    def triples(self) -> Dataset:
        """A row for every pair, and beside it the chosen of the next as a gold answer."""
        rows = self.preferences()
        chosen = rows["chosen"][:]
        return rows.add_column("reference", [*chosen[1:], chosen[0]])

    def messages(self) -> Dataset:
        """A conversation for every pair, with nothing asked and the chosen as answer."""
        chosen = texts(self.task)[self._pairs(0.0)[0]]
        asked = {"role": "user", "content": ""}
        return Dataset.from_dict({"messages": [[asked, {"role": "assistant", "content": text}] for text in chosen]})

    def prompts(self, prompt: str = "") -> Dataset:
        """A row for every rollout of a step."""
        return Dataset.from_dict({"prompt": [prompt] * self.budget.batch_size})

    def reward(self, completion_ids: list[list[int]], **_: Any) -> list[float]:
        """The reward of rollouts, up to their end."""
        rewards, end = self.task.rewards, len(self.task.rewards) - 1
        return [float(sum(rewards[x] for x in row[: (*row, end).index(end)])) for row in completion_ids]

    def reward_of_texts(self, completions: list[str], **_: Any) -> list[float]:
        """The reward of rollouts as texts; an end has none."""
        return [sum(self.task.rewards[ascii_lowercase.index(letter)] for letter in text) for text in completions]

    def _pairs(self, flipped: float) -> tuple[np.ndarray, np.ndarray]:
        return drawn_pairs(self.task, self.budget.steps * self.budget.batch_size, self.budget.seed, flipped)


def trained(path: Path, make: Callable[[Desk], Any], desk: Desk) -> dict[str, Any]:
    """What a trainer's policy came to: its `logits` by node, the `seconds` it took, and the budget.

    They are in the file at `path`; the policy is trained if it is not there, or has another budget.
    """
    recorded = read_json(path) if path.exists() else {}
    if recorded.get("budget") != vars(desk.budget):
        began = time.monotonic()
        fit_buffers(len(desk.task.rewards) + 1)
        trainer = make(desk)
        if isinstance(trainer, Trainer):
            trainer.remove_callback(PrinterCallback)
        trainer.train()
        logits = trainer.model.logits_of_nodes()
        recorded = {"budget": vars(desk.budget), "seconds": time.monotonic() - began, "logits": logits.tolist()}
        write_json(path, recorded)
    return recorded


def dpo(desk: Desk, *, flipped: float = 0.0, **settings: Any) -> Trainer:
    """`trl.DPOTrainer`, with the reference as its reference."""
    from trl import DPOConfig, DPOTrainer

    args = DPOConfig(**desk.arguments({"beta": desk.task.beta, "max_length": None, **settings}))
    return DPOTrainer(ref_model=desk.policy(), args=args, train_dataset=desk.preferences(flipped), **desk.parts())


def kto(desk: Desk, **settings: Any) -> Trainer:
    """`trl.KTOTrainer` on the sequences of pairs."""
    from trl import KTOConfig, KTOTrainer

    args = KTOConfig(**desk.arguments({"beta": desk.task.beta, "max_length": None, **settings}))
    return KTOTrainer(ref_model=desk.policy(), args=args, train_dataset=desk.answers(), **desk.parts())


def cpo(desk: Desk, **settings: Any) -> Trainer:
    """`trl.experimental.cpo.CPOTrainer`."""
    from trl.experimental.cpo import CPOConfig, CPOTrainer

    args = CPOConfig(**desk.arguments({"beta": desk.task.beta, "max_length": 64, **settings}))
    return CPOTrainer(args=args, train_dataset=desk.preferences(), **desk.parts())


def orpo(desk: Desk, **settings: Any) -> Trainer:
    """`trl.experimental.orpo.ORPOTrainer`."""
    from trl.experimental.orpo import ORPOConfig, ORPOTrainer

    args = ORPOConfig(**desk.arguments({"beta": desk.task.beta, "max_length": 64, **settings}))
    return ORPOTrainer(args=args, train_dataset=desk.preferences(), **desk.parts())


def tpo(desk: Desk, **settings: Any) -> Trainer:
    """`trl.experimental.tpo.TPOTrainer`."""
    from trl.experimental.tpo import TPOConfig, TPOTrainer

    args = TPOConfig(**desk.arguments({"beta": desk.task.beta, "max_length": None, **settings}))
    return TPOTrainer(args=args, train_dataset=desk.triples(), **desk.parts())


class RewardModelling:
    """`trl.RewardTrainer`; its policy is the best for the rewards that the model learned."""

    def __init__(self, desk: Desk, **settings: Any):
        from trl import RewardConfig, RewardTrainer

        task = desk.task
        sizes = {"num_symbols": len(task.rewards), "length": task.length, "num_labels": 1}
        parts = desk.parts(model=TableForSequenceClassification(TableConfig(**sizes)))
        args = RewardConfig(**desk.arguments({"max_length": None, **settings}))
        self._task, self._trainer = task, RewardTrainer(args=args, train_dataset=desk.preferences(), **parts)
        self._trainer.remove_callback(PrinterCallback)

    def train(self) -> None:
        """Take all steps."""
        self._trainer.train()

    @property
    def model(self) -> TableForCausalLM:
        """The policy."""
        task, rewards = self._task, self._trainer.model.rewards.detach().double()
        log_probs = (task.reference_log_probs + rewards / task.beta).log_softmax(0)
        return TableForCausalLM.from_logits(task.logits_of(log_probs).float(), task.length)


def rloo(desk: Desk, **settings: Any) -> Trainer:
    """`trl.RLOOTrainer`; all rollouts of a step are one group."""
    from trl import RLOOConfig, RLOOTrainer

    return RLOOTrainer(args=RLOOConfig(**_of_rollouts(desk, settings)), **_rewarded(desk))


def grpo(desk: Desk, **settings: Any) -> Trainer:
    """`trl.GRPOTrainer`; all rollouts of a step are one group, and the divergence is in the loss."""
    from trl import GRPOConfig, GRPOTrainer

    return GRPOTrainer(args=GRPOConfig(**_of_rollouts(desk, settings)), **_rewarded(desk))


def gmpo(desk: Desk, **settings: Any) -> Trainer:
    """`trl.experimental.gmpo.GMPOTrainer`, as [`grpo`]."""
    from trl.experimental.gmpo import GMPOConfig, GMPOTrainer

    return GMPOTrainer(args=GMPOConfig(**_of_rollouts(desk, settings)), **_rewarded(desk))


def online_dpo(desk: Desk, **settings: Any) -> Trainer:
    """`trl.experimental.online_dpo.OnlineDPOTrainer`: of two rollouts that with the greater reward is chosen."""
    from trl.experimental.online_dpo import OnlineDPOConfig, OnlineDPOTrainer

    chosen = {"beta": desk.task.beta, "max_new_tokens": desk.task.length, "temperature": 1.0, "top_k": 0, **settings}
    parts = {**_rewarded(desk), "train_dataset": desk.prompts("^")}  # it adds no beginning token, and fails on nothing
    return OnlineDPOTrainer(ref_model=desk.policy(), args=OnlineDPOConfig(**desk.arguments(chosen)), **parts)


def a2po(desk: Desk, **settings: Any) -> Trainer:
    """`trl.experimental.a2po.A2POTrainer`; the one prompt has its optimal value from many rollouts."""
    from trl.experimental.a2po import A2POConfig, A2POTrainer

    task, size = desk.task, desk.budget.batch_size
    own = {"beta1": task.beta, "beta2": task.beta, "num_value_samples": size, "filter_all_incorrect": False}
    args = A2POConfig(**desk.arguments({"max_completion_length": task.length, **own, **settings}))
    parts = desk.parts(reward_funcs=[desk.reward_of_texts], train_dataset=desk.prompts("^"))  # as OnlineDPOTrainer
    return A2POTrainer(args=args, **parts)


def distillation(desk: Desk, **settings: Any) -> Trainer:
    """`trl.DistillationTrainer`, on the policy's own rollouts."""
    from trl import DistillationConfig, DistillationTrainer

    args = DistillationConfig(**desk.arguments({"max_completion_length": desk.task.length, **settings}))
    return DistillationTrainer(teacher_model=desk.teacher(), args=args, train_dataset=desk.prompts(), **desk.parts())


def gkd(desk: Desk, **settings: Any) -> Trainer:
    """`trl.experimental.gkd.GKDTrainer`, by default half on the policy's own rollouts and half on texts."""
    from trl.experimental.gkd import GKDConfig, GKDTrainer

    args = GKDConfig(**desk.arguments({"max_new_tokens": desk.task.length, **settings}))
    return GKDTrainer(args=args, **_of_chat(desk))


def iw_opd(desk: Desk, **settings: Any) -> Trainer:
    """`trl.experimental.iw_opd.IWOPDTrainer`."""
    from trl.experimental.iw_opd import IWOPDConfig, IWOPDTrainer

    args = IWOPDConfig(**desk.arguments({"max_completion_length": desk.task.length, **settings}))
    return IWOPDTrainer(args=args, **_of_chat(desk))


def gold(desk: Desk, **settings: Any) -> Trainer:
    """`trl.experimental.gold.GOLDTrainer` with the loss that needs no common tokenizer, of sorted probabilities.

    It goes through rows one by one, and gets an eighth of them.
    """
    from trl.experimental.gold import GOLDConfig, GOLDTrainer

    own = {"max_completion_length": desk.task.length, "use_uld_loss": True, "top_p": 1.0, "top_k": 0}
    own["per_device_train_batch_size"] = max(1, desk.budget.batch_size // 8)
    return GOLDTrainer(args=GOLDConfig(**desk.arguments({**own, **settings})), **_of_chat(desk))


def _of_chat(desk: Desk) -> dict[str, Any]:
    # A conversation is the beginning token, and the answer with its end. Trainers look for the teacher's tokenizer.
    parts, teacher = desk.parts(train_dataset=desk.messages()), desk.teacher()
    parts[
        "processing_class"
    ].chat_template = "^{% for message in messages if message.role == 'assistant' %}{{ message.content }}.{% endfor %}"
    teacher.config.name_or_path = str(desk.data / "tokenizer")
    parts["processing_class"].save_pretrained(teacher.config.name_or_path)
    return {"teacher_model": teacher, **parts}


def _of_rollouts(desk: Desk, settings: dict[str, Any]) -> dict[str, Any]:
    size = desk.budget.batch_size
    own = {"beta": desk.task.beta, "max_completion_length": desk.task.length, "num_generations": size}
    return desk.arguments({**own, **settings})


def _rewarded(desk: Desk) -> dict[str, Any]:
    return desk.parts(reward_funcs=[desk.reward], train_dataset=desk.prompts())


TRIALS: dict[str, Callable[[Desk], Any]] = {
    "dpo": dpo,
    "dpo smoothed": partial(dpo, label_smoothing=SMOOTHING),
    "dpo robust": partial(dpo, loss_type="robust", label_smoothing=SMOOTHING, flipped=SMOOTHING),
    "dpo ipo": partial(dpo, loss_type="ipo"),
    "dpo exo": partial(dpo, loss_type="exo_pair", label_smoothing=SMOOTHING),
    "dpo nca": partial(dpo, loss_type="nca_pair"),
    "dpo bco": partial(dpo, loss_type="bco_pair"),
    "dpo sppo": partial(dpo, loss_type="sppo_hard"),
    "dpo apo_zero": partial(dpo, loss_type="apo_zero"),
    "dpo apo_down": partial(dpo, loss_type="apo_down"),
    "dpo discopop": partial(dpo, loss_type="discopop"),
    "dpo sigmoid_norm": partial(dpo, loss_type="sigmoid_norm"),
    "dpo sft": partial(dpo, loss_type="sft"),
    "dpo weighted": partial(dpo, use_weighting=True),
    "dpo forward KL": partial(dpo, f_divergence_type="forward_kl"),
    "dpo Jensen-Shannon": partial(dpo, f_divergence_type="js_divergence"),
    "dpo alpha 0.5": partial(dpo, f_divergence_type="alpha_divergence", f_alpha_divergence_coef=0.5),
    "kto": kto,
    "kto apo_zero_unpaired": partial(kto, loss_type="apo_zero_unpaired"),
    "cpo": cpo,
    "simpo": partial(cpo, loss_type="simpo", cpo_alpha=0.0, simpo_gamma=SIMPO_GAMMA),
    "alphapo": partial(cpo, loss_type="simpo", cpo_alpha=0.0, simpo_gamma=SIMPO_GAMMA, alpha=ALPHA),
    "orpo": orpo,
    "tpo": tpo,
    "tpo-l": partial(tpo, loss_type="tpo-l", tpo_l_gamma=SIMPO_GAMMA),
    "reward model": RewardModelling,
    "reward model, centered": partial(RewardModelling, center_rewards_coefficient=CENTERING),
    "rloo": rloo,
    "rloo normalized": partial(rloo, normalize_advantages=True),
    "grpo": grpo,
    "grpo unscaled": partial(grpo, scale_rewards="none"),
    "grpo uncorrected": partial(grpo, scale_rewards="none", use_bias_correction_kl=False),
    "grpo dr_grpo": partial(grpo, scale_rewards="none", loss_type="dr_grpo"),
    "grpo mean of sequences": partial(grpo, scale_rewards="none", loss_type="grpo"),
    "grpo cispo": partial(grpo, scale_rewards="none", loss_type="cispo", epsilon_high=5.0),
    "grpo cispo, default": partial(grpo, scale_rewards="none", loss_type="cispo"),
    "grpo sapo": partial(grpo, scale_rewards="none", loss_type="sapo"),
    "gmpo": gmpo,
    "online dpo": online_dpo,
    "online ipo": partial(online_dpo, loss_type="ipo"),
    "a2po": a2po,
    "distillation reverse KL": partial(distillation, beta=1.0),
    "distillation forward KL": partial(distillation, beta=0.0),
    "distillation Jensen-Shannon": partial(distillation, beta=0.5),
    "gkd": gkd,
    "gkd of sequences": partial(gkd, lmbda=0.0, seq_kd=True),
    "iw-opd": iw_opd,
    "gold": gold,
    "gold bayesian": partial(gold, uld_token_merge_strategy="bayesian"),
    "gold hybrid": partial(gold, uld_token_merge_strategy="bayesian", uld_use_hybrid_loss=True),
}
"""The trainer of each objective of [`theory.OBJECTIVES`], by its name."""
