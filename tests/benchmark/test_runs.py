"""Rows: complete, exact after an interruption, the same in any batch, refused where weights changed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import lavps
from lavps.benchmark import Benchmark
from lavps.benchmark.analysis import row_means
from lavps.benchmark.methods import model_name
from lavps.benchmark.records import append_rows, claim, read_rows
from lavps.evaluation import ImageBatch, crps, energy_score, psnr
from lavps.guidance import Amortized, Gradient
from lavps.samplers import DPS, MGPS, MMPS, UNBOUND, Settings, Supervised, Unbound
from support.benchmarks import Assets, gibbs

FAST = gibbs(6)


def lavps_method(assets: Assets, num_steps: int = 6, gradients: int = 1) -> Settings:
    return gibbs(num_steps, Amortized(Unbound(assets.inference), gradients))


def test_a_row_says_what_the_image_is_worth(assets: Assets, tmp_path: Path) -> None:
    benchmark = assets.begin(tmp_path)
    runner = assets.runner(benchmark, keep_images=1)
    method = FAST
    rows = runner.run(method)
    given = runner.measurements
    problem = given.problem(slice(0, 1))
    posterior = lavps.MGDM(runner.models.prior, num_steps=6, guidance=Gradient(1)).sample(
        problem, seed=0, items=[given.items[0]]
    )
    restored = posterior.samples[:, 0]
    image = ImageBatch.from_tensor(restored)
    first = rows[0]
    assert first["psnr"] == pytest.approx(float(psnr(image, given.images[slice(0, 1)])), abs=0.01)
    assert first["lpips"] == pytest.approx(float(runner.lpips(image, given.images[slice(0, 1)])), rel=0.01)
    assert first["chi_square"] == pytest.approx(float(problem.chi_square(restored)), rel=1e-3)
    assert (first["forwards"], first["backwards"]) == (posterior.trace.forwards, posterior.trace.backwards)
    assert (first["model_forwards"], first["acceptance"]) == (0, None)
    assert [row["file"] for row in rows] == list(given.files)
    assert [row["item"] for row in rows] == list(given.items)
    assert len(runner.folder.images(method.key)) == 1
    assert benchmark.runs("validation").methods(4)[0].key == method.key
    assert "seconds" not in first


def test_several_samples_are_scored_as_a_distribution(assets: Assets, tmp_path: Path) -> None:
    benchmark = assets.begin(tmp_path / "several")
    several = assets.runner(benchmark, samples=3, batch_size=6)
    rows = several.run(FAST)
    single = assets.runner(assets.begin(tmp_path / "single")).run(FAST)
    given = several.measurements
    posterior = lavps.MGDM(several.models.prior, num_steps=6, guidance=Gradient(1)).sample(
        given.problem(slice(0, 4)), 3, seed=0, items=list(given.items)
    )
    samples, truth = posterior.samples.clamp(-1, 1), given.images.to_tensor()
    for name, expected in (("crps", crps(samples, truth)), ("energy_score", energy_score(samples, truth))):
        assert [row[name] for row in rows] == pytest.approx(expected.tolist(), rel=1e-3)
    assert all(0 <= row["coverage"] <= 1 and row["nominal_coverage"] == 0.5 for row in rows)
    for mine, other in zip(rows, single, strict=True):  # the first sample is that of a run of one
        assert mine["lpips"] == pytest.approx(other["lpips"], rel=1e-2)
        assert [mine[name] for name in ("forwards", "backwards", "file")] == [
            other[name] for name in ("forwards", "backwards", "file")
        ]
        assert "crps" not in other
    with pytest.raises(ValueError, match="samples 3"):
        assets.runner(benchmark).run(FAST)
    assert row_means(single)["crps"] is None
    assert row_means(rows)["crps"] == pytest.approx(sum(row["crps"] for row in rows) / 4)


@pytest.mark.parametrize("torn", [0, 25])
def test_an_interrupted_run_ends_with_the_same_bytes(assets: Assets, tmp_path: Path, torn: int) -> None:
    method = FAST
    runner = assets.runner(assets.begin(tmp_path), batch_size=2)
    runner.run(method)
    file = tmp_path / "validation" / f"{method.key}.jsonl"
    whole = file.read_bytes()
    lines = whole.splitlines(keepends=True)
    assert len(lines) == 4
    file.write_bytes(b"".join(lines[:1]) + lines[1][:torn])  # killed while writing the first batch
    runner.run(method)
    assert file.read_bytes() == whole


def test_finished_rows_are_not_run_again(assets: Assets, tmp_path: Path) -> None:
    method = FAST
    runner = assets.runner(assets.begin(tmp_path))
    runner.run(method)
    file = tmp_path / "validation" / f"{method.key}.jsonl"
    rows = [json.loads(line) | {"lpips": -1.0} for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [row["lpips"] for row in runner.run(method)] == [-1.0] * 4


@pytest.mark.parametrize("gradients", [0, 1, 2])
def test_rows_and_counts_do_not_depend_on_the_batch(assets: Assets, tmp_path: Path, gradients: int) -> None:
    method = lavps_method(assets, 9, gradients)
    together = assets.runner(assets.begin(tmp_path / "a"), batch_size=4).run(method)
    alone = assets.runner(assets.begin(tmp_path / "b"), batch_size=1).run(method)
    kept = [row["acceptance"] for row in alone]
    assert sum(kept) < len(
        kept
    )  # some fall back, or the counts would be no test; how many depends on the processor
    # Of the seven steps, one that fell back needs a new forward for its first gradient.
    fallen = [round(7 * (1.0 - share)) if gradients else 0 for share in kept]
    assert len({row["forwards"] - extra for row, extra in zip(alone, fallen, strict=True)}) == 1
    for ours, theirs in zip(together, alone, strict=True):
        for name in ("item", "forwards", "backwards", "model_forwards", "acceptance"):
            assert ours[name] == theirs[name], name
        assert ours["lpips"] == pytest.approx(theirs["lpips"], rel=1e-3)
        assert ours["chi_square"] == pytest.approx(theirs["chi_square"], rel=1e-3)


def test_every_sampler_runs(assets: Assets, tmp_path: Path) -> None:
    runner, whitened = assets.runner(assets.begin(tmp_path, count=2)), lavps.WhitenedGradient()
    for method in (
        Settings(MGPS(UNBOUND, num_steps=4, guidance=Gradient(1, whitened))),
        Settings(MGPS(UNBOUND, num_steps=4, guidance=Amortized(Unbound(assets.inference), 1, whitened))),
        Settings(DPS(UNBOUND, num_steps=4)),
        Settings(MMPS(UNBOUND, num_steps=4, solver_steps=1)),
        Settings(Supervised(Unbound(assets.conditional), num_steps=4)),
    ):
        rows = runner.run(method)
        assert len(rows) == 2
        assert all(row["lpips"] > 0 for row in rows)
        assert (rows[0]["model_forwards"] > 0) == (model_name(method) == assets.inference)


def test_rows_of_other_weights_are_refused(assets: Assets, tmp_path: Path) -> None:
    runner = assets.runner(assets.begin(tmp_path))
    method = FAST
    runner.run(method)
    description = tmp_path / "validation" / f"{method.key}.json"
    record = json.loads(description.read_text())
    description.write_text(json.dumps(record | {"weights": {"prior": "others"}}))
    with pytest.raises(ValueError, match="rows of this method were made with weights"):
        runner.run(method)


def test_a_benchmark_keeps_its_settings(assets: Assets, tmp_path: Path) -> None:
    assets.begin(tmp_path)
    with pytest.raises(ValueError, match="precision was 'fp32', is 'bf16'"):
        assets.begin(tmp_path, precision="bf16")
    record = json.loads((tmp_path / "benchmark.json").read_text())
    (tmp_path / "benchmark.json").write_text(json.dumps(record | {"prior_hash": "others"}))
    with pytest.raises(ValueError, match="a new prior needs a new benchmark"):
        Benchmark.open(tmp_path).models()


def test_half_precision_is_near_full(assets: Assets, tmp_path: Path) -> None:
    methods = [FAST, lavps_method(assets)]
    methods += [Settings(Supervised(Unbound(assets.conditional), num_steps=4))]
    full = assets.runner(assets.begin(tmp_path / "a", count=2))
    half = assets.runner(assets.begin(tmp_path / "b", count=2, precision="bf16"))
    for method in methods:
        ours, theirs = half.run(method), full.run(method)
        assert [row["psnr"] for row in ours] == pytest.approx([row["psnr"] for row in theirs], abs=0.3)
        assert ours != theirs  # the networks did run in another precision


def test_a_torn_line_is_invisible_and_cut_off(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    append_rows(file, [{"a": 1}, {"a": 2}])
    with file.open("a") as opened:
        opened.write('{"a": 3')
    assert read_rows(file) == [{"a": 1}, {"a": 2}]
    append_rows(file, [{"a": 4}])
    assert read_rows(file) == [{"a": 1}, {"a": 2}, {"a": 4}]
    with pytest.raises(ValueError, match="Out of range float"):
        append_rows(file, [{"a": float("nan")}])


def test_a_claim_is_held_by_one(tmp_path: Path) -> None:
    with claim(tmp_path / "lock") as first, claim(tmp_path / "lock", wait=False) as second:
        assert (first, second) == (True, False)
    with claim(tmp_path / "lock", wait=False) as third:
        assert third
