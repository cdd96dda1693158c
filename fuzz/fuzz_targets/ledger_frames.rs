#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| batzen_ledger_service::net::fuzz_entry::frames(data));
