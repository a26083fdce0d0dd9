"""Bulk restoration in one process: exactly once, whatever the batch, the container or the kill."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from PIL import Image

from lavps.apps.bulk import Recipe
from lavps.apps.bulk.poison import run_warily
from lavps.apps.bulk.records import Record, RecordStore
from lavps.apps.bulk.sinks import Sink
from lavps.apps.bulk.sources import Item, Partition, Source, partitions_of_names
from lavps.apps.bulk.stores import Store
from lavps.apps.bulk.worker import Batch, BatchRestorer, Finished, shape_of
from lavps.cli import main
from lavps.restoration import MeasurementSpec, RestorationConfig
from lavps.restoration.manifest import Manifest
from lavps.restoration.presets import BALANCED
from support.bulk_files import broken_files, contents, fill
from support.restoring import front_entry, picture, save, write_model, write_prior

parquet = pytest.importorskip("pyarrow.parquet")
arrow = pytest.importorskip("pyarrow")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_prior(folder / "prior")
    write_model(folder / "warm", folder / "prior")
    return folder


def bulk(models: Path, source: object, destination: object, *words: object) -> int:
    """Run the command without Ray; its exit code."""
    options = ["--prior", models / "prior", "--device", "cpu", "--workers", "0", *words]
    if "--no-task" not in words:  # else a manifest has both
        options += [] if "--task" in words else ["--task", "denoise"]
        options += [] if "--noise" in words else ["--noise", 0.05]
    try:
        main(
            [
                "restore-bulk",
                str(source),
                str(destination),
                *(str(word) for word in options if word != "--no-task"),
            ]
        )
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def table(folder: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = parquet.read_table(folder / "manifest").to_pylist()
    return rows


def levels(file: Path) -> np.ndarray:
    return np.asarray(Image.open(file)).astype(int)


def some_files(folder: Path, count: int = 6, size: int = 8) -> Path:
    folder.mkdir(parents=True)
    for number in range(count):
        save(folder / f"{number}.png", picture(size, size, seed=number))
    return folder


# --- exactly once -----------------------------------------------------------------------------------------


def test_what_is_done_is_not_done_again_and_no_model_is_loaded_for_it(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = some_files(tmp_path / "in")
    shutil.copytree(models / "prior", tmp_path / "prior")
    words = ["--prior", tmp_path / "prior"]
    assert bulk(models, source, tmp_path / "out", *words) == 0
    assert "6 of 6 images are restored, 6 of them now" in capsys.readouterr().out
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "out").glob("*.png")}
    (tmp_path / "prior" / "model.safetensors").unlink()  # nobody can load it now
    assert bulk(models, source, tmp_path / "out", *words) == 0
    assert "6 of 6 images are restored, 0 of them now" in capsys.readouterr().out
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "out").glob("*.png")} == before


def test_a_lost_output_is_made_again_with_the_same_bytes(models: Path, tmp_path: Path) -> None:
    source = some_files(tmp_path / "in")
    bulk(models, source, tmp_path / "out", "--batch-size", 3)
    whole = contents(tmp_path / "out")
    (tmp_path / "out" / "4.png").unlink()
    (tmp_path / "out" / "1.png").write_bytes(b"cut short")
    bulk(models, source, tmp_path / "out", "--batch-size", 3)
    assert contents(tmp_path / "out") == whole


def test_a_changed_setting_invalidates_and_going_back_gives_the_same_bytes(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = some_files(tmp_path / "in", 3)
    seen = {}
    for words in (
        (),
        ("--seed", 1),
        ("--noise", 0.2),
        ("--quality", "best"),
        ("--inference-model", models / "warm"),
    ):
        bulk(models, source, tmp_path / "out", *words, "--overwrite")
        assert "3 of them now" in capsys.readouterr().out, words
        seen[words] = contents(tmp_path / "out")
    assert not seen[()].items() & seen["--seed", 1].items()
    bulk(models, source, tmp_path / "out", "--overwrite")
    assert contents(tmp_path / "out") == seen[()]


def test_changed_added_and_removed_files_are_seen(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = some_files(tmp_path / "in", 5)
    bulk(models, source, tmp_path / "out", "--batch-size", 2)
    save(source / "2.png", picture(8, 8, seed=77))
    save(source / "00.png", picture(8, 8, seed=78))
    (source / "4.png").unlink()
    capsys.readouterr()
    assert bulk(models, source, tmp_path / "out", "--batch-size", 2) == 0
    assert "5 of 5 images are restored, 2 of them now" in capsys.readouterr().out
    assert sorted(row["name"] for row in table(tmp_path / "out")) == [
        "0.png",
        "00.png",
        "1.png",
        "2.png",
        "3.png",
    ]


def test_killed_in_mid_run_it_goes_on_and_gives_the_same_bytes(models: Path, tmp_path: Path) -> None:
    source = fill(tmp_path / "in", 60)
    shutil.copytree(models / "prior", tmp_path / "prior")
    (tmp_path / "prior" / "fronts.json").write_text(json.dumps([front_entry(20, 1.0)]))
    words = ["--prior", tmp_path / "prior", "--batch-size", 4, "--format", "tar"]
    process = subprocess.Popen(
        [sys.executable, "-m", "lavps.cli", "restore-bulk", str(source), str(tmp_path / "out"), "--task",
         "denoise", "--noise", "0.05", "--workers", "0", "--device", "cpu", *map(str, words)],
        env=os.environ | {"OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    end = time.monotonic() + 300
    while len(list((tmp_path / "out").rglob("*-1.jsonl"))) < 3:
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait(60)
    assert not (tmp_path / "out" / "manifest").exists()
    assert bulk(models, source, tmp_path / "out", *words) == 3
    assert bulk(models, source, tmp_path / "whole", *words) == 3
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    assert not [
        file
        for file in (tmp_path / "out" / "_lavps").rglob("*")
        if file.is_file() and file.name != "run.json"
    ]


class Breaking(Store):
    """A store that breaks once so many pictures are written."""

    left: ClassVar = [1]

    def write(self, name: str, content: bytes) -> None:
        if name.endswith(".png"):
            if not self.left[0]:
                raise OSError("the disk is full")
            self.left[0] -= 1
        super().write(name, content)


def test_replaced_in_part_an_old_record_is_not_believed(tmp_path: Path) -> None:
    """Results of key A; a run with key B dies between two of them; the records must not say A of B's."""
    partition = Partition("files-0", names=("a.png", "b.png"))

    def finished(key: str) -> list[Finished]:
        return [
            Finished(Record(name, partition.id, "ok", key, outputs={name: 3}), {name: key.encode() * 3})
            for name in partition.names
        ]

    good = Sink(RecordStore(Store(str(tmp_path)), "s", 0), "files")
    good.write(partition, "000000", finished("A"), replacing=False)
    good.close(partition, [one.record for one in finished("A")])
    Breaking.left[0] = 1
    with pytest.raises(OSError, match="disk is full"):
        Sink(RecordStore(Breaking(str(tmp_path)), "s", 1), "files").write(
            partition, "000000", finished("B"), replacing=True
        )
    assert {(tmp_path / name).read_bytes() for name in partition.names} == {b"AAA", b"BBB"}
    known = RecordStore(Store(str(tmp_path)), "s", 2).read(partition.id)
    assert not any(record.settled("A") or record.settled("B") for record in known.values())


# --- whatever the batch -----------------------------------------------------------------------------------


def test_a_batch_is_single_runs_which_are_those_of_restore(models: Path, tmp_path: Path) -> None:
    source = some_files(tmp_path / "in", 5)
    words = ["--inference-model", models / "warm", "--seed", 3]
    bulk(models, source, tmp_path / "single", "--batch-size", 1, *words)
    bulk(models, source, tmp_path / "batch", "--batch-size", 5, *words)
    files = [str(source / f"{number}.png") for number in range(5)]
    one = [
        "--task",
        "denoise",
        "--noise",
        0.05,
        "--prior",
        models / "prior",
        "--device",
        "cpu",
        "--output",
        tmp_path / "one",
        *words,
    ]
    main(["restore", *files, *map(str, one)])
    assert {row["batch"] for row in table(tmp_path / "batch")} == {5}
    for number in range(5):
        single = (tmp_path / "single" / f"{number}.png").read_bytes()
        assert single == (tmp_path / "one" / f"{number}.png").read_bytes()
        batch = levels(tmp_path / "batch" / f"{number}.png")
        assert np.abs(batch - levels(tmp_path / "single" / f"{number}.png")).max() <= 1  # of 255


def test_masks_kernels_and_noise_of_their_own_share_a_batch(models: Path, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    for number in range(4):
        pixels = picture(8, 8, 4, seed=number)
        pixels[..., 3] = 255
        pixels[number : number + 3, :, 3] = 0
        save(source / f"{number}.png", pixels)
    for batch in (1, 4):
        assert bulk(models, source, tmp_path / str(batch), "--task", "inpaint", "--batch-size", batch) == 0
    assert {row["batch"] for row in table(tmp_path / "4")} == {4}
    for number in range(4):
        apart = levels(tmp_path / "1" / f"{number}.png") - levels(tmp_path / "4" / f"{number}.png")
        assert np.abs(apart).max() <= 1

    some_files(tmp_path / "clean", 3)
    for task in ("random-motion-blur", "random-pixels"):
        main(["degrade", str(tmp_path / "clean"), "--task", task, "--output", str(tmp_path / task)])
        assert bulk(models, tmp_path / task, tmp_path / f"{task}-out", "--no-task", "--batch-size", 3) == 0
        assert {(row["name"], row["batch"]) for row in table(tmp_path / f"{task}-out")} == {
            (f"{number}.npy", 3) for number in range(3)
        }


def test_equal_shapes_are_batched_and_others_are_not_mixed(models: Path, tmp_path: Path) -> None:
    source = some_files(tmp_path / "in", 4)
    for number in range(2):
        save(source / f"wide-{number}.png", picture(4, 12, seed=number))
        save(source / f"grey-{number}.jpg", picture(8, 8, 1, seed=number))
    assert bulk(models, source, tmp_path / "out", "--batch-size", 8) == 0
    batches = {row["name"]: row["batch"] for row in table(tmp_path / "out")}
    assert {batches[f"{number}.png"] for number in range(4)} == {4}
    assert batches["wide-0.png"] == batches["grey-1.jpg"] == 2
    assert Image.open(tmp_path / "out" / "grey-0.jpg").mode == "L"


def test_a_batch_that_does_not_fit_is_halved(models: Path, tmp_path: Path) -> None:
    source = some_files(tmp_path / "in", 6)
    script = tmp_path / "camera.py"
    script.write_text(
        "def small(x):\n"
        "    if len(x) > 2:\n"
        "        raise RuntimeError('out of memory')\n"
        "    return x.flip(-1)\n"
    )
    assert bulk(models, source, tmp_path / "out", "--task", f"{script}:small", "--batch-size", 6) == 0
    assert sorted(row["batch"] for row in table(tmp_path / "out")) == [1, 1, 2, 2, 2, 2]


def test_without_a_noise_level_it_is_estimated_file_by_file_as_by_restore(
    models: Path, tmp_path: Path
) -> None:
    source = tmp_path / "in"
    source.mkdir()
    for number, std in enumerate((5, 20)):
        noise = np.random.default_rng(number).normal(0, std, (48, 48, 3))
        save(source / f"{number}.png", np.clip(128 + noise, 0, 255).astype(np.uint8))
    words = ["--task", "denoise", "--prior", models / "prior", "--device", "cpu", "--evaluations", 8]
    main(["restore-bulk", *map(str, (source, tmp_path / "bulk", "--workers", 0, "--batch-size", 2, *words))])
    main(["restore", *map(str, (source, "--output", tmp_path / "one", *words))])
    found = [Manifest.read(tmp_path / "one" / f"{number}.json").measurement["noise"] for number in (0, 1)]
    assert found == pytest.approx([5 / 127.5, 20 / 127.5], rel=0.1)
    assert [row["status"] for row in table(tmp_path / "bulk")] == ["ok", "ok"]
    for name in ("0.png", "1.png"):
        difference = levels(tmp_path / "bulk" / name) - levels(tmp_path / "one" / name)
        assert np.abs(difference).max() <= 1


def test_every_file_may_have_noise_of_its_own(models: Path, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    for name in ("a.png", "b.png"):
        save(source / name, picture(8, 8, seed=0))
    save(source / "c.png", picture(8, 8, seed=1))
    bulk(models, source, tmp_path / "shared")
    bulk(models, source, tmp_path / "own", "--own-noise")
    assert levels(tmp_path / "own" / "a.png").tolist() == levels(tmp_path / "own" / "b.png").tolist()
    assert levels(tmp_path / "own" / "a.png").tolist() != levels(tmp_path / "shared" / "a.png").tolist()


# --- what goes wrong --------------------------------------------------------------------------------------


def test_bad_items_have_reasons_and_stop_nothing(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = fill(tmp_path / "in", 14)
    assert bulk(models, source, tmp_path / "out") == 3
    reasons = {row["name"]: row["reason"] for row in table(tmp_path / "out") if row["status"] == "failed"}
    assert set(reasons) == {f"1/{name}" for name in broken_files()}
    for name, words in (
        ("animated.webp", "2 images"), ("bomb.png", "too many pixels"), ("cut.jpg", "damaged"),
        ("cut.png", "damaged"), ("empty.png", "empty"), ("gif.png", "GIF"), ("nan.npy", "finite"),
        ("shape.npy", "shape"), ("text.jpg", "no image"), ("zip.tif", "zip"),
    ):  # fmt: skip
        assert words in reasons[f"1/{name}"], reasons[f"1/{name}"]
    assert len(contents(tmp_path / "out")) == 4
    said = capsys.readouterr()
    assert "1/empty.png: it is empty" in said.err
    assert "Traceback" not in said.err


def test_too_many_failures_stop_the_run(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "in"
    source.mkdir()
    for number in range(40):
        (source / f"{number:02}.png").write_bytes(b"no image")
    assert bulk(models, source, tmp_path / "out", "--max-failure-rate", 0.5, "--batch-size", 4) == 1
    said = capsys.readouterr().err
    assert "more than 50%; the most frequent reason: its content is no image" in said
    assert len(list((tmp_path / "out" / "_lavps").rglob("*.jsonl"))) < 10


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["in", "in/out"], "choose a folder beside it"),
        (["nothing", "out"], "there is no file or folder"),
        (["empty", "out"], "contains no images"),
        (["in", "out", "--task", "sr4x"], "did you mean 'sr4'"),
        (["in", "out", "--batch-size", "0"], "at least 1"),
        (["in", "out", "--max-failure-rate", "7"], "between 0 and 1"),
    ],
)
def test_what_cannot_be_begun_ends_with_code_1(
    models: Path,
    tmp_path: Path,
    words: list[str],
    reason: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    some_files(tmp_path / "in", 1)
    (tmp_path / "empty").mkdir()
    assert bulk(models, *words) == 1
    assert reason in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


class Deadly(BatchRestorer):
    """Dies, as a process would, of items that are called so."""

    def run(self, batch: Batch) -> list[Finished]:
        if any("deadly" in item.name for item in batch.items):
            raise SystemExit(139)
        return [
            Finished(Record(item.name, batch.partition, "ok", batch=len(batch.items)), {})
            for item in batch.items
        ]


def test_an_item_that_ends_its_worker_is_found_and_the_others_are_done(models: Path, tmp_path: Path) -> None:
    restorer = Deadly(
        Recipe.from_config(RestorationConfig(str(models / "prior"), measuring=MeasurementSpec("sr4")))
    )
    items = tuple(Item(name, b"") for name in ("a.png", "deadly.png", "c.png"))
    ledger = RecordStore(Store(str(tmp_path)), "s", 3)
    dead, sound = Batch("p", items, ("k",) * 3, ("d",) * 3), Batch("p", items[::2], ("k",) * 2, ("d",) * 2)
    for _ in range(2):  # as a batch, and then alone
        with pytest.raises(SystemExit):
            run_warily(restorer, dead, 0, ledger)
    records = [one.record for one in run_warily(restorer, dead, 0, ledger)]
    assert [record.status for record in records] == ["ok", "failed", "ok"]
    assert "ended the process" in records[1].reason
    # A batch that no worker died of stays as it is.
    assert [one.record.batch for one in run_warily(restorer, sound, 1, ledger)] == [2, 2]


# --- containers -------------------------------------------------------------------------------------------


def write_tar(file: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(file, "w") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def encoded(seed: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(picture(8, 8, seed=seed)).save(file, "PNG")
    return file.getvalue()


def members(file: Path) -> dict[str, bytes]:
    with tarfile.open(file) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]


def test_shards_become_shards_files_and_tables_with_the_same_pictures(models: Path, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for shard in range(2):
        pictures = {f"{n:03}.png": encoded(10 * shard + n) for n in range(3)}
        labels = {f"{n:03}.json": b"{}" for n in range(3)}
        write_tar(tmp_path / "in" / f"part-{shard}.tar", dict(sorted((pictures | labels).items())))
    for kind in ("tar", "files", "parquet"):
        words = [tmp_path / "in" / "*.tar", tmp_path / kind, "--format", kind, "--batch-size", 2]
        assert bulk(models, *words) == 0
    packed = members(tmp_path / "tar" / "part-1.tar")
    assert list(packed) == ["000.png", "001.png", "002.png"]
    rows = parquet.read_table(next((tmp_path / "parquet").glob("part-1*.parquet"))).to_pylist()
    for row in rows:
        assert (
            row["image"] == packed[row["file"]] == (tmp_path / "files" / "part-1" / row["file"]).read_bytes()
        )
    # A table is a source in its turn, and a finished shard is not made again.
    assert bulk(models, next((tmp_path / "parquet").glob("part-0*.parquet")), tmp_path / "again") == 0
    before = (tmp_path / "tar" / "part-1.tar").stat().st_mtime_ns
    assert bulk(models, tmp_path / "in" / "*.tar", tmp_path / "tar", "--batch-size", 2) == 0
    assert (tmp_path / "tar" / "part-1.tar").stat().st_mtime_ns == before


def test_damaged_shards_lose_what_is_damaged_and_no_more(models: Path, tmp_path: Path) -> None:
    write_tar(tmp_path / "cut.tar", {f"{n}.png": encoded(n) for n in range(6)})
    whole = (tmp_path / "cut.tar").read_bytes()
    (tmp_path / "cut.tar").write_bytes(whole[: len(whole) // 3])
    link = tarfile.TarInfo("link.png")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    with tarfile.open(tmp_path / "odd.tar", "w") as archive:
        archive.addfile(link)
        for name in ("../up.png", "twice.png", "twice.png"):
            member = tarfile.TarInfo(name)
            member.size = len(encoded(1))
            archive.addfile(member, io.BytesIO(encoded(1)))
    assert bulk(models, tmp_path / "*.tar", tmp_path / "out") == 3
    rows = {(row["partition"][:3], row["name"]): row["reason"] for row in table(tmp_path / "out")}
    assert "damaged" in rows["cut", "(cut.tar)"]
    assert rows["cut", "0.png"] == "" == rows["odd", "twice.png"]
    assert "is a link" in rows["odd", "link.png"]
    assert "leaves the tar" in rows["odd", "../up.png"]
    assert "another item has the name twice.png" in rows["odd", "twice.png (3)"]


def test_tables_of_the_hub_are_read(tmp_path: Path) -> None:
    images = [{"bytes": encoded(n), "path": f"x/{n}.png"} for n in range(3)]
    parquet.write_table(
        arrow.table({"label": [1, 2, 3], "image": images}), tmp_path / "a.parquet", row_group_size=2
    )
    source = Source.open(str(tmp_path / "a.parquet"))
    parts = source.partitions()
    assert len(parts) == 2
    items = [item for part in parts for item in source.items(part)]
    assert [item.name for item in items] == ["x/0.png", "x/1.png", "x/2.png"]
    assert items[2].content == encoded(2)


def test_other_filesystems_are_written_to_and_read_from(models: Path, tmp_path: Path) -> None:
    source = some_files(tmp_path / "in", 3)
    place = f"memory://{tmp_path.name}"
    for file in source.iterdir():
        Store(f"{place}/in").write(file.name, file.read_bytes())
    assert bulk(models, source, tmp_path / "out") == 0
    assert bulk(models, f"{place}/in", f"{place}/out") == 0
    for name in ("0.png", "1.png", "2.png"):
        assert Store(f"{place}/out").read(name) == (tmp_path / "out" / name).read_bytes()
    assert "report.html" in Store(f"{place}/out").names()


def filled_store(place: str) -> Store:
    store = Store(place)
    for name in ("a.png", "b/c.png", "b/d/e.jpg", ".hidden/f.png", "b/.g.png"):
        store.write(name, name.encode())
    return store


@pytest.mark.parametrize("kind", ["path", "file", "memory"])
def test_a_store_is_the_same_everywhere(kind: str, tmp_path: Path) -> None:
    place = str(tmp_path / ("plain" if kind == "memory" else "a::b"))  # in a URL this chains filesystems
    store = filled_store({"path": place, "file": f"file://{place}", "memory": f"memory://{place}"}[kind])
    assert store.names() == ["a.png", "b/c.png", "b/d/e.jpg"]
    assert store.names("b") == ["b/c.png", "b/d/e.jpg"]
    assert store.names("nothing") == []
    assert store.exists()
    assert not store.is_file()
    assert (store.size("b/c.png"), store.size("b/x.png"), store.size("a.png/x.png")) == (7, None, None)
    assert store.read("b/d/e.jpg") == b"b/d/e.jpg"
    with store.open("b/c.png") as file:
        file.seek(2)
        assert file.read() == b"c.png"
    store.write("a.png", b"other")
    assert store.read("a.png") == b"other"
    for _ in range(2):
        store.remove("a.png")
    assert store.size("a.png") is None
    with pytest.raises(FileNotFoundError):
        store.read("a.png")
    with pytest.raises(FileNotFoundError, match="there is no file or folder"):
        Source.open(f"{store.root}/nothing")


@pytest.mark.parametrize("prefix", ["", "memory://"])
def test_patterns_match_the_same_names_everywhere(prefix: str, tmp_path: Path) -> None:
    store = filled_store(f"{prefix}{tmp_path}")
    assert store.names(pattern="*.png") == ["a.png"]
    assert store.names(pattern="**/*.png") == ["a.png", "b/c.png"]
    assert store.names(pattern="b/*") == ["b/c.png"]


def test_links_to_files_are_read_and_other_links_are_not(tmp_path: Path) -> None:
    store = filled_store(str(tmp_path / "in"))
    (tmp_path / "in" / "link.png").symlink_to(tmp_path / "in" / "a.png")
    (tmp_path / "in" / "dead.png").symlink_to(tmp_path / "nothing.png")
    (tmp_path / "in" / "loop").symlink_to(tmp_path / "in")
    assert store.names() == ["a.png", "b/c.png", "b/d/e.jpg", "link.png"]
    assert store.names(pattern="*.png") == ["a.png", "link.png"]


def test_a_local_write_is_flushed_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, flushed, fsync = filled_store(str(tmp_path)), [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (flushed.append(descriptor), fsync(descriptor)))
    store.write("a.png", b"new")
    assert len(flushed) == 1

    def broken(_: int) -> None:
        raise OSError("the disk is full")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(OSError, match="disk is full"):
        store.write("a.png", b"newer")
    assert store.read("a.png") == b"new"
    assert not list(tmp_path.rglob("*.partial"))


def test_several_samples_have_names_that_nobody_else_has(models: Path, tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.mkdir()
    save(source / "a.png", picture(8, 8))
    save(source / "a.1.png", picture(8, 8, seed=1))
    Image.fromarray(picture(8, 8, seed=2)).save(source / "b.png", "JPEG")  # its name says otherwise
    assert bulk(models, source, tmp_path / "out", "--samples", 2) == 0
    names = set(contents(tmp_path / "out"))
    ends = ("1", "2", "mean", "uncertainty")
    assert names == (
        {f"a.{end}.png" for end in ends} | {f"a.1.{end}.png" for end in ends}
        | {f"b.png.{end}.jpg" for end in ends[:3]} | {"b.png.uncertainty.png"}
    )  # fmt: skip


# --- the parts --------------------------------------------------------------------------------------------


def test_a_new_name_changes_its_own_partition_alone() -> None:
    names = [f"{number:05d}.png" for number in range(3000)]
    before = {part.id: part.names for part in partitions_of_names(names, 64)}
    assert len(before) > 20
    assert sum(map(len, before.values())) == 3000
    after = {part.id: part.names for part in partitions_of_names(sorted([*names, "01234x.png"]), 64)}
    assert len([part for part in before if after.get(part) != before[part]]) == 1


def test_the_key_knows_what_matters_and_nothing_else(models: Path) -> None:
    job = RestorationConfig(str(models / "prior"), measuring=MeasurementSpec("sr4", 0.05))
    base = Recipe.from_config(job).key("0" * 64)
    assert base == Recipe.from_config(
        RestorationConfig(str(models / "prior"), measuring=MeasurementSpec("sr4", 0.05), tile_batch=3)
    ).key("0" * 64)
    others = [
        RestorationConfig(str(models / "prior"), measuring=MeasurementSpec("sr2", 0.05)),
        RestorationConfig(str(models / "prior"), measuring=MeasurementSpec("sr4", 0.06)),
        RestorationConfig(str(models / "prior"), str(models / "warm"), MeasurementSpec("sr4", 0.05)),
        RestorationConfig(str(models / "prior"), measuring=MeasurementSpec("sr4", 0.05), samples=2),
        RestorationConfig(str(models / "prior"), measuring=MeasurementSpec("sr4", 0.05), seed=1),
        RestorationConfig(
            str(models / "prior"), measuring=MeasurementSpec("sr4", 0.05), settings=BALANCED.with_num_steps(7)
        ),
    ]
    keys = {
        base,
        Recipe.from_config(job).key("1" * 64),
        *(Recipe.from_config(other).key("0" * 64) for other in others),
    }
    assert len(keys) == len(others) + 2
    with pytest.raises(ValueError, match="give --evaluations"):
        Recipe.from_config(RestorationConfig(str(models / "prior"), budget=1.0))


def test_a_worker_refuses_other_models_than_the_drivers(models: Path, tmp_path: Path) -> None:
    shutil.copytree(models / "prior", tmp_path / "prior")
    recipe = Recipe.from_config(RestorationConfig(str(tmp_path / "prior"), measuring=MeasurementSpec("sr4")))
    recipe.verify()
    shutil.rmtree(tmp_path / "prior")
    write_prior(tmp_path / "prior", channels=1)
    with pytest.raises(ValueError, match="the prior on this machine differs"):
        recipe.verify()


def test_shapes_are_read_off_headers() -> None:
    assert shape_of(encoded(0)) == shape_of(encoded(1))
    assert shape_of(b"nothing") == shape_of(b"") == "unreadable"
    assert shape_of(broken_files()["bomb.png"]) != shape_of(encoded(0))


@pytest.mark.parametrize(("missing", "words"), [("pyarrow", ["--workers", "0"]), ("ray", ["--workers", "1"])])
def test_what_is_not_installed_is_named(
    models: Path,
    tmp_path: Path,
    missing: str,
    words: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    assert bulk(models, some_files(tmp_path / "in", 1), tmp_path / "out", *words) == 1
    assert f'{missing} is not installed: pip install "lavps[bulk]"' in capsys.readouterr().err
