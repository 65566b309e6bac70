//! Golden states: each is read, and written again with the same bytes.

use udo_operator::{State, Value, pack, unpack};

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../conformance/state.json");

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|n| u8::from_str_radix(&hex[n..n + 2], 16).unwrap()).collect()
}

#[test]
fn golden_states_are_read_and_written_again() {
    let text = std::fs::read_to_string(std::env::var("GOLDEN").unwrap_or(GOLDEN.to_string())).unwrap();
    let packed: Vec<_> =
        text.lines().filter_map(|line| line.trim().strip_prefix("\"packed\": \"")).map(|hex| bytes(hex.trim_end_matches('"'))).collect();
    assert!(packed.len() > 10, "no golden states in {GOLDEN}");
    for state in packed {
        let read: State = unpack(&state).unwrap();
        assert_eq!(pack(&read).unwrap(), state, "{read:?}");
    }
}

#[test]
fn an_integer_of_any_width_is_the_same_integer_and_no_float() {
    for hex in ["05", "cc05", "cd0005", "ce00000005", "cf0000000000000005", "d005", "d10005", "d200000005", "d30000000000000005"] {
        assert_eq!(unpack::<Value>(&bytes(hex)).unwrap().as_int(), Some(5), "{hex}");
    }
    assert!(matches!(unpack(&bytes("cb3ff0000000000000")).unwrap(), Value::Float(1.0)));
    assert!(unpack::<i64>(&bytes("cb3ff0000000000000")).is_err());
}

#[test]
fn a_map_with_other_keys_than_text_is_refused() {
    for hex in ["81a17681c4016b02", "81a17681c001", "81a1768101cb3ff0000000000000"] {
        assert!(unpack::<State>(&bytes(hex)).is_err(), "{hex}");
    }
}
