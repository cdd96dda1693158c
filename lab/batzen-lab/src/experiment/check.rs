//! Whether money is lost: the report of the auditor, the exchange's books, and the switch beside its ledger.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use serde_json::{Value, json};

use super::agent::CommandLine;
use super::control::Generators;
use super::now_ms;
use super::placement::{Instance, socket_addr};
use super::state::{AUDIT, Experiment};
use super::tally::Second;
use super::topology::Role;
use crate::bench::load::scrape::Page;
use crate::participants::hub::ten_thousandths;

/// The file with the verdict of the last check.
pub(super) const CHECK: &str = "check.json";
/// Time that the auditor may take to check what was done, and the switch to end what it has begun.
const PATIENCE: Duration = Duration::from_secs(300);
/// The pause between two looks.
const LOOK_PAUSE: Duration = Duration::from_millis(500);

/// Removes the verdict of the last check.
///
/// # Errors
/// When it cannot be removed.
pub(super) fn remove_verdict(experiment: &Experiment) -> anyhow::Result<()> {
    match std::fs::remove_file(experiment.dir.join(CHECK)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error).context(CHECK),
        _ => Ok(()),
    }
}

/// Ends the load, waits until all is settled, and asks whether the books are right.
pub(super) fn check(experiment: &Experiment) -> anyhow::Result<Value> {
    remove_verdict(experiment)?;
    if !experiment.of(Role::Load).is_empty() {
        Generators::connect(experiment)?.stop(experiment, PATIENCE)?;
    }
    let mut verdict = json!({ "time_ms": now_ms(), "conserved": null, "findings": null });
    if let Some(auditor) = experiment.of(Role::Auditor).pop() {
        let report = audit(experiment, &auditor)?;
        let findings = report["findings"].as_array().context("the auditor's report has no findings")?;
        verdict["findings"] = json!(findings.len());
        experiment.keep(AUDIT, &serde_json::to_string_pretty(&report)?)?;
    }
    let exchange = experiment.of(Role::Exchange).into_iter().next();
    let books = exchange.map(|exchange| ("books", books(experiment, &exchange)));
    let has_switch = !experiment.of(Role::Switch).is_empty();
    let cleared = has_switch.then(|| ("switch", cleared(experiment)));
    let asked: Vec<_> = books.into_iter().chain(cleared).collect();
    ensure!(!asked.is_empty(), "the topology has neither an exchange nor a switch");
    verdict["conserved"] = json!(true);
    for (name, answer) in asked {
        match answer {
            Ok((is_conserved, facts)) => {
                verdict["conserved"] = json!(is_conserved && verdict["conserved"] == true);
                verdict[name] = facts;
            }
            // Not known is not right.
            Err(error) => {
                verdict["conserved"] = Value::Null;
                verdict["reason"] = json!(format!("{name}: {error:#}"));
            }
        }
    }
    experiment.keep(CHECK, &serde_json::to_string_pretty(&verdict)?)?;
    Ok(verdict)
}

/// The report of an auditor that has seen everything and compares with the bank now.
fn audit(experiment: &Experiment, auditor: &Instance) -> anyhow::Result<Value> {
    let address = socket_addr(&auditor.authority())?;
    let deadline = Instant::now() + PATIENCE;
    // Nobody follows a Citus cluster: there `auditor run` reads all rows itself.
    let mut quiet = if experiment.of(Role::Citus).is_empty() { 0 } else { 2 };
    // Twice, because commits may be on their way.
    while quiet < 2 {
        let lag = Page::fetch(address)?.value("batzen_feed_lag_commits");
        quiet = if lag == Some(0.0) { quiet + 1 } else { 0 };
        ensure!(Instant::now() < deadline, "the auditor does not catch up: {lag:?} commits behind");
        std::thread::sleep(LOOK_PAUSE);
    }
    let access = experiment.hosts.get(&auditor.host).context("a placed instance has a host")?;
    let conf = access.dir.join(&auditor.name).join("conf").to_string_lossy().into_owned();
    let program = access.batzen_of(auditor);
    let words = [program.as_str(), "auditor", "run", "-c", &conf, "--json"];
    // Findings make it fail, and are what is asked for.
    let (_, stdout, stderr) =
        experiment.agent(&auditor.host)?.run_whatever_comes(CommandLine::new(words), "")?;
    let report: Value =
        serde_json::from_str(&stdout).with_context(|| format!("auditor run: {}", stderr.trim()))?;
    ensure!(
        report["without_bank"].is_null(),
        "the auditor could not compare with the bank: {}",
        report["without_bank"]
    );
    let unchecked = report["accounts_not_checked"].as_array().is_some_and(|accounts| !accounts.is_empty());
    ensure!(!unchecked, "the auditor did not check {}", report["accounts_not_checked"]);
    let stream = &report["stream"];
    let is_connected = stream.is_null() || stream["connected"] == true && stream["failure"].is_null();
    ensure!(is_connected, "the auditor does not follow the exchange: {}", stream["text"]);
    Ok(report)
}

/// Whether the exchange's books balance, and the figures that say so.
fn books(experiment: &Experiment, exchange: &Instance) -> anyhow::Result<(bool, Value)> {
    const DIFFERENCE: &str = "batzen_money_conservation_difference";
    if experiment.databases().is_empty() {
        // An embedded store is open in its service, whose metrics are exact after every commit.
        let page = Page::fetch(socket_addr(&exchange.authority())?)?;
        let difference = page.value(DIFFERENCE).context("the exchange is still adding up its rows")?;
        return Ok((difference == 0.0, json!({ DIFFERENCE: difference })));
    }
    let access = experiment.hosts.get(&exchange.host).context("a placed instance has a host")?;
    let conf = access.dir.join(&exchange.name).join("conf").to_string_lossy().into_owned();
    let program = access.batzen_of(exchange);
    let words = [program.as_str(), "exchange", "totals", "-c", &conf, "--json"];
    let text = experiment.agent(&exchange.host)?.run(CommandLine::new(words))?;
    // The command fails unless the books balance.
    Ok((true, serde_json::from_str(&text).context("exchange totals")?))
}

/// Whether the switch's positions are those of its ledger, nothing is on its way, and nobody was told of transfers that did
/// not happen; and the figures that say so.
fn cleared(experiment: &Experiment) -> anyhow::Result<(bool, Value)> {
    let (hub, currency) = (experiment.hub()?, &experiment.topology.currency);
    let deadline = Instant::now() + PATIENCE;
    let balances = loop {
        let balances = hub.get("/balances")?;
        let states = balances["transfers"].as_object().context("transfers of /balances")?;
        // RECEIVED and RESERVED.
        let open: u64 = states
            .iter()
            .filter(|(state, _)| state.starts_with("RE"))
            .filter_map(|(_, count)| count.as_u64())
            .sum();
        if open == 0 {
            break balances;
        }
        ensure!(Instant::now() < deadline, "{open} transfers do not end");
        std::thread::sleep(LOOK_PAUSE);
    };
    let count = |state: &str| balances["transfers"][state].as_u64().unwrap_or(0);
    let (committed, told) = (count("COMMITTED") + count("SETTLED"), transfers_told(experiment)?);
    let of_currency = |found: &&Value| found["currency"] == **currency;
    let sums = balances["currencies"].as_array().context("currencies of /balances")?.iter().find(of_currency);
    let sums = sums.with_context(|| format!("/balances has no {currency}: {balances}"))?;
    let sum = |name: &str| ten_thousandths(&sums[name]).with_context(|| format!("{name} of /balances"));
    let is_balanced = sum("ledgerDebits")? == sum("ledgerCredits")?;
    let is_quiet = sum("pending")? == 0 && sum("hubSettlement")? == 0;
    let different = different_positions(|path| Ok(hub.get(path)?), currency)?;
    let is_right = is_balanced && is_quiet && different.is_empty() && told <= committed;
    let facts = json!({
        "committed": committed, "told": told, "sums": sums, "transfers": balances["transfers"], "different_positions": different,
    });
    Ok((is_right, facts))
}

/// The participants whose position in the ledger is not the sum of what the switch has recorded in windows that are not
/// settled, with both. `get` asks the switch.
fn different_positions(
    get: impl Fn(&str) -> anyhow::Result<Value>,
    currency: &str,
) -> anyhow::Result<BTreeMap<String, Value>> {
    let mut recorded: BTreeMap<String, i128> = BTreeMap::new();
    let participants = get("/participants")?;
    for participant in participants.as_array().context("a list of participants")? {
        let name = participant["name"].as_str().context("a participant has a name")?;
        recorded.insert(name.to_owned(), 0);
    }
    let windows = get("/settlementWindows")?;
    let windows = windows.as_array().context("a list of windows")?;
    for line in windows.iter().filter_map(|window| window["content"].as_array()).flatten() {
        if line["currency"] == currency && line["settlementId"].is_null() {
            let name = line["participant"].as_str().context("a window names its participants")?;
            let net = ten_thousandths(&line["net"]).context("a window has net amounts")?;
            *recorded.entry(name.to_owned()).or_default() += net;
        }
    }
    let mut different = BTreeMap::new();
    for (name, recorded) in recorded {
        let positions = get(&format!("/participants/{name}/positions"))?;
        let found = positions.as_array().into_iter().flatten().find(|found| found["currency"] == currency);
        let in_ledger = found.map_or(Some(0), |found| ten_thousandths(&found["value"]));
        if in_ledger != Some(recorded) {
            different.insert(name, json!({ "recorded": recorded.to_string(), "ledger": positions }));
        }
    }
    Ok(different)
}

/// The transfers whose payers were told that they are committed, by what generators have written.
fn transfers_told(experiment: &Experiment) -> anyhow::Result<u64> {
    let mut told = 0;
    for instance in experiment.ever_of(Role::Load) {
        let mut agent = experiment.agent(&instance.host)?;
        let access = experiment.hosts.get(&instance.host).context("a placed instance has a host")?;
        let path = access.dir.join(&instance.name).join("out");
        let mut offset = 0;
        loop {
            let (text, _) = agent.get(&path, offset)?;
            let whole = text.rfind('\n').map_or(0, |end| end + 1);
            if whole == 0 {
                break;
            }
            offset += whole as u64;
            let seconds = text[..whole].lines().filter_map(|line| serde_json::from_str::<Second>(line).ok());
            told += seconds.filter_map(|second| Some(second.kinds.get("transfer")?.ops)).sum::<u64>();
        }
    }
    Ok(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_that_the_switch_has_not_recorded_is_found() {
        let line = |name: &str, net: &str, settlement: Value| json!({ "participant": name, "currency": "EUR", "net": net, "settlementId": settlement });
        let different = |position: &str| {
            let get = |path: &str| {
                Ok(match path {
                    "/participants" => json!([{ "name": "one" }, { "name": "two" }, { "name": "idle" }]),
                    "/settlementWindows" => json!([
                        { "content": [line("one", "7", json!(1)), line("two", "-7", json!(1))] },
                        { "content": [line("one", "2.5", Value::Null), line("two", "-2.5", Value::Null)] },
                        { "content": [line("one", "-1", Value::Null), line("two", "1", Value::Null)] },
                    ]),
                    "/participants/one/positions" => json!([{ "currency": "EUR", "value": position }]),
                    "/participants/two/positions" => json!([{ "currency": "EUR", "value": "-1.5" }]),
                    _ => json!([]),
                })
            };
            different_positions(get, "EUR").unwrap().into_keys().collect::<Vec<_>>()
        };
        assert_eq!(different("1.5"), Vec::<String>::new(), "what is settled does not count");
        assert_eq!(different("1.5001"), ["one"]);
    }
}
