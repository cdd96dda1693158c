//! A short measurement of the switch with the real program: the result is complete, and can be read like any
//! other.

use batzen_testkit::process as common;

use common::Service;
use serde_json::Value;

use crate::commands::{logged, printed};

fn measure(arguments: &[&str]) -> Value {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("result");
    let out = out.to_str().unwrap();
    let words = ["switch", "bench", "--server-cores", "none", "--json", "--out", out];
    let result = printed(common::lab().args(words).args(arguments));
    // Tables and comparisons can read it.
    let table = common::run_lab(&["bench", "table", out]);
    assert!(table.status.success(), "{}", common::stderr(&table));
    assert!(common::stdout(&table).contains("switch"), "{}", common::stdout(&table));
    result
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
    // What the disk wrote is published only where the kernel tells, and then it is not less than the store synced.
    let per_ft = |figure: &str| result["extra"].get(figure).map(|value| value.as_f64().unwrap());
    if let Some(device) = per_ft("device_bytes_per_ft") {
        assert!(device >= per_ft("bytes_per_ft").unwrap(), "{device}");
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

/// Loopback addresses stand for two hosts: the switch is at one, its participants at the other.
#[test]
fn participants_play_on_another_host_than_the_switch() {
    let dir = tempfile::tempdir().unwrap();
    let tokens = ["secret-token:one-and-secret", "secret-token:two-and-secret"];
    let sections: Vec<String> = ["one", "two"]
        .iter()
        .zip(tokens)
        .map(|(name, token)| format!("[switch-operator-{name}]\nTOKEN = {token}\n"))
        .collect();
    let (config, file) = (dir.path().join("switch.conf"), dir.path().join("tokens"));
    std::fs::write(&config, sections.concat()).unwrap();
    std::fs::write(&file, tokens.join("\n")).unwrap();
    let words = ["switch", "serve", "--bind", "127.0.0.2", "--port", "0", "--admin-port", "0"];
    let more = ["--in-memory", "-c", config.to_str().unwrap()];
    let mut switch = Service::start(dir.path(), "switch", &[&words[..], &more].concat());
    let ready = logged(&mut switch, dir.path(), "switch", |log| {
        log.lines().find_map(|line| line.strip_prefix("switch ready: ")).map(str::to_owned)
    });
    let addresses: Vec<&str> =
        ready.split(' ').filter_map(|word| word.strip_prefix("http://")?.strip_suffix('/')).collect();
    let [participants, operators] = addresses[..] else { panic!("{ready}") };
    let words = ["switch", "fsps", "--switch", participants, "--admin", operators, "--json"];
    let more = ["--tokens", file.to_str().unwrap(), "--callback-bind", "127.0.0.3", "--participants", "2"];
    let load = ["--count", "40", "--in-flight", "8"];
    let result = printed(common::lab().args(words).args(more).args(load));
    assert_eq!((&result["committed"], &result["failures"]), (&40.into(), &serde_json::json!({})));
}
