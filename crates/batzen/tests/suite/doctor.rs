//! `batzen doctor` as people and scripts use it.

use crate::common;

use batzen_testkit::postgres::{Cluster, ClusterOptions, fresh_database};
use common::{run, stderr, stdout};
use serde_json::Value;

#[test]
fn a_server_that_does_not_sync_is_exit_2_in_words_and_in_json() {
    let url = fresh_database();
    let output = run(&["doctor", "--database", &url, "--sample", "0.1"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(text.contains("CRITICAL  fsync is off"), "{text}");
    assert!(text.contains("type      ALTER SYSTEM SET fsync = on;"), "{text}");
    let output = run(&["doctor", "--database", &url, "--sample", "0.1", "--json"]);
    assert_eq!(output.status.code(), Some(2));
    let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!(report["severity"], "critical");
    assert_eq!(report["findings"][0]["rule"], "fsync");
    assert_eq!(report["facts"]["settings"]["fsync"]["setting"], "off");
}

#[test]
fn a_sound_server_is_exit_0_and_its_fragment_is_a_file_it_takes() {
    let mut cluster = Cluster::start(&ClusterOptions::default()).unwrap();
    let url = cluster.url("postgres");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("tuned.conf");
    // A machine that suits the cluster's cache size.
    let machine = ["--memory", "256MB", "--cores", "2", "--sample", "0.1"];
    let mut words = vec!["doctor", "--database", &url, "--fragment", file.to_str().unwrap()];
    words.extend(machine);
    let output = run(&words);
    let fragment = std::fs::read_to_string(&file).unwrap();
    assert!(fragment.contains("shared_buffers = 64MB"), "{fragment}");
    assert!(stderr(&output).contains("tuned.conf"));
    // This test does not judge the speed of the machine's disk.
    let code = output.status.code();
    assert!(code == Some(0) || stdout(&output).contains("disk"), "{code:?}: {}", stdout(&output));
    words[4] = "-";
    assert_eq!(stdout(&run(&words)), fragment);

    cluster.stop(batzen_testkit::postgres::Mode::Fast).unwrap();
    let conf = cluster.data_dir().join("postgresql.conf");
    let own = std::fs::read_to_string(&conf).unwrap();
    std::fs::write(&conf, own + &fragment).unwrap();
    cluster.start_again().unwrap();
    assert_eq!(cluster.sql("postgres", "SHOW shared_buffers").unwrap().trim(), "64MB");
}

#[test]
fn a_schema_of_another_version_is_named_until_dbinit_was_typed() {
    let url = fresh_database();
    let dbinit = || {
        let output = run(&["exchange", "dbinit", "--database", &url]);
        assert!(output.status.success(), "{}", stderr(&output));
    };
    dbinit();
    let finding = || {
        let output = run(&["doctor", "--database", &url, "--sample", "0.1", "--json"]);
        let report: Value = serde_json::from_str(&stdout(&output)).unwrap();
        let findings = report["findings"].as_array().unwrap();
        findings.iter().find(|finding| finding["rule"] == "batzen_version").cloned()
    };
    assert_eq!(finding(), None);
    let set = |what: &str| {
        let database = url.rsplit('/').next().unwrap();
        batzen_testkit::postgres::shared()
            .sql(database, &format!("UPDATE exchange.meta SET {what}"))
            .unwrap();
    };
    set("program = '0.0.1'");
    let found = finding().unwrap();
    assert_eq!(found["severity"], "notice", "{found}");
    assert!(found["measured"].as_str().unwrap().contains("0.0.1"), "{found}");
    dbinit();
    assert_eq!(finding(), None);

    set("schema_version = schema_version - 1");
    // The services behave as the doctor says.
    assert!(
        batzen_service::storage::StoreConfig::postgres(url.clone())
            .open(&batzen_service::storage::EXCHANGE, 1)
            .is_err()
    );
    let text = stdout(&run(&["doctor", "--database", &url, "--sample", "0.1"]));
    assert!(text.contains("WARNING   Schema exchange is older than this program"), "{text}");
    assert!(text.contains("type      batzen exchange dbinit -c FILE"), "{text}");
    set("schema_version = schema_version + 2");
    let found = finding().unwrap();
    assert!(found["title"].as_str().unwrap().contains("newer"), "{found}");
}

#[test]
fn a_wrong_address_is_one_line_and_exit_3() {
    let missing = fresh_database().replace("/test_", "/missing_");
    for (url, hint) in [
        ("postgres://127.0.0.1:1/money", "127.0.0.1"),
        (missing.as_str(), "does not exist"),
        ("nonsense", "address"),
    ] {
        for command in [&["doctor"][..], &["doctor", "watch"]] {
            let words: Vec<&str> = command.iter().copied().chain(["--database", url]).collect();
            let output = run(&words);
            let said = stderr(&output);
            assert_eq!(output.status.code(), Some(3), "{words:?}: {said}");
            assert!(said.contains(hint) || said.contains("refused"), "{words:?}: {said}");
            assert_eq!(said.trim_end().lines().count(), 1, "{words:?}: {said}");
            assert!(output.stdout.is_empty());
        }
    }
    let output = run(&["doctor"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("--database"));
}

#[test]
fn the_live_view_is_plain_lines_without_a_terminal_and_objects_for_programs() {
    let url = fresh_database();
    let output = run(&["doctor", "watch", "--database", &url, "--interval", "0.1", "--count", "3"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let text = stdout(&output);
    assert_eq!(text.lines().filter(|line| line.contains(" tx/s ")).count(), 3, "{text}");
    assert_eq!(text.matches("fsync is off").count(), 1, "a finding is printed once: {text}");
    assert!(!text.contains('\u{1b}'), "{text}");

    let output = run(&["doctor", "watch", "--database", &url, "--interval", "0.1", "--count", "2", "--json"]);
    let text = stdout(&output);
    assert_eq!(text.lines().count(), 2, "{text}");
    for line in text.lines() {
        let look: Value = serde_json::from_str(line).unwrap();
        assert_eq!(look["severity"], "critical");
        assert!(look["sessions"].is_u64() && look["transactions_per_second"].is_number(), "{line}");
    }
}
