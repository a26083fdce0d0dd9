"""Configuration of a restoration, in plain values, which pickle."""

from __future__ import annotations

__all__ = ["RestorationConfig"]

from dataclasses import dataclass

from ..priors.precision import Precision
from ..samplers import Settings
from .certificate import Certificate
from .presets import Quality
from .restorer import Restorer
from .schedules import TunedSchedule
from .spec import MeasurementSpec


@dataclass(frozen=True)
class RestorationConfig:
    """Configuration of a restoration.

    Attributes:
        prior: Model folder, checkpoint of another library, or Hub id.
        model: Folder or Hub id of an inference model or few-step model. Default: none, but the few-step
            model beside the prior for ``fast`` and linear tasks except denoising.
        measuring: Measurement of the files.
        samples: Number of samples per file.
        seed: Seed of the sampler's noise.
        settings: Settings of the sampler, instead of the next four.
        schedule: Learned schedule, instead of the next three.
        quality: "fast", "balanced" or "best"; default "balanced".
        evaluations: Maximum number of denoiser evaluations per sample, instead of a quality.
        budget: Seconds per file, instead of a quality.
        batch_size: Samples per batch; default all. When memory runs out, this and the next are halved.
        tile_batch: Windows per denoiser call.
        device: Device of the computation.
        label: Class, for a class-conditional prior of another library.
        precision: Precision of the prior's network.
        compiled: Whether the prior's network is compiled.
        certificate: Certificate whose settings are used and whose intervals are written.
        levels: Levels of the intervals; default those of the certificate.

    Example:
        >>> spec = MeasurementSpec("sr4", noise=0.02)
        >>> RestorationConfig("zoo/synthfaces64", measuring=spec, samples=4).quality is None
        True
    """

    prior: str
    model: str | None = None
    measuring: MeasurementSpec = MeasurementSpec()
    samples: int = 1
    seed: int = 0
    settings: Settings | None = None
    schedule: TunedSchedule | None = None
    quality: Quality | None = None
    evaluations: int | None = None
    budget: float | None = None
    batch_size: int | None = None
    tile_batch: int = 16
    device: str = "cpu"
    label: int | None = None
    precision: Precision = "fp32"
    compiled: bool = False
    certificate: Certificate | None = None
    levels: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.samples < 1 or self.tile_batch < 1 or (self.batch_size or 1) < 1:
            raise ValueError("samples, batch_size and tile_batch must be at least 1")
        costs = (self.schedule, self.quality, self.evaluations, self.budget)
        if sum(given is not None for given in costs) > 1:
            raise ValueError("give one of --quality, --evaluations, --schedule and --budget")
        if self.evaluations == 1 and self.samples > 1:
            raise ValueError(
                "one evaluation gives the posterior mean, of which there is one: leave out --samples, or "
                "give more --evaluations"
            )
        if self.schedule is not None and self.model is not None:
            raise ValueError("give --schedule or --inference-model: a learned schedule uses no model")
        if self.certificate is not None:
            self._take_certificate(self.certificate, any(given is not None for given in costs))
        elif self.levels:
            raise ValueError("--levels needs --certificate: run lavps calibrate")

    def _take_certificate(self, certificate: Certificate, has_cost: bool) -> None:
        if self.precision != "fp32" or self.label is not None:
            raise ValueError("a certificate holds for --precision fp32 and no --label")
        levels = self.levels or tuple(found.level for found in certificate.corrections)
        for level in levels:
            certificate.scale(level, self.samples)
        object.__setattr__(self, "levels", levels)
        if not has_cost and self.settings is None:
            object.__setattr__(self, "settings", certificate.settings)

    def load(self, settings: Settings | None = None) -> Restorer:
        """Load the models, with other settings if they are given."""
        return Restorer.load(
            self.prior,
            self.model,
            settings or self.settings,
            self.device,
            self.tile_batch,
            self.label,
            self.precision,
            self.compiled,
        )
