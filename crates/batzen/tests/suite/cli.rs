//! The command line: help, exit codes, and one clear line for every mistake.

use crate::common;

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use common::{by_name, must, must_json, run, stderr, stdout};

/// Help texts are part of the interface, so every change must show up here. `BATZEN_BLESS=1` rewrites the
/// snapshots.
#[test]
fn help_texts() {
    let help = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/help");
    let file_name = |command: &str| match command {
        "" => "batzen.txt".to_owned(),
        words => format!("{}.txt", words.replace(' ', "-")),
    };
    for command in [
        "",
        "bank",
        "bank serve",
        "bank gateway",
        "bank totals",
        "exchange",
        "exchange serve",
        "exchange offline",
        "exchange aggregator",
        "exchange transfer",
        "exchange wirewatch",
        "exchange totals",
        "exchange transfers",
        "exchange credits",
        "exchange dbinit",
        "exchange maintain",
        "exchange replication",
        "auditor",
        "auditor init",
        "auditor run",
        "auditor check",
        "auditor serve",
        "auditor exchange",
        "auditor exchange add",
        "auditor exchange remove",
        "auditor exchange list",
        "auditor offline",
        "auditor dbinit",
        "auditor sync",
        "signer",
        "signer serve",
        "signer status",
        "store",
        "ledger",
        "ledger serve",
        "ledger client",
        "store verify",
        "store cut",
        "config",
        "metrics",
        "doctor",
        "doctor watch",
        "switch serve",
    ] {
        common::assert_help(common::batzen(), command, &help.join(file_name(command)));
    }
}

/// Commands that moved to the laboratory's program are named, and the demo is played by it.
#[test]
fn the_laboratory_is_named() {
    for words in
        [&["bench", "deposit"][..], &["plan"], &["switch", "demo", "--once"], &["ledger", "bench"], &["shop"]]
    {
        let output = run(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(stderr(&output).contains(&format!("batzen-lab {}", words[0])), "{}", stderr(&output));
        assert_eq!(stderr(&output).lines().count(), 1, "{}", stderr(&output));
    }
    let help = stdout(&run(&["demo", "--help"]));
    assert!(help.contains("Usage: batzen-lab demo"), "{help}");
    let dir = tempfile::tempdir().unwrap();
    let alone = dir.path().join("batzen");
    // A child process makes the copy. A child that another test starts would inherit the file from this process while it is
    // open for writing, and a program that is open for writing cannot be started.
    assert!(Command::new("cp").arg(common::batzen_path()).arg(&alone).status().unwrap().success());
    let output = common::isolated(&alone).arg("demo").env("PATH", dir.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("start batzen-lab"), "{}", stderr(&output));
}

#[test]
fn wrong_usage_is_exit_2_with_a_hint() {
    for (words, hint) in [
        (&["demo", "--onec"][..], "--once"),
        (&["exchange", "aggregatr"], "aggregator"),
        (&["bank", "serve", "--prot", "1"], "--port"),
        (&["demo", "--rsa-bits", "512"], "1024"),
        (&["-L", "LOUD", "demo"], "WARNING"),
        (&["exchange", "serve", "-T", "soon"], "microseconds"),
    ] {
        let output = run(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}");
        assert!(stderr(&output).contains(hint), "{words:?}: {}", stderr(&output));
        assert!(output.stdout.is_empty(), "{words:?}");
    }
    // An option's value may follow without a space.
    assert!(run(&["-LDEBUG", "--version"]).status.success());
}

/// The sample configurations of an exchange and a bank, below one directory.
fn store_options(home: &Path) -> String {
    let sample = stdout(&run(&["exchange", "sample-config"]));
    let home = home.display();
    sample
        .replace("TALER_DATA_HOME = /var/lib/batzen", &format!("TALER_DATA_HOME = {home}"))
        .replace("TALER_RUNTIME_DIR = /run/batzen", &format!("TALER_RUNTIME_DIR = {home}/run"))
        + &format!("\n[bank]\nDATA_DIR = {home}/bank\n")
}

#[test]
fn failures_are_one_line_and_exit_1() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing");
    let missing = missing.to_str().unwrap();
    let broken = dir.path().join("broken.conf");
    std::fs::write(&broken, "[taler]\nCURRENCY = KUDOS\n[bank]\nHTTP_PORT = many\nDATA_DIR = /tmp\n")
        .unwrap();
    let broken = broken.to_str().unwrap();
    let in_the_way = dir.path().join("file");
    std::fs::write(&in_the_way, "").unwrap();
    let in_the_way = in_the_way.to_str().unwrap();
    let empty = dir.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    let (empty, to) = (empty.to_str().unwrap(), dir.path().join("to"));
    let to = to.to_str().unwrap();
    let stores = dir.path().join("stores.conf");
    std::fs::write(&stores, store_options(&dir.path().join("home"))).unwrap();
    let stores = stores.to_str().unwrap();
    for (words, hint) in [
        (&["bank", "serve", "--currency", "KUDOS"][..], "--data"),
        (&["bank", "serve", "-c", missing], "missing"),
        (&["bank", "serve", "-c", broken], "HTTP_PORT"),
        (&["bank", "serve", "--data", in_the_way], "directory"),
        (&["exchange", "serve"], "CURRENCY"),
        (&["exchange", "totals", missing], "no store"),
        (&["exchange", "totals", empty], "no store"),
        (&["exchange", "transfers", "-c", stores], "no store"),
        (&["exchange", "transfers", "-c", stores, "--retry-all"], "no store"),
        (&["bank", "totals", missing], "no store"),
        (&["bank", "totals", empty], "no store"),
        (&["bank", "totals", "-c", stores], "no store"),
        (&["bank", "totals", "-c", broken], "HTTP_PORT"),
        (&["bank", "totals"], "STORE"),
        (&["ledger", "inspect", missing], "no store"),
        (&["ledger", "verify", empty], "no store"),
        (&["ledger", "backup", missing, to], "no store"),
        (&["store", "verify", missing], "no store"),
        (&["store", "verify", empty], "no store"),
        (&["store", "inspect", missing], "no store"),
        (&["store", "cut", missing, "--reason", "test"], "no store"),
        (&["bank", "serve", "--data", missing, "--signup-bonus", "EUR:1"], "KUDOS"),
    ] {
        let output = run(words);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {said}");
        assert!(said.contains(hint), "{words:?}: {said}");
        assert_eq!(said.trim_end().lines().count(), 1, "{words:?}: {said}");
        assert!(output.stdout.is_empty(), "{words:?}");
    }
    // Commands that only read create nothing.
    assert!(!Path::new(to).exists() && std::fs::read_dir(empty).unwrap().next().is_none());
    assert!(!dir.path().join("home").exists());
}

#[test]
fn a_port_in_use_is_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let data = dir.path().join("data");
    let data = data.to_str().unwrap();
    for words in [
        &["bank", "serve", "--data", data, "--port", &port][..],
        &[
            "exchange",
            "serve",
            "--standalone",
            "--data",
            data,
            "--port",
            &port,
            "--bank",
            "http://localhost:1/",
        ],
        &["demo", "--once", "--bank-port", &port],
    ] {
        let output = run(words);
        let said = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {said}");
        assert!(said.contains(&port) && said.contains("in use"), "{words:?}: {said}");
    }
}

#[test]
fn samples_can_be_used() {
    for component in ["bank", "exchange", "signer", "switch"] {
        let system = run(&[component, "sample-config", "--system"]);
        assert!(stdout(&system).contains(&format!("/var/lib/batzen-{component}\n")));
        let output = run(&[component, "sample-config"]);
        assert!(output.status.success());
        let text = stdout(&output);
        // Every option in the sample must exist.
        let config = batzen_config::Config::parse(&text).unwrap();
        assert!(config.has_section("paths"));
    }
}

#[test]
fn man_pages_and_completions_cover_every_command() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("man");
    assert!(run(&["man", "--out", out.to_str().unwrap()]).status.success());
    for page in ["batzen", "batzen-exchange-serve", "batzen-wallet-deposit", "batzen-ledger-client"] {
        let text = std::fs::read_to_string(out.join(format!("{page}.1"))).unwrap();
        assert!(text.contains(".SH SYNOPSIS") || text.contains(".SH NAME"), "{page}");
    }
    for shell in ["bash", "zsh", "fish"] {
        let script = stdout(&run(&["completions", shell]));
        assert!(script.contains("wirewatch") && script.contains("withdraw"), "{shell}");
    }
    assert_eq!(run(&["completions", "cmd"]).status.code(), Some(2));
}

#[test]
fn the_offline_tool_works_without_network() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("offline.conf");
    let home = dir.path().join("home");
    let text = format!("[taler]\nCURRENCY = KUDOS\n[paths]\nTALER_DATA_HOME = {}\n", home.display());
    std::fs::write(&config, text).unwrap();
    let config = config.to_str().unwrap();
    let offline = ["exchange", "offline", "-c", config];
    must(&[&offline[..], &["setup"]].concat());
    let fee = ["wire-fee", "now", "x-taler-bank", "KUDOS:0.1", "KUDOS:0.2"];
    let documents = must_json(&[&offline[..], &fee].concat());
    assert_eq!(documents.as_array().unwrap().len(), 1);
    let typo = run(&["exchange", "offline", "-c", config, "singn"]);
    assert_eq!(typo.status.code(), Some(2));
    assert!(stderr(&typo).contains("did you mean sign?"));
}

#[test]
fn known_names_start_the_same_programs() {
    let dir = tempfile::tempdir().unwrap();
    let output = by_name(dir.path(), "taler-exchange-aggregator").arg("--help").output().unwrap();
    assert!(output.status.success());
    assert!(stdout(&output).contains("--kyc-off"), "{}", stdout(&output));
}
