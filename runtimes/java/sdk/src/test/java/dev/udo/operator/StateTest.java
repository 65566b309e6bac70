package dev.udo.operator;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.File;
import java.time.Instant;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;

class StateTest {
    record Session(long n, Instant last, List<String> seen) {}

    /** Each golden value, read and written again, has the same bytes. */
    @Test
    void goldenStatesAreReadAndWrittenAgain() throws Exception {
        JsonNode golden = new ObjectMapper().readTree(new File(System.getProperty("golden", "../../conformance/state.json")));
        assertFalse(golden.isEmpty());
        for (JsonNode each : golden) {
            String packed = each.get("packed").asText();
            Object state = State.unpack(HexFormat.of().parseHex(packed));
            assertEquals(packed, HexFormat.of().formatHex(State.pack(state)), each.get("name") + " became " + state);
        }
    }

    @Test
    void aRecordIsAStateAndAStateARecord() {
        Session session = new Session(3, Instant.parse("2024-02-29T12:30:15.123456Z"), List.of("a"));
        Map<?, ?> state = (Map<?, ?>) State.unpack(State.pack(session));
        assertEquals(session, State.record(state, Session.class));
        assertEquals(new Session(0, null, null), State.record(Map.of(), Session.class));
    }
}
