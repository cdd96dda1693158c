#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| batzen_http::fuzz_entry::concurrent(data));
