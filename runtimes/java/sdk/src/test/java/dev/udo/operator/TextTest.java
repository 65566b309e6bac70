package dev.udo.operator;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import org.junit.jupiter.api.Test;

class TextTest {
    @Test
    void whatIsCutKeepsItsBeginningAndItsEndAndSaysHowMuchIsMissing() {
        assertEquals("x".repeat(100), Text.cut("x".repeat(100), 100));
        String cut = Text.cut("a".repeat(1_000_000) + "z".repeat(1_000_000), 100);
        assertEquals("a".repeat(30) + " … 1,999,940 characters cut … " + "z".repeat(30), cut);
        assertTrue(cut.length() <= 100);
    }

    @Test
    void noCharacterIsCutInTwoAndWhatWasHalfIsAQuestionMark() {
        for (String before : new String[] {"", "a"}) {
            String cut = Text.cut(before + "\ud83d\ude00".repeat(1_000), 101);
            assertTrue(cut.codePoints().noneMatch(c -> c == '?' || Character.isBmpCodePoint(c) && Character.isSurrogate((char) c)), cut);
            assertTrue(cut.length() <= 101, cut);
        }
        assertEquals("a?b", Text.cut("a\ud83db", 100));
    }
}
