#!/bin/bash
#SBATCH --job-name=nocturne-export
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --ntasks=1
# Writes results.jsonl, errors.jsonl and results.h5. Submitted by jobs/submit.sh.
set -euo pipefail
# shellcheck source=jobs/slurm/phase.sh
source "${NOCTURNE_JOBS:?"set NOCTURNE_JOBS to this folder, or submit by jobs/submit.sh"}/phase.sh"
run_command export --campaign "$campaign"
