#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| batzen_protocol::liabilities::fuzz_entry::documents(data));
