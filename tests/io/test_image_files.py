"""Files in = files out: every kind of image file comes back as it was, and bad ones are refused in words."""

from __future__ import annotations

import io
import os
import struct
import sys
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image, ImageCms, ImageOps, PngImagePlugin

import lavps
from lavps.image_formats import DEFAULT_SUFFIX, is_image
from lavps.io import (
    ImageError,
    ImageFile,
    encode_image,
    match_channels,
    read_image,
    write_atomically,
    write_image,
)

SRGB = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
HEIGHT, WIDTH = 9, 13


def noise(*shape: int, dtype: type = np.uint8, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, np.iinfo(dtype).max, shape, dtype, endpoint=True)


def saved(image: Image.Image, format: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, format, **options)  # type: ignore[arg-type]
    return file.getvalue()


def png(levels: np.ndarray, colour_type: int, extra: bytes = b"") -> bytes:
    """A PNG of 16 bits a channel, every row under another of the five filters."""
    height, width, channels = levels.shape
    step = 2 * channels
    rows = np.pad(levels.astype(">u2").view(np.uint8).reshape(height, -1).astype(int), ((1, 0), (step, 0)))
    lines = []
    for y in range(1, height + 1):
        here, left, up, corner = rows[y, step:], rows[y, :-step], rows[y - 1, step:], rows[y - 1, :-step]
        guess = left + up - corner
        distance = np.abs(np.stack([guess - left, guess - up, guess - corner]))
        paeth = np.choose(distance.argmin(0), [left, up, corner])
        kind = y % 5
        predicted = [0 * here, left, up, (left + up) // 2, paeth][kind]
        lines.append(bytes([kind]) + ((here - predicted) % 256).astype(np.uint8).tobytes())
    header = struct.pack(">IIBBBBB", width, height, 16, colour_type, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(b"".join(lines))), (b"IEND", b"")]
    chunks = [
        struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
        for name, content in parts
    ]
    return b"\x89PNG\r\n\x1a\n" + chunks[0] + extra + chunks[1] + chunks[2]


def tiff(
    levels: np.ndarray, order: str = "<", deflate: bool = False, planes: int = 1, extra: int = 2
) -> bytes:
    """A TIFF of 16 bits a channel, in either order of bytes."""
    height, width, channels = levels.shape
    data = levels.astype(order + "u2").tobytes()
    data = zlib.compress(data) if deflate else data
    entries = [
        (256, 4, width),
        (257, 4, height),
        (259, 3, 8 if deflate else 1),
        (262, 3, 2),
        (277, 3, channels),
    ]
    entries += [(278, 4, height), (279, 4, len(data)), (284, 3, planes)] + [(338, 3, extra)] * (channels == 4)
    count = len(entries) + 2
    bits_at = 8 + 2 + 12 * count + 4
    packed = [
        struct.pack(order + "HHI", tag, kind, 1) + struct.pack(order + ("I" if kind == 4 else "Hxx"), value)
        for tag, kind, value in entries
    ]
    packed.append(struct.pack(order + "HHII", 258, 3, channels, bits_at))
    packed.append(struct.pack(order + "HHII", 273, 4, 1, bits_at + 2 * channels))
    packed.sort(key=lambda entry: struct.unpack(order + "H", entry[:2]))
    head = (b"II" if order == "<" else b"MM") + struct.pack(order + "HI", 42, 8)
    directory = struct.pack(order + "H", count) + b"".join(packed) + struct.pack(order + "I", 0)
    return head + directory + struct.pack(order + "H" * channels, *[16] * channels) + data


def paletted(transparency: object = None) -> bytes:
    image = Image.frombytes("P", (WIDTH, HEIGHT), bytes(noise(HEIGHT, WIDTH) % 7))
    image.putpalette(bytes(noise(7, 3, seed=1)))
    return saved(image, "PNG", **({} if transparency is None else {"transparency": transparency}))


GREY, COLOUR = noise(HEIGHT, WIDTH), noise(HEIGHT, WIDTH, 3)
WIDE = noise(HEIGHT, WIDTH, 4, dtype=np.uint16)
BITS = Image.fromarray(GREY).convert("1")
# name: content, mode, dtype, whether there is alpha
KINDS: dict[str, tuple[bytes, str, str, bool]] = {
    "L png": (saved(Image.fromarray(GREY), "PNG"), "L", "uint8", False),
    "LA png": (saved(Image.fromarray(noise(HEIGHT, WIDTH, 2)), "PNG"), "LA", "uint8", True),
    "RGB png": (saved(Image.fromarray(COLOUR), "PNG"), "RGB", "uint8", False),
    "RGBA png": (saved(Image.fromarray(noise(HEIGHT, WIDTH, 4)), "PNG"), "RGBA", "uint8", True),
    "1 png": (saved(BITS, "PNG"), "1", "bool", False),
    "1 tiff": (saved(BITS, "TIFF", compression="group4"), "1", "bool", False),
    "P png": (paletted(), "P", "uint8", False),
    "P png, one index transparent": (paletted(3), "P", "uint8", True),
    "P png, half transparent": (paletted(bytes([255, 128, 0, 7, 255, 1])), "P", "uint8", True),
    "L16 png": (saved(Image.fromarray(WIDE[..., 0]), "PNG"), "L", "uint16", False),
    "LA16 png": (png(WIDE[..., :2], 4), "LA", "uint16", True),
    "RGB16 png": (png(WIDE[..., :3], 2), "RGB", "uint16", False),
    "RGBA16 png": (png(WIDE, 6), "RGBA", "uint16", True),
    "L tiff": (saved(Image.fromarray(GREY), "TIFF", compression="tiff_lzw"), "L", "uint8", False),
    "RGB tiff": (saved(Image.fromarray(COLOUR), "TIFF"), "RGB", "uint8", False),
    "RGBA tiff": (saved(Image.fromarray(noise(HEIGHT, WIDTH, 4)), "TIFF"), "RGBA", "uint8", True),
    "L16 tiff": (saved(Image.fromarray(WIDE[..., 0]), "TIFF"), "L", "uint16", False),
    "RGB16 tiff": (tiff(WIDE[..., :3]), "RGB", "uint16", False),
    "RGB16 tiff, Motorola": (tiff(WIDE[..., :3], ">"), "RGB", "uint16", False),
    "RGBA16 tiff, deflated": (tiff(WIDE, deflate=True), "RGBA", "uint16", True),
    "RGB16 tiff, deflated Motorola": (tiff(WIDE[..., :3], ">", True), "RGB", "uint16", False),
    "RGB webp": (saved(Image.fromarray(COLOUR), "WEBP", quality=50), "RGB", "uint8", False),
    "RGBA webp": (saved(Image.fromarray(noise(HEIGHT, WIDTH, 4)), "WEBP"), "RGBA", "uint8", True),
}  # fmt: skip


def levels_of(image: ImageFile) -> np.ndarray:
    """The integers of an image, (H, W, C) with alpha."""
    parts = [(image.pixels.double() + 1) / 2] + ([] if image.alpha is None else [image.alpha.double()])
    most = 65535 if image.dtype == "uint16" else 255
    scaled = torch.cat(parts).permute(1, 2, 0).numpy() * most
    assert np.abs(scaled - scaled.round()).max() < 0.02
    return scaled.round().astype(int)


# --- every kind of file -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_written_as_it_was_read_is_the_same_image(kind: str) -> None:
    content, mode, dtype, has_alpha = KINDS[kind]
    image = read_image(content)
    assert (image.mode, image.dtype, image.size) == (mode, dtype, (HEIGHT, WIDTH))
    assert image.pixels.dtype == torch.float32
    assert (image.alpha is not None) == has_alpha
    assert image.channels == (3 if mode in ("RGB", "RGBA", "P") else 1)
    assert -1 <= image.pixels.min() < image.pixels.max() <= 1
    again = read_image(encode_image(image.pixels, image))
    assert (again.mode, again.dtype, again.format) == (mode, dtype, image.format)
    assert np.array_equal(levels_of(again), levels_of(image))
    assert again.palette == image.palette


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "16" not in kind])
def test_eight_bits_are_those_pillow_reads(kind: str) -> None:
    content, mode, _, has_alpha = KINDS[kind]
    image = read_image(content)
    target = ("LA" if has_alpha else "L") if image.channels == 1 else ("RGBA" if has_alpha else "RGB")
    expected = np.asarray(Image.open(io.BytesIO(content)).convert(target)).reshape(HEIGHT, WIDTH, -1)
    assert np.array_equal(levels_of(image), expected)
    written = Image.open(io.BytesIO(encode_image(image.pixels, image)))
    assert written.mode == mode
    assert np.array_equal(np.asarray(written.convert(target)).reshape(HEIGHT, WIDTH, -1), expected)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "16" in kind])
def test_sixteen_bits_are_all_there(kind: str) -> None:
    image = read_image(KINDS[kind][0])
    channels = {"L": [0], "LA": [0, 1], "RGB": [0, 1, 2], "RGBA": [0, 1, 2, 3]}[image.mode]
    assert np.array_equal(levels_of(image), WIDE[..., channels])


@settings(max_examples=40)
@given(
    hnp.arrays(
        st.sampled_from([np.uint8, np.uint16]),
        st.tuples(st.integers(1, 6), st.integers(1, 6), st.integers(1, 4)),
    ),
    st.sampled_from(["PNG", "TIFF"]),
)
def test_any_levels_survive_any_lossless_format(levels: np.ndarray, format: str) -> None:
    most = np.iinfo(levels.dtype).max
    values = torch.from_numpy(levels / most).permute(2, 0, 1)
    has_alpha = len(values) in (2, 4)
    colour, alpha = (values[:-1], values[-1:].float()) if has_alpha else (values, None)
    source = ImageFile((2 * colour - 1).float(), alpha, "PNG", "", levels.dtype.name)
    again = read_image(encode_image(source.pixels, source, format))  # type: ignore[arg-type]
    found = levels_of(again)
    if found.shape[-1] == 4 and levels.shape[-1] == 2:  # grey with alpha in a 16-bit TIFF
        levels = levels[..., [0, 0, 0, 1]]
    assert np.array_equal(found, levels)


def test_a_jpeg_comes_back_a_jpeg_of_its_kind() -> None:
    smooth = np.linspace(0, 255, 16 * 24).reshape(16, 24).astype(np.uint8)
    for pixels, mode in ((smooth, "L"), (np.stack([smooth, smooth.T.reshape(16, 24), smooth], -1), "RGB")):
        image = read_image(saved(Image.fromarray(pixels), "JPEG", quality=90))
        written = Image.open(io.BytesIO(encode_image(image.pixels, image)))
        assert (written.format, written.mode) == ("JPEG", mode)
        again = read_image(encode_image(image.pixels, image))
        assert (again.pixels - image.pixels).square().mean().sqrt() < 0.02


def test_restored_colours_leave_the_palette_and_restored_greys_the_bits() -> None:
    for kind, mode in (("P png", "RGB"), ("P png, half transparent", "RGBA"), ("1 png", "L")):
        image = read_image(KINDS[kind][0])
        assert "elsewhere" in image.notes[0]
        restored = image.pixels * 0.9
        again = read_image(encode_image(restored, image))
        assert again.mode == mode
        assert (again.pixels - restored).abs().max() <= 1 / 255 + 1e-6


def test_a_transparent_colour_becomes_alpha() -> None:
    def chunk(key: bytes) -> bytes:
        return struct.pack(">I", len(key)) + b"tRNS" + key + struct.pack(">I", zlib.crc32(b"tRNS" + key))

    colour = WIDE[..., :3]
    wide = png(colour, 2, chunk(struct.pack(">HHH", *colour[2, 3].tolist())))
    grey = saved(Image.fromarray(GREY), "PNG", transparency=int(GREY[2, 3]))
    for content, same in ((wide, (colour == colour[2, 3]).all(-1)), (grey, GREY[2, 3] == GREY)):
        image = read_image(content)
        assert image.alpha is not None
        assert np.array_equal(image.alpha[0].numpy() == 0, same)
        assert "alpha" in image.notes[-1]
        again = read_image(encode_image(image.pixels, image))
        assert torch.equal(again.alpha, image.alpha)
        assert torch.equal(again.pixels, image.pixels)


def test_white_may_be_zero() -> None:
    for levels in (GREY, WIDE[..., 0]):
        content = saved(Image.fromarray(levels), "TIFF", tiffinfo={262: 0})
        image = read_image(content)
        # Pillow turns 8 bits over in writing and in reading, and 16 bits in neither.
        expected = levels if levels.dtype == np.uint8 else 65535 - levels
        assert np.array_equal(levels_of(image)[..., 0], expected)
        assert torch.equal(read_image(encode_image(image.pixels, image)).pixels, image.pixels)


# --- what files say beside their pixels -------------------------------------------------------------------


def described(orientation: int = 1) -> Image.Exif:
    exif = Image.Exif()
    exif[0x010F] = "Maker"
    exif[0x0112] = orientation
    exif[0x8769] = {0x9003: "2020:01:02 03:04:05", 0x927C: b"a maker's note"}
    exif[0x8825] = {1: "N", 2: (48.0, 51.0, 29.5)}
    return exif


@pytest.mark.parametrize("format", ["PNG", "JPEG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_applied_once_and_exif_survives(format: str, orientation: int) -> None:
    pixels = np.linspace(0, 255, 8 * 16 * 3).reshape(8, 16, 3).astype(np.uint8)
    lossless = {"lossless": True} if format == "WEBP" else {}
    content = saved(Image.fromarray(pixels), format, exif=described(orientation).tobytes(), **lossless)
    upright = np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(content))))
    image = read_image(content)
    assert np.array_equal(levels_of(image), upright)
    written = Image.open(io.BytesIO(encode_image(image.pixels, image)))
    exif = written.getexif()
    assert exif.get(0x0112, 1) == 1
    assert exif[0x010F] == "Maker"
    assert exif.get_ifd(0x8769)[0x9003] == "2020:01:02 03:04:05"
    assert bytes(exif.get_ifd(0x8769)[0x927C]) == b"a maker's note"
    assert exif.get_ifd(0x8825)[2] == (48.0, 51.0, 29.5)
    assert written.size == upright.shape[1::-1]
    if format != "JPEG":
        assert np.array_equal(np.asarray(written), upright)


@pytest.mark.parametrize("format", ["PNG", "JPEG", "TIFF"])
@pytest.mark.parametrize("kind", ["RGB png", "RGB16 png", "L16 png", "L png"])
def test_profile_resolution_and_xmp_survive(kind: str, format: str) -> None:
    xmp = b'<x:xmpmeta tiff:Orientation="6">about</x:xmpmeta>'
    source = read_image(KINDS[kind][0])
    about = replace(source.metadata, icc=SRGB, dpi=(300.0, 150.0), xmp=xmp, exif=described().tobytes())
    source = replace(source, metadata=about, dtype="uint8" if format == "JPEG" else source.dtype)
    image = read_image(encode_image(source.pixels, source, format))  # type: ignore[arg-type]
    for _ in range(2):  # read, and read after being written like what was read
        assert image.metadata.icc == SRGB
        # The source has been turned already: its XMP must not say so again, nor be obeyed the second time.
        assert image.size in ((HEIGHT, WIDTH), (WIDTH, HEIGHT))
        assert image.metadata.xmp == xmp.replace(b"6", b"1")
        across, down = image.metadata.dpi or (0, 0)
        assert sorted([across, down]) == pytest.approx([150, 300], rel=1e-3)
        assert b"Maker" in (image.metadata.exif or b"")
        size, image = image.size, read_image(encode_image(image.pixels, image))
        assert image.size == size


@pytest.mark.parametrize("format", ["PNG", "TIFF"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if "16" in kind and "L" not in kind])
def test_sixteen_bit_colour_comes_back_with_everything_beside_it(kind: str, format: str) -> None:
    source = read_image(KINDS[kind][0])
    about = replace(source.metadata, icc=SRGB, dpi=(300.0, 150.0), exif=described().tobytes())
    content = encode_image(source.pixels, replace(source, metadata=about), format)  # type: ignore[arg-type]
    image = read_image(content)
    assert (image.mode, image.dtype, image.format) == (source.mode, "uint16", format)
    assert np.array_equal(levels_of(image), levels_of(source))
    assert image.metadata.icc == SRGB
    assert image.metadata.dpi == pytest.approx((300, 150), rel=1e-3)
    exif = Image.Exif()
    exif.load(image.metadata.exif)
    assert exif[0x010F] == "Maker"
    assert exif.get_ifd(0x8769)[0x9003] == "2020:01:02 03:04:05"
    assert exif.get_ifd(0x8825)[2] == (48.0, 51.0, 29.5)


@pytest.mark.parametrize("channels", [3, 4])
@pytest.mark.parametrize("format", ["PNG", "TIFF"])
def test_other_programs_read_sixteen_bit_colour_as_it_was(channels: int, format: str) -> None:
    imagecodecs, tifffile = pytest.importorskip("imagecodecs"), pytest.importorskip("tifffile")
    image = read_image(tiff(WIDE[..., :channels]))
    content = encode_image(image.pixels, image, format)  # type: ignore[arg-type]
    decoded = imagecodecs.png_decode(content) if format == "PNG" else tifffile.imread(io.BytesIO(content))
    assert np.array_equal(decoded, WIDE[..., :channels])


@pytest.mark.parametrize("compression", ["lzw", "zlib", "zstd", "packbits"])
@pytest.mark.parametrize("options", [{}, {"rowsperstrip": 2}, {"tile": (16, 16)}, {"predictor": True}])
def test_sixteen_bit_tiff_of_any_layout_is_read(compression: str, options: dict[str, object]) -> None:
    tifffile = pytest.importorskip("tifffile")
    if "predictor" in options and compression == "packbits":
        pytest.skip("there are no predictors for it")
    file = io.BytesIO()
    tifffile.imwrite(
        file, WIDE[..., :3], photometric="rgb", compression=compression, metadata=None, **options
    )
    assert np.array_equal(levels_of(read_image(file.getvalue())), WIDE[..., :3])


@pytest.mark.parametrize(("missing", "kind"), [("imagecodecs", "RGB16 png"), ("tifffile", "RGB16 tiff")])
def test_a_missing_decoder_is_named_with_its_extra(
    missing: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ImageError, match=rf'{missing} is not installed: pip install "lavps\[tiff\]"'):
        read_image(KINDS[kind][0])
    for other in ("RGB png", "L16 png", "L16 tiff", "RGB tiff"):
        read_image(KINDS[other][0])


def test_text_survives() -> None:
    entries = PngImagePlugin.PngInfo()
    entries.add_text("Title", "Café")
    entries.add_itxt("Author", "山田")
    entries.add_text("Software", "x" * 2000, zip=True)
    image = read_image(saved(Image.fromarray(GREY), "PNG", pnginfo=entries))
    again = read_image(encode_image(image.pixels, image))
    assert dict(again.metadata.text) == {"Title": "Café", "Author": "山田", "Software": "x" * 2000}
    image = read_image(saved(Image.fromarray(GREY), "JPEG", comment="taken at noon"))
    assert Image.open(io.BytesIO(encode_image(image.pixels, image))).info["comment"] == b"taken at noon"


def test_cmyk_is_converted_and_said_to_be() -> None:
    inks = Image.new("CMYK", (8, 8), (0, 255, 255, 0))
    image = read_image(saved(inks, "JPEG", quality=100, icc_profile=SRGB))  # a profile for other than inks
    assert (image.mode, image.channels, image.metadata.icc) == ("RGB", 3, None)
    assert "CMYK" in image.notes[0]
    red, green, blue = image.pixels.mean((1, 2)).tolist()
    assert red > 0.9
    assert max(green, blue) < -0.9
    assert Image.open(io.BytesIO(encode_image(image.pixels, image))).mode == "RGB"


def test_broken_exif_does_not_lose_the_picture() -> None:
    content = saved(Image.fromarray(GREY), "PNG", exif=b"Exif\x00\x00II*\x00\xff\xff\xff\x7f")
    image = read_image(content)
    assert np.array_equal(levels_of(image)[..., 0], GREY)


# --- arrays -----------------------------------------------------------------------------------------------


def npy(array: np.ndarray, allow_pickle: bool = False) -> bytes:
    file = io.BytesIO()
    np.save(file, array, allow_pickle=allow_pickle)
    return file.getvalue()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "uint8", "uint16"])
@pytest.mark.parametrize("shape", [(5, 7), (1, 5, 7), (3, 5, 7)])
def test_arrays_come_back_as_they_were(dtype: str, shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    array = (random.uniform(-1.2, 1.2, shape) if "float" in dtype else random.integers(0, 256, shape)).astype(
        dtype
    )
    image = read_image(npy(array))
    assert (image.format, image.dtype, image.pixels.ndim) == ("NPY", dtype, 3)
    again = np.load(io.BytesIO(encode_image(image.pixels, image)))
    assert (again.dtype, again.shape) == (array.dtype, array.shape)
    np.testing.assert_allclose(again, array, rtol=1e-6)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (npy(np.full((4, 4), 200.0)), r"v / 127\.5 - 1"),
        (npy(np.full((4, 4), np.nan)), "finite"),
        (npy(np.zeros((4, 4, 3))), r"\(3, H, W\) are"),
        (npy(np.zeros((2, 3, 4, 4))), r"\(3, H, W\) are"),
        (npy(np.zeros((4, 4), np.int64)), "uint8 and uint16"),
        (npy(np.zeros((4, 4), np.complex64)), "uint8 and uint16"),
        (npy(np.array([[{}]]), allow_pickle=True), "no image"),
        (npy(np.zeros((4, 4)))[:-8], "incomplete"),
        (npy(np.zeros((1, 1))).replace(b"(1, 1)", b"(9999999, 99999999)"), "damaged|more than"),
        (npy(np.zeros((0, 3))), "3 x 0 pixels"),
    ],
    ids=range(10),
)  # fmt: skip
def test_arrays_that_are_no_images_are_refused(content: bytes, reason: str) -> None:
    with pytest.raises(ImageError, match=reason):
        read_image(content)


# --- what is refused --------------------------------------------------------------------------------------

FRAMES = [Image.new("RGB", (4, 4), colour) for colour in ("red", "green", "blue")]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (saved(FRAMES[0], "GIF"), "its content is GIF"),
        (saved(FRAMES[0], "BMP"), "its content is BMP"),
        (b"8BPS\x00\x01" + bytes(40), "its content is PSD"),
        (b'<?xml version="1.0"?><svg width="1e9"/>', "its content is SVG"),
        (b"\x00\x00\x00\x18ftypheic" + bytes(40), "HEIC"),
        (b"hello", "no image that is known here"),
        (saved(FRAMES[0], "PNG", save_all=True, append_images=FRAMES[1:]), "3 images"),
        (saved(FRAMES[0], "WEBP", save_all=True, append_images=FRAMES[1:]), "3 images"),
        (saved(FRAMES[0], "TIFF", save_all=True, append_images=FRAMES[1:]), "3 images"),
        (saved(Image.new("F", (4, 4)), "TIFF"), "mode F"),
        (saved(Image.new("LAB", (4, 4)), "TIFF"), "mode LAB"),
        (tiff(WIDE, extra=1), "premultiplied"),
        (tiff(WIDE[..., :3], planes=2), "in planes"),
    ],
    ids=range(14),
)  # fmt: skip
def test_what_is_no_single_picture_of_a_known_format_is_refused(
    content: bytes, reason: str, tmp_path: Path
) -> None:
    file = tmp_path / "photo.png"  # whatever its name says
    file.write_bytes(content)
    with pytest.raises(ImageError, match=reason) as refusal:
        read_image(file)
    assert str(file) in str(refusal.value)


@pytest.mark.parametrize("side", [20_000, 400_000])
def test_a_bomb_is_refused_by_its_header(side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    content = png(np.zeros((2, 2, 3), np.uint16), 2)
    header = struct.pack(">II", side, side) + content[24:29]
    bomb = content[:16] + header + struct.pack(">I", zlib.crc32(b"IHDR" + header)) + content[33:]
    monkeypatch.setattr(Image.Image, "load", lambda self: pytest.fail("it was decoded"))
    with pytest.raises(ImageError, match="pixels"):
        read_image(bomb)


def test_the_main_picture_of_a_phones_file_is_read() -> None:
    image = read_image(saved(FRAMES[0], "MPO", save_all=True, append_images=FRAMES[1:]))
    assert (image.format, image.size) == ("JPEG", (4, 4))
    assert image.pixels[0].mean() > 0.9  # the red one
    assert "main image" in image.notes[0]
    assert Image.open(io.BytesIO(encode_image(image.pixels, image))).format == "JPEG"


def test_the_bound_on_pixels_is_the_callers() -> None:
    content = KINDS["RGB png"][0]
    assert read_image(content, max_pixels=HEIGHT * WIDTH).size == (HEIGHT, WIDTH)
    with pytest.raises(ImageError, match=f"{WIDTH} x {HEIGHT} are more than"):
        read_image(content, max_pixels=HEIGHT * WIDTH - 1)


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_cut_in_half_is_refused(kind: str) -> None:
    content = KINDS[kind][0]
    with pytest.raises(ImageError, match=r"damaged or incomplete: .|not read: ."):
        read_image(content[: len(content) // 2])


@settings(max_examples=60)
@given(st.sampled_from(sorted(KINDS)), st.data())
def test_damage_is_an_error_of_ours_or_none(kind: str, data: st.DataObject) -> None:
    content = bytearray(KINDS[kind][0])
    for _ in range(3):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    try:
        image = read_image(bytes(content), max_pixels=10_000)
    except ImageError:
        return
    assert image.pixels.isfinite().all()


def test_a_missing_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_image(tmp_path / "none.png")


def test_a_misleading_name_is_noted(tmp_path: Path) -> None:
    (tmp_path / "photo.png").write_bytes(saved(Image.fromarray(GREY), "JPEG"))
    image = read_image(tmp_path / "photo.png")
    assert image.format == "JPEG"
    assert image.notes == ("the name ends in .png, the content is JPEG",)


# --- writing ----------------------------------------------------------------------------------------------


def test_alpha_follows_a_change_of_size() -> None:
    for kind in ("RGBA png", "LA16 png", "P png, half transparent"):
        image = read_image(KINDS[kind][0])
        opaque = replace(image, alpha=torch.ones_like(image.alpha))  # type: ignore[arg-type]
        larger = torch.nn.functional.interpolate(image.pixels[None], scale_factor=4)[0]
        again = read_image(encode_image(larger, image))
        assert again.size == (4 * HEIGHT, 4 * WIDTH)
        assert again.alpha is not None
        assert again.alpha.shape == (1, 4 * HEIGHT, 4 * WIDTH)
        assert float((again.alpha.mean() - image.alpha.mean()).abs()) < 0.05  # type: ignore[union-attr]
        everywhere = read_image(encode_image(larger, opaque)).alpha
        assert everywhere is None or bool((everywhere == 1).all())


def test_a_grey_file_restored_in_colour_is_grey_again() -> None:
    image = read_image(KINDS["L16 png"][0])
    colour = match_channels(image.pixels, 3)
    assert colour.shape == (3, HEIGHT, WIDTH)
    tint = torch.tensor([0.1, -0.1, 0.0]).reshape(3, 1, 1)
    again = read_image(encode_image(0.8 * colour + tint, image))
    assert again.channels == 1
    torch.testing.assert_close(again.pixels, 0.8 * image.pixels, atol=1e-4, rtol=0)


def test_three_copies_with_root_three_of_the_noise_count_once() -> None:
    y, noise_std = torch.tensor([[[0.3]]]), 0.2
    copies, wider = match_channels(y, 3)[None], lavps.GaussianNoise(3**0.5 * noise_std)
    three = lavps.InverseProblem(copies, lavps.operators.Identity(), wider, (3, 1, 1))
    one = lavps.InverseProblem(y[None], lavps.operators.Identity(), lavps.GaussianNoise(noise_std), (1, 1, 1))

    def rise(problem: lavps.InverseProblem, colour: list[float]) -> torch.Tensor:
        start = torch.zeros(1, *problem.image_shape)
        end = torch.tensor(colour).reshape(start.shape)
        return problem.log_likelihood(end) - problem.log_likelihood(start)

    torch.testing.assert_close(rise(three, [0.4, 0.4, 0.4]), rise(one, [0.4]))


def test_colours_are_not_given_to_a_grey_prior() -> None:
    with pytest.raises(ImageError, match="use a colour prior"):
        match_channels(torch.zeros(3, 4, 4), 1)


@pytest.mark.parametrize(
    ("pixels", "kind", "format", "reason"),
    [
        (torch.zeros(1, 3, 4, 4), "RGB png", "PNG", "one at a time"),
        (torch.zeros(4, 4, 4), "RGB png", "PNG", "one at a time"),
        (torch.full((3, 4, 4), torch.nan), "RGB png", "PNG", "NaN"),
        (torch.zeros(1, 4, 4), "RGB png", "PNG", "restored to a grey one"),
        (torch.zeros(3, 4, 4), "RGBA png", "JPEG", "no transparency"),
        (torch.zeros(3, 4, 4), "RGB16 png", "JPEG", "holds 8 bits"),
        (torch.zeros(3, 4, 4), "RGB16 png", "WEBP", "holds 8 bits"),
        (torch.zeros(3, 1, 20_000), "RGB png", "WEBP", "cannot be written as WEBP"),
    ],
    ids=range(8),
)
def test_what_a_file_cannot_hold_is_refused(
    pixels: torch.Tensor, kind: str, format: str, reason: str
) -> None:
    with pytest.raises(ImageError, match=reason):
        encode_image(pixels, read_image(KINDS[kind][0]), format)  # type: ignore[arg-type]


def test_values_outside_the_range_are_clipped_not_wrapped() -> None:
    image = read_image(KINDS["RGB16 png"][0])
    again = read_image(encode_image(torch.tensor([-3.0, 0.0, 3.0]).reshape(3, 1, 1), image))
    assert levels_of(again).flatten().tolist() == [0, 32768, 65535]


def test_the_name_decides_the_format(tmp_path: Path) -> None:
    image = read_image(KINDS["RGB png"][0])
    for name, format in (("a.jpg", "JPEG"), ("a.TIF", "TIFF"), ("a.webp", "WEBP"), ("a.npy", "NPY")):
        write_image(tmp_path / name, image.pixels, image)
        assert read_image(tmp_path / name).format == format
    torch.testing.assert_close(read_image(tmp_path / "a.npy").pixels, image.pixels)
    floats = read_image(tmp_path / "a.npy")
    write_image(tmp_path / "fine.png", floats.pixels, floats)
    assert read_image(tmp_path / "fine.png").depth == 16
    with pytest.raises(ImageError, match=r"must end in one of \.png"):
        write_image(tmp_path / "a.gif", image.pixels, image)


@pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.npy"])
@pytest.mark.parametrize("shape", [(3, 8, 8), (1, 8, 8), (1, 3, 8, 8)])
def test_pixels_are_written_without_a_source(tmp_path: Path, name: str, shape: tuple[int, ...]) -> None:
    x = torch.linspace(-1, 1, 8).expand(shape)
    write_image(tmp_path / name, x)
    written = read_image(tmp_path / name)
    assert written.pixels.shape == shape[-3:]
    torch.testing.assert_close(written.pixels, x.reshape(shape[-3:]), atol=0.02, rtol=0)


def test_pixels_of_another_range_are_refused_or_reported(tmp_path: Path) -> None:
    x = torch.linspace(0, 1, 64).reshape(1, 8, 8)
    with pytest.raises(ImageError, match=r"for \[0, 255\], write x / 127.5 - 1"):
        write_image(tmp_path / "a.png", 255 * x)
    with pytest.raises(ImageError, match=r"got torch\.uint8"):
        write_image(tmp_path / "a.png", (255 * x).to(torch.uint8))
    with pytest.warns(UserWarning, match=r"write 2 \* x - 1"):
        write_image(tmp_path / "a.png", x)


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_an_interrupted_write_leaves_the_old_file_and_no_other(
    error: type[BaseException], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: int) -> None:
        raise error

    file = tmp_path / "out.png"
    file.write_bytes(b"old")
    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(error):
        write_atomically(file, b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["out.png"]
    assert file.read_bytes() == b"old"
    monkeypatch.undo()
    write_atomically(file, b"new")
    assert file.read_bytes() == b"new"


def test_file_names_of_images_are_recognised_by_suffix() -> None:
    assert is_image("a.PNG")
    assert is_image("folder/a.jpeg")
    assert not is_image(".a.png")
    assert not is_image("a.txt")
    assert not is_image("a.tif", {".png"})
    assert DEFAULT_SUFFIX == {"PNG": ".png", "JPEG": ".jpg", "TIFF": ".tif", "WEBP": ".webp", "NPY": ".npy"}
