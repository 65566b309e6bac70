package org.apache.spark.sql.udo

import java.net.URI
import java.nio.file.Files
import java.nio.file.attribute.PosixFilePermissions

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs._
import org.apache.hadoop.fs.local.LocalConfigKeys
import org.apache.hadoop.fs.permission.FsPermission

/**
 * Hadoop's local file system, which asks the kernel to set permissions. The original, where Hadoop's native library is missing, as in
 * PySpark, starts a `chmod` process for each file and directory it makes. See udo_interface/local_files.py.
 */
class LocalFiles extends LocalFileSystem(new RawLocalFiles)

/** The file system for callers of FileContext, such as Spark's checkpoints. */
class LocalFilesContext(@annotation.unused uri: URI, conf: Configuration) extends ChecksumFs(new RawLocalFilesContext(conf))

private[udo] class RawLocalFiles extends RawLocalFileSystem {
  override def setPermission(path: Path, permission: FsPermission): Unit =
    if (permission.getStickyBit) super.setPermission(path, permission)
    else {
      val Seq(user, group, other) = Seq(permission.getUserAction, permission.getGroupAction, permission.getOtherAction).map(_.SYMBOL)
      Files.setPosixFilePermissions(pathToFile(path).toPath, PosixFilePermissions.fromString(user + group + other))
    }
}

private[udo] class RawLocalFilesContext(conf: Configuration)
    extends DelegateToFileSystem(FsConstants.LOCAL_FS_URI, new RawLocalFiles, conf, FsConstants.LOCAL_FS_URI.getScheme, false) {
  override def getUriDefaultPort: Int = -1
  override def getServerDefaults(path: Path): FsServerDefaults = LocalConfigKeys.getServerDefaults
  @deprecated("as its parent's", "") override def getServerDefaults: FsServerDefaults = LocalConfigKeys.getServerDefaults
  override def isValidName(name: String): Boolean = true // a Linux path may have any character
}
