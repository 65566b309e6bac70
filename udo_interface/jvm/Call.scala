package org.apache.spark.sql.udo

import java.nio.{ByteBuffer, ByteOrder}
import java.nio.charset.StandardCharsets.UTF_8
import java.security.SecureRandom
import java.util.{Base64, HexFormat, Locale}

import org.apache.spark.TaskContext
import org.apache.spark.sql.catalyst.InternalRow
import org.apache.spark.unsafe.hash.Murmur3_x86_32

/** The layout of a keyed call: see Keys in udo_interface/spark/task.py. */
private[udo] final case class Keys(partitions: Int, call: String, startEmpty: Boolean, plan: Long, groups: Int) {
  /** The key groups that Spark's hash partitioning sends to this partition. */
  def of(partition: Int): Seq[Int] =
    (0 until groups).filter(g => Math.floorMod(Murmur3_x86_32.hashInt(g, Keys.Seed), partitions) == partition)
}

private[udo] object Keys {
  private val Seed = 42 // of Spark's hash partitioning
}

/**
 * One call of an operator in a query, as udo_interface/spark/jvm_path.py describes it: plain values, and no secrets, since the call is part of
 * Spark's plan. `input` and `output` are Arrow IPC schemas, `columns` the input's names; the last one of a keyed call is the group.
 */
private[udo] final case class Call(
    deployment: String,
    what: String,
    app: String,
    uid: String,
    pinEpoch: Boolean,
    window: Int,
    node: Option[String],
    nodeWait: Option[String],
    tls: Option[String],
    keys: Option[Keys],
    columns: Seq[String],
    input: Seq[Byte],
    inputId: Seq[Byte],
    output: Seq[Byte],
    outputId: Seq[Byte]) {
  def group: Int = columns.size - 1
}

private[udo] object Call {
  def parse(text: String): Call = {
    val told = LaneEnd.Json.readTree(text)
    def string(name: String) = told.path(name).asText("")
    def option(name: String) = Option(told.get(name)).filterNot(_.isNull)
    def bytes(name: String) = Base64.getDecoder.decode(string(name)).toSeq
    val keys = option("keys").map { k =>
      Keys(
        k.path("partitions").asInt, k.path("call").asText, k.path("start_empty").asBoolean, k.path("plan").asLong,
        k.path("key_groups").asInt)
    }
    val columns = Seq.tabulate(told.path("columns").size)(told.path("columns").get(_).asText)
    Call(
      string("deployment"), string("what"), string("app"), string("uid"), told.path("pin_epoch").asBoolean, told.path("window").asInt(0),
      option("node").map(_.asText), option("node_wait").map(_.asText), option("tls").map(_.asText), keys, columns, bytes("input"), bytes("input_id"), bytes("output"),
      bytes("output_id"))
  }
}

/** The marks of a keyed attempt's frames: see Stamp in udo_interface/lane/place.py. */
private[udo] final case class Stamp(run: Long, epoch: Long, attempt: Long, startEmpty: Boolean, job: Boolean, since: Option[Long]) {
  /** The label by which the slot refuses older attempts early; compares as text, so its digits are not those of the JVM's locale. */
  def order: String = "%019d:%019d:%019d".formatLocal(Locale.ROOT, run, epoch, attempt)
}

/** The keyed part of an attempt: the run of its query (empty: a batch job), and the key groups that it answers for. */
private[udo] final case class KeyedAttempt(keys: Keys, run: String, groups: Seq[Int], since: Option[Long])

/** The task's place in its query: see Task.request in udo_interface/spark/task.py. */
private[udo] final case class Attempt(session: String, epoch: Long, partition: Int, attempt: Long, keyed: Option[KeyedAttempt]) {
  /** Its stamp in the run to which the node manager gave this number. */
  def stamp(run: Long): Option[Stamp] =
    keyed.map(k => Stamp(if (run > 0) run else 1, epoch, attempt, k.keys.startEmpty, k.run.isEmpty, k.since))
}

private[udo] object Attempt {
  private val random = new SecureRandom
  private val WordBytes = 4

  /** The attempt of this task. A keyed call's rows begin with mark rows that name their partition and epoch; these are consumed. */
  def of(call: Call, rows: Iterator[InternalRow], context: TaskContext): Attempt = call.keys match {
    case Some(keys) => marked(call, keys, rows, context)
    case None =>
      def local(name: String) = Option(context.getLocalProperty(name))
      val (session, epoch) = local("sql.streaming.queryId") match {
        case Some(query) => (query, local("streaming.sql.batchId").fold(0L)(_.toLong))
        case None => // a batch job is one epoch of a session of its own
          val job = local("spark.sql.execution.id").getOrElse(s"stage${context.stageId()}")
          (s"${call.app}/$job", 0L)
      }
      Attempt(session, epoch, context.partitionId(), context.taskAttemptId(), None)
  }

  private def marked(call: Call, keys: Keys, rows: Iterator[InternalRow], context: TaskContext): Attempt = {
    val length = if (rows.hasNext) -rows.next().getInt(call.group) else 0
    if (length <= 0)
      throw UdoException.protocol("a partition of a keyed call begins without the rows that say which one it is: something has been put between")
    val words = (length + WordBytes - 1) / WordBytes
    val said = ByteBuffer.allocate(words * WordBytes).order(ByteOrder.LITTLE_ENDIAN)
    while (said.hasRemaining) {
      if (!rows.hasNext) throw UdoException.protocol(s"a partition of a keyed call ends within the $length bytes that say which one it is")
      said.putInt(rows.next().getInt(call.group))
    }
    val told = LaneEnd.Json.readTree(new String(said.array, 0, length, UTF_8))
    if (told.path("asynchronous").asBoolean)
      throw UdoException.byCode(
        "usage",
        s"${call.what} keeps state, and this query was started with asyncProgressTrackingEnabled: a restart would run several of its epochs " +
          "as one, and their events would count twice. Start it without that option (and not in real-time mode)")
    val query = told.path("query").asText("")
    val session = if (query.nonEmpty) query else s"${call.app}/${told.path("job").asText}"
    val partition = told.path("partition").asInt
    val since = Option(told.get("since")).map(_.asLong)
    val keyed = KeyedAttempt(keys, told.path("run").asText(""), keys.of(partition), since)
    Attempt(
      if (call.uid.isEmpty) session else s"$session.${call.uid}", told.path("epoch").asLong(0), partition, context.taskAttemptId(), Some(keyed))
  }

  /** A lane id unique to this attempt, readable in `udo status` and in logs. */
  def lane(call: Call, of: Attempt): String = {
    val own = new Array[Byte](4)
    random.nextBytes(own)
    val parts = Seq(of.session.takeRight(12), if (call.uid.isEmpty) "0" else call.uid, of.epoch, of.partition, of.attempt)
    parts.map(_.toString.replace(' ', '_').replace(':', '_')).mkString(".") + "." + HexFormat.of().formatHex(own)
  }
}
