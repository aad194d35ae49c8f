"""What adds up over the starts of a run: rows, skipped steps, cost."""

from transformers import TrainerCallback

from ...compat.transformers import ExportableState


class RunTotals(TrainerCallback, ExportableState):
    """What adds up over the starts of a run, saved in `trainer_state.json` beside the Trainer's own counts.

    Attributes:
        skipped_steps (`int`): steps that changed no weight.
        cost (`float`): money, at the price per hour; work lost between a checkpoint and a crash is not in it.
        rows (`int`): rows trained on, in the order of the data set, so the index of the next one.
    """

    def __init__(self):
        self.skipped_steps = 0
        self.cost = 0.0
        self.rows = 0

    def state(self) -> dict:
        """As transformers saves it."""
        attributes = {"skipped_steps": self.skipped_steps, "cost": self.cost, "rows": self.rows}
        return {"args": {}, "attributes": attributes}

    def on_train_begin(self, args, state, control, **kwargs):
        """Go on from what the checkpoint says; one of before this was counted says nothing."""
        saved = state.stateful_callbacks.setdefault(type(self).__name__, self.state())
        vars(self).update(saved["attributes"])
