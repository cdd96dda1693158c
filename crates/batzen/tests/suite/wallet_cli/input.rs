//! Mistakes that the wallet refuses before it sends a request: missing files and malformed arguments. Also
//! network errors.

use std::path::Path;
use std::process::Output;

use serde_json::Value;

use crate::common::{batzen, free_port};

const PAYTO: &str = "payto://x-taler-bank/localhost/zoe?receiver-name=zoe";

fn run(file: &Path, options: &[&str], args: &[&str]) -> Output {
    batzen().args(["wallet", "--wallet"]).arg(file).args(options).args(args).output().unwrap()
}

/// The exit code, and the one JSON object on standard error.
fn json_error(file: &Path, args: &[&str]) -> (i32, Value) {
    let output = run(file, &["--json"], args);
    assert!(output.stdout.is_empty(), "{args:?}: {}", String::from_utf8_lossy(&output.stdout));
    let error: Value = serde_json::from_slice(&output.stderr).unwrap();
    let code = output.status.code().unwrap();
    assert_eq!(error["exit_code"], code, "{error}");
    (code, error)
}

fn text_error(file: &Path, args: &[&str]) -> String {
    let output = run(file, &[], args);
    assert!(!output.status.success() && output.stdout.is_empty());
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(!text.contains('\x1b'), "no colours without a terminal: {text}");
    text
}

#[test]
fn only_commands_that_create_a_wallet_accept_a_missing_file() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("missing.db");
    let commands: [&[&str]; 17] = [
        &["balance"],
        &["transactions"],
        &["pending"],
        &["coins"],
        &["run", "--once"],
        &["cancel", "1"],
        &["refund", "1"],
        &["abort", "1"],
        &["instructions", "1"],
        &["evidence"],
        &["deposit", "KUDOS:1", PAYTO],
        &["deposit", "all", PAYTO],
        &["exchanges", "list"],
        &["exchanges", "update"],
        &["exchanges", "show", "http://localhost:1/"],
        &["exchanges", "tos-accept", "http://localhost:1/"],
        &["backup-file", "export", "/nonexistent/backup", "--insecure"],
    ];
    for command in commands {
        let (code, error) = json_error(&file, command);
        assert_eq!(code, 1, "{command:?}: {error}");
        assert!(error["error"].as_str().unwrap().contains("no wallet file"), "{error}");
        let hint = error["hint"].as_str().unwrap();
        for creator in ["withdraw", "accept", "exchanges add", "backup-file import", "--wallet"] {
            assert!(hint.contains(creator), "{hint}");
        }
        assert!(!file.exists(), "{command:?} creates no file");
    }
    let text = text_error(&file, &["balance"]);
    assert!(text.contains("missing.db") && text.contains("hint: `batzen wallet withdraw`"), "{text}");
}

#[test]
fn malformed_arguments_are_refused_with_an_example() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("wallet.db");
    let exchange = "http://localhost:1/";
    let commands: [(&[&str], &str); 10] = [
        (&["withdraw", "--exchange", exchange, "--amount", "20"], "KUDOS:5"),
        (&["withdraw", "--exchange", exchange, "--amount", "KUDOS:0"], "KUDOS:5"),
        (&["withdraw", "--exchange", "ftp://exchange/", "--amount", "KUDOS:20"], "https://exchange.example/"),
        (
            &["withdraw", "--bank", "http://bank:99999/", "--user", "z", "--amount", "KUDOS:20"],
            "https://bank.example/",
        ),
        (&["accept", "taler://pay/shop.example/1"], "taler://withdraw/bank.example/"),
        (&["accept", "http://bank.example/"], "taler://withdraw/bank.example/"),
        (&["deposit", "everything", PAYTO], "KUDOS:5"),
        (&["deposit", "KUDOS:5", "zoe"], "payto://x-taler-bank/localhost/zoe"),
        (&["deposit", "all", PAYTO, "--exchange", "http://a b/"], "https://exchange.example/"),
        (&["exchanges", "add", "http://me@exchange/"], "https://exchange.example/"),
    ];
    for (command, example) in commands {
        let (code, error) = json_error(&file, command);
        assert_eq!(code, 2, "{command:?}: {error}");
        let text = error["error"].as_str().unwrap();
        assert!(text.contains("an example is") && text.contains(example), "{command:?}: {text}");
        assert!(!file.exists(), "{command:?} is refused before the wallet is opened");
        assert!(text_error(&file, command).contains(example));
    }
}

#[test]
fn network_errors_are_words() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("wallet.db");
    let url = format!("http://127.0.0.1:{}/", free_port());
    let (code, error) = json_error(&file, &["exchanges", "add", &url]);
    assert_eq!(code, 3, "{error}");
    assert_eq!(
        error["error"],
        format!("cannot connect to {url}: nothing listens there; is the exchange running?"),
    );
    assert!(error["hint"].as_str().unwrap().contains("start the exchange"), "{error}");
    let uri = format!("taler+http://withdraw/{}/1", url.trim_start_matches("http://").trim_end_matches('/'));
    let text = text_error(&file, &["accept", &uri]);
    assert!(text.contains("nothing listens there; is the bank running?"), "{text}");
    assert!(!text.contains("os error"), "{text}");
}
