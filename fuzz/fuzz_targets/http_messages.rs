#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| batzen_http::codec::fuzz_entry::frame(data));
