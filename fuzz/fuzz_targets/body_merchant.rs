#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| batzen_protocol::fuzz_entry::body_merchant(data));
