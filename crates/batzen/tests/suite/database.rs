//! The exchange's tables in PostgreSQL, from the command line.

use crate::common;

use batzen_testkit::postgres::{fresh_database, shared};
use common::{by_name, must_json as json, run, stderr, stdout};

#[test]
fn dbinit_creates_once_and_resets_on_demand() {
    let url = fresh_database();
    let dbinit = ["exchange", "dbinit", "--database", &url, "--json"];
    let first = json(&[&dbinit[..], &["-P", "2"]].concat());
    assert_eq!((&first["partitions"], first["from_version"].is_null()), (&2.into(), true));
    let second = json(&dbinit);
    assert_eq!((&second["actions"], &second["partitions"]), (&serde_json::json!([]), &2.into()));
    // A different number of partitions is refused, in one line that says what to do.
    let output = run(&[&dbinit[..], &["-P", "4"]].concat());
    assert_eq!(output.status.code(), Some(1));
    assert!(
        stderr(&output).contains("-r -P 4") && stderr(&output).lines().count() == 1,
        "{}",
        stderr(&output)
    );
    // A script need not confirm.
    let third = json(&[&dbinit[..], &["-r", "-P", "4"]].concat());
    assert_eq!((&third["actions"][0], &third["partitions"]), (&"drop schema exchange".into(), &4.into()));
}

#[test]
fn the_old_name_and_the_configuration_open_the_same_tables() {
    let url = fresh_database();
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("exchange.conf");
    let text = format!(
        "[taler]\ncurrency = KUDOS\n[exchange]\ndb = postgres\n[exchangedb-postgres]\nconfig = \"{url}\"\n"
    );
    std::fs::write(&config, text).unwrap();
    let output = by_name(dir.path(), "taler-exchange-dbinit").arg("-c").arg(&config).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(output.stdout.is_empty(), "standard output is for data");
    let database = url.rsplit_once('/').unwrap().1;
    let shown = "SELECT currency, exchange.bz_amount(1, 50000000) FROM exchange.meta";
    assert_eq!(shared().sql(database, shown).unwrap().trim(), "KUDOS|1.5");
    let config = config.to_str().unwrap();
    // Nothing is left to do except for a day that may have begun meanwhile.
    let report = json(&["exchange", "maintain", "-c", config, "--json"]);
    assert!(report["created"].as_array().unwrap().len() <= 1, "{report}");
    let status = run(&["exchange", "replication", "--status", "-c", config]);
    assert_eq!(stdout(&status), "there is no subscriber\n");
    assert_eq!(
        json(&["exchange", "replication", "--status", "--json", "-c", config])["slots"],
        serde_json::json!([])
    );
}

#[test]
fn errors_are_one_line() {
    let url = fresh_database();
    for (words, hint) in [
        (&["exchange", "maintain", "--database", &url][..], "batzen exchange dbinit"),
        (&["exchange", "replication", "--setup", "--database", &url], "batzen exchange dbinit"),
        (&["exchange", "dbinit", "--database", "postgres://127.0.0.1:1/none"], "127.0.0.1"),
    ] {
        let output = run(words);
        assert_eq!(output.status.code(), Some(1), "{words:?}");
        assert!(stderr(&output).contains(hint), "{words:?}: {}", stderr(&output));
        assert_eq!(stderr(&output).lines().count(), 1, "{}", stderr(&output));
    }
    for words in
        [&["exchange", "replication"][..], &["exchange", "dbinit", "-P", "65"], &["exchange", "dbinit", "-y"]]
    {
        assert_eq!(run(words).status.code(), Some(2), "{words:?}");
    }
    // An embedded store needs no preparation.
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("exchange.conf");
    std::fs::write(&config, "[taler]\ncurrency = KUDOS\n").unwrap();
    assert!(run(&["exchange", "dbinit", "-c", config.to_str().unwrap()]).status.success());
}
