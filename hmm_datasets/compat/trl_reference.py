"""trl: a reference model of `GRPOTrainer` that is not the one that training starts from.

`GRPOTrainer` loads its reference by the name of the model and gives it the output layer that computes
log-probabilities in pieces, by a function that is not documented. This can be removed once the trainer takes a
`ref_model`, as `DPOTrainer` does.
"""

from transformers import PreTrainedModel
from trl import GRPOTrainer
from trl.trainer.utils import add_fused_lm_head


def set_reference(trainer: GRPOTrainer, model: PreTrainedModel) -> None:
    """Let the divergence in the loss be that from `model`, which stays as it is."""
    add_fused_lm_head(model)
    trainer.ref_model = model
