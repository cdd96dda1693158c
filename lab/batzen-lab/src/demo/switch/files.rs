//! The reports of the settlement, written to files.

use std::path::PathBuf;
use std::time::SystemTime;

use crate::participants::Fsps;
use anyhow::Context as _;
use batzen_switch::reports::data::{Agent, Currency, Instant, Net, Settlement};
use batzen_switch::reports::pacs009::Leg;
use batzen_switch::reports::tables::{self, Entry, EntryKind, Statement};
use batzen_switch::reports::{camt054, pacs009};

use super::play::{Closed, committed};
use super::{CURRENCY, DataDir};

/// Writes instructions, notifications, report and statements.
pub(crate) fn write(
    id: &str,
    closed: &Closed,
    fsps: &Fsps,
    data_dir: &DataDir,
) -> anyhow::Result<Vec<PathBuf>> {
    let dir = batzen_cli_support::services::directory(&data_dir.reports())?;
    let settlement = settlement(id, closed)?;
    let mut files = vec![("settlement.csv".to_owned(), tables::settlement(&settlement)?)];
    for (leg, name) in [(Leg::Collection, "collection"), (Leg::Payout, "payout")] {
        if let Some(message) = pacs009::write(&settlement, leg)? {
            files.push((format!("pacs009-{name}.xml"), message));
        }
    }
    for (index, net) in settlement.nets.iter().enumerate() {
        let name = &net.participant.name;
        if let Some(message) = camt054::write(&settlement, index)? {
            files.push((format!("camt054-{name}.xml"), message));
        }
        let statement = statement(&settlement, index, fsps)?;
        files.push((format!("statement-{name}.csv"), tables::statement(&statement)?));
    }
    let mut paths = Vec::with_capacity(files.len());
    for (name, text) in files {
        let path = dir.join(name);
        std::fs::write(&path, text).with_context(|| path.display().to_string())?;
        paths.push(path);
    }
    Ok(paths)
}

fn agent(name: &str) -> Agent {
    Agent { name: name.to_owned(), bic: None, account: format!("SETTLEMENT-{name}") }
}

fn settlement(id: &str, closed: &Closed) -> anyhow::Result<Settlement> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
    let nets = closed.totals.iter().map(|total| Net {
        participant: agent(&total.name),
        sent_count: total.sent_count,
        sent: total.sent,
        received_count: total.received_count,
        received: total.received,
        net: total.net,
    });
    Ok(Settlement {
        id: id.to_owned(),
        currency: Currency::new(CURRENCY)?,
        created: Instant(u64::try_from(now.as_millis())?),
        windows: vec![closed.window],
        hub: agent("HUB"),
        nets: nets.collect(),
    })
}

fn statement(settlement: &Settlement, index: usize, fsps: &Fsps) -> anyhow::Result<Statement> {
    let mut entries = Vec::new();
    for (id, outcome) in committed(fsps) {
        let amount = i128::from(outcome.cents) * 100;
        let (kind, counterparty, change) = match index {
            index if index == outcome.payer => (EntryKind::Sent, outcome.payee, amount),
            index if index == outcome.payee => (EntryKind::Received, outcome.payer, -amount),
            _ => continue,
        };
        let counterparty = fsps.names()[counterparty].clone();
        let at = Instant(outcome.ended_ms.unwrap_or(settlement.created.0));
        entries.push(Entry { at, kind, reference: id, counterparty, change });
    }
    entries.sort_by_key(|entry| entry.at);
    let net = settlement.nets[index].net;
    if net != 0 {
        entries.push(Entry {
            at: settlement.created,
            kind: EntryKind::Settlement,
            reference: settlement.id.clone(),
            counterparty: String::new(),
            change: -net,
        });
    }
    Ok(Statement {
        participant: settlement.nets[index].participant.name.clone(),
        currency: settlement.currency.clone(),
        opening: 0,
        entries,
        closing: 0,
    })
}
