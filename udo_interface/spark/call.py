"""`udo(name)`: an operator as a function over DataFrames and RDD partitions. Checks everything it can on the driver, at once."""

from __future__ import annotations

import functools
import logging
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from threading import Lock
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import pandas as pd
import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import Row, SparkSession
from pyspark.sql import types as T

from udo_interface.discovery import (
    NODE_SETTING,
    NODE_WAIT_SETTING,
    REGISTRY_SETTING,
    TLS_SETTING,
    certificates,
    node_wait_s,
    registry_url,
)
from udo_interface.spark import jvm_path, keyed_plan, remote, settings
from udo_interface.spark.deployed import Deployed, fetch, plan
from udo_interface.spark.inputs import require_inputs, united
from udo_interface.spark.key_groups import with_key_group
from udo_interface.spark.keyed_plan import Batch
from udo_interface.spark.listing import Listed, Listing
from udo_interface.spark.spark_types import (
    as_told_apart,
    delivered,
    output_fields,
    quoted,
    require_apart,
    require_input,
    type_without_arrow,
    untold_type,
)
from udo_interface.spark.task import Keys, Task
from udo_interface.store.store import StoreLocation
from udo_interface.store.store_place import located, require_writable
from udo_protocol.errors import SchemaError, UdoError, UsageError
from udo_protocol.formats.schema import GROUP_COLUMN, to_ipc
from udo_protocol.registry.api import Registry

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

Conf = Callable[[str, str], str | None]
K = TypeVar("K")
V = TypeVar("V")
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CallOptions:
    """The options of a call; the defaults suit stateless operators."""

    keep: tuple[str, ...] = ()
    uid: str = ""
    pin: str | None = None
    window: int | None = None
    key: tuple[str, ...] = ()
    start: str | None = None
    store: str | os.PathLike[str] | None = None
    path: str | None = None

    def __post_init__(self) -> None:
        if self.start not in (None, "empty"):
            raise UsageError(f"start= expects 'empty' or None, got {self.start!r}")
        if self.key and self.pin:
            raise UsageError("key= and pin= exclude each other: each version would have a state of its own")
        if self.path not in (None, *settings.PATHS):
            raise UsageError(f"path= expects {', '.join(settings.PATHS)} or None, got {self.path!r}")
        if self.pin not in (None, "epoch"):
            raise UsageError(f"pin= expects 'epoch' or None, got {self.pin!r}; a fixed version is called by name: udo('fraud@2')")
        if self.window is not None and (isinstance(self.window, bool) or not isinstance(self.window, int) or self.window < 1):
            raise UsageError(f"window= expects a number of frames >= 1, got {self.window!r}")


class DeployedOperator:
    """An operator by deployment name; immutable, and cheap to make: the registry is asked when it is called."""

    def __init__(self, name: str, options: CallOptions, registry: str | None = None) -> None:
        if not isinstance(name, str) or not name.strip():
            raise UsageError(f"expected a deployment name such as 'fraud' or 'fraud@2', got {name!r}")
        self.name, self.options, self._registry = name, options, registry

    def __repr__(self) -> str:
        return f"udo({self.name!r})"

    def _repr_html_(self) -> str:
        """HTML for a notebook: the operator as the registry describes it now, or the error of the lookup."""
        try:
            conf = _active_conf()
            url = registry_url(self._registry or conf(REGISTRY_SETTING, ""))
            with Registry(url, tls=certificates(conf(TLS_SETTING, ""))) as registry:
                return Listed.of(registry.deployment(self.name.partition("@")[0]))._repr_html_()
        except UdoError as e:
            return f"<p><code>{escape(repr(self))}</code>: {escape(str(e))}</p>"

    def __call__(self, df: DataFrame | None = None, **options: Any) -> DataFrame:
        """Send every event of `df` (batch or streaming) through the operator; the result has its output columns, then the kept ones.

        An operator with several inputs takes a DataFrame for each, by name: `udo("match")(trades=a, quotes=b, key="symbol")`.
        """
        inputs = {n: given for n, given in options.items() if hasattr(given, "mapInArrow")}
        chosen = _merged(self.options, {n: given for n, given in options.items() if n not in inputs})
        if inputs:
            if df is not None:
                raise UsageError(f"{self!r} expects one DataFrame, or one for each input by its name ({', '.join(inputs)}), got both")
            deployed = self.deployed(next(iter(inputs.values())))
            return self._planned(united(inputs, deployed, chosen.keep), deployed, chosen, ())
        if isinstance(df, pd.DataFrame):
            raise UsageError(f"{self!r} expects a Spark DataFrame, got a pandas DataFrame; make one of it: spark.createDataFrame(df)")
        if not hasattr(df, "mapInArrow"):
            raise UsageError(
                f"{self!r} expects a Spark DataFrame, got {type(df).__name__}; for an RDD use rdd.mapPartitions({self!r}.map_partitions)"
            )
        return self._planned(df, self.deployed(df), chosen, ())

    def deployed(self, df: DataFrame) -> Deployed:
        """Look the operator up in the registry, which is found by the settings of the DataFrame's session."""
        return self._fetch(df.sparkSession.conf.get)

    def planned(self, df: DataFrame, deployed: Deployed, key: tuple[str, ...], order: Sequence[Column]) -> DataFrame:
        """Plan a call with `key` of an operator already looked up; `order`: the sort order of the events in each partition of a batch."""
        return self._planned(df, deployed, replace(self.options, key=key), order)

    def _planned(self, df: DataFrame, deployed: Deployed, chosen: CallOptions, order: Sequence[Column]) -> DataFrame:
        conf: Conf = df.sparkSession.conf.get
        require_inputs(df, deployed)
        require_input(df.schema, deployed.input, deployed.what)
        fields = output_fields(deployed.output, df.schema, _zoneless(conf))
        if not (in_jvm := self._in_jvm(df, deployed, chosen, fields)):
            settings.check_python_path(conf, df.isStreaming)
        kept = [_kept(df, n, deployed, in_jvm=in_jvm) for n in chosen.keep]
        task_of = functools.partial(self._task, deployed, chosen, conf, delivered(fields), kept)
        schema = T.StructType([*fields, *kept])
        columns = list(dict.fromkeys([*deployed.input.names, *chosen.keep]))
        require_apart(df, columns, deployed.what)
        if _require_key(deployed, chosen.key):
            given, keys = self._keyed(df, deployed, chosen, columns, order)
            answers = (jvm_path.through if in_jvm else _mapped)(given, task_of(keys), schema)
            return keyed_plan.whole(answers, deployed.reference) if keys.marked and keys.lasting else answers
        if chosen.store is not None:
            raise UsageError(f"{deployed.what} keeps no state; call it without store=")
        if in_jvm:
            return jvm_path.through(df, task_of(None), schema)
        return _mapped(df.select([quoted(n) for n in columns]), task_of(None), schema)

    def _keyed(
        self, df: DataFrame, deployed: Deployed, chosen: CallOptions, columns: list[str], order: Sequence[Column]
    ) -> tuple[DataFrame, Keys]:
        """Return the DataFrame that a keyed call sends (these columns, partitioned by key group) and the layout of the call."""
        conf: Conf = df.sparkSession.conf.get
        if taken := [n for n in columns if n.casefold() == GROUP_COLUMN]:
            raise SchemaError(
                f"keep={taken[0]!r}: {deployed.what} keeps state, and the key groups of its events travel in a column of that name; "
                "rename yours before the call"
            )
        remote.check_keyed(df, deployed.what)
        settings.check_keyed(conf)
        inside = None if df.isStreaming else keyed_plan.around(df)
        lasting = df.isStreaming or inside is not None
        stored = None if chosen.store is None else _stored(chosen.store, deployed, lasting=lasting)
        partitions = keyed_plan.partition_count(df)
        grouped = with_key_group(df, deployed.key, deployed.input, key_groups=deployed.key_groups)
        given, marked = keyed_plan.partitioned(grouped, partitions, columns, order, deployed.reference, chosen.uid, deployed.what)
        start_empty, plan = chosen.start == "empty", self._plan(df, inside)
        call = _call_id(inside, deployed.reference, chosen.uid)
        return given, Keys(partitions, call, start_empty, plan, stored, deployed.key_groups, marked, lasting)

    def _in_jvm(self, df: DataFrame, deployed: Deployed, chosen: CallOptions, fields: list[T.StructField]) -> bool:
        """Whether the call takes the JVM path; UsageError if it asks for the JVM path and cannot take it."""
        conf: Conf = df.sparkSession.conf.get
        if (path := settings.path(chosen.path, conf)) == settings.PYTHON:
            return False
        if not (why_not := jvm_path.obstacle(df, deployed, fields, conf, stored=chosen.store is not None)):
            return True
        if path == settings.JVM:
            raise UsageError(f"{deployed.what} cannot be called on the JVM path: {why_not}. Leave out path='jvm', or say path='auto'")
        log.info("%s is called on the Python path: %s", deployed.what, why_not)
        return False

    @property
    def map_partitions(self) -> Callable[[Iterable[Any]], Iterator[Row]]:
        """The function for rdd.mapPartitions: Rows (or dicts) in, Rows out; reading this property looks the operator up.

        A keyed operator needs an RDD already partitioned by its key (partitionBy); its state lasts as long as the job.
        """
        remote.require_rdds(repr(self))
        conf = _active_conf()
        deployed = self._fetch(conf)
        if self.options.store is not None:
            raise UsageError(f"store= keeps the state of a streaming query; an RDD's ends with its job: call {self!r} without it")
        keys = None
        if _require_key(deployed, self.options.key):
            settings.check_keyed(conf)
            keys = Keys(0, secrets.token_hex(4), key_groups=deployed.key_groups)
        return self._task(deployed, self.options, conf, deployed.output, [], keys).rows

    def _fetch(self, conf: Conf) -> Deployed:
        return fetch(self.name, registry_url(self._registry or conf(REGISTRY_SETTING, "")), certificates(conf(TLS_SETTING, "")))

    def _plan(self, df: DataFrame, inside: Batch | None) -> int:
        """The number of this plan; in foreachBatch, which plans each batch separately, the number of the first plan of the query's run."""
        run = None if inside is None else (inside.query, inside.run)
        with _planning:
            if run is not None and (first := _first_plans.get(run)) is not None:
                return _noted(_first_plans, run, first)
        conf = df.sparkSession.conf.get
        number = plan(self.name, registry_url(self._registry or conf(REGISTRY_SETTING, "")), certificates(conf(TLS_SETTING, "")))
        with _planning:
            return number if run is None else _noted(_first_plans, run, _first_plans.get(run, number))

    def _task(
        self, deployed: Deployed, options: CallOptions, conf: Conf, back: pa.Schema, kept: Sequence[T.StructField], keys: Keys | None
    ) -> Task:
        alike = as_told_apart(conf)
        answered = {alike(n): n for n in deployed.output.names}
        if clash := [answered[alike(n)] for n in options.keep if alike(n) in answered]:
            raise SchemaError(
                f"{deployed.what} itself answers with {', '.join(clash)}; take the name out of keep= or rename the column first"
            )
        node_wait_s(node_wait := conf(NODE_WAIT_SETTING, "") or None)  # a malformed number raises already on the driver
        return Task(
            deployment=deployed.reference,
            what=deployed.what,
            node=conf(NODE_SETTING, "") or None,
            app=conf("spark.app.id", "") or f"pid{os.getpid()}",
            uid=options.uid,
            pin_epoch=options.pin == "epoch",
            window=options.window,
            keep=options.keep,
            keyed=keys,
            input=to_ipc(deployed.input),
            output=to_ipc(deployed.output),
            delivered=to_ipc(back),
            node_wait=node_wait,
            tls=conf(TLS_SETTING, "") or None,
            never_null=tuple(f.name for f in kept if not f.nullable),
        )


class OperatorsByName:
    """`udo("fraud")` is the operator of the deployment with that name; `udo.ls()` lists the deployments."""

    def __call__(
        self,
        name: str,
        *,
        keep: Sequence[str] = (),
        uid: str = "",
        pin: Literal["epoch"] | None = None,
        window: int | None = None,
        key: str | Sequence[str] = (),
        start: Literal["empty"] | None = None,
        store: str | os.PathLike[str] | None = None,
        path: Literal["auto", "python", "jvm"] | None = None,
        registry: str | None = None,
    ) -> DeployedOperator:
        """The operator deployed as `name` (`name@version` or `name@sha256:...` pins a version).

        keep: columns carried along beside the answers; needs exactly one answer per event.
        uid: names this call when one stateful deployment is called twice in a query.
        pin: "epoch" answers a whole micro-batch (or batch job) with one version, even while an update happens.
        key: the columns a keyed operator keeps its state by; the DataFrame is repartitioned by them.
        start: "empty" lets a keyed operator join a query that has run without it.
        store: a second place for a keyed operator's state, besides the node: a directory's path or URI, typically the query's
            checkpointLocation + "/udo". With it the query survives the loss of the node, and may continue elsewhere.
        window: frames sent ahead of their answers, instead of the deployment's bound.
        path: the sender of a DataFrame's events: "jvm", the executor's JVM, which is faster but does no calls with store=; "python",
            a Python worker of Spark; "auto", the JVM where it can. Default: spark.udo.path, else "auto".
        registry: its URL, instead of spark.udo.registry, UDO_REGISTRY or the one `udo up` started.
        Options may also be given, or changed, at the call. Raises NotFound, SchemaError, Unavailable at once, on the driver.
        """
        chosen = {"keep": keep, "uid": uid, "pin": pin, "window": window, "key": key, "start": start, "store": store, "path": path}
        return DeployedOperator(name, _merged(CallOptions(), chosen), registry)

    def ls(self, *, registry: str | None = None) -> Listing:
        """List the deployments of the registry, which is found as for a call; Unavailable if no registry is found."""
        conf = _active_conf()
        url = registry_url(registry or conf(REGISTRY_SETTING, ""))
        with Registry(url, tls=certificates(conf(TLS_SETTING, ""))) as asked:
            return Listing(Listed.of(told) for told in asked.deployments())


udo = OperatorsByName()


def _merged(options: CallOptions, changes: dict[str, Any]) -> CallOptions:
    known = CallOptions.__dataclass_fields__
    if unknown := [n for n in changes if n not in known]:
        raise UsageError(f"unknown option {', '.join(unknown)}; expected {', '.join(known)}")
    if "keep" in changes:
        keep = changes["keep"]
        changes = {**changes, "keep": (keep,) if isinstance(keep, str) else tuple(dict.fromkeys(keep or ()))}
    if "key" in changes:
        key = changes["key"]
        changes = {**changes, "key": (key,) if isinstance(key, str) else tuple(key or ())}
    return replace(options, **changes)


def _mapped(df: DataFrame, task: Task, schema: T.StructType) -> DataFrame:
    """The task's answers. PySpark's mapInArrow looks columns up by unquoted name: columns it would misread are renamed on the way."""
    names = df.columns
    if any("." in name or "`" in name or name == "*" for name in names):
        df, task = df.toDF(*(f"_{n}" for n in range(len(names)))), replace(task, columns=tuple(names))
    return df.mapInArrow(task.named(), schema)


def _require_key(deployed: Deployed, key: tuple[str, ...]) -> bool:
    """Whether the operator is keyed; UsageError unless the call's `key` is the operator's."""
    if deployed.key == key:
        return bool(key)
    if not deployed.key:
        raise UsageError(f"{deployed.what} keeps no state; call it without key= (a keyed operator declares key = in operator.toml)")
    wanted = deployed.key[0] if len(deployed.key) == 1 else list(deployed.key)
    raise UsageError(f"{deployed.what} keeps state by {', '.join(deployed.key)}; call it with key={wanted!r}, got key={list(key)!r}")


def _stored(location: str | os.PathLike[str], deployed: Deployed, *, lasting: bool) -> StoreLocation:
    """The location of the call's state; UsageError for a batch job, or if the location cannot be written."""
    if not lasting:
        raise UsageError(
            f"{deployed.what}: store= keeps the state of a streaming query, and a batch job's ends with it: call it without store="
        )
    stored = StoreLocation(located(location), deployed.key_columns, deployed.key_groups)
    require_writable(stored.location)
    return stored


# Entries kept about plans made in foreachBatch: far more than a driver's queries use at a time, so the queries of dropped ones have ended.
_KEPT_ENTRIES = 10_000
_planning = Lock()
_first_plans: dict[tuple[str, str], int] = {}  # (query, run) -> the number of the first plan that foreachBatch made in it
_batches: dict[tuple[str, str, str, str], tuple[str, int]] = {}  # query, run, deployment, uid -> the last batch, the keyed calls in it


def _call_id(inside: Batch | None, deployment: str, uid: str) -> str:
    """An id of this call among those of a run that use the same state: the same when its plan is evaluated again, and from batch to batch
    in foreachBatch, whatever other calls a batch makes."""
    if inside is None:
        return secrets.token_hex(4)
    with _planning:
        of = (inside.query, inside.run, deployment, uid)
        batch, count = _batches.get(of, ("", 0))
        _, count = _noted(_batches, of, (inside.batch, count + 1 if batch == inside.batch else 1))
        return f"foreachBatch.{count}"


def _noted(entries: dict[K, V], key: K, value: V) -> V:
    """Make it the newest entry, and forget the oldest ones."""
    entries.pop(key, None)
    entries[key] = value
    while len(entries) > _KEPT_ENTRIES:
        del entries[next(iter(entries))]
    return value


def _kept(df: DataFrame, name: str, deployed: Deployed, *, in_jvm: bool) -> T.StructField:
    if name not in df.columns:
        raise SchemaError(f"keep={name!r}: the DataFrame has no such column to keep beside {deployed.what}; it has {', '.join(df.columns)}")
    field = df.schema[name]
    if not in_jvm and (unsent := type_without_arrow(field.dataType)):
        raise SchemaError(
            f"keep={name!r}: PySpark sends no column of type {unsent.simpleString()} to its workers. Cast the column, or call "
            f"{deployed.what} in the JVM (path='jvm', docs/spark.md)"
        )
    if not in_jvm and settings.is_true(df.sparkSession.conf.get, settings.VALIDATED) and (untold := untold_type(field.dataType)):
        raise SchemaError(
            f"keep={name!r}: {settings.VALIDATED} is true, and the batches of PySpark do not tell that a column is of type "
            f"{untold.simpleString()}, so Spark would refuse each of them. Set it to false, which is the default, or cast the column"
        )
    return T.StructField(name, field.dataType, field.nullable)


def _zoneless(conf: Conf) -> T.DataType:
    return (
        T.TimestampNTZType() if (conf("spark.sql.timestampType", "TIMESTAMP_LTZ") or "").upper() == "TIMESTAMP_NTZ" else T.TimestampType()
    )


def _active_conf() -> Conf:
    if (session := SparkSession.getActiveSession()) is not None:
        found: Conf = session.conf.get
        return found
    if (context := SparkContext._active_spark_context) is not None:
        found = context.getConf().get
        return found
    return lambda _, default: default
