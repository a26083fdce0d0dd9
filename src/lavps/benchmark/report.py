"""Report of a benchmark: Markdown with separate figures, and one self-contained HTML page."""

from __future__ import annotations

__all__ = ["markdown_table", "match_table", "read_results", "write_report"]

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ..pages import data_uri, render
from .analysis import Results
from .figures import comparison_grid, pareto_figure
from .folder import Benchmark

_CAPTIONS = {
    "pareto": "LPIPS against cost. Lines: fronts selected on the validation images and evaluated on the test "
    "images, with standard errors. Faint points: all settings tried, on the validation images.",
    "pareto_time": "LPIPS against wall time of the same methods, at batch size 1, timed in alternation.",
    "images": "Test images: measurement, best setting of every family (with LPIPS and cost), truth.",
}


def read_results(benchmark: Benchmark) -> Results:
    """Read the results that :func:`~lavps.benchmark.analysis.analyze` wrote."""
    file = benchmark.path / "results.json"
    return Results(**json.loads(file.read_text(encoding="utf-8")))


def write_report(benchmark: Benchmark) -> Path:
    """Write figures, ``report.md`` and ``report.html`` from ``results.json``; return the page's path."""
    results, figures = read_results(benchmark), {}
    drawn = {
        "pareto": pareto_figure(results, "cost"),
        "pareto_time": pareto_figure(results, "time"),
        "images": comparison_grid(benchmark, results),
    }
    for name, figure in drawn.items():
        if figure is not None:
            figure.savefig(benchmark.path / f"{name}.png", dpi=150)
            figure.savefig(benchmark.path / f"{name}.svg")
            figures[name] = _CAPTIONS[name]
    sections = _sections(results)
    (benchmark.path / "report.md").write_text(_markdown(results, sections, figures), encoding="utf-8")
    target = benchmark.path / "report.html"
    embedded = [
        {"name": name, "caption": caption, "src": _embedded(benchmark.path, name)}
        for name, caption in figures.items()
    ]
    page = render(
        "benchmark",
        "report",
        title=_title(results),
        summary=_summary(results),
        figures=embedded,
        sections=sections,
    )
    target.write_text(page, encoding="utf-8")
    return target


def _embedded(folder: Path, name: str) -> str:
    """Return a figure as a URL: photographs as PNG, which is smaller than SVG for them; plots as SVG."""
    suffix, media_type = ("png", "image/png") if name == "images" else ("svg", "image/svg+xml")
    return data_uri((folder / f"{name}.{suffix}").read_bytes(), media_type)


def _title(results: Results) -> str:
    return f"Benchmark: {results.settings['task']}, noise {results.settings['noise']:g}"


def _summary(results: Results) -> list[str]:
    """Return a summary of setup and results, one paragraph per string."""
    settings, counts = results.settings, results.counts
    images = " and ".join(f"{count} {split}" for split, count in counts.items())
    lines = [
        f"Prior `{Path(settings['prior']).name}` (weights {settings['prior_hash'][:12]}), networks in "
        f"{settings['precision']}, seed {settings['seed']}; {images} images. All methods use the same "
        "measurements, and the same noise per image. One sample per image is scored, as 8-bit pixels; CRPS, "
        "energy score and coverage are those of several samples, in pixel units, where they were drawn.",
        "The unit of cost is one denoiser evaluation. A backward pass counts as two, and a forward pass of "
        "an inference model as its measured time relative to a denoiser evaluation.",
    ]
    lines += [_assessment(results, name) for name in dict.fromkeys(m["family"] for m in results.matches)]
    if results.timing:
        machine = results.timing["machine"]
        threads = f"{machine['threads']} of {machine['cores']} threads of {machine['processor']}"
        lines.append(f"Times: batch size 1, {threads}, PyTorch {machine['torch']}.")
    return lines


def _assessment(results: Results, family: str) -> str:
    every = [match for match in results.matches if match["family"] == family]
    ratios = sorted(match["speed_up"] for match in every if match["candidate"] is not None)
    share = (
        f"{family} is non-inferior (margin {results.margin:g} LPIPS, level {results.alpha:g}) to "
        f"{len(ratios)} of {len(every)} points of the front of {results.baseline}"
    )
    if not ratios:
        return f"{share}."
    low, high = f"{ratios[0]:.2f}", f"{ratios[-1]:.2f}"
    return f"{share}; these points cost {low if low == high else f'{low} to {high}'} times as much."


Table = tuple[list[str], list[list[str]]]


def _sections(results: Results) -> dict[str, Table]:
    """Return tables by title: a head and rows of cells."""
    sections: dict[str, Table] = {}
    for family in dict.fromkeys(match["family"] for match in results.matches):
        matches = [match for match in results.matches if match["family"] == family]
        sections[f"{family} against {results.baseline}, non-inferior settings"] = match_table(
            results, matches
        )
    for split, points in results.points.items():
        if points:
            sections[f"Methods on the {split} images"] = _method_table(results, split)
    return sections


def match_table(results: Results, matches: list[dict[str, Any]]) -> Table:
    """Return one row per point of the baseline: the matching method, the test and the speed-up."""
    head = ["baseline", "LPIPS", "cost", "matched by", "LPIPS", "cost", "difference [95 %]", "p", "p < α / P"]
    head += ["images", "cheaper", "faster [95 %]"]
    rows = []
    for match in matches:
        first = results.point("test", match["reference"])
        # A group of several families, such as "MGDM", does not state the family of a point.
        named = results.is_baseline(first["family"])
        label = first["label"] if named else f"{first['family']}, {first['label']}"
        if match["candidate"] is None:
            cells = [label, f"{first['lpips']:.4f}", f"{first['cost']:.0f}", "none is non-inferior"]
            rows.append([*cells, *[""] * 5, str(first["images"]), "", ""])
            continue
        second = results.point("test", match["candidate"])
        gap, time = match["bootstrap"], match["time_speed_up"]
        scores = [f"{score:.4f}" for score in match["scores"]]  # on the images that both have
        cells = [label, scores[0], f"{first['cost']:.0f}"]
        cells += [second["label"], scores[1], f"{second['cost']:.0f}"]
        cells += [f"{gap['difference']:+.4f} [{gap['lower']:+.4f}, {gap['upper']:+.4f}]"]
        p = match["test"]["p_value"]
        cells += ["< 0.0001" if p < 1e-4 else f"{p:.4f}", "yes" if match["passes_corrected"] else "no"]
        cells += [str(match["images"]), f"{match['speed_up']:.2f}x"]
        cells += [f"{time['ratio']:.2f}x [{time['lower']:.2f}, {time['upper']:.2f}]" if time else "not timed"]
        rows.append(cells)
    return head, rows


def _method_table(results: Results, split: str) -> Table:
    head = ["family", "settings", "front", "images", "LPIPS", "PSNR", "SSIM", "CRPS", "energy score"]
    head += [
        "coverage (nominal)",
        "chi²",
        "cost",
        "forwards",
        "backwards",
        "model forwards",
        "acceptance",
        "seconds",
        "key",
    ]
    on_front = {key for keys in results.fronts.values() for key in keys}
    ordered = sorted(
        results.points[split], key=lambda p: (p["family"] != results.baseline, p["family"], p["cost"])
    )
    return head, [_method_row(point, point["key"] in on_front) for point in ordered]


def _method_row(point: dict[str, Any], on_front: bool) -> list[str]:
    return [
        point["family"],
        point["label"],
        "yes" if on_front else "",
        str(point["images"]),
        f"{_number(point['lpips'], 4)} ± {_number(point['lpips_error'], 4)}",
        _number(point["psnr"], 2),
        _number(point["ssim"], 3),
        _number(point.get("crps"), 4) or "-",
        _number(point.get("energy_score"), 4) or "-",
        f"{point['coverage']:.1%} ({point['nominal_coverage']:.1%})"
        if point.get("coverage") is not None
        else "-",
        _number(point["chi_square"], 2),
        _number(point["cost"], 0),
        _number(point["forwards"], 1),
        _number(point["backwards"], 1),
        _number(point["model_forwards"], 0),
        "" if point["acceptance"] is None else f"{point['acceptance']:.0%}",
        "" if point["time"] is None else f"{point['time']['median']:.3g}",
        point["key"],
    ]


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _markdown(results: Results, sections: dict[str, Table], figures: dict[str, str]) -> str:
    parts = [f"# {_title(results)}", *_summary(results)]
    parts += [f"![{name}]({name}.png)\n\n{caption}" for name, caption in figures.items()]
    parts += [f"## {title}\n\n{markdown_table(head, rows)}" for title, (head, rows) in sections.items()]
    return "\n\n".join(parts) + "\n"
