#!/bin/bash
#SBATCH --job-name=nocturne-ingest
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --ntasks=1
# Reads the requests into the campaign. Submitted by jobs/submit.sh.
set -euo pipefail
# shellcheck source=jobs/slurm/phase.sh
source "${NOCTURNE_JOBS:?"set NOCTURNE_JOBS to this folder, or submit by jobs/submit.sh"}/phase.sh"
mapfile -t requests <<<"$NOCTURNE_REQUESTS"
run_command ingest --input "${requests[@]}" --model "$NOCTURNE_MODEL" --campaign "$campaign"
