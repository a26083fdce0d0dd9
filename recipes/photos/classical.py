"""Classical methods, each with the settings among which the best one is reported."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from skimage import restoration
from torch import Tensor
from torch.nn.functional import interpolate

from lavps import InverseProblem
from lavps.operators.linalg import conjugate_gradient

Method = Callable[[InverseProblem, float], Tensor]


def _array(image: Tensor) -> object:
    return ((image + 1) / 2).permute(1, 2, 0).double().numpy()


def _image(array: object) -> Tensor:
    return torch.as_tensor(array).permute(2, 0, 1).float() * 2 - 1


def measured(problem: InverseProblem, _: float) -> Tensor:
    """Return the measurement itself."""
    return problem.y[0]


def bicubic(problem: InverseProblem, _: float) -> Tensor:
    """Return the measurement, enlarged by bicubic interpolation."""
    return interpolate(problem.y, size=problem.image_shape[1:], mode="bicubic", align_corners=False)[0]


def non_local_means(problem: InverseProblem, strength: float) -> Tensor:
    """Return the average of similar patches (Buades et al., 2005)."""
    sigma = float(problem.noise.std) / 2
    filtered = restoration.denoise_nl_means(
        _array(problem.y[0]), patch_size=5, patch_distance=7, h=strength * sigma, sigma=sigma, channel_axis=-1
    )
    return _image(filtered)


def biharmonic(problem: InverseProblem, _: float) -> Tensor:
    """Return the biharmonic interpolation of missing pixels."""
    observed = problem.operator.observed(problem.y)
    assert observed is not None
    missing = ~observed.expand(1, *problem.image_shape)[0, 0].bool()
    return _image(restoration.inpaint_biharmonic(_array(problem.y[0]), missing.numpy(), channel_axis=-1))


def wiener(problem: InverseProblem, power: float) -> Tensor:
    """Return the estimate for images with a power spectrum that falls with the square of the frequency."""
    height, width = problem.image_shape[1:]
    frequencies = torch.fft.fftfreq(height)[:, None].square() + torch.fft.rfftfreq(width).square()
    penalty = frequencies / power
    weight = 1 / float(problem.noise.std) ** 2

    def system(x: Tensor) -> Tensor:
        smooth = torch.fft.irfft2(torch.fft.rfft2(x) * penalty, s=(height, width))
        return weight * problem.operator.adjoint(problem.operator(x)) + smooth

    return conjugate_gradient(system, weight * problem.operator.adjoint(problem.y), iterations=60)[0]


def total_variation(problem: InverseProblem, weight: float) -> Tensor:
    """Minimize |A x - y|^2 / 2 + weight TV(x), with the primal-dual method of Chambolle and Pock (2011)."""
    operator, y = problem.operator, problem.y
    step = 1 / (1 + 8**0.5)  # |A| <= 1 for all operators of this study, and |gradient|^2 <= 8
    x = operator.adjoint(y)
    ahead, dual, misfit = x, torch.zeros(2, *x.shape), torch.zeros_like(y)
    for _ in range(100):
        misfit = (misfit + step * (operator(ahead) - y)) / (1 + step)
        dual = dual + step * _gradient(ahead)
        length = dual.square().sum((0, 2), keepdim=True).sqrt()
        dual = dual / (length / weight).clamp(min=1)
        new = x - step * (operator.adjoint(misfit) + _gradient_adjoint(dual))
        ahead, x = 2 * new - x, new
    return x[0]


def smoothed(problem: InverseProblem, weight: float) -> Tensor:
    """Return the image of least total variation near the measurement."""
    return _image(restoration.denoise_tv_chambolle(_array(problem.y[0]), weight=weight, channel_axis=-1))


def _gradient(x: Tensor) -> Tensor:
    down, right = torch.zeros_like(x), torch.zeros_like(x)
    down[..., :-1, :], right[..., :-1] = x.diff(dim=-2), x.diff(dim=-1)
    return torch.stack([down, right])


def _gradient_adjoint(dual: Tensor) -> Tensor:
    x = torch.zeros_like(dual[0])
    x[..., :-1, :] -= dual[0][..., :-1, :]
    x[..., 1:, :] += dual[0][..., :-1, :]
    x[..., :-1] -= dual[1][..., :-1]
    x[..., 1:] += dual[1][..., :-1]
    return x


# Methods of a task: name, function, settings.
METHODS: dict[str, list[tuple[str, Method, tuple[float, ...]]]] = {
    "denoise": [
        ("total variation", smoothed, (0.04, 0.07, 0.1, 0.15, 0.2)),
        ("non-local means", non_local_means, (0.3, 0.45, 0.6, 0.8, 1.0)),
    ],
    "motion-blur": [
        ("Wiener", wiener, (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)),
        ("total variation", total_variation, (0.0003, 0.001, 0.003, 0.01, 0.03)),
    ],
    "sr2": [
        ("bicubic", bicubic, (0.0,)),
        ("total variation", total_variation, (0.0003, 0.001, 0.003, 0.01, 0.03)),
    ],
    "scratches": [
        ("biharmonic", biharmonic, (0.0,)),
        ("total variation", total_variation, (0.00003, 0.0003, 0.003, 0.03, 0.3)),
    ],
    "jpeg10": [
        ("the file itself", measured, (0.0,)),
        ("total variation", smoothed, (0.01, 0.02, 0.04, 0.08, 0.16)),
    ],
}


def results(problem: InverseProblem, task: str) -> Iterator[tuple[str, str, Tensor]]:
    """Yield the method, the setting and the image of every classical result."""
    for name, method, settings in METHODS[task]:
        for setting in settings:
            yield name, f"{setting:g}" if len(settings) > 1 else "", method(problem, setting).clamp(-1, 1)
