# udo-spark with all it needs except Spark: the base of the registry and the node manager. Built by docker/platform.sh, which
# resolves the wheels for the base's interpreter; nothing is fetched in here.
ARG BASE=python:3.11-slim
FROM ${BASE}
COPY site/ /opt/udo/site/
ENV PYTHONPATH=/opt/udo/site LANG=C.UTF-8
