#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| batzen_liabilities::fuzz_entry::documents(data));
