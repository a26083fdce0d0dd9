"""Figures of a report: quality against cost, and restored images."""

from __future__ import annotations

__all__ = [
    "comparison_grid",
    "draw_front",
    "family_colours",
    "image_grid",
    "matplotlib_figure",
    "method_grid",
    "pareto_figure",
    "seen",
]

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from PIL import Image
from torch import Tensor

from ..evaluation.pareto import pareto_front
from ..extras import require
from ..problem import InverseProblem
from .analysis import Results
from .folder import Benchmark

# Okabe and Ito's colour-blind-safe palette; the baseline is black.
_COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8B6914", "#777777")
_MARKERS = "osD^vPX*"
_ORDER = ("MGDM", "LAVPS", "MGPS", "DPS", "MMPS", "DDIM", "Supervised")  # families start with these


def matplotlib_figure(width: float, height: float) -> Any:
    """Return a figure without a window and without global state."""
    module = require("matplotlib.figure", "report", "figures need Matplotlib")
    return module.Figure(figsize=(width, height), layout="constrained")


def family_colours(results: Results) -> dict[str, str]:
    """Return a colour per family, the same in all figures."""
    found = {point["family"] for points in results.points.values() for point in points}
    ranks = {f: [f.startswith(sampler) for sampler in (*_ORDER, "")].index(True) for f in found}
    families = sorted(found, key=lambda family: (ranks[family], family))
    baseline = [family for family in families if results.is_baseline(family)]
    others = [family for family in families if family not in baseline]
    colours = {family: _COLOURS[index % len(_COLOURS)] for index, family in enumerate(others)}
    return dict.fromkeys(baseline, "#000000") | colours


def pareto_figure(results: Results, cost: Literal["cost", "time"]) -> Any | None:
    """Plot mean LPIPS against cost; validation points are faint. Return None if nothing was timed.

    Args:
        results: Results of a benchmark.
        cost: Unit of cost: "cost" for denoiser evaluations, "time" for median seconds.
    """
    if not _to_draw(results, cost)[1]:
        return None
    figure = matplotlib_figure(8.2, 4.6)
    draw_front(figure.add_subplot(), results, cost, family_colours(results))
    figure.legend(loc="outside right upper", fontsize=8, frameon=False)
    return figure


def draw_front(axis: Any, results: Results, cost: Literal["cost", "time"], colours: dict[str, str]) -> None:
    """Plot mean LPIPS against cost on an axis."""
    split, front, behind = _to_draw(results, cost)
    for index, (family, colour) in enumerate(colours.items()):
        marker = _MARKERS[index % len(_MARKERS)]
        faint = [point for point in behind if point["family"] == family]
        axis.scatter(*_coordinates(faint, cost), s=14, color=colour, alpha=0.22, marker=marker, lw=0)
        _draw_family(axis, [p for p in front if p["family"] == family], cost, colour, marker, family)
    _finish(axis, results, front, cost, split)


def _to_draw(results: Results, cost: str) -> tuple[str, list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the split, its points, and the faint points behind them."""
    split = "test" if results.points.get("test") else "validation"
    # Test points are those of the fronts; validation points are all that were tried.
    chosen = {key for keys in results.fronts.values() for key in keys}
    front = [point for point in results.points[split] if split == "test" or point["key"] in chosen]
    front = [point for point in front if _cost(point, cost) is not None]
    behind = results.points["validation"] + results.points.get("screening", []) if cost == "cost" else []
    return split, front, behind


def _draw_family(
    axis: Any, points: list[dict[str, Any]], cost: str, colour: str, marker: str, family: str
) -> None:
    if not points:
        return
    ordered = sorted(points, key=lambda point: float(_cost(point, cost) or 0.0))
    x, y = _coordinates(ordered, cost)
    errors = [point["lpips_error"] or 0.0 for point in ordered]
    axis.errorbar(x, y, errors, fmt="none", ecolor=colour, elinewidth=0.8, alpha=0.5)
    axis.plot(x, y, marker, ms=6, color=colour, label=family, mec="white", mew=0.6)
    line = pareto_front(x, y)
    axis.plot([x[i] for i in line], [y[i] for i in line], lw=1.2, color=colour)


def _finish(axis: Any, results: Results, front: Sequence[dict[str, Any]], cost: str, split: str) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

    settings, count = results.settings, results.counts[split]
    axis.set_xscale("log")
    axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.xaxis.set_major_formatter(ScalarFormatter())
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.set_xlabel(
        "cost, in denoiser evaluations" if cost == "cost" else "median seconds per image, batch 1"
    )
    axis.set_ylabel("LPIPS (lower is better)")
    axis.set_title(f"{settings['task']}, noise {settings['noise']:g}: {count} {split} images", fontsize=11)
    # A few distant settings must not compress the range of all others.
    scores = sorted(point["lpips"] for point in front)
    top = scores[min(len(scores) - 1, round(0.9 * len(scores)))]
    height = top - scores[0]
    axis.set_ylim(max(0.0, scores[0] - 0.15 * height - 0.002), top + 0.25 * height + 0.002)
    axis.grid(alpha=0.25, which="major")
    axis.spines[["top", "right"]].set_visible(False)


def _cost(point: dict[str, Any], cost: str) -> float | None:
    if cost == "cost":
        return float(point["cost"])
    return None if point["time"] is None else float(point["time"]["median"])


def _coordinates(points: Sequence[dict[str, Any]], cost: str) -> tuple[list[float], list[float]]:
    return [float(_cost(p, cost) or 0.0) for p in points], [float(p["lpips"]) for p in points]


def comparison_grid(benchmark: Benchmark, results: Results, rows: int = 4) -> Any | None:
    """Plot measurement, best method of every family, and truth, one row per image.

    Args:
        benchmark: Benchmark with restored test images; without any, None is returned.
        results: Results of the benchmark.
        rows: Number of images.
    """
    methods = {}
    for family in family_colours(results):
        points = [point for point in results.points.get("test", []) if point["family"] == family]
        points = [point for point in points if benchmark.runs("test").images(point["key"])]
        if points:
            best = min(points, key=lambda point: float(point["lpips"]))
            methods[f"{family}\nLPIPS {best['lpips']:.3f}\ncost {best['cost']:.0f}"] = str(best["key"])
    return method_grid(benchmark, methods, rows) if methods else None


def method_grid(benchmark: Benchmark, methods: Mapping[str, str], rows: int = 4) -> Any:
    """Plot measurement, restored images and truth, one row per image.

    Args:
        benchmark: Benchmark with restored test images.
        methods: Keys of methods, by the titles of their columns.
        rows: Maximum number of images.
    """
    kept = {title: benchmark.runs("test").images(key)[:rows] for title, key in methods.items()}
    columns = [(title, [_read(file) for file in files]) for title, files in kept.items()]
    rows = min(len(images) for _, images in columns)
    given = benchmark.measurements("test")
    degraded = [_shown(image) for image in seen(given.problem(slice(0, rows)))]
    truth = [_shown(image) for image in given.images[slice(0, rows)].to_tensor()]
    return _draw_grid([("measurement", degraded), *columns, ("truth", truth)], rows)


def image_grid(columns: Mapping[str, Tensor]) -> Any:
    """Plot columns of images (N, C, H, W) in [-1, 1], by title, one row per image."""
    shown = [(title, [_shown(image) for image in images]) for title, images in columns.items()]
    return _draw_grid(shown, min(len(images) for _, images in shown))


def _draw_grid(columns: Sequence[tuple[str, list[Tensor]]], rows: int) -> Any:
    figure = matplotlib_figure(1.45 * len(columns), 1.45 * rows + 0.55)
    axes = figure.subplots(rows, len(columns), squeeze=False)
    for (title, images), column in zip(columns, axes.T, strict=True):
        for axis, image in zip(column, images, strict=False):
            axis.imshow(image.numpy(), cmap="gray", vmin=0, vmax=255, interpolation="nearest")
        for axis in column:
            axis.set_axis_off()
        column[0].set_title(title, fontsize=8)
    return figure


def seen(problem: InverseProblem) -> Tensor:
    """Return measurements as images (B, C, H, W) in [-1, 1]: y itself if it has channels, else A^+ y."""
    y, (channels, *_) = problem.y, problem.image_shape
    if not y.is_complex() and y.ndim == 4 and y.shape[1] == channels:
        return y.clamp(-1.0, 1.0).cpu()
    if problem.operator.linear:
        return problem.operator.pseudo_inverse(y, damping=1e-2).clamp(-1.0, 1.0).cpu()
    return torch.zeros(len(problem), *problem.image_shape)


def _shown(image: Tensor) -> Tensor:
    """Convert an image (C, H, W) in [-1, 1] to bytes (H, W, C), or (H, W) if grey."""
    return ((image + 1.0) * 127.5).round().clamp(0, 255).to(torch.uint8).permute(1, 2, 0).squeeze(2)


def _read(file: Path) -> Tensor:
    with Image.open(file, formats=("PNG",)) as image:
        width, height = image.size
        pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    return pixels.reshape(height, width, -1).squeeze(2)
