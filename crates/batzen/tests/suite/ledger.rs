//! `batzen ledger` as people use it: serve, client, repl, file commands, a short measurement.

use crate::common;

use std::io::Write;
use std::path::Path;
use std::process::Stdio;

use batzen_http::client::{Client, ClientOptions};
use common::damage::{assert_damage_is_refused, last_frame};
use common::{Service, batzen, run, run_lab, stderr, stdout};
use serde_json::Value;

/// Starts a ledger on free ports, and reads its addresses from its output.
fn serve(dir: &Path, words: &[&str]) -> (Service, Vec<String>) {
    let mut arguments = vec!["ledger", "serve", "--tcp", "127.0.0.1:0", "--http", "127.0.0.1:0"];
    arguments.extend(words);
    Service::start_ready(dir, "ledger", &arguments)
}

fn client(url: &str, words: &[&str], stdin: &str) -> std::process::Output {
    let mut command = batzen();
    command.args(["ledger", "client", "--ledger", url]).args(words);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(stdin.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn lines(output: &std::process::Output) -> Vec<Value> {
    stdout(output).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[tokio::test]
async fn a_ledger_is_served_queried_and_inspected() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let data = data.to_str().unwrap();
    let socket = dir.path().join("ledger.sock");
    let (service, addresses) = serve(dir.path(), &["--data", data, "--unix", socket.to_str().unwrap()]);
    let [tcp, unix, http] = addresses.as_slice() else { panic!("{addresses:?}") };
    let output = client(
        tcp,
        &["create-accounts", "id=1", "ledger=700", "code=10,", "id=2", "ledger=700", "code=10"],
        "",
    );
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stdout(&output).matches("status=created").count(), 2);
    // Repeating it, from standard input and over the local socket, also succeeds.
    let accounts = "{\"id\":1,\"ledger\":700,\"code\":10}\n{\"id\":\"2\",\"ledger\":700,\"code\":10}\n";
    let output = client(unix, &["create-accounts", "-", "--json"], accounts);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(lines(&output).iter().all(|line| line["status"] == "exists"));
    let transfer = "id=1 debit_account_id=1 credit_account_id=2 amount=10 ledger=700 code=1";
    assert!(client(tcp, &["create-transfers", transfer], "").status.success());
    // A refusal gives exit code 1; a mistake gives exit code 2 and a hint.
    let output = client(
        tcp,
        &["create-transfers", "id=2 debit_account_id=9 credit_account_id=2 amount=1 ledger=700 code=1"],
        "",
    );
    assert_eq!((output.status.code(), stdout(&output).contains("debit_account_not_found")), (Some(1), true));
    let output = client(tcp, &["create-transfer", "id=2"], "");
    assert_eq!((output.status.code(), stderr(&output).contains("create-transfers")), (Some(2), true));
    let output = client("tcp://127.0.0.1:1", &["lookup-accounts", "1"], "");
    assert_eq!((output.status.code(), stderr(&output).contains("127.0.0.1:1")), (Some(1), true));

    let mut repl = batzen()
        .args(["ledger", "repl", "--json", "--ledger", tcp])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let script = "lookup_accounts 1 2;\nfly me to the moon\nget-change-events limit=10\nexit\n";
    repl.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    let output = repl.wait_with_output().unwrap();
    assert!(output.status.success());
    assert!(stderr(&output).contains("there is no operation fly"));
    let values = lines(&output);
    assert_eq!(values.len(), 3);
    assert_eq!(values[1]["credits_posted"], "10");
    assert_eq!(values[2]["type"], "single_phase");

    let web = Client::new(&ClientOptions::default()).unwrap();
    let ask = |path: &str| web.get(format!("{http}{path}"));
    assert_eq!(ask("v1/events").send().await.unwrap().status, 401);
    let token = std::fs::read_to_string(format!("{data}/http-token")).unwrap();
    let bearer = format!("Bearer {}", token.trim());
    let reply = ask("v1/events").header("authorization", &bearer).send().await.unwrap();
    assert!(String::from_utf8(reply.body.to_vec()).unwrap().contains("\"single_phase\""));
    let page = common::http::page(&web, &format!("{http}metrics")).await;
    assert!(page.contains("\nbatzen_ledger_transfers 1\n"), "{page}");
    assert!(page.contains("batzen_ledger_net_requests_total{kind=\"create_transfers\"} 2"), "{page}");

    let (status, _) = service.terminate();
    assert!(status.success());
    let output = run(&["ledger", "inspect", data, "--json"]);
    let facts: Value = serde_json::from_str(&stdout(&output)).unwrap();
    assert_eq!((&facts["accounts"], &facts["transfers"]), (&Value::from(2), &Value::from(1)));
    let output = run(&["ledger", "verify", data]);
    assert!(output.status.success() && stdout(&output).contains("sound"), "{}", stderr(&output));
    let output = run(&["ledger", "verify", dir.path().join("nothing").to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    let output = run(&["ledger", "backup", data, data]);
    assert_eq!((output.status.code(), stderr(&output).contains("not empty")), (Some(1), true));
}

/// A flipped bit in the last acknowledged commit is not treated as an interrupted commit: the ledger does not
/// start.
#[test]
fn damage_to_the_last_commit_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("ledger/data");
    let data = store.to_str().unwrap();
    std::fs::create_dir(dir.path().join("ledger")).unwrap();
    let (mut service, addresses) = serve(dir.path(), &["--data", data]);
    let tcp = &addresses[0];
    let output = client(tcp, &["create-accounts", "id=1 ledger=7 code=1, id=2 ledger=7 code=1"], "");
    assert!(output.status.success(), "{}", stderr(&output));
    let transfer = "id=1 debit_account_id=1 credit_account_id=2 amount=10 ledger=7 code=1";
    assert!(client(tcp, &["create-transfers", transfer], "").status.success());
    service.kill_9();
    let words = ["ledger", "serve", "--data", data, "--tcp", "127.0.0.1:0"];
    assert_damage_is_refused(dir.path(), &store, &words);
    // The ledger's own verification also finds it.
    let (file, frame) = last_frame(&store);
    let sound = std::fs::read(&file).unwrap();
    let mut flipped = sound.clone();
    flipped[frame.start + 60] ^= 4;
    for damaged in [&flipped[..], &sound[..sound.len() - 100]] {
        std::fs::write(&file, damaged).unwrap();
        let output = run(&["ledger", "verify", data]);
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains("the journal is damaged"), "{}", stderr(&output));
    }
    std::fs::write(&file, sound).unwrap();
    let output = run(&["ledger", "verify", data]);
    assert!(stdout(&output).contains("1 transfers"), "{}{}", stdout(&output), stderr(&output));
}

#[test]
fn a_measurement_has_the_fields_of_every_result() {
    let dir = tempfile::tempdir().unwrap();
    for (name, words) in [
        ("many", &["--batch", "1", "--clients", "20", "--transfers", "2000"][..]),
        ("pairs", &["--batch", "500", "--clients", "2", "--transfers", "4000", "--pending", "100"]),
        ("hot", &["--accounts-by", "two", "--transfers", "20000", "--transport", "unix"]),
        ("zipf", &["--accounts-by", "zipf", "--transfers", "9000", "--batch", "1000", "--accounts", "100"]),
    ] {
        let out = dir.path().join(name);
        let mut arguments = vec!["ledger", "bench", "--json", "--out", out.to_str().unwrap()];
        if !words.contains(&"--accounts") {
            arguments.extend(["--accounts", "1000"]);
        }
        arguments.extend(words);
        let output = run_lab(&arguments);
        assert!(output.status.success(), "{words:?}: {}\n{}", stderr(&output), stdout(&output));
        let result: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(result["scenario"], "ledger");
        assert!(result["errors"].as_object().unwrap().is_empty(), "{result}");
        for name in ["ops_per_s", "p50_us", "p99_us", "cpu_us_per_op", "client_cpu_us_per_op"] {
            assert!(result[name].as_f64().unwrap() > 0.0, "{words:?}: {name}: {result}");
        }
        assert!(result["bytes_per_op"]["disk"].as_f64().unwrap() > 10.0, "{result}");
        assert!(result["extra"]["accounts_checked"].as_f64().unwrap() >= 100.0);
        assert!(!result["machine"].is_null());
        if name == "pairs" {
            assert_eq!(result["ops"], 8000);
            assert!(result["extra"]["pairs_per_s"].as_f64().unwrap() > 0.0);
        }
    }
    let (one, two) = (dir.path().join("many"), dir.path().join("pairs"));
    let output = run_lab(&["bench", "compare", one.to_str().unwrap(), two.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    let page = dir.path().join("page.html");
    let output = run_lab(&["bench", "report", one.to_str().unwrap(), "-o", page.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(std::fs::read_to_string(page).unwrap().contains("ledger, 20 clients"));
}
