//! The kept results of the privacy game (`docs/results/privacy`, shown in `docs/privacy.md`).

#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;

use serde_json::Value;

fn kept(name: &str) -> Vec<Value> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let text = std::fs::read_to_string(docs.join("results/privacy").join(format!("{name}.json"))).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn advantage(report: &Value, attack: &str, of: &str) -> f64 {
    let attacks = report["attacks"].as_array().unwrap();
    attacks.iter().find(|result| result["attack"] == attack).unwrap()[of]["mean"].as_f64().unwrap()
}

#[test]
fn common_sums_halve_the_advantage() {
    let reports = kept("round-sums");
    let [before, after] = reports.as_slice() else { panic!("a comparison of two kinds of wallets") };
    assert_eq!(
        (&before["wallet"]["round_sums"], &after["wallet"]["round_sums"]),
        (&false.into(), &true.into())
    );
    for of in ["advantage", "account_advantage"] {
        let (before, after) = (advantage(before, "combined", of), advantage(after, "combined", of));
        assert!(after * 2.0 < before, "{of}: {before} {after}");
    }
}

#[test]
fn identifiers_are_at_chance() {
    for name in ["round-sums", "round-sums-assortment", "plans-ahead", "refresh-delay"] {
        for report in kept(name) {
            let blindness = &report["blindness"];
            let (deviation, bound) = (&blindness["deviation"], &blindness["bound"]);
            assert!(deviation.as_f64().unwrap().abs() < bound.as_f64().unwrap(), "{name}: {blindness}");
            assert!(advantage(&report, "identifiers", "advantage").abs() < 1e-9, "{name}");
        }
    }
}
