"""Runs a worker that was written for Spark's protocol of external UDFs (SPARK-55278) as an operator, unchanged."""

from udo_spark_worker.operator import SparkWorker

__all__ = ["SparkWorker"]
