# The runtime base of Python operators: an interpreter, and all that an operator can import without bringing it.
# Built by docker/runtime.sh, which resolves the wheels for the base's interpreter; nothing is fetched in here.
ARG BASE=python:3.11-slim
FROM ${BASE}
ARG PYTHON_TAG
COPY runtime/ /opt/udo/runtime/
# The root is read-only when it runs: what is not compiled now is compiled at every start.
RUN python3 -m compileall -q --invalidation-mode unchecked-hash /opt/udo/runtime
ENV UDO_PYTHONPATH=/opt/udo/runtime LANG=C.UTF-8
LABEL dev.udo.runtime=python dev.udo.python_tag=${PYTHON_TAG}
USER 65532:65532
ENTRYPOINT ["python3", "-s", "-P", "-S", "/opt/udo/runtime/udo_runtime/bootstrap.py"]
