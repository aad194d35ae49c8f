"""torchtitan.train on CPU processes over gloo: `python -m torch.distributed.run ... torchtitan_on_cpu.py FLAGS`.

torchtitan 0.3 takes its device from the accelerators that torch sees and has none for a CPU.
"""

import runpy
import types

import torch
from torch.distributed.fsdp import FSDPModule


class CPU(types.ModuleType):
    """`torch.cpu` with what torchtitan asks of `torch.cuda`."""

    def __getattr__(self, name):
        return getattr(torch.cpu, name)

    def current_device(self):
        return 0

    def get_device_name(self, device=None):
        return "CPU"

    def get_device_properties(self, device=None):
        return types.SimpleNamespace(total_memory=1 << 30)

    def memory_stats(self, device=None):
        return {}

    def reset_peak_memory_stats(self):
        pass

    def empty_cache(self):
        pass


def _divided_by_sums(self, factor, divide=FSDPModule.set_gradient_divide_factor):
    divide(self, factor)
    self.set_force_sum_reduction_for_comms(True)  # gloo cannot divide while it adds


if __name__ == "__main__":
    import torchtitan.tools.utils

    torchtitan.tools.utils.device_type, torchtitan.tools.utils.device_module = "cpu", CPU("cpu")
    FSDPModule.set_gradient_divide_factor = _divided_by_sums
    import torchtitan.distributed.utils  # which copies the device

    torchtitan.distributed.utils.set_pg_timeouts = lambda **unused: None  # those of gloo cannot be changed
    runpy.run_module("torchtitan.train", run_name="__main__", alter_sys=True)
