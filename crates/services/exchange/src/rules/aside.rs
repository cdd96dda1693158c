//! Credits at the bank that fill no reserve, and wait for an operator.

use batzen_engine::{Command, Plan, WorkingSet};
use batzen_protocol::Timestamp;
use batzen_tables::exchange::{AsideKey, AsideRow, CreditsAside};

use super::{Credits, ExchangeRules};
use crate::rules::refusal::Result;

/// A credit that cannot be booked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AsideCredit {
    /// Its key: the same credit has the same, however often the bank reports it.
    pub key: AsideKey,
    /// The reason.
    pub reason: String,
    /// The credit as the bank sent it, in JSON.
    pub text: String,
}

/// Sets credits aside. Those that are known already are left as they are.
#[derive(Debug, Clone)]
pub struct SetAside {
    /// The credits.
    pub credits: Vec<AsideCredit>,
}

/// The answer to [`SetAside`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AsideCount {
    /// Number of credits that were not known before.
    pub new: usize,
}

impl Command<ExchangeRules> for SetAside {
    type Answer = AsideCount;
    const IS_BACKGROUND: bool = true;

    fn plan(&self, _: &ExchangeRules, plan: &mut Plan) {
        for credit in &self.credits {
            plan.row::<CreditsAside>(credit.key.clone());
        }
    }

    fn execute(&self, _: &ExchangeRules, rows: &mut WorkingSet, now: Timestamp) -> Result<AsideCount> {
        let mut new = 0;
        for credit in &self.credits {
            if rows.get::<CreditsAside>(&credit.key).is_none() {
                let (reason, text) = (credit.reason.clone(), credit.text.clone());
                let row = AsideRow { reason, text, time: now, settled: None, note: None };
                rows.insert::<CreditsAside>(&credit.key, row);
                new += 1;
            }
        }
        Ok(AsideCount { new })
    }
}

/// Settles a credit that was set aside: books it in the same commit, or notes what the operator did with the money. A
/// settled credit is never booked, since its money may have been sent back.
#[derive(Debug, Clone)]
pub struct SettleAside {
    /// The credit.
    pub key: AsideKey,
    /// A note for the books.
    pub note: String,
    /// The credit, if it can be booked now.
    pub credits: Option<Credits>,
}

/// The answer to [`SettleAside`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AsideSettled {
    /// Whether it was settled now; otherwise there is no open one.
    pub changed: bool,
}

impl Command<ExchangeRules> for SettleAside {
    type Answer = AsideSettled;

    fn plan(&self, rules: &ExchangeRules, plan: &mut Plan) {
        plan.row::<CreditsAside>(self.key.clone());
        if let Some(credits) = &self.credits {
            credits.plan(rules, plan);
        }
    }

    fn execute(&self, rules: &ExchangeRules, rows: &mut WorkingSet, now: Timestamp) -> Result<AsideSettled> {
        let open = rows.get::<CreditsAside>(&self.key).filter(|row| row.settled.is_none()).cloned();
        let changed = open.is_some();
        if let Some(row) = open {
            if let Some(credits) = &self.credits {
                credits.execute(rules, rows, now)?;
            }
            let note = Some(self.note.clone());
            rows.update::<CreditsAside>(&self.key, AsideRow { settled: Some(now), note, ..row });
        }
        Ok(AsideSettled { changed })
    }
}
