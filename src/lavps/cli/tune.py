"""``lavps tune``: a sampling schedule for a prior, a task and a range of noise levels, learned in minutes."""

from __future__ import annotations

__all__ = ["Tune"]

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from ..amortization.loading import prior_hash
from ..checkpoints import load_prior
from ..data_step import Stationary
from ..devices import resolve_device
from ..evaluation.lpips import LPIPS
from ..operators.registry import family_from
from ..priors.precision import Precision
from ..restoration.schedules import TunedSchedule
from ..samplers import Settings, WienerPIR
from ..training.data import image_of
from ..training.tuning import TuningConfig, tune
from .draws import images_or_draws, prior_image_shape
from .failures import fatal
from .options import Crop, Device, File, N, NoiseRange, PriorPath, argument, lowest_and_highest


@dataclass(frozen=True, kw_only=True)
class Tune:
    """Learn a sampling schedule for a prior, tasks and a range of noise levels: a few dozen numbers.

    $ lavps tune --prior zoo/synthfaces64 --task sr4 --noise 0.05 --data faces/ --evaluations 8 -o sr4-8.json
    $ lavps restore photo.png --task sr4 --noise 0.05 --prior zoo/synthfaces64 --schedule sr4-8.json
    """

    prior: PriorPath[str]  # Prior: model folder, checkpoint of another library, name in the zoo, or Hub id.
    # Operators: sr4, denoise, motion-blur, ..., or Python objects in files.
    task: Annotated[tuple[str, ...], argument(metavar="TASK [TASK ...]")]
    # Standard deviation of the noise, or the lowest and the highest one.
    noise: NoiseRange
    # Images like those to restore: a folder, or tar files; default samples of the prior.
    data: Annotated[Path | None, argument(metavar="FOLDER|TAR")] = None
    # Crops: the centre, resized to the size of the prior, or random windows at native resolution.
    crop: Crop = "centre"
    evaluations: N[int] = 8  # Denoiser evaluations per sample.
    iterations: N[int] = 100  # Optimizer steps.
    batch_size: N[int] = 2  # Images per step.
    count: N[int] = 256  # Training images used at most.
    validation_images: N[int] = 16  # Validation images, which are not used for training.
    lpips: File[Path | None] = None  # Weights of LPIPS, which is then added to the score.
    seed: N[int] = 0  # Seed of images, operators and noise.
    checkpointing: bool = False  # Recomputation of activations, for large networks.
    precision: Precision = "fp32"  # Precision of the network; the sampler stays in fp32.
    compile: bool = False  # Compilation of the network, which takes a minute and makes every step faster.
    # File of the schedule.
    output: Annotated[Path, argument(metavar="FILE", aliases=["-o"])] = Path("schedule.json")
    device: Device[str] = "auto"  # cpu, cuda, mps, xpu, or auto: the first available of cuda, mps, xpu, cpu.

    def run(self) -> None:
        """Tune, write the schedule, and print the scores."""
        with fatal("tune"):
            noise = lowest_and_highest(self.noise)
            if not self.task:
                raise ValueError("--task needs at least one task: --task sr4")
            if self.evaluations < 2 or min(self.iterations, self.batch_size, self.validation_images) < 1:
                raise ValueError("--evaluations must be at least 2, the other numbers at least 1")
            device = resolve_device(self.device)
            prior = load_prior(self.prior, device, precision=self.precision, compiled=self.compile)
            shape = prior_image_shape(prior, "lavps tune")
            families = [family_from(task, shape) for task in self.task]
            count = self.count + self.validation_images
            images = images_or_draws(self.data, self.crop, prior, shape, count, self.seed, device).to(device)
            held_out, training = images[: self.validation_images], images[self.validation_images :]
            if not len(training):
                raise ValueError(f"{len(images)} images are too few: --validation-images takes all of them")
            initial = WienerPIR(prior, num_steps=self.evaluations, covariance=Stationary.fit(training.cpu()))
            config = TuningConfig(
                self.iterations,
                self.batch_size,
                validate_every=max(20, self.iterations // 10),
                seed=self.seed,
                trends=len(families) > 1 or noise[0] < noise[1],
                checkpointing=self.checkpointing,
                progress=True,
            )
            result = tune(
                initial,
                lambda items: training[[image_of(item, len(training), self.seed) for item in items]],
                held_out,
                families,
                noise,
                config,
                None if self.lpips is None else LPIPS.load(self.lpips, device).distance,
            )
            TunedSchedule(
                Settings(result.sampler),
                prior_hash(prior) or "",
                self.task,
                noise,
                {"before": result.before, "after": result.after},
            ).write(self.output)
        gain = 100 * (1 - result.after / result.before)
        print(
            f"validation score {result.before:.4f} before, {result.after:.4f} after ({gain:.1f} % lower), "
            f"with {len(held_out)} images and {self.evaluations} evaluations; the schedule is {self.output}"
        )
