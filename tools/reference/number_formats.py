"""BF16, FP8 E4M3 and FP4 E2M1 codes to float32 values and back, in NumPy alone.

Encoding rounds to the nearest value, ties to the even code. BF16 keeps infinities; E4M3 (the variant without
infinities) has only one NaN a sign, and what rounds beyond 448 becomes that NaN: clip before where saturation is wanted.
"""
import numpy as np

FP4_VALUES = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6], np.float32)

# An E2M1 code as a function of the float32 bits. The thresholds between values, 0.25 to 5, have two mantissa bits, and
# a magnitude must be above one to round up: so the upper 11 bits of (bits - 1) decide. Zeros wrap into slots of NaNs.
_FP4_CODE = np.zeros(2048, np.uint8)


def _fill_fp4_code():
    upper = np.arange(2048, dtype=np.uint32)
    magnitude = ((upper & 1023) << 21).view(np.float32)
    code = sum((magnitude >= t).astype(np.uint8) for t in (.25, .75, 1.25, 1.75, 2.5, 3.5, 5))
    _FP4_CODE[:] = code | (upper >> 10 << 3).astype(np.uint8)
    _FP4_CODE[[1023, 2047]] = 0


def _fp8_values():
    code = np.arange(128)
    exponent, mantissa = code >> 3, code & 7
    value = np.where(exponent == 0, np.ldexp(mantissa / 8, -6), np.ldexp(1 + mantissa / 8, exponent - 7))
    value[127] = np.nan
    return np.concatenate([value, -value]).astype(np.float32)


_fill_fp4_code()
FP8_VALUES = _fp8_values()


def fp8_decode(code):
    """uint8 E4M3 codes -> float32."""
    return FP8_VALUES[code]


def fp8_encode(x):
    """float32 -> uint8 E4M3 codes."""
    x = np.asarray(x, np.float32)
    bits = x.view(np.uint32)
    magnitude = bits & np.uint32(0x7fffffff)
    # Normal results: drop 20 mantissa bits, move the exponent's bias from 127 to 7.
    normal = ((magnitude + np.uint32(0x7ffff) + (magnitude >> 20 & 1)) >> 20).astype(np.int32) - (120 << 3)
    # Below 2**-6 codes are multiples of 2**-9: adding 2**14 leaves those multiples in the low mantissa bits.
    small = np.minimum(magnitude, np.uint32(0x3c800000)).view(np.float32) + np.float32(2 ** 14)
    code = np.where(magnitude < 0x3c800000, small.view(np.int32) - 0x46800000, np.minimum(normal, 127))
    return (code | (bits >> 24 & 0x80).astype(np.int32)).astype(np.uint8)


def bf16_decode(code):
    """uint16 BF16 codes -> float32."""
    return (np.asarray(code).astype(np.uint32) << 16).view(np.float32)


def bf16_encode(x):
    """float32 -> uint16 BF16 codes."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7fff) + (bits >> 16 & 1)) >> 16
    nan = (bits & np.uint32(0x7fffffff)) > 0x7f800000
    return np.where(nan, bits >> 16 & 0x8000 | 0x7fc0, rounded).astype(np.uint16)


def fp4_encode_ties_down(x):
    """float32 -> uint8 E2M1 codes, a tie going to the smaller magnitude (how the generator packs random weights)."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    return _FP4_CODE[(bits - np.uint32(1)) >> 21]
