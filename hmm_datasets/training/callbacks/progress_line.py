"""The Trainer's progress bar, with one short line per log step instead of a dictionary."""

import re
import time

from transformers import ProgressCallback

from ...display import format_date

_COLUMNS = (
    ("loss", "loss {:z.4f}"),
    ("reward", "reward {:.4f}"),
    ("eval_loss", "held out {:z.4f}"),
    ("eval_reward", "held out: reward {:.4f}"),
    ("eval_bayes_gap", "above the optimal loss {:z.4f}"),
    ("grad_norm", "gradient {:.3g}"),
    ("learning_rate", "lr {:.3g}"),
    ("tokens_per_second", "{:,.0f} tokens/s"),
    ("mfu", "MFU {:.1%}"),
    ("cost", "cost {:.2f}"),
    ("fraction", "{:.1%} done"),
)


class ProgressLine(ProgressCallback):
    """A progress bar, and per log step a line with losses or rewards, gradient norm, throughput and end date."""

    def on_prediction_step(self, args, state, control, eval_dataloader=None, **kwargs):
        """Show no bar for an evaluation, which is short; a second bar would hide the first."""

    def on_log(self, args, state, control, logs=None, **kwargs):
        """Write the line above the bar, on rank 0."""
        if self.training_bar is None or not logs:
            return
        values = {name: float(value) for name, value in logs.items() if isinstance(value, int | float)}
        if "eval_reward" in values:
            values.pop("eval_loss", None)  # which says nothing: the advantages of a group of answers add up to zero
        parts = [form.format(values[name]) for name, form in _COLUMNS if name in values]
        rewards = {name: value for name, value in values.items() if re.fullmatch(r"(eval_)?rewards/.+/mean", name)}
        if len(rewards) > 1:
            parts += [f"{name.split('/')[1]} {value:.4f}" for name, value in rewards.items()]
        if "seconds_left" in values:
            parts.append(f"ends {format_date(time.time() + values['seconds_left'])}")
        if values.keys() & {"loss", "eval_loss", "eval_reward"}:
            line = f"step {state.global_step:>6,}  {state.num_input_tokens_seen:>13,} tokens  {'  '.join(parts)}"
            self.training_bar.write(line)
