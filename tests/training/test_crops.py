"""Random crops of photographs: every position, reproducible samples, one cache, and files too small."""

from __future__ import annotations

import json
import pickle
import re
import shutil
import tarfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor

from lavps.cli import main
from lavps.training.augmentation import Augmentation
from lavps.training.crops import RandomCrops
from lavps.training.data import ImageData, load_samples

SIZES = [(9, 14), (12, 8), (20, 20), (8, 8)]
NETWORK = {"kind": "unet", "widths": [16], "depth": 1, "attention": [], "head_dim": 16, "condition_width": 16}


def write_photos(folder: Path, sizes: list[tuple[int, int]] = SIZES) -> list[Tensor]:
    """PNGs of random bytes and several sizes; each (3, H, W) in [-1, 1]."""
    folder.mkdir(parents=True)
    photos = []
    for number, size in enumerate(sizes):
        pixels = np.random.default_rng(number).integers(0, 256, (*size, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
        photos.append(torch.from_numpy(pixels).permute(2, 0, 1).float() / 127.5 - 1)
    return photos


def positions(photo: Tensor, crop: Tensor) -> list[tuple[int, int]]:
    """Where the crop is found in the photograph."""
    windows = photo.unfold(1, crop.shape[1], 1).unfold(2, crop.shape[2], 1)
    equal = (windows == crop[:, None, None]).all(-1).all(-1).all(0)
    return [(int(top), int(left)) for top, left in equal.nonzero()]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    write_photos(tmp_path / "photos")
    return tmp_path / "photos"


# --- crops ------------------------------------------------------------------------------------------------


def test_every_position_is_drawn_and_equally_often(tmp_path: Path) -> None:
    (photo,) = write_photos(tmp_path / "photos", [(9, 11)])
    data = RandomCrops.open(tmp_path / "photos", (8, 7))
    draws, cells = 4000, 2 * 5
    found = Counter(positions(photo, crop)[0] for crop in data.draw([0] * draws, range(draws)))
    assert found.keys() == {(top, left) for top in range(2) for left in range(5)}
    statistic = sum((count - draws / cells) ** 2 / (draws / cells) for count in found.values())
    assert statistic < 27.9  # 99.9 % quantile of chi-squared with 9 degrees of freedom


def test_crops_are_windows_of_their_own_photograph(photos: Path, tmp_path: Path) -> None:
    expected = write_photos(tmp_path / "same")
    data = RandomCrops.open(photos, 8)
    crops = data.draw([0, 1, 2, 3], range(4))
    assert all(positions(photo, crop) for photo, crop in zip(expected, crops, strict=True))
    assert torch.equal(data[3], expected[3])
    assert torch.equal(data[2], expected[2][:, 6:14, 6:14])
    assert data.names == ("0.png", "1.png", "2.png", "3.png")


def test_a_sample_is_a_function_of_seed_and_item(photos: Path) -> None:
    data = RandomCrops.open(photos, 8, flip=True, quarter_turns=True, seed=3)
    items = list(range(100, 120))
    together, _ = load_samples(data, 3, items)
    alone = torch.cat([load_samples(data, 3, [item])[0] for item in reversed(items)]).flip(0)
    assert torch.equal(together, alone)
    again = pickle.loads(pickle.dumps(data))  # as a loader process has it
    assert torch.equal(load_samples(again, 3, items)[0], together)
    assert len(pickle.dumps(data)) < 10_000  # without the pixels
    other = RandomCrops.open(photos, 8, flip=True, quarter_turns=True, seed=4)
    assert not torch.equal(load_samples(other, 3, items)[0], together)


def test_flips_and_turns_are_the_symmetries_of_a_square() -> None:
    image = torch.arange(16.0).reshape(1, 1, 4, 4) / 16
    symmetries = {
        tuple(turned.flatten().tolist())
        for flipped in (image, image.flip(-1))
        for turned in (flipped.rot90(k, (-2, -1)) for k in range(4))
    }
    data = ImageData.from_tensor(image, flip=True, quarter_turns=True)
    found = Counter(tuple(draw.flatten().tolist()) for draw in data.draw([0] * 2000, range(2000)))
    assert found.keys() == symmetries
    assert min(found.values()) > 190  # 250 expected
    assert data.describe()["quarter_turns"] is True
    # A run of before has no such entry, and must resume.
    assert ImageData.from_tensor(image, flip=True).describe().keys() == {"count", "shape", "flip", "files"}
    with pytest.raises(ValueError, match="square images"):
        Augmentation(quarter_turns=True).check((3, 8, 16))


def test_validation_crops_are_fixed_whatever_the_seed(photos: Path) -> None:
    first, other = (RandomCrops.open(photos, 8, flip=True, quarter_turns=True, seed=s) for s in (0, 9))
    crops = first.fixed(10)
    assert torch.equal(crops, other.fixed(10))
    assert torch.equal(crops[:6], first.fixed(6))
    assert len(crops.unique(dim=0)) > 4  # more crops than photographs
    whole = Image.open(photos / "2.png")
    photo = torch.from_numpy(np.array(whole)).permute(2, 0, 1).float() / 127.5 - 1
    assert positions(photo, crops[2])  # not augmented


# --- the cache --------------------------------------------------------------------------------------------


def test_photographs_are_decoded_once_for_all_crop_sizes(photos: Path) -> None:
    RandomCrops.open(photos, 8)
    (cache,) = (photos.parent / "photos-cache").glob("*.npy")
    stamp = cache.stat().st_mtime_ns
    assert np.load(cache, mmap_mode="r").shape == (3 * sum(h * w for h, w in SIZES),)
    data = RandomCrops.open(photos, (4, 6))
    assert data.draw([1], [0]).shape == (1, 3, 4, 6)
    assert cache.stat().st_mtime_ns == stamp
    assert isinstance(data._pixels, np.memmap)
    Image.new("RGB", (8, 8), "white").save(photos / "0.png")
    assert RandomCrops.open(photos, 8)[0].min() == 1  # decoded again after a change
    with pytest.raises(ValueError, match="need the cache"):
        RandomCrops.open(photos, 8, cache=False)


def test_tars_grey_images_and_turned_photographs(photos: Path, tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for file in sorted(photos.iterdir()):
            archive.add(file, file.name)
    folder, tar = RandomCrops.open(photos, 8), RandomCrops.open(tmp_path / "a.tar", 8)
    assert torch.equal(folder.draw(range(4), range(4)), tar.draw(range(4), range(4)))
    assert RandomCrops.open(photos, 8, channels=1).draw([0], [0]).shape == (1, 1, 8, 8)
    (tmp_path / "turned").mkdir()
    upright = Image.fromarray(np.random.default_rng(0).integers(0, 256, (8, 20, 3), dtype=np.uint8))
    exif = Image.Exif()
    exif[0x0112] = 6  # stored on its side
    upright.save(tmp_path / "turned" / "a.png", exif=exif)
    assert RandomCrops.open(tmp_path / "turned", (20, 8)).draw([0], [0]).shape == (1, 3, 20, 8)


def test_small_and_broken_files_are_refused_or_skipped(photos: Path) -> None:
    with pytest.raises(ValueError, match=r"1\.png has 8 x 12 pixels, fewer than a crop of 9 x 9"):
        RandomCrops.open(photos, 9)
    broken = photos / "2.png"
    broken.write_bytes(broken.read_bytes()[:400])
    with pytest.raises(ValueError, match=r"2\.png cannot be read"):
        RandomCrops.open(photos, 8)
    (photos / "4.png").write_bytes(b"GIF89a")
    for _ in range(2):  # the second time from the cache
        data = RandomCrops.open(photos, 9, skip_bad=True)
        assert [Path(name).name for name in data.bad] == ["2.png", "4.png", "1.png", "3.png"]
        assert (len(data), data.names) == (1, ("0.png",))
    with pytest.raises(ValueError, match="no images"):
        RandomCrops.open(photos, 15, skip_bad=True)
    with pytest.raises(ValueError, match="channels"):
        RandomCrops.open(photos, 8, channels=2)


@pytest.mark.timing
def test_a_batch_of_crops_costs_little(tmp_path: Path) -> None:
    write_photos(tmp_path / "photos", [(288, 400)] * 20)
    data = RandomCrops.open(tmp_path / "photos", 64, flip=True, quarter_turns=True)
    load_samples(data, 0, list(range(32)))
    start = time.process_time()
    for step in range(20):
        load_samples(data, 0, list(range(step * 32, step * 32 + 32)))
    assert (time.process_time() - start) / 20 < 0.03  # a step of a small U-Net takes more than a second


# --- the command ------------------------------------------------------------------------------------------


def run(folder: Path, output: str, **options: object) -> Path:
    """Run ``lavps train prior`` on random crops for six steps; the folder of the run."""
    (folder / "network.json").write_text(json.dumps(NETWORK))
    words = {
        "data": folder / "photos", "validation": folder / "photos", "output": folder / output, "size": 8,
        "network": folder / "network.json", "steps": 6, "batch-size": 4, "warmup-steps": 1, "log-every": 1,
        "checkpoint-every": 3, "validate-every": 3, "crop": "random", "validation-images": 10,
    } | options  # fmt: skip
    line = [word for name, value in words.items() for word in (f"--{name}", str(value))]
    main(["train", "prior", "--no-tensorboard", "--cpu", "--quarter-turns", *line])
    return folder / output


def log(run: Path) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "images_per_second"} for line in lines]


def test_a_resumed_run_on_crops_equals_an_uninterrupted_one(photos: Path) -> None:
    folder = photos.parent
    whole, again = run(folder, "whole"), run(folder, "again")
    shutil.rmtree(again / "checkpoints" / "step-000000006")
    run(folder, "again", **{"num-workers": 1})
    ours, theirs = (load_file(path / "model" / "model.safetensors") for path in (again, whole))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert log(again) == log(whole)
    about = json.loads((whole / "model" / "config.json").read_text())["training"]["data"]
    assert (about["crop"], about["quarter_turns"], about["flip"]) == ("random", True, True)


def test_a_run_is_not_continued_with_other_crops(photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(photos.parent, "run", steps=3)
    with pytest.raises(SystemExit):
        run(photos.parent, "run", steps=3, crop="centre")
    assert re.search(r"data\.crop was 'random', is None", capsys.readouterr().err)
    with pytest.raises(SystemExit):
        run(photos.parent, "small", size=12)
    assert "fewer than a crop of 12 x 12" in capsys.readouterr().err
