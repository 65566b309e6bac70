"""The JVM path: the executor's own JVM writes frames and reads answers (jvm/*.scala), so that no Python worker is needed.

It serves calls on DataFrames of a classic session. `obstacle` says which calls it cannot serve; the Python path serves all.
"""

from __future__ import annotations

import base64
import json
import logging
import os
from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import types as T

from udo_interface.discovery import NODE_SETTING, NODE_VARIABLE
from udo_interface.spark.jar import jar
from udo_interface.spark.spark_types import arrow_type, quoted, spark_type
from udo_protocol.errors import Unavailable
from udo_protocol.formats.schema import schema_id, to_ipc, type_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from udo_interface.spark.deployed import Deployed
    from udo_interface.spark.task import Task

log = logging.getLogger(__name__)
_CALLS = "org.apache.spark.sql.udo.UdoCalls"
_lock = Lock()
_attached: dict[str, Any] = {}  # the running application -> its UdoCalls, or the error that says why it has none
# Casts to these never lose a value where require_input has let a column pass.
_WIDENED = (pa.types.is_signed_integer, pa.types.is_float32, pa.types.is_float64, pa.types.is_decimal128)


def obstacle(
    df: DataFrame,
    deployed: Deployed,
    fields: list[T.StructField],
    conf: Callable[[str, str], str | None],
    *,
    stored: bool,
) -> str:
    """The reason why this call cannot take the JVM path; '' if it can. `fields`: the operator's output in Spark."""
    if stored:
        return "with store= Python workers bring the state and take it"
    if not hasattr(df, "_jdf"):
        return "Spark Connect has no JVM on this side"
    if "://" in (node := _node(conf)).removeprefix("unix://"):
        return f"the node manager is on another host ({node})"
    for wanted in deployed.input:
        if _cast(df.schema[wanted.name].dataType, wanted.type) is None:
            return f"column {wanted.name!r} would have to become {type_text(wanted.type)}, which Spark does not write"
    for answered, field in zip(deployed.output, fields, strict=True):
        if layout(answered.type) != layout(arrow_type(field.dataType)):
            return f"the operator answers with {type_text(answered.type)} in column {field.name!r}, which Spark does not read"
    try:
        calls(df.sparkSession)
    except Unavailable as e:
        return str(e)
    return ""


def through(df: DataFrame, task: Task, schema: T.StructType) -> DataFrame:
    """Send `df` through the operator, if there is no obstacle; the answers have `schema`. A keyed call's `df`: keyed_plan.partitioned."""
    wanted = task.sent()
    sent = to_ipc(wanted)
    kept = [quoted(n).alias(n) for n in task.keep]
    picked = df.select([*(_column(df.schema[f.name], f.type) for f in wanted), *kept])
    told = {
        "deployment": task.deployment,
        "what": task.what,
        "app": task.app,
        "uid": task.uid,
        "pin_epoch": task.pin_epoch,
        "window": task.window or 0,
        "node": task.node,
        "node_wait": task.node_wait,
        "tls": task.tls,
        "columns": wanted.names,
        "keys": task.keyed and {n: getattr(task.keyed, n) for n in ("partitions", "call", "start_empty", "plan", "key_groups")},
        **{name: base64.b64encode(data).decode() for name, data in (("input", sent), ("output", task.output))},
        "input_id": base64.b64encode(schema_id(sent)).decode(),
        "output_id": base64.b64encode(schema_id(task.output)).decode(),
    }
    through = calls(df.sparkSession).through(picked._jdf, json.dumps(told), schema.json())
    return type(df)(through, df.sparkSession)


def _node(conf: Callable[[str, str], str | None]) -> str:
    """The node manager's address as far as the driver can tell: the setting, the executors' UDO_NODE, its own; '' if tasks look for it."""
    return conf(NODE_SETTING, "") or conf(f"spark.executorEnv.{NODE_VARIABLE}", "") or os.environ.get(NODE_VARIABLE, "")


def layout(t: pa.DataType) -> pa.DataType:
    """The common form of all types whose values Spark writes and reads in the same way: without time zones and widths of offsets."""
    if pa.types.is_timestamp(t):
        return pa.timestamp(t.unit)
    if pa.types.is_large_string(t):
        return pa.string()
    if pa.types.is_large_binary(t):
        return pa.binary()
    if pa.types.is_list(t):
        return pa.list_(layout(t.value_type))
    if pa.types.is_map(t):
        return pa.map_(layout(t.key_type), layout(t.item_type))
    if pa.types.is_struct(t):
        return pa.struct([pa.field(f.name, layout(f.type)) for f in t.fields])
    return t


def _cast(have: T.DataType, want: pa.DataType) -> T.DataType | None:
    """The Spark type whose values have the layout of `want`: `have` itself if its values do; None if there is none."""
    if layout(arrow_type(have)) == layout(want):
        return have
    if any(is_one(want) for is_one in _WIDENED) or isinstance(have, T.NullType):
        to = spark_type(want)
        return to if layout(arrow_type(to)) == layout(want) else None
    return None


def _column(have: T.StructField, want: pa.DataType) -> Any:
    column, to = quoted(have.name), _cast(have.dataType, want)
    return column if to is None or to == have.dataType else column.cast(to).alias(have.name)


def calls(session: SparkSession) -> Any:
    """The entry point in the session's JVM. Adds the jar once; executors fetch it with their next task. Unavailable without a jar."""
    with _lock:
        if (app := session.sparkContext.applicationId) not in _attached:
            _attached.clear()
            try:
                _attached[app] = _attach(session)
            except Unavailable as e:  # kept, else each call would try again in vain
                log.warning("calls take the Python path, which is slower; spark.udo.path=python says so without this warning: %s", e)
                _attached[app] = e
        if isinstance(made := _attached[app], Unavailable):
            raise made
        return made


def _attach(session: SparkSession) -> Any:
    found, java = jar(session.version), session._jsparkSession
    try:
        java.sessionState().resourceLoader().addJar(found.as_uri())
        return java.sharedState().jarClassLoader().loadClass(_CALLS).newInstance()
    except (Py4JError, PySparkException) as e:
        said = str(e.java_exception) if isinstance(e, Py4JJavaError) else str(e).partition("\n")[0]
        raise Unavailable(f"Spark does not load {found}: {said}") from e
