"""Accelerators: peak rates for model FLOPs utilization (MFU), and memory. An unknown device has no numbers, rather
than guessed ones.

Rates are those of dense tensor cores with float32 accumulation, from the manufacturers' data sheets (NVIDIA's give
twice the number, for 2:4 sparsity). PCIe and SXM boards of one name are listed separately where they differ. Cards
without bfloat16 units have no rate for bfloat16.

Memory is that of the data sheets, the larger one where a card has two.
"""

import re
from dataclasses import dataclass

USABLE = 0.92
"""Share of a device's memory that is counted on: CUDA's context and fragmentation take some."""

_DEVICES = {
    r"\bB200\b": ("B200", 2250.0, 2250.0, 180),
    r"H200 NVL": ("H200 NVL", 835.5, 835.5, 141),
    r"H200\b": ("H200", 989.4, 989.4, 141),
    r"H100 NVL": ("H100 NVL", 835.5, 835.5, 94),
    r"H100 PCIe": ("H100 PCIe", 756.0, 756.0, 80),
    r"H100\b|H800\b": ("H100 SXM", 989.4, 989.4, 80),
    r"A100\b|A800\b": ("A100", 312.0, 312.0, 80),
    r"L40S": ("L40S", 362.0, 362.0, 48),
    r"L40\b": ("L40", 181.0, 181.0, 48),
    r"L4\b": ("L4", 121.0, 121.0, 24),
    r"A40\b": ("A40", 149.7, 149.7, 48),
    r"A30\b": ("A30", 165.0, 165.0, 24),
    r"A10\b": ("A10", 125.0, 125.0, 24),
    r"RTX A6000": ("RTX A6000", 154.8, 154.8, 48),
    r"RTX 6000 Ada": ("RTX 6000 Ada", 364.2, 364.2, 48),
    r"RTX 4090\b": ("RTX 4090", 165.2, 165.2, 24),
    r"RTX 3090\b(?! Ti)": ("RTX 3090", 71.0, 71.0, 24),
    r"V100.*(?i:PCIE)": ("V100 PCIe", 112.0, None, 32),
    r"V100\b": ("V100 SXM", 125.0, None, 32),
    r"\bT4\b": ("T4", 65.0, None, 16),
    r"P100.*SXM": ("P100 SXM", 21.2, None, 16),
    r"P100\b": ("P100 PCIe", 18.7, None, 16),
    r"MI300X": ("MI300X", 1307.4, 1307.4, 192),
    # A card has two dies, each of which is a device of its own. AMD's data sheet gives both together: 383 TFLOP/s and
    # 128 GB.
    r"MI250X": ("MI250X die", 191.5, 191.5, 64),
}
"""By a pattern of the driver's name, of which the first that is found decides: name in reports, peaks in float16 and
bfloat16 in TFLOP/s, memory in GB; see [`Device`]."""

_FLOAT32 = {"V100 PCIe": 14.0, "V100 SXM": 15.7, "T4": 8.1, "P100 SXM": 10.6, "P100 PCIe": 9.3}
"""Peaks in float32 in TFLOP/s of cards whose tensor cores, if they have any, do not take it; from the data sheets."""


@dataclass(frozen=True)
class Device:
    """A kind of accelerator.

    Attributes:
        name (`str`): name in reports.
        fp16 (`float`): peak in float16, FLOP/s.
        bf16 (`float`, *optional*): peak in bfloat16, FLOP/s; None if the device has no bfloat16 units.
        memory (`int`): bytes.
    """

    name: str
    fp16: float
    bf16: float | None
    memory: int

    def peak(self, precision: str) -> float:
        """Peak in FLOP/s in `"bf16"` or `"fp16"`; of a device without units for it, the peak in the other.

        In `"fp32"` it is that in bfloat16, which TF32 is half of, but of cards without such units their own.
        """
        if precision == "fp32" and self.name in _FLOAT32:
            return _FLOAT32[self.name] * 1e12
        return self.fp16 if precision == "fp16" else (self.bf16 or self.fp16)


def find_device(name: str) -> Device | None:
    """The device whose driver calls it `name` (`torch.cuda.get_device_name()`), or None if it is unknown.

    ```python
    >>> find_device("NVIDIA H100 80GB HBM3").name, find_device("Tesla T4").bf16, find_device("AMD EPYC")
    ('H100 SXM', None, None)

    ```
    """
    entry = next((row for pattern, row in _DEVICES.items() if re.search(pattern, name)), None)
    if entry is None:
        return None
    label, fp16, bf16, memory = entry
    return Device(label, fp16 * 1e12, None if bf16 is None else bf16 * 1e12, round(memory * 1e9))


def peak_flops(name: str, precision: str) -> float | None:
    """Peak rate of a device in FLOP/s, or None if it is unknown.

    Args:
        name (`str`): the driver's name of the device.
        precision (`str`): `"bf16"`, `"fp16"` or another. float32 has no rate, since it may or may not use TF32.
    """
    device = find_device(name)
    return getattr(device, precision) if device is not None and precision in ("bf16", "fp16") else None
