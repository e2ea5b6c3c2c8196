#!/bin/bash
#SBATCH --job-name=nocturne-decode
#SBATCH --open-mode=append
#SBATCH --requeue
# Runs the phase decode on all tasks of the job. Submitted by jobs/submit.sh.
set -euo pipefail
# shellcheck source=jobs/slurm/phase.sh
source "${NOCTURNE_JOBS:?"set NOCTURNE_JOBS to this folder, or submit by jobs/submit.sh"}/phase.sh"
run_phase decode
