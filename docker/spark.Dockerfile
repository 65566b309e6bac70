# Spark with udo-spark and Java: the master, a worker or a job of a standalone cluster (docker/spark.sh).
FROM udo-platform
COPY spark/ /opt/udo/spark/
COPY spark.sh /usr/local/bin/spark.sh
ENV PYTHONPATH=/opt/udo/site:/opt/udo/spark SPARK_HOME=/opt/udo/spark/pyspark PYSPARK_PYTHON=python3
ENTRYPOINT ["/usr/local/bin/spark.sh"]
