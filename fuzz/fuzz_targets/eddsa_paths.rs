#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| batzen_crypto::fuzz_entry::eddsa_paths(data));
