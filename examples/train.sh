#!/bin/bash
#SBATCH --job-name=fashion-mnist
#SBATCH --nodes=2
#SBATCH --ntasks=4
#SBATCH --time=00:10:00
#SBATCH --output=fashion-mnist-%j.log
# A Slurm script, as it is:  gangline submit examples/train.sh
# It runs once, on the gang's first node; srun starts a rank in each of the job's places.
set -e
cd "${SLURM_SUBMIT_DIR:-.}"
echo "job $SLURM_JOB_ID: $SLURM_NTASKS ranks on $SLURM_JOB_NODELIST"
srun build/dev/bin/fashion_mnist --steps 300 --checkpoint-every 100
