"""trl: private methods of its trainers that this package must override.

Each can be removed once TRL accepts rows that are already tokenized, and reference log-probabilities that are already
columns, as its docstrings announce; and once it keeps the log-probabilities of rows in memory where all ranks find
them.
"""

import hashlib
from pathlib import Path
from typing import Any, cast

from datasets import Dataset
from trl import DPOTrainer, GRPOTrainer, SFTTrainer
from trl.trainer import utils

from ..errors import InputError
from ..files import atomic_folder, remove
from .versions import warn_of_untried_versions

warn_of_untried_versions()

PAIR_COLUMNS = ("prompt_ids", "chosen_ids", "rejected_ids")
"""The columns of token ids that `DPOTrainer` makes from preference pairs."""

REFERENCE_COLUMNS = ("ref_chosen_logps", "ref_rejected_logps")
"""The columns of log-probabilities under the reference, in nats per completion."""

REFERENCE_NAME = ".reference"
"""The folder in that of the run with the tokenized pairs and their log-probabilities under the reference."""


GIVES_LOG_PROBS = hasattr(utils, "add_fused_lm_head")
"""Whether a model that [`OpenSFTTrainer`] has patched returns log-probabilities of its labels, as from TRL 1.15 on."""


_SHAPING = ("max_length", "truncation_mode", "ld_alpha")  # settings on which the log-probabilities depend


def fit_buffers(num_tokens: int) -> None:
    """Let DPO, GRPO and their relatives score tokens with no more memory than so large a vocabulary needs.

    TRL 1.16 multiplies by the output embeddings 32,768 columns at a time, and takes memory for 4,096 rows of so many
    (512 MB in float32) twice for each batch, however few tokens there are. Before 1.15 the size cannot be set.
    """
    vars(utils)["_CHUNKED_LOGPROB_CHUNK_SIZE"] = min(32_768, num_tokens)


class OpenSFTTrainer(SFTTrainer):
    """An `SFTTrainer` that leaves the tokens of conversations to [`tokenized_rows`].

    TRL applies the chat template such that control tokens spelt in a message become control tokens.
    """

    def tokenized_rows(self, rows, tokenizer: Any, args: Any, packing: bool, name: str):
        """Rows with `input_ids` and `labels`, or the same rows for TRL to prepare."""
        return rows

    def _prepare_dataset(self, dataset, processing_class, args, packing, formatting_func, dataset_name):
        if formatting_func is None:
            dataset = self.tokenized_rows(dataset, processing_class, args, packing, dataset_name)
        return super()._prepare_dataset(dataset, processing_class, args, packing, formatting_func, dataset_name)


class OpenMeasures:
    """Mixin, to be listed before a trainer of TRL: what it has measured, and the tokens that it has counted.

    TRL averages measures over the batches of an evaluation, whatever their sizes, and counts tokens from the start of
    the process. It also reports every new trainer to huggingface.co, unless `HF_HUB_DISABLE_TELEMETRY` is set; here a
    run sends nothing that its settings do not ask for.
    """

    def _send_telemetry(self) -> None:
        """Send nothing."""

    @property
    def measures(self) -> dict[str, list[float]]:
        """The measures of the evaluation under way, by name: one number per batch."""
        return cast(Any, self)._metrics["eval"]

    @property
    def measures_since_log(self) -> dict[str, list[float]]:
        """The measures of training since the latest log, by name: one number per micro-batch."""
        return cast(Any, self)._metrics["train"]

    def set_token_count(self, count: int) -> None:
        """Continue to count the tokens of batches from this number."""
        self._total_train_tokens = count


class OpenDPOTrainer(DPOTrainer):
    """A `DPOTrainer` that leaves rows alone which have its columns already.

    Rows with `PAIR_COLUMNS` are not tokenized, so no EOS is appended to them; those of conversations get them from
    [`tokenized_rows`]. Rows with `REFERENCE_COLUMNS` keep
    these, so the reference may be any distribution, not only a model with an output layer. Otherwise the
    log-probabilities are kept in the folder of the run: for rows in memory TRL has a temporary folder on each rank, in
    which the other ranks find nothing.
    """

    def tokenized_rows(self, rows, tokenizer: Any, args: Any, name: str):
        """Rows with `PAIR_COLUMNS`, or the same rows for TRL to prepare."""
        return rows

    def _prepare_dataset(self, dataset, processing_class, args, dataset_name):
        dataset = self.tokenized_rows(dataset, processing_class, args, dataset_name)
        if set(PAIR_COLUMNS) <= set(dataset.column_names):
            return dataset
        return super()._prepare_dataset(dataset, processing_class, args, dataset_name)

    def _precompute_ref_logps(self, dataset, name: str, batch_size: int):
        if set(REFERENCE_COLUMNS) <= set(dataset.column_names):
            return dataset
        rows = dataset.select_columns(list(PAIR_COLUMNS))
        digest = _digest(rows, *map(vars(self.args).get, _SHAPING))
        folder = Path(str(self.args.output_dir), REFERENCE_NAME, f"{name}-{digest}")
        if self.accelerator.is_main_process and not folder.exists():
            for other in folder.parent.glob(f"{name}-*"):
                remove(other)
            with atomic_folder(folder) as temporary:
                rows.save_to_disk(str(temporary))
        self.accelerator.wait_for_everyone()
        return super()._precompute_ref_logps(Dataset.load_from_disk(str(folder)), name, batch_size)


class OpenGRPOTrainer(GRPOTrainer):
    """A `GRPOTrainer` that continues within a rollout.

    TRL counts micro-batches from the start of the process and generates anew, so a run that continues between two
    updates of the same rollout would generate at the wrong steps.
    """

    def prompt_tokens(self, messages) -> list[int]:
        """The tokens of a prompt by the chat template."""
        raise NotImplementedError

    def _tokenize_prompts(self, prompts: list):
        if self._is_vlm or self.environment_factories is not None or not isinstance(prompts[0], list):
            return super()._tokenize_prompts(prompts)
        return [self.prompt_tokens(prompt) for prompt in prompts], None, {}

    def _calculate_rewards(self, *args, **kwargs):
        # Of all processes; TRL warns, and takes a reward of 0 or an infinite advantage.
        rewards = super()._calculate_rewards(*args, **kwargs)
        names = ", ".join(self.reward_func_names)
        if bool(rewards.isnan().all()):
            raise InputError(
                f"rewards: {names}: None or NaN for all of {len(rewards):,} completions, so there is nothing to learn "
                "from; return a number for those that can be judged"
            )
        if bool(rewards.isinf().any()):
            raise InputError(f"rewards: {names}: an infinite reward; return finite numbers, or None")
        return rewards

    @property
    def rollout_under_way(self) -> list[dict[str, Any]] | None:
        """This rank's micro-batches of the rollout that the next update uses too; None if it uses a new one."""
        args: Any = self.args
        is_new = self._step % (args.steps_per_generation * self.num_iterations) == 0
        return None if is_new else self._buffered_inputs

    def continue_rollouts(self, micro_batches: int, under_way: list[dict[str, Any]] | None) -> None:
        """Continue after a number of micro-batches, with the rollout under way then; None to generate another one."""
        self._step, self._buffered_inputs = micro_batches, under_way


def _digest(rows: Dataset, *settings: Any) -> str:
    """A hash of the tokens of pairs, and of the settings that decide what is computed of them.

    It is the same when a run continues, which the fingerprint of `datasets` is not.
    """
    digest = hashlib.sha256(repr(settings).encode())
    for table in rows.with_format("arrow").iter(batch_size=1000):
        for name in PAIR_COLUMNS:
            tokens = table[name].combine_chunks()
            digest.update(tokens.value_lengths().to_numpy(zero_copy_only=False).tobytes())
            digest.update(tokens.flatten().to_numpy(zero_copy_only=False).tobytes())
    return digest.hexdigest()[:16]
