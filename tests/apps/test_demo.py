"""The demonstration: every task is measured and restored, and the page can be built and used."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lavps.apps.demo.demonstration import TASKS, DemoMeasurement, Demonstration
from support.restoring import picture, write_model, write_prior


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("models")
    prior = write_prior(folder / "prior")
    return str(prior), str(write_model(folder / "warm", prior))


@pytest.mark.parametrize("task", TASKS)
def test_every_task_is_measured_and_restored(folders: tuple[str, str], task: str) -> None:
    demonstration = Demonstration(*folders)
    for strength in (0.0, 0.5, 1.0):
        problem, shown = demonstration.measured(picture(40, 30), DemoMeasurement(task, strength))
        assert shown.dtype == np.uint8
        assert problem.image_shape == (3, 8, 8)
    assert list(demonstration.methods("fast")) == ["MGDM", "LAVPS"]
    for method in demonstration.methods("fast"):
        shows = list(demonstration.run(problem, method, samples=2))
        assert [show.step for show in shows] == list(range(1, shows[-1].total + 1))
        last = shows[-1]
        assert last.done
        assert last.sample(1).shape == last.mean.shape == last.uncertainty.shape
        assert not np.array_equal(last.sample(1), last.sample(2))
        assert "misfit" in last.clock()


def test_without_a_model_the_second_method_is_the_preset(tmp_path: Path) -> None:
    demonstration = Demonstration(str(write_prior(tmp_path / "prior", front=False)))
    problem, _ = demonstration.measured(picture(8, 8), DemoMeasurement("super-resolution", 0.0))
    assert list(demonstration.methods("fast"))[1] == "TunedPIR, preset"
    mgdm, steps = (
        list(demonstration.run(problem, name, samples=2))[-1] for name in demonstration.methods("fast")
    )
    assert (steps.forwards, steps.backwards) == (8, 0)
    assert mgdm.backwards > 8


def test_a_painted_mask_hides_what_it_covers(folders: tuple[str, str]) -> None:
    mask = np.zeros((80, 80), bool)
    mask[:40, :] = True
    problem, _ = Demonstration(*folders).measured(picture(80, 80), DemoMeasurement("inpainting", mask=mask))
    observed = problem.operator.observed(problem.y)
    assert observed is not None
    assert not observed[..., :4, :].any()
    assert observed[..., 4:, :].all()


def test_the_page_is_built(folders: tuple[str, str], tmp_path: Path) -> None:
    pytest.importorskip("gradio")
    from lavps.apps.demo.page import build_page

    page = build_page(Demonstration(*folders), [])
    assert "Restore" in str(page.get_config_file())
