#!/usr/bin/env python3
"""Makes tests/data/recipe/images/ from the published toolkit's image vectors and from Pillow.

    make_image_vectors.py VECTORS OUT      VECTORS: the folder with image_cases.json and images/; needs Pillow, NumPy

The large arrays of the vectors become XXH3-128 hashes (of their bytes, C order). Files in every format that
Nocturne reads are written with Pillow, each NAME.EXTENSION beside NAME.EXTENSION.expected.png, the pixels that it must give.
"""

import ctypes
import ctypes.util
import io
import json
import pathlib
import shutil
import struct
import sys
import zlib

import numpy as np
from PIL import Image, ImageOps

PATCH = 14
BACKDROP = 253


# ---- hashes ----


class Hash128(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]


library = ctypes.CDLL(ctypes.util.find_library("xxhash") or "libxxhash.so.0")
library.XXH3_128bits.restype = Hash128
library.XXH3_128bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]


def digits(array):
    data = np.ascontiguousarray(array).tobytes()
    value = library.XXH3_128bits(data, len(data))
    return f"{value.high:016x}{value.low:016x}"


# ---- what is expected ----


def blend(rgba):
    rgba = rgba.astype(np.int64)
    alpha = rgba[..., 3:]
    return ((rgba[..., :3] * alpha + BACKDROP * (255 - alpha) + 127) // 255).astype(np.uint8)


def upright_rgb(image):
    """Pixels as Nocturne decodes them, from Pillow's decoding."""
    if image.mode.startswith("I"):
        values = (np.asarray(image).astype(np.int64) * 255 + 32767) // 65535
        return np.repeat(values.astype(np.uint8)[..., None], 3, axis=2)
    image = ImageOps.exif_transpose(image)
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        return blend(np.asarray(image.convert("RGBA")))
    return np.asarray(image.convert("RGB"))


def fit(rgb, width, height):
    image = Image.fromarray(rgb)
    return np.asarray(ImageOps.pad(image, (width, height), method=Image.BICUBIC, color=(127, 127, 127)))


def patches(rgb):
    rows, columns = rgb.shape[0] // PATCH, rgb.shape[1] // PATCH
    values = ((rgb.astype(np.float32) / np.float32(255) - np.float32(0.5)) / np.float32(0.5)).astype(np.float32)
    values = values.reshape(rows, PATCH, columns, PATCH, 3).transpose(0, 2, 4, 1, 3)
    bits = np.ascontiguousarray(values).view(np.uint32)
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & np.uint32(0xFFFF0000)
    return bits.astype(np.uint32).view(np.float32)


def pattern(width, height):
    """A picture that the test's C code makes too: gradients, edges and noise."""
    y, x = np.mgrid[0:height, 0:width].astype(np.uint32)
    noise = (x * np.uint32(2654435761) ^ y * np.uint32(2246822519)) >> np.uint32(24)
    red = np.where((x // 7 + y // 5) % 2 == 0, noise, 255 - noise // 4)
    green = (x * 3 + y * 2) % 256
    blue = np.where(noise > 200, 255, (x * y) % 256)
    return np.stack([red, green, blue], axis=2).astype(np.uint8)


# ---- the toolkit's vectors ----


def convert_cases(source, out):
    cases = json.loads((source / "image_cases.json").read_text())
    images = []
    for case in cases["images"]:
        model = case["model_side"]
        model_rgb = np.load(source / model["rgb_u8"])
        for name in (case["file"], case["package"]["webp"]):
            shutil.copyfile(source / name, out / pathlib.Path(name).name)
        png = Image.open(source / case["file"])
        # The vectors' model side drops alpha and clips 16 bits; Nocturne starts from what the toolkit shows the model.
        plain = np.asarray(png.convert("RGB"))
        assert (fit(plain, model["best_width"], model["best_height"]) == model_rgb).all()
        if "patches_f32" in model:
            stored = np.load(source / model["patches_f32"]).view(np.uint32)
            stored = (stored + 0x7FFF + (stored >> 16 & 1)) & np.uint32(0xFFFF0000)
            assert (stored.view(np.float32).ravel() == patches(model_rgb).ravel()).all()
        decoded = upright_rgb(png)
        same = bool((plain == decoded).all())
        if not same:
            Image.fromarray(plain).save(out / f"{case['name']}.plain.ppm")
        fitted = fit(decoded, model["best_width"], model["best_height"])
        webp = np.asarray(Image.open(source / case["package"]["webp"]).convert("RGB"))
        images.append(
            {
                "name": case["name"],
                "plain": not same,
                "tokens": case["package"]["token_count"],
                "width": model["best_width"],
                "height": model["best_height"],
                "patch_rows": model["n_vit_h"],
                "patch_columns": model["n_vit_w"],
                "token_rows": model["n_llm_h"],
                "token_columns": model["n_llm_w"],
                "model_rgb": digits(model_rgb),
                "model_patches": digits(patches(model_rgb)),
                "decoded": digits(decoded),
                "fitted": digits(fitted),
                "patches": digits(patches(fitted)),
                "webp": digits(webp),
            }
        )
    return {
        "plans": cases["plans"],
        "sweep": cases["token_count_sweep_w_h_tokens"],
        "bad_inputs": [{"name": bad["name"], "bytes": bad["bytes"]} for bad in cases["bad_inputs"]],
        "images": images,
    }


# [width, height, planned width, planned height]: growing, shrinking, one side only, hardly at all, extreme shapes.
FITS = [
    (1, 1, 546, 546), (2, 165, 70, 4942), (165, 2, 4942, 70), (544, 544, 546, 546), (546, 100, 546, 546),
    (100, 546, 546, 546), (640, 480, 644, 490), (743, 1321, 742, 1302), (1023, 767, 1022, 770), (1500, 1000, 1512, 1008),
    (2000, 1000, 1848, 924), (2500, 2001, 1414, 1134), (3001, 40, 3010, 98), (31, 3000, 56, 3010), (4000, 31, 1022, 70),
    (17, 23, 490, 658), (3999, 2, 16380, 28), (5, 8192, 42, 16380), (8192, 3, 16380, 28), (1301, 1300, 1302, 1302),
    (545, 543, 56, 70), (701, 703, 14, 14),
]  # fmt: skip


def make_fits():
    return [[*sizes, digits(fit(pattern(*sizes[:2]), *sizes[2:]))] for sizes in FITS]


# ---- files in every format ----


def png_chunk(name, data):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def write_png(path, width, height, depth, color, lines, extra=b""):
    """A PNG of any colour type: `lines` are packed rows."""
    raw = b"".join(b"\0" + bytes(line) for line in lines)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0))
        + extra
        + png_chunk(b"IDAT", zlib.compress(raw, 9))
        + png_chunk(b"IEND", b"")
    )


def tiff(orientation, big_endian):
    order = ">" if big_endian else "<"
    head = b"MM\0*" if big_endian else b"II*\0"
    entries = struct.pack(order + "HHIHH", 0x010F, 2, 1, 0, 0) + struct.pack(order + "HHIHH", 0x0112, 3, 1, orientation, 0)
    return head + struct.pack(order + "IH", 8, 2) + entries + struct.pack(order + "I", 0)


class Formats:
    def __init__(self, folder):
        self.folder = folder
        self.entries = []
        folder.mkdir(exist_ok=True)

    def path(self, name):
        return self.folder / name

    def expect(self, name, rgb, tolerance=0):
        Image.fromarray(np.ascontiguousarray(rgb)).save(self.folder / (name + ".expected.png"), optimize=True)
        self.entries.append({"file": name, "tolerance": tolerance})

    def save(self, name, image, expected=None, tolerance=0, **options):
        image.save(self.path(name), **options)
        if expected is None:
            expected = upright_rgb(Image.open(self.path(name)))
        self.expect(name, expected, tolerance)


def make_png(formats, rgb):
    height, width = rgb.shape[:2]
    grey = rgb[..., 1]
    alpha = rgb[..., 0]
    for depth in (1, 2, 4):
        levels = (grey >> (8 - depth)).astype(np.uint8)
        bits = np.unpackbits(levels[..., None], axis=2)[..., 8 - depth :].reshape(height, -1)
        name = f"grey{depth}.png"
        write_png(formats.path(name), width, height, depth, 0, np.packbits(bits, axis=1))
        shown = (levels.astype(np.int64) * 255 // (2**depth - 1)).astype(np.uint8)
        formats.expect(name, np.repeat(shown[..., None], 3, axis=2))
    key = int(grey[3, 4])
    write_png(formats.path("grey8_key.png"), width, height, 8, 0, grey, png_chunk(b"tRNS", struct.pack(">H", key)))
    shown = np.where(grey == key, BACKDROP, grey).astype(np.uint8)
    formats.expect("grey8_key.png", np.repeat(shown[..., None], 3, axis=2))
    deep = rgb.astype(np.uint16) * 251 + 17
    scaled = ((deep.astype(np.int64) * 255 + 32767) // 65535).astype(np.uint8)
    write_png(formats.path("rgb16.png"), width, height, 16, 2, [line.astype(">u2").tobytes() for line in deep])
    formats.expect("rgb16.png", scaled)
    deep_alpha = alpha.astype(np.uint16) * 257
    four = np.concatenate([deep, deep_alpha[..., None]], axis=2)
    write_png(formats.path("rgba16.png"), width, height, 16, 6, [line.astype(">u2").tobytes() for line in four])
    formats.expect("rgba16.png", blend(np.concatenate([scaled, alpha[..., None]], axis=2)))
    palette = Image.fromarray(rgb).quantize(16)
    shown = np.asarray(palette.convert("RGB"))
    formats.save("palette.png", palette, shown)
    clear = bytes([0, 128, 255])
    alphas = np.array([*clear, *[255] * 253], dtype=np.uint8)[np.asarray(palette)]
    expected = blend(np.concatenate([shown, alphas[..., None]], axis=2))
    formats.save("palette_alpha.png", palette, expected, transparency=clear)
    write_interlaced(formats, rgb)
    extra = png_chunk(b"iCCP", b"x\0\0" + zlib.compress(b"\0" * (1 << 20))) + png_chunk(b"gAMA", struct.pack(">I", 100000))
    extra += png_chunk(b"tEXt", b"Comment\0hello") + png_chunk(b"eXIf", tiff(6, True))
    write_png(formats.path("chunks_turned.png"), width, height, 8, 2, rgb, extra)
    formats.expect("chunks_turned.png", np.rot90(rgb, -1))
    frames = [Image.fromarray(rgb), Image.fromarray(255 - rgb)]
    formats.save("animated.png", frames[0], rgb, save_all=True, append_images=frames[1:])


def write_interlaced(formats, rgb):
    """Adam7, RGBA."""
    height, width = rgb.shape[:2]
    rgba = np.concatenate([rgb, rgb[..., :1]], axis=2)
    raw = b""
    for left, top, across, down in [
        (0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2),
    ]:  # fmt: skip
        part = rgba[top::down, left::across]
        if part.size:
            raw += b"".join(b"\0" + line.tobytes() for line in part)
    path = formats.path("interlaced_alpha.png")
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 1))
        + png_chunk(b"IDAT", zlib.compress(raw, 9))
        + png_chunk(b"IEND", b"")
    )
    formats.expect(path.name, blend(rgba))


def make_jpeg(formats, rgb):
    # Decoders may differ by a level or two in their transforms.
    image = Image.fromarray(rgb)
    formats.save("baseline.jpg", image, tolerance=2, quality=90)
    formats.save("progressive.jpg", image, tolerance=2, quality=90, progressive=True)
    formats.save("grey.jpg", image.convert("L"), tolerance=2, quality=90)
    formats.save("full_chroma_profile.jpg", image, tolerance=2, quality=90, subsampling=0, icc_profile=b"\0" * 3000)
    black = Image.fromarray(np.ascontiguousarray(255 - rgb[::-1, :, 0]))
    inks = Image.merge("CMYK", [*image.split(), black])
    inks.save(formats.path("inks.jpg"), quality=95, subsampling=0)
    shown = np.asarray(Image.open(formats.path("inks.jpg")).convert("CMYK")).astype(np.int64)
    expected = ((255 - shown[..., :3]) * (255 - shown[..., 3:]) + 127) // 255
    formats.expect("inks.jpg", expected.astype(np.uint8), 2)
    for orientation in range(1, 9):
        exif = b"Exif\0\0" + tiff(orientation, orientation % 2 == 0)
        formats.save(f"turned{orientation}.jpg", image, tolerance=2, quality=90, exif=exif)


def make_webp(formats, rgb):
    image = Image.fromarray(rgb)
    rgba = Image.fromarray(np.concatenate([rgb, rgb[..., :1]], axis=2))
    formats.save("lossy.webp", image, quality=80)
    formats.save("lossless.webp", image, rgb, lossless=True)
    formats.save("lossy_alpha.webp", rgba, quality=80)
    formats.save("lossless_alpha.webp", rgba, blend(np.asarray(rgba)), lossless=True, exact=True)
    formats.save("turned.webp", image, np.rot90(rgb, 1), lossless=True, exif=b"Exif\0\0" + tiff(8, True))
    other = Image.fromarray(255 - rgb)
    formats.save("animated.webp", image, rgb, lossless=True, save_all=True, append_images=[other])


def gif_with_offset_frame(palette_image):
    """A screen of 32 x 30 with the frame at (5, 7); the second frame covers another place."""
    data = io.BytesIO()
    palette_image.save(data, "GIF", interlace=False)
    data = bytearray(data.getvalue())
    data[6:10] = struct.pack("<HH", 32, 30)
    flags = data[10]
    at = 13 + (3 << ((flags & 7) + 1) if flags & 0x80 else 0)
    while data[at] == 0x21:
        at += 2
        while data[at]:
            at += data[at] + 1
        at += 1
    assert data[at] == 0x2C
    data[at + 1 : at + 5] = struct.pack("<HH", 5, 7)
    return bytes(data)


def make_gif(formats, rgb):
    height, width = rgb.shape[:2]
    palette = Image.fromarray(rgb).quantize(16)
    shown = np.asarray(palette.convert("RGB"))
    formats.save("plain.gif", palette, shown, interlace=False)
    formats.save("interlaced.gif", palette, shown, interlace=True)
    clear = shown.copy()
    clear[np.asarray(palette) == 3] = BACKDROP
    formats.save("clear.gif", palette, clear, transparency=3, interlace=False)
    other = Image.fromarray(255 - rgb).quantize(16)
    formats.save("animated.gif", palette, shown, save_all=True, append_images=[other], loop=0)
    formats.path("offset.gif").write_bytes(gif_with_offset_frame(palette))
    canvas = np.full((30, 32, 3), BACKDROP, dtype=np.uint8)
    canvas[7 : 7 + height, 5 : 5 + width] = shown
    formats.expect("offset.gif", canvas)


def make_formats(out):
    formats = Formats(out / "formats")
    rgb = pattern(19, 13)
    rgb[..., 0] = np.linspace(0, 255, 19).astype(np.uint8)  # also serves as alpha: 0 and 255 among it
    make_png(formats, rgb)
    make_webp(formats, rgb)
    make_gif(formats, rgb)
    y, x = np.mgrid[0:21, 0:27]
    smooth = np.stack([x * 9, y * 12, 255 - x * 4 - y * 5], axis=2).astype(np.uint8)
    smooth[:6, :8] = (250, 20, 30)  # a corner that tells the orientations apart
    make_jpeg(formats, smooth)
    return formats.entries


def main():
    source, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    expected = convert_cases(source, out)
    expected["fits"] = make_fits()
    expected["formats"] = make_formats(out)
    lines = [f"{json.dumps(key)}: [\n" + ",\n".join(json.dumps(value) for value in values) + "\n]" for key, values in expected.items()]
    (out / "expected.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main()
