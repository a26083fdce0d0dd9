"""The command ``lavps``: each subcommand is a dataclass with a method ``run``, its options are the fields.

.. code-block:: shell

    lavps train prior --data faces/ --size 64 --output runs/faces64
    torchrun --nproc_per_node 8 -m lavps.cli train prior --data faces/ --size 64 --output runs/faces64

The same command, given again, resumes what was interrupted.
"""

from __future__ import annotations

__all__ = ["Train", "TrainPrior", "main"]

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import tyro

from .amortization.checkpoint import save_model
from .amortization.data import ImageData
from .amortization.denoising import DenoiserTask, Target, Times
from .amortization.trainer import TrainerConfig, train
from .networks import HDiTConfig, UNetConfig, build_seeded, hdit_ffhq256, hdit_tiny, unet_small
from .schedule import Cosine, Flow, VPLinear

_SCHEDULES = {"flow": Flow, "vp": VPLinear, "cosine": Cosine}
_NETWORKS: dict[str, Callable[[int, int], HDiTConfig | UNetConfig]] = {
    "unet-small": unet_small,
    "hdit-tiny": hdit_tiny,
    "hdit-ffhq256": hdit_ffhq256,
}


@dataclass(frozen=True)
class TrainPrior:
    """Train a denoiser on images, and write it to OUTPUT/model, ready to be loaded."""

    data: Path  # folder of png, jpg or webp images, or of tar shards, or one tar
    trainer: Annotated[TrainerConfig, tyro.conf.arg(name="")]
    size: int = 64  # images are centre-cropped and resized to size x size
    channels: Literal[1, 3] = 3  # grey or colour
    network: Literal["unet-small", "hdit-tiny", "hdit-ffhq256"] | Path = "unet-small"  # or a JSON description
    schedule: Literal["flow", "vp", "cosine"] = "flow"  # how noise grows with time
    prediction: Target = "velocity"  # what the network learns to predict
    times: Times = "uniform"  # how times are drawn
    flip: bool = True  # mirror half of the samples
    cache: bool = True  # decode once, to OUTPUT/cache; else at every access
    skip_bad: bool = False  # leave out files that cannot be decoded
    validation: Path | None = None  # images to validate on, like data
    validation_images: int = 64  # how many of them at most
    weights: Literal["float32", "bfloat16", "float16"] = "float32"  # precision of the written model

    def run(self) -> None:
        """Train, then write the model."""
        config, network = self.trainer, self._network()
        shape = (self.channels, self.size, self.size)
        task = DenoiserTask(
            build_seeded(network, config.seed),
            _SCHEDULES[self.schedule](),
            shape,
            self.prediction,
            times=self.times,
            seed=config.seed,
            description=network,
        )
        data = self._images(self.data, self.flip)
        if data.bad:
            print(f"skipped {len(data.bad)} files: {', '.join(data.bad[:3])} ...", file=sys.stderr)
        result = train(task, data, config, self._validation())
        if result.is_main:
            training = asdict(config) | {"output": config.output.name, "data": data.describe()}
            about = task.model_config(training | {"validation": result.validation})
            save_model(config.output / "model", task.network, about, getattr(torch, self.weights))
            print(f"the model is in {config.output / 'model'}")

    def _network(self) -> dict[str, Any]:
        if isinstance(self.network, Path):
            return dict(json.loads(self.network.read_text(encoding="utf-8")))
        return _NETWORKS[self.network](self.channels, self.channels).to_dict()

    def _images(self, path: Path, flip: bool) -> ImageData:
        cache = self.trainer.output / "cache" if self.cache else False
        return ImageData.open(
            path,
            self.size,
            self.channels,
            cache=cache,
            flip=flip,
            seed=self.trainer.seed,
            skip_bad=self.skip_bad,
        )

    def _validation(self) -> ImageData | None:
        if self.validation is None:
            return None
        data = self._images(self.validation, flip=False)
        count = min(len(data), self.validation_images)
        return ImageData.from_tensor(torch.stack([data[index] for index in range(count)]))


# A union needs two members to become subcommands: the second is never offered.
_Nothing = Annotated[None, tyro.conf.Suppress]
_Models = Annotated[TrainPrior, tyro.conf.subcommand("prior")] | _Nothing


@dataclass(frozen=True)
class Train:
    """Train a model."""

    model: _Models

    def run(self) -> None:
        """Train it."""
        if self.model is not None:
            self.model.run()


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line and run the command."""
    command: Any = tyro.cli(
        Annotated[Train, tyro.conf.subcommand("train")] | _Nothing,
        prog="lavps",
        description="Posterior sampling for imaging inverse problems with diffusion priors.",
        args=arguments,
        config=(tyro.conf.OmitSubcommandPrefixes, tyro.conf.OmitArgPrefixes),
    )
    try:
        command.run()
    except KeyboardInterrupt as interrupt:
        print(interrupt or "interrupted", file=sys.stderr)
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
