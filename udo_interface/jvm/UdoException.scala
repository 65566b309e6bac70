package org.apache.spark.sql.udo

import java.lang.reflect.Constructor

import org.apache.spark.QueryContext
import org.apache.spark.api.python.PythonException

/** An error of udo_protocol/errors.py, as a Spark user sees it from the Python path: its class there and its text, without a stack. */
final class UdoException(val kind: String, text: String) extends RuntimeException(text, null, false, false) {
  override def toString: String = s"udo_protocol.errors.$kind: $getMessage"

  /**
   * The error as it leaves the task: in the form of a Python worker's error, so that its text and its class are those of the Python path.
   * Spark's driver could not read a class of this jar from a failed task, and would show no reason.
   */
  def forSpark: PythonException = {
    val error = UdoException.shown(toString)
    error.setStackTrace(Array.empty)
    error
  }
}

object UdoException {
  /** Makes Spark's error of a text; in Spark 4.0 it has no error class. */
  private val shown: String => PythonException = {
    val made = classOf[PythonException].getConstructors.asInstanceOf[Array[Constructor[PythonException]]]
    made.find(_.getParameterCount == 2) match {
      case Some(plain) => text => plain.newInstance(text, null)
      case None =>
        val classed = made.find(_.getParameterTypes.apply(1) == classOf[Map[_, _]]).get
        text => classed.newInstance("PYTHON_EXCEPTION", Map("msg" -> text, "traceback" -> ""), null, Array.empty[QueryContext], "")
    }
  }

  private val kinds = Map(
    "usage" -> "UsageError", "manifest" -> "ManifestError", "schema" -> "SchemaError", "not_found" -> "NotFound",
    "conflict" -> "Conflict", "unauthorized" -> "Unauthorized", "signature" -> "SignatureError", "refused" -> "Refused",
    "peer" -> "PeerError", "server" -> "PeerError", "unavailable" -> "Unavailable", "node_away" -> "NodeAway", "slots_away" -> "SlotsAway",
    "timeout" -> "WaitTimeout", "server_lost" -> "ServerLost", "untrusted" -> "Untrusted", "lane_expired" -> "LaneExpired",
    "protocol" -> "ProtocolError", "stray_answer" -> "StrayAnswer", "slot_broken" -> "SlotBroken", "state_lost" -> "StateLost",
    "state_elsewhere" -> "StateElsewhere", "two_producers" -> "TwoProducers", "stale" -> "Stale", "fenced" -> "Fenced",
    "operator" -> "OperatorError")

  /** The error of a wire code; a code that this version does not know becomes a plain UdoError. */
  def byCode(code: String, text: String): UdoException = new UdoException(kinds.getOrElse(code, "UdoError"), text)

  def serverLost(text: String): UdoException = byCode("server_lost", text)
  def protocol(text: String): UdoException = byCode("protocol", text)

  /** Cut a text as udo_protocol/cut.py does: the beginning and the end stay. */
  def cut(text: String, most: Int): String =
    if (text.length <= most) text
    else {
      val half = most / 2
      val missing = String.format(java.util.Locale.ROOT, "%,d", Int.box(text.length - 2 * half))
      s"${text.take(half)} … $missing characters cut … ${text.takeRight(half)}"
    }
}
