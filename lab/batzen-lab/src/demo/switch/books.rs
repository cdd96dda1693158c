//! The final books: the switch's figures beside those of the participants.

use std::fmt::Write as _;

use crate::participants::Fsps;
use crate::participants::hub::{Hub, ten_thousandths};
use anyhow::Context as _;
use serde_json::{Value, json};

use super::{CURRENCY, play};

/// The balance sheet. Amounts are ten-thousandths of the currency.
pub(crate) struct Sheet {
    debits: i128,
    credits: i128,
    pending: i128,
    hub_settlement: i128,
    /// The settlement of the day.
    settlement: String,
    /// Each participant's funds at the settlement bank.
    liquidity: Vec<(String, i128)>,
    /// The sum of all initial funds.
    brought: i128,
    /// Transfers that the switch has committed.
    committed: u64,
    /// Transfers that are neither committed nor aborted.
    unfinished: u64,
    /// Transfers by state.
    states: Value,
    /// Transfers whose payer was notified of COMMITTED.
    callbacks: u64,
    /// Transfers with contradictory notices.
    contradictory: u64,
}

impl Sheet {
    /// Queries the switch and the participants.
    pub(crate) fn read(hub: &Hub, fsps: &Fsps, settled: &play::Settled) -> anyhow::Result<Self> {
        let answer = hub.get("/balances")?;
        let currencies = answer["currencies"].as_array().context("currencies of /balances")?;
        let currency = currencies
            .iter()
            .find(|currency| currency["currency"] == CURRENCY)
            .with_context(|| format!("/balances: {answer}"))?;
        let amount = |name: &str| {
            ten_thousandths(&currency[name]).with_context(|| format!("{name} of /balances: {currency}"))
        };
        let states = answer["transfers"].clone();
        let count = |is_meant: fn(&str) -> bool| -> u64 {
            let states = states.as_object().into_iter().flatten();
            states.filter(|(state, _)| is_meant(state)).filter_map(|(_, count)| count.as_u64()).sum()
        };
        Ok(Self {
            debits: amount("ledgerDebits")?,
            credits: amount("ledgerCredits")?,
            pending: amount("pending")?,
            hub_settlement: amount("hubSettlement")?,
            settlement: settled.id.clone(),
            liquidity: fsps.names().iter().cloned().zip(settled.liquidity.iter().copied()).collect(),
            brought: play::FUNDS_CENTS.iter().map(|cents| i128::from(*cents) * 100).sum(),
            committed: count(|state| matches!(state, "COMMITTED" | "SETTLED")),
            unfinished: count(|state| state.starts_with("RE")),
            callbacks: play::committed(fsps).len() as u64,
            contradictory: fsps.outcomes().iter().filter(|(_, outcome)| outcome.is_contradictory).count()
                as u64,
            states,
        })
    }

    /// All contradictions; empty if there are none.
    pub(crate) fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let mut check = |is_right: bool, what: &str| {
            if !is_right {
                problems.push(what.to_owned());
            }
        };
        check(self.debits == self.credits, "the ledger's debits and credits differ");
        check(self.debits > 0, "nothing was booked");
        check(self.pending == 0, "amounts are pending");
        check(self.hub_settlement == 0, "the hub's settlement account is not zero");
        let liquidity: i128 = self.liquidity.iter().map(|(_, amount)| amount).sum();
        check(liquidity == self.brought, "the settlement made or lost money");
        check(self.unfinished == 0, "transfers are not finished");
        check(self.committed == self.callbacks, "payers know of other committed transfers than the switch");
        check(self.contradictory == 0, "participants received contradictory notices");
        problems
    }

    fn rows(&self) -> [(&'static str, i128); 4] {
        [
            ("debits", self.debits),
            ("credits", self.credits),
            ("pending", self.pending),
            ("hub settlement", self.hub_settlement),
        ]
    }

    /// The sheet for programs.
    pub(crate) fn json(&self) -> Value {
        let liquidity: serde_json::Map<String, Value> =
            self.liquidity.iter().map(|(name, amount)| (name.clone(), decimal(*amount).into())).collect();
        json!({
            "currency": CURRENCY,
            "debits": decimal(self.debits),
            "credits": decimal(self.credits),
            "pending": decimal(self.pending),
            "hub_settlement": decimal(self.hub_settlement),
            "settlement": self.settlement,
            "liquidity": liquidity,
            "committed": self.committed,
            "callbacks": self.callbacks,
            "unfinished": self.unfinished,
            "contradictory": self.contradictory,
            "transfers": self.states,
            "conserved": self.problems().is_empty(),
        })
    }

    /// The sheet for people.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        for (name, amount) in self.rows() {
            let _ = writeln!(text, "  {name:<18}{:>20} {CURRENCY}", decimal(amount));
        }
        for (name, amount) in &self.liquidity {
            let _ = writeln!(text, "  {:<18}{:>20} {CURRENCY}", format!("funds of {name}"), decimal(*amount));
        }
        let _ = writeln!(text, "  {:<18}{:>20} transfers", "committed", self.committed);
        let _ = writeln!(text, "  {:<18}{:>20} callbacks to payers", "told", self.callbacks);
        let problems = self.problems();
        let verdict = if problems.is_empty() { "the books add up".to_owned() } else { problems.join("; ") };
        let _ = writeln!(text, "  {verdict}");
        text
    }
}

fn decimal(amount: i128) -> String {
    let sign = if amount < 0 { "-" } else { "" };
    let amount = amount.unsigned_abs();
    format!("{sign}{}.{:04}", amount / 10_000, amount % 10_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn books_that_do_not_add_up_are_reported() {
        let good = || Sheet {
            debits: 5,
            credits: 5,
            pending: 0,
            hub_settlement: 0,
            settlement: "1".to_owned(),
            liquidity: vec![("one".to_owned(), 3), ("two".to_owned(), 4)],
            brought: 7,
            committed: 2,
            unfinished: 0,
            states: Value::Null,
            callbacks: 2,
            contradictory: 0,
        };
        assert!(good().problems().is_empty());
        assert!(good().text().contains("0.0005"));
        for wrong in [
            Sheet { credits: 4, ..good() },
            Sheet { debits: 0, credits: 0, ..good() },
            Sheet { pending: 1, ..good() },
            Sheet { hub_settlement: -1, ..good() },
            Sheet { brought: 8, ..good() },
            Sheet { callbacks: 3, ..good() },
            Sheet { unfinished: 1, ..good() },
            Sheet { contradictory: 1, ..good() },
        ] {
            assert_eq!(wrong.problems().len(), 1);
            assert_eq!(wrong.json()["conserved"], false);
        }
    }
}
