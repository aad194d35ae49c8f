"""Peak rates of devices, for model FLOPs utilization (MFU). An unknown device has no rate, rather than a guessed one.

These are dense tensor-core rates with float32 accumulation from the manufacturers' data sheets (NVIDIA's give twice
the number, for 2:4 sparsity). PCIe and SXM boards of one name are listed separately where their rates differ. Cards
without bfloat16 units have no rate for bfloat16.
"""

import re
from dataclasses import dataclass

_T = 1e12


@dataclass(frozen=True)
class Device:
    """A kind of accelerator.

    Attributes:
        name (`str`): name in reports.
        fp16 (`float`): peak in float16, FLOP/s.
        bf16 (`float`, *optional*): peak in bfloat16, FLOP/s; None if the device has no bfloat16 units.
    """

    name: str
    fp16: float
    bf16: float | None


def _with_bf16(name: str, teraflops: float) -> Device:
    return Device(name, teraflops * _T, teraflops * _T)


# The first pattern found in the driver's name of the device decides, so longer patterns come first.
_DEVICES = (
    (r"\bB200\b", _with_bf16("B200", 2250.0)),
    (r"H200 NVL", _with_bf16("H200 NVL", 835.5)),
    (r"H200\b", _with_bf16("H200", 989.4)),
    (r"H100 NVL", _with_bf16("H100 NVL", 835.5)),
    (r"H100 PCIe", _with_bf16("H100 PCIe", 756.0)),
    (r"H100\b|H800\b", _with_bf16("H100 SXM", 989.4)),
    (r"A100\b|A800\b", _with_bf16("A100", 312.0)),
    (r"L40S", _with_bf16("L40S", 362.0)),
    (r"L40\b", _with_bf16("L40", 181.0)),
    (r"L4\b", _with_bf16("L4", 121.0)),
    (r"A40\b", _with_bf16("A40", 149.7)),
    (r"A30\b", _with_bf16("A30", 165.0)),
    (r"A10\b", _with_bf16("A10", 125.0)),
    (r"RTX A6000", _with_bf16("RTX A6000", 154.8)),
    (r"RTX 6000 Ada", _with_bf16("RTX 6000 Ada", 364.2)),
    (r"RTX 4090\b", _with_bf16("RTX 4090", 165.2)),
    (r"RTX 3090\b(?! Ti)", _with_bf16("RTX 3090", 71.0)),
    (r"V100.*SXM", Device("V100 SXM", 125.0 * _T, None)),
    (r"V100.*PCIE", Device("V100 PCIe", 112.0 * _T, None)),
    (r"\bT4\b", Device("T4", 65.0 * _T, None)),
    (r"P100.*SXM", Device("P100 SXM", 21.2 * _T, None)),
    (r"P100\b", Device("P100 PCIe", 18.7 * _T, None)),
    (r"MI300X", _with_bf16("MI300X", 1307.4)),
    (r"MI250X", _with_bf16("MI250X", 383.0)),
)


def find_device(name: str) -> Device | None:
    """The device whose driver calls it `name` (`torch.cuda.get_device_name()`), or None if it is unknown.

    ```python
    >>> find_device("NVIDIA H100 80GB HBM3").name, find_device("Tesla T4").bf16, find_device("AMD EPYC")
    ('H100 SXM', None, None)

    ```
    """
    return next((device for pattern, device in _DEVICES if re.search(pattern, name)), None)


def peak_flops(name: str, precision: str) -> float | None:
    """Peak rate of a device in FLOP/s, or None if it is unknown.

    Args:
        name (`str`): the driver's name of the device.
        precision (`str`): `"bf16"`, `"fp16"` or another. float32 has no rate, since it may or may not use TF32.
    """
    device = find_device(name)
    return getattr(device, precision) if device is not None and precision in ("bf16", "fp16") else None
