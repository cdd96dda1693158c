//! A short measurement of the switch with the real program: the result is complete, and can be read like any
//! other.

use batzen_testkit::process as common;

use serde_json::Value;

fn measure(arguments: &[&str]) -> Value {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("result");
    let out = out.to_str().unwrap();
    let mut words = vec!["switch", "bench", "--server-cores", "none", "--json", "--out", out];
    words.extend(arguments);
    let output = common::run_lab(&words);
    let (text, err) = (common::stdout(&output), common::stderr(&output));
    assert!(output.status.success(), "{}\n{text}\n{err}", output.status);
    // Tables and comparisons can read it.
    let table = common::run_lab(&["bench", "table", out]);
    assert!(table.status.success(), "{}", common::stderr(&table));
    assert!(common::stdout(&table).contains("switch"), "{}", common::stdout(&table));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

#[test]
fn a_number_of_transfers_is_measured_to_the_last() {
    let result =
        measure(&["--participants", "4", "--count", "300", "--in-flight", "32", "--connections", "16"]);
    assert_eq!(result["scenario"], "switch");
    assert_eq!(result["unit"], "FT");
    assert_eq!(result["ops"], 300);
    assert_eq!(result["errors"], serde_json::json!({}));
    assert_eq!(result["parameters"]["participants"], 4);
    for leg in ["prepare", "fulfil", "whole"] {
        let figures = &result["kinds"][leg];
        assert_eq!(figures["ops"], 300, "{leg}");
        let at = |name: &str| figures[name].as_u64().unwrap();
        assert!(
            at("p50_us") <= at("p99_us") && at("p99_us") <= at("max_us") && at("max_us") > 0,
            "{figures}"
        );
        assert!(result["extra"][format!("{leg}_p95_us")].as_f64().unwrap() > 0.0);
    }
    for figure in ["ftps", "cpu_us_per_ft_switch", "cpu_us_per_ft_simulators", "bytes_per_ft"] {
        assert!(result["extra"][figure].as_f64().unwrap() > 0.0, "{figure}");
    }
    assert_eq!(result["extra"]["windows_closed"], 1.0);
    assert_eq!(result["extra"]["failures"], 0.0);
}

#[test]
fn an_open_loop_is_measured_for_a_time() {
    let result = measure(&["--participants", "2", "--rate", "50", "--duration", "4", "--warmup", "200ms"]);
    assert_eq!(result["load"]["kind"], "open");
    assert_eq!(result["errors"], serde_json::json!({}));
    // Two participants, and no more than were planned.
    assert!((1..=210).contains(&result["ops"].as_u64().unwrap()), "{}", result["ops"]);
}
