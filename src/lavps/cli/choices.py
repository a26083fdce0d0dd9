"""What the words of the command line stand for: schedules, networks, conditionings, measurements."""

from __future__ import annotations

__all__ = ["SCHEDULES", "Measurement", "NetworkName", "ScheduleName", "describe_network"]

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ..networks import (
    Conditioning,
    HDiTConfig,
    LikelihoodGradient,
    Palette,
    UNetConfig,
    hdit_ffhq256,
    hdit_imagenet256,
    hdit_tiny,
    unet_small,
)
from ..noise import GaussianNoise
from ..operators.families import OperatorFamily
from ..operators.named import family_from
from ..schedule import Cosine, Flow, Schedule, VPLinear

ScheduleName = Literal["flow", "vp", "cosine"]
ConditioningName = Literal["palette", "gradient", "palette+gradient", "invfusion"]
NetworkName = Literal[
    "unet-mini", "unet-tiny", "unet-small", "hdit-tiny", "hdit-small", "hdit-ffhq256", "hdit-imagenet256"
]
SCHEDULES: dict[ScheduleName, Callable[[], Schedule]] = {"flow": Flow, "vp": VPLinear, "cosine": Cosine}


def _unet_mini(in_channels: int, out_channels: int) -> UNetConfig:
    """1.6 million parameters: enough late in a run, where the likelihood step is most of the answer."""
    return UNetConfig(
        in_channels, out_channels, patch=4, widths=(48, 96), depth=1, attention=(1,), condition_width=64
    )


def _unet_tiny(in_channels: int, out_channels: int) -> UNetConfig:
    """2.8 million parameters on patches of 4 x 4: a pass is cheap beside unet-small's."""
    return UNetConfig(
        in_channels, out_channels, patch=4, widths=(64, 128), depth=1, attention=(1,), condition_width=64
    )


def _hdit_small(in_channels: int, out_channels: int) -> HDiTConfig:
    """5.1 million parameters on patches of 4 x 4: about the size of unet-small."""
    return HDiTConfig(in_channels, out_channels, widths=(128, 256), depths=(2, 4))


def _hdit_imagenet256(in_channels: int, out_channels: int) -> HDiTConfig:
    return hdit_imagenet256(in_channels, out_channels, num_classes=0)


_NETWORKS: dict[NetworkName, Callable[[int, int], HDiTConfig | UNetConfig]] = {
    "unet-mini": _unet_mini,
    "unet-tiny": _unet_tiny,
    "unet-small": unet_small,
    "hdit-tiny": hdit_tiny,
    "hdit-small": _hdit_small,
    "hdit-ffhq256": hdit_ffhq256,
    "hdit-imagenet256": _hdit_imagenet256,
}
# The joint levels of an InvFusion network that names none: the finest holds the most images in its features.
_JOINT = (0,)


@dataclass(frozen=True)
class Measurement:
    """What is measured, and how the network is told."""

    task: str  # sr4, motion-blur, random-rectangle, ...; or file.py:attribute with an operator of your own
    noise: float = 0.05  # standard deviation of the noise, in the units of the measurement
    conditioning: ConditioningName = "palette"  # how the network is told; invfusion needs an hdit

    def family(self, image_shape: tuple[int, ...]) -> OperatorFamily:
        """The operators that the task's name, or file, stands for."""
        return family_from(self.task, image_shape)

    @property
    def noise_model(self) -> GaussianNoise:
        """Gaussian noise of this standard deviation."""
        return GaussianNoise(self.noise)

    @property
    def channels(self) -> list[Conditioning]:
        """What stands beside the image; InvFusion comes on top of Palette."""
        # Damped by the noise's variance over 1/4, the variance of images in [-1, 1].
        parts: dict[str, Conditioning] = {
            "palette": Palette(damping=4.0 * self.noise**2),
            "gradient": LikelihoodGradient(),
        }
        names = "palette" if self.conditioning == "invfusion" else self.conditioning
        return [parts[name] for name in names.split("+")]

    @property
    def is_fused(self) -> bool:
        """Whether the network holds the operator itself."""
        return self.conditioning == "invfusion"


def describe_network(
    network: NetworkName | Path,
    in_channels: int,
    out_channels: int,
    second_time: bool = False,
    fused_channels: int = 0,
) -> dict[str, Any]:
    """What :func:`~lavps.networks.build_network` builds the network from.

    Args:
        network: a name, or a JSON file; what follows from the task may be left out there.
        in_channels: of its input.
        out_channels: of its output.
        second_time: whether it is told s.
        fused_channels: channels of the images on which InvFusion's operator acts; 0 for no InvFusion.
    """
    needed: dict[str, Any] = {"in_channels": in_channels, "out_channels": out_channels}
    if second_time:
        needed["second_time"] = True
    if fused_channels:
        needed["image_channels"] = fused_channels
    if isinstance(network, Path):
        description = dict(json.loads(network.read_text(encoding="utf-8")))
        _require_agreement(network, description, needed)
    else:
        description = _NETWORKS[network](in_channels, out_channels).to_dict()
    if fused_channels:
        if description.get("kind") != HDiTConfig.kind:
            raise ValueError(
                f"invfusion is made for HDiT networks, not for {network}: try --network hdit-tiny"
            )
        needed["joint"] = list(description.get("joint") or _JOINT)
    return description | needed


def _require_agreement(file: Path, description: Mapping[str, Any], needed: Mapping[str, Any]) -> None:
    for name, value in needed.items():
        if description.get(name, value) != value:
            raise ValueError(
                f"{file} says {name} is {description[name]}, this task needs {value}: "
                "correct it, or leave it out"
            )
