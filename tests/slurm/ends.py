"""tests/faults/ends.py with ranks that srun starts, under a Slurm of its own.

    ends.py PHASE ...

Status 77 when there can be no Slurm here.
"""

import os
import subprocess
import sys
import tempfile

import cluster

ENDS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "faults", "ends.py")


def main():
    reason = cluster.missing()
    if reason:
        print(f"skipped: {reason}")
        return 77
    with tempfile.TemporaryDirectory(prefix="nocturne-slurm-") as folder:
        cluster.start(folder)
        try:
            os.environ["NOCTURNE_LAUNCHER"] = "srun --mpi=pmix --overcommit -n {ranks}"
            return subprocess.run([sys.executable, ENDS, *sys.argv[1:]], check=False).returncode
        finally:
            cluster.stop(folder)


if __name__ == "__main__":
    sys.exit(main())
