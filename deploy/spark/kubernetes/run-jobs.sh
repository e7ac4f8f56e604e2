# SPDX-License-Identifier: Apache-2.0
# What the CronJobs run: sh run-jobs.sh JOB...
# Runs each job, whatever the one before it has found. The exit code is the worst of all.
# This shell is process 1 of the container. Without a trap the kernel drops SIGTERM for it, and no job hears of it.
worst=0 ended=
trap 'ended=143; kill -TERM $! 2>/dev/null' TERM
for job; do
  [ -z "$ended" ] || break
  consumerd-spark "$job" --config /etc/consumerd/config.yaml --json &
  wait $!
  code=$?
  # the trap has ended that wait, and the job is still stopping Spark
  while kill -0 $! 2>/dev/null; do
    wait $!
    code=$?
  done
  [ "$code" -le "$worst" ] || worst=$code
done
exit "${ended:-$worst}"
