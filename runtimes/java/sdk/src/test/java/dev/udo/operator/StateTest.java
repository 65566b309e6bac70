package dev.udo.operator;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.File;
import java.time.Instant;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;

class StateTest {
    record Session(long n, Instant last, List<String> seen) {}

    @AsArray
    record Quote(Instant at, Double bid) {}

    record Book(List<Quote> quotes, Map<String, Session> sessions) {}

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

    @Test
    void listsAndMapsInARecordHoldRecordsAndSomeOfThemAreArrays() {
        Instant at = Instant.parse("2024-02-29T12:30:15.123456Z");
        Book book = new Book(List.of(new Quote(at, 9.5), new Quote(at, null)), Map.of("a", new Session(1, at, List.of())));
        Map<?, ?> state = (Map<?, ?>) State.unpack(State.pack(book));
        assertEquals(List.of(List.of(at, 9.5), Arrays.asList(at, null)), state.get("quotes"));
        assertEquals(book, State.record(state, Book.class));
        for (List<?> wrong : List.of(List.of(at), List.of(at, "9.5"))) {
            var error = assertThrows(IllegalArgumentException.class, () -> State.record(Map.of("quotes", List.of(wrong)), Book.class));
            assertTrue(error.getMessage().matches("the state('s bid is a String, not a Double| has .*, not a Quote)"), error.getMessage());
        }
    }
}
