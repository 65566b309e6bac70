"""Runs a worker written for Spark's protocol for external UDFs (SPARK-55278) as an operator, unchanged."""

from udo_spark_worker.operator import SparkWorker

__all__ = ["SparkWorker"]
