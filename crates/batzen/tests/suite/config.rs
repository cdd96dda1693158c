//! `batzen config`: the requests that test harnesses and operators make of `taler-config`, and the check.

use crate::common;

use std::path::Path;
use std::process::Output;

use common::{stderr, stdout};

/// Runs the command with the defaults that `make install` installs, without the user's configuration.
fn config(dir: &Path, arguments: &[&str]) -> Output {
    let defaults = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/config.d");
    let mut command = common::batzen();
    command.arg("config").args(arguments).env("TALER_BASE_CONFIG", defaults);
    command.env("HOME", dir).env_remove("XDG_CONFIG_HOME").env_remove("XDG_DATA_HOME");
    command.env_remove("TALER_TEST_HOME").output().unwrap()
}

fn answer(dir: &Path, arguments: &[&str]) -> String {
    let output = config(dir, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", stderr(&output));
    stdout(&output)
}

#[test]
fn options_are_read_and_changed() {
    let dir = tempfile::tempdir().unwrap();
    let (home, file) = (dir.path(), dir.path().join("exchange.conf"));
    let file = file.to_str().unwrap();
    std::fs::write(
        file,
        "[exchange]\n# The port.\nport = 8181\n[exchange-accountcredentials-1]\npassword = geheim\n",
    )
    .unwrap();

    // The file comes before the defaults; the defaults apply to options that the file does not set.
    assert_eq!(answer(home, &["-c", file, "-s", "exchange", "-o", "port"]), "8181\n");
    assert_eq!(answer(home, &["-c", file, "-s", "EXCHANGE", "-o", "BASE_URL"]), "http://localhost:8081/\n");
    let key_dir = ["-s", "taler-exchange-secmod-rsa", "-o", "KEY_DIR"];
    assert_eq!(answer(home, &key_dir), "${TALER_DATA_HOME}/exchange-secmod-rsa/keys\n");
    let expanded = answer(home, &[&key_dir[..], &["-f"]].concat());
    assert_eq!(expanded, format!("{}/.local/share/taler/exchange-secmod-rsa/keys\n", home.display()));

    // Lists omit secrets; a secret is printed only when named.
    for list in [&["-c", file][..], &["-c", file, "-s", "exchange-accountcredentials-1"]] {
        let text = answer(home, list);
        assert!(text.contains("(not shown)") && !text.contains("geheim"), "{text}");
        let json = answer(home, &[list, &["--json"]].concat());
        assert!(json.contains("null") && !json.contains("geheim"), "{json}");
    }
    let named = ["-c", file, "-s", "exchange-accountcredentials-1", "-o", "PASSWORD"];
    assert_eq!(answer(home, &named), "geheim\n");
    let sections = answer(home, &["-c", file, "-S"]);
    assert!(sections.lines().any(|name| name == "EXCHANGE"), "{sections}");

    // A change is written to the file, but the defaults are not.
    let change = ["-c", file, "-s", "exchange", "-o", "base_url", "-V", "https://exchange.example/"];
    assert_eq!(answer(home, &change), "");
    assert_eq!(
        answer(home, &["-c", file, "-s", "exchange", "-o", "BASE_URL"]),
        "https://exchange.example/\n"
    );
    let text = std::fs::read_to_string(file).unwrap();
    assert_eq!(
        text,
        "[exchange]\n# The port.\nport = 8181\nBASE_URL = https://exchange.example/\n\
         [exchange-accountcredentials-1]\npassword = geheim\n"
    );
    let diagnostics = answer(home, &["-c", file, "-d"]);
    assert!(diagnostics.contains(&format!("PORT = 8181   # {file}:3")), "{diagnostics}");
    let fresh = dir.path().join("fresh.conf");
    answer(home, &["-c", fresh.to_str().unwrap(), "-s", "taler", "-o", "CURRENCY", "-V", "KUDOS"]);
    assert_eq!(std::fs::read_to_string(fresh).unwrap().trim(), "[TALER]\nCURRENCY = KUDOS");
}

/// Called by its old name, it finds the defaults beside itself.
#[test]
fn defaults_are_beside_the_program() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    std::fs::create_dir_all(path("bin")).unwrap();
    std::fs::create_dir_all(path("share/taler/config.d")).unwrap();
    std::fs::write(path("share/taler/config.d/x.conf"), "[exchange]\nport = 4711\n").unwrap();
    let port = |name: &str, variables: &[(&str, &Path)]| {
        let mut command = common::by_name(&path("bin"), name);
        if name == "batzen" {
            command.arg("config");
        }
        command.args(["-s", "exchange", "-o", "PORT"]).envs(variables.iter().copied());
        stdout(&command.output().unwrap())
    };
    assert_eq!(port("taler-config", &[]), "4711\n");
    // The other programs beside it read the same.
    assert_eq!(port("batzen", &[]), "4711\n");
    // The environment has precedence.
    std::fs::create_dir(path("other")).unwrap();
    std::fs::write(path("other/x.conf"), "[exchange]\nport = 4712\n").unwrap();
    assert_eq!(port("taler-config", &[("TALER_BASE_CONFIG", &path("other"))]), "4712\n");
}

#[test]
fn errors_say_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    for (arguments, code, words) in [
        (&["-s", "exchanges", "-o", "PORT"][..], 1, "batzen config -S"),
        (&["-s", "exchange", "-o", "PROT"], 1, "batzen config -s exchange"),
        (&["-s", "exchange", "-o", "PORT", "-V", "1"], 1, "--config FILE"),
        (&["-c", "/nonexistent/x.conf", "-S"], 1, "/nonexistent/x.conf"),
        (&["-o", "PORT"], 2, "--section"),
    ] {
        let output = config(dir.path(), arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}");
        assert!(stderr(&output).contains(words), "{arguments:?}: {}", stderr(&output));
    }
}

#[test]
fn a_check_finds_misspelled_options_and_invalid_values() {
    let dir = tempfile::tempdir().unwrap();
    let (home, file) = (dir.path(), dir.path().join("all.conf"));
    let sample = |service: &str| {
        stdout(&common::batzen().args([service, "sample-config"]).env("HOME", home).output().unwrap())
    };
    let check = |text: &str| {
        std::fs::write(&file, text).unwrap();
        let plain = config(home, &["check", "-c", file.to_str().unwrap()]);
        let json = config(home, &["check", "-c", file.to_str().unwrap(), "--json"]);
        assert_eq!(plain.status.code(), json.status.code());
        let facts: serde_json::Value = serde_json::from_str(&stdout(&json)).unwrap();
        assert_eq!(facts["ok"], plain.status.success());
        (plain.status.success(), stdout(&plain), facts)
    };
    for service in ["exchange", "bank", "ledger", "switch"] {
        let (is_fine, text, facts) = check(&sample(service));
        assert!(is_fine, "{service}: {text}");
        assert_eq!(text, format!("{service:9} ok\n"));
        assert_eq!(facts["errors"], serde_json::json!({ service: null }));
    }
    // Several services in one file, each with its own mistake.
    let exchange = sample("exchange").replace("VALUE = KUDOS:10\n", "VALUE = EUR:10\n");
    let bank = "[bank]\nHTTP_PROT = 8082\nPASSWORD_PASSES = many\n[exchnage]\nPORT = 1\n";
    let (is_fine, text, facts) = check(&format!("{exchange}\n{bank}"));
    assert!(!is_fine);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 4, "{text}");
    assert!(lines[0].starts_with("exchange ") && lines[0].contains("[COIN_KUDOS_10] VALUE"), "{text}");
    assert!(lines[1].starts_with("bank ") && lines[1].contains("PASSWORD_PASSES"), "{text}");
    assert!(lines[2].starts_with("warning ") && lines[2].contains("(did you mean [EXCHANGE]?)"), "{text}");
    assert!(lines[3].contains("HTTP_PROT") && lines[3].contains("(did you mean HTTP_PORT?)"), "{text}");
    assert_eq!(facts["warnings"].as_array().unwrap().len(), 2);
    let (is_fine, text, _) =
        check(&sample("exchange").replace("FEE_DEPOSIT = KUDOS:0.001", "FEE_DEPOSIT = KUDOS:0.01"));
    assert!(!is_fine && text.contains("FEE_DEPOSIT is the value of the coin"), "{text}");
    let free = sample("exchange").replace("PURSE_LIFETIME_MAX = 31 days", "PURSE_LIFETIME_MAX = 32 days");
    let (is_fine, text, _) = check(&free);
    assert!(!is_fine && text.contains("purses cost nothing"), "{text}");
    let (is_fine, text, _) = check(&free.replace("CLOSING_FEE =", "PURSE_FEE = KUDOS:0.01\nCLOSING_FEE ="));
    assert!(is_fine, "{text}");
    // The sample of a signer has placeholders, which the check names.
    let (is_fine, text, _) = check(&sample("signer"));
    assert!(!is_fine && text.starts_with("signer ") && text.contains("PUBLIC_KEY"), "{text}");
    let (is_fine, text, _) = check("[paths]\nTALER_HOME = /tmp\n");
    assert!(!is_fine && text.contains("no section of a service"), "{text}");
}
