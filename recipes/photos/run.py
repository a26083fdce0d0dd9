"""Photographs of any size with a prior of patches: denoising in one evaluation, and five tasks beside classical methods.

    python -m recipes.photos.run --data DATA --lpips FILE

DATA holds ``photos-test.tar``, the validation images of BSDS500, of which 68 are CBSD68. The classical methods need scikit-image.
"""

from __future__ import annotations

import math
import random
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import tyro
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from tqdm import tqdm

import lavps
from lavps.benchmark.figures import matplotlib_figure
from lavps.benchmark.report import markdown_table
from lavps.checkpoints.folder import read_config
from lavps.evaluation import LPIPS, psnr
from lavps.io import read_image
from lavps.operators import Identity, Mask, Operator
from lavps.operators.registry import family_from
from lavps.pages.panels import Panel, comparison, picture_panel
from lavps.priors.precision import Precision
from lavps.restoration import Restorer
from lavps.restoration.presets import FrontEntry, few_step_front
from lavps.samplers import UNBOUND, Settings
from lavps.tiling import TiledPrior
from lavps.tiling.windows import seam_ratio

from ..common.pages import read, write_json, write_page

# CBSD68 in alphabetical order: the images up to this one, without one of them.
LAST, LEFT_OUT = "351093", "156065"
# Published averages on CBSD68: Dabov et al. 2007, Zhang et al. 2017, Zhang et al. 2022.
PUBLISHED = {"CBM3D": (33.52, 30.71, 27.38), "DnCNN": (33.90, 31.24, 27.95), "DRUNet": (34.30, 31.69, 28.51)}
LEVELS = (15, 25, 50)
# Title and noise of each task.
TASKS = {
    "denoise": ("denoising", 0.2),
    "motion-blur": ("motion blur", 0.05),
    "sr2": ("super-resolution x2", 0.02),
    "scratches": ("scratches and text", 0.0),
    "jpeg10": ("JPEG at quality 10", 0.02),
}
MEAN = "one evaluation"
# Samplers that denoise, with their defaults.
SAMPLERS = (
    *(Settings(lavps.DDIM(UNBOUND, num_steps=steps)) for steps in (4, 8, 25)),
    few_step_front(4)[0].settings,
    *(
        Settings(sampler(UNBOUND, num_steps=steps))
        for sampler in (lavps.DiffPIR, lavps.WienerPIR)
        for steps in (8, 25)
    ),
    Settings(lavps.TunedPIR.universal(UNBOUND, 8)),
)
WINDOWS = (64, 32)  # side and overlap
BLOCKS = {"sr2": 2, "jpeg10": 8}  # side of the blocks of a measurement


@dataclass(frozen=True)
class Config:
    """Settings of the study."""

    data: Path = Path("data")
    """Folder of the tar."""
    lpips: Path | None = None
    """File of the LPIPS weights; default: LAVPS_LPIPS."""
    prior: Path = Path("zoo/photos64")
    """Prior of patches."""
    pages: Path = Path("benchmarks")
    """Folder of the page and its numbers."""
    denoised: int = 68
    """Number of photographs that are denoised in one evaluation."""
    count: int = 30
    """Number of crops that are restored in one evaluation."""
    side: int = 256
    """Height and width of the crops."""
    sampled: int = 10
    """Number of these crops that are also restored by samples."""
    compared: int = 6
    """Number of these crops that several samplers denoise."""
    evaluations: int = 25
    """Denoiser evaluations per sample."""
    samples: int = 2
    """Samples per crop, two at least."""
    precision: Precision = "fp32"
    """Precision of the network that draws samples; one evaluation is in float32."""
    compiled: bool = False
    """Whether this network is compiled."""
    page_only: bool = False
    """Whether to write the page from the stored numbers, without sampling."""

    @cached_property
    def photographs(self) -> dict[str, Tensor]:
        """The photographs (3, H, W) by name, in alphabetical order."""
        with tarfile.open(self.data / "photos-test.tar") as tar:
            files = {Path(member.name).stem.removeprefix("bsds_"): member for member in tar.getmembers()}
            return {name: read_image(tar.extractfile(files[name]).read()).pixels for name in sorted(files)}  # type: ignore[union-attr]

    @cached_property
    def tiled(self) -> TiledPrior:
        """The prior, for images of any size."""
        return TiledPrior(lavps.load_prior(self.prior), *WINDOWS)

    @cached_property
    def sampled_prior(self) -> TiledPrior:
        """The prior that samples are drawn with."""
        prior = lavps.load_prior(self.prior, precision=self.precision, compiled=self.compiled)
        return TiledPrior(prior, *WINDOWS)

    @cached_property
    def restorer(self) -> Restorer:
        """The prior with its few-step model, for images of any size."""
        return Restorer(lavps.load_prior(self.prior, precision=self.precision, compiled=self.compiled))

    def crop(self, item: int) -> Tensor:
        """Return the centre of a photograph; the items are spread over all of them."""
        x = [*self.photographs.values()][item * len(self.photographs) // self.count]
        top, left = ((length - self.side) // 2 for length in x.shape[1:])
        return x[:, top : top + self.side, left : left + self.side]

    def measured(self, task: str, item: int) -> tuple[lavps.InverseProblem, Tensor]:
        """Return the measurement of a crop, and the crop (1, 3, H, W)."""
        truth = self.crop(item)[None]
        operator = operator_of(task, self.side)
        return lavps.InverseProblem.simulate(truth, operator, TASKS[task][1], seed=item), truth


def scratches(side: int) -> Mask:
    """Return a mask in which curves and two lines of text are missing."""
    kept = Image.new("L", (side, side), 255)
    draw, numbers = ImageDraw.Draw(kept), random.Random(0)
    for _ in range(8):
        x, y, angle = numbers.uniform(0, side), numbers.uniform(0, side), numbers.uniform(0, 2 * math.pi)
        points = [(x, y)]
        for _ in range(side // 8):
            angle += numbers.gauss(0, 0.15)
            x, y = x + 6 * math.cos(angle), y + 6 * math.sin(angle)
            points.append((x, y))
        draw.line(points, fill=0, width=2)
    font = ImageFont.load_default(side // 11)
    draw.text((side * 0.08, side * 0.3), "photographs of", fill=0, font=font)
    draw.text((side * 0.4, side * 0.6), "any size", fill=0, font=font)
    pixels = torch.frombuffer(bytearray(kept.tobytes()), dtype=torch.uint8)
    return Mask(pixels.reshape(1, side, side) > 127)


def operator_of(task: str, side: int) -> Operator:
    """Return the operator of a task for crops of this size."""
    shape = (3, side, side)
    return scratches(side) if task == "scratches" else family_from(task, shape).draw([0], shape)


def denoised(config: Config, name: str, level: int) -> float:
    """Return the PSNR of one denoiser evaluation, on an image that was not clipped after noise was added."""
    x = config.photographs[name][None]
    problem = lavps.InverseProblem.simulate(x, Identity(), 2 * level / 255, seed=level)
    return round(float(psnr(lavps.PosteriorMean(config.tiled).sample(problem).mean.clamp(-1, 1), x)), 3)


def restored(config: Config, task: str, item: int, lpips: LPIPS) -> list[dict[str, Any]]:
    """Return the scores of the classical methods and of one evaluation on a crop."""
    from .classical import results

    problem, truth = config.measured(task, item)
    one = lavps.restore(problem.y, problem.operator, config.tiled, TASKS[task][1], evaluations=1)
    found = [*results(problem, task), (MEAN, "", one.mean[0].clamp(-1, 1))]
    return [
        {"task": task, "item": item, "method": method, "setting": setting}
        | {"psnr": round(float(psnr(x[None], truth)), 4)}
        | single_scores(task, x, truth, lpips)
        for method, setting, x in found
    ]


def sampled(config: Config, task: str, item: int, lpips: LPIPS) -> dict[str, Any]:
    """Return the scores of samples of a crop; draw the figure of the task for the first crop."""
    problem, truth = config.measured(task, item)
    noise, evaluations = TASKS[task][1], config.evaluations
    prior, samples = config.sampled_prior, config.samples
    posterior = lavps.restore(
        problem.y, problem.operator, prior, noise, samples, evaluations=evaluations, seed=item
    )
    assert posterior.samples is not None
    if item == 0:
        draw(config, task, problem, truth, posterior)
    errors = posterior.samples[0] - truth
    return (
        {"task": task, "item": item}
        | {"psnr": round(10 * math.log10(4 / squared_error_of_mean(errors)), 4)}
        | {"psnr_samples": round(float(psnr(posterior.mean, truth)), 4)}
        | single_scores(task, posterior.samples[0, 0].clamp(-1, 1), truth, lpips)
    )


def compared(config: Config, item: int, lpips: LPIPS) -> list[dict[str, Any]]:
    """Return the scores of one sample of each sampler, for the denoising of a crop."""
    problem, truth = config.measured("denoise", item)
    rows = []
    for settings in SAMPLERS:
        x = config.restorer.using(FrontEntry.counted(settings)).restore(problem, seed=item).mean
        scores = {"psnr": psnr(x, truth), "lpips": lpips(x.clamp(-1, 1), truth)}
        rows.append(
            {"item": item, "sampler": settings.template.name, "evaluations": settings.num_steps}
            | {name: round(float(score), 4) for name, score in scores.items()}
        )
    return rows


def squared_error_of_mean(errors: Tensor) -> float:
    """Return an unbiased estimate of the squared error of the mean of infinitely many samples.

    Errors of different samples have this error as the mean of their product.

    Args:
        errors: Errors (S, C, H, W) of S independent samples.
    """
    count = len(errors)
    total = errors.double().sum(0).square().mean() - errors.double().square().sum(0).mean()
    return float(total) / (count * (count - 1))


def single_scores(task: str, x: Tensor, truth: Tensor, lpips: LPIPS) -> dict[str, float]:
    """Return LPIPS and the seams of one image."""
    seams, seams_of_truth = (seam_ratio(image, *WINDOWS, BLOCKS.get(task, 1)) for image in (x, truth))
    ratio = seams / seams_of_truth
    return {"lpips": round(float(lpips(x[None], truth)), 4), "seams": round(ratio, 3)}


def draw(
    config: Config, task: str, problem: lavps.InverseProblem, truth: Tensor, posterior: lavps.Posterior
) -> None:
    """Write the figure of a task: measurement, best classical method, a sample, the mean of the samples, truth."""
    from .classical import results

    assert posterior.samples is not None
    best = max(results(problem, task), key=lambda result: float(psnr(result[2][None], truth)))
    shown = [
        (best[2], best[0]),
        (posterior.samples[0, 0].clamp(-1, 1), "sample"),
        (posterior.mean[0].clamp(-1, 1), f"mean of {config.samples} samples"),
    ]
    panels = [picture_panel(x, name, f"{float(psnr(x[None], truth)):.1f} dB") for x, name in shown]
    folder = config.pages / "photos"
    folder.mkdir(parents=True, exist_ok=True)
    pictures = comparison([measured_panel(problem), *panels, picture_panel(truth[0], "truth")])
    (folder / f"{task}.png").write_bytes(pictures)


def measured_panel(problem: lavps.InverseProblem) -> Panel:
    """Return the picture of a measurement."""
    observed = problem.operator.observed(problem.y)
    return picture_panel(
        problem.y[0].clamp(-1, 1), "measurement", observed=None if observed is None else observed[0]
    )


def denoising_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the mean PSNR beside published ones."""
    ours = [fmean(row["psnr"] for row in rows if row["level"] == level) for level in LEVELS]
    lines = [("one denoiser evaluation", ours), *PUBLISHED.items()]
    head = ["method", *(f"σ = {level}" for level in LEVELS)]
    return markdown_table(head, [[name, *(f"{value:.2f}" for value in values)] for name, values in lines])


def average(rows: Sequence[dict[str, Any]], score: str) -> dict[tuple[str, str], float]:
    """Return the mean score by method and setting."""
    keys = dict.fromkeys((row["method"], row["setting"]) for row in rows)
    return {key: fmean(row[score] for row in rows if (row["method"], row["setting"]) == key) for key in keys}


def best_classical(scores: dict[tuple[str, str], float], lowest: bool = False) -> tuple[str, str]:
    """Return the classical method, with its setting, that has the best score."""
    keys = [key for key in scores if key[0] != MEAN]
    return (min if lowest else max)(keys, key=scores.__getitem__)


def answer(stored: dict[str, Any]) -> str:
    """Return where the prior is ahead of other methods, and where it is not."""
    denoising = stored["denoising"]
    ours = [fmean(row["psnr"] for row in denoising if row["level"] == level) for level in LEVELS]
    ahead = [
        name for name, theirs in PUBLISHED.items() if all(a > b for a, b in zip(ours, theirs, strict=True))
    ]
    behind = [
        name for name, theirs in PUBLISHED.items() if all(a < b for a, b in zip(ours, theirs, strict=True))
    ]
    sentences = [
        f"In one evaluation it denoises better than {joined(ahead)} and worse than {joined(behind)}."
    ]
    better, worse = list[tuple[str, str]](), list[tuple[str, str]]()
    means, sharper = list[float](), list[str]()
    for task, (title, _) in TASKS.items():
        quality = average([row for row in stored["tasks"] if row["task"] == task], "psnr")
        other = best_classical(quality)
        (better if quality[MEAN, ""] > quality[other] else worse).append((title, other[0]))
        own, others = same_crops(stored, task)
        quality, distance = average(others, "psnr"), average(others, "lpips")
        means.append(fmean(row["psnr"] for row in own) - quality[best_classical(quality)])
        if fmean(row["lpips"] for row in own) < distance[best_classical(distance, lowest=True)]:
            sharper.append(title)
    sentences.append(
        f"Its PSNR is higher than that of every classical method on {counted([title for title, _ in better])}."
    )
    if worse:
        sentences.append(f"Ahead of it: {', '.join(f'{name} for {title}' for title, name in worse)}.")
    ahead = [title for (title, _), gain in zip(TASKS.values(), means, strict=True) if gain > 0]
    gains = " to ".join(f"{gain:+.1f}" for gain in (min(means), max(means)))
    sentences.append(
        f"On {len({row['item'] for row in stored['sampled']})} crops that were sampled with {stored['evaluations']} evaluations, the posterior mean, extrapolated to "
        f"infinitely many samples, is ahead in PSNR on {counted(ahead)}, by {gains} dB."
    )
    sentences.append(f"A sample has a lower LPIPS than every classical method on {counted(sharper)}.")
    return " ".join(sentences)


def counted(titles: Sequence[str]) -> str:
    """Return "2 of 5 tasks (a, b)"."""
    return f"{len(titles)} of {len(TASKS)} tasks" + f" ({', '.join(titles)})" * (0 < len(titles) < len(TASKS))


def joined(words: Sequence[str]) -> str:
    """Return "a and b"."""
    return " and ".join(words) or "none"


def mean_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return one line per task: one evaluation, and the best classical method."""
    lines = []
    for task, (title, noise) in TASKS.items():
        quality = average([row for row in rows if row["task"] == task], "psnr")
        ours = quality[MEAN, ""]
        best = best_classical(quality)
        classical = f"{quality[best]:.2f} ({best[0]})"
        lines.append([f"{title}, noise {noise:g}", f"{ours:.2f}", classical, f"{ours - quality[best]:+.2f}"])
    return markdown_table(["task", "one evaluation", "best classical method", "difference"], lines)


def same_crops(stored: dict[str, Any], task: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the rows of a task's samples, and those of the other methods on the same crops."""
    own = [row for row in stored["sampled"] if row["task"] == task]
    items = {row["item"] for row in own}
    return own, [row for row in stored["tasks"] if row["task"] == task and row["item"] in items]


def sample_table(stored: dict[str, Any]) -> str:
    """Return one line per task: the samples, and the best classical method in each score on the same crops."""
    lines = []
    for task, (title, noise) in TASKS.items():
        own, others = same_crops(stored, task)
        quality, distance = average(others, "psnr"), average(others, "lpips")
        best, nearest = best_classical(quality), best_classical(distance, lowest=True)
        mean = {
            score: fmean(row[score] for row in own) for score in ("psnr", "psnr_samples", "lpips", "seams")
        }
        lines.append(
            [
                f"{title}, noise {noise:g}",
                f"{mean['psnr']:.2f}",
                f"{mean['psnr_samples']:.2f}",
                f"{quality[best]:.2f} ({best[0]})",
                f"{mean['psnr'] - quality[best]:+.2f}",
                f"{mean['lpips']:.3f}",
                f"{distance[nearest]:.3f} ({nearest[0]})",
                f"{mean['seams']:.2f}",
                f"{average(others, 'seams')[best]:.2f}",
            ]
        )
    head = [
        "task",
        "PSNR, posterior mean",
        f"PSNR, mean of {stored['samples']}",
        "PSNR, best classical",
        "difference",
    ]
    return markdown_table(
        [*head, "LPIPS, a sample", "LPIPS, best classical", "seams", "seams, classical"], lines
    )


def sampler_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return one line per sampler, the lowest LPIPS first."""
    kinds = dict.fromkeys((row["sampler"], row["evaluations"]) for row in rows)
    lines = []
    for kind in kinds:
        own = [row for row in rows if (row["sampler"], row["evaluations"]) == kind]
        lines.append((*kind, *(fmean(row[score] for row in own) for score in ("lpips", "psnr"))))
    lines.sort(key=lambda line: line[2])
    return markdown_table(
        ["sampler", "evaluations", "LPIPS, a sample", "PSNR, a sample"],
        [[name, str(count), f"{distance:.3f}", f"{quality:.2f}"] for name, count, distance, quality in lines],
    )


def draw_scores(stored: dict[str, Any], file: Path) -> None:
    """Draw PSNR and LPIPS of samples and of the best classical method on the same crops, one line per task."""
    figure = matplotlib_figure(9.6, 2.9)
    axes = figure.subplots(1, 2, sharey=True)
    for place, task in enumerate(reversed(TASKS)):
        own, others = same_crops(stored, task)
        for axis, score in zip(axes, ("psnr", "lpips"), strict=True):
            found = average(others, score)
            ours = fmean(row[score] for row in own)
            best = found[best_classical(found, lowest=score == "lpips")]
            axis.plot([best, ours], [place, place], color="#BBBBBB", lw=2, zorder=1)
            axis.plot(best, place, "o", color="#D55E00", ms=8)
            axis.plot(ours, place, "o", color="#0072B2", ms=8)
    axes[0].set_yticks(range(len(TASKS)), [title for title, _ in reversed(TASKS.values())])
    axes[0].set_xlabel("PSNR of the posterior mean (extrapolated), dB; higher is better")
    axes[1].set(xlabel="LPIPS of a sample (lower is better)", xlim=(0, None))
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    lines = axes[0].get_lines()
    names = ["best classical method", f"photos64, {stored['evaluations']} evaluations"]
    figure.legend(lines[1:3], names, loc="outside lower center", ncols=2, frameon=False)
    figure.savefig(file, dpi=130)


def measure(config: Config, stored: dict[str, Any]) -> None:
    """Measure what is missing; store it image by image."""
    done = {(row["image"], row["level"]) for row in stored["denoising"]}
    names = [name for name in config.photographs if name <= LAST and name != LEFT_OUT][: config.denoised]
    pairs = [pair for pair in product(names, LEVELS) if pair not in done]
    for name, level in tqdm(pairs, desc="denoising"):
        stored["denoising"].append({"image": name, "level": level, "psnr": denoised(config, name, level)})
        write_json(config.pages, "photos", stored, indent=None)
    lpips = LPIPS.load(config.lpips)

    def missing(part: str, count: int) -> tqdm[tuple[int, str]]:
        finished = {(row["item"], row["task"]) for row in stored[part]}
        items = [number * config.count // count for number in range(count)]
        return tqdm([p for p in product(items, TASKS) if p not in finished], desc=part)

    for item, task in missing("tasks", config.count):
        stored["tasks"] += restored(config, task, item, lpips)
        write_json(config.pages, "photos", stored, indent=None)
    for item, task in missing("sampled", config.sampled):
        stored["sampled"].append(sampled(config, task, item, lpips))
        write_json(config.pages, "photos", stored, indent=None)
    finished = {row["item"] for row in stored["samplers"]}
    items = [number * config.count // config.compared for number in range(config.compared)]
    for item in tqdm([item for item in items if item not in finished], desc="samplers"):
        stored["samplers"] += compared(config, item, lpips)
        write_json(config.pages, "photos", stored, indent=None)


def main(config: Config) -> None:
    """Measure what is missing, and write the page."""
    torch.set_num_threads(1)
    config.pages.mkdir(parents=True, exist_ok=True)
    new: dict[str, Any] = {"prior": read_config(config.prior).weights_hash}
    sampling = {name: getattr(config, name) for name in ("precision", "evaluations", "samples")}
    new |= {"side": config.side, **sampling, "denoising": [], "tasks": [], "sampled": [], "samplers": []}
    begun = (config.pages / "photos.json").exists()
    stored = read(config.pages, "photos") if begun else new
    if not config.page_only:
        if any(stored[name] != new[name] for name in ("prior", "side")):
            stored = new  # those were the numbers of other weights or crops
        if any(stored[name] != value for name, value in sampling.items()):
            stored |= sampling | {"sampled": []}
        measure(config, stored)
    figures = "\n\n".join(
        f"**{title}**\n\n![{title}](photos/{task}.png)" for task, (title, _) in TASKS.items()
    )
    draw_scores(stored, config.pages / "photos" / "chart.png")
    tables = {
        "denoising": denoising_table(stored["denoising"]),
        "means": mean_table(stored["tasks"]),
        "sampled": sample_table(stored),
        "samplers": sampler_table(stored["samplers"]),
        "answer": answer(stored),
    }
    images = len({row["image"] for row in stored["denoising"]})
    count, sampled = (len({row["item"] for row in stored[part]}) for part in ("tasks", "sampled"))
    numbers = {name: stored[name] for name in ("side", "evaluations", "samples")}
    numbers |= {"images": images, "count": count, "crops": sampled}
    numbers["compared"] = len({row["item"] for row in stored["samplers"]})
    numbers["precision"] = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}[stored["precision"]]
    write_page(config.pages, "photos", **tables, figures=figures, **numbers)


if __name__ == "__main__":
    main(tyro.cli(Config))
