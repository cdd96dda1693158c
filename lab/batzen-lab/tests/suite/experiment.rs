//! Experiments: set up, loaded, broken, ended and shown, by the program as a user runs it.

use std::path::Path;
use std::process::Output;

use batzen_testkit::process::{lab, stderr, stdout};
use batzen_testkit::setup::ask;
use serde_json::Value;

use crate::commands::{printed, read_json, until};

/// The configuration of Podman in these tests.
pub(crate) const CONTAINERS_CONF: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/containers.conf");

/// Runs a command of the laboratory on an experiment.
pub(crate) fn on(dir: &Path, words: &[&str]) -> Output {
    // Services of Debian are not in every user's search path.
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    // What follows a host or -- is its own.
    let others = words.iter().position(|word| *word == "--").unwrap_or(words.len());
    let own = if words[0] == "ssh" { 1 } else { others };
    let mut command = lab();
    command.args(&words[..own]).arg("--dir").arg(dir).args(&words[own..]);
    command.env("PATH", path).env("CONTAINERS_CONF", CONTAINERS_CONF).output().unwrap()
}

#[track_caller]
fn must(dir: &Path, words: &[&str]) -> String {
    let output = on(dir, words);
    assert!(output.status.success(), "{words:?}: {}{}", stdout(&output), stderr(&output));
    stdout(&output)
}

/// An experiment that is taken down when the test ends, however it ends.
pub(crate) struct Experiment {
    pub(crate) dir: tempfile::TempDir,
}

impl Experiment {
    pub(crate) fn up(topology: &str) -> Self {
        Self::up_in(tempfile::tempdir().unwrap(), topology)
    }

    pub(crate) fn up_in(dir: tempfile::TempDir, topology: &str) -> Self {
        let file = dir.path().join("given.toml");
        std::fs::write(&file, topology).unwrap();
        let experiment = Self { dir };
        must(experiment.path().as_path(), &["up", file.to_str().unwrap()]);
        experiment
    }

    pub(crate) fn path(&self) -> std::path::PathBuf {
        self.dir.path().join("experiment")
    }

    #[track_caller]
    pub(crate) fn must(&self, words: &[&str]) -> String {
        must(&self.path(), words)
    }

    /// The JSON that a command prints.
    #[track_caller]
    pub(crate) fn json(&self, words: &[&str]) -> Value {
        serde_json::from_str(&self.must(&[words, &["--json"]].concat())).unwrap()
    }

    /// The result of a ramp.
    #[track_caller]
    pub(crate) fn ramp(&self, words: &str) -> Value {
        self.json(&["load", "ramp"].into_iter().chain(words.split(' ')).collect::<Vec<_>>())
    }

    /// Checks that no money was lost and nothing is wrong.
    #[track_caller]
    pub(crate) fn conserves(&self) {
        let checked = self.json(&["check"]);
        assert_eq!((&checked["conserved"], &checked["findings"]), (&true.into(), &0.into()), "{checked}");
    }

    pub(crate) fn state(&self) -> Value {
        read_json(self.path().join("state.json"))
    }

    /// The state of the processes, whether all is well or not.
    pub(crate) fn status(&self) -> Value {
        serde_json::from_str(&stdout(&on(&self.path(), &["status", "--json"]))).unwrap()
    }

    /// Runs a scenario on all hosts of the load; each must do something, without errors, and keep its result.
    #[track_caller]
    fn bench(&self, scenario: &str, words: &[&str], further: &[&str]) -> Vec<Value> {
        let all = [&["load", "bench", scenario, "--json"][..], words, &["--"], further].concat();
        let shown: Value = serde_json::from_str(&self.must(&all)).unwrap();
        let results = shown["results"].as_array().unwrap().clone();
        let hosts = self.path().join("hosts/here");
        let generators = std::fs::read_dir(hosts).unwrap().map(|entry| entry.unwrap().path());
        let kept = generators.filter(|dir| dir.is_dir()).flat_map(|dir| {
            std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>()
        });
        let kept = kept.filter(|path| path.to_str().unwrap().contains(&format!("bench-{scenario}-")));
        let kept: Vec<Value> = kept.map(|dir| read_json(dir.join("result.json"))).collect();
        assert!(!results.is_empty());
        for result in &results {
            assert!(result["ops"].as_u64() > Some(0), "{scenario}: {result:#}");
            assert_eq!(result["errors"], serde_json::json!({}), "{scenario}: {result:#}");
            assert!(kept.contains(result), "{scenario}: its result is not kept: {result:#}");
        }
        results
    }

    /// The instance with this name.
    pub(crate) fn instance(&self, name: &str) -> Value {
        let state = self.state();
        let mut instances = state["instances"].as_array().unwrap().iter();
        instances.find(|instance| instance["name"] == name).unwrap().clone()
    }

    /// Its first port.
    pub(crate) fn port(&self, name: &str) -> u16 {
        self.instance(name)["ports"][0].as_u64().unwrap().try_into().unwrap()
    }

    /// The ids of all its processes.
    fn pids(&self) -> Vec<(String, u64)> {
        let status = self.json(&["status"]);
        let processes = status["processes"].as_array().unwrap().iter();
        processes
            .map(|row| (row["instance"].as_str().unwrap().to_owned(), row["pid"].as_u64().unwrap()))
            .collect()
    }

    /// Waits until a process that was killed runs again.
    pub(crate) fn wait_until_started_again(&self, name: &str) {
        until(100, || {
            let status = self.status();
            let mut rows = status["processes"].as_array().unwrap().iter();
            let row = rows.find(|row| row["instance"] == name).unwrap();
            let is_again = row["pid"].is_u64() && row["restarts"].as_u64() > Some(0);
            if is_again { Ok(()) } else { Err(row.to_string()) }
        });
    }

    /// Waits until wallets have done more payments than `count`; returns how many.
    pub(crate) fn wait_for_payments(&self, count: u64) -> u64 {
        self.wait_for("load", "pay", count)
    }

    /// Waits until a generator has done more operations of a kind than `count`; returns how many.
    fn wait_for(&self, generator: &str, kind: &str, count: u64) -> u64 {
        let host = self.instance(generator)["host"].as_str().unwrap().to_owned();
        let out = self.path().join("hosts").join(host).join(generator).join("out");
        until(100, || {
            let text = std::fs::read_to_string(&out).unwrap_or_default();
            let seconds = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            let done: u64 = seconds.map(|second| second["kinds"][kind]["ops"].as_u64().unwrap_or(0)).sum();
            let last = || format!("{done} of {kind}; {}", text.lines().last().unwrap_or_default());
            if done > count { Ok(done) } else { Err(last()) }
        })
    }
}

impl Drop for Experiment {
    fn drop(&mut self) {
        // It may be down already.
        let _ = on(&self.path(), &["down"]);
    }
}

pub(crate) fn one_machine(more: &str) -> String {
    let roles = ["bank", "exchange", "merchant", "auditor", "load"].map(|role| {
        let more = if role == "exchange" { more } else { "" };
        format!("[[role]]\nrole = '{role}'\nhosts = ['here']\n{more}\n")
    });
    format!("name = 'test'\nrsa_bits = 1024\n[hosts.here]\n{}", roles.concat())
}

#[test]
fn an_experiment_is_loaded_and_broken_and_nothing_is_lost_or_left_behind() {
    let experiment = Experiment::up(&one_machine(""));
    let again = on(&experiment.path(), &["up", experiment.dir.path().join("given.toml").to_str().unwrap()]);
    assert!(stderr(&again).contains("has an experiment already"), "{}", stderr(&again));

    experiment.must(&["load", "start", "--wallets", "4", "--mix", "pay=6,refund=2,send=2"]);
    let done = experiment.wait_for_payments(5);
    experiment.must(&["disturb", "kill", "exchange"]);
    let done = experiment.wait_for_payments(done + 5);
    experiment.must(&["scale", "load", "2"]);
    experiment.must(&["load", "scale", "6"]);
    experiment.must(&["load", "rate", "10"]);
    experiment.wait_for_payments(done + 5);
    let shown = experiment.must(&["load", "show", "--seconds", "2", "--json"]);
    assert!(shown.lines().all(|line| serde_json::from_str::<Value>(line).is_ok()), "{shown}");
    let table = experiment.json(&["load", "show", "--seconds", "2", "--table"]);
    let pays: Vec<&Value> =
        table["times"].as_array().unwrap().iter().filter(|row| row["kind"] == "pay").collect();
    assert!(!pays.is_empty(), "{table}");
    for row in pays {
        let of = |name: &str| row[name][1].as_u64().unwrap();
        // Prices are whole units up to 15, and each coin is worth one at least.
        assert!((1..=20).contains(&of("amount")) && (1..=of("amount")).contains(&of("coins")), "{row}");
        assert!(row["p99_us"].as_u64() >= row["p50_us"].as_u64() && row["count"].as_u64() > Some(0), "{row}");
    }
    let page = ask(experiment.port("load"), "GET /metrics", "");
    let of = |series: &str| {
        let line = page.lines().find(|line| line.starts_with(series)).unwrap();
        line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()
    };
    assert!(of("batzen_load_operation_seconds_count{operation=\"pay\"}") >= 1.0, "{page}");
    assert!(of("batzen_load_money") > 0.0 && of("batzen_load_wallets") >= 1.0, "{page}");
    let unknown = on(&experiment.path(), &["disturb", "kill", "oven"]);
    assert!(stderr(&unknown).contains("there is no instance oven"), "{}", stderr(&unknown));
    assert_eq!(experiment.must(&["ssh", "here", "--", "echo", "hello"]), "hello\n");

    experiment.conserves();

    // What an agent has started dies with it, and what is kept opens.
    let pids = experiment.pids();
    assert!(pids.len() >= 6, "{pids:?}");
    let state = experiment.state();
    let runtime_dir = state["runtime_dir"].as_str().unwrap().to_owned();
    kill_agents(&runtime_dir);
    wait_until_gone(&pids);
    experiment.must(&["down"]);
    assert!(!Path::new(&runtime_dir).exists(), "{runtime_dir} is left");

    let page = experiment.dir.path().join("page.html");
    let output = lab().args(["open", "--out"]).arg(&page).arg(experiment.path()).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let html = std::fs::read_to_string(&page).unwrap();
    for expected in [
        "Money conserved: yes",
        "Operations a second",
        "Processor time, cores",
        "Times by amount and number of coins",
        "kill",
        "exchange",
    ] {
        assert!(html.contains(expected), "{expected}");
    }
    for secret in ["password", "shop_token"] {
        assert!(!html.contains(state[secret].as_str().unwrap()), "the page shows the {secret}");
    }
}

#[test]
fn wallets_get_the_money_of_revoked_coins_back_and_go_on() {
    let experiment = Experiment::up(&one_machine(""));
    let port = experiment.port("exchange");
    let denoms = |name: &str| {
        let answer = ask(port, "GET /keys", "");
        let keys: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
        keys[name].as_array().map_or(0, Vec::len)
    };
    let offered = denoms("denoms");
    experiment.must(&["load", "start", "--wallets", "4", "--mix", "pay=6,refund=2,send=2"]);
    let done = experiment.wait_for_payments(8);
    let unknown = "0".repeat(103);
    let refused = on(&experiment.path(), &["disturb", "revoke", &unknown]);
    assert!(stderr(&refused).contains("offers no denomination"), "{}", stderr(&refused));
    experiment.must(&["disturb", "revoke"]);
    assert_eq!((denoms("recoup"), denoms("denoms")), (1, offered));
    experiment.must(&["disturb", "revoke", "--share", "1"]);
    assert_eq!((denoms("recoup"), denoms("denoms")), (1 + offered, offered));
    experiment.wait_for("load", "recoup", 1);
    experiment.wait_for_payments(done + 8);
    experiment.conserves();
}

/// The result of a scenario of `bench` at this exchange.
fn bench(words: &[&str], [target, gateway]: [&str; 2], out: &Path) -> Output {
    let to = ["--target", target, "--gateway", gateway, "--json", "--out"];
    lab().arg("bench").args(words).args(to).arg(out).output().unwrap()
}

#[test]
fn scenarios_of_bench_load_an_exchange_that_runs() {
    let experiment = Experiment::up(&one_machine(""));
    let target = format!("http://127.0.0.1:{}/", experiment.port("exchange"));
    let gateway = format!("http://127.0.0.1:{}/taler-wire-gateway/exchange/", experiment.port("bank"));
    let small = ["--rsa", "1024", "--clients", "4", "--supply", "200", "--warmup", "0", "--duration", "30"];
    // The second time nothing of the first may be used again.
    let scenarios = ["withdraw", "withdraw", "batch-deposit", "p2p", "mixed"];
    for (number, scenario) in scenarios.into_iter().enumerate() {
        let out = experiment.dir.path().join(format!("bench-{number}"));
        let output = bench(&[&[scenario][..], &small].concat(), [&target, &gateway], &out);
        assert!(output.status.success(), "{scenario}: {}{}", stderr(&output), stdout(&output));
        let result = read_json(out.join("result.json"));
        assert_eq!(result["parameters"]["target"], target);
        assert!(result["ops"].as_u64() > Some(0) && result["p99_us"].as_u64() > Some(0), "{result:#}");
        assert!(result["errors"].as_object().unwrap().is_empty(), "{scenario}: {:#}", result["errors"]);
        assert!(result["extra"]["answers_checked"].as_f64() > Some(0.0), "{scenario}: {:#}", result["extra"]);
        for unknown in ["cpu_us_per_op", "bytes_per_op", "efficiency", "ceiling_ops_per_s"] {
            assert!(result[unknown].is_null(), "{scenario}: {unknown} of a server elsewhere");
        }
        assert!(result["extra"]["server_cores_busy"].is_null(), "{scenario}: {:#}", result["extra"]);
    }
    // The same on the host of the load, and its result is kept there.
    experiment.bench("cycle", &["--duration", "1", "--clients", "2"], &[]);
    pay_a_shop_that_runs(&experiment, [&target, &gateway]);
    let out = experiment.dir.path().join("refused");
    for (words, reason) in [
        (&["cycle", "--rsa", "3072"][..], "does not offer all coins"),
        (&["withdraw", "--rsa", "1024", "--with-workers"], "--with-workers has no effect"),
        (&["pay", "--rsa", "1024"], "--merchant and --token-file say which"),
        (&["store"], "a store in its own process, without a service"),
        (&["partitions"], "starts an exchange for each store"),
        (&["limits"], "and no service"),
    ] {
        let output = bench(words, [&target, &gateway], &out);
        assert!(stderr(&output).contains(reason), "{words:?}: {}", stderr(&output));
        assert_eq!(output.status.code(), Some(2), "{words:?}");
    }
    experiment.conserves();
}

/// Pays the shop of an experiment twice, and once from the host of the load.
fn pay_a_shop_that_runs(experiment: &Experiment, services: [&str; 2]) {
    let merchant = format!("http://127.0.0.1:{}/", experiment.port("merchant"));
    let token = experiment.dir.path().join("shop.token");
    std::fs::write(&token, experiment.state()["shop_token"].as_str().unwrap()).unwrap();
    let small = ["--rsa", "1024", "--clients", "4", "--supply", "200", "--warmup", "0", "--duration", "30"];
    let shop = ["pay", "--refunds", "20", "--merchant", &merchant, "--token-file", token.to_str().unwrap()];
    for number in 0..2 {
        let out = experiment.dir.path().join(format!("pay-{number}"));
        let output = bench(&[&shop[..], &small].concat(), services, &out);
        assert!(output.status.success(), "{}{}", stderr(&output), stdout(&output));
        let result = read_json(out.join("result.json"));
        assert_eq!(result["errors"], serde_json::json!({}), "{result:#}");
        assert!(result["ops"].as_u64() > Some(0), "{result:#}");
        assert_eq!(
            (&result["parameters"]["merchant"], &result["parameters"]["shops"]),
            (&merchant.clone().into(), &1.into())
        );
        assert!(result["kinds"]["pick up"].is_object(), "{result:#}");
        assert!(result["extra"]["answers_checked"].as_f64() > Some(0.0), "{:#}", result["extra"]);
        assert!(result["cpu_us_per_op"].is_null(), "of a server elsewhere");
    }
    let guessed = experiment.dir.path().join("guess.token");
    std::fs::write(&guessed, "secret-token:guess").unwrap();
    let wrong = ["pay", "--merchant", &merchant, "--token-file", guessed.to_str().unwrap()];
    let output = bench(&[&wrong[..], &small].concat(), services, &experiment.dir.path().join("guess"));
    assert!(stderr(&output).contains("the shop refuses the token: HTTP 401"), "{}", stderr(&output));
    experiment.bench("pay", &["--duration", "1", "--clients", "2"], &["--supply", "200", "--coins", "1"]);
}

#[test]
fn scenarios_load_a_switch_and_its_ledger_that_run() {
    let topology = std::fs::read_to_string("../topologies/switch.toml").unwrap();
    let experiment = Experiment::up(&topology);
    // Two generators at the same time, and each twice.
    experiment.must(&["scale", "load", "2"]);
    for _ in 0..2 {
        let transfers = experiment.bench(
            "transfer",
            &["--clients", "8"],
            &["--count", "60", "--in-flight", "16", "--participants", "3"],
        );
        for result in transfers {
            assert_eq!((&result["ops"], &result["unit"]), (&60.into(), &"FT".into()), "{result:#}");
            assert!(result["kinds"]["whole"]["p50_us"].as_u64() > Some(0), "{result:#}");
            assert_eq!(result["extra"]["windows_closed"], 0.0, "they are the operators'");
            assert!(result["bytes_per_op"].is_null() && result["cpu_us_per_op"].is_null(), "{result:#}");
        }
        let small = ["--transfers", "300", "--accounts", "20", "--batch", "50", "--pending", "50"];
        for result in experiment.bench("ledger", &["--clients", "2"], &small) {
            assert!(result["ops"].as_u64() >= Some(300), "{result:#}");
            assert_eq!(result["extra"]["accounts_checked"], 20.0, "{result:#}");
        }
    }
    let hurried = on(&experiment.path(), &["load", "bench", "ledger", "--rate", "5"]);
    assert!(stderr(&hurried).contains("`-- --transfers N`"), "{}", stderr(&hurried));
    let at_none = on(&experiment.path(), &["load", "bench", "deposit"]);
    assert!(stderr(&at_none).contains("the topology has no exchange"), "{}", stderr(&at_none));
    let alone = lab().args(["switch", "bench", "--target", "http://127.0.0.1:1/"]).output().unwrap();
    assert!(stderr(&alone).contains("--tokens <FILE>"), "{}", stderr(&alone));
    let checked = experiment.json(&["check"]);
    assert_eq!(checked["conserved"], true, "{checked:#}");
    assert_eq!(checked["switch"]["committed"], 240, "{checked:#}");
}

#[test]
fn what_a_killed_controller_has_begun_is_removed() {
    let dir = tempfile::tempdir().unwrap();
    let (file, path) = (dir.path().join("given.toml"), dir.path().join("experiment"));
    std::fs::write(&file, one_machine("")).unwrap();
    let mut up = lab().arg("up").arg(&file).arg("--dir").arg(&path).spawn().unwrap();
    let events = path.join("events.jsonl");
    until(5, || {
        let is_begun = std::fs::read_to_string(&events).is_ok_and(|text| text.contains("exchange"));
        if is_begun { Ok(()) } else { Err("the exchange is not started".to_owned()) }
    });
    up.kill().unwrap();
    up.wait().unwrap();
    let experiment = Experiment { dir };
    let status = experiment.status();
    let pids: Vec<(String, u64)> = status["processes"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|row| Some((row["instance"].as_str()?.to_owned(), row["pid"].as_u64()?)))
        .collect();
    assert!(!pids.is_empty(), "{status}");
    experiment.must(&["down"]);
    wait_until_gone(&pids);
    let state = experiment.state();
    assert_eq!(state["is_up"], false);
    assert!(!Path::new(state["runtime_dir"].as_str().unwrap()).exists());
}

#[test]
fn workers_of_two_versions_share_a_database_and_status_names_both() {
    let dir = tempfile::tempdir().unwrap();
    let program = std::path::PathBuf::from(lab().get_program()).with_file_name("batzen");
    let other = dir.path().join("batzen");
    let text = format!(
        "#!/bin/sh\nif [ \"$1\" = --version ]; then echo batzen 0.1.9; exit; fi\nexec {} \"$@\"\n",
        program.display()
    );
    std::fs::write(&other, text).unwrap();
    std::fs::set_permissions(&other, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let mut topology = "name = 'test'\nrsa_bits = 1024\n[hosts.here]\n".to_owned();
    for (role, more) in [
        ("postgres", String::new()),
        ("bank", String::new()),
        ("signer", String::new()),
        ("exchange", String::new()),
        ("worker", "workers = ['wirewatch', 'closer']".to_owned()),
        ("worker", format!("workers = ['aggregator', 'transfer']\nbin_dir = '{}'", dir.path().display())),
        ("load", String::new()),
    ] {
        topology.push_str(&format!("[[role]]\nrole = '{role}'\nhosts = ['here']\n{more}\n"));
    }
    let experiment = Experiment::up(&topology);
    let version = |process: &str| {
        let status = experiment.json(&["status"]);
        let mut rows = status["processes"].as_array().unwrap().iter();
        rows.find(|row| row["instance"] == process).unwrap_or_else(|| panic!("{status:#}"))["version"].clone()
    };
    assert_eq!(version("worker-1-wirewatch"), env!("CARGO_PKG_VERSION"));
    assert_eq!(version("worker-2-transfer"), "0.1.9");
    assert_eq!(version("postgres"), Value::Null, "it has versions of its own");
    assert_eq!(experiment.pids().len(), 9, "{:?}", experiment.pids());
    experiment.must(&["load", "start", "--wallets", "2"]);
    let done = experiment.wait_for_payments(3);
    let missing = on(&experiment.path(), &["upgrade", "exchange", "/nonexistent"]);
    assert!(stderr(&missing).contains("/nonexistent/batzen"), "{}", stderr(&missing));
    for instance in ["exchange", "worker-1"] {
        experiment.must(&["upgrade", instance, dir.path().to_str().unwrap()]);
    }
    assert_eq!((version("exchange"), version("worker-1-closer")), ("0.1.9".into(), "0.1.9".into()));
    experiment.wait_for_payments(done + 3);
    let checked = experiment.json(&["check"]);
    assert_eq!(checked["conserved"], true, "{checked}");
}

#[test]
fn a_switch_is_loaded_and_killed_and_its_positions_are_those_of_its_ledger() {
    let topology = std::fs::read_to_string("../topologies/switch.toml").unwrap();
    let experiment = Experiment::up(&topology);
    experiment.must(&["load", "start", "--wallets", "20", "--rate", "40"]);
    let mut done = 0;
    for victim in ["switch", "ledger", "load"] {
        done = experiment.wait_for("load", "transfer", done + 10);
        experiment.must(&["disturb", "kill", victim]);
    }
    experiment.wait_until_started_again("load");
    // One that was started again has no load before it is told.
    experiment.must(&["load", "rate", "30"]);
    experiment.wait_for("load", "transfer", done + 10);
    experiment.must(&["scale", "load", "2"]);
    experiment.wait_for("load-2", "transfer", 10);
    let ramp = experiment.ramp("--from 20 --steps 1 --step-s 2");
    let switch = used(&ramp["steps"][0], "switch");
    assert!(switch["lane_s"].is_array() && switch["commit_ms"].is_number(), "{ramp:#}");
    let checked = experiment.json(&["check"]);
    assert_eq!((&checked["conserved"], &checked["findings"]), (&true.into(), &Value::Null), "{checked:#}");
    let (committed, told) = (&checked["switch"]["committed"], &checked["switch"]["told"]);
    assert!(told.as_u64() > Some(30) && told.as_u64() <= committed.as_u64(), "{checked:#}");
    let wrong = on(&experiment.path(), &["load", "start", "--mix", "pay=1,transfer=1", "--rate", "5"]);
    assert!(wrong.status.success(), "{}", stderr(&wrong));
    let shown = experiment.must(&["load", "show", "--seconds", "4"]);
    assert!(shown.contains("there is no exchange"), "{shown}");
}

/// The usage of an instance in a step of a ramp.
#[track_caller]
pub(crate) fn used<'a>(step: &'a Value, instance: &str) -> &'a Value {
    step["usage"].as_array().unwrap().iter().find(|used| used["instance"] == instance).unwrap()
}

/// Kills all agents of an experiment with SIGKILL.
fn kill_agents(runtime_dir: &str) {
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let mut killed = 0;
    for entry in entries {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains("agent serve") && line.contains(runtime_dir) {
            let pid = entry.file_name().to_str().unwrap().to_owned();
            assert!(std::process::Command::new("kill").args(["-9", &pid]).status().unwrap().success());
            killed += 1;
        }
    }
    assert!(killed > 0, "there is no agent");
}

fn wait_until_gone(pids: &[(String, u64)]) {
    let runs = |pid: &u64| {
        // A process that has ended may wait for somebody to read its status.
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
    };
    until(20, || match pids.iter().find(|(_, pid)| runs(pid)) {
        None => Ok(()),
        Some((name, pid)) => Err(format!("{name} ({pid}) outlives its agent")),
    });
}

#[test]
fn a_ramp_names_the_front_that_is_slow() {
    let experiment = Experiment::up(&one_machine("cpu_share = 0.1"));
    let ramp = experiment.ramp("--from 10 --factor 4 --steps 4 --step-s 4 --wallets 60");
    let exchange = used(ramp["steps"].as_array().unwrap().last().unwrap(), "exchange");
    let (cores, share) = (exchange["cores"].as_f64().unwrap(), exchange["share"].as_f64().unwrap());
    assert!((share - 0.1).abs() < 1e-9 && cores < 0.4, "{exchange:#}");
    if cores / share < 0.8 {
        eprintln!("the machine gives the exchange less than its share, so something else is the limit");
        return;
    }
    assert_eq!(ramp["bottleneck"]["stage"], "exchange", "{ramp:#}");
    assert!(ramp["bottleneck"]["why"].as_str().unwrap().contains("% of the time only"), "{ramp:#}");
}

#[test]
fn a_ramp_names_the_disk_that_is_slow() {
    let experiment = Experiment::up(&one_machine("disk_delay_ms = 0"));
    let unprepared = on(&experiment.path(), &["disturb", "slow-disk", "bank", "--delay-ms", "20"]);
    assert!(stderr(&unprepared).contains("give its role `disk_delay_ms = 0`"), "{}", stderr(&unprepared));
    experiment.must(&["disturb", "slow-disk", "exchange", "--delay-ms", "600"]);
    let status = experiment.must(&["status"]);
    assert!(status.contains("syncs take 600 ms longer"), "{status}");
    // A process that is started again finds the same disk.
    experiment.must(&["disturb", "kill", "exchange"]);
    experiment.wait_until_started_again("exchange");
    let ramp = experiment.ramp("--from 4 --steps 1 --step-s 6 --wallets 20 --p99-max-ms 500");
    let exchange = used(&ramp["steps"][0], "exchange");
    assert_eq!(exchange["disk_delay_ms"], 600.0, "{exchange:#}");
    assert!(exchange["commit_ms"].as_f64().unwrap() >= 600.0, "{exchange:#}");
    assert_eq!(ramp["bottleneck"]["stage"], "disk of exchange", "{ramp:#}");
    experiment.must(&["disturb", "slow-disk", "exchange", "--delay-ms", "0"]);
    experiment.conserves();
}

/// Whether this user and this kernel make network namespaces with links; a test that needs them says so when not.
pub(crate) fn may_make_namespaces() -> bool {
    let name = format!("bztry{}", std::process::id());
    let ip = |words: &[&str]| {
        let output = std::process::Command::new("ip").args(words).output();
        output.is_ok_and(|output| output.status.success())
    };
    let may = Path::new("/dev/net/tun").exists()
        && ip(&["netns", "add", &name])
        && ip(&["link", "add", &name, "type", "veth", "peer", "name", "lan0", "netns", &name])
        && ip(&["link", "add", &format!("{name}b"), "type", "bridge"]);
    ip(&["link", "delete", &format!("{name}b")]);
    ip(&["link", "delete", &name]);
    ip(&["netns", "delete", &name]);
    if !may {
        eprintln!("no network namespaces with links here: only root with iproute2 and TUN devices has them");
    }
    may
}

#[test]
fn a_ramp_shows_the_way_to_a_far_database() {
    if !may_make_namespaces() {
        return;
    }
    let topology = std::fs::read_to_string("../topologies/far-database.toml").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("far.toml");
    // Fewer and shorter steps than a person would want.
    let (long, short) = (
        r#""--from", "4", "--factor", "2", "--steps", "7", "--step-s", "5""#,
        r#""--from", "20", "--factor", "4", "--steps", "2", "--step-s", "4""#,
    );
    assert!(topology.contains(long));
    // The way becomes long once the tables are made.
    let link =
        |rtt: &str| format!("[[step]]\nrun = ['disturb', 'link', 'main', 'far', '--rtt-ms', '{rtt}']\n\n");
    let (before, ramp) = topology.split_once("[[step]]").unwrap();
    let text = format!("{before}{}[[step]]{ramp}\n{}", link("100"), link("0"));
    let text = text.replace(long, short).replace("rtt_ms = 20", "rtt_ms = 0");
    std::fs::write(&file, text).unwrap();
    let output = on(&dir.path().join("experiment"), &["experiment", file.to_str().unwrap()]);
    let last = stdout(&output).lines().last().unwrap_or_default().to_owned();
    let verdict: Value = serde_json::from_str(&last).unwrap_or_else(|_| panic!("{last}{}", stderr(&output)));
    assert_eq!(verdict["ok"], true, "{verdict:#}{}", stderr(&output));
    assert_eq!(verdict["conserved"], true, "{verdict:#}");
    // How much load comes to the exchange depends on the machine, but the way takes its time on any.
    let ramp = read_json(dir.path().join("experiment/ramp.json"));
    for step in ramp["steps"].as_array().unwrap() {
        let exchange = used(step, "exchange");
        for name in ["rtt_ms", "commit_ms"] {
            assert!(exchange[name].as_f64().is_some_and(|ms| ms >= 100.0), "{name}: {exchange:#}");
        }
    }
    let report = std::fs::read_to_string(verdict["report"].as_str().unwrap()).unwrap();
    assert!(report.contains("Round trips between hosts"));
    // While the ramp ran, the agents saw the same way.
    let samples = std::fs::read_to_string(dir.path().join("experiment/hosts/core/samples.jsonl")).unwrap();
    let samples = samples.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let trips: Vec<Value> = samples.map(|sample| sample["round_trips_ms"].clone()).collect();
    let to = |host: &str| trips.iter().filter_map(|all| all[host].as_f64()).collect::<Vec<f64>>();
    assert!(to("db").iter().any(|ms| *ms >= 100.0), "{trips:?}");
    assert!(to("people").iter().any(|ms| *ms < 100.0), "{trips:?}");
}

/// Two hosts that only ssh reaches: namespaces with a server each, on a bridge of this test.
struct SshHosts {
    dir: tempfile::TempDir,
    servers: Vec<std::process::Child>,
}

/// The number of this test's network, so that two runs on one machine do not share one.
fn ssh_network() -> u32 {
    std::process::id() % 250
}

fn bridge() -> String {
    format!("bzt{}", ssh_network())
}

/// Names and addresses of the hosts.
fn ssh_hosts() -> [(String, String); 2] {
    let network = ssh_network();
    [1, 2].map(|number| (format!("bzt{network}-{number}"), format!("10.251.{network}.1{number}")))
}

#[track_caller]
pub(crate) fn command(words: &[&str]) {
    let output = std::process::Command::new(words[0]).args(&words[1..]).output().unwrap();
    assert!(output.status.success(), "{words:?}: {}", stderr(&output));
}

fn remove_ssh_hosts() {
    for (name, _) in ssh_hosts() {
        // There may be none yet.
        let _ = std::process::Command::new("ip").args(["netns", "delete", &name]).output();
    }
    let _ = std::process::Command::new("ip").args(["link", "delete", &bridge()]).output();
}

impl SshHosts {
    fn start() -> Self {
        remove_ssh_hosts();
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        for key in ["host-key", "user-key"] {
            command(&["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", &path(key)]);
        }
        std::fs::copy(path("user-key.pub"), path("authorized")).unwrap();
        let bridge = bridge();
        command(&["ip", "link", "add", &bridge, "type", "bridge"]);
        command(&["ip", "address", "add", &format!("10.251.{}.1/24", ssh_network()), "dev", &bridge]);
        command(&["ip", "link", "set", &bridge, "up"]);
        command(&["mkdir", "-p", "/run/sshd"]);
        let mut config = String::new();
        let servers = ssh_hosts().map(|(name, address)| {
            let name = name.as_str();
            command(&["ip", "netns", "add", name]);
            command(&["ip", "link", "add", name, "type", "veth", "peer", "name", "lan0", "netns", name]);
            command(&["ip", "link", "set", name, "master", &bridge, "up"]);
            command(&["ip", "-n", name, "address", "add", &format!("{address}/24"), "dev", "lan0"]);
            command(&["ip", "-n", name, "link", "set", "lan0", "up"]);
            command(&["ip", "-n", name, "link", "set", "lo", "up"]);
            config.push_str(&format!(
                "Host {name}\n  HostName {address}\n  User root\n  IdentityFile {}\n  IdentitiesOnly yes\n  \
                 StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n  LogLevel ERROR\n",
                path("user-key")
            ));
            let options = format!(
                "ListenAddress {address}\nHostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\nPidFile none\n\
                 PermitRootLogin prohibit-password\nPasswordAuthentication no\n",
                path("host-key"),
                path("authorized")
            );
            let file = path(&format!("sshd-{name}"));
            std::fs::write(&file, options).unwrap();
            std::process::Command::new("ip")
                .args(["netns", "exec", name, "/usr/sbin/sshd", "-D", "-f", &file])
                .spawn()
                .unwrap()
        });
        std::fs::write(path("config"), config).unwrap();
        Self { dir, servers: servers.into() }
    }

    fn topology(&self) -> String {
        let bin_dir = std::path::PathBuf::from(lab().get_program());
        let bin_dir = bin_dir.parent().unwrap().display().to_string();
        let mut text = format!(
            "name = 'far'\nlog = 'INFO'\nrsa_bits = 1024\nssh_config = '{}'\n",
            self.dir.path().join("config").display()
        );
        for (name, address) in ssh_hosts() {
            let dir = self.dir.path().join(&name);
            text.push_str(&format!(
                "[hosts.{name}]\nkind = 'ssh'\naddress = '{address}'\nssh = '{name}'\ndir = '{}'\nbin_dir = '{bin_dir}'\n",
                dir.display()
            ));
        }
        for (role, host) in [("bank", 0), ("exchange", 0), ("merchant", 0), ("auditor", 1), ("load", 1)] {
            text.push_str(&format!("[[role]]\nrole = '{role}'\nhosts = ['{}']\n", ssh_hosts()[host].0));
        }
        text
    }
}

impl Drop for SshHosts {
    fn drop(&mut self) {
        for server in &mut self.servers {
            // It may have ended already.
            let _ = server.kill();
            let _ = server.wait();
        }
        remove_ssh_hosts();
    }
}

/// Checks that two hosts are paid for with all that they have.
fn costs_whole_hosts(experiment: &Experiment, ramp: &Value) {
    let output = lab().args(["cost", "--whole-hosts", "--json"]).arg(experiment.path()).output().unwrap();
    let Some(knee) = ramp["knee_ops_per_s"].as_f64() else {
        assert!(stderr(&output).contains("did not keep up with the first step"), "{}", stderr(&output));
        eprintln!("the machine is too busy for the first step of a ramp, so there is no knee with a cost");
        return;
    };
    assert!(output.status.success(), "{}", stderr(&output));
    let costs: Value = serde_json::from_str(&stdout(&output)).unwrap();
    let (row, machines) = (&costs["rows"][0], &experiment.state()["machines"]);
    let all = |name: &str| {
        machines.as_object().unwrap().values().map(|machine| machine[name].as_f64().unwrap()).sum::<f64>()
    };
    assert_eq!((row["hosts"].as_u64(), row["ops_per_s"].as_f64()), (Some(2), Some(knee)), "{costs:#}");
    assert_eq!(row["cores"].as_f64(), Some(all("cores")), "{costs:#}");
    assert_eq!(row["memory_bytes"].as_f64(), Some(all("memory_bytes")), "{costs:#}");
    let used = row["roles"]["exchange"]["cores"].as_f64();
    assert!(used < row["cores"].as_f64(), "what was used stays in the table: {costs:#}");
}

#[test]
fn hosts_that_only_ssh_reaches_run_an_experiment_and_give_back_what_they_kept() {
    if !may_make_namespaces() {
        return;
    }
    // A package of it would open the machine to the network, so `make test` does not install it.
    if !Path::new("/usr/sbin/sshd").exists() {
        eprintln!("no sshd here: hosts by ssh are not tried");
        return;
    }
    let hosts = SshHosts::start();
    let [one, two] = ssh_hosts().map(|(name, _)| name);
    let experiment = Experiment::up(&hosts.topology());
    experiment.must(&["load", "start", "--wallets", "3"]);
    until(0, || {
        let shown = experiment.must(&["load", "show", "--seconds", "1", "--json"]);
        let second: Value = serde_json::from_str(shown.lines().last().unwrap_or_default()).unwrap();
        if second["ops"].as_u64().unwrap() > 0 { Ok(()) } else { Err(second.to_string()) }
    });
    let logged = experiment.must(&["logs", "--instance", "merchant"]);
    assert!(logged.contains("path=\"/private/orders\""), "{logged}");
    // Another machine gets the token of the shop in a file of its own, and gives back the result.
    let paid =
        ["load", "bench", "pay", "--duration", "1", "--clients", "2", "--json", "--", "--supply", "200"];
    let paid: Value = serde_json::from_str(&experiment.must(&paid)).unwrap();
    assert_eq!(paid["results"][0]["errors"], serde_json::json!({}), "{paid:#}");
    let ramp = experiment.ramp("--from 1 --steps 1 --step-s 4 --p99-max-ms 100000");
    let status = experiment.json(&["status"]);
    for (from, to) in [(&one, &two), (&two, &one)] {
        assert!(status["round_trips_ms"][from][to].is_f64(), "{status}");
    }
    assert_eq!(experiment.must(&["ssh", &two, "--", "echo", "two  words"]), "two  words\n");
    experiment.conserves();
    let pids = experiment.pids();
    // Agents that were killed are no reason to lose what the machines have kept.
    kill_agents(hosts.dir.path().to_str().unwrap());
    wait_until_gone(&pids);
    experiment.must(&["down"]);
    // The samples and outputs of other machines are here now.
    for (host, file) in [(&one, "samples.jsonl"), (&one, "exchange/conf"), (&two, "load/out")] {
        let path = experiment.path().join("hosts").join(host).join(file);
        assert!(std::fs::metadata(&path).is_ok_and(|found| found.len() > 0), "{host}/{file}");
        let left = std::fs::read_dir(hosts.dir.path().join(host)).unwrap().count();
        assert_eq!(left, 0, "something stays on {host}");
    }
    let again = on(&experiment.path(), &["down"]);
    assert!(stderr(&again).contains("down already"), "{}", stderr(&again));
    costs_whole_hosts(&experiment, &ramp);
}

#[test]
fn every_topology_that_comes_with_the_program_can_be_planned() {
    let mut planned = 0;
    let files = std::fs::read_dir("../topologies").unwrap().map(|entry| entry.unwrap().path());
    for path in files.filter(|path| path.extension().is_some_and(|extension| extension == "toml")) {
        let plan = printed(lab().args(["up", "--plan", "--json"]).arg(&path));
        assert!(plan["instances"].as_array().is_some_and(|instances| !instances.is_empty()));
        planned += 1;
    }
    assert!(planned >= 3);
}
