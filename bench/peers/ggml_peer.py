#!/usr/bin/env python3
"""Speed of ggml's product with repacked MXFP4 weights, llama.cpp's on a CPU: one JSON line a measurement. Run by ../compare.py.

    ggml_peer.py --threads N --tokens 1,8,64,512 ROWSxCOLUMNS ...

Takes the libraries of the Python package ggml (ggml-python on PyPI, which pip builds for this processor) or of
llama_cpp. Inputs are float32, which ggml rounds to 8-bit integers; a graph multiplies by as many copies of the weight
as make it come from memory.
"""
import argparse
import ctypes
import importlib.util
import json
import pathlib
import random
import sys
import time

NOT_INSTALLED = 77
TYPE_F32, TYPE_MXFP4, BLOCK_VALUES, BLOCK_BYTES = 0, 39, 32, 17
ROTATED_BYTES = 160 << 20
SECONDS = 1.0

pointer, size = ctypes.c_void_p, ctypes.c_size_t


class InitParameters(ctypes.Structure):
    _fields_ = [("mem_size", size), ("mem_buffer", pointer), ("no_alloc", ctypes.c_bool)]


SIGNATURES = {  # name: (result, arguments)
    "ggml_init": (pointer, [InitParameters]),
    "ggml_free": (None, [pointer]),
    "ggml_tensor_overhead": (size, []),
    "ggml_graph_overhead_custom": (size, [size, ctypes.c_bool]),
    "ggml_new_tensor_2d": (pointer, [pointer, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]),
    "ggml_nbytes": (size, [pointer]),
    "ggml_mul_mat": (pointer, [pointer, pointer, pointer]),
    "ggml_new_graph_custom": (pointer, [pointer, size, ctypes.c_bool]),
    "ggml_build_forward_expand": (None, [pointer, pointer]),
    "ggml_backend_cpu_init": (pointer, []),
    "ggml_backend_cpu_reg": (pointer, []),
    "ggml_backend_cpu_set_n_threads": (None, [pointer, ctypes.c_int]),
    "ggml_backend_reg_dev_get": (pointer, [pointer, size]),
    "ggml_backend_reg_get_proc_address": (pointer, [pointer, ctypes.c_char_p]),
    "ggml_backend_buft_name": (ctypes.c_char_p, [pointer]),
    "ggml_backend_alloc_ctx_tensors_from_buft": (pointer, [pointer, pointer]),
    "ggml_backend_alloc_ctx_tensors": (pointer, [pointer, pointer]),
    "ggml_backend_tensor_set": (None, [pointer, ctypes.c_char_p, size, size]),
    "ggml_backend_graph_compute": (ctypes.c_int, [pointer, pointer]),
    "ggml_backend_buffer_free": (None, [pointer]),
}


def load_libraries():
    """An object with the functions above, wherever they come from."""
    for package in ("ggml", "llama_cpp"):
        found = importlib.util.find_spec(package)
        if found is not None and found.origin:
            break
    else:
        print("ggml is not installed: pip install ggml-python (it is built for this processor, some minutes)",
              file=sys.stderr)
        sys.exit(NOT_INSTALLED)
    folder = pathlib.Path(found.origin).parent / "lib"
    loaded = [ctypes.CDLL(str(next(folder.glob(name))), mode=ctypes.RTLD_GLOBAL)
              for name in ("libggml-base.so*", "libggml-cpu.so*")]

    class Library:
        pass

    library = Library()
    for name, (result, arguments) in SIGNATURES.items():
        function = next(getattr(one, name) for one in loaded if hasattr(one, name))
        function.restype, function.argtypes = result, arguments
        setattr(library, name, function)
    return library


def find_repack(ggml):
    """The buffer type whose tensors are stored in the order in which ggml's fast products read them."""
    register = ggml.ggml_backend_cpu_reg()
    address = ggml.ggml_backend_reg_get_proc_address(register, b"ggml_backend_dev_get_extra_bufts")
    types = ctypes.CFUNCTYPE(ctypes.POINTER(pointer), pointer)(address)(ggml.ggml_backend_reg_dev_get(register, 0))
    index = 0
    while types and types[index]:
        if ggml.ggml_backend_buft_name(types[index]) == b"CPU_REPACK":
            return types[index]
        index += 1
    sys.exit("ggml: this build has no repacked weights")


def new_context(ggml, tensors, graph_nodes=0):
    bytes_needed = tensors * ggml.ggml_tensor_overhead() + 4096
    if graph_nodes:
        bytes_needed += ggml.ggml_graph_overhead_custom(graph_nodes, False)
    return ggml.ggml_init(InitParameters(bytes_needed, None, True))


def weight_bytes(rows, columns, generator):
    """Blocks of a scale near 2^-5 and 16 bytes of codes."""
    blocks = bytearray(generator.randbytes(rows * columns // BLOCK_VALUES * BLOCK_BYTES))
    blocks[::BLOCK_BYTES] = bytes(generator.choices(range(120, 124), k=len(blocks) // BLOCK_BYTES))
    return bytes(blocks)


class Product:
    """A graph of products of one input with each copy of a weight."""

    def __init__(self, ggml, backend, rows, columns, tokens):
        self.ggml, self.backend = ggml, backend
        one = rows * columns // BLOCK_VALUES * BLOCK_BYTES
        self.copies = ROTATED_BYTES // one + 1 if tokens < 64 else 4
        self.weights, self.values = new_context(ggml, self.copies), new_context(ggml, self.copies + 2, self.copies + 8)
        weights = [ggml.ggml_new_tensor_2d(self.weights, TYPE_MXFP4, columns, rows) for _ in range(self.copies)]
        self.buffers = [ggml.ggml_backend_alloc_ctx_tensors_from_buft(self.weights, find_repack(ggml))]
        generator = random.Random(7)
        content = weight_bytes(rows, columns, generator)
        for weight in weights:
            ggml.ggml_backend_tensor_set(weight, content, 0, len(content))
        x = ggml.ggml_new_tensor_2d(self.values, TYPE_F32, columns, tokens)
        self.graph = ggml.ggml_new_graph_custom(self.values, self.copies + 8, False)
        for weight in weights:
            ggml.ggml_build_forward_expand(self.graph, ggml.ggml_mul_mat(self.values, weight, x))
        self.buffers.append(ggml.ggml_backend_alloc_ctx_tensors(self.values, backend))
        values = (ctypes.c_float * (columns * tokens))(*(generator.uniform(-1, 1) for _ in range(columns * tokens)))
        ggml.ggml_backend_tensor_set(x, bytes(values), 0, ctypes.sizeof(values))

    def seconds(self, clock):
        """Of one product: the median of the graph's runs."""
        times, begin = [], time.monotonic()
        self.ggml.ggml_backend_graph_compute(self.backend, self.graph)
        while len(times) < 3 or time.monotonic() - begin < SECONDS:
            start = clock()
            if self.ggml.ggml_backend_graph_compute(self.backend, self.graph) != 0:
                sys.exit("ggml: the product failed")
            times.append(clock() - start)
        return sorted(times)[len(times) // 2] / self.copies

    def free(self):
        for buffer in self.buffers:
            self.ggml.ggml_backend_buffer_free(buffer)
        self.ggml.ggml_free(self.weights)
        self.ggml.ggml_free(self.values)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--tokens", default="1,8,64,512")
    parser.add_argument("--processor-time", action="store_true", help="of one thread, on a machine that others use too")
    parser.add_argument("shapes", nargs="+", metavar="ROWSxCOLUMNS")
    arguments = parser.parse_args()
    ggml = load_libraries()
    clock = time.process_time if arguments.processor_time else time.perf_counter
    backend = ggml.ggml_backend_cpu_init()
    ggml.ggml_backend_cpu_set_n_threads(backend, arguments.threads)
    for shape in arguments.shapes:
        rows, columns = (int(text) for text in shape.split("x"))
        for tokens in [int(text) for text in arguments.tokens.split(",")]:
            product = Product(ggml, backend, rows, columns, tokens)
            seconds = product.seconds(clock)
            product.free()
            print(json.dumps({"shape": shape, "tokens": tokens, "microseconds": seconds * 1e6,
                              "gflops": 2 * tokens * rows * columns / seconds * 1e-9}), flush=True)


if __name__ == "__main__":
    main()
