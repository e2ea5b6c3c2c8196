# A recipe for Spack (0.21 or newer). In the source folder:
#
#     spack repo add docs/spack
#     spack dev-build nocturne@main
#
# or, without a checkout, set `git` to where yours is cloned from and run `spack install nocturne@main`.
from spack.package import *


class Nocturne(CMakePackage, CudaPackage):
    """Offline inference of DeepSeek-V4.1-Flash as batch jobs on clusters."""

    git = ""

    license("Apache-2.0")
    version("main", branch="main")

    depends_on("c", type="build")
    depends_on("cxx", type="build", when="+cuda")
    depends_on("cmake@3.20:", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("mpi")
    depends_on("hdf5@1.10:~mpi")
    depends_on("hwloc@2:")
    depends_on("xxhash")
    depends_on("libpng")
    depends_on("libjpeg")
    depends_on("libwebp")
    depends_on("giflib@5.1:")
    depends_on("lmdb")
    depends_on("openssl")
    with when("+cuda"):
        depends_on("cuda@12.8:")
        depends_on("nccl@2.18:")

    def cmake_args(self):
        return [
            self.define_from_variant("NOCTURNE_CUDA", "cuda"),
            self.define("NOCTURNE_TESTS", False),
            self.define("NOCTURNE_BENCH", False),
        ]
