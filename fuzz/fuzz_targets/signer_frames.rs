#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| batzen_signer::fuzz_entry::frames(data));
