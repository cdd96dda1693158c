#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    batzen_http::fuzz_entry::serve_concurrent(data);
    batzen_http::client::fuzz_entry::receive_concurrent(data);
});
