"""trl: private methods of its trainers that this package must override.

Each can be removed once TRL accepts rows that are already tokenized, and reference log-probabilities that are already
columns, as its docstrings announce.
"""

from typing import Any

PAIR_COLUMNS = ("prompt_ids", "chosen_ids", "rejected_ids")
"""The columns of token ids that `DPOTrainer` makes from preference pairs."""

REFERENCE_COLUMNS = ("ref_chosen_logps", "ref_rejected_logps")
"""The columns of log-probabilities under the reference, in nats per completion."""


class PreparedPairs:
    """Mixin, to be listed before `DPOTrainer`, that leaves rows alone which have its columns already.

    Rows with `PAIR_COLUMNS` are not tokenized, so no EOS is appended to them. Rows with `REFERENCE_COLUMNS` keep
    these, so the reference may be any distribution, not only a model with an output layer.
    """

    def _prepare_dataset(self, dataset, *args: Any, **kwargs: Any):
        if set(PAIR_COLUMNS) <= set(dataset.column_names):
            return dataset
        return super()._prepare_dataset(dataset, *args, **kwargs)

    def _precompute_ref_logps(self, dataset, *args: Any, **kwargs: Any):
        if set(REFERENCE_COLUMNS) <= set(dataset.column_names):
            return dataset
        return super()._precompute_ref_logps(dataset, *args, **kwargs)
