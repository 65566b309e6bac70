package org.apache.spark.sql.udo

import java.nio.charset.StandardCharsets.UTF_8

import scala.jdk.CollectionConverters._

/**
 * The slots that a deployment's frames go to, as a slot sends them with MOVED (udo_protocol/queue/route.py). A keyed deployment's route has
 * a group map too: for each key group the index of its slot, and for each slot the version by which it takes frames under this map.
 */
private[udo] final case class Route(version: Long, slots: Seq[String], mapVersion: Long, groups: Array[Int], versions: Seq[Long])

private[udo] object Route {
  /** Parse the text in a MOVED answer; a protocol error if it is no route. */
  def parse(table: Array[Byte]): Route = {
    val text = new String(table, UTF_8)
    def refuse(why: String) = throw UdoException.protocol(s"expected a route as JSON, with version and slots, got ${text.take(200)}: $why")
    val told =
      try LaneEnd.Json.readTree(text)
      catch {
        case e: com.fasterxml.jackson.core.JsonProcessingException => refuse(e.getOriginalMessage)
      }
    def list(name: String) = told.path(name).asScala.toSeq
    if (!told.path("version").canConvertToLong || !told.path("slots").isArray) refuse("it has none")
    val route = Route(
      told.path("version").asLong, list("slots").map(_.asText), told.path("map_version").asLong(0), list("groups").map(_.asInt).toArray,
      list("versions").map(_.asLong))
    if (route.groups.nonEmpty && (route.groups.max >= route.slots.size || route.versions.size != route.slots.size))
      refuse("a group map names slots that the route does not have")
    route
  }
}
