"""``lavps doctor``: installed and missing libraries, and a numerical self-test.

The self-test samples a problem with a known posterior: a Gaussian prior, measured by block means. The mean of
MGDM's samples must be near the exact mean, and a batch must equal single runs.
"""

from __future__ import annotations

__all__ = ["Check", "Doctor", "self_test"]

import importlib
import importlib.util
import os
import platform
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

import torch

from ..guidance import Gradient
from ..minimizers import WhitenedGradient
from ..operators import AveragePool
from ..priors import GaussianPrior
from ..problem import GaussianNoise, InverseProblem, exact_posterior
from ..samplers import MGDM

_EXTRAS = {
    "train": ("accelerate", "tensorboard"),
    "hub": ("diffusers", "huggingface_hub"),
    "metrics": ("scipy",),
    "clip": ("transformers",),
    "tiff": ("imagecodecs", "tifffile"),
    "report": ("jinja2", "matplotlib", "scipy"),
    "bulk": ("ray", "pyarrow", "jinja2"),
    "serve": ("ray", "fastapi", "prometheus_client"),
    "sweep": ("optuna",),
    "demo": ("gradio",),
}
_CORE = ("numpy", "pillow", "safetensors", "tqdm", "tyro")
# In posterior standard deviations: 32 samples are within 0.2, the prior without a measurement within 3.
_TOLERANCE = 0.5


@dataclass(frozen=True)
class Check:
    """Result of one check.

    Attributes:
        name: Name of the check.
        found: Finding.
        broken: Whether results of the library cannot be trusted.
        advice: Remedy, if any.
    """

    name: str
    found: str
    broken: bool = False
    advice: str = ""

    def __str__(self) -> str:
        mark = "BROKEN" if self.broken else "ok"
        return f"{mark:>6}  {self.name}: {self.found}" + (f"\n        {self.advice}" if self.advice else "")


@dataclass(frozen=True)
class Doctor:
    """Check the installation, and test the sampler on a known posterior."""

    def run(self) -> None:
        """Print the findings; exit with code 1 if anything is broken."""
        broken = []
        for check in _checks():
            print(check, flush=True)
            broken += [check.name] if check.broken else []
        if broken:
            print(f"broken: {', '.join(broken)}", file=sys.stderr)
            raise SystemExit(1)
        print("all is well")


def _checks() -> Iterator[Check]:
    yield Check("python", f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    core = ", ".join(f"{name} {version(name)}" for name in _CORE)
    yield Check("lavps", f"{version('lavps')}, with {core}")
    yield Check("torch", torch.__version__)
    threads = os.environ.get("OMP_NUM_THREADS")
    stated = f", OMP_NUM_THREADS={threads}" if threads else ""
    yield Check("threads", f"{torch.get_num_threads()} of {os.cpu_count()} processors{stated}")
    yield Check("devices", ", ".join(_devices()))
    yield _torchvision()
    for extra, modules in _EXTRAS.items():
        yield _extra(extra, modules)
    yield self_test()


def _devices() -> Iterator[str]:
    yield "cpu"
    for index in range(torch.cuda.device_count()):
        yield f"cuda:{index} ({torch.cuda.get_device_name(index)})"
    if torch.backends.mps.is_available():
        yield "mps"


def _torchvision() -> Check:
    """Check torchvision: not needed, but one built for another torch breaks diffusers and transformers."""
    if importlib.util.find_spec("torchvision") is None:
        return Check("torchvision", "not installed, and not needed")
    try:
        importlib.import_module("torchvision")
    except Exception as error:  # a library built for another torch may raise anything
        reason = " ".join(str(error).split())[:120]
        advice = "it was built for another torch, and lavps does not need it: pip uninstall torchvision"
        return Check("torchvision", f"cannot be imported ({type(error).__name__}: {reason})", advice=advice)
    return Check("torchvision", f"{_version('torchvision')}, fits torch; not needed")


def _extra(extra: str, modules: tuple[str, ...]) -> Check:
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if not missing:
        return Check(f"extra [{extra}]", ", ".join(f"{name} {_version(name)}" for name in modules))
    advice = f'pip install "lavps[{extra}]"  (only if you want it)'
    return Check(f"extra [{extra}]", f"{', '.join(missing)} not installed", advice=advice)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "of unknown version"


def self_test(samples: int = 32) -> Check:
    """Compare MGDM with the exact posterior mean, and a batch with single runs, in about two seconds."""
    start, grid = time.perf_counter(), torch.arange(4, dtype=torch.float64)
    rows, columns = (axis.flatten() for axis in torch.meshgrid(grid, grid, indexing="ij"))
    distance = (rows[:, None] - rows).square() + (columns[:, None] - columns).square()
    covariance = 0.25 * torch.exp(-distance / 4) + 1e-3 * torch.eye(16, dtype=torch.float64)
    prior = GaussianPrior(torch.zeros(1, 4, 4), covariance)
    problem = InverseProblem.simulate(prior.sample(2, seed=1), AveragePool(2), GaussianNoise(0.1))
    sampler = MGDM(prior, num_steps=20, guidance=Gradient(3, WhitenedGradient()))
    posterior = sampler.sample(problem, samples)
    error = 0.0
    for item, exact in enumerate(exact_posterior(prior, problem)):
        offset = (posterior.mean[item].double() - exact.mean) / exact.std
        error = max(error, float(offset.square().mean().sqrt()))
    batch = sampler.sample(problem, 1, seed=3).mean
    singles = [sampler.sample(problem[item], 1, seed=3, items=[item]).mean[0] for item in range(2)]
    apart = float((batch - torch.stack(singles)).abs().max())
    found = (
        f"posterior mean off by {error:.2f} of its std, a batch differs from single runs by {apart:.0e} "
        f"({time.perf_counter() - start:.1f} s)"
    )
    broken = not (error < _TOLERANCE and apart < 1e-4)
    return Check("self-test", found, broken, "please report this with all lines above" if broken else "")
