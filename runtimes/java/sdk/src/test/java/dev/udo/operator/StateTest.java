package dev.udo.operator;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.File;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.util.ArrayList;
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

    private static Key key(List<Key.Timer> timers) {
        return new Key(null, timers, 0, State.pack("k"), null, null);
    }

    private static String refused(Map<String, ?> state) {
        return assertThrows(IllegalArgumentException.class, () -> key(List.of()).setState(state)).getMessage();
    }

    @Test
    void halfASurrogatePairIsRefusedAndWholeOnesAreKept() {
        for (Map<String, ?> broken : List.of(Map.of("v", "a\ud83d"), Map.of("v", List.of("\ude00b")), Map.of("\ud83d\ud83d\ude00", 1))) {
            String said = refused(broken);
            String expected = "the state of key k cannot be stored: text with half a surrogate pair, U\\+[0-9A-F]{4} at index [01]: .*";
            assertTrue(said.matches(expected), said);
        }
        Map<String, Object> whole = Map.of("👩‍👩‍👧", "\ud83d\ude00 ß€?", "", "");
        assertEquals(whole, State.unpack(State.pack(whole)));
    }

    @Test
    void timesBeyondTheYearsOfPythonAreRefusedInStatesTimersAndExpirations() {
        Instant first = Instant.parse("0001-01-01T00:00:00Z");
        List<Instant> beyond = List.of(Instant.MIN, first.minusNanos(1), Instant.parse("+10000-01-01T00:00:00Z"), Instant.MAX);
        List<Key.Timer> timers = new ArrayList<>();
        Key key = key(timers);
        for (Instant at : beyond) {
            assertThrows(IllegalArgumentException.class, () -> key.timer(at));
            assertThrows(IllegalArgumentException.class, () -> key.expire(at));
            assertTrue(refused(Map.of("v", at)).contains("the time " + at + ": "));
        }
        List<?> days = List.of(LocalDate.MIN, LocalDate.of(0, 12, 31), LocalDate.of(10_000, 1, 1), LocalDate.MAX, LocalDateTime.MIN,
            LocalDateTime.of(10_000, 1, 1, 0, 0), LocalDateTime.MAX);
        days.forEach(day -> assertTrue(refused(Map.of("v", day)).contains("of the years 1 to 9999")));
        assertEquals(List.of(), timers);
        assertFalse(key.changed);
        Instant last = Instant.parse("9999-12-31T23:59:59.999999Z");
        key.timer(last);
        key.expire(first);
        assertEquals(List.of(253_402_300_799_999_999L, -62_135_596_800_000_000L), List.of(timers.get(0).atUs(), key.expiresUs));
        List<?> kept = List.of(last, LocalDate.of(1, 1, 1), LocalDate.of(9999, 12, 31), LocalDateTime.of(9999, 12, 31, 23, 59));
        assertEquals(kept, State.unpack(State.pack(kept)));
    }

    @Test
    void aNullIsNoState() {
        Key key = key(List.of());
        for (var set : List.<Runnable>of(() -> key.setState((Map<String, ?>) null), () -> key.setState((Record) null))) {
            assertTrue(assertThrows(NullPointerException.class, set::run).getMessage().contains("clear() drops it"));
        }
        assertFalse(key.changed);
    }
}
