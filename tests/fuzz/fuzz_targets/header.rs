//! The frame codec against arbitrary bytes: it never panics, and whatever it accepts it writes back.

#![no_main]

use libfuzzer_sys::fuzz_target;
use wire::{HEADER_BYTES, WireError, decode_header, encode_header, payload_bytes};

// The file itself: the codec is private to its crate.
#[allow(dead_code, unreachable_pub, reason = "a module of another crate")]
#[path = "../../../crates/bonfire-collective/src/transport/wire.rs"]
mod wire;

fuzz_target!(|bytes: &[u8]| {
    let length = payload_bytes(bytes);
    match decode_header(bytes) {
        Ok((operation, payload)) => {
            assert_eq!(
                length,
                Ok(payload),
                "the short reading differs from the full one"
            );
            let written = encode_header(&operation, payload);
            let again = decode_header(&written);
            assert_eq!(
                again,
                Ok((operation.clone(), payload)),
                "not what was written"
            );
            // What people read of it in an error.
            assert!(!operation.to_string().is_empty());
        }
        Err(WireError::Short(len)) => {
            assert_eq!(len, bytes.len());
            assert!(len < HEADER_BYTES, "{len} bytes are enough for a header");
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
