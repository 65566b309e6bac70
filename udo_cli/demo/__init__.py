"""The demo: card transactions through Spark, two operators, one of them replaced while the query runs, and a strict count."""
