"""Values that options name: schedules, networks, conditionings, measurements."""

from __future__ import annotations

__all__ = ["SCHEDULES", "MeasurementOptions", "NetworkName", "ScheduleName", "describe_network"]

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from ..amortization import Conditioning, LikelihoodGradient, Palette
from ..nn import HDiTConfig, UNetConfig, hdit_ffhq256, hdit_imagenet256, hdit_tiny, unet_small
from ..schedule import Cosine, Flow, Schedule, VPLinear
from .options import Std, TaskName

ScheduleName = Literal["flow", "vp", "cosine"]
ConditioningName = Literal["palette", "gradient", "palette+gradient", "invfusion"]
NetworkName = Literal[
    "unet-mini", "unet-tiny", "unet-small", "hdit-tiny", "hdit-small", "hdit-ffhq256", "hdit-imagenet256"
]
SCHEDULES: dict[ScheduleName, Callable[[], Schedule]] = {"flow": Flow, "vp": VPLinear, "cosine": Cosine}


_SMALL_UNET = partial(UNetConfig, patch=4, depth=1, attention=(1,), condition_width=64)
_NETWORKS: dict[NetworkName, Callable[[int, int], HDiTConfig | UNetConfig]] = {
    "unet-mini": partial(_SMALL_UNET, widths=(48, 96)),  # 1.6 million parameters
    "unet-tiny": partial(_SMALL_UNET, widths=(64, 128)),  # 2.8 million parameters
    "unet-small": unet_small,
    "hdit-tiny": hdit_tiny,
    "hdit-small": partial(HDiTConfig, widths=(128, 256), depths=(2, 4)),  # 5.1 million, as unet-small
    "hdit-ffhq256": hdit_ffhq256,
    "hdit-imagenet256": partial(hdit_imagenet256, num_classes=0),
}
# Default joint levels of an InvFusion network: the finest level holds the most images in its features.
_JOINT = (0,)


@dataclass(frozen=True)
class MeasurementOptions:
    """Measurements a network is trained on, and its conditioning on them."""

    task: TaskName[str]  # Operator: sr4, motion-blur, random-rectangle, ..., or a Python object in a file.
    noise: Std[float] = 0.05  # Standard deviation of the noise, in the units of the measurement.
    conditioning: ConditioningName = "palette"  # Conditioning of the network; invfusion needs an hdit.

    @property
    def channels(self) -> list[Conditioning]:
        """Conditioning channels beside the image; InvFusion adds to those of Palette."""
        # Damping: the noise's variance over 1/4, the variance of images in [-1, 1].
        parts: dict[str, Conditioning] = {
            "palette": Palette(damping=4.0 * self.noise**2),
            "gradient": LikelihoodGradient(),
        }
        names = "palette" if self.conditioning == "invfusion" else self.conditioning
        return [parts[name] for name in names.split("+")]

    @property
    def is_fused(self) -> bool:
        """Whether the network applies the operator itself (InvFusion)."""
        return self.conditioning == "invfusion"


def describe_network(
    network: NetworkName | Path,
    in_channels: int,
    out_channels: int,
    second_time: bool = False,
    fused_channels: int = 0,
) -> dict[str, Any]:
    """Return the description from which :func:`~lavps.nn.build_network` builds the network.

    Args:
        network: Name, or JSON file; values that follow from the task may be left out of the file.
        in_channels: Number of input channels.
        out_channels: Number of output channels.
        second_time: Whether the network is also conditioned on s.
        fused_channels: Channels of the images to which InvFusion applies the operator; 0 for no InvFusion.
    """
    needed: dict[str, Any] = {"in_channels": in_channels, "out_channels": out_channels}
    if second_time:
        needed["second_time"] = True
    if fused_channels:
        needed["image_channels"] = fused_channels
    if isinstance(network, Path):
        description = dict(json.loads(network.read_text(encoding="utf-8")))
        for name, value in needed.items():
            if description.get(name, value) != value:
                raise ValueError(
                    f"{network} sets {name} to {description[name]}, this task needs {value}: "
                    "correct it, or leave it out"
                )
    else:
        description = _NETWORKS[network](in_channels, out_channels).to_dict()
    if fused_channels:
        if description.get("kind") != HDiTConfig.kind:
            raise ValueError(f"invfusion needs an HDiT network, not {network}: try --network hdit-tiny")
        needed["joint"] = list(description.get("joint") or _JOINT)
    return description | needed
