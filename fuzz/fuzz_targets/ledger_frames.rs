#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| batzen_ledger_net::fuzz_entry::frames(data));
