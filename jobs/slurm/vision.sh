#!/bin/bash
#SBATCH --job-name=nocturne-vision
#SBATCH --open-mode=append
#SBATCH --requeue
# Encodes the requests' images on all tasks of the job. Submitted by jobs/submit.sh.
set -euo pipefail
# shellcheck source=jobs/slurm/phase.sh
source "${NOCTURNE_JOBS:?"set NOCTURNE_JOBS to this folder, or submit by jobs/submit.sh"}/phase.sh"
run_phase vision
