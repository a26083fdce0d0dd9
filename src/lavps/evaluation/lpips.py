r"""LPIPS, the perceptual distance between images (AlexNet, version 0.1), in plain torch.

With :math:`\hat f^l(x)` the features after the l-th rectifier of AlexNet, divided at every position by
their norm over channels, and learned weights :math:`w^l \ge 0`,

.. math::
    d(a, b) = \sum_{l=1}^5 \frac{1}{H_l W_l} \sum_{h, w}
        \sum_c w^l_c \big(\hat f^l_{hwc}(a) - \hat f^l_{hwc}(b)\big)^2.

The weights are a file of 10 MB that does not come with the package: see :meth:`LPIPS.load`.

References:
    - Zhang, Isola, Efros, Shechtman and Wang, The Unreasonable Effectiveness of Deep Features as a Perceptual
      Metric, 2018. The authors' code gives .722 and .138 for its two example pairs; so does this one.
    - Krizhevsky, One Weird Trick for Parallelizing Convolutional Neural Networks, 2014 (this AlexNet).
"""

from __future__ import annotations

__all__ = ["LPIPS"]

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from .metrics import ImageBatch

_VARIABLE = "LAVPS_LPIPS"
_SHIFT, _SCALE = (-0.030, -0.088, -0.188), (0.458, 0.448, 0.450)  # ImageNet's colours, for inputs in [-1, 1]
_LAYERS = ("0", "3", "6", "8", "10")  # the convolutions' places among AlexNet's features
_STRIDES, _PADDINGS = (4, 1, 1, 1, 1), (2, 2, 1, 1, 1)
_POOLED = (False, True, True, False, False)  # whether a pooling comes before the convolution
_SMALLEST = 31  # pixels a side that leave the second pooling something to pool
_HOW_TO_GET = (
    f"LPIPS needs its weights: name the file in LPIPS.load(path) or in the variable {_VARIABLE}. To make it, "
    "where the packages lpips and torchvision are installed: safetensors.torch.save_model("
    'lpips.LPIPS(net="alex"), "lpips_alex.safetensors")'
)


@dataclass(frozen=True, eq=False)
class LPIPS:
    """The distance, with its weights.

    Attributes:
        kernels: the five convolutions' (out, in, k, k).
        biases: theirs (out,).
        heads: weights of the squared differences, (out,) for every layer.
        chunk: images at a time, which bounds the memory.
    """

    kernels: tuple[Tensor, ...]
    biases: tuple[Tensor, ...]
    heads: tuple[Tensor, ...]
    chunk: int = 16

    @classmethod
    def load(cls, path: str | Path | None = None, device: torch.device | str = "cpu") -> LPIPS:
        """LPIPS from a safetensors file.

        Args:
            path: the file; default the one named by the environment variable ``LAVPS_LPIPS``. It holds
                AlexNet's convolutions ``features.{0,3,6,8,10}.{weight,bias}`` (or ``net.sliceK.N.*``, as the
                authors' package calls them) and the heads ``lin{0..4}.model.1.weight``.
            device: where to compute.
        """
        from safetensors.torch import load_file

        path = path or os.environ.get(_VARIABLE)
        if not path:
            raise FileNotFoundError(_HOW_TO_GET)
        if not Path(path).is_file():
            raise FileNotFoundError(f"{path} is no file. {_HOW_TO_GET}")
        return cls.from_weights(load_file(path)).to(device)

    @classmethod
    def from_weights(cls, weights: Mapping[str, Tensor]) -> LPIPS:
        """LPIPS from named tensors, called as in :meth:`load`'s file."""
        named = {re.sub(r"^net\.slice\d+\.", "features.", name): tensor for name, tensor in weights.items()}
        kernels = [f"features.{layer}.weight" for layer in _LAYERS]
        biases = [f"features.{layer}.bias" for layer in _LAYERS]
        heads = [f"lin{layer}.model.1.weight" for layer in range(len(_LAYERS))]
        missing = [name for name in (*kernels, *biases, *heads) if name not in named]
        if missing:
            raise KeyError(f"these are not LPIPS's weights: {', '.join(missing)} missing. {_HOW_TO_GET}")
        return cls(
            tuple(named[name].float() for name in kernels),
            tuple(named[name].float() for name in biases),
            tuple(named[name].float().flatten() for name in heads),
        )

    def to(self, device: torch.device | str) -> LPIPS:
        """The same on another device."""
        return replace(
            self,
            kernels=tuple(kernel.to(device) for kernel in self.kernels),
            biases=tuple(bias.to(device) for bias in self.biases),
            heads=tuple(head.to(device) for head in self.heads),
        )

    @torch.no_grad()
    def __call__(self, a: ImageBatch, b: ImageBatch) -> Tensor:
        """Distances (B,) of images a and b (B, C, H, W), C = 1 or 3, on the CPU; lower is more alike."""
        a.check_alike(b)
        chunks = zip(a.split(self.chunk), b.split(self.chunk), strict=True)
        return torch.cat([self._distance(left, right) for left, right in chunks]).cpu()

    def _distance(self, a: ImageBatch, b: ImageBatch) -> Tensor:
        layers = zip(self.features(a), self.features(b), self.heads, strict=True)
        terms = [torch.einsum("bchw,c->bhw", (f - g).square(), w).mean((1, 2)) for f, g, w in layers]
        return torch.stack(terms).sum(0)

    @torch.no_grad()
    def features(self, images: ImageBatch) -> Iterator[Tensor]:
        """The five layers' features (B, channels, height, width), of norm 1 over channels."""
        x = self._normalised(images)
        layers = zip(self.kernels, self.biases, _STRIDES, _PADDINGS, _POOLED, strict=True)
        for kernel, bias, stride, padding, pooled in layers:
            if pooled:
                x = F.max_pool2d(x, 3, 2)
            x = F.conv2d(x, kernel, bias, stride, padding).relu()
            yield x / (x.norm(dim=1, keepdim=True) + 1e-10)

    def _normalised(self, images: ImageBatch) -> Tensor:
        """AlexNet's input (B, 3, H, W); a grey image is one whose three channels are equal."""
        channels, *sides = images.pixels.shape[1:]
        if channels not in (1, 3) or min(sides) < _SMALLEST:
            raise ValueError(
                f"LPIPS sees grey or RGB images of {_SMALLEST} pixels a side at least, got "
                f"{tuple(images.pixels.shape[1:])}"
            )
        x = images.to_tensor().to(self.kernels[0]).expand(-1, 3, -1, -1)
        shift, scale = (x.new_tensor(values).reshape(1, 3, 1, 1) for values in (_SHIFT, _SCALE))
        return (x - shift) / scale
