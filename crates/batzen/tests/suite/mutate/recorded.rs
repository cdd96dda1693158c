//! Recorded requests of an independent client: `crates/base/protocol/tests/vectors/http`.

use std::path::Path;

use serde_json::Value;

use crate::mutate::seeds::{Seed, Seeds};

/// The currency of the services in this test, which replaces those of the recordings.
pub(super) const CURRENCY: &str = "KUDOS";

fn in_our_currency(value: &mut Value) {
    match value {
        Value::String(text) => {
            for currency in ["TESTKUDOS:", "EUR:"] {
                if let Some(number) = text.strip_prefix(currency) {
                    *text = format!("{CURRENCY}:{number}");
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(in_our_currency),
        Value::Object(members) => members.values_mut().for_each(in_our_currency),
        _ => {}
    }
}

/// Adds the requests recorded at this server: `exchange` or `bank`.
pub(super) fn add(seeds: &mut Seeds, server: &str) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../base/protocol/tests/vectors/http");
    let mut files: Vec<_> = std::fs::read_dir(dir).unwrap().map(|file| file.unwrap().path()).collect();
    files.sort();
    for file in files.iter().filter(|file| file.extension().is_some_and(|extension| extension == "jsonl")) {
        for line in std::fs::read_to_string(file).unwrap().lines() {
            let mut case: Value = serde_json::from_str(line).unwrap();
            if case["server"] != server {
                continue;
            }
            let request = &mut case["request"];
            in_our_currency(&mut request["body"]);
            let mut seed = Seed::new(request["method"].as_str().unwrap(), request["path"].as_str().unwrap());
            if request["body"].is_object() {
                seed = seed.json(&request["body"]);
            }
            seeds.add(seed);
        }
    }
}
