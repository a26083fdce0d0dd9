"""``lavps calibrate`` and ``lavps restore --certificate``: certificates, intervals, refusals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import lavps
from lavps.checkpoints.folder import read_config, save_model
from lavps.cli import main
from lavps.restoration import Certificate
from support.restoring import SIZE, picture, save, write_prior

pytest.importorskip("jinja2")
IMAGES = 24


def smooth(seed: int) -> np.ndarray:
    """An image of moderate contrast, in the middle of the range."""
    return picture(SIZE, SIZE, seed=seed) // 4 + 96


def calibrate(folder: Path, *options: str) -> Path:
    """Run the command in a folder with prior/, and return the certificate."""
    output = folder / "certificate"
    given = ["--prior", str(folder / "prior"), "--noise", "0.05", "--evaluations", "4", "-o", str(output)]
    main(["calibrate", *given, "--device", "cpu", *options])
    return output / "certificate.json"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a prior, held-out images, a certificate for sr4, and a measurement."""
    folder = tmp_path_factory.mktemp("made")
    write_prior(folder / "prior", front=False)
    (folder / "held-out").mkdir()
    for n in range(IMAGES):
        save(folder / "held-out" / f"{n}.png", smooth(n))
    calibrate(folder, "--task", "sr4", "--images", str(folder / "held-out"))
    save(folder / "photo.png", smooth(99))
    for name, noise in (("measured", "0.05"), ("noisy", "0.5")):
        given = [str(folder / "photo.png"), "--task", "sr4", "--noise", noise]
        main(["degrade", *given, "--output", str(folder / name)])
    return folder


def restore(made: Path, output: Path, *options: str, measured: str = "measured") -> Path:
    """Restore the measurement with the certificate, and return the output folder."""
    file, prior = made / measured / "photo.npy", made / "prior"
    certificate = made / "certificate" / "certificate.json"
    given = [str(file), "--prior", str(prior), "--noise", "0.05", "--certificate", str(certificate)]
    main(["restore", *given, "--task", "sr4", "--output", str(output), "--device", "cpu", *options])
    return output


def test_a_certificate_states_its_scope_and_its_coverage(made: Path) -> None:
    file = made / "certificate" / "certificate.json"
    certificate = Certificate.read(file)
    assert (certificate.task, certificate.noise, certificate.samples) == ("sr4", (0.05, 0.05), 19)
    assert (certificate.source, certificate.images) == ("images", IMAGES)
    assert certificate.settings.num_steps == 4
    assert [found.level for found in certificate.corrections] == [0.5, 0.8, 0.9]
    for found in certificate.corrections:
        assert found.after == pytest.approx(found.level, abs=0.06), "24 images: up to 1 / 24 above the level"
        assert abs(found.before - found.level) > 0.08, "the tiny prior is not calibrated"
    assert sum(certificate.histogram) == pytest.approx(1)
    assert len(certificate.statistics) == IMAGES
    assert set(certificate.p_values) >= {"TARP", "mean of the image"}
    copy = made / "copy.json"
    certificate.write(copy)
    assert copy.read_bytes() == file.read_bytes()


def test_the_page_is_one_file_with_the_sentence_and_the_images(made: Path) -> None:
    page = (made / "certificate" / "certificate.html").read_text()
    certificate = Certificate.read(made / "certificate" / "certificate.json")
    assert certificate.statement(0.9) in page
    assert page.count('src="data:image/png;base64,') == 3
    assert "http" not in page
    assert certificate.prior in page


def test_a_certified_restoration_writes_intervals_and_the_sentence(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = restore(made, tmp_path / "out", "--levels", "0.5", "0.9")
    printed = capsys.readouterr().out
    certificate = Certificate.read(made / "certificate" / "certificate.json")
    assert certificate.statement(0.9) in printed
    assert "fits what was certified: p = " in printed
    ends = {name: np.load(output / f"photo-{name}.npy") for name in ("lower-50", "lower-90", "upper-90")}
    assert (ends["lower-90"] <= ends["lower-50"]).all()
    assert (ends["lower-90"] < ends["upper-90"]).all()
    samples = np.stack([np.load(output / f"photo-{n + 1}.npy") for n in range(19)])
    posterior = torch.from_numpy(samples)[None]
    scale = certificate.scale(0.9, 19)
    expected = lavps.intervals.central_interval(posterior, 0.9, scale)[0][0]
    np.testing.assert_allclose(ends["lower-90"], expected.numpy(), atol=1e-5)
    manifest = json.loads((output / "photo.json").read_text())
    assert manifest["result"]["certified"]["coverage"]["0.9"] == certificate.statement(0.9)
    assert 1 / (IMAGES + 1) <= manifest["result"]["certified"]["p_value"] <= 1
    assert {"photo-lower-90.npy", "photo-upper-50.png"} <= manifest["outputs"].keys()
    assert Image.open(output / "photo-upper-90.png").size == (SIZE, SIZE)


def test_a_measurement_with_more_noise_does_not_fit(made: Path, tmp_path: Path) -> None:
    output = restore(made, tmp_path / "out", measured="noisy")
    result = json.loads((output / "photo.json").read_text())["result"]
    assert result["certified"]["p_value"] == pytest.approx(1 / (IMAGES + 1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--noise", "0.07"], "for noise 0.05, not for 0.07"),
        (["--task", "sr2"], "for task sr4, not for sr2: run lavps calibrate"),
        (["--evaluations", "5"], "for settings"),
        (["--samples", "18"], "for 19 samples, not for 18"),
        (["--levels", "0.7"], "level 0.7 is not in the certificate, which has 0.5, 0.8, 0.9"),
        (["--precision", "bf16"], "fp32"),
    ],
)
def test_other_options_are_refused(
    made: Path, tmp_path: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        restore(made, tmp_path / "out", *options)
    assert message in capsys.readouterr().err
    assert not list((tmp_path / "out").glob("*")) if (tmp_path / "out").exists() else True


def test_one_changed_weight_is_refused(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network = lavps.load_prior(made / "prior").network
    with torch.no_grad():
        next(network.parameters()).view(-1)[0] += 0.01
    save_model(tmp_path / "prior", network, read_config(made / "prior"))
    with pytest.raises(SystemExit):
        restore(made, tmp_path / "out", "--prior", str(tmp_path / "prior"))
    assert "the certificate was made for prior" in capsys.readouterr().err


def test_a_kernel_is_part_of_the_scope(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kernels = {}
    for name, row in (("own", 1), ("other", 0)):
        levels = np.zeros((3, 3), dtype=np.uint8)
        levels[row] = 255
        kernels[name] = save(tmp_path / f"{name}.png", levels)
    shutil.copytree(made / "prior", tmp_path / "prior")
    held_out = str(made / "held-out")
    certificate = calibrate(tmp_path, "--kernel", str(kernels["own"]), "--images", held_out)
    given = ["--noise", "0.05", "--prior", str(tmp_path / "prior"), "--certificate", str(certificate)]
    photo, output = str(made / "photo.png"), str(tmp_path / "out")
    main(["restore", photo, *given, "--kernel", str(kernels["own"]), "--output", output])
    assert (tmp_path / "out" / "photo-lower-80.png").is_file()
    with pytest.raises(SystemExit):
        main(["restore", photo, *given, "--kernel", str(kernels["other"]), "--output", output, "--overwrite"])
    assert "another mask, kernel or Python file" in capsys.readouterr().err


def test_draws_from_the_prior_test_the_sampler_alone(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(made / "prior", tmp_path / "prior")
    file = calibrate(tmp_path, "--task", "denoise", "--count", "12", "--samples", "9", "--levels", "0.5")
    assert (
        "On 12 images drawn from the prior, the sampler's 50 % intervals covered" in capsys.readouterr().out
    )
    certificate = Certificate.read(file)
    assert certificate.source == "prior"
    with pytest.raises(ValueError, match="tests the sampler alone"):
        certificate.scale(0.5, 9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--task", "sr4", "--samples", "18"], "need at least 19 samples"),
        (["--task", "sr4", "--count", "9"], "too few"),
        (["--task", "sr4", "--noise", "0"], "above 0"),
        (["--task", "inpaint"], "--mask"),
        (["--task", "sr4", "--quality", "fast"], "give one of"),
    ],
)
def test_what_cannot_be_certified_is_refused_before_the_work(
    made: Path, tmp_path: Path, options: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(made / "prior", tmp_path / "prior")
    with pytest.raises(SystemExit):
        calibrate(tmp_path, "--images", str(made / "held-out"), *options)
    assert message in capsys.readouterr().err


def test_a_file_that_is_no_certificate_is_refused(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text("{}")
    with pytest.raises(ValueError, match="no certificate of lavps calibrate"):
        Certificate.read(tmp_path / "c.json")


def test_other_statistics_than_those_of_the_certificate_are_refused(made: Path) -> None:
    certificate = Certificate.read(made / "certificate" / "certificate.json")
    row = torch.tensor(certificate.statistics[0])
    assert 0 < certificate.p_value(row) <= 1
    with pytest.raises(ValueError, match="earlier version"):
        certificate.p_value(row[:-1])


def test_a_posterior_takes_a_certificate(made: Path) -> None:
    certificate = Certificate.read(made / "certificate" / "certificate.json")
    prior = lavps.load_prior(made / "prior")
    problem = lavps.InverseProblem(torch.zeros(2, 3, 2, 2), lavps.operators.AveragePool(4), 0.05)
    sampler = certificate.settings.sampler(prior)
    posterior = sampler.sample(problem, 19)
    low, high = posterior.interval(0.9, certificate=certificate)
    plain_low, plain_high = posterior.interval(0.9)
    ratio = (high - low) / (plain_high - plain_low)
    torch.testing.assert_close(ratio, torch.full_like(ratio, certificate.scale(0.9, 19)), rtol=1e-3, atol=0)
    with pytest.raises(ValueError, match="for 19 samples, not for 20"):
        sampler.sample(problem, 20).interval(0.9, certificate=certificate)
