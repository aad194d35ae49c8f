"""Settings of what is looked at while a run trains, besides the held-out loss: tasks, and where its time goes."""

from dataclasses import dataclass, field

from ..errors import InputError


@dataclass
class WatchSettings:
    """A mixin for the settings of trainers; recipes evaluate the tasks (see `evaluation.during_training`)."""

    task_steps: int = field(
        default=0,
        metadata={"help": "Evaluate tasks (facts, and CORE with core_data) every so many steps; 0 for never."},
    )
    core_data: str | None = field(default=None, metadata={"help": "With task_steps: folder of CORE's questions."})
    core_tasks: list[str] = field(
        default_factory=list, metadata={"help": "With task_steps: tasks of CORE; by default all that core_data has."}
    )
    core_max_per_task: int | None = field(
        default=200, metadata={"help": "With task_steps: maximum number of questions per task of CORE."}
    )
    profile_steps: int = field(
        default=0,
        metadata={"help": "Profile so many steps, after the first three of this start; 0 for none. Slows these down."},
    )

    def __post_init__(self):
        super().__post_init__()
        for name in ("task_steps", "profile_steps"):
            if getattr(self, name) < 0:
                raise InputError(f"{name} is {getattr(self, name)}; expected 0 or more")
        if self.core_data is not None and self.task_steps == 0:
            raise InputError("core_data is set, but tasks are never evaluated; set task_steps, or leave core_data out")
        if self.core_max_per_task is not None and self.core_max_per_task < 1:
            raise InputError(f"core_max_per_task is {self.core_max_per_task}; expected 1 or more")
