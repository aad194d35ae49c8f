"""Garbage collection without the objects that live as long as the run: libraries, model, optimizer, data set.

Python's collector looks at every object when enough new ones have survived. After the imports of a training run these
are more than half a million, which takes some tenths of a second, at another step on every rank, while the others
wait. Frozen objects are not looked at. What a step leaves behind is collected as ever, in less than a millisecond.
"""

import gc

from transformers import TrainerCallback


class FrozenObjects(TrainerCallback):
    """Freezes what exists after the first step of a start, until [`FrozenObjects.thaw`].

    A program that has frozen its objects itself is left alone.
    """

    _is_ours = False

    def on_step_end(self, args, state, control, **kwargs):
        """Collect garbage and freeze the rest, after the first step, which makes the last lasting objects."""
        if not self._is_ours and gc.get_freeze_count() == 0:
            gc.collect()
            gc.freeze()
            self._is_ours = True

    def thaw(self) -> None:
        """Unfreeze, so that another run in this process can free what is left of this one."""
        if self._is_ours:
            gc.unfreeze()
            self._is_ours = False
