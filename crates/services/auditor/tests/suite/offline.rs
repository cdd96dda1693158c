//! The offline tool's chains of sub-commands, without a network.

use batzen_auditor::AuditorConfig;
use batzen_auditor::offline::{Offline, OfflineError, OfflineOutput};
use serde_json::{Value, json};

/// Keys as an exchange publishes them, from a recording.
fn keys() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../base/protocol/tests/vectors/http/auditor.jsonl");
    let text = std::fs::read_to_string(path).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let mut keys = lines.filter(|line| line["request"]["path"] == "/keys");
    keys.next().unwrap()["response"]["body"].clone()
}

fn config(dir: &tempfile::TempDir) -> AuditorConfig {
    let mut config = AuditorConfig::new("EUR".parse().unwrap(), dir.path());
    config.base_url = Some("http://auditor.example/".into());
    config.master_pub = Some(keys()["master_public_key"].as_str().unwrap().parse().unwrap());
    config
}

/// Runs a chain; what it says goes to the second part.
async fn run(
    config: &AuditorConfig,
    line: &str,
    input: &str,
) -> (Result<OfflineOutput, OfflineError>, String) {
    let arguments: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    let mut said = String::new();
    let mut say = |text: &str| said += text;
    let mut input = || Ok(input.to_owned());
    let mut tool = Offline { config: config.clone(), say: &mut say, input: &mut input };
    let ended = tool.run(&arguments).await;
    (ended, said)
}

#[tokio::test]
async fn documents_pass_from_step_to_step() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(&dir);
    let key = run(&config, "setup", "").await.0.unwrap().report;
    assert_eq!(key.trim(), config.auditor_pub().unwrap().to_string());
    assert_eq!(run(&config, "setup", "").await.0.unwrap().report, key, "the key stays");
    let document = json!({ "operation": "auditor-keys-0", "arguments": keys() }).to_string();
    let shown = run(&config, "show", &document).await.0.unwrap();
    assert!(
        shown.report.contains("master key: ") && shown.report.contains("denomination "),
        "{}",
        shown.report
    );
    assert_eq!(shown.documents.to_json(), None, "it was consumed");
    let (signed, said) = run(&config, "show - sign", &document).await;
    let signed = signed.unwrap();
    assert_eq!(signed.report, "");
    assert!(said.contains("master key: ") && said.contains("signed: approvals of"), "{said}");
    let json: Value = serde_json::from_str(&signed.documents.to_json().unwrap()).unwrap();
    let list = json.as_array().unwrap();
    assert!(list.len() > 10, "{}", list.len());
    for operation in list {
        assert_eq!(operation["operation"], "auditor-sign-denomination-0");
        let mut names: Vec<_> = operation["arguments"].as_object().unwrap().keys().collect();
        names.sort();
        assert_eq!(names, ["auditor_sig", "h_denom_pub"]);
    }
    let chained = run(&config, "setup show -", "").await.0.unwrap();
    let json: Value = serde_json::from_str(&chained.documents.to_json().unwrap()).unwrap();
    assert_eq!(json, json!({ "operation": "auditor-setup-0", "arguments": { "auditor_pub": key.trim() } }));
}

#[tokio::test]
async fn steps_say_what_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(&dir);
    let document = json!({ "operation": "auditor-keys-0", "arguments": keys() }).to_string();
    let error = async |config: &AuditorConfig, line: &str, input: &str| {
        run(config, line, input).await.0.unwrap_err().to_string()
    };
    assert!(error(&config, "sign", &document).await.contains("create it with `setup`"));
    run(&config, "setup", "").await.0.unwrap();
    assert_eq!(error(&config, "download", "").await, "[exchange] BASE_URL is not configured");
    assert_eq!(error(&config, "sign", "[]").await, "there are no keys to sign");
    assert!(error(&config, "sign", "nonsense").await.starts_with("input: "));
    let without = AuditorConfig { master_pub: None, ..config.clone() };
    assert_eq!(error(&without, "sign", &document).await, "[exchange] MASTER_PUBLIC_KEY is not configured");
    let without = AuditorConfig { base_url: None, ..config.clone() };
    assert_eq!(error(&without, "sign", &document).await, "[auditor] BASE_URL is not configured");
    let other = AuditorConfig { master_pub: Some(config.auditor_pub().unwrap()), ..config };
    assert!(error(&other, "sign", &document).await.starts_with("refused to sign: "));
}
