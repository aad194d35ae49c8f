from hmm_datasets.training.step.component import Component


class CountSteps(Component):
    """Logs the number of optimizer steps that it has seen."""

    seen = 0

    def after_optimizer(self):
        self.seen += 1

    def before_log(self, row):
        row["steps_seen"] = self.seen
