package org.apache.spark.sql.udo

import java.io.{ByteArrayInputStream, IOException}
import java.nio.charset.StandardCharsets.ISO_8859_1
import java.nio.file.{Files, Path, Paths}
import java.nio.file.attribute.BasicFileAttributes
import java.security.{GeneralSecurityException, KeyFactory, KeyStore, PrivateKey, PublicKey}
import java.security.cert.{Certificate, CertificateException, CertificateFactory, X509Certificate}
import java.security.spec.PKCS8EncodedKeySpec
import java.util.Base64
import javax.net.ssl.{KeyManagerFactory, SSLContext, SSLEngine, SSLHandshakeException, TrustManagerFactory}

import scala.jdk.CollectionConverters._

/**
 * This host's certificates for connections to others, as udo_protocol/certificates.py: a folder with ca.crt, tls.crt and tls.key in PEM
 * form, read again when one of the files has changed.
 */
private[udo] object Certificates {
  private val SystemFolder = Paths.get("/etc/udo/tls")
  // A certificate and its key are two files: a read that falls between their replacements is repeated.
  private val Reads = 5
  private val ReadAgainMs = 20L
  private val DnsName = 2 // X509Certificate.getSubjectAlternativeNames
  private val Pem = """(?s)-----BEGIN ([A-Z0-9 ]*PRIVATE KEY)-----(.*?)-----END \1-----""".r
  private var last: (Path, Seq[Any], SSLContext) = _

  /**
   * The TLS of one connection to this host: it checks the server's chain, and `checkName` its name. `address`: the server's name in errors.
   */
  def engine(host: String, port: Int, address: String, setting: Option[String]): SSLEngine = {
    val folder = found(setting).getOrElse(
      throw UdoException.byCode(
        "usage",
        s"$address needs certificates, since both sides authenticate: a folder with a CA, a certificate and its key (spark.udo.tls, UDO_TLS; " +
          "docs/executors.md)"))
    val made = context(folder).createSSLEngine(host, port)
    made.setUseClientMode(true)
    if (!host.contains('_')) {
      val checked = made.getSSLParameters
      checked.setEndpointIdentificationAlgorithm("HTTPS")
      made.setSSLParameters(checked)
    }
    made
  }

  /**
   * Check that the certificate of the server at the other end is for its host, if the handshake has not. Java's own check does not accept
   * a name with an underscore as a host's name; Docker Compose gives such names to containers.
   */
  def checkName(engine: SSLEngine): Unit = if (engine.getSSLParameters.getEndpointIdentificationAlgorithm == null) {
    val host = engine.getPeerHost
    val shown = engine.getSession.getPeerCertificates.head.asInstanceOf[X509Certificate].getSubjectAlternativeNames
    val names = Option(shown).toSeq.flatMap(_.asScala).collect { case name if name.get(0) == DnsName => name.get(1).toString }
    // RFC 6125, 6.4: letters of either case, and a "*" stands for the first label.
    if (!names.exists(name => name.equalsIgnoreCase(host) || name.startsWith("*.") && name.drop(1).equalsIgnoreCase(host.dropWhile(_ != '.')))) {
      val why = new CertificateException(s"it is for ${if (names.isEmpty) "no host's name" else names.mkString(", ")}, not for $host")
      throw new SSLHandshakeException(why.getMessage).initCause(why)
    }
  }

  /** The folder that was set, else UDO_TLS, else `tls` in the home of `udo up`, else the system's. */
  def found(setting: Option[String]): Option[Path] =
    setting.orElse(Option(System.getenv("UDO_TLS"))).filter(_.nonEmpty) match {
      case Some(given) => Some(NodeDoor.expanded(given).toAbsolutePath)
      case None => Seq(NodeDoor.home.resolve("tls"), SystemFolder).find(Files.isDirectory(_))
    }

  private def context(folder: Path): SSLContext = synchronized {
    val files = Seq("ca.crt", "tls.crt", "tls.key").map(folder.resolve)
    val stamp = files.map(stampOf)
    if (last == null || last._1 != folder || last._2 != stamp) last = (folder, stamp, loaded(files))
    last._3
  }

  /** A value that changes whenever the file is replaced or written. */
  private def stampOf(file: Path): Any =
    try {
      val found = Files.readAttributes(file, classOf[BasicFileAttributes])
      (found.fileKey, found.lastModifiedTime, found.size)
    } catch {
      case e: IOException =>
        throw UdoException.byCode(
          "usage", s"$file cannot be read: $e; expected a folder with ca.crt, tls.crt and tls.key (udo certs makes them)")
    }

  private def loaded(files: Seq[Path]): SSLContext = {
    val Seq(ca, certificate, key) = files
    val trusted = tried(s"certificates in PEM form in $ca") {
      val store = empty()
      certificates(ca).zipWithIndex.foreach { case (one, at) => store.setCertificateEntry(s"ca$at", one) }
      val factory = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm)
      factory.init(store)
      factory.getTrustManagers
    }
    val own = tried(s"a certificate in $certificate and its key in $key, in PEM form") {
      val chain = certificates(certificate)
      val store = empty()
      store.setKeyEntry("own", privateKey(key, chain.head.getPublicKey), Array.emptyCharArray, chain.toArray)
      val factory = KeyManagerFactory.getInstance(KeyManagerFactory.getDefaultAlgorithm)
      factory.init(store, Array.emptyCharArray)
      factory.getKeyManagers
    }
    val made = SSLContext.getInstance("TLS")
    made.init(own, trusted, null)
    made
  }

  private def tried[T](expected: String)(step: => T): T = {
    var left = Reads
    while (true) {
      left -= 1
      try return step
      catch {
        case e @ (_: IOException | _: GeneralSecurityException | _: IllegalArgumentException) if left == 0 =>
          throw UdoException.byCode("usage", s"expected $expected: ${e.getMessage}")
        case _: IOException | _: GeneralSecurityException | _: IllegalArgumentException => Thread.sleep(ReadAgainMs)
      }
    }
    throw new IllegalStateException
  }

  private def empty(): KeyStore = {
    val made = KeyStore.getInstance(KeyStore.getDefaultType)
    made.load(null, null)
    made
  }

  private def certificates(file: Path): Seq[Certificate] = {
    val found = CertificateFactory.getInstance("X.509").generateCertificates(new ByteArrayInputStream(Files.readAllBytes(file))).asScala.toSeq
    if (found.isEmpty) throw new IllegalArgumentException(s"there is none in $file")
    found
  }

  /**
   * The key in this file, of the same kind as the certificate's. Java reads PKCS #8 only ("PRIVATE KEY"); the forms "RSA PRIVATE KEY" and
   * "EC PRIVATE KEY", which cert-manager writes, are the part of PKCS #8 after the algorithm, which is taken from the certificate.
   */
  private def privateKey(file: Path, of: PublicKey): PrivateKey = {
    val (kind, text) = Pem.findFirstMatchIn(new String(Files.readAllBytes(file), ISO_8859_1)).map(m => (m.group(1), m.group(2))).getOrElse(
      throw new IllegalArgumentException(s"there is no private key in $file"))
    if (kind.contains("ENCRYPTED") || text.contains("ENCRYPTED"))
      throw new IllegalArgumentException(s"the key in $file is encrypted, expected one without a password")
    val bytes = Base64.getMimeDecoder.decode(text)
    val whole = if (kind == "PRIVATE KEY") bytes else Der.of(0x30, Der.of(0x02, Array[Byte](0)) ++ Der.first(of.getEncoded) ++ Der.of(0x04, bytes))
    KeyFactory.getInstance(of.getAlgorithm).generatePrivate(new PKCS8EncodedKeySpec(whole))
  }

  /** The part of DER that is needed to put a key into PKCS #8. */
  private object Der {
    /** An element with this tag. */
    def of(tag: Int, content: Array[Byte]): Array[Byte] = {
      val size = BigInt(content.length).toByteArray.dropWhile(_ == 0)
      val length = if (content.length < 0x80) Array(content.length.toByte) else (0x80 | size.length).toByte +: size
      (tag.toByte +: length) ++ content
    }

    /** The whole first element of a sequence. */
    def first(sequence: Array[Byte]): Array[Byte] = {
      val inside = sequence.drop(contentAt(sequence))
      inside.take(contentAt(inside) + sizeOf(inside))
    }

    private def contentAt(element: Array[Byte]): Int = 2 + (if (element(1) < 0) element(1) & 0x7f else 0)

    private def sizeOf(element: Array[Byte]): Int =
      if (element(1) >= 0) element(1) else element.slice(2, contentAt(element)).foldLeft(0)((size, b) => size << 8 | (b & 0xff))
  }
}
