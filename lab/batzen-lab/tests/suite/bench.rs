//! `batzen-lab bench`: short runs of every scenario with real processes.

use batzen_testkit::process as common;

use std::collections::BTreeMap;
use std::net::TcpStream;
use std::path::Path;

use common::{Service, lab, must, run_lab, stderr, stdout};
use serde_json::Value;

use crate::commands::{printed, read_json, until};

/// Runs a scenario, checks the fields that every result must have, and returns the result. It ends sooner when the supply
/// is used up; a shorter time could pass while a busy machine does something else.
fn measured(dir: &Path, words: &[&str]) -> Value {
    let out = dir.join("result");
    let duration = if words.contains(&"--supply") { "30" } else { "3" };
    let further = ["--json", "--keep-world", "--warmup", "0", "--duration", duration, "--out"];
    let written = measured_into(&out, words, &further);
    let names = "scenario parameters machine commit started duration_s ops ops_per_s efficiency \
                 ceiling_ops_per_s limited_by p50_us p99_us max_us bytes_per_op cpu_us_per_op \
                 cpu_us_per_op_by_stage batch_sizes";
    for name in names.split(' ') {
        assert!(!written[name].is_null(), "{words:?}: {name} is missing");
    }
    assert!(written["ops"].as_u64().unwrap() > 0, "{words:?}: {written}");
    assert!(written["efficiency"].as_f64().unwrap() > 0.0);
    assert!(written["extra"]["answers_checked"].as_f64().unwrap() > 0.0, "{words:?}: {}", written["extra"]);
    for file in ["latency.hgrm", "server-metrics-before.prom", "server-metrics-after.prom"] {
        assert!(std::fs::metadata(out.join(file)).unwrap().len() > 0, "{file}");
    }
    // The exchange's books balance.
    let config = out.join("world/taler.conf");
    must(&["exchange", "totals", "--json", "-c", config.to_str().unwrap()]);
    written
}

/// Runs a scenario that fails nowhere and writes to the disk. The result that it keeps is the one that it prints.
fn measured_into(out: &Path, words: &[&str], further: &[&str]) -> Value {
    let result = printed(lab().arg("bench").args(words).args(further).arg(out));
    assert_eq!(result, read_json(out.join("result.json")));
    assert!(result["errors"].as_object().unwrap().is_empty(), "{words:?}: {}", result["errors"]);
    assert!(result["bytes_per_op"]["disk"].as_f64().unwrap() > 50.0, "{words:?}: {}", result["bytes_per_op"]);
    result
}

macro_rules! scenarios {
    ($($name:ident: $($word:literal)+;)+) => {$(
        #[test]
        fn $name() {
            let dir = tempfile::tempdir().unwrap();
            let result = measured(dir.path(), &[$($word),+]);
            let words = [$($word),+];
            assert_eq!(result["scenario"], words[0]);
        }
    )+};
}

scenarios! {
    withdraw_rsa: "withdraw" "--rsa" "1024" "--clients" "4" "--reserves" "10" "--supply" "300";
    p2p: "p2p" "--rsa" "1024" "--coins" "2" "--clients" "4" "--receivers" "10" "--supply" "300";
    pay: "pay" "--rsa" "1024" "--coins" "3" "--clients" "4" "--shops" "5" "--refunds" "10" "--supply" "300";
    pay_cs_with_workers: "pay" "--cs" "--coins" "1" "--clients" "4" "--shops" "5" "--supply" "300" "--with-workers";
    withdraw_cs_in_batches: "withdraw" "--cs" "--batch" "4" "--clients" "3" "--reserves" "5" "--supply" "300";
    deposit: "deposit" "--rsa" "1024" "--clients" "5" "--supply" "300" "--merchants" "one";
    deposit_cs: "deposit" "--cs" "--clients" "5" "--supply" "200";
    batch_deposit_with_workers: "batch-deposit" "--rsa" "1024" "--batch" "3" "--clients" "4" "--supply" "300" "--merchants" "zipf"
        "--with-workers";
    refresh: "refresh" "--rsa" "1024" "--fresh" "2" "--clients" "4" "--supply" "200";
    refresh_cs: "refresh" "--cs" "--clients" "4" "--supply" "200";
    mixed: "mixed" "--rsa" "1024" "--clients" "4" "--supply" "300" "--merchants" "zipf";
    mixed_cs: "mixed" "--cs" "--clients" "4" "--supply" "300";
    cycle: "cycle" "--rsa" "1024" "--clients" "1" "--supply" "200";
    cycle_in_batches: "cycle" "--rsa" "1024" "--batch" "8" "--clients" "2" "--supply" "300";
}

/// Small runs of the scenarios without requests. The results on disk must equal the printed ones.
#[test]
fn workers_and_store() {
    for words in [
        ["wirewatch", "--credits", "3000"],
        ["aggregator", "--deposits", "2000"],
        ["transfer", "--transfers", "300"],
        ["store", "--deposits", "2000"],
    ] {
        let dir = tempfile::tempdir().unwrap();
        let printed = measured_into(&dir.path().join("result"), &words, &["--json", "--out"]);
        assert_eq!(printed["scenario"], words[0]);
        assert!(printed["ops"].as_u64().unwrap() >= words[2].parse().unwrap(), "{words:?}: {printed}");
    }
}

/// The programs start, sign and end; how fast is not tested.
#[test]
fn startup() {
    let words = ["bench", "startup", "--rsa", "1024", "--denominations", "2", "--store", "postgres"];
    let output = run_lab(&words);
    assert!(output.status.success(), "{}", stderr(&output));
    for step in ["dbinit", "eight calls of the offline tool", "ready for wallets", "ends after SIGTERM"] {
        assert!(stdout(&output).contains(step), "{}", stdout(&output));
    }
    let result = printed(lab().args(["bench", "startup", "--cs", "--denominations", "1", "--json"]));
    let steps = result["steps"].as_array().unwrap();
    let sum: f64 = steps.iter().map(|step| step["ms"].as_f64().unwrap()).sum();
    assert!(steps.len() == 5 && (sum - result["ready_ms"].as_f64().unwrap()).abs() < 100.0, "{result}");
    assert_eq!(result["denominations"], "1 × CS");
}

/// The attacks that the help lists, by service.
fn attacks() -> BTreeMap<String, Vec<String>> {
    let help = stdout(&run_lab(&["bench", "hostile", "--help"]));
    let (_, list) = help.split_once("Attacks, by the service").unwrap();
    let (list, _) = list.split_once("Goals").unwrap();
    let mut attacks: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut service = String::new();
    for line in list.lines().filter(|line| line.starts_with("  ")) {
        let word = line.split_whitespace().next().unwrap();
        if line.starts_with("    ") {
            attacks.get_mut(&service).unwrap().push(word.to_owned());
        } else {
            word.trim_end_matches(':').clone_into(&mut service);
            attacks.insert(service.clone(), Vec::new());
        }
    }
    attacks
}

/// Makes each attack on a service once. The result shows what the honest clients got during it.
fn attack(service: &str) {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("result");
    let words = "bench hostile --rsa 1024 --clients 4 --rate 20 --connections 8 --addresses 2 --warmup 0 --duration 1 --json";
    let result = printed(lab().args(words.split(' ')).args(["--service", service, "--out"]).arg(&out));
    assert!(result["errors"].as_object().unwrap().is_empty(), "{}", result["errors"]);
    assert_eq!(result["parameters"]["services"], serde_json::json!([service]));
    let figure = |label: &str, name: &str| result["extra"][&format!("{label}_{name}")].as_f64();
    assert!(figure(&format!("{service}_alone"), "memory_peak_mb").unwrap() > 1.0, "{result}");
    let attacks = &attacks()[service];
    assert!(attacks.len() >= 3, "{attacks:?}");
    for attack in attacks {
        // A busy machine may serve nobody for as long as an attack lasts here, so the shares have no lower limit.
        for name in ["completed", "failed_requests", "goals_met", "share", "connections_held"] {
            assert!(figure(attack, name).is_some(), "{attack}: {name} is missing");
        }
        assert!(figure(attack, "memory_peak_mb").unwrap() > 1.0, "{attack}: {result}");
        assert!(figure(attack, "ended").is_none(), "{attack}: {result}");
        assert!(result["kinds"].get(format!("{service}: {attack}")).is_some(), "{attack}: {result}");
    }
    assert!(figure(&format!("{service}_alone"), "completed").is_some(), "{result}");
    assert!(result["kinds"].get(format!("{service}: no attack")).is_some(), "{result}");
}

#[test]
fn an_exchange_is_attacked() {
    attack("exchange");
}

#[test]
fn purses_and_identifications_are_attacked() {
    attack("purses");
    attack("kyc");
}

#[test]
fn a_merchant_and_an_auditor_are_attacked() {
    attack("merchant");
    attack("auditor");
}

#[test]
fn the_ports_of_feed_and_ledger_are_attacked() {
    attack("feed");
    attack("ledger");
    let tested = ["auditor", "exchange", "feed", "kyc", "ledger", "merchant", "purses"];
    let listed: Vec<String> = attacks().into_keys().collect();
    assert_eq!(listed, tested, "each service is attacked by one of these tests");
}

/// A program that lacks a service has a result that says so.
#[test]
fn a_program_that_cannot_be_attacked_is_no_failure() {
    let dir = tempfile::tempdir().unwrap();
    let words =
        "bench hostile --rsa 1024 --duration 100ms --json --service ledger --program /bin/false --out";
    let result = printed(lab().args(words.split(' ')).arg(dir.path().join("result")));
    assert_eq!(result["extra"]["ledger_missing"], 1.0, "{result}");
    let remark = result["remarks"][0].as_str().unwrap();
    assert!(remark.starts_with("ledger could not be attacked: "), "{remark}");
    let words = ["bench", "hostile", "--attack", "slow-uploads", "--service", "ledger"];
    let output = run_lab(&words);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
}

#[test]
fn the_peak_is_found_and_a_share_of_it_kept() {
    let dir = tempfile::tempdir().unwrap();
    let words =
        ["withdraw", "--rsa", "1024", "--clients", "8", "--reserves", "10", "--rate", "40%", "--seed", "7"];
    let result = measured(dir.path(), &words);
    let peak = result["extra"]["probed_peak_ops_per_s"].as_f64().unwrap();
    let target = result["load"]["target_ops_per_s"].as_f64().unwrap();
    assert!((target - 0.4 * peak).abs() < 1e-6 * peak, "{target} of {peak}");
    // Jobs begin on time, in three seconds; how soon they are answered depends on the machine.
    assert!(result["ops"].as_f64().unwrap() <= target * 4.0 + 10.0, "{result}");
    assert_eq!(result["parameters"]["seed"], 7);
    assert!(result["command"].as_str().unwrap().starts_with("batzen-lab bench withdraw --rsa 1024"));
}

#[test]
fn wrong_arguments_are_exit_2() {
    let dir = tempfile::tempdir().unwrap();
    for (words, hint) in [
        (&["withdraw", "--clients", "0"][..], "clients"),
        (&["withdraw", "--rate", "fast"], "70%"),
        (&["withdraw", "--duration", "soon"], "500ms"),
        (&["withdraw", "--rsa", "512"], "1024"),
        (&["withdraw", "--rsa", "2048", "--cs"], "--cs"),
        (&["deposit", "--merchants", "all"], "zipf"),
        (&["deposit", "--server-cores", "3-1"], "0-3"),
        (&["deposit", "--server-cores", "1023"], "core 1023"),
        (&["deposit", "--batch", "3"], "--batch"),
        (&["mixed", "--supply", "0"], "supply"),
        // There would be nothing to measure.
        (&["withdraw", "--duration", "0"], "500ms"),
        (&["pgbench", "--duration", "0s"], "500ms"),
        (&["aggregator", "--deposits", "0"], "deposits"),
        (&["wirewatch", "--credits", "0"], "credits"),
        (&["transfer", "--transfers", "0"], "transfers"),
        (&["store", "--deposits", "0"], "deposits"),
        // The option would have no effect.
        (&["deposit", "--partitions", "8"], "--store postgres"),
        (&["aggregator", "--postgres-set", "jit=off"], "--store postgres"),
        (&["wirewatch", "--store", "embedded", "--database", "postgres://localhost/x"], "--store embedded"),
        (&["pgbench", "--database", "postgres://localhost/x", "--postgres-set", "jit=off"], "at the server"),
        (&["partitions", "--partitions", "8"], "--counts"),
        (&["partitions", "--database", "postgres://localhost/x"], "--database"),
        (&["limits", "--core", "1023"], "core 1023"),
        (&["compare", "a", "b", "--noise", "5000"], "--noise"),
        (&["deposit", "--rsa", "3000"], "2944 or 3072"),
    ] {
        let mut arguments = vec!["bench"];
        arguments.extend(words);
        let output = lab().args(&arguments).current_dir(dir.path()).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{words:?}: {}", stderr(&output));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "{words:?} leaves something behind");
        assert!(stderr(&output).contains(hint), "{words:?}: {}", stderr(&output));
        assert!(output.stdout.is_empty(), "{words:?}");
    }
}

#[test]
fn results_are_not_overwritten() {
    for (scenario, file) in
        [("deposit", "result.json"), ("aggregator", "result.json"), ("limits", "limits.json")]
    {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(file), "{}").unwrap();
        let output = run_lab(&["bench", scenario, "--out", dir.path().to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(2), "{scenario}: {}", stderr(&output));
        let hint = "choose another directory with --out";
        assert!(stderr(&output).contains(hint), "{scenario}: {}", stderr(&output));
        assert_eq!(std::fs::read(dir.path().join(file)).unwrap(), b"{}");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1, "{scenario} leaves something behind");
    }
}

/// A result of another machine, for the reports to read.
const KEPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/results/");

/// Copies a stored result.
fn copy(name: &str, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(Path::new(KEPT).join(name)).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

#[test]
fn directories_of_results_are_read_and_damage_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    let report = |args: &[&str]| {
        lab().args(["bench", "report", "-o", "-"]).args(args).current_dir(dir.path()).output().unwrap()
    };
    for (name, to) in [("deposit", "a"), ("store", "b"), ("withdraw", "partitions/00")] {
        copy(name, &dir.path().join("results").join(to));
    }
    // As a shell expands results/*.
    let output = report(&["results/a", "results/b", "results/partitions"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(["deposit", "store", "withdraw"].iter().all(|name| stdout(&output).contains(name)));
    let whole = report(&["results"]);
    assert_eq!(stdout(&whole), stdout(&output), "{}", stderr(&whole));

    for (file, text, hint) in
        [("latency.hgrm", "zzz\n", "latency.hgrm:1"), ("result.json", "{\"schema\": 1,", "measure again")]
    {
        let damaged = tempfile::tempdir().unwrap();
        copy("deposit", damaged.path());
        std::fs::write(damaged.path().join(file), text).unwrap();
        let output = report(&[damaged.path().to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(1), "{file}: {}", stderr(&output));
        assert!(stderr(&output).contains(hint), "{file}: {}", stderr(&output));
    }
    for file in ["latency.hgrm", "series.csv"] {
        let incomplete = tempfile::tempdir().unwrap();
        copy("deposit", incomplete.path());
        std::fs::remove_file(incomplete.path().join(file)).unwrap();
        let output = report(&[incomplete.path().to_str().unwrap()]);
        assert!(output.status.success(), "{file}: {}", stderr(&output));
        assert!(stdout(&output).contains(&format!("some plots lack this run: {file}<")), "{file}");
    }

    let words = ["bench", "report", "results", "-o", "/nowhere/x.html"];
    let output = lab().args(words).current_dir(dir.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("/nowhere/x.html: "), "{}", stderr(&output));

    std::fs::write(dir.path().join("notes.md"), "# No marks\n").unwrap();
    let words = ["bench", "table", "results", "--into", "notes.md"];
    let output = lab().args(words).current_dir(dir.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("notes.md: there is no table"), "{}", stderr(&output));
}

/// The port of a service in the configuration of a world.
fn port(config: &str, section: &str) -> Option<u16> {
    let rest = config.split_once(&format!("[{section}]"))?.1;
    let line = rest.lines().find(|line| line.contains("PORT ="))?;
    line.split('=').nth(1)?.trim().parse().ok()
}

#[test]
fn a_signal_ends_the_services_too() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("result");
    let words =
        ["bench", "withdraw", "--rsa", "1024", "--reserves", "5", "--supply", "200000", "--duration", "600"];
    let mut bench = Service::start_lab(
        dir.path(),
        "bench",
        &[&words[..], &["--keep-world", "--out", out.to_str().unwrap()]].concat(),
    );
    let ports = until(20, || {
        bench.assert_runs();
        let config = std::fs::read_to_string(out.join("world/taler.conf")).unwrap_or_default();
        let ports = port(&config, "bank").zip(port(&config, "exchange"));
        ports
            .filter(|(_, exchange)| TcpStream::connect(("127.0.0.1", *exchange)).is_ok())
            .ok_or_else(|| "the services do not start".to_owned())
    });
    bench.signal(15);
    assert_eq!(bench.wait().code(), Some(130));
    for port in [ports.0, ports.1] {
        assert!(TcpStream::connect(("127.0.0.1", port)).is_err(), "a service has survived");
    }
    assert!(!out.join("result.json").exists());
}

#[test]
fn lanes_are_compared() {
    let dir = tempfile::tempdir().unwrap();
    let words = ["bench", "lanes", "--lanes", "1,2", "--coins", "1000", "--rounds", "1", "--json", "--dir"];
    let result = printed(lab().args(words).arg(dir.path()));
    let rows = result["rows"].as_array().unwrap();
    let kinds: Vec<_> = rows.iter().map(|row| (&row["coins_per_payment"], &row["lanes"])).collect();
    assert_eq!(
        format!("{kinds:?}"),
        "[(Number(1), Number(1)), (Number(1), Number(2)), (Number(10), Number(1)), (Number(10), Number(2))]"
    );
    for row in rows {
        for figure in ["coins_per_s", "ratio", "lane_cpu_us_per_coin", "serial_cpu_us_per_coin"] {
            assert!(row[figure].as_f64().unwrap() > 0.0, "{figure}: {row}");
        }
        assert!(row["batches_per_frame"].as_f64().unwrap() >= 1.0, "{row}");
        assert_eq!(row["conflicts"], 0, "fresh coins conflict with nothing: {row}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left behind");
}

#[test]
fn larger_machines_are_projected() {
    let dir = tempfile::tempdir().unwrap();
    let words = "bench scale --cores 1 --batch 10 --rounds 1 --coins 200 --warmup 0 --lane-coins 200 --rsa 1024 --clients 4";
    let result = printed(lab().args(words.split(' ')).args(["--json", "--dir"]).arg(dir.path()));
    let kind = &result["kinds"][0];
    assert_eq!((&kind["coins_per_request"], &kind["identified"]), (&Value::from(10), &Value::from(1)));
    let run = &kind["runs"][0];
    for figure in ["coins_per_s", "cpu_us_per_coin", "serial_cpu_us_per_coin", "coins_per_frame"] {
        assert!(run[figure].as_f64().unwrap() > 0.0, "{figure}: {run}");
    }
    let stages = run["cpu_us_per_coin_by_stage"].as_object().unwrap();
    let sum: f64 = stages.values().map(|us| us.as_f64().unwrap()).sum();
    assert!((sum / run["cpu_us_per_coin"].as_f64().unwrap() - 1.0).abs() < 0.001, "{run}");
    assert!(stages["cpu"].as_f64() > stages["lane"].as_f64(), "signatures cost most: {run}");
    let projections = kind["projections"].as_array().unwrap();
    assert_eq!(
        projections.iter().map(|at| at["cores"].as_u64().unwrap()).collect::<Vec<_>>(),
        [8, 16, 32, 64]
    );
    for at in projections {
        let [low, rate, high] =
            ["low_coins_per_s", "coins_per_s", "high_coins_per_s"].map(|name| at[name].as_f64().unwrap());
        assert!(0.0 < low && low <= rate && rate <= high, "{at}");
    }
    assert!(
        kind["ceilings"].as_array().unwrap().iter().any(|ceiling| ceiling["stage"] == "commit"),
        "{kind}"
    );
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left behind");
    let refused = run_lab(&["bench", "scale", "--cores", "1024", "--dir", dir.path().to_str().unwrap()]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("--cores 1024: this process may use"), "{}", stderr(&refused));
}

#[test]
fn plans_grow_with_the_load() {
    let plan = |words: &[&str]| printed(lab().args(["plan", "--json"]).args(words));
    let town = plan(&["--payments-per-second", "10"]);
    let country = plan(&["--payments-per-second", "100000", "--coins", "3", "--years", "3"]);
    assert!(town["cores_in_all"].as_f64().unwrap() < 1.0 && town["lanes"] == 1, "{town}");
    assert!(country["cores_in_all"].as_f64().unwrap() > 10.0, "{country}");
    assert_eq!(country["coins_per_s"], 300_000.0);
    let database = plan(&["--payments-per-second", "1000", "--store", "postgres"]);
    assert!(database["database_cores"].as_f64().unwrap() > 0.0, "{database}");
    let workers = |cores: &str| {
        let words = ["--payments-per-second", "100000", "--store", "citus", "--worker-cores", cores];
        let text = stdout(&lab().arg("plan").args(words).output().unwrap());
        for part in ["workers", "coordinator", "--citus --shards", "to a worker at most"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        plan(&words)["citus"]["workers"].as_u64().unwrap()
    };
    assert!(workers("16") > 2 && workers("16") > workers("32"));
    let refused = lab().args(["plan", "--payments-per-second", "9", "--worker-cores", "8"]).output().unwrap();
    assert!(!refused.status.success() && stderr(&refused).contains("--store citus"), "{}", stderr(&refused));
    let text = lab().args(["plan", "--payments-per-second", "1000"]).output().unwrap();
    let text = stdout(&text);
    for part in
        ["cryptography", "lanes", "disk a day", "RAM in the end", "network", "measure with your own load"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    let refused = lab().args(["plan", "--payments-per-second", "0"]).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("a number above 0"), "{}", stderr(&refused));
}
