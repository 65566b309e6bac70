//! Bounds text: the beginning and the end stay, and a note between them says how much was cut.

/// Room for the longest note.
const NOTE_CHARS: usize = 48;

/// The text itself, or its beginning and its end with a note, at most `most` characters in all.
pub(crate) fn cut(text: String, most: usize) -> String {
    let chars = if text.len() <= most { return text } else { text.chars().count() };
    if chars <= most {
        return text;
    }
    let half = (most - NOTE_CHARS) / 2;
    let at = |n| text.char_indices().nth(n).map_or(text.len(), |(at, _)| at);
    format!("{} … {} characters cut … {}", &text[..at(half)], chars - 2 * half, &text[at(chars - half)..])
}
