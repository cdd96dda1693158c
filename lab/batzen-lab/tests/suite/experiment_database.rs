//! Experiments on databases: a Citus cluster that loses a worker, and what Prometheus knows of the servers and the proxy.

use batzen_postgres::{Connection, Target};
use batzen_testkit::postgres::{CITUS_MISSING, CitusCluster};
use batzen_testkit::process::stderr;

use crate::commands::until;
use crate::experiment::{Experiment, on, used};
use crate::experiment_kept::asked;

/// The answer of the exchange's database at an instance, row by row.
fn sql(experiment: &Experiment, instance: &str, query: &str) -> Vec<Vec<Option<String>>> {
    let state = experiment.state();
    let (password, port) = (state["password"].as_str().unwrap(), experiment.port(instance));
    let target = Target::parse(&format!("postgres://batzen:{password}@127.0.0.1:{port}/exchange")).unwrap();
    Connection::open(&target).unwrap().query_text(query).unwrap()
}

#[test]
fn an_experiment_on_citus_loses_a_worker_and_no_money() {
    let topology = std::fs::read_to_string("../topologies/citus.toml").unwrap();
    if !CitusCluster::is_installed() {
        eprintln!("{CITUS_MISSING}");
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("given.toml");
        std::fs::write(&file, topology).unwrap();
        let refused = on(&dir.path().join("experiment"), &["up", file.to_str().unwrap()]);
        assert!(stderr(&refused).contains("install the extension"), "{}", stderr(&refused));
        assert!(!dir.path().join("experiment").exists(), "something was begun");
        return;
    }
    let experiment = Experiment::up(&topology);
    experiment.must(&["load", "start", "--wallets", "6", "--mix", "pay=8,refund=1,send=1"]);
    let done = experiment.wait_for_payments(10);
    experiment.must(&["disturb", "kill", "citus-2"]);
    experiment.wait_until_started_again("citus-2");
    let done = experiment.wait_for_payments(done + 10);
    // A server that was stopped ends at once, though clients are connected.
    experiment.must(&["disturb", "stop", "citus-3"]);
    until(100, || {
        let started = on(&experiment.path(), &["disturb", "start", "citus-3"]);
        if started.status.success() { Ok(()) } else { Err("it does not end".to_owned()) }
    });
    experiment.wait_for_payments(done + 10);
    let ramp = experiment.ramp("--from 4 --steps 1 --step-s 3 --wallets 10");
    let of = |name: &str| used(&ramp["steps"][0], name);
    assert!(of("exchange-2")["rtt_ms"].is_f64() && of("citus-3")["cores"].is_f64(), "{ramp:#}");
    experiment.conserves();
    let shards = "SELECT nodeport, count(*) FROM citus_shards WHERE table_name = 'exchange.coins'::regclass GROUP BY 1";
    let ports: Vec<u16> = sql(&experiment, "citus-1", shards)
        .into_iter()
        .map(|row| row[0].as_ref().unwrap().parse().unwrap())
        .collect();
    assert_eq!(ports.len(), 2, "{ports:?}");
    for worker in ["citus-2", "citus-3"] {
        assert!(ports.contains(&experiment.port(worker)), "{worker} has no coins: {ports:?}");
    }
}

/// A primary with a standby, and two processes of an exchange behind the proxy; everything is recorded.
fn recorded() -> String {
    let roles = "postgres standby bank signer proxy worker merchant auditor prometheus load".split(' ');
    let roles = roles.map(|role| format!("[[role]]\nrole = '{role}'\nhosts = ['here']\n"));
    let exchange = "[[role]]\nrole = 'exchange'\nhosts = ['here']\ncount = 2\n";
    format!("name = 'test'\nrsa_bits = 1024\n[hosts.here]\n{}{exchange}", roles.collect::<String>())
}

#[test]
fn prometheus_knows_what_servers_and_proxy_know_of_themselves() {
    let experiment = Experiment::up(&recorded());
    experiment.must(&["load", "start", "--wallets", "4", "--mix", "pay=8,refund=1,send=1"]);
    experiment.wait_for_payments(5);
    // An exporter outlives its server, and finds it again.
    experiment.must(&["disturb", "kill", "postgres"]);
    experiment.wait_until_started_again("postgres");
    let done = experiment.wait_for_payments(10);
    experiment.must(&["disturb", "kill", "proxy"]);
    experiment.wait_until_started_again("proxy");
    experiment.wait_for_payments(done + 5);
    let servers_of = |dashboard: &str| {
        let mut asked = asked(&experiment, dashboard);
        asked.retain(|(query, _)| query.contains("pg_") || query.contains("nginx_"));
        asked
    };
    for (dashboard, at_least) in [("database.json", 12), ("proxies.json", 9)] {
        until(500, || {
            let found = servers_of(dashboard);
            assert!(found.len() >= at_least, "{dashboard}: {found:?}");
            let empty: Vec<_> = found.iter().filter(|(_, rows)| *rows == 0).collect();
            if empty.is_empty() {
                return Ok(());
            }
            Err(format!("{dashboard}: queries without a result: {empty:#?}"))
        });
    }
    let status = experiment.json(&["status"]);
    for row in status["processes"].as_array().unwrap() {
        let name = row["instance"].as_str().unwrap();
        let is_exporter = name.ends_with("-exporter") || name.ends_with("-times");
        assert!(!is_exporter || row["restarts"] == 0, "{row}");
    }
    experiment.conserves();
}
