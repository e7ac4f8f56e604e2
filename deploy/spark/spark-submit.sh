#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The jobs of the data pipeline on a Spark cluster:
#
#     deploy/spark/spark-submit.sh WHERE JOB [OPTIONS]       such as: yarn bronze --config config.yaml
#
# WHERE is standalone, yarn or kubernetes. The landing zone and the tables (pipeline.path) are on a file system that is mounted
# in the same place on the driver and on every executor (NFS, CephFS, a ReadWriteMany volume): tables need links and fsync, which
# object stores do not have. pyspark on the driver is the cluster's release; Java is 17 or newer.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
where=${1:?standalone, yarn or kubernetes}
shift
submit=${SPARK_HOME:+$SPARK_HOME/bin/}spark-submit

# what every cluster is told: UTC, so that a day is the same everywhere, and Arrow between the JVM and Python
settings=(
    --conf spark.sql.session.timeZone=UTC
    --conf spark.sql.execution.arrow.pyspark.enabled=true
    --conf spark.executor.memory="${EXECUTOR_MEMORY:-2g}"
    --conf spark.executor.cores="${EXECUTOR_CORES:-2}"
    # Arrow batches are in the Python workers, beside the JVM
    --conf spark.executor.memoryOverheadFactor=0.4
)

# An environment for executors that have none, once a release (and of the executors' Python):
#   python3 -m venv environment && environment/bin/pip install '.[spark,parquet,speed]' venv-pack    # in a checkout
#   environment/bin/venv-pack --prefix environment --output environment.tar.gz
# Executors unpack it where they work. The driver is here, with a Python of its own that has consumerd, too (DRIVER_PYTHON).
archive=${ENVIRONMENT:-environment.tar.gz}
unpacked=(
    --archives "$archive#environment"
    --conf spark.pyspark.python=./environment/bin/python
    --conf spark.pyspark.driver.python="${DRIVER_PYTHON:-python3}"
)

case $where in
standalone)
    exec "$submit" --master "${MASTER:?spark://HOST:7077}" "${settings[@]}" \
        "${unpacked[@]}" "$here/consumerd_job.py" "$@"
    ;;
yarn)
    exec "$submit" --master yarn --deploy-mode client "${settings[@]}" \
        "${unpacked[@]}" "$here/consumerd_job.py" "$@"
    ;;
kubernetes)
    # driver and executors are pods of one image: Spark's own for Python with
    #   COPY a checkout to /src, and RUN pip install '/src[spark,parquet,speed]'
    #   COPY deploy/spark/consumerd_job.py /opt/consumerd/
    # and the claims of deploy/spark/kubernetes; --config is a path in the driver's pod
    exec "$submit" --master "${MASTER:?k8s://https://HOST:6443}" --deploy-mode cluster "${settings[@]}" \
        --name consumerd-spark \
        --conf spark.kubernetes.container.image="${IMAGE:?an image with Spark and consumerd}" \
        --conf spark.kubernetes.authenticate.driver.serviceAccountName="${SERVICE_ACCOUNT:-spark}" \
        --conf spark.kubernetes.driver.volumes.persistentVolumeClaim.landing.options.claimName=consumerd-landing \
        --conf spark.kubernetes.driver.volumes.persistentVolumeClaim.landing.mount.path=/data/landing \
        --conf spark.kubernetes.driver.volumes.persistentVolumeClaim.lake.options.claimName=consumerd-lake \
        --conf spark.kubernetes.driver.volumes.persistentVolumeClaim.lake.mount.path=/data/lake \
        --conf spark.kubernetes.executor.volumes.persistentVolumeClaim.landing.options.claimName=consumerd-landing \
        --conf spark.kubernetes.executor.volumes.persistentVolumeClaim.landing.mount.path=/data/landing \
        --conf spark.kubernetes.executor.volumes.persistentVolumeClaim.lake.options.claimName=consumerd-lake \
        --conf spark.kubernetes.executor.volumes.persistentVolumeClaim.lake.mount.path=/data/lake \
        local:///opt/consumerd/consumerd_job.py "$@"
    ;;
*)
    echo "$where: expected standalone, yarn or kubernetes" >&2
    exit 2
    ;;
esac
