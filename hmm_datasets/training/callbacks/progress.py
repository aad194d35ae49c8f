"""The Trainer's progress bar, with one short line per log step instead of a dictionary."""

import time

from transformers import ProgressCallback

from ...quantities import format_date

_COLUMNS = (
    ("loss", "loss {:.4f}"),
    ("eval_loss", "held out {:.4f}"),
    ("eval_bayes_gap", "above the Bayes floor {:.4f}"),
    ("grad_norm", "gradient {:.3g}"),
    ("learning_rate", "lr {:.3g}"),
    ("tokens_per_second", "{:,.0f} tokens/s"),
    ("mfu", "MFU {:.1%}"),
    ("cost", "cost {:.2f}"),
    ("fraction", "{:.1%} done"),
)


class ProgressLine(ProgressCallback):
    """A progress bar, and per log step a line with losses, gradient norm, learning rate, throughput and end date."""

    def on_prediction_step(self, args, state, control, eval_dataloader=None, **kwargs):
        """Show no bar for an evaluation, which is short; a second bar would hide the first."""

    def on_log(self, args, state, control, logs=None, **kwargs):
        """Write the line above the bar, on rank 0."""
        if self.training_bar is None or not logs:
            return
        values = {name: float(value) for name, value in logs.items() if isinstance(value, int | float)}
        parts = [form.format(values[name]) for name, form in _COLUMNS if name in values]
        if "seconds_left" in values:
            parts.append(f"ends {format_date(time.time() + values['seconds_left'])}")
        if "loss" in values or "eval_loss" in values:
            line = f"step {state.global_step:>6,}  {state.num_input_tokens_seen:>13,} tokens  {'  '.join(parts)}"
            self.training_bar.write(line)
