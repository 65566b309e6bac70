#!/bin/sh
# One part of a standalone cluster: spark.sh master|worker ARGS…, or a program with Spark's environment: spark.sh python3 job.py
set -eu
found=$(python3 -c 'from udo_interface.java import java_home; print(java_home() or "")')
[ -z "$found" ] || export JAVA_HOME="$found"
part=$1
shift
case $part in
  master) set -- bash "$SPARK_HOME/bin/spark-class" org.apache.spark.deploy.master.Master "$@" ;;
  worker) set -- bash "$SPARK_HOME/bin/spark-class" org.apache.spark.deploy.worker.Worker "$@" ;;
  *) set -- "$part" "$@" ;;
esac
exec "$@"
