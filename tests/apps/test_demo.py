"""The demonstration: files are restored as on the command line, with progress, and can be stopped."""

from __future__ import annotations

import threading
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from lavps.apps.demo.damage import KINDS, Damage
from lavps.apps.demo.demonstration import Demonstration, Outcome, Status
from lavps.apps.demo.page import _canvas
from lavps.io import read_image
from lavps.restoration import MeasurementSpec, RestorationConfig
from lavps.restoration.job import FileRestorer
from support.restoring import picture, save, write_model, write_prior

SHAPE = (3, 8, 8)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("models")
    prior = write_prior(folder / "prior")
    return str(prior), str(write_model(folder / "warm", prior))


@pytest.fixture(scope="module")
def demonstration(folders: tuple[str, str]) -> Demonstration:
    return Demonstration(folders[0])


def run(demonstration: Demonstration, file: Path, damage: Damage, **options: Any) -> list[Status | Outcome]:
    return list(demonstration.restore(file, damage, 2, **options))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("strength", [0.0, 1.0])
def test_every_damage_is_simulated_and_restored(
    demonstration: Demonstration, kind: str, strength: float
) -> None:
    damage = Damage.simulated(kind, strength, SHAPE)
    if kind == "blur":
        damage = Damage(kind, 0.5, 0.02)
    file = demonstration.degraded(picture(40, 30), damage)
    assert demonstration.shown(file, damage).shape == (512, 512, 3)
    *states, last = run(demonstration, file, damage)
    assert isinstance(last, Outcome)
    assert all(isinstance(state, Status) for state in states)
    assert len(last.samples) == 2
    assert last.before.shape == last.samples[0].shape == last.mean.shape == (512, 512, 3)
    assert last.uncertainty is not None
    assert not np.array_equal(*last.samples)
    assert {name for name, _ in last.checks} >= {"Data fit", "Typicality", "Pixel values"}


def test_the_archive_holds_what_the_command_writes(demonstration: Demonstration, tmp_path: Path) -> None:
    file = save(tmp_path / "photo.png", picture(4, 4))
    last = run(demonstration, file, Damage("small", 2, 0.05), quality="fast", seed=3)[-1]
    assert isinstance(last, Outcome)
    spec = MeasurementSpec("sr2", 0.05)
    job = RestorationConfig(demonstration.prior, None, spec, 2, 3, quality="fast")
    (tmp_path / "out").mkdir()
    FileRestorer(job).restore(file, tmp_path / "out")
    with zipfile.ZipFile(last.archive) as archive:
        assert sorted(archive.namelist()) == sorted(path.name for path in (tmp_path / "out").iterdir())
        for name in ("photo-1.png", "photo-2.png", "photo-mean.png", "photo-uncertainty.png"):
            assert archive.read(name) == (tmp_path / "out" / name).read_bytes()


def test_progress_has_a_bar_a_time_and_a_preview(
    demonstration: Demonstration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lavps.apps.demo.demonstration._INTERVAL", 0.0)
    file = save(tmp_path / "photo.png", picture(20, 12))
    states = [s for s in run(demonstration, file, Damage("noise", noise=0.1)) if isinstance(s, Status)]
    shares = [state.share for state in states]
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert len(set(shares)) > 4
    assert any("left" in state.text for state in states)
    assert states[-1].preview is not None


@pytest.mark.parametrize("size", [(8, 8), (40, 40)])
def test_a_stop_ends_the_run_at_the_next_evaluation(
    demonstration: Demonstration, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]
) -> None:
    stop, file = threading.Event(), save(tmp_path / "photo.png", picture(*size))
    evaluations = []
    network = demonstration.restorer.prior.denoise

    def denoise(*given: Any) -> Any:
        stop.wait(0.4)  # longer than the interval of states, so that one comes before the run ends
        evaluations.append(stop.is_set())
        return network(*given)

    monkeypatch.setattr(demonstration.restorer.prior, "denoise", denoise)
    states = demonstration.restore(file, Damage("noise", noise=0.1), 2, "best", stop=stop)
    for state in states:
        if isinstance(state, Status) and state.share > 0:
            stop.set()
        assert isinstance(state, Status)
    assert sum(evaluations) <= 4


def test_a_probable_mistake_is_named_without_a_command(demonstration: Demonstration, tmp_path: Path) -> None:
    file = save(tmp_path / "photo.png", picture(40, 40))
    states = demonstration.restore(file, Damage("small", 2, 0.05))
    warned = next(state for state in states if isinstance(state, Status) and state.warnings)
    assert warned.warnings == ("sr2 enlarges the file to 80x80 pixels",)


def test_what_cannot_be_restored_is_one_sentence(demonstration: Demonstration, tmp_path: Path) -> None:
    file = tmp_path / "photo.png"
    file.write_bytes(b"no image")
    with pytest.raises(ValueError, match="image"):
        run(demonstration, file, Damage("noise"))
    save(file, picture(8, 8))
    with pytest.raises(ValueError, match="Paint over the missing parts first"):
        run(demonstration, file, Damage("missing"))


def test_a_photograph_whose_noise_is_unknown_is_one_sentence_without_an_option(
    demonstration: Demonstration, tmp_path: Path
) -> None:
    file = save(tmp_path / "photo.jpg", picture(24, 24))
    with pytest.raises(ValueError, match=r"^JPEG compression .*: choose how noisy the image is\.$"):
        run(demonstration, file, Damage("noise"))


def test_the_canvas_is_upright_like_the_image_that_is_read(tmp_path: Path) -> None:
    image, exif = Image.fromarray(picture(8, 12)), Image.Exif()
    exif[0x0112] = 6  # turned by 90 degrees
    image.save(tmp_path / "photo.png", exif=exif)
    canvas = _canvas(str(tmp_path / "photo.png"))
    pixels = read_image(tmp_path / "photo.png").pixels
    assert canvas.shape == (12, 8, 3)
    assert np.array_equal(canvas, np.rint((pixels.permute(1, 2, 0).numpy() + 1) * 127.5))


def test_a_painted_mask_hides_what_it_covers(demonstration: Demonstration, tmp_path: Path) -> None:
    mask = np.zeros((8, 8), bool)
    mask[:4, :] = True
    spec = Damage("missing", noise=0.02, mask=mask).spec(tmp_path)
    problem = spec.read(save(tmp_path / "photo.png", picture(8, 8)), SHAPE).problem
    observed = problem.operator.observed(problem.y)
    assert observed is not None
    assert not observed[..., :4, :].any()
    assert observed[..., 4:, :].all()


def test_examples_are_those_of_the_priors_sheet(folders: tuple[str, str]) -> None:
    demonstration = Demonstration(*folders)
    assert demonstration.examples() == []
    sheet = picture(16, 24)
    save(Path(folders[0]) / "samples.png", sheet)
    examples = demonstration.examples()
    (Path(folders[0]) / "samples.png").unlink()
    assert np.array_equal(np.concatenate(examples, 1), sheet[:8])
    x = demonstration.fitted(examples[0])
    assert np.array_equal(np.rint((x.permute(1, 2, 0).numpy() + 1) * 127.5), examples[0])


def test_the_page_has_two_tabs(demonstration: Demonstration, tmp_path: Path) -> None:
    pytest.importorskip("gradio")
    from lavps.apps.demo.page import build_page

    example = tmp_path / "example.png"
    Image.fromarray(picture(8, 8)).save(example)
    page = str(build_page(demonstration, [example]).get_config_file())
    for words in ("I have a degraded image", "Show me", "Restore", "Stop", "Download everything"):
        assert words in page


def test_blocks_of_jpeg_need_no_noise_in_a_file_of_another_format(tmp_path: Path) -> None:
    file = save(tmp_path / "photo.png", picture(16, 16))
    assert Damage("jpeg").spec(tmp_path).read(file, SHAPE).measuring.noise == 0.02
