"""The history known before a payment, computed in Spark: the card's habit and the frauds recently reported at the terminal.

Two small tables from the archive, as a nightly job would write them, joined to the payments by day, once, before the stream begins.
No row sees its own future: a payment counts from REPORT_DAYS days after it, when it is known whether it was a fraud.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# A fraud is reported this many days after the payment.
REPORT_DAYS = 2
# Reports of this many days are remembered against a terminal.
TERMINAL_DAYS = 5
COLUMNS = ["tx_id", "timestamp", "card_id", "terminal_id", "amount", "card_mean_amount", "card_count", "terminal_frauds"]


def _day() -> Column:
    return F.unix_date(F.to_date("timestamp"))


def card_weeks(archive: DataFrame) -> DataFrame:
    """(card_id, week, card_mean_amount, card_count): honest payments known when the week began. A week is day // 7."""
    week = (F.floor((_day() + REPORT_DAYS) / 7) + 1).cast("int")
    known = (
        archive.where(~F.col("is_fraud"))
        .groupBy("card_id", week.alias("week"))
        .agg(F.sum("amount").alias("amount"), F.count("*").alias("payments"))
    )
    span = archive.select(_day().alias("day")).agg(F.min("day").alias("first"), F.max("day").alias("last"))
    weeks = span.select(F.explode(F.sequence((F.col("first") / 7).cast("int"), (F.col("last") / 7).cast("int"))).alias("week"))
    every = known.select("card_id").distinct().crossJoin(F.broadcast(weeks))  # also the weeks in which a card rested
    before = Window.partitionBy("card_id").orderBy("week")
    total, count = F.sum("amount").over(before), F.sum("payments").over(before)
    return (
        every.join(known, ["card_id", "week"], "left")
        .select("card_id", "week", (total / count).alias("card_mean_amount"), count.alias("card_count"))
        .where("card_count > 0")
    )


def terminal_days(archive: DataFrame) -> DataFrame:
    """(terminal_id, day, terminal_frauds): frauds reported within TERMINAL_DAYS before the day; days without any are absent."""
    day = _day()
    remembered = F.sequence(day + REPORT_DAYS + 1, day + REPORT_DAYS + TERMINAL_DAYS)
    return (
        archive.where("is_fraud")
        .select("terminal_id", F.explode(remembered).alias("day"))
        .groupBy("terminal_id", "day")
        .agg(F.count("*").alias("terminal_frauds"))
    )


def enriched(archive: DataFrame) -> DataFrame:
    """COLUMNS for every payment, ordered by tx_id."""
    day = _day()
    cards, terminals = card_weeks(archive), terminal_days(archive)
    return (
        archive.withColumn("day", day)
        .withColumn("week", F.floor(day / 7).cast("int"))
        .join(F.broadcast(cards), ["card_id", "week"], "left")
        .join(F.broadcast(terminals), ["terminal_id", "day"], "left")
        .withColumn("card_count", F.coalesce("card_count", F.lit(0)).cast("long"))
        .withColumn("terminal_frauds", F.coalesce("terminal_frauds", F.lit(0)).cast("long"))
        .select(*COLUMNS)
        .orderBy("tx_id")
    )
