r"""LPIPS, the perceptual distance between images (AlexNet, version 0.1), in plain PyTorch.

With :math:`\hat f^l(x)` the features after the l-th ReLU of AlexNet, divided at every position by their norm
over channels, and learned weights :math:`w^l \ge 0`,

.. math::
    d(a, b) = \sum_{l=1}^5 \frac{1}{H_l W_l} \sum_{h, w}
        \sum_c w^l_c \big(\hat f^l_{hwc}(a) - \hat f^l_{hwc}(b)\big)^2.

The weights, a file of 10 MB, are not part of the package: see :meth:`LPIPS.load`.

References:
    - Zhang, Isola, Efros, Shechtman and Wang, The Unreasonable Effectiveness of Deep Features as a Perceptual
      Metric, 2018. This module reproduces the authors' values for their two example pairs, 0.722 and 0.138.
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

from .metrics import ImageBatch, Images

_VARIABLE = "LAVPS_LPIPS"
_SHIFT = (-0.030, -0.088, -0.188)  # ImageNet normalization, for inputs in [-1, 1]
_SCALE = (0.458, 0.448, 0.450)
_LAYERS = ("0", "3", "6", "8", "10")  # indices of the convolutions in AlexNet's features
_STRIDES, _PADDINGS = (4, 1, 1, 1, 1), (2, 2, 1, 1, 1)
_POOLED = (False, True, True, False, False)  # whether max pooling precedes the convolution
_SMALLEST = 31  # smallest side, in pixels, for which the second pooling has an output
_HOW_TO_GET = (
    f"LPIPS needs its weights: pass the file to LPIPS.load(path) or set the variable {_VARIABLE}. To create "
    "the file, install the packages lpips and torchvision, and run safetensors.torch.save_model("
    'lpips.LPIPS(net="alex"), "lpips_alex.safetensors")'
)


@dataclass(frozen=True, eq=False)
class LPIPS:
    """LPIPS distance with its weights.

    Attributes:
        kernels: Weights of the five convolutions, (out, in, k, k) each.
        biases: Biases of the convolutions, (out,) each.
        heads: Weights w of the squared differences, (out,) per layer.
        chunk: Number of images evaluated at a time.
    """

    kernels: tuple[Tensor, ...]
    biases: tuple[Tensor, ...]
    heads: tuple[Tensor, ...]
    chunk: int = 16

    @classmethod
    def load(cls, path: str | Path | None = None, device: torch.device | str = "cpu") -> LPIPS:
        """Load the weights from a safetensors file.

        Args:
            path: Weights file; default the value of the environment variable ``LAVPS_LPIPS``. It contains the
                convolutions ``features.{0,3,6,8,10}.{weight,bias}`` (``net.sliceK.N.*`` in the authors'
                package) and the heads ``lin{0..4}.model.1.weight``.
            device: Device of the weights.
        """
        from safetensors.torch import load_file

        path = path or os.environ.get(_VARIABLE)
        if not path:
            raise FileNotFoundError(_HOW_TO_GET)
        if not Path(path).is_file():
            raise FileNotFoundError(f"{path} is not a file. {_HOW_TO_GET}")
        return cls.from_weights(load_file(path)).to(device)

    @classmethod
    def from_weights(cls, weights: Mapping[str, Tensor]) -> LPIPS:
        """Build LPIPS from tensors with the names of :meth:`load`'s file."""
        named = {re.sub(r"^net\.slice\d+\.", "features.", name): tensor for name, tensor in weights.items()}
        kernels = [f"features.{layer}.weight" for layer in _LAYERS]
        biases = [f"features.{layer}.bias" for layer in _LAYERS]
        heads = [f"lin{layer}.model.1.weight" for layer in range(len(_LAYERS))]
        if missing := [name for name in (*kernels, *biases, *heads) if name not in named]:
            raise KeyError(f"these are not the weights of LPIPS: {', '.join(missing)} missing. {_HOW_TO_GET}")
        return cls(
            tuple(named[name].float() for name in kernels),
            tuple(named[name].float() for name in biases),
            tuple(named[name].float().flatten() for name in heads),
        )

    def to(self, device: torch.device | str) -> LPIPS:
        """Move the weights to a device."""
        groups = (self.kernels, self.biases, self.heads)
        kernels, biases, heads = (tuple(tensor.to(device) for tensor in group) for group in groups)
        return replace(self, kernels=kernels, biases=biases, heads=heads)

    @torch.no_grad()
    def __call__(self, a: Images, b: Images) -> Tensor:
        """Return distances (B,), on the CPU; lower is closer.

        Args:
            a: Images (B, C, H, W), C = 1 or 3, an :class:`ImageBatch` or a tensor in [-1, 1].
            b: Images of the same shape.
        """
        a, b = ImageBatch.pair(a, b)
        chunks = zip(a.split(self.chunk), b.split(self.chunk), strict=True)
        return torch.cat([self.distance(x.to_tensor(), z.to_tensor()) for x, z in chunks]).cpu()

    def distance(self, a: Tensor, b: Tensor) -> Tensor:
        """Return distances (B,) of tensors (B, C, H, W) in [-1, 1], not rounded and differentiable."""
        layers = zip(self._layers(a), self._layers(b), self.heads, strict=True)
        terms = [torch.einsum("bchw,c->bhw", (f - g).square(), w).mean((1, 2)) for f, g, w in layers]
        return torch.stack(terms).sum(0)

    @torch.no_grad()
    def features(self, images: ImageBatch) -> Iterator[Tensor]:
        """Yield the features (B, channels, height, width) of the five layers, of norm 1 over channels."""
        yield from self._layers(images.to_tensor())

    def _layers(self, x: Tensor) -> Iterator[Tensor]:
        channels, *sides = x.shape[1:]
        if channels not in (1, 3) or min(sides) < _SMALLEST:
            raise ValueError(
                f"LPIPS needs grey or RGB images of at least {_SMALLEST} pixels per side, "
                f"got {tuple(x.shape[1:])}"
            )
        x = x.to(self.kernels[0]).expand(-1, 3, -1, -1)
        shift, scale = (x.new_tensor(values).reshape(1, 3, 1, 1) for values in (_SHIFT, _SCALE))
        x = (x - shift) / scale
        layers = zip(self.kernels, self.biases, _STRIDES, _PADDINGS, _POOLED, strict=True)
        for kernel, bias, stride, padding, pooled in layers:
            if pooled:
                x = F.max_pool2d(x, 3, 2)
            x = F.conv2d(x, kernel, bias, stride, padding).relu()
            yield x / (x.norm(dim=1, keepdim=True) + 1e-10)
