"""What the detectors of loss spikes have seen, saved with every checkpoint."""

from collections.abc import Mapping

from transformers import TrainerCallback

from ...compat.transformers import ExportableState
from .spike_detector import SpikeDetector


class RecentLosses(TrainerCallback, ExportableState):
    """Saves the state of detectors in `trainer_state.json`, so that a resumed run decides as an undisturbed one.

    Args:
        detectors (mapping of `str` to [`SpikeDetector`]): the detectors by name.
    """

    def __init__(self, detectors: Mapping[str, SpikeDetector]):
        self._detectors = detectors

    def state(self) -> dict:
        """The states in the form that transformers saves."""
        return {"args": {}, "attributes": {name: detector.state() for name, detector in self._detectors.items()}}

    def on_train_begin(self, args, state, control, **kwargs):
        """Continue from the states of the checkpoint; one written without them leaves the detectors empty."""
        saved = state.stateful_callbacks.setdefault(type(self).__name__, self.state())
        for name, detector in self._detectors.items():
            if name in saved["attributes"]:
                detector.restore(saved["attributes"][name])
