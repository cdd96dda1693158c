//! The demo of the switch, as scripts run it: every step, every report, every number of its books.

use batzen_testkit::process as common;

use std::path::{Path, PathBuf};

use common::Service;
use serde_json::Value;

use crate::commands::{logged, printed};

/// The steps in order.
const STEPS: &str =
    "four eyes, onboard, transfer, limits, abort, repeat, expire, window, settle, report, balance";

/// The participants' initial funds at the settlement bank, in whole units of the currency.
const BROUGHT: [(&str, i128); 4] = [("alpha", 10_000), ("beta", 10_000), ("gamma", 10_000), ("delta", 50)];

fn play(data: &Path, more: &[&str]) -> Value {
    printed(common::lab().args(["switch", "demo", "--once", "--json", "--data"]).arg(data).args(more))
}

/// An amount of the results in ten-thousandths.
fn amount(value: &Value) -> i128 {
    let text = value.as_str().unwrap();
    text.replace('.', "").parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn every_amount_is_where_it_belongs() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("day");
    let results = play(&data, &[]);
    let steps = results["steps"].as_array().unwrap();
    let names: Vec<&str> = steps.iter().map(|step| step["name"].as_str().unwrap()).collect();
    assert_eq!(names.join(", "), STEPS);
    for step in steps {
        assert_eq!(step["ok"], true, "{step}");
        assert!(step["count"].as_u64().unwrap() > 0, "{step}");
        assert!(step["milliseconds"].is_u64(), "{step}");
    }
    let balance = &results["balance"];
    assert_eq!(amount(&balance["debits"]), amount(&balance["credits"]));
    assert!(amount(&balance["debits"]) > 0);
    assert_eq!((amount(&balance["pending"]), amount(&balance["hub_settlement"])), (0, 0));
    // 40 plain transfers, a repeated one, and one with a changed repetition.
    assert_eq!((&balance["committed"], &balance["callbacks"]), (&42.into(), &42.into()));
    assert_eq!((&balance["unfinished"], &balance["contradictory"]), (&0.into(), &0.into()));
    assert_eq!(balance["conserved"], true);

    let reports: Vec<PathBuf> =
        results["reports"].as_array().unwrap().iter().map(|path| path.as_str().unwrap().into()).collect();
    let names: Vec<&str> = reports.iter().map(|path| path.file_name().unwrap().to_str().unwrap()).collect();
    for name in ["settlement.csv", "pacs009-collection.xml", "pacs009-payout.xml", "statement-alpha.csv"] {
        assert!(names.contains(&name), "{names:?}");
    }
    assert_eq!(names.iter().filter(|name| name.starts_with("statement-")).count(), 4);
    let text = std::fs::read_to_string(data.join("reports/settlement.csv")).unwrap();
    let nets: Vec<i64> = text
        .lines()
        .skip(1)
        .map(|line| line.rsplit(',').next().unwrap().replace('.', "").parse().unwrap())
        .collect();
    assert_eq!((nets.len(), nets.iter().sum::<i64>()), (4, 0), "{text}");
    let paid: i64 = nets.iter().filter(|net| **net > 0).sum();
    assert!(paid > 0);
    // The settlement has changed everybody's funds by exactly the net amounts.
    assert_eq!(balance["settlement"], "1");
    for line in text.lines().skip(1) {
        let fields: Vec<&str> = line.split(',').collect();
        let (name, net) = (fields[4], amount(&fields[10].into()) * 100);
        let brought = BROUGHT.iter().find(|(brought, _)| *brought == name).unwrap().1 * 10_000;
        assert_eq!(amount(&balance["liquidity"][name]), brought - net, "{line}");
        let path = data.join(format!("reports/statement-{name}.csv"));
        let statement = std::fs::read_to_string(path).unwrap();
        assert!(statement.lines().last().unwrap().ends_with(",0.00"), "{statement}");
        assert_eq!(statement.matches(",settlement,1,").count(), 1, "{statement}");
    }
    for leg in ["collection", "payout"] {
        let message = std::fs::read_to_string(data.join(format!("reports/pacs009-{leg}.xml"))).unwrap();
        let total = message.split("<CtrlSum>").nth(1).unwrap().split('<').next().unwrap();
        assert_eq!(total.replace('.', "").parse::<i64>().unwrap(), paid, "{message}");
    }

    // A second demo in the same place would mix two days.
    let again = common::run_lab(&["switch", "demo", "--once", "--data", data.to_str().unwrap()]);
    assert_eq!(again.status.code(), Some(1));
    assert!(common::stderr(&again).contains("already"), "{}", common::stderr(&again));
}

#[test]
fn the_money_can_be_in_a_ledger_elsewhere() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("ledger");
    let arguments = ["ledger", "serve", "--tcp", "127.0.0.1:0", "--data", data.to_str().unwrap()];
    let mut ledger = Service::start(dir.path(), "served", &arguments);
    let url = logged(&mut ledger, dir.path(), "served", |log| {
        let addresses = log.lines().find_map(|line| line.strip_prefix("ledger ready: "))?;
        addresses.split(' ').find(|url| url.starts_with("tcp://")).map(str::to_owned)
    });
    let day = dir.path().join("day");
    let results = play(&day, &["--ledger", &url]);
    let balance = &results["balance"];
    assert_eq!((&balance["conserved"], &balance["committed"]), (&true.into(), &42.into()));
    assert!(amount(&balance["debits"]) > 0, "{balance}");
    assert!(
        day.join("switch").exists() && !day.join("ledger").exists(),
        "the demonstration kept a ledger itself"
    );
    ledger.assert_runs();

    // The switch refuses to start if it would forget what the ledger remembers.
    let output = common::run(&["switch", "serve", "--in-memory", "--ledger", &url]);
    assert_eq!(output.status.code(), Some(1));
    assert!(common::stderr(&output).contains("--data"), "{}", common::stderr(&output));
}
