"""Operators in SQL: `SELECT * FROM udo('fraud', TABLE(tx))`, once `register(spark)` was called.

This is not a Python table function. Spark calls such a function for each row, restarts it for each key and tells it neither the query nor
the epoch, so a keyed call could not be exactly once. Instead Spark's analyzer asks the driver for the plan of the call, and gets the plan
that `udo("fraud")(df)` makes: from there on SQL and DataFrames are the same, batch and streaming.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.errors.exceptions.captured import CapturedException
from pyspark.sql import DataFrame, SparkSession

from udo_interface.spark.call import DeployedOperator, udo
from udo_interface.spark.spark_types import quoted
from udo_protocol.errors import UdoError, UsageError

if TYPE_CHECKING:
    from pyspark.sql import Column

    from udo_interface.spark.deployed import Deployed

# Options that may follow the table as `name => value`.
OPTIONS = ("keep", "uid", "pin", "window", "start", "store")
_SQL = "org.apache.spark.sql"


def register(spark: SparkSession, name: str = "udo", *, registry: str | None = None) -> None:
    """Make `name('deployment', TABLE(t) [PARTITION BY key] [, option => value ...])` a table function of the session's SQL.

    registry: its URL, as for `udo_interface.udo`. UsageError for a session of Spark Connect, whose analyzer is in another process.
    """
    if not hasattr(spark, "_jsparkSession"):
        raise UsageError(
            f"{name}() in SQL takes a session with Spark in this process, and this one is of Spark Connect. Call the operator on a "
            "DataFrame instead, and name the result: udo('fraud')(spark.table('tx')).createOrReplaceTempView('scored')"
        )
    from pyspark.java_gateway import ensure_callback_server_started

    gateway = spark.sparkContext._gateway
    ensure_callback_server_started(gateway)
    planner = _thrower(gateway.jvm).compose(_Planner(spark, name, registry))
    spark._jsparkSession.sessionState().tableFunctionRegistry().createOrReplaceTempFunction(name, planner, "python_udtf")


def _thrower(jvm: Any) -> Any:
    """Make scala.util.Try.get a function of the JVM, as a Scala compiler would.

    Python cannot throw an exception of the JVM, and an exception of Python reaches the user as a stack trace of the bridge to the JVM.
    """
    of = jvm.java.lang.Class.forName
    function, attempt, anything = of("scala.Function1"), of("scala.util.Try"), of("java.lang.Object")
    invoke = jvm.java.lang.invoke
    lookup, kind = invoke.MethodHandles.lookup(), invoke.MethodType.methodType
    get = lookup.unreflect(attempt.getMethod("get", None))
    made = invoke.LambdaMetafactory.metafactory(lookup, "apply", kind(function), kind(anything, anything), get, kind(anything, attempt))
    return made.getTarget().invokeWithArguments([])


class _Planner:
    """Called by Spark's analyzer with the arguments as expressions; returns scala.util.Try of a logical plan."""

    def __init__(self, spark: SparkSession, name: str, registry: str | None) -> None:
        self._spark, self._name, self._registry = spark, name, registry
        self._jvm = spark.sparkContext._gateway.jvm

    def apply(self, arguments: Any) -> Any:
        try:
            return self._jvm.scala.util.Success(self._plan(_each(arguments)))
        except UdoError as e:
            errors = self._jvm.org.apache.spark.sql.errors.QueryCompilationErrors
            cause = errors.tableValuedFunctionFailedToAnalyseInPythonError(f"{type(e).__name__}: {e}")
        except CapturedException as e:  # Spark's own, from planning the call
            if (cause := e._origin) is None:
                raise
        return self._jvm.scala.util.Failure(cause)

    Java = type("Java", (), {"implements": ("scala.Function1",)})  # required by py4j

    def _plan(self, arguments: list[Any]) -> Any:
        named = {a.key(): a.value() for a in arguments if _kind(a) == "NamedArgumentExpression"}
        given = [a for a in arguments if _kind(a) != "NamedArgumentExpression"]
        usage = f"{self._name}('deployment', TABLE(name or query) [PARTITION BY key] [, option => value])"
        if len(given) != 2 or _kind(given[0]) == "FunctionTableSubqueryArgumentExpression":
            raise UsageError(f"expected {usage}, got {len(given)} arguments")
        if _kind(given[1]) != "FunctionTableSubqueryArgumentExpression":
            raise UsageError(f"expected {usage}: the second argument is a table, got {given[1].sql()}")
        if unknown := [n for n in named if n not in OPTIONS]:
            raise UsageError(f"unknown option {', '.join(unknown)}; expected {', '.join(OPTIONS)}")
        deployment, table = _value(given[0], "the deployment's name"), given[1]
        operator = udo(deployment, **{n: _value(v, f"{n} =>") for n, v in named.items()}, registry=self._registry)
        return self._called(operator, table)._jdf.queryExecution().analyzed()

    def _called(self, operator: DeployedOperator, table: Any) -> DataFrame:
        if _each(table.outerAttrs()):
            raise UsageError(
                f"{operator!r}: TABLE(...) may not refer to columns outside of it; join the tables first, inside of TABLE(...)"
            )
        df = self._frame(table.plan())
        deployed = operator.deployed(df)
        key = tuple(_column(e, "PARTITION BY") for e in _each(table.partitionByExpressions()))
        _require_partitions(deployed, key, single=table.withSinglePartition(), name=self._name)
        order = [_ordered(o) for o in _each(table.orderByExpressions())]
        if order and (df.isStreaming or not key):
            raise UsageError(
                f"{deployed.what}: ORDER BY orders the events of each key of a batch: it takes PARTITION BY, and no stream. "
                "A stream's events reach the operator as they arrive; one that needs their order keeps them until a timer (docs/state.md)"
            )
        return operator.planned(df, deployed, deployed.key if key else (), order)

    def _frame(self, plan: Any) -> DataFrame:
        """The table of an analysed plan, in the session that is analysing: in foreachBatch, a clone of the registered session."""
        ours = self._spark._jsparkSession
        session = getattr(self._jvm, f"{_SQL}.classic.SparkSession").active()
        known = self._spark if session.equals(ours) else SparkSession(self._spark.sparkContext, session)
        return DataFrame(getattr(self._jvm, f"{_SQL}.classic.Dataset").ofRows(session, plan), known)


def _require_partitions(deployed: Deployed, key: tuple[str, ...], *, single: bool, name: str) -> None:
    """UsageError unless the table is partitioned by the columns that the operator keeps its state by."""
    call = f"{name}('{deployed.reference}', TABLE(...)"
    by = f"PARTITION BY {', '.join(deployed.key)}"
    same = {n.casefold() for n in key} == {n.casefold() for n in deployed.key}
    if deployed.key and (single or not same):
        got = "WITH SINGLE PARTITION" if single else f"PARTITION BY {', '.join(key)}" if key else "neither key nor PARTITION BY"
        raise UsageError(f"{deployed.what} keeps state by {', '.join(deployed.key)}; write {call} {by}), got {got}")
    if not deployed.key and (single or key):
        clause = "WITH SINGLE PARTITION" if single else "PARTITION BY"
        raise UsageError(
            f"{deployed.what} keeps no state, and how its table is partitioned changes no answer: write {call}), without {clause}"
        )


def _each(seq: Any) -> list[Any]:
    return [seq.apply(i) for i in range(seq.size())]


def _kind(expression: Any) -> str:
    return str(expression.getClass().getSimpleName())


def _column(expression: Any, clause: str) -> str:
    """The name of a plain column, which the analyzer may not have looked up yet."""
    if _kind(expression) == "UnresolvedAttribute" and expression.nameParts().size() == 1:
        return str(expression.nameParts().head())
    if _kind(expression) != "AttributeReference":
        raise UsageError(f"{clause} takes columns of the table, got {expression.sql()}; make it a column inside of TABLE(SELECT ...)")
    return str(expression.name())


def _ordered(order: Any) -> Column:
    column = quoted(_column(order.child(), "ORDER BY"))
    direction, nulls = str(order.direction().sql()), str(order.nullOrdering().sql())
    found: Column = getattr(column, f"{direction}_{nulls.replace(' ', '_')}".lower())()
    return found


def _value(expression: Any, what: str) -> Any:
    """A constant as a Python value: str, int or a list of str."""
    found = expression.eval(None) if expression.foldable() else None
    of = expression.dataType()
    kind = str(of.typeName())
    if found is not None and kind.startswith("string"):
        return found.toString()
    if found is not None and kind in ("byte", "short", "integer", "long"):
        return int(found)
    if found is not None and kind == "array" and str(of.elementType().typeName()).startswith("string"):
        texts = [found.getUTF8String(i) for i in range(found.numElements())]
        if None not in texts:
            return [text.toString() for text in texts]
    raise UsageError(f"{what} expects a text, a number or an array of texts that is constant, got {expression.sql()}")
