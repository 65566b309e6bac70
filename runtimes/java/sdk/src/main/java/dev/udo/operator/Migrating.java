package dev.udo.operator;

import java.util.Map;

/** Converts states written by a version with another state_version (migrates_from in operator.toml). */
public interface Migrating {
    Map<String, Object> migrate(Map<String, Object> old, int fromVersion) throws Exception;
}
