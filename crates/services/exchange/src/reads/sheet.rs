//! Balance sheets, for people and for programs.

use std::fmt::Write as _;

use crate::reads::totals::Totals;
use batzen_protocol::{Currency, MoneySum};
use serde_json::{Value, json};

/// Both sides of an exchange's books: the bank's records and those of its own store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BalanceSheet {
    /// The currency.
    pub currency: Currency,
    /// The sum received on the exchange's account, according to the bank's ledger.
    pub bank_in: MoneySum,
    /// The sum paid out of the exchange's account, according to the bank's ledger.
    pub bank_out: MoneySum,
    /// The same two sums according to the histories that the bank shows.
    pub histories: (MoneySum, MoneySum),
    /// The exchange's books.
    pub totals: Totals,
}

impl BalanceSheet {
    /// Returns whether the bank's ledger and its histories agree.
    pub(crate) fn bank_agrees(&self) -> bool {
        self.histories == (self.bank_in, self.bank_out)
    }

    /// Returns whether money was neither lost nor created. Ledger and histories of the bank must agree, and
    /// the sum received (by the bank's books) must equal the sum paid out (by the bank's books) plus what the
    /// exchange owes or has earned (by its store), to the last unit.
    pub fn conserved(&self) -> bool {
        self.bank_agrees() && self.totals.explains(self.bank_in, self.bank_out)
    }

    /// The sheet for programs: amounts as texts with their currency.
    pub fn json(&self) -> Value {
        let amount = |money: MoneySum| format!("{}:{money}", self.currency);
        let totals = &self.totals;
        json!({
            "bank_in": amount(self.bank_in),
            "bank_out": amount(self.bank_out),
            "bank_and_ledger_agree": self.bank_agrees(),
            "reserves": amount(totals.reserves),
            "issued": amount(totals.issued),
            "redeemed": amount(totals.redeemed),
            "outstanding": amount(totals.outstanding),
            "pending": amount(totals.pending),
            "purses": amount(totals.purses),
            "unrevealed_melts": amount(totals.unrevealed_melts),
            "fees": amount(totals.fees),
            "overdrawn": amount(totals.overdrawn),
            "overredeemed": amount(totals.overredeemed),
            "conserved": self.conserved(),
            "solvent": totals.is_solvent(),
        })
    }

    /// The sheet for people.
    pub fn text(&self) -> String {
        let totals = &self.totals;
        let right = [
            ("bank_out", self.bank_out, "paid out by the bank for the exchange"),
            ("reserves", totals.reserves, "waits in reserves for withdrawal"),
            ("outstanding", totals.outstanding, "coins in wallets: issued less redeemed"),
            ("pending", totals.pending, "deposits that merchants have not been paid yet"),
            ("purses", totals.purses, "payments between people that wait for their receiver"),
            ("unrevealed_melts", totals.unrevealed_melts, "change that was begun and not finished"),
            ("fees", totals.fees, "income of the exchange, rounding included"),
        ];
        let width = 24;
        let mut text = String::new();
        let line = "─".repeat(84);
        let mut row = |name: &str, money: MoneySum, what: &str| {
            let amount = aligned(money);
            let _ = writeln!(text, "  {name:<18}{amount:>width$}  {what}");
        };
        row("issued", totals.issued, "all coins ever signed");
        row("redeemed", totals.redeemed, "of that, spent or changed, less refunds");
        let _ = writeln!(text, "  {line}");
        let mut sum = Ok(MoneySum::ZERO);
        for (name, money, what) in right {
            let _ = writeln!(text, "  {name:<18}{:>width$}  {what}", aligned(money));
            sum = sum.and_then(|sum: MoneySum| sum.checked_add(money));
        }
        let _ = writeln!(text, "  {line}");
        let sum = sum.map_or_else(|error| error.to_string(), aligned);
        let _ = writeln!(text, "  {:<18}{sum:>width$}  of these", "sum");
        let bank_in = aligned(self.bank_in);
        let _ = writeln!(text, "  {:<18}{bank_in:>width$}  paid in at the bank for reserves", "bank_in");
        let agreement = match self.bank_agrees() {
            true => "ledger and histories of the bank show the same",
            false => "LEDGER AND HISTORIES OF THE BANK DIFFER",
        };
        let _ = writeln!(text, "  {agreement}");
        let verdict = match self.conserved() {
            true => "they are equal: nothing was lost, nothing was created",
            false => "THEY DIFFER: money was lost or created",
        };
        let _ = writeln!(text, "  {verdict} ({})", self.currency);
        for line in insolvency(totals) {
            let _ = writeln!(text, "  {line}");
        }
        text
    }
}

/// Formats an amount with all eight decimals, so that columns align.
fn aligned(money: MoneySum) -> String {
    format!("{}.{:08}", money.value(), money.fraction())
}

fn fee_rows(totals: &Totals) -> [(&'static str, MoneySum); 12] {
    let income = &totals.income;
    [
        ("withdraw", income.withdraw),
        ("deposit", income.deposit),
        ("refresh", income.refresh),
        ("refund", income.refund),
        ("wire", income.wire),
        ("closing", income.closing),
        ("history", income.history),
        ("purse", income.purse),
        ("account", income.account),
        ("rounding", income.rounding),
        ("surplus", income.surplus),
        ("drained", income.drained),
    ]
}

/// The books of an exchange alone, for programs: amounts without currency.
pub fn totals_json(totals: &Totals) -> Value {
    let income: serde_json::Map<_, _> =
        fee_rows(totals).iter().map(|(name, money)| ((*name).to_owned(), money.to_string().into())).collect();
    json!({
        "wired_in": totals.wired_in.to_string(),
        "wired_out": totals.wired_out.to_string(),
        "reserves": totals.reserves.to_string(),
        "issued": totals.issued.to_string(),
        "redeemed": totals.redeemed.to_string(),
        "outstanding": totals.outstanding.to_string(),
        "deposits": totals.deposits.to_string(),
        "transient": totals.transient.to_string(),
        "in_flight": totals.in_flight.to_string(),
        "pending": totals.pending.to_string(),
        "purses": totals.purses.to_string(),
        "unrevealed_melts": totals.unrevealed_melts.to_string(),
        "fees": totals.fees.to_string(),
        "overdrawn": totals.overdrawn.to_string(),
        "overredeemed": totals.overredeemed.to_string(),
        "income": income,
        "conserved": totals.conserved(),
        "solvent": totals.is_solvent(),
    })
}

/// The books of an exchange alone, for people.
pub fn totals_text(totals: &Totals) -> String {
    let mut text = String::new();
    let rows = [
        ("wired in", totals.wired_in),
        ("wired out", totals.wired_out),
        ("reserves", totals.reserves),
        ("issued", totals.issued),
        ("redeemed", totals.redeemed),
        ("outstanding", totals.outstanding),
        ("deposits", totals.deposits),
        ("transient", totals.transient),
        ("in flight", totals.in_flight),
        ("purses", totals.purses),
        ("unrevealed melts", totals.unrevealed_melts),
        ("fees", totals.fees),
    ];
    for (name, money) in rows {
        let _ = writeln!(text, "{name:<20}{:>24}", aligned(money));
    }
    for (name, money) in fee_rows(totals) {
        let _ = writeln!(text, "  {name:<18}{:>24}", aligned(money));
    }
    let verdict = if totals.conserved() { "the books add up" } else { "THE BOOKS DO NOT ADD UP" };
    let _ = writeln!(text, "{verdict}");
    for line in insolvency(totals) {
        let _ = writeln!(text, "{line}");
    }
    text
}

/// A line for each way in which customers' money is missing.
fn insolvency(totals: &Totals) -> impl Iterator<Item = String> {
    let lines = [
        (totals.overdrawn, "WAS PAID OUT AS PROFIT BEYOND WHAT WAS EARNED: customers' money is missing"),
        (
            totals.overredeemed,
            "WAS REDEEMED BEYOND WHAT WAS ISSUED: revoke the denominations that the auditor names",
        ),
    ];
    lines.into_iter().filter(|(amount, _)| !amount.is_zero()).map(|(amount, what)| format!("{amount} {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conservation_is_exact() {
        let money = |text: &str| MoneySum::from(text.parse::<batzen_protocol::Money>().unwrap());
        let totals = Totals {
            reserves: money("1"),
            outstanding: money("2"),
            pending: money("3"),
            unrevealed_melts: money("4"),
            fees: money("0.00000001"),
            ..Totals::default()
        };
        let sheet = BalanceSheet {
            currency: "KUDOS".parse().unwrap(),
            bank_in: money("15.00000001"),
            bank_out: money("5"),
            histories: (money("15.00000001"), money("5")),
            totals,
        };
        assert!(sheet.conserved());
        assert_eq!(sheet.json()["fees"], "KUDOS:0.00000001");
        assert_eq!(sheet.json()["conserved"], true);
        assert!(sheet.text().contains("15.00000001"));
        let less = money("4.99999999");
        let sheet_less = BalanceSheet { bank_out: less, histories: (sheet.bank_in, less), ..sheet };
        assert!(sheet_less.bank_agrees() && !sheet_less.conserved());
        assert!(sheet_less.text().contains("THEY DIFFER"));
        let apart = BalanceSheet { histories: (sheet.bank_in, less), ..sheet };
        assert!(!apart.conserved() && apart.text().contains("OF THE BANK DIFFER"));
    }
}
